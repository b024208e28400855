// SPDX-License-Identifier: MIT
// puts.cpp - a PUT ends on both sides although a message about it is lost, or its peer was given up
// meanwhile: the writer sends it again, and the reader ignores it or tells its end again.
#include <array>
#include <cerrno>
#include <gtest/gtest.h>
#include <optional>
#include <vector>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"
#include "tests/unit/net/kernel/core.hpp"
#include "userland/net/ud/bulk.hpp"

using namespace coop::net;
using namespace coop::net::ud;

namespace
{

constexpr std::uint64_t second = 1000000;

/// Keeps the bulk messages that are sent; the test says what becomes of them.
class wire final : public message_engine
{
public:
	struct sent {
		u32 index, id;
		bulk_message text;
	};
	std::vector<sent> all;

	std::int64_t open(const coop_chan_peer_addr &, spi::peer_number, identity,
			  std::uint64_t) override
	{
		return ++sessions_;
	}
	void admit(std::uint32_t, spi::peer_number, identity) override {}
	void close(std::uint32_t, std::uint64_t) override {}
	bool info(std::uint32_t, coop_chan_peer_info &out) const override
	{
		out = {};
		return true;
	}
	std::uint32_t sessions() const override { return sessions_; }
	int send(const coop_chan_msg &m, std::uint64_t, std::uint32_t &id) override
	{
		if (m.flags & COOP_CHAN_PROBE)
			return 0;
		const auto index = static_cast<u32>(m.cookie);
		id = ++ids_;
		all.push_back({index, id, bulk_message::read(bytes(index))});
		return 0;
	}
	void cancel(std::uint32_t, std::uint64_t) override {}
	std::uint32_t unit() const override { return 1024; }
	std::byte *text(std::uint32_t index) override
	{
		return reinterpret_cast<std::byte *>(bytes(index));
	}
	int deliver_here(std::uint32_t, op &) override { return -ENOSYS; }

private:
	std::uint8_t *bytes(u32 index)
	{
		texts_.resize(std::max<std::size_t>(texts_.size(), index + 1));
		return texts_[index].data();
	}

	std::vector<std::array<std::uint8_t, bulk_message::bytes>> texts_;
	u32 sessions_ = 0, ids_ = 0;
};

/// Keeps the requests; the test ends them.
class pages final : public fetch_engine
{
public:
	std::vector<std::uint32_t> asked;

	std::uint32_t max_pages() const override { return 64; }
	std::uint32_t run() const override { return 0; }
	std::uint32_t peer(spi::peer_number, bool, std::uint64_t) override { return 1; }
	int submit(const reading &, const coop_fetch_req &q, const coop::fetch_host::page_list &,
		   std::uint64_t) override
	{
		asked.push_back(static_cast<std::uint32_t>(q.cookie));
		return 0;
	}
	void cancel_fetch(std::uint32_t, std::uint64_t) override {}
};

class no_keys final : public memory_lender
{
	void lend(op &) override {}
};

/// Knows the operations of the test, and gives a peer that has lost its number the next one.
class numbered final : public kernel_test::core
{
public:
	std::map<spi::token, spi::transfer> known;
	spi::token next_use = 0;

	const spi::transfer *find(spi::token t) override
	{
		const auto at = known.find(t);
		return at == known.end() ? nullptr : &at->second;
	}
	spi::token use(spi::token t, std::size_t, std::size_t length, spi::peer_number by) override
	{
		spi::transfer x = known[t];
		x.reusable = false;
		x.key = 0;
		x.length = length;
		x.peer = by;
		known[++next_use] = x;
		return next_use;
	}
};

class bulk_put : public testing::Test
{
protected:
	static constexpr spi::peer_number n = 0, next_number = 9; // of kernel_test::core
	static constexpr spi::token ours = 7, theirs = 8;
	static constexpr std::uint64_t our_key = 70, their_key = 80;

	explicit bulk_put(bool verbs = false)
	{
		options_.verbs = verbs;
		EXPECT_EQ(parse(own_ip(64) + "@tcp:12345:31:1", own_), 0);
		EXPECT_EQ(parse(own_ip(64) + "@tcp:12345:31:2", other_), 0);
		resolver_.emplace(options_.key, identity::of(own_));
		operations_.emplace(options_, keys_, core_);
		peers_.emplace(options_, identity::of(own_), own_, wire_, *resolver_, core_);
		outbox_.emplace(*operations_, *peers_, wire_);
		reader_.emplace(options_, pages_, *peers_);
		bulk_.emplace(options_, *operations_, *peers_, *outbox_, *reader_, wire_, nullptr,
			      nullptr, core_);
		EXPECT_EQ(peers_->open(n, other_), 0);
		resolve(n, 0);
	}
	void resolve(spi::peer_number number, std::uint64_t now)
	{
		resolver::result r{number, 0, {}, 1};
		std::copy(other_.ip.begin(), other_.ip.end(), r.where.command.gid);
		r.where.command.qpn = 5;
		r.where.data_qpn = 6;
		EXPECT_EQ(peers_->resolved(r, now).status, 0);
		outbox_->wake(number, 0, now);
		run(now);
	}
	void run(std::uint64_t now)
	{
		for (outbox::report r; outbox_->next(r);)
			bulk_->reported(r, now);
		reader_->advance(now);
		while (reading *r = reader_->next_over())
			bulk_->read_over(*r, now);
		for (outbox::report r; outbox_->next(r);)
			bulk_->reported(r, now);
	}
	void submit(queue_type q, bool reusable, std::uint64_t now)
	{
		spi::transfer x{};
		x.queue = q;
		x.length = 4096;
		x.key = our_key;
		x.reusable = reusable;
		x.peer = q == queue_type::active_bulk_send ? n : spi::no_peer;
		x.remote = theirs;
		x.remote_key = their_key;
		core_.known[ours] = x;
		bulk_->submit(operations_->add(ours, x), now);
		run(now);
	}
	// The last message has arrived, or could not.
	void arrived(int err, std::uint64_t now)
	{
		coop_chan_ev ev{};
		ev.cookie = wire_.all.back().index;
		ev.id = wire_.all.back().id;
		ev.err = err;
		outbox_->sent(ev, now);
		run(now);
	}
	void hear(bulk_kind kind, outcome result, std::uint64_t now, spi::peer_number from = n)
	{
		bulk_->heard({kind, result, ours, our_key, theirs, their_key, 4096}, from, now);
		run(now);
	}
	void read(std::uint64_t good, int err, std::uint64_t now)
	{
		ASSERT_FALSE(pages_.asked.empty());
		reader_->finished(pages_.asked.back(), good, err, true, now);
		pages_.asked.pop_back();
		run(now);
	}
	// The peer asks for what is put, from this port.
	std::uint32_t open(std::uint8_t last_byte, bool &later)
	{
		coop_addr from{};
		std::copy(other_.ip.begin(), other_.ip.end(), from.gid);
		from.gid[15] = last_byte;
		from.qpn = 5;
		return bulk_->open(ours, our_key, {identity::of(other_)}, from, 0, later);
	}
	unsigned told(bulk_kind kind) const
	{
		unsigned times = 0;
		for (const wire::sent &s : wire_.all)
			times += s.text.kind == kind;
		return times;
	}

	options options_;
	address own_, other_;
	numbered core_;
	wire wire_;
	pages pages_;
	no_keys keys_;
	std::optional<resolver> resolver_;
	std::optional<operations> operations_;
	std::optional<peers> peers_;
	std::optional<outbox> outbox_;
	std::optional<reader> reader_;
	std::optional<bulk> bulk_;
};

TEST_F(bulk_put, is_sent_again_until_its_end_is_told)
{
	submit(queue_type::active_bulk_send, false, 1);
	ASSERT_EQ(told(bulk_kind::put), 1u);
	bulk_->watch(4 * second);
	EXPECT_EQ(told(bulk_kind::put), 1u) << "the first is still on its way";
	arrived(0, 4 * second);
	bulk_->watch(8 * second);
	EXPECT_EQ(told(bulk_kind::put), 1u);
	bulk_->watch(10 * second);
	EXPECT_EQ(told(bulk_kind::put), 2u);
	arrived(-ENOBUFS, 10 * second); // it has no room now
	bulk_->watch(11 * second);
	EXPECT_EQ(told(bulk_kind::put), 2u);
	bulk_->watch(16 * second);
	EXPECT_EQ(told(bulk_kind::put), 3u);
	arrived(0, 16 * second);
	EXPECT_FALSE(core_.ended.contains(ours));
	hear(bulk_kind::done, outcome::good, 17 * second);
	ASSERT_TRUE(core_.ended.contains(ours));
	EXPECT_EQ(core_.ended[ours], 0);
}

TEST_F(bulk_put, of_which_the_peer_had_no_room_to_hear_fails)
{
	submit(queue_type::active_bulk_send, false, 1);
	arrived(-ENOBUFS, 2);
	ASSERT_TRUE(core_.ended.contains(ours));
	EXPECT_EQ(core_.ended[ours], -ENOBUFS);
}

TEST_F(bulk_put, that_comes_again_is_read_once_and_told_its_end)
{
	submit(queue_type::passive_bulk_recv, false, 1);
	hear(bulk_kind::put, outcome::good, 2);
	ASSERT_EQ(pages_.asked.size(), 1u);
	hear(bulk_kind::put, outcome::good, 3);
	EXPECT_EQ(told(bulk_kind::done), 0u);
	EXPECT_EQ(pages_.asked.size(), 1u);
	read(1, 0, 4);
	EXPECT_EQ(core_.ended[ours], 0);
	EXPECT_EQ(told(bulk_kind::done), 1u);
	hear(bulk_kind::put, outcome::good, 5);
	EXPECT_EQ(told(bulk_kind::done), 1u)
		<< "its end is on the way, which another would overtake";
	arrived(-EHOSTDOWN, 6); // it is lost
	hear(bulk_kind::put, outcome::good, 7);
	ASSERT_EQ(told(bulk_kind::done), 2u);
	EXPECT_EQ(wire_.all.back().text.result, outcome::good);
	EXPECT_EQ(wire_.all.back().text.length, 4096u);
}

// The buffer still stands for others, so a PUT that has ended must not begin again.
TEST_F(bulk_put, into_a_reusable_buffer_that_comes_again_is_read_once)
{
	core_.next_use = 100;
	submit(queue_type::passive_bulk_recv, true, 1);
	hear(bulk_kind::put_at, outcome::good, 2);
	hear(bulk_kind::put_at, outcome::good, 3);
	ASSERT_EQ(pages_.asked.size(), 1u);
	read(1, 0, 4);
	arrived(0, 5);
	hear(bulk_kind::put_at, outcome::good, 6); // it was sent before the end had arrived
	EXPECT_EQ(core_.next_use, 101u);
	EXPECT_TRUE(pages_.asked.empty());
	EXPECT_EQ(wire_.all.back().text.result, outcome::good);
}

// An end that is lost stays known however many others were told meanwhile.
TEST_F(bulk_put, whose_end_is_lost_is_remembered_beside_many_others)
{
	core_.next_use = 100;
	submit(queue_type::passive_bulk_recv, true, 1);
	for (std::uint64_t use = 0; use < 1500; use++) {
		bulk_->heard({bulk_kind::put_at, outcome::good, ours, our_key, theirs,
			      their_key + use, 4096},
			     n, 2);
		run(2);
		read(1, 0, 2);
		arrived(use ? 0 : -EHOSTDOWN, 2);
	}
	hear(bulk_kind::put_at, outcome::good, 3); // the first one again
	EXPECT_EQ(core_.next_use, 1600u);
	EXPECT_EQ(wire_.all.back().text.kind, bulk_kind::done);
	EXPECT_EQ(wire_.all.back().text.sender_key, 0u);
	EXPECT_EQ(wire_.all.back().text.key, their_key);
	EXPECT_EQ(wire_.all.back().text.result, outcome::good);
}

// A read that was given up ends later than its peer's number.
TEST_F(bulk_put, of_a_peer_that_was_given_up_fails_there_too)
{
	submit(queue_type::passive_bulk_recv, false, 1);
	hear(bulk_kind::put, outcome::good, 2);
	ASSERT_EQ(pages_.asked.size(), 1u);
	coop_chan_ev dead{};
	dead.why = COOP_CHAN_WHY_SILENT;
	bulk_->lost(n, peers_->died(n, dead), 3);
	bulk_->forget(n);
	outbox_->forget(n);
	peers_->close(n, 3);
	read(0, -ECANCELED, 4);
	EXPECT_EQ(core_.ended[ours], -EHOSTDOWN);
	EXPECT_EQ(told(bulk_kind::done), 0u) << "it is asked where it is";
	resolve(next_number, 5);
	ASSERT_EQ(told(bulk_kind::done), 1u);
	EXPECT_EQ(wire_.all.back().text.result, outcome::failed);
	EXPECT_EQ(wire_.all.back().text.token, theirs);
}

// A device's address need not be the machine's. If it changes, the reader may ask from there before
// this machine has found it there.
class bulk_put_by_device : public bulk_put
{
protected:
	bulk_put_by_device() : bulk_put(true) {}
};

TEST_F(bulk_put_by_device, asks_a_reader_that_has_moved_to_come_again)
{
	bool later = true;
	submit(queue_type::active_bulk_send, false, 1);
	arrived(0, 2);
	const std::uint32_t index = open(other_.ip[15], later);
	ASSERT_NE(index, operations::none);
	EXPECT_FALSE(later);
	bulk_->close(index);
	const auto new_byte = static_cast<std::uint8_t>(other_.ip[15] + 1);
	EXPECT_EQ(open(new_byte, later), operations::none);
	EXPECT_TRUE(later);
	other_.ip[15] = new_byte; // where the resolver finds it
	resolve(n, 3);
	other_.ip[15]--;
	EXPECT_NE(open(new_byte, later), operations::none);
	EXPECT_FALSE(later);
}

// In soft RoCE it is.
TEST_F(bulk_put, gives_nothing_to_who_asks_from_elsewhere)
{
	bool later = true;
	submit(queue_type::active_bulk_send, false, 1);
	arrived(0, 2);
	EXPECT_EQ(open(static_cast<std::uint8_t>(other_.ip[15] + 1), later), operations::none);
	EXPECT_FALSE(later);
}

} // namespace
