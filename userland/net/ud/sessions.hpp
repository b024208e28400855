// SPDX-License-Identifier: MIT
// sessions.hpp - the sessions of a machine at rpc/chan, and which of them may end to make room.
//
// Idle sessions are in a line, the least recently used at its head. The line is a doubly linked
// list, so every step takes constant time.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include "userland/net/transport.hpp"

namespace coop::net::ud
{

class sessions
{
public:
	/// Of a session here; 0: none.
	using position = std::uint32_t;

	struct session {
		std::uint32_t chan = 0; ///< its peer's id there
		spi::peer_number peer = spi::no_peer;
	};

	/// A session that a stranger has begun. It is in the line until own().
	void add_stranger(std::uint32_t chan)
	{
		const auto [it, is_new] = strangers_.try_emplace(chan, 0);
		if (is_new)
			it->second = add({chan, spi::no_peer});
	}
	/// This session is the peer's, and replaces the one at its position, if any.
	void own(position &at, std::uint32_t chan, spi::peer_number n, bool idle)
	{
		if (const auto it = strangers_.find(chan); it != strangers_.end()) {
			erase(it->second);
			strangers_.erase(it);
		}
		if (!at)
			at = add({chan, n});
		entries_[at].what = {chan, n};
		leave(at);
		if (idle)
			join(at);
	}
	/// The peer's session is over.
	void drop(position &at)
	{
		if (at)
			erase(std::exchange(at, 0));
	}
	/// An operation uses it.
	void busy(position at)
	{
		if (at)
			leave(at);
	}
	/// No operation uses it any more; it was used just now.
	void idle(position at)
	{
		if (!at || at == entries_[0].before)
			return;
		leave(at);
		join(at);
	}
	/// If it is idle, it was used just now.
	void used(position at)
	{
		if (at && entries_[at].in)
			idle(at);
	}
	/// The head of the line. chan 0: the line is empty.
	session oldest() const
	{
		const position at = entries_[0].after;
		return at ? entries_[at].what : session{};
	}
	/// Moves the head of the line to its end.
	void pass_oldest() { used(entries_[0].after); }
	/// Removes the head of the line; the caller sets the position of its peer to 0. chan 0: the
	/// line is empty.
	session take_oldest()
	{
		const position at = entries_[0].after;
		if (!at)
			return {};
		const session s = entries_[at].what;
		erase(at);
		if (s.peer == spi::no_peer)
			strangers_.erase(s.chan);
		return s;
	}

private:
	struct entry {
		session what;
		position before = 0, after = 0; // in the line
		bool in = false;
	};

	position add(session s)
	{
		position at;
		if (free_.empty()) {
			at = static_cast<position>(entries_.size());
			entries_.emplace_back();
		} else {
			at = free_.back();
			free_.pop_back();
		}
		entries_[at].what = s;
		join(at);
		return at;
	}
	void erase(position at)
	{
		leave(at);
		free_.push_back(at);
	}
	void join(position at)
	{
		entry &e = entries_[at], &ends = entries_[0];
		e.before = ends.before;
		e.after = 0;
		e.in = true;
		entries_[ends.before].after = at;
		ends.before = at;
	}
	void leave(position at)
	{
		entry &e = entries_[at];
		if (!std::exchange(e.in, false))
			return;
		entries_[e.before].after = e.after;
		entries_[e.after].before = e.before;
	}

	std::vector<entry> entries_ = std::vector<entry>(1); // the first: both ends of the line
	std::vector<position> free_;
	std::unordered_map<std::uint32_t, position> strangers_;
};

} // namespace coop::net::ud
