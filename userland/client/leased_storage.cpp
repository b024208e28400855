// SPDX-License-Identifier: MIT
// leased_storage.cpp - see leased_storage.hpp.
#include "userland/client/leased_storage.hpp"

#include <atomic>
#include <fcntl.h>
#include <mutex>
#include <unistd.h>

#include "userland/client/bundles.hpp"
#include "userland/client/lease_book.hpp"
#include "userland/client/lease_returns.hpp"
#include "userland/client/unsaid_opens.hpp"

namespace coop::client
{

namespace
{

using right = lease_book::right;

constexpr std::pair<int, right> access_rights[] = {
	{R_OK, right::access_read}, {W_OK, right::access_write}, {X_OK, right::access_execute}};

constexpr std::chrono::milliseconds trust{COOP_ST_LEASE_TRUST_MS};
constexpr std::chrono::milliseconds ask_early = trust / 2;
constexpr std::chrono::seconds ask_root_again{1};

class leased_storage final : public storage
{
public:
	explicit leased_storage(storage_options o) : over_(o.on_lease_over), opens_(book_)
	{
		if (o.bundles)
			bundles_ = std::make_unique<bundles>(*o.bundles, book_);
		o.on_recall = [this](const coop_fid &f) { recalled(f); };
		o.on_lost = [this, theirs = std::move(o.on_lost)] {
			lost();
			if (theirs)
				theirs();
		};
		o.on_tick = [this] {
			opens_.tell_old();
			if (bundles_ && ready_)
				bundles_->close_old(*under_);
		};
		o.on_reconnect = [this, theirs = std::move(o.on_reconnect)] {
			if (theirs)
				theirs();
			return_all(true);
		};
		under_ = connect_without_leases(o);
		opens_.start(*under_);
		ready_ = true;
	}

	const entry &root() const override { return under_->root(); }
	std::array<std::uint8_t, 16> fabric_key() const override { return under_->fabric_key(); }
	using storage::register_node;
	std::uint32_t register_node(const coop_addr &a, const node_ability &can) override
	{
		return under_->register_node(a, can);
	}
	void update_node(const coop_addr &a) override { under_->update_node(a); }
	void withdraw_node() override { under_->withdraw_node(); }
	std::chrono::milliseconds patience() const override { return under_->patience(); }
	traffic stats() const override { return under_->stats(); }
	std::vector<waiting> calls() const override { return under_->calls(); }
	boot_clock::time_point heard() const override { return under_->heard(); }
	int ping() override { return under_->ping(); }
	bool changes(const handle &fh) override { return book_.changes(fh); }
	std::uint64_t new_open_id() override { return under_->new_open_id(); }
	lease_figures leases() const override
	{
		lease_figures f{book_.held(), lookups_, attributes_, opened_, listings_, recalls_};
		if (bundles_)
			bundles_->count(f);
		return f;
	}

	// ---- what may be known ------------------------------------------------

	int lookup(const caller &c, const handle &dir, std::string_view name, entry &out) override
	{
		if (name == "..")
			return parent(c, dir, out);
		if (trusted()) {
			const auto found = book_.lookup(dir, name, c, out);
			if (found != lease_book::found::unknown) {
				lookups_++;
				return found == lease_book::found::here ? 0 : -ENOENT;
			}
		}
		if (dir == root().fh)
			know_root(c);
		const auto asked = book_.now();
		const int err = under_->lookup(c, dir, name, out);
		if (!err) {
			out.name_leased = book_.named(asked, dir, name, out.fh);
			book_.learned(asked, out.fh, out.attr);
		} else if (err == -ENOENT) {
			book_.absent(asked, dir, name);
		}
		if (!err || err == -ENOENT)
			book_.allowed(asked, dir, c, right::search);
		return_evicted();
		if (bundles_ && (!err || err == -ENOENT))
			found_in(c, dir, out, !err);
		return err;
	}

	int getattr(const caller &c, const handle &fh, attributes &out) override
	{
		if (trusted() && book_.attributes_of(fh, out)) {
			attributes_++;
			return 0;
		}
		const auto asked = book_.now();
		const int err = under_->getattr(c, fh, out);
		if (!err)
			book_.learned(asked, fh, out);
		return_evicted();
		return err;
	}

	int access(const caller &c, const handle &fh, int wanted, int &allowed,
		   attributes &out) override
	{
		allowed = 0;
		if (trusted()) {
			for (const auto &[bit, what] : access_rights)
				if (wanted & bit && book_.may(fh, c, what))
					allowed |= bit;
			if (allowed == wanted && book_.attributes_of(fh, out)) {
				attributes_++;
				return 0;
			}
		}
		const auto asked = book_.now();
		const int err = under_->access(c, fh, wanted, allowed, out);
		if (!err) {
			const bool within = book_.learned(asked, fh, out);
			for (const auto &[bit, what] : access_rights)
				if (allowed & bit)
					book_.allowed(asked, fh, c, what, within);
		}
		return_evicted();
		return err;
	}

	int readlink(const caller &c, const handle &fh, std::string &out) override
	{
		if (trusted() && book_.target_of(fh, out))
			return 0;
		const auto asked = book_.now();
		const int err = under_->readlink(c, fh, out);
		if (!err)
			book_.points_at(asked, fh, out);
		return err;
	}

	int readdir(const caller &c, const handle &dir, std::uint64_t cookie,
		    std::uint32_t max_bytes, std::vector<dir_entry> &out, bool &end) override
	{
		if (trusted() && book_.list(dir, c, cookie, max_bytes, out, end)) {
			listings_++;
			return 0;
		}
		const auto asked = book_.now();
		const int err = under_->readdir(c, dir, cookie, max_bytes, out, end);
		if (err)
			return err;
		book_.allowed(asked, dir, c, right::list);
		if (!max_bytes)
			return 0;
		bool searched = false;
		for (const dir_entry &e : out) {
			if (!e.node.fh.empty())
				book_.learned(asked, e.node.fh, e.node.attr);
			searched |= !e.node.fh.empty();
		}
		if (searched)
			book_.allowed(asked, dir, c, right::search);
		const bool leased = book_.listed(asked, dir, cookie, out, end);
		for (dir_entry &e : out)
			e.node.name_leased = leased;
		return_evicted();
		if (bundles_ && bundles_->listed(dir, out))
			ask_for_bundle(c, dir);
		return 0;
	}

	int open(const caller &c, const handle &fh, int flags, std::uint32_t want, open_result &out,
		 late_reply late) override
	{
		if ((flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC) {
			auto guard = changing(fh);
			return under_->open(c, fh, flags, want, out,
					    during(guard, std::move(late)));
		}
		const right what = flags & open_exec ? right::execute : right::read;
		if (open_known(c, fh, flags, what, out))
			return 0;
		if (const auto dir = bundles_ ? bundles_->before_open(fh) : std::nullopt) {
			ask_for_bundle(c, *dir);
			if (open_known(c, fh, flags, what, out))
				return 0;
		}
		const auto asked = book_.now();
		const int err = under_->open(c, fh, flags, want, out, std::move(late));
		if (!err) {
			const bool within = book_.learned(asked, fh, out.attr);
			if (!out.attr.ask_open)
				book_.allowed(asked, fh, c, what, within);
			book_.opened_by(asked, fh, out.openers, within);
			return_evicted();
		}
		return err;
	}

	// ---- open files: tell storage of the open first -----------------------

	int close(const handle &fh, std::uint64_t open_id, write_result &out) override
	{
		const auto asked = book_.now();
		const int err = under_->close(fh, open_id, out);
		if (!err)
			book_.learned(asked, fh, out.attr);
		return err;
	}
	void close_reader(const handle &fh, std::uint64_t open_id) override
	{
		opens_.close(fh, open_id);
	}
	void read(const handle &fh, std::uint64_t open_id, std::uint64_t offset,
		  std::vector<iovec> dest, std::uint64_t version,
		  std::function<void(const read_result &)> done) override
	{
		if (!opens_.unsaid(open_id))
			return under_->read(fh, open_id, offset, std::move(dest), version,
					    std::move(done));
		opens_.tell(open_id, [this, fh, open_id, offset, dest = std::move(dest), version,
				      done = std::move(done)](int err) mutable {
			if (err)
				done({err, 0, 0, 0});
			else
				under_->read(fh, open_id, offset, std::move(dest), version,
					     std::move(done));
		});
	}
	void read_shared(const handle &fh, std::uint64_t open_id, std::uint64_t offset,
			 std::vector<iovec> dest, std::uint64_t version, bool insist,
			 std::function<void(const read_result &)> done) override
	{
		if (!opens_.unsaid(open_id))
			return under_->read_shared(fh, open_id, offset, std::move(dest), version,
						   insist, std::move(done));
		opens_.tell(open_id, [this, fh, open_id, offset, dest = std::move(dest), version,
				      insist, done = std::move(done)](int err) mutable {
			if (err)
				done({err, 0, 0, 0});
			else
				under_->read_shared(fh, open_id, offset, std::move(dest), version,
						    insist, std::move(done));
		});
	}
	int write(const handle &fh, std::uint64_t open_id, std::uint64_t offset,
		  std::span<const iovec> data, write_result &out, late_reply late,
		  bool stable) override
	{
		return under_->write(fh, open_id, offset, data, out, std::move(late), stable);
	}
	bool goes_with(std::uint64_t open_id, std::uint64_t other) override
	{
		return under_->goes_with(open_id, other);
	}
	int commit(const handle &fh, std::uint64_t open_id, write_result &out) override
	{
		const int err = opens_.say(open_id);
		return err ? err : under_->commit(fh, open_id, out);
	}
	int commit_names(const handle &d, bool &l) override { return under_->commit_names(d, l); }
	int fallocate(const handle &fh, std::uint64_t open_id, int mode, std::uint64_t offset,
		      std::uint64_t length, write_result &out, late_reply late) override
	{
		return under_->fallocate(fh, open_id, mode, offset, length, out, std::move(late));
	}
	int seek(const handle &fh, std::uint64_t open_id, int whence, std::uint64_t offset,
		 std::uint64_t &out) override
	{
		const int err = opens_.say(open_id);
		return err ? err : under_->seek(fh, open_id, whence, offset, out);
	}
	int copy(const place &from, const place &to, std::uint64_t &length, write_result &out,
		 late_reply late) override
	{
		const int err = opens_.say(from.open_id);
		return err ? err : under_->copy(from, to, length, out, std::move(late));
	}
	int lock(const handle &fh, std::uint64_t open_id, const coop_st_lock &what, bool wait,
		 lock_granted granted, std::uint64_t &cookie) override
	{
		const int err = opens_.say(open_id);
		return err ? err
			   : under_->lock(fh, open_id, what, wait, std::move(granted), cookie);
	}
	bool cancel_lock(std::uint64_t cookie) override { return under_->cancel_lock(cookie); }
	int unlock(const handle &fh, const coop_st_lock &what) override
	{
		return under_->unlock(fh, what);
	}
	int test_lock(const handle &fh, std::uint64_t open_id, coop_st_lock &what) override
	{
		const int err = opens_.say(open_id);
		return err ? err : under_->test_lock(fh, open_id, what);
	}
	bool holds_lock(const handle &fh, const coop_st_lock &what) override
	{
		return under_->holds_lock(fh, what);
	}
	std::uint64_t lock_era(const handle &fh) override { return under_->lock_era(fh); }
	int vouch(const handle &f, std::uint64_t id) override { return under_->vouch(f, id); }

	// ---- changes ----------------------------------------------------------

	int setattr(const caller &c, const handle &fh, const setattr_request &q, write_result &out,
		    late_reply late) override
	{
		return change_file(fh, out, std::move(late), [&](late_reply kept) {
			return under_->setattr(c, fh, q, out, std::move(kept));
		});
	}

	int create(const caller &c, const handle &dir, std::string_view name, int flags,
		   const new_mode &mode, entry &node, open_result &out, attributes *) override
	{
		naming n(*this, dir);
		const int err = under_->create(c, dir, name, flags, mode, node, out, &n.after);
		return n.made(err, name, node);
	}
	int tmpfile(const caller &c, const handle &dir, int flags, const new_mode &mode,
		    entry &node, open_result &out) override
	{
		return under_->tmpfile(c, dir, flags, mode, node, out);
	}
	int mkdir(const caller &c, const handle &dir, std::string_view name, const new_mode &mode,
		  entry &out, attributes *) override
	{
		const auto asked = book_.now();
		naming n(*this, dir);
		const int err = under_->mkdir(c, dir, name, mode, out, &n.after);
		if (!err) {
			book_.learned(asked, out.fh, out.attr);
			if (out.attr.no_names)
				book_.empty(asked, out.fh);
		}
		return n.made(err, name, out);
	}
	int mknod(const caller &c, const handle &dir, std::string_view name, const new_mode &mode,
		  dev_t device, entry &out, attributes *) override
	{
		naming n(*this, dir);
		return n.made(under_->mknod(c, dir, name, mode, device, out, &n.after), name, out);
	}
	int symlink(const caller &c, std::string_view target, const handle &dir,
		    std::string_view name, entry &out, attributes *) override
	{
		naming n(*this, dir);
		return n.made(under_->symlink(c, target, dir, name, out, &n.after), name, out);
	}
	int link(const caller &c, const handle &node, const handle &new_dir,
		 std::string_view new_name, entry &out, attributes *) override
	{
		naming n(*this, new_dir);
		return n.made(under_->link(c, node, new_dir, new_name, out, &n.after), new_name,
			      out);
	}
	int unlink(const caller &c, const handle &dir, std::string_view name, attributes *) override
	{
		const victim v(*this, dir, name);
		if (v.error)
			return v.error;
		naming n(*this, dir);
		return n.removed(under_->unlink(c, dir, name, &n.after), name);
	}
	int rmdir(const caller &c, const handle &dir, std::string_view name, attributes *) override
	{
		naming n(*this, dir);
		return n.removed(under_->rmdir(c, dir, name, &n.after), name);
	}
	int rename(const caller &c, const handle &dir, std::string_view name, const handle &new_dir,
		   std::string_view new_name, unsigned flags) override
	{
		const victim v(*this, new_dir, new_name);
		if (v.error)
			return v.error;
		const naming from(*this, dir), to(*this, new_dir);
		const int err = under_->rename(c, dir, name, new_dir, new_name, flags);
		if (err || flags & RENAME_EXCHANGE) {
			from.unknown(err);
			to.unknown(err);
			return err;
		}
		// The renamed file is the one that had this name; the daemon has recalled the lease
		// if it was another.
		(void)from.removed(0, name);
		to.unknown(0);
		return 0;
	}

	int getxattr(const caller &c, const handle &fh, std::string_view name, std::uint32_t room,
		     std::string &value, std::size_t &size) override
	{
		return under_->getxattr(c, fh, name, room, value, size);
	}
	int listxattr(const caller &c, const handle &fh, std::uint32_t room, std::string &names,
		      std::size_t &size) override
	{
		return under_->listxattr(c, fh, room, names, size);
	}
	int setxattr(const caller &c, const handle &fh, std::string_view name,
		     std::string_view value, int flags, write_result &out, late_reply late) override
	{
		return change_file(fh, out, std::move(late), [&](late_reply kept) {
			return under_->setxattr(c, fh, name, value, flags, out, std::move(kept));
		});
	}
	int removexattr(const caller &c, const handle &fh, std::string_view name, write_result &out,
			late_reply late) override
	{
		return change_file(fh, out, std::move(late), [&](late_reply kept) {
			return under_->removexattr(c, fh, name, out, std::move(kept));
		});
	}
	int statfs(const caller &c, const handle &fh, struct statvfs &out) override
	{
		return under_->statfs(c, fh, out);
	}

private:
	// A change of one file, until its reply, even if its caller has gone.
	struct change {
		leased_storage &s;
		const handle fh;
		bool ended = false;
		change(leased_storage &s, const handle &fh) : s(s), fh(fh)
		{
			s.book_.begin_change(fh, false);
		}
		change(const change &) = delete;
		~change()
		{
			if (!ended)
				s.book_.end_change(fh, false);
		}
		void ends_with(lease_book::ticket begun, const attributes &a)
		{
			s.book_.end_change(fh, begun, a);
			ended = true;
		}
	};
	std::shared_ptr<change> changing(const handle &fh)
	{
		return std::make_shared<change>(*this, fh);
	}
	static late_reply during(std::shared_ptr<change> c, late_reply late)
	{
		return [c = std::move(c), late = std::move(late)](int err, const write_result &r) {
			if (late)
				late(err, r);
		};
	}

	// Sends a change of the file's attributes: send(handler of a late reply).
	template <class act>
	int change_file(const handle &fh, write_result &out, late_reply late, act send)
	{
		auto guard = changing(fh);
		int err = opens_.say_all_of(fh);
		if (err)
			return err;
		const auto begun = book_.now();
		err = send(during(guard, std::move(late)));
		if (!err)
			guard->ends_with(begun, out.attr);
		return err;
	}

	// A file that is about to lose a name. We tell storage of its open files here, because
	// afterwards the file might be gone, and let no file be opened without storage's knowledge
	// until then.
	struct victim {
		leased_storage &s;
		std::shared_ptr<change> guard;
		bool any = false; // the file is unknown
		int error = 0;
		victim(leased_storage &s, const handle &dir, std::string_view name) : s(s)
		{
			const std::optional<handle> fh = s.book_.named_so(dir, name);
			any = !fh;
			if (any)
				s.opens_.removing++;
			else if (!fh->empty())
				guard = s.changing(*fh);
			if (any || guard)
				error = s.opens_.say_all_of(any ? handle{} : *fh);
		}
		victim(const victim &) = delete;
		~victim()
		{
			if (any)
				s.opens_.removing--;
		}
	};

	// A change of a directory's names. We do not follow such a call when its caller has gone;
	// its effect on the directory then stays unknown.
	class naming
	{
	public:
		attributes after{}; // the directory's; mode 0: not told

		naming(leased_storage &s, const handle &dir) : s_(s), dir_(dir)
		{
			s_.book_.begin_change(dir_, true);
			begun_ = s_.book_.now();
		}
		naming(const naming &) = delete;
		~naming()
		{
			if (after.st.st_mode)
				s_.book_.end_change(dir_, begun_, after);
			else
				s_.book_.end_change(dir_, true);
		}
		int made(int err, std::string_view name, entry &node) const
		{
			if (err)
				unknown(err);
			else
				node.name_leased = s_.book_.renamed(dir_, name, node.fh);
			return err;
		}
		int removed(int err, std::string_view name) const
		{
			if (err)
				unknown(err);
			else
				(void)s_.book_.renamed(dir_, name, {});
			return err;
		}
		void unknown(int err) const
		{
			if (err == -EINTR || err == -ETIMEDOUT || err == -ESHUTDOWN) {
				s_.book_.unsure(dir_);
				s_.return_evicted();
			} else {
				s_.book_.names_unknown(dir_);
			}
		}

	private:
		leased_storage &s_;
		const handle &dir_;
		lease_book::ticket begun_;
	};
	friend class naming;

	// ".." is in no listing: a directory's lease does not cover its own place in the tree.
	int parent(const caller &c, const handle &dir, entry &out)
	{
		const auto asked = book_.now();
		const int err = under_->lookup(c, dir, "..", out);
		if (!err)
			book_.learned(asked, out.fh, out.attr);
		return_evicted();
		return err;
	}

	// An open that the lease covers: storage learns of it later, if at all.
	bool open_known(const caller &c, const handle &fh, int flags, right what, open_result &out)
	{
		const bool known = trusted() && opens_.open(fh, c, flags, what, out);
		opened_ += known;
		return known;
	}

	void ask_for_bundle(const caller &c, const handle &dir)
	{
		if (!bundles_->ask(*under_, c, dir)) // the daemon gave leases that the book lacks
			return_all(false);
		return_evicted();
	}

	// A reply about a name in the directory.
	void found_in(const caller &c, const handle &dir, const entry &e, bool here)
	{
		if (here)
			bundles_->found(dir, e);
		if (e.attr.shared_dir)
			ask_for_bundle(c, dir);
	}

	// Lookups report every other directory; all paths begin at the root.
	void know_root(const caller &c)
	{
		attributes a;
		const auto now = boot_clock::now().time_since_epoch();
		auto next = ask_for_root_.load();
		if (book_.attributes_of(root().fh, a) || now < next ||
		    !ask_for_root_.compare_exchange_strong(next, now + ask_root_again))
			return;
		const auto asked = book_.now();
		if (!under_->getattr(c, root().fh, a))
			book_.learned(asked, root().fh, a);
		return_evicted();
	}

	bool trusted()
	{
		const auto silent = boot_clock::now() - under_->heard();
		if (silent < ask_early)
			return true;
		if (silent < trust) {
			if (!asked_early_.exchange(true))
				under_->ping_later();
			return true;
		}
		if (!book_.held() || under_->ping())
			return false;
		asked_early_ = false;
		return boot_clock::now() - under_->heard() < trust;
	}

	void give_back(const coop_fid &file)
	{
		over_(file, [this, file] {
			under_->return_lease(file, [this, file] { book_.returned(file); });
		});
	}
	void return_evicted()
	{
		for (const coop_fid &f : book_.evicted())
			give_back(f);
	}

	// This and what follows run on the connection's thread. Before under_ exists, nothing is
	// leased.
	void recalled(const coop_fid &file)
	{
		recalls_++;
		const std::optional<handle> fh = book_.recalled(file);
		if (!ready_)
			return;
		if (fh)
			opens_.tell_all_of(*fh, [this, file] { give_back(file); });
		else
			give_back(file);
	}
	void lost()
	{
		returns_.lost();
		over_({}, [] {});
		if (ready_)
			opens_.tell_all([] {});
	}
	void return_all(bool reconnected)
	{
		returns_.begin(reconnected);
		over_({}, [] {});
		opens_.tell_all(
			[this] { under_->return_lease({}, [this] { returns_.answered(); }); });
	}

	const std::function<void(const coop_fid &, std::function<void()>)> over_;
	lease_book book_;
	lease_returns returns_{book_};
	unsaid_opens opens_;
	std::unique_ptr<bundles> bundles_; // null: none
	std::atomic<bool> ready_{false}, asked_early_{false};
	std::atomic<boot_clock::duration> ask_for_root_{}; // not before this time: see know_root()
	std::atomic<std::uint64_t> lookups_{0}, attributes_{0}, opened_{0}, listings_{0},
		recalls_{0};
	std::unique_ptr<storage> under_; // destroyed first: its thread calls us
};

} // namespace

std::unique_ptr<storage> connect_with_leases(storage_options o)
{
	return std::make_unique<leased_storage>(std::move(o));
}

std::unique_ptr<storage> storage::connect(const storage_options &o)
{
	return o.leases ? connect_with_leases(o) : connect_without_leases(o);
}

} // namespace coop::client
