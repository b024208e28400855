// SPDX-License-Identifier: MIT
// mover.cpp - see mover.hpp.
#include "mover.hpp"

#include <atomic>

namespace coop::net::fabric
{

int mover::expose(work &w, control &c)
{
	spi::cursor at(w.memory, w.offset);
	c.count = 0;
	for (std::size_t left = w.length; left;) {
		const auto piece = at.next(left);
		if (piece.empty() || c.count == control::segments_most)
			return -EFBIG;
		const std::uint64_t key = env_.memory.fresh();
		handle<fid_mr> mr;
		if (int r = env_.memory.enter(piece.data(), piece.size(), FI_REMOTE_WRITE, key,
					      mr)) {
			w.keys.clear();
			return r;
		}
		const auto at_address = reinterpret_cast<std::uintptr_t>(piece.data());
		c.regions[c.count++] = {env_.provider.virtual_addresses() ? at_address : 0,
					piece.size(),
					env_.provider.own_keys() ? fi_mr_key(mr.get()) : key};
		w.keys.push_back(std::move(mr));
		left -= piece.size();
	}
	return 0;
}

bool mover::take_regions(work &w, const control &c, std::size_t first)
{
	std::size_t room = 0;
	for (std::size_t n = first; n < c.count; n++)
		room += std::min<std::size_t>(c.regions[n].length, w.length);
	if (room < w.length)
		return false;
	w.regions.assign(c.regions.begin(),
			 c.regions.begin() + static_cast<std::ptrdiff_t>(c.count));
	return true;
}

// Each write goes to one region of the peer, from as many local pieces as fit.
int mover::write(work &w)
{
	link &l = *w.link;
	spi::cursor from(w.memory, w.offset + w.written);
	while (w.written < w.length) {
		const region &to = w.regions[w.region_at];
		if (w.region_into == to.length) {
			w.region_at++;
			w.region_into = 0;
			continue;
		}
		spi::cursor ahead = from;
		piece_list some(
			ahead,
			std::min<std::size_t>({to.length - w.region_into, w.length - w.written,
					       env_.provider.write_most()}),
			env_.pieces, w.local);
		if (!some.count)
			return -EIO;
		if (env_.provider.checks_keys() && !some.covered(w))
			return -EFAULT;
		const std::uint64_t address = to.address + w.region_into;
		int r = env_.port.write(l, some.span(), address);
		if (r == -EOPNOTSUPP) {
			const bool last = env_.ordered && w.written + some.bytes == w.length;
			const fi_rma_iov remote{address, some.bytes, to.key};
			const fi_msg_rma m{some.pieces,
					   some.descs,
					   some.count,
					   l.dest,
					   &remote,
					   1,
					   static_cast<posted *>(&w),
					   last ? word::landed(l.base, w.peer_id) : 0};
			r = static_cast<int>(fi_writemsg(
				l.ep, &m, FI_COMPLETION | (last ? FI_REMOTE_CQ_DATA : 0)));
			if (r == 0)
				sends_.wrote_on(l, w);
		}
		if (r)
			return r == -FI_EAGAIN ? -EAGAIN : r;
		w.written += some.bytes;
		w.region_into += some.bytes;
		from = ahead;
	}
	if (w.out)
		env_.port.sent(l);
	return 0;
}

void mover::lend(work &w, control &c)
{
	if (!lends())
		return;
	w.pledge = env_.memory.fresh() | 1;
	c.regions[0] = {reinterpret_cast<std::uintptr_t>(&w.pledge), sizeof(w.pledge), w.pledge};
	c.count = 1;
	spi::cursor at(w.memory, w.offset);
	for (std::size_t left = w.length; left;) {
		const auto piece = at.next(left);
		if (piece.empty() || c.count == control::regions_most) {
			c.count = 0;
			return;
		}
		c.regions[c.count++] = {reinterpret_cast<std::uintptr_t>(piece.data()),
					piece.size(), 0};
		left -= piece.size();
	}
}

bool mover::borrow(work &w, const control &c)
{
	if (c.count < 2 || !reads(*w.link) || !c.regions[0].key ||
	    c.regions[0].length != sizeof(w.pledge))
		return false;
	return take_regions(w, c, 1); // after the pledge
}

int mover::copy(work &w)
{
	spi::cursor to(w.memory, w.offset);
	std::size_t left = w.length;
	int r = 0;
	for (std::size_t n = 1; left && !r; n++) {
		const std::size_t here = std::min<std::size_t>(w.regions[n].length, left);
		r = copy_region(w, to, w.regions[n].address, here);
		left -= here;
	}
	// That memory is unmapped: then the pledge should be gone too.
	const bool torn = r == -EFAULT;
	if (r && !torn)
		return r;
	std::atomic_thread_fence(std::memory_order_seq_cst);
	std::uint64_t pledge = 0;
	iovec piece{&pledge, sizeof(pledge)};
	if (int s = env_.port.read(*w.link, {&piece, 1}, w.regions[0].address))
		return s == -EFAULT ? -ECONNRESET : s;
	if (pledge != w.regions[0].key)
		return -ENOENT;
	return torn ? -ECONNRESET : 0;
}

int mover::copy_region(work &w, spi::cursor &to, std::uint64_t from, std::size_t length)
{
	while (length) {
		piece_list some(to, length, piece_list::most);
		if (!some.count)
			return -EIO;
		if (int r = env_.port.read(*w.link, some.span(), from))
			return r;
		from += some.bytes;
		length -= some.bytes;
	}
	return 0;
}

} // namespace coop::net::fabric
