# SPDX-License-Identifier: MIT
# Bulk descriptors and addresses as they come out of somebody's message.
if(TARGET coop_net)
	coop_fuzz(fuzz_net_descriptor SOURCES fuzz_net_descriptor.cpp LIBS coop_net)
endif()
# Whole machines of a transport, with an enemy on their fabric.
if("ud" IN_LIST COOP_NET_TRANSPORTS)
	coop_fuzz(fuzz_net_ud SOURCES fuzz_net_ud.cc net_random.cc LIBS coop_net)
endif()
if("fabric" IN_LIST COOP_NET_TRANSPORTS)
	coop_fuzz(fuzz_net_fabric SOURCES fuzz_net_fabric.cc fake_fabric.cc net_random.cc LIBS coop_net)
endif()
