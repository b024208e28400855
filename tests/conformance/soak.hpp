// SPDX-License-Identifier: MIT
// soak.hpp - what a test of all operations at once knows about each buffer.
//
// Random operations disturb each other, so most ends may be good or bad. Here is which ones must be
// good, what the bytes must be, and an end of calm operations.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "world.hpp"

namespace conformance
{

// What soak_mixed records about each buffer, and what it finds in written ones.
class soak
{
public:
	static constexpr unsigned nodes = 4, sources = 12, sinks = 12;
	static constexpr std::size_t size = 8192;
	// Nodes below this have room for all messages to them; that room is not in the items.
	static constexpr unsigned roomy = 2, rooms = 2, messages_a_room = 512;
	struct item {
		piece *p;
		std::size_t adds = 0;
		unsigned from = 0;                  // of an active_bulk_recv: the source's seed
		bool waits = false;                 // for an event that may never come
		item *partner = nullptr;            // the other side of bulk that must end well
		std::atomic<bool> sure{false};      // nothing can prevent a good end
		std::atomic<std::size_t> finals{0}; // ended and checked

		explicit item(piece *memory) : p(memory) {}
	};

	static unsigned seed(unsigned node, unsigned source) { return node * sources + source; }

	// The sources of each node come first, and never change.
	std::vector<std::deque<item>> items{nodes};
	std::map<const net::buffer *, item *> by_buffer;
	std::map<std::string, unsigned> by_address;
	struct room {
		node *n;
		piece *p;
		std::size_t most;
		std::atomic<unsigned> adds{0}, finals{0};
		std::atomic<bool> over{false};

		room(node *at, piece *memory, std::size_t least) : n(at), p(memory), most(least) {}
		void open()
		{
			if (n->receive(*p, most, messages_a_room) == 0)
				adds++;
		}
	};
	std::deque<room> rooms_here;
	std::map<const net::buffer *, room *> rooms_of;
	std::atomic<unsigned> messages{0}, read{0}, written{0}, wrong{0};
	// Of the sure ones: how they ended, and the ends that must not occur.
	std::atomic<unsigned> well{0}, collateral{0}, badly{0};
	std::atomic<int> worst{0}, allowed{0};

	// From now on it may end badly, and so may its partner.
	static void disturb(item &i)
	{
		i.sure = false;
		if (i.partner)
			i.partner->sure = false;
	}
	void look(const buffer_event &e)
	{
		if (const auto r = rooms_of.find(e.buffer); r != rooms_of.end())
			return look(e, *r->second);
		item &i = *by_buffer.at(e.buffer);
		if (e.status == 0 && e.length) {
			if (e.queue == queue_type::msg_recv && e.sender) {
				const unsigned n = by_address.at(e.sender->text());
				check(*i.p, e, seed(n, 0), sources, messages);
			} else if (e.queue == queue_type::active_bulk_recv) {
				check(*i.p, e, i.from, 1, read);
			} else if (e.queue == queue_type::passive_bulk_recv) {
				check(*i.p, e, 0, nodes * sources, written);
			}
		}
		if (!e.queued && i.sure) {
			well += e.status == 0;
			collateral += e.status && e.status == allowed;
			if (e.status && e.status != allowed) {
				badly++;
				worst = e.status;
			}
		}
		i.finals += !e.queued;
	}

private:
	void look(const buffer_event &e, room &r)
	{
		if (e.status == 0 && e.length) {
			const unsigned n = by_address.at(e.sender->text());
			check(*r.p, e, seed(n, 0), sources, messages);
		}
		if (e.queued)
			return;
		if (!r.over)
			r.open();
		r.finals++;
	}
	// Counts an error unless the bytes are the beginning of one of these.
	void check(const piece &p, const buffer_event &e, unsigned first, unsigned count,
		   std::atomic<unsigned> &good)
	{
		const auto got = p.copy(e.offset, e.length);
		for (unsigned s = first; s < first + count; s++)
			if (got[0] == pattern(s, 0) && got == patterned(s, got.size())) {
				good++;
				return;
			}
		wrong++;
	}
};

// Undisturbed, each node sends to one with room and reads from the next. The random steps may
// have taken every good end of their own. @return false: an end did not come.
inline bool soak_calmly(world &w, soak &s, const std::vector<node *> &n,
			const std::vector<std::vector<endpoint_ptr>> &to, std::size_t length)
{
	const auto ended = [](const soak::item &x) { return x.finals == x.adds; };
	for (auto &items : s.items)
		for (soak::item &x : items) {
			soak::disturb(x);
			x.partner = nullptr;
			(void)n[&items - &s.items[0]]->tm.del(*x.p->buffer);
			if (!w.until([&] { return ended(x); }))
				return false;
		}
	for (unsigned i = 0; i < soak::nodes; i++) {
		const unsigned next = (i + 1) % soak::nodes;
		soak::item &message = s.items[i][0], &into = s.items[i][soak::sources],
			   &shown = s.items[next][1];
		into.from = soak::seed(next, 1);
		for (soak::item *each : {&message, &into, &shown}) {
			each->sure = true;
			each->adds++;
		}
		if (n[i]->send(*message.p, length, to[i][i % soak::roomy]) ||
		    n[next]->passive(*shown.p, queue_type::passive_bulk_send) ||
		    n[i]->active(*into.p, queue_type::active_bulk_recv,
				 shown.p->buffer->descriptor()) ||
		    !w.until([&] { return ended(message) && ended(into); }))
			return false;
	}
	return true;
}

} // namespace conformance
