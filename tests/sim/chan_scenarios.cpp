// SPDX-License-Identifier: MIT
// chan_scenarios.cpp - the faults of fabric and hosts in each scenario of rpc/chan.
#include "tests/sim/chan_world.hpp"

namespace coop::sim
{
namespace
{

chan_scenario named(const char *name, const char *what)
{
	chan_scenario s;
	s.name = name;
	s.what = what;
	return s;
}

std::vector<chan_scenario> all()
{
	std::vector<chan_scenario> v;
	chan_scenario s = named("calm", "nothing goes wrong; nothing may be sent twice");
	s.settled_us = s.quiet_us;
	s.most_repeats_percent = 0;
	v.push_back(s);

	s = named("unknown", "nodes must learn the peers' data queue pairs");
	s.data_known = false;
	v.push_back(s);

	s = named("loss_1pct", "one datagram in a hundred is lost");
	s.most_repeats_percent = 5;
	s.loss_ppm = 10000;
	v.push_back(s);

	s = named("loss_10pct", "one in ten");
	s.loss_ppm = 100000;
	v.push_back(s);

	s = named("loss_30pct", "nearly one in three");
	s.loss_ppm = 300000;
	s.max_tries = 60;
	v.push_back(s);

	s = named("reorder_dup", "datagrams overtake each other and come twice");
	s.jitter_us = 400;
	s.late_ppm = 50000;
	s.late_us = 5000;
	s.duplicate_ppm = 100000;
	v.push_back(s);

	s = named("corrupt", "bits flip anywhere; payloads are sealed");
	s.corrupt_ppm = 50000;
	s.loss_ppm = 10000;
	s.sealed = true;
	v.push_back(s);

	s = named("seq_wrap", "sequence numbers wrap under loss and reordering");
	s.fixed_seq = true;
	s.first_seq = 0xffffff80u;
	s.loss_ppm = 30000;
	s.jitter_us = 200;
	v.push_back(s);

	s = named("restart", "nodes restart; old datagrams arrive afterwards");
	s.think_us = 5000;
	s.restart_us = 100000;
	s.late_ppm = 100000;
	s.late_us = 150000;
	s.duplicate_ppm = 100000;
	s.loss_ppm = 10000;
	s.messages = 20000;

	s.may_fail = true;
	v.push_back(s);

	s = named("narrow",
		  "nodes differ in their MTUs; datagrams are lost and overtake each other");
	s.narrow = true;
	s.loss_ppm = 20000;
	s.jitter_us = 200;
	s.duplicate_ppm = 50000;
	v.push_back(s);

	s = named("narrow_again", "they restart with other MTUs");
	s.narrow = true;
	s.think_us = 5000;
	s.restart_us = 100000;
	s.late_ppm = 50000;
	s.late_us = 150000;
	s.loss_ppm = 10000;
	s.messages = 10000;
	s.may_fail = true;
	v.push_back(s);

	s = named("incast_16", "sixteen senders, one receiver with a queue of 64 datagrams");
	s.nodes = 17;
	s.incast = true;
	s.queue = 64;
	s.messages = 1600;
	s.outstanding = 4;
	s.max_length = 60000;
	s.tiny_percent = 10;
	s.most_repeats_percent = 15;
	v.push_back(s);

	s = named("outage", "paths fail for seconds, often in one direction only");
	s.think_us = 20000;
	s.cut_us = 600000;
	s.cut_for_us = 5000000;
	s.messages = 20000;
	s.max_tries = 40;
	v.push_back(s);

	s = named("long_outage", "paths fail for longer than patience lasts");
	s.think_us = 50000;
	s.cut_us = 500000;
	s.cut_for_us = 60000000;
	s.messages = 5000;
	s.max_tries = 8;
	s.may_fail = true;
	v.push_back(s);

	s = named("no_buffers", "receivers have no buffer, now and then for a while");
	s.refuse_ppm = 200000;
	s.refuse_for_us = 50000;
	s.loss_ppm = 20000;
	s.rnr_tries = 100;
	v.push_back(s);

	s = named("never_ready", "receivers lack a buffer for longer than senders wait");
	s.think_us = 5000;
	s.refuse_for_us = 400000;
	s.rnr_tries = 6;
	s.may_fail = true;
	v.push_back(s);

	s = named("cancel_close", "hosts cancel messages and close peers in mid-transfer");
	s.cancel_ppm = 100000;
	s.close_ppm = 20000;
	s.loss_ppm = 20000;
	s.late_ppm = 50000;
	s.late_us = 20000;
	s.may_fail = true;
	v.push_back(s);

	s = named("starved", "pools are far too small for the traffic");
	s.nodes = 8;
	s.max_segments = 256;
	s.max_active = 2;
	s.max_reorder = 1;
	s.max_receives = 4;
	s.loss_ppm = 20000;
	s.rnr_tries = 250;
	v.push_back(s);

	s = named("everything", "all faults at once");
	s.nodes = 8;
	s.loss_ppm = 30000;
	s.duplicate_ppm = 50000;
	s.corrupt_ppm = 20000;
	s.sealed = true;
	s.jitter_us = 200;
	s.late_ppm = 20000;
	s.late_us = 100000;
	s.fixed_seq = true;
	s.first_seq = 0xfffffff0u;
	s.refuse_ppm = 50000;
	s.refuse_for_us = 20000;
	s.restart_us = 50000;
	s.cut_us = 100000;
	s.cut_for_us = 3000000;
	s.cancel_ppm = 10000;
	s.close_ppm = 2000;
	s.queue = 128;
	s.data_known = false;
	s.messages = 6000;
	s.may_fail = true;
	v.push_back(s);
	return v;
}

} // namespace

const std::vector<chan_scenario> &chan_scenarios()
{
	static const std::vector<chan_scenario> scenarios = all();
	return scenarios;
}

} // namespace coop::sim
