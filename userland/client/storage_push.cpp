// SPDX-License-Identifier: MIT
// storage_push.cpp - messages that the daemon sends unasked: members, granted locks, recalled
// leases, roles. Handled on the connection's thread, which receives nothing more until the listener
// has returned.
#include "userland/client/storage_link.hpp"

namespace coop::client
{

void storage_link::take_push(const coop_st_header &h, const std::uint8_t *raw)
{
	coop_st_body b;
	if (!coop_st_op_is_push(h.op) ||
	    coop_st_body_get(&b, coop_st_reply_fields(h.op), raw, h.body_len))
		return; // from a newer daemon
	if (h.op == COOP_ST_LOCK_GRANTED)
		return lock_granted(b.cookie);
	if (h.op == COOP_ST_LEASE_RECALL) {
		if (options_.on_recall)
			options_.on_recall(b.fid);
		return;
	}
	if (h.op == COOP_ST_ROLES) {
		const file_roles r{b.fid, b.version, b.roles};
		if (holding_)
			held_roles_.push_back(r);
		else if (options_.on_roles)
			options_.on_roles(r);
		return;
	}
	const node_event e{(b.flags & 1) != 0, b.node_id, b.addr};
	if (holding_)
		held_.push_back(e);
	else
		tell(e);
}

void storage_link::lock_granted(std::uint64_t cookie)
{
	if (const std::optional<lock_book::wait> w = locks_.grant(cookie))
		w->done(0);
}

void storage_link::tell(const node_event &e)
{
	if (e.joined)
		nodes_.insert(e.node);
	else
		nodes_.erase(e.node);
	if (options_.on_node)
		options_.on_node(e);
}

} // namespace coop::client
