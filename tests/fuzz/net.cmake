# Bulk descriptors and addresses as they come out of somebody's message.
if(TARGET coop_net)
	coop_fuzz(fuzz_net_descriptor SOURCES fuzz_net_descriptor.cpp LIBS coop_net)
endif()
