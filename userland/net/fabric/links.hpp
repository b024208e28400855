// SPDX-License-Identifier: MIT
// links.hpp - the links of a machine, from the greeting to the end of the last work on them.
//
// A failed link is closed first, so that its peer can write nowhere. Then its completions are read
// (by the machine, which owns the queue), and then its works end: memory is quiet when the core
// learns of that.
#pragma once

#include <memory>
#include <vector>

#include "messages.hpp"
#include "partings.hpp"

namespace coop::net::fabric
{

/// Owns all links. Under the machine's lock.
class links final : public port::events
{
public:
	links(environment &e, works &w, sends &s, transfers &t, messages &m, peers &p,
	      partings &q) :
		env_(e),
		works_(w),
		sends_(s),
		transfers_(t),
		messages_(m),
		peers_(p),
		partings_(q)
	{
	}

	/// @return as port::prepare().
	int prepare(const address &own) { return env_.port.prepare(own, *this); }
	/// @return as port::start().
	int start(const address &own)
	{
		own_ = own;
		return env_.port.start(own);
	}
	/// Says bye on every link, and makes no more.
	void stop();
	/// All links have ended.
	bool none() const { return live_ == 0; }

	int peer_open(spi::peer_number n, const address &);
	/// The link to send on to this peer, made if necessary. Null: `status` says why.
	link *to(spi::peer_number, int &status);
	/// The link that a word names; null: none.
	link *of(std::uint64_t word) const
	{
		const std::uint32_t n = word::link(word);
		link *l = n < all_.size() ? all_[n].get() : nullptr;
		return l && (!env_.wide || l->cookie == word::cookie(word)) ? l : nullptr;
	}
	/// A message may arrive before the event that its link is made. True: the link has an end
	/// point to answer on.
	bool audible(link &l)
	{
		if (l.state == link::state::connecting)
			catch_up(l);
		return l.state != link::state::dying;
	}
	/// Ends the link's works, and destroys it. The port has closed it, and its completions have
	/// been read.
	void bury(link &);
	template <class function> void for_each(const function &f)
	{
		for (auto &l : all_)
			if (l)
				f(*l);
	}

	// port::events
	bool mute() const override { return !env_.options.answer; }
	link *admit(const hello &) override;
	hello greeting(const link &) const override;
	bool accept(link &, const hello &) override;
	void linked(link &) override;
	void unlinked(link &l, int status) override { env_.endings.fail(l, status); }
	void broken(int status) override { env_.endings.lose_device(status); }
	time_point now() override { return env_.sink.now(); }
	bool polled() const override { return env_.options.sockets && env_.sink.polled(); }

private:
	link *make(const address &);
	void catch_up(link &);

	environment &env_;
	works &works_;
	sends &sends_;
	transfers &transfers_;
	messages &messages_;
	peers &peers_;
	partings &partings_;
	address own_;
	std::vector<std::unique_ptr<link>> all_; ///< index: number
	std::vector<std::uint32_t> free_;
	unsigned live_ = 0;
	bool stopping_ = false;
	random_source random_; ///< cookies
};

} // namespace coop::net::fabric
