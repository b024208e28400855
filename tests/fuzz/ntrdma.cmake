# SPDX-License-Identifier: MIT
coop_fuzz(fuzz_ntrdma SOURCES fuzz_ntrdma.cpp LIBS ntrdma_core)
coop_fuzz(fuzz_ntrdma_stream SOURCES fuzz_ntrdma_stream.cpp LIBS ntrdma_core)
coop_fuzz(fuzz_ntrdma_pipe SOURCES fuzz_ntrdma_pipe.cpp LIBS ntrdma_pipe)
