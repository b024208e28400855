// SPDX-License-Identifier: MIT
// net_play.hpp - two honest machines of a transport, their actions, and the invariants.
//
// They send each other messages and let each other read and write memory, all in a pattern that
// a `mark` stands for. Data for one peer has its own pattern, so that the play recognizes it
// elsewhere. The play around them moves the network, speaks as the enemy, and says whether data
// may change on the way. Their core is a naive one that checks transports, or the library's own
// (FUZZ_REAL_CORE), which then meets the enemy too.
#pragma once

#include <sanitizer/allocator_interface.h>
#include <unistd.h>

#include "tests/fuzz/script.hpp"
#ifdef FUZZ_REAL_CORE
#include "tests/fuzz/real_core.hpp"
#else
#include "tests/fuzz/naive_core.hpp"
#endif

namespace fuzz_net
{

namespace net = coop::net;

#ifdef FUZZ_REAL_CORE
using played_core = real_core;
#else
using played_core = naive_core;
#endif

extern u64 random_state; // net_random.cpp

/// Addresses of this process only, so that plays can run side by side.
inline std::string ip_of(unsigned n)
{
	const auto pid = static_cast<unsigned>(::getpid());
	return "127." + std::to_string(1 + pid / 254 % 250) + '.' + std::to_string(1 + pid % 254) +
	       '.' + std::to_string(1 + n);
}

inline address address_of(unsigned n)
{
	address a;
	FUZZ_CHECK(parse(ip_of(n) + "@tcp:12345:31:" + std::to_string(n), a) == 0);
	return a;
}

/// Byte i of the data of `mark`. Marks with the lowest bit set are for one peer only.
inline u8 datum(u64 mark, std::size_t i)
{
	if (mark & 1)
		return i & 1 ? 0x5e : 0xe5;
	return static_cast<u8>((mark * 0x9e3779b97f4a7c15ull >> 32) + i * 7);
}

/// True if the bytes contain a run of data for one peer.
inline bool tells_a_secret(const u8 *p, std::size_t n)
{
	unsigned run = 0;
	for (std::size_t i = 0; i < n && run < 16; i++)
		run = p[i] == datum(1, run) ? run + 1 : p[i] == datum(1, 0);
	return run == 16;
}

class net_play
{
public:
	net_play() = default;
	net_play(const net_play &) = delete;
	net_play &operator=(const net_play &) = delete;
	virtual ~net_play() = default;

	/// After the script: every operation ends, by itself or, if the enemy is involved, on
	/// request; an honest exchange works, and both machines stop.
	void end()
	{
		using namespace std::chrono_literals;
		FUZZ_CHECK(until([&] { return !active(); }, 300s));
		for (auto &c : core_)
			for (const spi::token t : c->queued())
				c->cancel(t);
		FUZZ_CHECK(until([&] { return nothing_queued(); }, 60s));
		forget_network();
		for (unsigned n = 0; n < 2; n++)
			exchange(n);
		for (auto &c : core_)
			c->stop();
		FUZZ_CHECK(until([&] { return core_[0]->is_stopped() && core_[1]->is_stopped(); },
				 10s));
		FUZZ_CHECK(!core_[0]->is_failed() && !core_[1]->is_failed());
	}

protected:
	static constexpr u32 most_turns = 20000;
	static constexpr std::size_t most_message = 20000;

	/// Everything in flight arrives, or time advances to the next deadline.
	virtual void calm() = 0;
	/// Drops everything in flight.
	virtual void forget_network() = 0;
	/// True if the enemy never uses another's name, so that arriving data is what was sent.
	virtual bool genuine() const = 0;
	/// True if the enemy never changes what the honest machines send each other.
	virtual bool undisturbed() const = 0;
	/// True if the enemy may use what is not for one peer only.
	virtual bool enemy_knows() const = 0;

	template <class maker> void begin(const maker &make)
	{
		for (unsigned n = 0; n < 2; n++) {
			core_[n] = std::make_unique<played_core>(n, clock_);
			core_[n]->on_end = [this](const played_core::item &i, int status,
						  std::size_t length) { ended(i, status, length); };
			core_[n]->on_message = [this, n](auto text, const address &from) {
				message(n, text, from);
			};
			core_[n]->begin(make, address_of(n));
		}
	}
	void run(unsigned n)
	{
		for (u32 turns = 0; core_[n]->turn();)
			FUZZ_CHECK(++turns < most_turns);
		core_[n]->settle();
	}
	void pass(std::chrono::microseconds us)
	{
		clock_ += us;
		for (auto &c : core_)
			c->expire();
	}
	/// Advances to the next deadline of a machine, or by a short while.
	void pass_on()
	{
		net::time_point at = std::min(core_[0]->deadline(), core_[1]->deadline());
		at = std::min(at, net::time_point(clock_ + std::chrono::milliseconds(10)));
		if (at > net::time_point(clock_))
			clock_ =
				std::chrono::ceil<std::chrono::microseconds>(at.time_since_epoch());
		pass({});
	}
	template <class condition> bool until(condition c, std::chrono::seconds most)
	{
		const auto end = clock_ + most;
		for (u32 n = 0; n < 4 * most_turns && clock_ <= end; n++) {
			if (c())
				return true;
			calm();
		}
		return c();
	}

	/// Sends a message; `checked`: it must arrive unchanged or not at all.
	spi::token send(unsigned n, spi::peer_number to, std::size_t length, bool checked)
	{
		const u64 mark = next_mark_ += 16;
		if (checked)
			sent_[n].emplace(mark, length);
		return core_[n]->add(queue_type::msg_send, length, 1 + mark / 16 % 3, to,
				     [&](auto &i) { fill(i, mark, true); });
	}
	spi::token receive(unsigned n, std::size_t length, u32 messages)
	{
		return core_[n]->add(queue_type::msg_recv, length, 1 + messages % 3, spi::no_peer,
				     [&](auto &i) {
					     i.what.min_receive_size = length / 4 + 1;
					     i.what.max_receive_msgs = messages;
				     });
	}
	/// Memory to be read or written: by the other honest machine only, or by any peer.
	spi::token offer(unsigned n, bool read, bool alone, std::size_t length)
	{
		const bool checked = alone || !enemy_knows();
		const u64 mark = (next_mark_ += 16) | (alone ? 1 : 0) | (checked ? 2 : 0);
		const auto peer = alone ? core_[n]->peer_at(address_of(1 - n)) : spi::no_peer;
		return core_[n]->add(
			read ? queue_type::passive_bulk_send : queue_type::passive_bulk_recv,
			length, 1 + mark / 16 % 4, peer, [&](auto &i) { fill(i, mark, read); });
	}
	/// The active side; `mark` is the passive one's.
	spi::token use(unsigned n, spi::peer_number to, spi::token other, u64 key, bool read,
		       u64 mark, std::size_t length)
	{
		return core_[n]->add(read ? queue_type::active_bulk_recv
					  : queue_type::active_bulk_send,
				     length, 1 + length % 3, to, [&](auto &i) {
					     i.what.remote = other;
					     i.what.remote_key = key;
					     fill(i, mark, !read);
				     });
	}
	/// Uses something that the other machine offers.
	void use_other(unsigned n, script &in)
	{
		const auto all = core_[1 - n]->queued();
		if (all.empty())
			return;
		const spi::token t = all[in.byte() % all.size()];
		const auto &i = core_[1 - n]->at(t);
		const bool read = i.what.queue == queue_type::passive_bulk_send;
		if (!read && i.what.queue != queue_type::passive_bulk_recv)
			return;
		const std::size_t less = std::min<std::size_t>(in.byte(), i.what.length - 1);
		use(n, core_[n]->peer_at(address_of(1 - n)), t, core_[1 - n]->key(t), read, i.mark,
		    i.what.length - less);
	}
	/// A token of a machine, or whatever the script says, if the enemy may know tokens.
	u64 token(unsigned n, script &in)
	{
		const u8 how = in.byte();
		const auto all = core_[n]->tokens();
		if (!enemy_knows() || how == 255 || all.empty())
			return in.quad();
		return all[how % all.size()];
	}
	u64 key_of(unsigned n, spi::token of, script &in)
	{
		return enemy_knows() && in.byte() != 255 ? core_[n]->key(of) : in.quad();
	}

	/// An action of the honest machines. False: `what` is not one of theirs.
	bool act(unsigned n, u8 what, u8 how, script &in)
	{
		played_core &c = *core_[n];
		const auto some = [&]() -> spi::token {
			const auto all = c.queued();
			return all.empty() ? 0 : all[in.byte() % all.size()];
		};
		switch (what) {
		case 0:
		case 1:
			send(n, c.peer_at(address_of(1 - n)), in.half() % (most_message + 1), true);
			return true;
		case 2:
			receive(n, 1 + in.half() % (2 * most_message), 1 + in.byte() % 4);
			return true;
		case 3:
			receive(n, most_message, 1);
			return true;
		case 4:
			offer(n, how & 1, how & 2, 1 + in.half());
			return true;
		case 5:
		case 6:
			use_other(n, in);
			return true;
		case 7: { // with the enemy
			const auto to = c.peer_at(address_of(2));
			if (how & 1)
				send(n, to, in.half() % (most_message + 1), false);
			else
				use(n, to, in.byte() + 1, in.byte() + 1, how & 2, 0, 1 + in.half());
			return true;
		}
		case 8:
			c.cancel(some());
			return true;
		case 9:
			c.forget_peers();
			return true;
		}
		return false;
	}

	std::chrono::microseconds clock_{1000000};
	std::unique_ptr<played_core> core_[2];

private:
	static void fill(played_core::item &i, u64 mark, bool data)
	{
		i.mark = mark;
		for (std::size_t k = 0; data && k < i.what.length; k++)
			i.memory[k] = std::byte(datum(mark & ~2ull, k));
	}
	static bool is_datum(u64 mark, const std::byte *p, std::size_t n)
	{
		for (std::size_t i = 0; i < n; i++)
			if (p[i] != std::byte(datum(mark & ~2ull, i)))
				return false;
		return true;
	}
	void message(unsigned n, std::span<const std::byte> text, const address &from)
	{
		if (!genuine() || !(from == address_of(1 - n)))
			return;
		auto &sent = sent_[1 - n];
		for (auto it = sent.begin(); it != sent.end(); ++it)
			if (it->second == text.size() &&
			    is_datum(it->first, text.data(), text.size())) {
				sent.erase(it);
				return;
			}
		FUZZ_CHECK(!"a message that was never sent, or came twice");
	}
	void ended(const played_core::item &i, int status, std::size_t length)
	{
		last_status_ = status;
		const bool in = i.what.queue == queue_type::passive_bulk_recv ||
				i.what.queue == queue_type::active_bulk_recv;
		if (status == 0 && in && genuine() && i.mark & 2)
			FUZZ_CHECK(is_datum(i.mark, i.memory.get(), length));
	}
	bool active() const
	{
		if (!undisturbed())
			return false;
		for (unsigned n = 0; n < 2; n++)
			for (const spi::token t : core_[n]->queued()) {
				const auto &i = core_[n]->at(t);
				if ((i.what.queue == queue_type::msg_send ||
				     i.what.queue == queue_type::active_bulk_send ||
				     i.what.queue == queue_type::active_bulk_recv) &&
				    core_[n]->where(i.what.peer) == address_of(1 - n))
					return true;
			}
		return false;
	}
	bool nothing_queued() const
	{
		return core_[0]->queued().empty() && core_[1]->queued().empty();
	}
	// A message and data both ways. After the enemy it may need a few attempts.
	void exchange(unsigned n)
	{
		using namespace std::chrono_literals;
		const auto to = core_[n]->peer_at(address_of(1 - n));
		const auto over = [&](unsigned which, spi::token t) {
			FUZZ_CHECK(until([&] { return !core_[which]->has(t); }, 60s));
			return last_status_;
		};
		int tries = 8;
		for (int status = 1; status; tries--) {
			FUZZ_CHECK(tries);
			const spi::token r = receive(1 - n, 5000, 1);
			const spi::token t = send(n, to, 5000, true);
			FUZZ_CHECK(t);
			status = over(n, t);
			core_[1 - n]->cancel(r);
			over(1 - n, r);
		}
		for (const bool read : {true, false}) {
			tries = 8;
			for (int status = 1; status; tries--) {
				FUZZ_CHECK(tries);
				const spi::token p = offer(1 - n, read, true, 9000);
				FUZZ_CHECK(p);
				const u64 mark = core_[1 - n]->at(p).mark;
				const spi::token t =
					use(n, to, p, core_[1 - n]->key(p), read, mark, 9000);
				FUZZ_CHECK(t);
				status = over(n, t);
				if (status)
					core_[1 - n]->cancel(p);
				over(1 - n, p);
			}
		}
	}

	std::multimap<u64, std::size_t> sent_[2]; // messages not yet arrived, by mark
	u64 next_mark_ = 0;
	int last_status_ = 1;
};

/// Plays a script; the memory of a play is bounded and freed.
template <class play> void perform(const u8 *data, std::size_t size, u32 max_steps)
{
	constexpr std::size_t most_memory = 48u << 20;
	const std::size_t before = __sanitizer_get_current_allocated_bytes();
	[[maybe_unused]] const played_core::scope whole;
	random_state = 1;
	script in(data, size);
	play p(in.byte());
	for (u32 n = 0; in.more() && n < max_steps; n++)
		p.step(in);
	p.end();
	FUZZ_CHECK(__sanitizer_get_current_allocated_bytes() < before + most_memory);
}

} // namespace fuzz_net
