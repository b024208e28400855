# SPDX-License-Identifier: MIT
# Runs in the emulated machines of tests/vm.
find_package(Threads REQUIRED)
add_executable(coop-pattern ../vm/pattern.c)
set_target_properties(coop-pattern PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)

add_executable(coop-posix ../vm/posix/main.c ../vm/posix/crash.c ../vm/posix/names.c ../vm/posix/lists.c
	../vm/posix/attributes.c ../vm/posix/bytes.c ../vm/posix/mapped.c ../vm/posix/nodes.c
	../vm/posix/flight.c ../vm/posix/types.c ../vm/posix/ranges.c ../vm/posix/locks.c
	../vm/posix/extended.c ../vm/posix/handles.c ../vm/posix/idmapped.c ../vm/posix/late.c)
target_link_libraries(coop-posix PRIVATE Threads::Threads)
set_target_properties(coop-posix PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)

add_executable(coop-fsx ../vm/fsx.c)
set_target_properties(coop-fsx PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)

add_executable(coop-coherence ../vm/coherence.c)
target_link_libraries(coop-coherence PRIVATE Threads::Threads)
set_target_properties(coop-coherence PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)

add_executable(coop-pin ../vm/pin.c)
set_target_properties(coop-pin PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)

add_executable(coop-between ../vm/between.c)
target_link_libraries(coop-between PRIVATE coop_engine Threads::Threads)
set_target_properties(coop-between PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
