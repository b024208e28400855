# SPDX-License-Identifier: MIT
coop_fuzz(fuzz_soft_roce SOURCES fuzz_soft_roce.cpp LIBS coop_ud)
