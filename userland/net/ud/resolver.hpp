// SPDX-License-Identifier: MIT
// resolver.hpp - from the address of a transfer machine to its queue pairs.
//
// A device chooses QP numbers, and soft RoCE UDP ports, so a machine asks its peers for them, as
// SIDR does for datagrams on InfiniBand. Every machine has a UDP socket at its IP, on one of four
// ports that follow from portal and TMID, and answers with the addresses of its queue pairs. The
// answer carries a MAC and the nonce of the question.
//
// A question goes to the four ports in turn: to the next one as soon as the host refuses the port
// or another machine answers. If all four refuse: -ECONNREFUSED. Without an answer it is repeated,
// at growing intervals; then -EHOSTUNREACH.
//
// A machine with several rails (rail.hpp) has a resolver at the address of each, which answers with
// the queue pairs of that rail. The first one also says which rails there are; a machine that is
// older than rails does not answer that question.
//
// Owns the socket and the open questions. Used under the lock of the machine.
#pragma once

#include <deque>
#include <map>
#include <span>
#include <unordered_map>

#include "identity.hpp"
#include "options.hpp"

namespace coop::net::ud
{

class resolver
{
public:
	struct result {
		spi::peer_number number;
		int status; ///< 0, -ECONNREFUSED, -EHOSTUNREACH
		coop_chan_peer_addr where;
		std::uint32_t instance; ///< of the machine: another one after a restart
		bool list = false;      ///< of list(): `rails` instead of `where`
		rail_list rails = {};
	};
	struct counters {
		std::uint64_t asked, answered, malformed, strangers;
	};

	/// Of `own`, at this IP address. @throw std::system_error EADDRINUSE: all its ports are
	/// taken.
	resolver(const std::array<std::uint8_t, 16> &key, identity own, std::uint32_t ip);
	resolver(const std::array<std::uint8_t, 16> &key, identity own) : resolver(key, own, own.ip)
	{
	}
	~resolver();
	resolver(const resolver &) = delete;
	resolver &operator=(const resolver &) = delete;

	/// A UDP port that no other machine uses if none uses its candidates.
	std::uint16_t companion_port() const { return companion_; }
	/// From now on questions are answered, with this.
	void answer_with(const coop_chan_peer_addr &self, std::uint32_t instance)
	{
		self_ = self;
		instance_ = instance;
	}
	/// The IP addresses of the own rails but the first.
	void answer_with_rails(const rail_list &r) { rails_ = r; }

	/// Asks where `who` is; the result says `n`. One question a number at a time.
	void ask(spi::peer_number n, identity who, std::uint64_t now) { ask(n, who, who.ip, now); }
	/// The same of its rail at this IP.
	void ask(spi::peer_number n, identity who, std::uint32_t ip, std::uint64_t now)
	{
		ask_first(n, who, ip, now);
	}
	/// The same after a pause: the last answer could not be used yet.
	void ask_later(spi::peer_number n, identity who, std::uint64_t now)
	{
		(void)begin(n, who, who.ip, now);
	}
	void forget(spi::peer_number n) { drop(n); }
	/// Asks which rails it has besides the first. One question a number at a time.
	void list(spi::peer_number n, identity who, std::uint64_t now)
	{
		ask_first(n | list_bit, who, who.ip, now);
	}
	void forget_list(spi::peer_number n) { drop(n | list_bit); }
	bool asking() const { return !questions_.empty(); }
	/// Too many questions are open to ask about strangers.
	bool crowded() const { return questions_.size() >= most_for_strangers; }
	/// So many that one which can wait should: strangers need the rest.
	bool busy() const { return questions_.size() >= most_for_strangers / 4; }

	/// Reads what has arrived. @return whether there was anything.
	bool progress(std::uint64_t now);
	bool next(result &);
	std::uint64_t deadline() const { return timers_.empty() ? ~0ull : timers_.begin()->first; }
	void expire(std::uint64_t now);
	int fd() const { return fd_; }
	const counters &stats() const { return counters_; }

private:
	static constexpr unsigned candidates = 4;
	static constexpr std::size_t most_for_strangers = 256;
	static constexpr std::size_t packet_bytes = 72;
	using packet = std::array<std::uint8_t, packet_bytes>;

	/// Of a question, in the lower half of its nonce: the number, and whether list() asks.
	using name = std::uint32_t;
	static constexpr name list_bit = 1u << 31;

	struct question {
		std::uint64_t nonce;
		identity who;
		std::uint32_t ip; // where it goes
		unsigned tries = 0;
		unsigned at = 0;      // candidate that is being asked
		unsigned refused = 0; // bit for each
		std::multimap<std::uint64_t, name>::iterator timer;
	};

	question *begin(name, identity who, std::uint32_t ip, std::uint64_t now);
	void ask_first(name, identity who, std::uint32_t ip, std::uint64_t now);
	void drop(name);
	void send(const packet &, std::uint32_t ip, std::uint16_t port);
	void put(question &, unsigned candidate);
	void refused(std::uint64_t nonce, std::uint16_t port, std::uint64_t now);
	/// `answer`: null if there is none.
	void conclude(name, int status, const std::uint8_t *answer = nullptr);
	void answer(const std::uint8_t *data, std::uint32_t ip, std::uint16_t port);
	question *of_nonce(std::uint64_t nonce);
	void handle(const std::uint8_t *data, std::size_t length, std::uint32_t ip,
		    std::uint16_t port, std::uint64_t now);
	bool read_errors(std::uint64_t now);
	std::uint64_t mac(const packet &) const;
	bool genuine(const std::uint8_t *data, std::size_t length) const;

	const std::array<std::uint8_t, 16> key_;
	const identity own_;
	int fd_;
	std::uint16_t companion_;
	coop_chan_peer_addr self_{}; // QPN 0: not yet
	std::uint32_t instance_ = 0;
	rail_list rails_;
	std::unordered_map<name, question> questions_;
	std::multimap<std::uint64_t, name> timers_;
	std::deque<result> results_;
	counters counters_{};
	bool errors_ = false; // a send has met one, which may be in the queue
};

} // namespace coop::net::ud
