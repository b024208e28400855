// SPDX-License-Identifier: MIT
// frame.cpp - the heads of frames to bytes and back; see frame.hpp.
#include "userland/ntrdma/stream/frame.hpp"

namespace coop::ntrdma
{

void put(std::uint8_t *to, const update &u)
{
	writer w{to};
	w.put(update_kind).put(u.word).put(u.wqes).put(u.cqes);
	w.put(static_cast<std::uint8_t>(u.refused)).put(std::uint8_t{0});
	w.put(u.entries).put(u.stream).put(u.answer).put(u.stream_taken).put(u.answer_taken);
	w.put(u.recv_post).put(u.ping).put(u.pong).put(std::uint32_t{0});
}

void put(std::uint8_t *to, const placement &p)
{
	writer{to}
		.put(p.kind)
		.put(std::uint8_t{0})
		.put(std::uint16_t{0})
		.put(p.length)
		.put(p.number)
		.put(p.offset);
}

bool get(const std::uint8_t *from, update &u)
{
	reader r{from};
	if (r.get<std::uint8_t>() != update_kind)
		return false;
	u.word = r.get<std::uint8_t>();
	u.wqes = r.get<std::uint16_t>();
	u.cqes = r.get<std::uint16_t>();
	std::uint32_t refused = r.get<std::uint8_t>(), zero = r.get<std::uint8_t>();
	u.refused = refused == 1;
	zero |= refused & ~1u;
	u.entries = r.get<std::uint32_t>();
	u.stream = r.get<std::uint32_t>();
	u.answer = r.get<std::uint32_t>();
	u.stream_taken = r.get<std::uint32_t>();
	u.answer_taken = r.get<std::uint32_t>();
	u.recv_post = r.get<std::uint32_t>();
	u.ping = r.get<std::uint32_t>();
	u.pong = r.get<std::uint32_t>();
	return !(zero | r.get<std::uint32_t>());
}

bool get(const std::uint8_t *from, placement &p)
{
	reader r{from};
	p.kind = r.get<std::uint8_t>();
	if (p.kind != placement_kind && p.kind != message_kind)
		return false;
	std::uint32_t zero = r.get<std::uint8_t>();
	zero |= r.get<std::uint16_t>();
	p.length = r.get<std::uint32_t>();
	p.number = r.get<std::uint64_t>();
	p.offset = r.get<std::uint64_t>();
	return !zero && (p.kind == placement_kind || !p.offset);
}

} // namespace coop::ntrdma
