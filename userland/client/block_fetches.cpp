// SPDX-License-Identifier: MIT
// block_fetches.cpp - see block_fetches.hpp.
#include "userland/client/block_fetches.hpp"

#include <bit>
#include <cerrno>

namespace coop::client
{

block_fetches::block_fetches(unsigned page_shift, std::uint32_t most) :
	page_shift_(page_shift),
	records_(most)
{
	for (std::uint32_t i = most; i-- > 0;)
		free_.push_back(i);
}

void block_fetches::start(coop_engine *engine, std::uint32_t max_pages)
{
	engine_ = engine;
	max_pages_ = max_pages;
}

int block_fetches::submit(const content_key &key, std::uint64_t file_size, block_ref &&pin,
			  std::uint64_t pages, coop_fetch_req &req, fetch_done &&done,
			  std::uint64_t now)
{
	if (free_.empty())
		return -EAGAIN;
	const std::uint32_t index = free_.back();
	record &r = records_[index];
	req.cookie = index;
	req.fid = key.fid;
	req.version = key.version;
	req.size = file_size;
	r.pages.size = 0;
	// Pages that do not fit one request are reported missing.
	for (std::uint64_t left = pages; left != 0; left &= left - 1)
		if (r.pages.add(req, pin->index() * 64 + std::countr_zero(left), 1, max_pages_) ==
		    0)
			break;
	const int err = coop_engine_submit(engine_, &req, now, &r.id);
	if (err != 0)
		return err;
	free_.pop_back();
	r.used = true;
	r.file_size = file_size;
	r.pin = std::move(pin);
	r.done = std::move(done);
	in_flight_++;
	pages_in_flight_ += r.pages.size;
	return 0;
}

std::uint32_t block_fetches::pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
				    std::uint32_t length, std::span<ud::sge> out)
{
	const record &r = records_[cookie];
	out[0] = {r.pin->data(in_block(r, page)) + offset, length};
	return 1;
}

void block_fetches::finished(const coop_ev &ev, std::uint64_t now)
{
	const auto index = static_cast<std::uint32_t>(ev.cookie);
	const record &r = records_[index];
	std::uint64_t good = 0;
	for (std::uint32_t i = 0; i < r.pages.size; i++)
		good |= (ev.pages >> i & 1) << in_block(r, i);
	if (good != 0) {
		// Peers send whole pages; what lies past the end of the file is ours to clear.
		zero_tail(*r.pin, good, r.file_size, page_shift_);
		if (ev.peer != COOP_NONE)
			r.pin->held_by(ev.peer, good);
		r.pin->publish(good, origin::peer);
	}
	release(index, {good, ev.peer, ev.err});
	coop_engine_fetch_release(engine_, ev.id, now);
}

void block_fetches::release(std::uint32_t index, const fetch_outcome &outcome)
{
	record &r = records_[index];
	ended_.push_back({std::move(r.done), outcome, std::move(r.pin)});
	r.done = nullptr;
	r.used = false;
	in_flight_--;
	pages_in_flight_ -= r.pages.size;
	free_.push_back(index);
}

void block_fetches::cancel_all(std::uint64_t now)
{
	for (const record &r : records_)
		if (r.used)
			(void)coop_engine_cancel(engine_, r.id, now);
}

void block_fetches::abandon_all()
{
	for (std::uint32_t i = 0; i < records_.size(); i++)
		if (records_[i].used)
			release(i, {0, COOP_NONE, -ECANCELED});
}

std::vector<block_fetches::ended> block_fetches::take_ended()
{
	std::vector<ended> out;
	out.swap(ended_);
	return out;
}

} // namespace coop::client
