// SPDX-License-Identifier: MIT
// storage_opens.cpp - see storage_opens.hpp.
#include "userland/client/storage_opens.hpp"

#include <cerrno>
#include <fcntl.h>

#include "rpc/storage/bundle.h"
#include "userland/client/storage_codec.hpp"

namespace coop::client
{

int storage_opens::open(const caller &c, const handle &fh, int flags, std::uint32_t want,
			open_result &out, storage::late_reply late)
{
	coop_st_body ask = request_on(c, fh), got{};
	std::string text;
	ask.flags = open_flags(flags & ~O_EXCL);
	if (!link_.knows_named())
		ask.flags &= ~COOP_ST_O_NAMED;
	ask.open_id = new_id();
	ask.count = want;
	const int err = link_.ask(
		COOP_ST_OPEN, ask, got, text, &out.inline_data, {},
		[this, fh, id = ask.open_id, late = std::move(late)](storage_link::outcome &o) {
			if (!o.err)
				forget(fh, id);
			if (late)
				late(o.err, o.err ? write_result{} : change_of(*o.body));
		});
	if (err)
		return err;
	// An older daemon does not look for a name.
	if (flags & storage::open_named && !got.attr.nlink) {
		forget(fh, ask.open_id);
		return -ESTALE;
	}
	opened(c, fh, ask, got, out);
	return 0;
}

int storage_opens::make(std::uint16_t op, const caller &c, coop_st_body ask, int flags,
			const new_mode &mode, entry &node, open_result &out, attributes *dir_after)
{
	coop_st_body got{};
	ask.flags = open_flags(flags);
	ask.mode = coop_st_mode(mode.mode, mode.umask);
	ask.open_id = new_id();
	const int err =
		link_.ask(op, ask, got, node.fh, &out.inline_data, {},
			  [this, id = ask.open_id](storage_link::outcome &o) {
				  if (o.err)
					  return;
				  const coop_st_bytes &fh = o.body->fh;
				  forget({reinterpret_cast<const char *>(fh.p), fh.len}, id);
			  });
	if (!err) {
		node.attr = attributes_of(got.attr);
		if (dir_after)
			*dir_after = attributes_of(got.dir);
		opened(c, node.fh, ask, got, out);
	}
	return err;
}

void storage_opens::opened(const caller &c, const handle &fh, const coop_st_body &ask,
			   const coop_st_body &got, open_result &out)
{
	out.attr = attributes_of(got.attr);
	out.open_id = ask.open_id;
	out.verifier = got.verifier;
	out.openers.assign(got.nodes, got.nodes + got.n_nodes);
	link_.opened(ask.open_id, {fh, c, ask.flags & ~COOP_ST_O_NAMED});
}

void storage_opens::open_as(std::uint64_t open_id, const caller &who, const handle &fh, int flags,
			    std::function<void(int err)> done)
{
	coop_st_body ask = request_on(who, fh);
	ask.flags = open_flags(flags);
	ask.open_id = open_id;
	auto c = link_.make(COOP_ST_OPEN, ask);
	c->urgent = true; // other clients wait for it
	c->done = [this, fh, who, open_id, flags = ask.flags,
		   done = std::move(done)](storage_link::outcome &o) {
		if (o.err == -EEXIST) // ids are never reused: an earlier request opened it
			o.err = 0;
		if (!o.err)
			link_.opened(open_id, {fh, who, flags});
		done(o.err);
	};
	link_.submit(std::move(c));
}

int storage_opens::bundle(const caller &c, const handle &dir, std::uint32_t flags,
			  std::uint32_t part, open_bundle &out)
{
	coop_st_body ask = request_on(c, dir), got{};
	std::string text;
	if (!link_.bundles())
		return -EOPNOTSUPP;
	ask.flags = at_nodes_ ? flags : flags & ~static_cast<u32>(COOP_ST_B_AT_NODES);
	ask.count = part;
	ask.open_id = new_id();
	const auto late = [this, dir, id = ask.open_id](storage_link::outcome &o) {
		if (!o.err)
			forget(dir, id);
	};
	int err = link_.ask(COOP_ST_BUNDLE, ask, got, text, nullptr, {}, late);
	if (err == -EINVAL && ask.flags & COOP_ST_B_AT_NODES) { // an older daemon
		at_nodes_ = false;
		ask.flags &= ~static_cast<u32>(COOP_ST_B_AT_NODES);
		err = link_.ask(COOP_ST_BUNDLE, ask, got, text, nullptr, {}, late);
	}
	if (err)
		return err;
	out = bundle_of(ask.open_id, got);
	return out.version && out.size <= COOP_BUNDLE_BYTES ? 0 : -EPROTO;
}

void storage_opens::close_reader(const handle &fh, std::uint64_t open_id)
{
	// It gives up the locks that were taken through the open file, for which others may wait.
	const bool locks = link_.locks().holds(open_id);
	link_.closed(open_id);
	forget(fh, open_id, locks);
}

// A CLOSE that no caller waits for. at_once: another client may.
void storage_opens::forget(const handle &fh, std::uint64_t open_id, bool at_once)
{
	if (auto c = link_.make(COOP_ST_CLOSE, request_on(fh, open_id))) {
		c->done = [](storage_link::outcome &) {};
		c->anywhere = true;
		if (at_once)
			link_.submit(std::move(c));
		else
			link_.submit_later(std::move(c));
	}
}

} // namespace coop::client
