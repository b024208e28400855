// SPDX-License-Identifier: MIT
// queue_pair.cpp - arrival, error, flush, reset.
#include "tests/sim/queue_pair.hpp"

#include <algorithm>
#include <cstring>

namespace coop::sim
{

namespace
{

constexpr u64 pipeline_us = 3; // life of a packet in the adapter when the state changes
constexpr u64 ghost_us = 400;  // longest observed write after a bad RESET

} // namespace

bool queue_pair::scatter(const work_request &wr, const packet &p, u64 &trespass)
{
	u32 room = 0;
	for (u32 i = 0; i < wr.n_sge; ++i)
		room += wr.list[i].len;
	if (COOP_GRH + p.len > room)
		return false;
	u8 grh[COOP_GRH] = {0x60};
	u32 done = 0;
	const u32 total = COOP_GRH + p.len;
	for (u32 i = 0; i < wr.n_sge && done < total; ++i) {
		const sge &g = wr.list[i];
		u32 n = std::min(g.len, total - done), at = 0;
		if (n && g.owner && *g.owner != g.token)
			++trespass;
		for (; n && done < COOP_GRH; --n)
			g.addr[at++] = grh[done++];
		std::memcpy(g.addr + at, p.bytes + (done - COOP_GRH), n);
		done += n;
	}
	return true;
}

void queue_pair::post(const work_request &wr)
{
	if (!posted())
		used_ = 0, wrs_.clear();
	wrs_.push_back(wr);
}

queue_pair::outcome queue_pair::arrive(const packet &p, u64 now, completion &out, u64 &trespass)
{
	if (p.qkey != qkey_)
		return outcome::dropped;
	if (!ghosts_.empty()) {
		if (now > ghosts_until_) {
			ghosts_.clear();
		} else {
			scatter(ghosts_.front(), p, trespass);
			ghosts_.pop_front();
			return outcome::dropped;
		}
	}
	if (!posted() || (state_ == state::error && now > stopped_at_ + pipeline_us))
		return outcome::dropped;
	const work_request &wr = wrs_[used_];
	if (!scatter(wr, p, trespass)) {
		stop(now);
		return outcome::died;
	}
	++used_;
	out = {0, wr.number, p.imm, COOP_GRH + p.len, p.src_qpn, p.src, p.has_imm, false};
	return outcome::written;
}

void queue_pair::stop(u64 now)
{
	if (state_ == state::error)
		return;
	state_ = state::error;
	stopped_at_ = now;
}

u32 queue_pair::flush()
{
	const u32 n = static_cast<u32>(posted());
	wrs_.clear();
	used_ = 0;
	return n;
}

u32 queue_pair::reset(u64 now)
{
	ghosts_.insert(ghosts_.end(), wrs_.begin() + static_cast<std::ptrdiff_t>(used_),
		       wrs_.end());
	ghosts_until_ = now + ghost_us;
	state_ = state::ready;
	return flush();
}

} // namespace coop::sim
