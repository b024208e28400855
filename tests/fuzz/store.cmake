# SPDX-License-Identifier: MIT
# Fuzz program of the storage daemon: decoding of requests, and their operations.
if(TARGET coop_daemon)
	coop_fuzz(fuzz_store_request SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/fuzz_store_request.cpp
		  LIBS coop_daemon)
endif()
# Decoding of bundles, whose bytes come from other nodes.
coop_fuzz(fuzz_bundle SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/fuzz_bundle.cpp LIBS coop_storage)
