# SPDX-License-Identifier: MIT
coop_fuzz(fuzz_ntrdma SOURCES fuzz_ntrdma.cpp LIBS ntrdma_core)
