// SPDX-License-Identifier: MIT
// lease_book.cpp - see lease_book.hpp.
#include "userland/client/lease_book.hpp"

#include <algorithm>
#include <utility>

namespace coop::client
{

namespace
{

constexpr std::size_t rights_max = 32;     // of one file
constexpr std::size_t recalled_max = 4096; // files
constexpr std::size_t name_bytes = 64;     // what an entry takes besides its name, at least

bool same(const caller &a, const caller &b)
{
	return a.uid == b.uid && a.gid == b.gid && a.groups == b.groups;
}

} // namespace

lease_book::ticket lease_book::now()
{
	std::lock_guard lock(mutex_);
	return ++clock_;
}

lease_book::file &lease_book::file_locked(const handle &fh)
{
	const auto [it, fresh] = files_.try_emplace(fh);
	file &f = it->second;
	if (fresh) {
		f.place = order_.insert(order_.end(), fh);
		f.broken = floor_;
	}
	return f;
}

lease_book::file *lease_book::known_locked(const handle &fh)
{
	const auto it = files_.find(fh);
	if (it == files_.end() || !it->second.leased)
		return nullptr;
	order_.splice(order_.end(), order_, it->second.place);
	return &it->second;
}

// The file, if a reply's statements about it may be kept.
lease_book::file *lease_book::believing_locked(ticket asked, const handle &fh, bool within)
{
	file *f = known_locked(fh);
	return f && !f->changing && asked >= f->broken && (within || asked >= f->since) ? f
											: nullptr;
}

void lease_book::forget_listing_locked(file &f)
{
	f.listing = {};
	f.before = {};
}

// The directory's names have changed: a new reader must not start with this listing.
void lease_book::retire_listing_locked(file &f)
{
	if (f.listing.complete)
		f.before = std::move(f.listing);
	f.listing = {};
}

void lease_book::forget_locked(file &f)
{
	forget_listing_locked(f);
	f.attr_known = f.complete = false;
	f.rights.clear();
	f.names.clear();
	f.openers.clear();
	f.target.clear();
}

// The file's lease has ended.
void lease_book::break_locked(file &f)
{
	forget_locked(f);
	f.broken = ++clock_;
	if (f.leased)
		by_fid_.erase(f.fid);
	f.leased = false;
}

// A reply under way may still report the lease that we return.
void lease_book::evict_locked(const coop_fid &fid)
{
	evicted_.push_back(fid);
	returning_[fid]++;
	recalled_[fid] = ++clock_;
}

void lease_book::trim_locked()
{
	std::size_t looks = order_.size();
	while (files_.size() > files_max && looks--) {
		const auto it = files_.find(order_.front());
		file &f = it->second;
		if (f.changing || f.kept || f.unsure) {
			order_.splice(order_.end(), order_, f.place);
			continue;
		}
		if (f.leased) {
			by_fid_.erase(f.fid);
			evict_locked(f.fid);
		} else {
			// A bundle may be asked for before this and read after.
			floor_ = std::max(floor_, f.broken);
		}
		order_.erase(f.place);
		files_.erase(it);
	}
	if (recalled_.size() > recalled_max) {
		recalled_.clear();
		floor_ = ++clock_;
	}
}

bool lease_book::learned(ticket asked, const handle &fh, const attributes &attr)
{
	std::lock_guard lock(mutex_);
	if (!attr.leased) {
		if (file *f = known_locked(fh))
			break_locked(*f);
		return false;
	}
	const auto r = recalled_.find(attr.fid);
	if (!believing_ || asked < floor_ || returning_.contains(attr.fid) ||
	    (r != recalled_.end() && asked < r->second))
		return false;
	file &f = file_locked(fh);
	if (f.changing || f.unsure || asked < f.broken)
		return false;
	if (!f.leased)
		f.since = ++clock_;
	f.leased = true;
	f.fid = attr.fid;
	by_fid_[attr.fid] = fh;
	f.attr = attr;
	f.attr_known = true;
	order_.splice(order_.end(), order_, f.place);
	trim_locked();
	return true;
}

void lease_book::allowed(ticket asked, const handle &fh, const caller &who, right what, bool within)
{
	std::lock_guard lock(mutex_);
	file *f = believing_locked(asked, fh, within);
	if (!f || may_locked(*f, who, what))
		return;
	if (f->rights.size() >= rights_max)
		f->rights.erase(f->rights.begin());
	f->rights.emplace_back(who, what);
}

bool lease_book::named(ticket asked, const handle &dir, std::string_view name, const handle &node)
{
	std::lock_guard lock(mutex_);
	file *f = believing_locked(asked, dir);
	if (!f)
		return false;
	if (f->names.size() >= names_max) {
		f->names.clear();
		f->complete = false;
	}
	f->names.insert_or_assign(std::string(name), node);
	return true;
}

void lease_book::absent(ticket asked, const handle &dir, std::string_view name)
{
	named(asked, dir, name, {});
}

bool lease_book::listed(ticket asked, const handle &dir, std::uint64_t cookie,
			const std::vector<dir_entry> &entries, bool end, bool within)
{
	std::lock_guard lock(mutex_);
	file *f = believing_locked(asked, dir, within);
	if (!f)
		return false;
	if (f->listing.complete)
		return true;
	if (!cookie)
		forget_listing_locked(*f);
	// Accept only entries that continue the listing.
	auto &items = f->listing.items;
	if (cookie != (items.empty() ? 0 : items.back().cookie) ||
	    items.size() + entries.size() > names_max) {
		forget_listing_locked(*f);
		return true;
	}
	for (const dir_entry &e : entries)
		items.push_back({e.name, e.node.fh, e.cookie, e.node.attr.st.st_ino,
				 e.node.attr.st.st_mode & S_IFMT});
	if (!end)
		return true;
	f->listing.complete = true;
	f->complete = f->names.size() + items.size() <= names_max;
	for (std::size_t i = 0; i < items.size(); i++) {
		const item &e = items[i];
		f->listing.after[e.cookie] = i + 1;
		if (e.fh.empty())
			f->complete = false; // no lookup permitted: its handle is unknown
		else if (f->complete)
			f->names.insert_or_assign(e.name, e.fh);
	}
	return true;
}

void lease_book::points_at(ticket asked, const handle &link, const std::string &target, bool within)
{
	std::lock_guard lock(mutex_);
	if (file *f = believing_locked(asked, link, within))
		f->target = target;
}

void lease_book::opened_by(ticket asked, const handle &fh,
			   const std::vector<std::uint32_t> &openers, bool within)
{
	std::lock_guard lock(mutex_);
	if (file *f = believing_locked(asked, fh, within))
		f->openers = openers;
}

bool lease_book::attributes_of(const handle &fh, attributes &out)
{
	std::lock_guard lock(mutex_);
	const file *f = known_locked(fh);
	if (!f || !f->attr_known || f->changing)
		return false;
	out = f->attr;
	return true;
}

bool lease_book::may_locked(const file &f, const caller &who, right what)
{
	return std::any_of(f.rights.begin(), f.rights.end(),
			   [&](const auto &r) { return r.second == what && same(r.first, who); });
}

bool lease_book::may(const handle &fh, const caller &who, right what)
{
	std::lock_guard lock(mutex_);
	const file *f = known_locked(fh);
	return f && !f->changing && may_locked(*f, who, what);
}

lease_book::found lease_book::lookup(const handle &dir, std::string_view name, const caller &who,
				     entry &out)
{
	std::lock_guard lock(mutex_);
	const file *d = known_locked(dir);
	if (!d || d->changing || !may_locked(*d, who, right::search))
		return found::unknown;
	const auto it = d->names.find(std::string(name));
	if (it == d->names.end())
		return d->complete ? found::absent : found::unknown;
	if (it->second.empty())
		return found::absent;
	const file *f = known_locked(it->second);
	if (!f || !f->attr_known || f->changing)
		return found::unknown;
	out = {it->second, f->attr, true};
	return found::here;
}

bool lease_book::list(const handle &dir, const caller &who, std::uint64_t cookie,
		      std::size_t max_bytes, std::vector<dir_entry> &out, bool &end)
{
	std::lock_guard lock(mutex_);
	const file *d = known_locked(dir);
	if (!d || d->changing || !may_locked(*d, who, right::list))
		return false;
	out.clear();
	end = false;
	if (!max_bytes)
		return true;
	const auto &listing = d->listing.complete || !cookie ? d->listing : d->before;
	if (!listing.complete)
		return false;
	std::size_t at = 0;
	if (cookie) {
		const auto it = listing.after.find(cookie);
		if (it == listing.after.end())
			return false;
		at = it->second;
	}
	const bool search = may_locked(*d, who, right::search);
	for (std::size_t used = 0; at < listing.items.size(); at++) {
		const item &i = listing.items[at];
		const auto now = d->names.find(i.name);
		if (now != d->names.end() && now->second.empty())
			continue; // removed by us
		used += name_bytes + i.name.size();
		if (used > max_bytes && !out.empty())
			return true;
		dir_entry e{i.name, i.cookie, {}};
		const auto f = search ? files_.find(i.fh) : files_.end();
		if (f != files_.end() && f->second.leased && f->second.attr_known &&
		    !f->second.changing) {
			e.node = {i.fh, f->second.attr, true};
		} else {
			e.node.attr.st.st_ino = i.ino;
			e.node.attr.st.st_mode = i.type;
		}
		out.push_back(std::move(e));
	}
	end = true;
	return true;
}

bool lease_book::target_of(const handle &link, std::string &out)
{
	std::lock_guard lock(mutex_);
	const file *f = known_locked(link);
	if (!f || f->target.empty())
		return false;
	out = f->target;
	return true;
}

std::optional<handle> lease_book::named_so(const handle &dir, std::string_view name)
{
	std::lock_guard lock(mutex_);
	const file *d = known_locked(dir);
	if (!d)
		return std::nullopt;
	const auto it = d->names.find(std::string(name));
	if (it != d->names.end())
		return it->second;
	return d->complete ? std::optional<handle>(handle{}) : std::nullopt;
}

std::vector<std::uint32_t> lease_book::openers_of(const handle &fh)
{
	std::lock_guard lock(mutex_);
	const file *f = known_locked(fh);
	return f ? f->openers : std::vector<std::uint32_t>{};
}

void lease_book::begin_change(const handle &fh, bool names)
{
	std::lock_guard lock(mutex_);
	file &f = file_locked(fh);
	f.changing++;
	f.attr_known = false;
	if (!names)
		forget_locked(f);
	else
		retire_listing_locked(f);
}

void lease_book::end_change(const handle &fh, bool)
{
	std::lock_guard lock(mutex_);
	file &f = file_locked(fh);
	f.changing--;
	f.broken = ++clock_;
	trim_locked();
}

void lease_book::end_change(const handle &fh, ticket begun, const attributes &after)
{
	std::lock_guard lock(mutex_);
	file &f = file_locked(fh);
	f.changing--;
	// True if only this change has happened since.
	const bool last = !f.changing && begun >= f.broken && f.leased && after.leased && !f.unsure;
	f.broken = ++clock_;
	if (last) {
		f.attr = after;
		f.attr_known = true;
	}
	trim_locked();
}

void lease_book::unsure(const handle &fh)
{
	std::lock_guard lock(mutex_);
	file &f = file_locked(fh);
	f.unsure = true;
	if (f.leased)
		evict_locked(f.fid);
	break_locked(f);
}

bool lease_book::renamed(const handle &dir, std::string_view name, const handle &node)
{
	std::lock_guard lock(mutex_);
	file *f = known_locked(dir);
	if (!f)
		return false;
	retire_listing_locked(*f);
	if (f->names.size() >= names_max) {
		f->names.clear();
		f->complete = false;
	}
	f->names.insert_or_assign(std::string(name), node);
	return true;
}

void lease_book::names_unknown(const handle &dir)
{
	std::lock_guard lock(mutex_);
	if (file *f = known_locked(dir)) {
		retire_listing_locked(*f);
		f->names.clear();
		f->complete = false;
	}
}

void lease_book::empty(ticket asked, const handle &dir)
{
	std::lock_guard lock(mutex_);
	// The request that created it also brought the lease.
	file *f = known_locked(dir);
	if (f && !f->changing && asked >= f->broken) {
		forget_listing_locked(*f);
		f->names.clear();
		f->complete = f->listing.complete = true;
	}
}

std::optional<handle> lease_book::recalled(const coop_fid &fid)
{
	std::lock_guard lock(mutex_);
	recalled_[fid] = ++clock_;
	returning_[fid]++;
	const auto it = by_fid_.find(fid);
	std::optional<handle> fh;
	if (it != by_fid_.end()) {
		fh = it->second;
		break_locked(files_.find(*fh)->second);
	}
	trim_locked();
	return fh;
}

bool lease_book::changes(const handle &fh)
{
	std::lock_guard lock(mutex_);
	const auto it = files_.find(fh);
	return it != files_.end() && it->second.changing;
}

void lease_book::returned(const coop_fid &fid)
{
	std::lock_guard lock(mutex_);
	const auto it = returning_.find(fid);
	if (it != returning_.end() && !--it->second)
		returning_.erase(it);
	recalled_[fid] = ++clock_;
	trim_locked();
}

void lease_book::lost()
{
	std::lock_guard lock(mutex_);
	believing_ = false;
	for (auto &[fh, f] : files_)
		break_locked(f);
	evicted_.clear();
	recalled_.clear();
	floor_ = ++clock_;
}

void lease_book::resume()
{
	std::lock_guard lock(mutex_);
	believing_ = true;
	floor_ = ++clock_;
}

std::vector<coop_fid> lease_book::evicted()
{
	std::lock_guard lock(mutex_);
	return std::exchange(evicted_, {});
}

void lease_book::keep(const handle &fh, int more)
{
	std::lock_guard lock(mutex_);
	file_locked(fh).kept += static_cast<unsigned>(more);
	trim_locked();
}

std::size_t lease_book::held() const
{
	std::lock_guard lock(mutex_);
	return by_fid_.size();
}

} // namespace coop::client
