// SPDX-License-Identifier: MIT
// mover.cpp - see mover.hpp.
#include "mover.hpp"

namespace coop::net::fabric
{

int mover::expose(work &w, std::uint64_t access, control &c)
{
	spi::cursor at(w.memory, w.offset);
	c.count = 0;
	for (std::size_t left = w.length; left;) {
		const auto piece = at.next(left);
		if (piece.empty() || c.count == control::segments_most)
			return -EFBIG;
		handle<fid_mr> mr;
		if (int r = env_.memory.enter(piece.data(), piece.size(), access, mr)) {
			w.keys.clear();
			return r;
		}
		const auto at_address = reinterpret_cast<std::uintptr_t>(piece.data());
		c.regions[c.count++] = {env_.provider.virtual_addresses() ? at_address : 0,
					piece.size(), fi_mr_key(mr.get())};
		w.keys.push_back(std::move(mr));
		left -= piece.size();
	}
	return 0;
}

bool mover::take_regions(work &w, const control &c)
{
	std::size_t room = 0;
	for (std::size_t n = 0; n < c.count; n++)
		room += std::min<std::size_t>(c.regions[n].length, w.length);
	if (room < w.length)
		return false;
	w.regions.assign(c.regions.begin(),
			 c.regions.begin() + static_cast<std::ptrdiff_t>(c.count));
	return true;
}

int mover::move(work &w)
{
	spi::cursor at(w.memory, w.offset + w.moved);
	while (w.moved < w.length) {
		const region &far = w.regions[w.region_at];
		if (w.region_into == far.length) {
			w.region_at++;
			w.region_into = 0;
			continue;
		}
		spi::cursor ahead = at;
		piece_list some(
			ahead,
			std::min<std::size_t>({far.length - w.region_into, w.length - w.moved,
					       env_.provider.write_most()}),
			env_.pieces, w.local);
		if (!some.count)
			return -EIO;
		if (env_.provider.checks_keys() && !some.covered(w))
			return -EFAULT;
		if (int r = post(w, some, far, w.moved + some.bytes == w.length))
			return r == -FI_EAGAIN ? -EAGAIN : r;
		sends_.posted_on(*w.link, w);
		w.out++;
		w.moved += some.bytes;
		w.region_into += some.bytes;
		at = ahead;
	}
	return 0;
}

int mover::post(work &w, piece_list &some, const region &far, bool last)
{
	link &l = *w.link;
	const bool tells = w.writer && last && env_.ordered;
	const fi_rma_iov remote{far.address + w.region_into, some.bytes, far.key};
	const fi_msg_rma m{some.pieces,
			   some.descs,
			   some.count,
			   l.dest,
			   &remote,
			   1,
			   static_cast<posted *>(&w),
			   tells ? word::landed(l.base, w.peer_id) : 0};
	if (!w.writer)
		return static_cast<int>(fi_readmsg(l.ep, &m, FI_COMPLETION));
	return static_cast<int>(fi_writemsg(l.ep, &m,
					    FI_COMPLETION | env_.provider.write_flags() |
						    (tells ? FI_REMOTE_CQ_DATA : 0)));
}

} // namespace coop::net::fabric
