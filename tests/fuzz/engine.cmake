# SPDX-License-Identifier: MIT
# Fuzz programs of rpc/: control messages, the registration text, a pair of engines.
foreach(target fuzz_wire fuzz_addr fuzz_engine)
	coop_fuzz(${target} SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/${target}.cpp
		  ${CMAKE_CURRENT_SOURCE_DIR}/check.hpp ${CMAKE_CURRENT_SOURCE_DIR}/script.hpp LIBS coop_fetch)
endforeach()
