# SPDX-License-Identifier: MIT
# The kernel transport rests on parts of the ud transport.
if(NOT ud IN_LIST COOP_NET_TRANSPORTS)
	set(COOP_NET_OFF TRUE)
endif()
