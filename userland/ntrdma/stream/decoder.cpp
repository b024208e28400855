// SPDX-License-Identifier: MIT
// decoder.cpp - frames into the copy of the peer's half; see decoder.hpp.
#include "userland/ntrdma/stream/decoder.hpp"

#include <algorithm>
#include <cstring>

namespace coop::ntrdma
{

namespace
{

// [from, from + n) of a stream, in one or two places.
std::size_t ring_places(std::uint8_t *stream, std::uint64_t from, std::uint64_t n, place *out)
{
	std::uint64_t offset = from % stream_bytes, first = std::min(n, stream_bytes - offset);
	out[0] = {stream + offset, first};
	out[1] = {stream, n - first};
	return n > first ? 2 : 1;
}

constexpr std::size_t long_run = 16u << 10, little = 256; // bytes

} // namespace

std::size_t decoder::room(std::span<place> out)
{
	if (stage_ == stage::lie)
		return 0;
	if (begin_ == end_) {
		begin_ = end_ = 0;
	} else if (held_.size() - begin_ < update_bytes + frame_entries) {
		std::memmove(held_.data(), first(), held());
		end_ -= begin_;
		begin_ = 0;
	}
	std::size_t n = targets(out.first(8));
	if (stage_ == stage::lie)
		return 0;
	named_ = 0;
	for (std::size_t i = 0; i < n; i++)
		named_ += out[i].length;
	if (named_ && named_ < left_)
		return n;
	// Another long run may follow, of which nothing should be copied.
	std::size_t rest = held_.size() - end_;
	if (after_long_ && (named_ || stage_ == stage::head))
		rest = std::min(rest, little);
	out[n++] = {held_.data() + end_, rest};
	return n;
}

// The destinations of the current run; none if it is dropped, or there is no run.
std::size_t decoder::targets(std::span<place> out)
{
	switch (stage_) {
	case stage::stream:
		return ring_places(in_.stream, seen_.stream_prod, left_, out.data());
	case stage::answer:
		return ring_places(in_.answer, seen_.answer_prod, left_, out.data());
	case stage::placing: {
		auto n = known_->places(placement_.number, placement_.offset, left_, out);
		if (!n)
			stage_ = stage::lie;
		return n.value_or(0);
	}
	case stage::head:
	case stage::entries:
	case stage::lie:
		break;
	}
	return 0;
}

// So many bytes of the current run are in their places.
void decoder::moved(std::uint64_t n)
{
	left_ -= n;
	if (stage_ == stage::stream) {
		seen_.stream_prod += n;
	} else if (stage_ == stage::answer) {
		seen_.answer_prod += n;
	} else {
		placement_.offset += n;
	}
}

bool decoder::arrived(std::size_t bytes)
{
	std::uint64_t direct = std::min<std::uint64_t>(bytes, named_);
	named_ = 0;
	end_ += bytes - direct;
	if (direct) {
		moved(direct);
		if (stage_ == stage::placing)
			known_->placed(placement_.number, direct);
	}
	for (;;) {
		const stage before = stage_;
		const std::size_t had = held();
		switch (stage_) {
		case stage::head:
			stage_ = parse_head();
			break;
		case stage::entries:
			stage_ = parse_entries();
			break;
		case stage::stream:
		case stage::answer:
		case stage::placing:
			stage_ = take_from_held();
			break;
		case stage::lie:
			return false;
		}
		// The rest of it has yet to come.
		if (stage_ == before && held() == had)
			return true;
	}
}

decoder::stage decoder::parse_head()
{
	if (!held())
		return stage::head;
	std::uint8_t kind = *first();
	const bool places = kind == placement_kind || kind == message_kind;
	if (kind != update_kind && (!places || !known_))
		return stage::lie;
	std::size_t size = kind == update_kind ? update_bytes : placement_bytes;
	if (held() < size)
		return stage::head;
	const std::uint8_t *at = first();
	begin_ += size;
	after_long_ = false;
	if (kind == update_kind) {
		if (!get(at, update_) || !believable(update_))
			return stage::lie;
		return stage::entries;
	}
	if (!get(at, placement_) || !placement_.length || placement_.length > placement_most)
		return stage::lie;
	if (kind == message_kind) {
		auto number = known_->message(placement_.number, placement_.length);
		if (!number)
			return stage::lie;
		placement_.number = *number;
	}
	left_ = placement_.length;
	after_long_ = left_ >= long_run;
	return stage::placing;
}

/// What the peer claims to have stored fits into its half, and it has taken only what it was sent.
bool decoder::believable(const update &u) const
{
	const indices &told = own_.told();
	std::uint32_t word = in_.word.load(std::memory_order_relaxed);
	return u.wqes <= frame_wqes && u.cqes <= frame_cqes && u.entries <= frame_entries &&
	       u.stream <= frame_stream && u.answer <= frame_stream &&
	       seen_.wqe_prod + u.wqes - told.wqe_cons <= ring_entries &&
	       u.cqes <= told.wqe_prod - seen_.wqe_cons &&
	       seen_.stream_prod + u.stream - told.stream_cons <= stream_bytes &&
	       seen_.answer_prod + u.answer - told.answer_cons <= stream_bytes &&
	       u.stream_taken <= told.stream_prod - seen_.stream_cons &&
	       u.answer_taken <= told.answer_prod - seen_.answer_cons &&
	       u.word <= static_cast<std::uint8_t>(link_word::failed) &&
	       word == static_cast<std::uint32_t>(link_word::open);
}

decoder::stage decoder::parse_entries()
{
	if (held() < update_.entries)
		return stage::entries;
	reader from{first()};
	const std::uint8_t *end = first() + update_.entries;
	for (std::uint32_t i = 0; i < update_.wqes; i++) {
		wqe w;
		std::memset(&w, 0, offsetof(wqe, body)); // `turn`: it is not there yet
		wire_operands o;
		w.cons = seen_.wqe_cons;
		if (static_cast<std::size_t>(end - from.at()) < wqe_front)
			return stage::lie;
		w.op = from.get<std::uint8_t>();
		w.flags = from.get<std::uint8_t>();
		w.how = from.get<std::uint8_t>();
		bool zero = from.get<std::uint8_t>() == 0;
		from.raw(&w.imm, sizeof(w.imm));
		w.length = from.get<std::uint32_t>();
		w.rkey = from.get<std::uint32_t>();
		w.remote = from.get<std::uint64_t>();
		o.compare_add = from.get<std::uint64_t>();
		o.swap = from.get<std::uint64_t>();
		std::size_t body =
			w.how == static_cast<std::uint8_t>(carriage::within) ? w.length : 0;
		if (!zero || body > body_bytes || (body && has_operands(w)) ||
		    static_cast<std::size_t>(end - from.at()) < body)
			return stage::lie;
		wqe &to = in_.wqes[(seen_.wqe_prod + i) % ring_entries];
		std::memcpy(&to, &w, offsetof(wqe, body));
		if (has_operands(w))
			std::memcpy(to.body, &o, sizeof(o));
		else
			from.raw(to.body, body);
	}
	if (static_cast<std::size_t>(end - from.at()) != update_.cqes * cqe_bytes)
		return stage::lie;
	for (std::uint32_t i = 0; i < update_.cqes; i++) {
		cqe c{};
		c.result = from.get<std::uint32_t>();
		c.value = from.get<std::uint64_t>();
		in_.cqes[(seen_.wqe_cons + i) % ring_entries] = c;
	}
	begin_ += update_.entries;
	left_ = update_.stream;
	after_long_ = update_.stream + update_.answer >= long_run;
	return stage::stream;
}

// Goes on with the current run from what is held, and to what follows it.
decoder::stage decoder::take_from_held()
{
	while (left_ && held()) {
		std::array<place, 8> to;
		std::size_t n = targets(to);
		if (stage_ == stage::lie)
			return stage::lie;
		std::uint64_t total = 0;
		for (std::size_t i = 0; i < n && held(); i++) {
			std::size_t part = std::min<std::uint64_t>(to[i].length, held());
			std::memcpy(to[i].at, first(), part);
			begin_ += part;
			total += part;
		}
		if (!n) {
			total = std::min<std::uint64_t>(left_, held());
			begin_ += total;
		}
		moved(total);
		if (n && stage_ == stage::placing)
			known_->placed(placement_.number, total);
	}
	if (left_)
		return stage_;
	if (stage_ == stage::stream) {
		left_ = update_.answer;
		return stage::answer;
	}
	if (stage_ == stage::answer)
		apply();
	return stage::head;
}

/// The whole update is there: data were stored before, then indices, then the doorbell.
void decoder::apply()
{
	constexpr auto release = std::memory_order_release;
	const update &u = update_;
	for (std::uint32_t i = 0; i < u.wqes; i++, seen_.wqe_prod++)
		__atomic_store_n(&in_.wqes[seen_.wqe_prod % ring_entries].turn, seen_.wqe_prod + 1,
				 __ATOMIC_RELEASE);
	seen_.wqe_cons += u.cqes;
	seen_.stream_cons += u.stream_taken;
	seen_.answer_cons += u.answer_taken;
	in_.recv_post.store(u.recv_post, release);
	in_.stream_prod.store(seen_.stream_prod, release);
	in_.stream_cons.store(seen_.stream_cons, release);
	in_.answer_prod.store(seen_.answer_prod, release);
	in_.answer_cons.store(seen_.answer_cons, release);
	in_.wqe_prod.store(seen_.wqe_prod, release);
	in_.refused.store(u.refused, release);
	in_.wqe_cons.store(seen_.wqe_cons, release);
	in_.ping.store(u.ping, release);
	in_.pong.store(u.pong, release);
	in_.word.store(u.word, release);
	in_.bell.store(++bell_, release);
}

} // namespace coop::ntrdma
