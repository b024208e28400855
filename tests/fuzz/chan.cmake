# SPDX-License-Identifier: MIT
# Fuzz program of rpc/chan: two engines, hosts, a network and a liar.
coop_fuzz(fuzz_chan SOURCES fuzz_chan.cpp check.hpp script.hpp LIBS coop_chan)
