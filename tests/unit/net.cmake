# SPDX-License-Identifier: MIT
# The messaging core over a transport that does what the test says, and its values.
if(TARGET coop_net)
	coop_test(net_core SOURCES net_core.cc net_mem.cc net_pools.cc net_processors.cc net_slots.cc LIBS coop_net)
	coop_test(net_values SOURCES net_values.cc LIBS coop_net)
	coop_test(net_parameters SOURCES net_parameters.cc LIBS coop_net)
endif()
