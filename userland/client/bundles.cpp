// SPDX-License-Identifier: MIT
// bundles.cpp - see bundles.hpp.
#include "userland/client/bundles.hpp"

#include "coop/cluster_key.hpp"
#include "rpc/storage/bundle.h"
#include "userland/client/storage_codec.hpp"

namespace coop::client
{

namespace
{

using right = lease_book::right;

std::string_view text_of(const coop_st_bytes &b)
{
	return {reinterpret_cast<const char *>(b.p), b.len};
}

// A bundle is believed as a whole or not at all.
bool well_formed(std::string_view bytes)
{
	coop_bundle b;
	coop_st_body body;
	coop_st_bytes content;
	int what = coop_bundle_begin(&b, reinterpret_cast<const u8 *>(bytes.data()),
				     static_cast<u32>(bytes.size()));
	if (what)
		return false;
	do
		what = coop_bundle_next(&b, &body, &content);
	while (what > COOP_BUNDLE_END);
	return what == COOP_BUNDLE_END;
}

} // namespace

struct bundles::directory {
	handle fh;
	attributes attr;
	std::uint32_t flags = 0;
	std::vector<dir_entry> entries{};
	std::vector<held_content> at_nodes{};
};

void bundles::found(const handle &dir, const entry &e)
{
	if (!e.fh.empty() && S_ISDIR(e.attr.st.st_mode))
		policy_.placed(dir, e.fh);
}

bool bundles::listed(const handle &dir, const std::vector<dir_entry> &what)
{
	const bool shared = !what.empty() && what.front().node.attr.shared_dir;
	for (const dir_entry &e : what) {
		found(dir, e.node);
		if (shared && !e.node.fh.empty() && S_ISREG(e.node.attr.st.st_mode))
			policy_.listed(dir, e.node.fh);
	}
	return shared;
}

bool bundles::ask(storage &s, const caller &who, const handle &dir)
{
	const std::unique_lock one(asking_, std::try_to_lock);
	if (!one)
		return true;
	auto want = policy_.noticed(dir);
	if (!want)
		return true;
	asked_++;
	open_bundle b;
	std::string bytes;
	const auto asked = book_.now();
	const std::uint32_t flags = bit_if(want->subtree, COOP_ST_B_SUBTREE) |
				    bit_if(want->at_nodes, COOP_ST_B_AT_NODES);
	const int err = how_.read(
		want->dir,
		[&](open_bundle &o) { return s.bundle(who, want->dir, flags, want->part, o); }, b,
		bytes);
	if (b.open_id) {
		std::lock_guard lock(mutex_);
		open_.push_back({want->dir, b, std::chrono::steady_clock::now()});
	}
	const bool used = !err && sha256(bytes) == b.sha256 && learn(asked, who, b, bytes);
	used_ += used;
	want->at_nodes = b.at_nodes;
	policy_.came(*want, used, b.more);
	return used || !b.open_id;
}

void bundles::close_old(storage &s)
{
	const auto old = std::chrono::steady_clock::now() - stays_open;
	for (;;) {
		open_file f;
		{
			std::lock_guard lock(mutex_);
			if (open_.empty() || open_.front().since > old)
				return;
			f = std::move(open_.front());
			open_.pop_front();
		}
		how_.closed(f.what);
		s.close_reader(f.dir, f.what.open_id);
	}
}

void bundles::count(lease_figures &f) const
{
	f.bundles_asked = asked_;
	f.bundles = used_;
	f.bundled_files = files_;
}

void bundles::learn_entry(lease_book::ticket asked, const caller &who, const open_bundle &from,
			  directory &d, const coop_st_body &e, std::string_view content)
{
	const attributes a = attributes_of(e.attr);
	const handle fh(text_of(e.fh));
	d.entries.push_back({std::string(text_of(e.name)), e.cookie, {fh, a}});
	if (!a.leased)
		return;
	if (S_ISDIR(a.st.st_mode))
		policy_.placed(d.fh, fh);
	if (!book_.learned(asked, fh, a))
		return;
	if (e.text.len)
		book_.points_at(asked, fh, std::string(text_of(e.text)), true);
	if (!e.flags)
		return;
	if (e.flags & COOP_BUNDLE_READ) {
		how_.keep(from, a.fid, a.version, content);
	} else {
		held_content at{a.fid, a.version, e.attr.size, {e.nodes, e.nodes + e.n_nodes}};
		book_.opened_by(asked, fh, at.nodes, true);
		d.at_nodes.push_back(std::move(at));
	}
	book_.allowed(asked, fh, who, right::read, true);
	files_++;
}

bool bundles::learn_directory(lease_book::ticket asked, const caller &who, directory &d)
{
	if (d.fh.empty() || !book_.learned(asked, d.fh, d.attr))
		return false;
	policy_.had(d.fh);
	book_.listed(asked, d.fh, 0, d.entries, true, true);
	if (d.flags & COOP_BUNDLE_SEARCH)
		book_.allowed(asked, d.fh, who, right::search, true);
	if (d.flags & COOP_BUNDLE_LIST)
		book_.allowed(asked, d.fh, who, right::list, true);
	if (!d.at_nodes.empty())
		how_.at_nodes(std::move(d.at_nodes));
	return true;
}

bool bundles::learn(lease_book::ticket asked, const caller &who, const open_bundle &from,
		    std::string_view bytes)
{
	coop_bundle b;
	coop_st_body body;
	coop_st_bytes content;
	directory d{};
	bool any = false;
	if (!well_formed(bytes) || coop_bundle_begin(&b, reinterpret_cast<const u8 *>(bytes.data()),
						     static_cast<u32>(bytes.size())))
		return false;
	for (int what; (what = coop_bundle_next(&b, &body, &content)) > COOP_BUNDLE_END;) {
		if (what == COOP_BUNDLE_ENTRY) {
			learn_entry(asked, who, from, d, body, text_of(content));
			continue;
		}
		any |= learn_directory(asked, who, d);
		d = {handle(text_of(body.fh)), attributes_of(body.attr), body.flags};
	}
	any |= learn_directory(asked, who, d);
	return any;
}

} // namespace coop::client
