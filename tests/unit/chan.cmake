# SPDX-License-Identifier: MIT
# Messages over datagrams (rpc/chan): its parts, its acts, its sessions; whole nodes in the simulator.
coop_test(rpc_chan SOURCES rpc_assert.cc chan_parts.cc chan_acts.cc chan_messages.cc
	chan_sessions.cc LIBS coop_engine)
coop_test(rpc_chan_sim SOURCES rpc_assert.cc chan_sim.cc ../sim/chan_scenarios.cpp
	../sim/chan_world.cpp LIBS coop_engine)
