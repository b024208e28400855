# SPDX-License-Identifier: MIT
# What the ud transport says on the wire about where its machines are.
if("ud" IN_LIST COOP_NET_TRANSPORTS)
	coop_test(net_ud SOURCES net_ud.cc net_ud_readers.cc LIBS coop_net)
endif()
