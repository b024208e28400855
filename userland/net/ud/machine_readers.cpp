// SPDX-License-Identifier: MIT
// machine_readers.cpp - whether those who have begun to read a buffer of ours still do.
//
// A GET needs no session: requests of rpc/fetch come, and a DONE at the end. So of a reader that
// dies half-way nothing is heard, nor of one whose DONE was lost with its session. Who asked for
// an operation last is therefore remembered, and asked (ASK) when it has been quiet for a while.
//
//   it does not answer, or is another by now   the operation ends with an error
//   it still reads, or its DONE is on its way  nothing: it has acknowledged the question
//   its DONE did not get through               it says that again
//   it has given up                            the operation waits as if nobody had begun
//
// A reader remembers the ends of reads that the other side may not know. One that has begun and
// knows of no such read has restarted. What nobody has begun to read waits for its deadline.
#include <cerrno>

#include "machine.hpp"

namespace coop::net::ud
{

// ---- the passive side ----------------------------------------------------------------

void machine::begun(std::uint32_t index, identity reader)
{
	watch_soon();
	begun_.join(
		index, [this](auto i) -> auto & { return ops_[i].begun_at; });
	ops_[index].reader = reader;
	ops_[index].asked = false;
}

void machine::not_begun(std::uint32_t index)
{
	begun_.leave(
		index, [this](auto i) -> auto & { return ops_[i].begun_at; });
	ops_[index].asked = false;
}

void machine::ask_readers(std::uint64_t now)
{
	std::vector<std::uint32_t> due; // what is found out about one may end it
	for (const std::uint32_t index : begun_)
		if (!ops_[index].serving && now >= ops_[index].ask_at)
			due.push_back(index);
	for (const std::uint32_t index : due)
		if (ops_[index].begun_at && !ops_[index].serving && now >= ops_[index].ask_at)
			ask_reader(index, now);
}

void machine::ask_reader(std::uint32_t index, std::uint64_t now)
{
	ops_[index].ask_at = now + probe_every_us;
	const address where = ops_[index].reader.on(own_address_);
	if (stopping_ || resolver_->crowded() ||
	    ops_.size() - free_ops_.size() > options_.max_operations + extra_ops / 2)
		return;
	const spi::peer_number n = sink_.peer(where);
	if (n == spi::no_peer)
		return;
	if (!at(n).used)
		set_up(peers_[n], where);
	peers_[n].held = true;
	spi::transfer question{};
	question.queue = queue_type::passive_bulk_send;
	question.peer = n;
	const std::uint32_t carrier = allocate(0, question);
	if (carrier == none)
		return;
	op &o = ops_[index];
	o.asked = true;
	o.ask_at = ~0ull; // once that is over
	ops_[carrier].question = true;
	ops_[carrier].remote = o.token;
	ops_[carrier].remote_key = o.key;
	bulk_message m{bulk_kind::ask};
	m.sender = o.token;
	m.sender_key = o.key;
	telling_++;
	tell(carrier, op_state::telling, m, now);
}

// The question has arrived, or cannot.
void machine::question_over(const op &carrier, int err)
{
	const std::uint32_t index = by_token_.find(carrier.remote);
	if (index == none || ops_[index].key != carrier.remote_key || !ops_[index].begun_at)
		return;
	op &o = ops_[index];
	o.ask_at = now_us() + probe_every_us;
	if (!o.asked)
		return; // it reads again
	switch (err) {
	case -ECONNREFUSED: // it was there
		return end_bulk(index, -ECONNRESET, 0);
	case -EHOSTDOWN:
	case -EHOSTUNREACH: // no session: its requests are all that was heard of it
		return end_bulk(index, -EHOSTDOWN, 0);
	default: // it answers, or sessions ended under the question: it is put again
		return;
	}
}

// What the reader of this operation says of it if it has not read all.
void machine::reader_says(std::uint32_t index, outcome result, spi::peer_number from)
{
	op &o = ops_[index];
	if (!o.asked || !(peers_[from].who == o.reader))
		return;
	if (result == outcome::gone)
		end_bulk(index, -ECONNRESET, 0);
	else
		not_begun(index);
}

// ---- the reader ----------------------------------------------------------------------

void machine::asked_what_became(const bulk_message &m, spi::peer_number from, std::uint64_t now)
{
	const identity who = peers_[from].who;
	for (auto [i, end] = reading_.equal_range(m.sender); i != end; ++i) {
		const op &o = ops_[i->second];
		if (o.remote_key == m.sender_key && o.who == who)
			return; // it will be told
	}
	bulk_message answer{bulk_kind::done, outcome::gone};
	answer.token = m.sender;
	answer.key = m.sender_key;
	if (const untold *u = recall(who, m.sender, m.sender_key)) {
		answer.result = u->result;
		answer.length = u->length;
	}
	reply(from, answer, now);
}

void machine::list_reading(std::uint32_t index)
{
	reading_.emplace(ops_[index].remote, index);
	ops_[index].listed = true;
}

void machine::unlist_reading(std::uint32_t index)
{
	if (!std::exchange(ops_[index].listed, false))
		return;
	for (auto [i, end] = reading_.equal_range(ops_[index].remote); i != end; ++i)
		if (i->second == index) {
			reading_.erase(i);
			return;
		}
}

void machine::remember(const op &o, outcome result)
{
	if (untold_.size() == untold_most)
		untold_.pop_front();
	untold_.push_back({o.who, o.remote, o.remote_key, result, o.length});
}

// The last end of such a read; null: none is known.
const machine::untold *machine::recall(identity who, spi::token t, std::uint64_t key) const
{
	for (auto u = untold_.rbegin(); u != untold_.rend(); ++u)
		if (u->token == t && u->key == key && u->who == who)
			return &*u;
	return nullptr;
}

} // namespace coop::net::ud
