# SPDX-License-Identifier: MIT
# The engine, piece by piece and as pairs of engines over a hand-held network.
coop_test(rpc_parts SOURCES rpc_addr.cc rpc_assert.cc rpc_idtab.cc rpc_mac.cc rpc_peer.cc
	rpc_place.cc rpc_posting.cc rpc_tag.cc rpc_timer.cc rpc_turns.cc LIBS coop_engine)
coop_test(rpc_wire SOURCES rpc_assert.cc rpc_wire.cc LIBS coop_engine)
coop_test(rpc_plan SOURCES rpc_assert.cc rpc_plan.cc LIBS coop_engine)
coop_test(rpc_fetch SOURCES rpc_assert.cc rpc_fetch.cc rpc_fetch_one.cc rpc_fetch_tags.cc
	rpc_hostile.cc rpc_lab.cc rpc_serve.cc
	LIBS coop_engine)
