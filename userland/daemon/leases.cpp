// SPDX-License-Identifier: MIT
// leases.cpp - see leases.hpp. Recalls are sent, and changes begin, without the table's lock.
#include "userland/daemon/leases.hpp"

#include <algorithm>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "userland/daemon/session.hpp"

namespace coop::daemon
{

namespace
{

bool later(const coop_st_time &a, const coop_st_time &b)
{
	return a.sec != b.sec ? a.sec > b.sec : a.nsec > b.nsec;
}

std::uint64_t in_ns(const coop_st_time &t)
{
	return static_cast<std::uint64_t>(t.sec) * 1'000'000'000 + t.nsec;
}

// Each name is expected once.
bool take_out(std::deque<std::string> &from, std::string_view name)
{
	const auto it = std::find(from.begin(), from.end(), name);
	if (it == from.end())
		return false;
	from.erase(it);
	return true;
}

} // namespace

lease_table::lease_table(inode_table &inodes) :
	inodes_(inodes),
	watch_([this](int watch, const file_watch::names &names) { on_event(watch, names); },
	       [this](int guard) { on_writer(guard); })
{
}

void lease_table::run(todo &&t)
{
	for (const told &r : t.recalls) {
		coop_st_body b{};
		b.fid = r.fid;
		r.who->push(COOP_ST_LEASE_RECALL, b);
	}
	if (!t.recalls.empty())
		await_answers(t.recalls);
	for (const auto &go : t.go)
		go();
}

// After the recalls have been pushed: input that comes later is answered behind them.
void lease_table::await_answers(const std::vector<told> &recalls)
{
	constexpr clock::time_point never{};
	locked([&](todo &out) {
		const auto now = clock::now();
		for (const told &r : recalls) {
			if (r.when == never)
				continue;
			const recall waits{r.file, r.who.get(), r.when};
			const auto since = r.who->of_bundle ? r.when : r.who->heard();
			const auto end = since + lease_answer_time;
			if (now < end)
				recalls_.emplace(end, waits);
			else if (lapse_locked(waits, out))
				count.unanswered.fetch_add(1, std::memory_order_relaxed);
		}
	});
}

// True: the lease stood, and has ended.
bool lease_table::lapse_locked(const recall &r, todo &out)
{
	const auto it = files_.find(r.file);
	if (it == files_.end())
		return false;
	const auto &holders = it->second.holders;
	const bool stands = std::any_of(holders.begin(), holders.end(), [&](const holder &h) {
		return h.who.get() == r.who && h.recalled == r.when;
	});
	if (stands)
		remove_locked(it, r.who, out);
	return stands;
}

bool lease_table::others_hold(const file &f, const session *by)
{
	return std::any_of(f.holders.begin(), f.holders.end(),
			   [by](const holder &h) { return h.who.get() != by; });
}

std::vector<lease_table::holder>::iterator lease_table::holder_of(file &f, const session *who)
{
	return std::find_if(f.holders.begin(), f.holders.end(),
			    [who](const holder &h) { return h.who.get() == who; });
}

void lease_table::tidy_locked(files::iterator it)
{
	file &f = it->second;
	if (!f.holders.empty())
		return;
	if (f.watch >= 0) {
		watched_.erase(f.watch);
		watch_.remove(f.watch);
		f.watch = -1;
	}
	if (f.guard >= 0) {
		guarded_.erase(f.guard);
		file_watch::unguard(f.guard);
		f.guard = -1;
	}
	f.breaking = false;
	if (!f.changing && f.waiting.empty())
		files_.erase(it);
}

void lease_table::remove_locked(files::iterator it, const session *who, todo &out)
{
	file &f = it->second;
	const auto h = holder_of(f, who);
	if (h == f.holders.end())
		return;
	const coop_fid fid = h->fid;
	out.unused.push_back(std::move(h->who));
	f.holders.erase(h);
	total_--;
	const auto mine = held_.find(who);
	mine->second.erase(fid);
	if (mine->second.empty())
		held_.erase(mine);
	std::erase_if(f.waiting, [&](const std::shared_ptr<change> &c) {
		if (others_hold(f, c->by))
			return false;
		if (!--c->waits_for) {
			for (const coop_fid &id : c->files)
				files_.find(id)->second.held_up--;
			out.go.push_back(std::move(c->go));
		}
		return true;
	});
	tidy_locked(it);
}

lease_table::number lease_table::grant(const std::shared_ptr<session> &who, const inode_ref &node)
{
	if (!node->in.clock().ours) {
		file_look fresh; // inotify_add_watch(2) asks for attributes that are old
		(void)coop::daemon::look(node->path.get(), fresh);
		distant_ = true;
	}
	std::lock_guard lock(mutex_);
	const auto it = files_.try_emplace(node->file).first;
	file &f = it->second;
	const auto had = std::find_if(f.holders.begin(), f.holders.end(),
				      [&](const holder &h) { return h.who == who; });
	if (had != f.holders.end())
		return !f.changing && had->recalled == clock::time_point{} ? had->lease : 0;
	const auto mine = held_.find(who.get());
	if (f.changing || f.breaking || who->over ||
	    (mine != held_.end() && mine->second.size() >= leases_max)) {
		tidy_locked(it);
		return 0;
	}
	if (f.watch < 0) {
		f.watch = watch_.add(node->path.get(), node->type == S_IFDIR);
		if (f.watch < 0) { // without a watch, changes on this machine would go unseen
			tidy_locked(it);
			return 0;
		}
		watched_[f.watch] = node->file;
	}
	f.in = &node->in;
	f.handle = node->handle;
	f.times = node->in.clock();
	f.holders.push_back({who, ++last_});
	f.holders.back().since = f.times.now();
	f.holders.back().fid = node->fid;
	held_[who.get()].emplace(node->fid, node->file);
	total_++;
	count.granted.fetch_add(1, std::memory_order_relaxed);
	return last_;
}

bool lease_table::guard(const inode_ref &node)
{
	// A guard takes a descriptor besides those of its inode.
	const auto may_be = [&] {
		const auto it = files_.find(node->file);
		return it != files_.end() && !it->second.holders.empty() && !it->second.breaking &&
		       (it->second.guard >= 0 || guarded_.size() < guards_max());
	};
	{
		std::lock_guard lock(mutex_);
		if (!may_be())
			return false;
		if (files_.find(node->file)->second.guard >= 0)
			return true;
	}
	unique_fd made(watch_.guard(node->path.get()));
	if (!made)
		return false;
	std::lock_guard lock(mutex_);
	// on_writer() did not know this guard yet.
	if (!may_be() || !file_watch::stands(made.get()))
		return false;
	file &f = files_.find(node->file)->second;
	if (f.guard < 0) {
		f.guard = made.release();
		guarded_[f.guard] = node->file;
	}
	return true;
}

// lease 0: any lease that the session holds.
lease_table::holder *lease_table::standing_locked(const session *who, const coop_fid &id,
						  number lease)
{
	const auto it = files_.find(id);
	if (it == files_.end())
		return nullptr;
	for (holder &h : it->second.holders)
		if (h.who.get() == who)
			return h.recalled == clock::time_point{} && (!lease || h.lease == lease)
				       ? &h
				       : nullptr;
	return nullptr;
}

bool lease_table::tell(const session *who, const coop_fid &id, number lease,
		       const coop_st_time &changed)
{
	bool stands = false;
	locked([&](todo &out) {
		holder *const h = standing_locked(who, id, lease);
		if (!h)
			return;
		file &f = files_.find(id)->second;
		const bool moved = later(changed, f.seen), older = later(f.seen, changed);
		// A client's change leaves 'seen' at the state that it made. For a change by
		// another process, recall the lease of every holder that does not know the new
		// state: its inotify event will find no difference. A state older than 'seen'
		// belongs to a reply that looked earlier and comes too late.
		const bool running = f.changing > f.held_up;
		stands = !f.seen.sec || running || (!moved && !older);
		if (stands)
			h->told = true;
		else if (moved)
			recall_locked(id, f, nullptr, out);
		const bool vague = running || !is_past(in_ns(changed), f.times, h->since);
		f.vague = vague || (f.vague && !moved);
		if (moved)
			f.seen = changed;
	});
	return stands;
}

void lease_table::withdraw(const session *who, const coop_fid &id, number lease)
{
	locked([&](todo &out) {
		holder *const h = standing_locked(who, id, lease);
		if (h && h->told)
			recall_one_locked(id, *h, out);
		else if (h)
			remove_locked(files_.find(id), who, out);
	});
}

void lease_table::forgo(const session *who, const coop_fid &id, number lease)
{
	locked([&](todo &out) {
		const holder *const h = standing_locked(who, id, lease);
		if (h && !h->told)
			remove_locked(files_.find(id), who, out);
	});
}

lease_table::offer::offer(lease_table &table, const std::shared_ptr<session> &who,
			  const inode_ref &node) :
	table_(&table),
	who_(who.get()),
	file_(node->file),
	lease_(table.grant(who, node))
{
}

lease_table::offer::~offer()
{
	try {
		if (lease_)
			table_->forgo(who_, file_, lease_);
	} catch (const std::bad_alloc &) {
		// The lease stays until the file changes or the session ends.
	}
}

bool lease_table::offer::tell(const coop_st_time &changed)
{
	const bool told = table_->tell(who_, file_, lease_, changed);
	if (!told)
		table_->forgo(who_, file_, lease_);
	lease_ = 0;
	return told;
}

void lease_table::offer::withdraw()
{
	table_->withdraw(who_, file_, std::exchange(lease_, 0));
}

bool lease_table::holds(const session *who, const coop_fid &id) const
{
	std::lock_guard lock(mutex_);
	const auto it = files_.find(id);
	return it != files_.end() && std::any_of(it->second.holders.begin(),
						 it->second.holders.end(), [who](const holder &h) {
							 return h.who.get() == who &&
								h.recalled == clock::time_point{};
						 });
}

bool lease_table::other_clients_hold(const session *who, const coop_fid &id) const
{
	std::lock_guard lock(mutex_);
	const auto it = files_.find(id);
	return it != files_.end() &&
	       std::any_of(
		       it->second.holders.begin(), it->second.holders.end(),
		       [who](const holder &h) { return h.who.get() != who && !h.who->of_bundle; });
}

// One step for all of them: a file that changes in between would recall only some.
bool lease_table::share(const session *from, const std::shared_ptr<session> &to, const fids &what)
{
	constexpr clock::time_point never{};
	std::lock_guard lock(mutex_);
	const auto of = [](file &f, const session *who) {
		const auto h = std::find_if(f.holders.begin(), f.holders.end(),
					    [who](const holder &i) { return i.who.get() == who; });
		return h == f.holders.end() ? nullptr : &*h;
	};
	std::size_t more = 0;
	for (const coop_fid &id : what) {
		const auto it = files_.find(id);
		const holder *const theirs = it == files_.end() ? nullptr : of(it->second, from);
		const holder *const had = theirs ? of(it->second, to.get()) : nullptr;
		if (!theirs || theirs->recalled != never || it->second.changing ||
		    it->second.breaking || (had && had->recalled != never))
			return false;
		more += !had;
	}
	names &mine = held_[to.get()];
	if (to->over || mine.size() + more > leases_max) {
		if (mine.empty())
			held_.erase(to.get());
		return false;
	}
	for (const coop_fid &id : what) {
		file &f = files_.find(id)->second;
		if (holder *const had = of(f, to.get())) {
			had->told = true;
			continue;
		}
		const holder theirs = *of(f, from);
		f.holders.push_back({to, ++last_, true, {}, theirs.since, theirs.fid});
		mine.emplace(theirs.fid, id);
		total_++;
	}
	count.granted.fetch_add(more, std::memory_order_relaxed);
	return true;
}

void lease_table::give_back(const session *who, const coop_fid &fid)
{
	locked([&](todo &out) {
		const auto mine = held_.find(who);
		if (mine == held_.end())
			return;
		if (const auto one = mine->second.find(fid); one != mine->second.end())
			remove_locked(files_.find(one->second), who, out);
	});
}

void lease_table::give_back_all(const session *who)
{
	locked([&](todo &out) {
		const auto mine = held_.find(who);
		if (mine == held_.end())
			return;
		for (const auto &[fid, id] : names(mine->second))
			remove_locked(files_.find(id), who, out);
	});
}

void lease_table::recall_one_locked(const coop_fid &id, holder &h, todo &out)
{
	if (h.recalled != clock::time_point{})
		return;
	h.recalled = clock::now();
	out.recalls.push_back({h.who, id, h.fid, h.recalled});
	count.recalled.fetch_add(1, std::memory_order_relaxed);
}

void lease_table::recall_locked(const coop_fid &id, file &f, const session *but, todo &out)
{
	for (holder &h : f.holders)
		if (h.who.get() != but)
			recall_one_locked(id, h, out);
}

bool lease_table::begin(const std::shared_ptr<session> &by, const extent &touches,
			std::size_t keeps, std::function<void()> go)
{
	const fids &what = touches.files;
	todo out;
	auto c = std::make_shared<change>();
	c->by = by.get();
	bool now;
	{
		std::lock_guard lock(mutex_);
		for (std::size_t i = 0; i < what.size(); i++) {
			const auto it = files_.try_emplace(what[i]).first;
			file &f = it->second;
			f.changing++;
			if (others_hold(f, c->by)) {
				recall_locked(what[i], f, c->by, out);
				f.waiting.push_back(c);
				c->waits_for++;
			}
			// The requester gets this recall before the reply to its change.
			const auto own = i < keeps ? f.holders.end() : holder_of(f, c->by);
			if (own != f.holders.end()) {
				out.recalls.push_back({by, what[i], own->fid, {}});
				remove_locked(it, c->by, out);
			}
		}
		for (const auto &[at, name] : touches.names) {
			file &dir = files_.find(what[at])->second;
			if (dir.watch < 0) // nobody will know it
				continue;
			dir.ours.push_back(name);
			if (dir.ours.size() > names_expected)
				dir.ours.pop_front();
		}
		if (c->waits_for) {
			c->go = std::move(go);
			c->files = what;
			for (const coop_fid &id : what)
				files_.find(id)->second.held_up++;
		}
		now = !c->waits_for; // once unlocked, go() may be called at any time
	}
	run(std::move(out));
	return now;
}

// The change times of those files that another machine keeps.
std::vector<std::pair<coop_fid, coop_st_time>> lease_table::look_ahead(const fids &what) const
{
	std::vector<std::pair<coop_fid, std::string>> distant;
	if (distant_) {
		std::lock_guard lock(mutex_);
		for (const coop_fid &id : what) {
			const auto it = files_.find(id);
			if (it != files_.end() && !it->second.holders.empty() &&
			    !it->second.times.ours)
				distant.emplace_back(id, it->second.handle);
		}
	}
	std::vector<std::pair<coop_fid, coop_st_time>> out;
	for (const auto &[id, handle] : distant)
		if (coop_st_time changed; look(handle, changed))
			out.emplace_back(id, changed);
	return out;
}

void lease_table::end(const extent &touches, bool done)
{
	const auto distant = look_ahead(touches.files);
	std::lock_guard lock(mutex_);
	for (const auto &[at, name] : touches.names) {
		const auto it = files_.find(touches.files[at]);
		if (!done && it != files_.end())
			take_out(it->second.ours, name);
	}
	for (const coop_fid &id : touches.files) {
		const auto it = files_.find(id);
		if (it == files_.end())
			continue;
		file &f = it->second;
		f.changing--;
		if (!f.holders.empty()) {
			if (f.times.ours)
				(void)look(f.handle, f.seen);
			for (const auto &[of, changed] : distant)
				if (fid_equal{}(of, id) && later(changed, f.seen))
					f.seen = changed;
			f.vague = true;
		}
		tidy_locked(it);
	}
}

void lease_table::changed(const coop_fid &id)
{
	locked([&](todo &out) {
		const auto it = files_.find(id);
		if (it != files_.end())
			recall_locked(id, it->second, nullptr, out);
	});
}

// False: no inode of the file is at hand.
bool lease_table::look(const std::string &handle, coop_st_time &changed) const
{
	struct stat st;
	const inode_ref node = inodes_.find(handle);
	if (!node || ::fstatat(node->path.get(), "", &st, AT_EMPTY_PATH))
		return false;
	changed = {st.st_ctim.tv_sec, static_cast<u32>(st.st_ctim.tv_nsec)};
	return true;
}

bool lease_table::is_as_seen_locked(const file &f) const
{
	coop_st_time now;
	return look(f.handle, now) && now.sec == f.seen.sec && now.nsec == f.seen.nsec;
}

void lease_table::on_foreign_locked(const coop_fid &id, file &f, todo &out)
{
	count.foreign.fetch_add(1, std::memory_order_relaxed);
	recall_locked(id, f, nullptr, out);
}

// names: in the directory. If events were lost, there may be names that we do not know.
void lease_table::on_event(int watch, const file_watch::names &names)
{
	const bool lost = watch == file_watch::overflow;
	struct again {
		coop_fid id;
		const exported *in;
		bool foreign;
	};
	std::vector<again> distant;
	locked([&](todo &out) {
		const auto recall = [&](const coop_fid &id) {
			const auto it = files_.find(id);
			if (it == files_.end())
				return;
			file &f = it->second;
			bool foreign = lost;
			for (const std::string_view name : names)
				foreign |= !take_out(f.ours, name);
			// A running change explains the event; a waiting one does not.
			const bool running = f.changing > f.held_up;
			if (foreign && (running || f.vague))
				return on_foreign_locked(id, f, out);
			if (running)
				return;
			if (!f.times.ours)
				distant.push_back({id, f.in, foreign});
			else if (!is_as_seen_locked(f))
				on_foreign_locked(id, f, out);
		};
		if (lost) {
			for (const auto &[w, id] : watched_)
				recall(id);
		} else if (const auto w = watched_.find(watch); w != watched_.end()) {
			recall(coop_fid(w->second));
		}
	});
	for (const again &a : distant)
		runner_(*a.in, [this, a] { look_again(a.id, a.foreign); });
}

// The rest of on_event(), for a file that another machine keeps.
void lease_table::look_again(const coop_fid &id, bool foreign)
{
	std::string handle;
	{
		std::lock_guard lock(mutex_);
		if (const auto it = files_.find(id); it != files_.end())
			handle = it->second.handle;
	}
	coop_st_time now{};
	const bool there = look(handle, now);
	locked([&](todo &out) {
		const auto it = files_.find(id);
		if (it == files_.end())
			return;
		file &f = it->second;
		const bool running = f.changing > f.held_up;
		const bool known =
			running || (there && now.sec == f.seen.sec && now.nsec == f.seen.nsec);
		if (!known || (foreign && (running || f.vague)))
			on_foreign_locked(id, f, out);
	});
}

void lease_table::stop_writer_locked(const coop_fid &id, todo &out)
{
	file &f = files_.find(id)->second;
	if (std::exchange(f.breaking, true))
		return;
	count.foreign.fetch_add(1, std::memory_order_relaxed);
	recall_locked(id, f, nullptr, out);
}

void lease_table::on_writer(int guard)
{
	locked([&](todo &out) {
		if (guard == file_watch::any) {
			for (const auto &[g, id] : guarded_)
				if (!file_watch::stands(g))
					stop_writer_locked(id, out);
		} else if (const auto g = guarded_.find(guard); g != guarded_.end()) {
			stop_writer_locked(g->second, out);
		}
	});
}

void lease_table::expire(clock::time_point now)
{
	std::size_t lost = 0;
	locked([&](todo &out) {
		const auto end = recalls_.upper_bound(now);
		for (auto r = recalls_.begin(); r != end; r = recalls_.erase(r))
			lost += lapse_locked(r->second, out);
	});
	count.unanswered.fetch_add(lost, std::memory_order_relaxed);
	if (lost)
		spdlog::warn("{} leases ended because their clients did not answer for {} s", lost,
			     lease_answer_time.count() / 1000);
}

void lease_table::clear()
{
	files gone; // destroyed, with the sessions that it refers to, without the lock
	std::lock_guard lock(mutex_);
	for (auto &[id, f] : files_) {
		if (f.watch >= 0)
			watch_.remove(f.watch);
		if (f.guard >= 0)
			file_watch::unguard(f.guard);
	}
	gone.swap(files_);
	held_.clear();
	watched_.clear();
	guarded_.clear();
	recalls_.clear();
	total_ = 0;
}

std::size_t lease_table::held() const
{
	std::lock_guard lock(mutex_);
	return total_;
}

} // namespace coop::daemon
