// SPDX-License-Identifier: MIT
// encoder.cpp - frames out of the own half; see encoder.hpp.
#include "userland/ntrdma/stream/encoder.hpp"

#include <algorithm>
#include <cstring>

namespace coop::ntrdma
{

namespace
{

// [from, from + n) of a stream, in one or two pieces.
void add_ring(std::vector<piece> &to, const std::uint8_t *stream, std::uint64_t from,
	      std::uint64_t n)
{
	std::uint64_t offset = from % stream_bytes, first = std::min(n, stream_bytes - offset);
	if (first)
		to.push_back({stream + offset, first});
	if (n > first)
		to.push_back({stream, n - first});
}

void put_entry(writer &to, const wqe &w)
{
	bool within = w.how == static_cast<std::uint8_t>(carriage::within);
	to.put(w.op).put(w.flags).put(w.how).put(std::uint8_t{0}).raw(&w.imm, sizeof(w.imm));
	wire_operands o{};
	if (has_operands(w))
		std::memcpy(&o, w.body, sizeof(o));
	to.put(w.length).put(w.rkey).put(w.remote).put(o.compare_add).put(o.swap);
	if (within)
		to.raw(w.body, w.length);
}

} // namespace

bool encoder::news() const
{
	return more_ || own_.bell.load(std::memory_order_acquire) != bell_ ||
	       own_.wqe_prod.load(std::memory_order_acquire) != told_.wqe_prod ||
	       own_.pong.load(std::memory_order_acquire) != pong_;
}

std::size_t encoder::next(std::span<piece> out)
{
	if (at_ == pieces_.size()) {
		// Updates and placements take turns.
		if (placing_ && !placement_begun_ && (!placed_last_ || !news()))
			begin_placement();
		else if (news())
			begin_update();
	}
	std::size_t n = std::min(out.size(), pieces_.size() - at_);
	std::copy_n(pieces_.begin() + static_cast<std::ptrdiff_t>(at_), n, out.begin());
	return n;
}

void encoder::sent(std::size_t bytes)
{
	while (bytes) {
		piece &p = pieces_[at_];
		std::size_t n = std::min(bytes, p.length);
		p.at += n;
		p.length -= n;
		bytes -= n;
		at_ += !p.length;
	}
	if (at_ < pieces_.size())
		return;
	pieces_.clear();
	at_ = 0;
	if (placement_begun_) {
		placing_ = placement_begun_ = false;
		copy_.clear();
	}
}

void encoder::begin_update()
{
	constexpr auto acquire = std::memory_order_acquire;
	update u;
	bell_ = own_.bell.load(acquire);
	std::uint32_t wqe_prod = own_.wqe_prod.load(acquire),
		      wqe_cons = own_.wqe_cons.load(acquire);
	std::uint64_t stream = own_.stream_prod.load(acquire) - told_.stream_prod;
	std::uint64_t answer = own_.answer_prod.load(acquire) - told_.answer_prod;
	u.wqes = static_cast<std::uint16_t>(std::min(wqe_prod - told_.wqe_prod, frame_wqes));
	u.stream = static_cast<std::uint32_t>(std::min<std::uint64_t>(stream, frame_stream));
	u.answer = static_cast<std::uint32_t>(std::min<std::uint64_t>(answer, frame_stream));
	if (u.answer == answer)
		u.cqes =
			static_cast<std::uint16_t>(std::min(wqe_cons - told_.wqe_cons, frame_cqes));
	u.stream_taken =
		static_cast<std::uint32_t>(own_.stream_cons.load(acquire) - told_.stream_cons);
	u.answer_taken =
		static_cast<std::uint32_t>(own_.answer_cons.load(acquire) - told_.answer_cons);
	u.recv_post = own_.recv_post.load(acquire);
	u.refused = own_.refused.load(acquire) != 0;
	u.ping = own_.ping.load(acquire);
	u.pong = pong_ = own_.pong.load(acquire);

	writer to{front_.data() + update_bytes};
	for (std::uint32_t i = 0; i < u.wqes; i++)
		put_entry(to, own_.wqes[(told_.wqe_prod + i) % ring_entries]);
	for (std::uint32_t i = 0; i < u.cqes; i++) {
		const cqe &c = own_.cqes[(told_.wqe_cons + i) % ring_entries];
		to.put(c.result).put(c.value);
	}
	u.entries = static_cast<std::uint32_t>(to.at() - front_.data()) -
		    static_cast<std::uint32_t>(update_bytes);
	pieces_.push_back({front_.data(), update_bytes + u.entries});
	add_ring(pieces_, own_.stream, told_.stream_prod, u.stream);
	add_ring(pieces_, own_.answer, told_.answer_prod, u.answer);

	told_.wqe_prod += u.wqes;
	told_.wqe_cons += u.cqes;
	told_.stream_prod += u.stream;
	told_.answer_prod += u.answer;
	told_.stream_cons += u.stream_taken;
	told_.answer_cons += u.answer_taken;
	told_.recv_post = u.recv_post;
	more_ = told_.wqe_prod != wqe_prod || told_.wqe_cons != wqe_cons || u.stream != stream ||
		u.answer != answer;
	if (!more_)
		u.word = static_cast<std::uint8_t>(own_.word.load(acquire));
	put(front_.data(), u);
	placed_last_ = false;
}

void encoder::put_at(std::uint64_t number, std::uint64_t offset, std::span<const piece> from,
		     std::uint64_t owner)
{
	placement_ = {placement_kind, 0, number, offset};
	owner_ = owner;
	from_.assign(from.begin(), from.end());
	for (const piece &p : from)
		placement_.length += static_cast<std::uint32_t>(p.length);
	placing_ = true;
}

void encoder::put_message(std::uint64_t number, std::span<const piece> from, std::uint64_t owner)
{
	put_at(number, 0, from, owner);
	placement_.kind = message_kind;
}

void encoder::begin_placement()
{
	put(front_.data(), placement_);
	pieces_.push_back({front_.data(), placement_bytes});
	pieces_.insert(pieces_.end(), from_.begin(), from_.end());
	placement_begun_ = placed_last_ = true;
}

void encoder::withdraw(std::uint64_t owner)
{
	if (!placing_ || owner_ != owner)
		return;
	if (!placement_begun_) {
		placing_ = false;
		return;
	}
	// The peer was promised so many bytes. It learns in another way that they do not count.
	std::size_t first = at_ + (at_ == 0), left = 0;
	for (std::size_t i = first; i < pieces_.size(); i++)
		left += pieces_[i].length;
	copy_.clear();
	copy_.reserve(left);
	for (std::size_t i = first; i < pieces_.size(); i++)
		copy_.insert(copy_.end(), pieces_[i].at, pieces_[i].at + pieces_[i].length);
	pieces_.resize(first);
	if (left)
		pieces_.push_back({copy_.data(), left});
	owner_ = 0;
}

} // namespace coop::ntrdma
