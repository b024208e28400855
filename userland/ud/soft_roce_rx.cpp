// SPDX-License-Identifier: MIT
// soft_roce_rx.cpp - see soft_roce_rx.hpp.
//
// Checks come in the hardware's order: ICRC, queue pair and its state, Q_Key,
// receive WR, length. Each failure only counts; but a datagram longer than its WR
// kills its queue pair.
#include "userland/ud/soft_roce_rx.hpp"

#include <algorithm>
#include <cstring>

#include "userland/ud/grh.hpp"

namespace coop::ud
{

receiver::receiver(soft_roce_core &core) :
	core_(core),
	tail_(largest_packet),
	linear_(largest_packet)
{
}

void receiver::posted(queue_pair &qp)
{
	qp.posted_since = ++posts_;
	if (qp.candidate)
		return;
	qp.candidate = true;
	candidates_.push_back(&qp);
}

// ---- where the next packet will go -------------------------------------------

// The queue pair of the last bulk packet, until it has all; then the one that has waited longest,
// because peers answer in the order of the requests.
queue_pair *receiver::guess()
{
	queue_pair *oldest = nullptr;
	for (std::size_t i = 0; i < candidates_.size();) {
		queue_pair *qp = candidates_[i];
		if (likely(*qp)) {
			if (!oldest || qp->posted_since < oldest->posted_since)
				oldest = qp;
			i++;
			continue;
		}
		qp->candidate = false;
		candidates_[i] = candidates_.back();
		candidates_.pop_back();
	}
	return last_bulk_ && likely(*last_bulk_) ? last_bulk_ : oldest;
}

// Several peers at once, or losses, disturb the order for a while.
void receiver::judge_guess(bool bulk)
{
	if (bulk && guessed_ && last_bulk_ != guessed_)
		surprise_ = surprise_max;
	else if (surprise_)
		surprise_--;
}

std::span<iovec> receiver::lay_out()
{
	queue_pair *qp = guessed_ = guess();
	if (!qp)
		return lay_out_nothing();
	std::uint32_t payload = qp->expect_payload;
	if (!payload)
		payload = std::min(qp->wr(0).capacity, core_.mtu);
	return lay_out_for(*qp, payload, qp->expect_imm, max_planned);
}

std::span<iovec> receiver::lay_out(const std::uint8_t *bytes, std::size_t available,
				   std::size_t length, std::size_t segment)
{
	guessed_ = guess();
	const std::size_t one = segment && segment < length ? segment : length;
	const auto head = decode_head(bytes, available, one);
	queue_pair *qp = head ? core_.find(head->dest_qp) : nullptr;
	if (!qp || !qp->posted())
		return lay_out_nothing();
	const std::size_t payload = one - head_bytes(head->has_imm) - head->pad - icrc_bytes;
	if (payload > core_.mtu)
		return lay_out_nothing();
	return lay_out_for(*qp, static_cast<std::uint32_t>(payload), head->has_imm,
			   static_cast<std::uint32_t>(length / one));
}

std::span<iovec> receiver::lay_out_nothing()
{
	plan_ = plan{};
	iov_[0] = {tail_.data(), tail_.size()};
	plan_.iov_count = 1;
	return {iov_.data(), 1};
}

std::span<iovec> receiver::lay_out_for(queue_pair &qp, std::uint32_t payload, bool imm,
				       std::uint32_t segments)
{
	const std::size_t head = head_bytes(imm);
	const std::size_t between = pad_bytes(payload) + icrc_bytes;

	plan_ = plan{};
	plan_.qp = &qp;
	plan_.first = qp.head();
	plan_.payload = payload;
	plan_.imm = imm;
	plan_.stride = datagram_bytes(payload, imm);
	const std::size_t fits = largest_packet / plan_.stride;
	segments = std::min({segments, qp.posted(), max_planned, static_cast<std::uint32_t>(fits)});

	std::uint8_t *side = side_.data();
	iov_[0] = {side, head};
	plan_.iov_count = 1;
	side += head;
	for (std::uint32_t k = 0; k < segments; k++) {
		if (!add_wr(qp.wr(k), payload))
			break;
		iov_[plan_.iov_count++] = {side, between + head};
		side += between + head;
		plan_.segments++;
	}
	if (!plan_.segments)
		return lay_out_nothing();
	// The last piece has room for the head of a datagram without a WR: that goes to the tail.
	iov_[plan_.iov_count - 1].iov_len -= head;
	iov_[plan_.iov_count++] = {tail_.data(), tail_.size()};
	return {iov_.data(), plan_.iov_count};
}

bool receiver::add_wr(const posted_recv &wr, std::uint32_t payload)
{
	// Reserve entries for its pieces, the bytes after it, and the tail.
	if (wr.capacity < payload || plan_.iov_count + wr.n_sge + 2 > max_iov)
		return false;
	sge_cursor memory(wr.list, wr.n_sge, COOP_GRH);
	while (payload) {
		const auto piece = memory.take(payload);
		iov_[plan_.iov_count++] = {piece.data(), piece.size()};
		payload -= static_cast<std::uint32_t>(piece.size());
	}
	return true;
}

// Gathers bytes [from, from + length) of the packet in one piece.
const std::uint8_t *receiver::gather(std::size_t from, std::size_t length)
{
	std::uint8_t *out = linear_.data();
	for (std::size_t i = 0; i < plan_.iov_count && length; i++) {
		if (from >= iov_[i].iov_len) {
			from -= iov_[i].iov_len;
			continue;
		}
		const std::size_t n = std::min(iov_[i].iov_len - from, length);
		std::memcpy(out, static_cast<std::uint8_t *>(iov_[i].iov_base) + from, n);
		out += n;
		length -= n;
		from = 0;
	}
	return linear_.data();
}

// ---- delivery -----------------------------------------------------------------

void receiver::deliver(const flow &from, std::size_t length, std::size_t segment)
{
	if (!length || length > largest_packet)
		return;
	if (!segment || segment > length)
		segment = length;
	deliver_all(from, length, segment);
	judge_guess(segment >= bulk_payload);
}

void receiver::deliver_all(const flow &from, std::size_t length, std::size_t segment)
{
	std::size_t at = 0;
	std::uint32_t k = 0;
	if (plan_.qp && segment == plan_.stride) {
		while (k < plan_.segments && length - at >= segment) {
			const verdict v = deliver_in_place(from, k);
			if (v == verdict::elsewhere)
				break;
			at += segment;
			k++;
		}
	}
	if (at == length)
		return;

	const std::uint8_t *rest;
	if (plan_.qp) {
		rest = gather(at, length - at);
		core_.stats.rx_copied += length - at;
	} else {
		rest = tail_.data() + at;
	}
	for (; at < length; k++) {
		const std::size_t n = std::min(segment, length - at);
		deliver_copy(from, rest, n, k);
		rest += n;
		at += n;
	}
}

receiver::verdict receiver::deliver_in_place(const flow &from, std::uint32_t k)
{
	queue_pair &qp = *plan_.qp;
	// WRs have shifted if an earlier datagram of the batch was dropped or killed the queue
	// pair.
	if (qp.state != qp_state::ready || qp.head() != plan_.first + k)
		return verdict::elsewhere;

	const std::size_t head_length = head_bytes(plan_.imm);
	const std::uint8_t pad = pad_bytes(plan_.payload);
	const std::uint8_t *bytes = side_.data() + k * (head_length + pad + icrc_bytes);
	const std::uint8_t *behind = bytes + head_length;
	const auto head = decode_head(bytes, head_length, plan_.stride);
	if (!head || head->has_imm != plan_.imm || head->pad != pad || head->dest_qp != qp.number)
		return verdict::elsewhere;

	const posted_recv &wr = qp.wr(0);
	std::uint32_t crc =
		icrc_begin(from, plan_.stride, static_cast<std::uint16_t>(k), bytes, head_length);
	sge_cursor memory(wr.list, wr.n_sge, COOP_GRH);
	for (std::uint32_t left = plan_.payload; left;) {
		const auto piece = memory.take(left);
		crc = crc32(crc, piece.data(), piece.size());
		left -= static_cast<std::uint32_t>(piece.size());
	}
	if (pad)
		crc = crc32(crc, behind, pad);

	std::uint16_t id;
	if (!icrc_right(crc, get_icrc(behind + pad), plan_.stride, static_cast<std::uint16_t>(k),
			from, id))
		return verdict::dropped;
	if (!accept(*head))
		return verdict::dropped;
	learn(qp, *head, plan_.payload);
	complete(qp, from, *head, plan_.stride, plan_.payload, id);
	return verdict::delivered;
}

void receiver::deliver_copy(const flow &from, const std::uint8_t *data, std::size_t length,
			    std::uint32_t k)
{
	const auto head = decode_head(data, length, length);
	if (!head) {
		core_.stats.rx_malformed++;
		return;
	}
	const std::size_t head_length = head_bytes(head->has_imm);
	const std::size_t payload = length - head_length - head->pad - icrc_bytes;
	if (payload > core_.mtu) {
		core_.stats.rx_malformed++;
		return;
	}

	const auto assumed = static_cast<std::uint16_t>(k);
	const std::uint32_t crc = icrc_begin(from, length, assumed, data, length - icrc_bytes);
	std::uint16_t id;
	if (!icrc_right(crc, get_icrc(data + length - icrc_bytes), length, assumed, from, id))
		return;
	queue_pair *qp = accept(*head);
	if (!qp)
		return;
	learn(*qp, *head, payload);

	const posted_recv &wr = qp->wr(0);
	if (payload > wr.capacity) {
		core_.stats.rx_too_long++;
		core_.complete_recv(*qp, wr.wr_id, wc_status::length_error);
		qp->consume();
		core_.kill(*qp);
		return;
	}
	sge_cursor memory(wr.list, wr.n_sge, COOP_GRH);
	const std::uint8_t *source = data + head_length;
	for (std::size_t left = payload; left;) {
		const auto piece = memory.take(left);
		std::memcpy(piece.data(), source, piece.size());
		source += piece.size();
		left -= piece.size();
	}
	core_.stats.rx_copied += payload;
	complete(*qp, from, *head, length, payload, id);
}

bool receiver::icrc_right(std::uint32_t computed, std::uint32_t received, std::size_t length,
			  std::uint16_t assumed_id, const flow &from, std::uint16_t &id)
{
	id = assumed_id;
	if (computed == received)
		return true;
	if (!from.v6) {
		if (const auto difference = solver_.solve(computed ^ received, length)) {
			id = assumed_id ^ *difference;
			return true;
		}
	}
	core_.stats.rx_bad_icrc++;
	return false;
}

// The queue pair whose first WR takes the datagram, or null after counting the failure.
queue_pair *receiver::accept(const datagram_head &head)
{
	queue_pair *qp = core_.find(head.dest_qp);
	if (!qp || qp->state != qp_state::ready) {
		core_.stats.rx_no_qp++;
		return nullptr;
	}
	if (head.qkey != qp->attr.qkey) {
		core_.stats.rx_bad_qkey++;
		return nullptr;
	}
	if (!qp->posted()) {
		core_.stats.rx_no_wr++;
		return nullptr;
	}
	return qp;
}

void receiver::complete(queue_pair &qp, const flow &from, const datagram_head &head,
			std::size_t length, std::size_t payload, std::uint16_t id)
{
	const posted_recv &wr = qp.wr(0);
	write_grh(static_cast<std::uint8_t *>(wr.list[0].addr), from, length, id);

	completion &c = core_.complete_recv(qp, wr.wr_id, wc_status::success);
	c.has_imm = head.has_imm;
	c.has_gid = true;
	c.byte_len = static_cast<std::uint32_t>(COOP_GRH + payload);
	c.imm = head.imm;
	c.src_qp = head.src_qp;
	c.src_gid = from.src;
	c.src_lid = core_.port == roce_port ? 0 : from.src_port;
	core_.stats.rx_packets++;
	core_.stats.rx_bytes += payload;
	qp.consume();
}

void receiver::learn(queue_pair &qp, const datagram_head &head, std::size_t payload)
{
	if (payload < bulk_payload) {
		// Pads and tails come between bulk data; only many of them end the bulk score.
		if (qp.bulk_score)
			qp.bulk_score--;
		return;
	}
	if (!qp.bulk_score)
		posted(qp);
	qp.bulk_score = bulk_score_max;
	qp.expect_payload = static_cast<std::uint32_t>(payload);
	qp.expect_imm = head.has_imm;
	last_bulk_ = &qp;
}

} // namespace coop::ud
