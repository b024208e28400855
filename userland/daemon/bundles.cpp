// SPDX-License-Identifier: MIT
// bundles.cpp - the bundles that exist, and their leases. bundling.cpp makes them.
#include "userland/daemon/bundles.hpp"

#include <algorithm>

#include "userland/daemon/session.hpp"

namespace coop::daemon
{

bundle::bundle(lease_table &leases) :
	holder(std::make_shared<session>("a bundle", nullptr, true)),
	leases_(leases)
{
}

std::shared_ptr<bundle> bundle::create(lease_table &leases)
{
	auto b = std::make_shared<bundle>(leases);
	b->holder->renew(
		[weak = std::weak_ptr(b)](std::uint16_t op, const coop_st_body &) {
			if (op != COOP_ST_LEASE_RECALL)
				return false;
			if (const auto self = weak.lock())
				self->on_recall();
			return true;
		},
		[] {}, false);
	return b;
}

bundle::~bundle()
{
	holder->over = true; // it takes no more leases
	leases_.give_back_all(holder.get());
}

// Changes wait for the answer: give all leases back at once.
void bundle::on_recall()
{
	voided_ = true;
	leases_.give_back_all(holder.get());
}

std::string bundle_key(const coop_st_body &r)
{
	std::string key(reinterpret_cast<const char *>(r.fh.p), r.fh.len);
	const auto add = [&key](std::uint32_t n) {
		key.append(reinterpret_cast<const char *>(&n), sizeof(n));
	};
	for (const std::uint32_t n : {r.fh.len, r.flags, r.count, r.cred.uid, r.cred.gid})
		add(n);
	for (std::uint32_t i = 0; i < r.cred.n_groups; i++)
		add(r.cred.groups[i]);
	return key;
}

void bundle_table::bar_locked(slot &s, clock::time_point now)
{
	s.pause = std::clamp<clock::duration>(2 * s.pause, bundle_pause, bundle_pause_max);
	s.barred = now + s.pause;
}

void bundle_table::drop_locked(slot &s, std::vector<std::shared_ptr<bundle>> &gone)
{
	if (!s.made)
		return;
	bytes_ -= s.made->size;
	uses_.erase(s.use);
	gone.push_back(std::move(s.made));
	s.made = nullptr;
}

bool bundle_table::begin(const std::string &key, bool &makes, std::function<void()> go,
			 clock::time_point now)
{
	std::vector<std::shared_ptr<bundle>> gone; // destroyed after the lock is released
	std::lock_guard lock(mutex_);
	slot &s = slots_[key];
	makes = false;
	if (s.making) {
		s.waiting.push_back(std::move(go));
		return false;
	}
	if (s.made && s.made->stands())
		return true;
	if (s.made) {
		count.voided.fetch_add(1, std::memory_order_relaxed);
		if (now - s.since > bundle_pause_max)
			s.pause = {};
		drop_locked(s, gone);
		bar_locked(s, now);
		s.barred = std::min(s.barred, s.since + s.pause); // it may have served long
	}
	makes = s.making = now >= s.barred && making_ < bundles_made_at_once;
	making_ += makes;
	return true;
}

bundle_table::few bundle_table::for_few(const std::string &key, clock::time_point now)
{
	std::lock_guard lock(mutex_);
	slot &s = slots_[key];
	if (s.made && s.made->stands() && s.made->left <= s.made->contents)
		return few::yes;
	clock::time_point &oldest = s.asked[s.oldest];
	if (oldest != clock::time_point{} && now - oldest < bundle_few_within)
		return s.making ? few::later : few::no;
	oldest = now;
	s.oldest = (s.oldest + 1) % s.asked.size();
	return few::yes;
}

std::vector<std::uint32_t> bundle_table::nodes_of(const std::string &key) const
{
	std::lock_guard lock(mutex_);
	const auto it = slots_.find(key);
	const bundle *const b = it == slots_.end() ? nullptr : it->second.made.get();
	return b && b->stands() && b->left > b->contents ? b->nodes : std::vector<std::uint32_t>{};
}

void bundle_table::made(const std::string &key, std::shared_ptr<bundle> b, clock::time_point now)
{
	std::vector<std::shared_ptr<bundle>> gone;
	std::vector<std::function<void()>> go;
	{
		std::lock_guard lock(mutex_);
		slot &s = slots_[key];
		s.making = false;
		making_--;
		go = std::move(s.waiting);
		s.waiting.clear();
		s.since = now;
		if (b) {
			count.made.fetch_add(1, std::memory_order_relaxed);
			s.rest = b->rest;
			s.made = std::move(b);
			s.use = uses_.insert(uses_.end(), key);
			bytes_ += s.made->size;
		} else {
			bar_locked(s, now);
		}
		trim_locked(gone, now);
	}
	for (const auto &each : go)
		each();
}

void bundle_table::trim_locked(std::vector<std::shared_ptr<bundle>> &gone, clock::time_point now)
{
	while ((bytes_ > bytes_max_ || uses_.size() > bundles_max) && uses_.size() > 1)
		drop_locked(slots_.at(uses_.front()), gone);
	if (slots_.size() <= bundle_slots_max)
		return;
	std::erase_if(slots_, [now](const auto &each) {
		const slot &s = each.second;
		const auto latest = *std::max_element(s.asked.begin(), s.asked.end());
		return !s.made && !s.making && s.barred <= now &&
		       (latest == clock::time_point{} || now - latest >= bundle_few_within);
	});
	while (slots_.size() > bundle_slots_max && !uses_.empty()) {
		const auto it = slots_.find(uses_.front());
		drop_locked(it->second, gone);
		if (!it->second.making)
			slots_.erase(it);
	}
}

std::shared_ptr<bundle> bundle_table::find(const std::string &key)
{
	std::lock_guard lock(mutex_);
	const auto it = slots_.find(key);
	if (it == slots_.end() || !it->second.made || !it->second.made->stands())
		return nullptr;
	uses_.splice(uses_.end(), uses_, it->second.use);
	return it->second.made;
}

std::vector<std::string> bundle_table::rest_of(const std::string &key) const
{
	std::lock_guard lock(mutex_);
	const auto it = slots_.find(key);
	return it == slots_.end() ? std::vector<std::string>{} : it->second.rest;
}

std::size_t bundle_table::bytes() const
{
	std::lock_guard lock(mutex_);
	return bytes_;
}

} // namespace coop::daemon
