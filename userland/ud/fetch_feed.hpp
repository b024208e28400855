// SPDX-License-Identifier: MIT
// fetch_feed.hpp - queue pairs that rpc/fetch receives by: what it asks of one, and what that
// tells it. For hosts of the engine that have an endpoint.
#pragma once

#include <algorithm>
#include <span>

#include "endpoint.hpp"

namespace coop::ud
{

/// Posts all of a fetch's receive WRs. The engine counts on all of them: if there is no room,
/// the queue pair goes to ERR and what was not posted counts as flushed at once.
inline void post_fetch(endpoint &ep, std::uint32_t qp, std::span<const recv_wr> wrs,
		       coop_engine *engine, std::uint32_t slot, std::uint64_t now)
{
	while (!wrs.empty()) {
		const int n = ep.post_recv(qp, wrs);
		if (n <= 0)
			break;
		wrs = wrs.subspan(static_cast<std::size_t>(n));
	}
	if (wrs.empty())
		return;
	(void)ep.modify_qp(qp, qp_state::error);
	coop_engine_rx_flush(engine, slot, static_cast<std::uint32_t>(wrs.size()), now);
}

/// Ready for the next fetch: every WR has completed.
inline void renew_fetch(endpoint &ep, std::uint32_t qp, coop_engine *engine, std::uint32_t slot)
{
	(void)ep.modify_qp(qp, qp_state::ready);
	coop_engine_set_fetch_qp(engine, slot, ep.qpn(qp), ep.qkey(qp));
}

/// A completion of the queue pair of this slot.
inline void feed_fetch(coop_engine *engine, std::uint32_t slot, const completion &c,
		       std::uint64_t now)
{
	if (!c.is_recv)
		return;
	if (c.status != wc_status::success) {
		coop_engine_rx_flush(engine, slot, 1, now);
		return;
	}
	coop_rx rx{};
	rx.slot = slot;
	rx.wr = static_cast<std::uint32_t>(c.wr_id);
	rx.imm = c.imm;
	rx.byte_len = c.byte_len;
	rx.src_qp = c.src_qp;
	rx.has_imm = c.has_imm;
	rx.has_gid = c.has_gid;
	std::copy(c.src_gid.begin(), c.src_gid.end(), rx.src_gid);
	coop_engine_rx_data(engine, &rx, now);
}

} // namespace coop::ud
