// SPDX-License-Identifier: MIT
// chan_engine.cpp - see chan_engine.hpp.
#include "chan_engine.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "operations.hpp"
#include "userland/net/random.hpp"

namespace coop::net::ud
{

namespace
{

constexpr std::uint32_t most_refusals = 8; // for want of a buffer: about 0.2 s

} // namespace

void chan_engine::make(const options &o, const channels &lines, std::uint32_t sends,
		       std::uint64_t now)
{
	const coop_chan_peer_addr self = lines.self();
	coop_chan_cfg c{};
	c.seed = random_number();
	std::copy(o.key.begin(), o.key.end(), c.key);
	c.self = self.command;
	c.data_qpn = self.data_qpn;
	c.data_qkey = self.data_qkey;
	for (std::uint32_t i = 0; i < COOP_CHAN_CHANNELS; i++) {
		c.mtu[i] = lines.mtu(i);
		c.credits[i] = channels::credits;
	}
	c.max_peers = o.peers;
	c.max_active = std::min<std::uint32_t>(o.peers, 1024);
	c.max_reorder = std::min<std::uint32_t>(o.peers, 256);
	c.max_sends = sends;
	c.max_receives = receives;
	c.max_segments = 4 * COOP_CHAN_WINDOW;
	c.window = o.window;
	c.max_length = max_length_ =
		static_cast<std::uint32_t>(o.longest_message(lines.mtu(COOP_CHAN_DATA)));
	c.max_tries = o.tries;
	c.rnr_tries = most_refusals;
	if (o.seal)
		c.flags |= COOP_CHAN_F_SEAL;
	if (o.fixed_seq)
		c.flags |= COOP_CHAN_F_FIRST_SEQ;
	c.first_seq = o.first_seq;
	if (const std::size_t size = coop_chan_size(&c)) {
		// Much of it is never used; the kernel supplies only the pages that are touched.
		memory_.reset(std::calloc((size + 7) / 8, 8));
		if (!memory_)
			throw std::system_error(ENOMEM, std::generic_category(),
						"ud: memory of rpc/chan");
		engine_ = coop_chan_create(memory_.get(), size, &c, now);
	}
	if (!engine_)
		throw std::system_error(EINVAL, std::generic_category(),
					"ud: a parameter is out of the range of the protocol");
}

void chan_engine::reserve(fetch_host::slab &s, std::uint32_t texts)
{
	slab_ = &s;
	text_at_ = s.reserve(bulk_message::bytes * std::size_t{texts});
}

std::byte *chan_engine::text(std::uint32_t index)
{
	return slab_->at(text_at_ + index * bulk_message::bytes);
}

std::int64_t chan_engine::open(const coop_chan_peer_addr &where, spi::peer_number n, identity,
			       std::uint64_t now)
{
	return coop_chan_open(engine_, &where, n + 1, now);
}

void chan_engine::admit(std::uint32_t session, spi::peer_number n, identity)
{
	(void)coop_chan_set_cookie(engine_, session, n == spi::no_peer ? 0 : n + 1);
}

void chan_engine::close(std::uint32_t session, std::uint64_t now)
{
	if (engine_)
		(void)coop_chan_close(engine_, session, now);
}

bool chan_engine::info(std::uint32_t session, coop_chan_peer_info &out) const
{
	return coop_chan_peer_get(engine_, session, &out) == 0;
}

std::uint32_t chan_engine::sessions() const
{
	struct ::coop_chan_stats s;
	coop_chan_stats(engine_, &s);
	return s.peers;
}

int chan_engine::deliver_here(std::uint32_t, op &o)
{
	spi::landing l;
	const int err = sink_.place(o.length, l);
	if (!err) {
		spi::copy(l.memory, l.offset, o.memory, 0, o.length);
		sink_.received(l, o.peer);
	}
	return err;
}

} // namespace coop::net::ud
