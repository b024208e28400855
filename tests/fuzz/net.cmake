# Bulk descriptors and addresses as they come out of somebody's message.
if(TARGET coop_net)
	coop_fuzz(fuzz_net_descriptor SOURCES fuzz_net_descriptor.cpp LIBS coop_net)
endif()
# Whole machines of a transport, with an enemy on their fabric. By choice: a run of one takes
# milliseconds, and both are long to compile.
option(COOP_FUZZ_MACHINES "fuzz whole machines of libcoop-net" OFF)
if(COOP_FUZZ_MACHINES AND "ud" IN_LIST COOP_NET_TRANSPORTS)
	coop_fuzz(fuzz_net_ud SOURCES fuzz_net_ud.cc net_random.cc LIBS coop_net)
endif()
if(COOP_FUZZ_MACHINES AND "fabric" IN_LIST COOP_NET_TRANSPORTS)
	coop_fuzz(fuzz_net_fabric SOURCES fuzz_net_fabric.cc fake_fabric.cc net_random.cc LIBS coop_net)
endif()
