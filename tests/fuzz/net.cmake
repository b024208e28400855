# SPDX-License-Identifier: MIT
# Bulk descriptors and addresses from a peer's message.
if(TARGET coop_net)
	coop_fuzz(fuzz_net_descriptor SOURCES fuzz_net_descriptor.cpp LIBS coop_net)
endif()
# The core without its threads: the play sets the processor's counter that it reads.
if(TARGET coop_net)
	set(core delivery domain machine operations peers progress receive_queue sleeper
	    transfer_machine)
	list(TRANSFORM core REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/userland/net/\\1.cpp")
	add_library(coop_net_alone OBJECT EXCLUDE_FROM_ALL ${core} net_alone.cpp net_random.cpp)
	target_compile_options(coop_net_alone PRIVATE
			       -include ${CMAKE_CURRENT_SOURCE_DIR}/scripted_ticks.hpp)
	target_link_libraries(coop_net_alone PRIVATE coop_net)
endif()
# coopnet's server and client, with a station without threads.
if(TARGET coopnet)
	set(tools advice client outbox server tasks)
	list(TRANSFORM tools REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/userland/net-tools/\\1.cpp")
	coop_fuzz(fuzz_coopnet SOURCES fuzz_coopnet.cpp coopnet_station.cpp ${tools}
		  $<TARGET_OBJECTS:coop_net_alone> LIBS coop_net)
endif()
# Calls among strangers, with a messenger without threads.
if(TARGET coop_net)
	set(calls incoming outgoing rpc)
	list(TRANSFORM calls REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/userland/net/calls/\\1.cpp")
	coop_fuzz(fuzz_net_calls SOURCES fuzz_net_calls.cpp calls_messenger.cpp ${calls}
		  $<TARGET_OBJECTS:coop_net_alone> LIBS coop_net)
endif()
# Whole machines of a transport, with an enemy on their fabric; over a naive core, and over the
# library's own.
function(coop_fuzz_plays name)
	coop_fuzz(${name} LONG SOURCES ${name}.cpp ${ARGN} net_random.cpp LIBS coop_net)
	coop_fuzz(${name}_core SOURCES ${name}.cpp ${ARGN} $<TARGET_OBJECTS:coop_net_alone>
		  LIBS coop_net)
	target_compile_definitions(${name}_core PRIVATE FUZZ_REAL_CORE)
endfunction()
if("ud" IN_LIST COOP_NET_TRANSPORTS)
	coop_fuzz_plays(fuzz_net_ud)
endif()
# The fake libfabric is that of a test.
if("fabric" IN_LIST COOP_NET_TRANSPORTS AND GTest_FOUND)
	coop_fuzz_plays(fuzz_net_fabric $<TARGET_OBJECTS:coop_fake_fabric>)
endif()
