// SPDX-License-Identifier: MIT
// storage_calls.cpp - the operations: encode the request, decode the reply.
//
// Writes longer than a protocol message are split here. Locks, opens and reads have files of their
// own.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utility>

#include <spdlog/spdlog.h>

#include "userland/client/buffer_list.hpp"
#include "userland/client/lock_keeper.hpp"
#include "userland/client/storage_codec.hpp"
#include "userland/client/storage_locks.hpp"
#include "userland/client/storage_opens.hpp"
#include "userland/client/storage_reads.hpp"

namespace coop::client
{

namespace
{

class remote_storage final : public storage
{
public:
	explicit remote_storage(const storage_options &o) :
		connection_(std::make_unique<storage_link>(o)),
		link_(*connection_),
		keeper_(link_, o.on_locks_in_doubt),
		locks_(link_, keeper_),
		opens_(link_),
		reads_(link_)
	{
	}
	// First of all members: its thread calls the others.
	~remote_storage() override
	{
		keeper_.stop();
		connection_.reset();
	}

	const entry &root() const override { return link_.root(); }
	std::array<std::uint8_t, 16> fabric_key() const override { return link_.fabric_key(); }
	traffic stats() const override { return link_.stats(); }
	std::vector<waiting> calls() const override { return link_.waiting(); }

	using storage::register_node;
	std::uint32_t register_node(const coop_addr &addr, const node_ability &can) override
	{
		coop_st_body got{};
		std::string text;
		if (link_.ask(link_.join_op(), storage_link::join_body(addr, can), got, text))
			return 0;
		link_.registered(addr, &can);
		return got.node_id;
	}

	void update_node(const coop_addr &addr) override
	{
		// A connection made from here on registers it by itself.
		(void)link_.registered(addr);
		{
			const std::lock_guard lock(leaving_mutex_);
			if (leaving_)
				return; // its end registers
		}
		tell_address();
	}

	void withdraw_node() override
	{
		// An older daemon removes the node only with the connection, and that has leases.
		if (!link_.leaves())
			return;
		link_.unregistered();
		{
			const std::lock_guard lock(leaving_mutex_);
			if (std::exchange(leaving_, true))
				return;
		}
		auto c = link_.make(COOP_ST_LEAVE, {});
		// One at a time: the daemon executes requests side by side.
		c->done = [this](storage_link::outcome &o) {
			if (!o.err && !o.repeated)
				link_.forget_nodes();
			{
				const std::lock_guard lock(leaving_mutex_);
				leaving_ = false;
			}
			tell_address();
		};
		link_.submit(std::move(c));
	}

	int lookup(const caller &c, const handle &dir, std::string_view name, entry &out) override
	{
		coop_st_body ask = request_in(c, dir, name);
		bool shared_dir = false;
		const int err = entry_call(
			COOP_ST_LOOKUP, ask, out, nullptr,
			[&](const storage_link::outcome &o) { shared_dir = o.shared_dir; });
		out.attr.shared_dir = shared_dir;
		return err;
	}

	int getattr(const caller &c, const handle &fh, attributes &out) override
	{
		coop_st_body ask = request_on(c, fh), got{};
		std::string text;
		const int err = link_.ask(COOP_ST_GETATTR, ask, got, text);
		if (!err)
			out = attributes_of(got.attr);
		return err;
	}

	int access(const caller &c, const handle &fh, int wanted, int &allowed,
		   attributes &out) override
	{
		coop_st_body ask = request_on(c, fh), got{};
		std::string text;
		ask.mode = static_cast<std::uint32_t>(wanted);
		const int err = link_.ask(COOP_ST_ACCESS, ask, got, text);
		if (!err)
			allowed = static_cast<int>(got.mode), out = attributes_of(got.attr);
		return err;
	}

	std::chrono::milliseconds patience() const override { return link_.patience(); }
	int setattr(const caller &c, const handle &fh, const setattr_request &r, write_result &out,
		    late_reply late) override
	{
		coop_st_body ask = request_on(c, fh);
		ask.set = set_of(r);
		// An open file permits this whatever its mode is now. Clearing set-id bits may use
		// any: the writer may have got the file from another user.
		if (r.valid & set_size)
			ask.open_id = r.by;
		else if (r.valid & kill_id)
			ask.open_id = link_.writable_open(fh, c.uid, r.valid == kill_id);
		return changed(COOP_ST_SETATTR, ask, out, {}, std::move(late));
	}

	int open(const caller &c, const handle &fh, int flags, std::uint32_t want, open_result &out,
		 late_reply late) override
	{
		return opens_.open(c, fh, flags, want, out, std::move(late));
	}

	bool goes_with(std::uint64_t open_id, std::uint64_t other) override
	{
		return link_.goes_with(open_id, other);
	}
	int create(const caller &c, const handle &dir, std::string_view name, int flags,
		   const new_mode &mode, entry &node, open_result &out,
		   attributes *dir_after) override
	{
		return opens_.make(COOP_ST_CREATE, c, request_in(c, dir, name), flags, mode, node,
				   out, dir_after);
	}

	int tmpfile(const caller &c, const handle &dir, int flags, const new_mode &mode,
		    entry &node, open_result &out) override
	{
		return opens_.make(COOP_ST_TMPFILE, c, request_on(c, dir), flags, mode, node, out);
	}

	int close(const handle &fh, std::uint64_t open_id, write_result &out) override
	{
		int err = changed(COOP_ST_CLOSE, request_on(fh, open_id), out);
		link_.closed(open_id);
		if (err == -EBADF) { // the daemon lost it; we can only report the current state
			out.version_before = 0;
			err = getattr({::geteuid(), ::getegid(), {}}, fh, out.attr);
		}
		return err;
	}

	std::uint64_t new_open_id() override { return opens_.new_id(); }
	void open_as(std::uint64_t open_id, const caller &who, const handle &fh, int flags,
		     std::function<void(int err)> done) override
	{
		opens_.open_as(open_id, who, fh, flags, std::move(done));
	}

	int bundle(const caller &c, const handle &dir, std::uint32_t flags, std::uint32_t part,
		   open_bundle &out) override
	{
		return opens_.bundle(c, dir, flags, part, out);
	}

	void close_reader(const handle &fh, std::uint64_t open_id) override
	{
		opens_.close_reader(fh, open_id);
	}

	void return_lease(const coop_fid &file, std::function<void()> done) override
	{
		coop_st_body ask{};
		ask.fid = file;
		auto c = link_.make(COOP_ST_LEASE_RETURN, ask);
		c->urgent = true;
		c->done = [done = std::move(done)](storage_link::outcome &) { done(); };
		link_.submit(std::move(c));
	}

	int ping() override { return plain(COOP_ST_PING, {}); }
	void ping_later() override
	{
		auto c = link_.make(COOP_ST_PING, {});
		c->done = [](storage_link::outcome &) {};
		link_.submit(std::move(c));
	}
	boot_clock::time_point heard() const override { return link_.heard(); }

	int write(const handle &fh, std::uint64_t open_id, std::uint64_t offset,
		  std::span<const iovec> data, write_result &out, late_reply late,
		  bool stable) override
	{
		const std::size_t total = length_of(data);
		std::uint64_t first = 0, verifier = 0;
		for (std::size_t at = 0; at < total || !at;) {
			const std::size_t n = std::min<std::size_t>(total - at, COOP_ST_IO_MAX);
			coop_st_body ask = request_on(fh, open_id);
			ask.offset = offset + at;
			if (stable && n == total)
				ask.flags = COOP_ST_WRITE_STABLE;
			const std::uint64_t previous = out.attr.version;
			const std::vector<iovec> part = slice(data, at, n);
			if (int err = changed(COOP_ST_WRITE, ask, out, part, late))
				return err;
			if (!at) { // the oldest verifier covers all parts
				first = out.version_before;
				verifier = out.verifier;
			} else if (out.version_before != previous) {
				first = 0; // another client wrote in between
			}
			at += n;
			if (!n)
				break;
		}
		out.version_before = first;
		out.verifier = verifier;
		return 0;
	}

	int commit(const handle &fh, std::uint64_t open_id, write_result &out) override
	{
		return changed(COOP_ST_COMMIT, request_on(fh, open_id), out);
	}

	int commit_names(const handle &dir, bool &lost) override
	{
		const std::uint64_t covers = link_.names().now();
		coop_st_body got{};
		std::string text;
		std::uint64_t run = 0;
		int err = link_.ask(COOP_ST_COMMIT, request_on(dir, 0), got, text, nullptr, {}, {},
				    [&](const storage_link::outcome &o) { run = o.run; });
		lost = err == -EIO || err == -ENOSPC || err == -EDQUOT;
		if (lost)
			link_.names().failed(dir, covers);
		else if (!err)
			lost = link_.names().committed(dir, covers, run, got.verifier);
		// Removed, or lost by a crash, with changes of its names.
		if (err == -ESTALE && (lost = link_.names().committed(dir, covers, run, run)))
			err = -EIO;
		return err;
	}

	int fallocate(const handle &fh, std::uint64_t open_id, int mode, std::uint64_t offset,
		      std::uint64_t length, write_result &out, late_reply late) override
	{
		coop_st_body ask = request_on(fh, open_id);
		if (int err = fallocate_flags(mode, ask.flags))
			return err;
		ask.offset = offset;
		ask.length = length;
		return changed(COOP_ST_FALLOCATE, ask, out, {}, std::move(late));
	}

	int seek(const handle &fh, std::uint64_t open_id, int whence, std::uint64_t offset,
		 std::uint64_t &out) override
	{
		coop_st_body ask = request_on(fh, open_id), got{};
		std::string text;
		ask.offset = offset;
		ask.flags = whence == SEEK_DATA ? COOP_ST_SEEK_DATA : COOP_ST_SEEK_HOLE;
		const int err = link_.ask(COOP_ST_SEEK, ask, got, text);
		if (!err)
			out = got.offset;
		return err;
	}

	int copy(const place &from, const place &to, std::uint64_t &length, write_result &out,
		 late_reply late) override
	{
		coop_st_body ask = request_on(from.fh, from.open_id);
		ask.offset = from.offset;
		ask.fh2 = bytes_of(to.fh);
		ask.open_id2 = to.open_id;
		ask.offset2 = to.offset;
		ask.length = length;
		return changed(COOP_ST_COPY, ask, out, {}, std::move(late), &length);
	}

	void read(const handle &fh, std::uint64_t open_id, std::uint64_t offset,
		  std::vector<iovec> dest, std::uint64_t version,
		  std::function<void(const read_result &)> done) override
	{
		reads_.read(fh, open_id, offset, std::move(dest), version, std::move(done));
	}
	void read_shared(const handle &fh, std::uint64_t open_id, std::uint64_t offset,
			 std::vector<iovec> dest, std::uint64_t version, bool insist,
			 std::function<void(const read_result &)> done) override
	{
		reads_.read_shared(fh, open_id, offset, std::move(dest), version, insist,
				   std::move(done));
	}

	int mkdir(const caller &c, const handle &dir, std::string_view name, const new_mode &mode,
		  entry &out, attributes *dir_after) override
	{
		coop_st_body ask = request_in(c, dir, name);
		ask.mode = coop_st_mode(mode.mode, mode.umask);
		return entry_call(COOP_ST_MKDIR, ask, out, dir_after);
	}

	int mknod(const caller &c, const handle &dir, std::string_view name, const new_mode &mode,
		  dev_t device, entry &out, attributes *dir_after) override
	{
		coop_st_body ask = request_in(c, dir, name);
		ask.mode = coop_st_mode(mode.mode, mode.umask);
		ask.rdev = static_cast<u64>(major(device)) << 32 | minor(device);
		return entry_call(COOP_ST_MKNOD, ask, out, dir_after);
	}

	int unlink(const caller &c, const handle &dir, std::string_view name,
		   attributes *dir_after) override
	{
		return plain(COOP_ST_UNLINK, request_in(c, dir, name), dir_after);
	}

	int rmdir(const caller &c, const handle &dir, std::string_view name,
		  attributes *dir_after) override
	{
		return plain(COOP_ST_RMDIR, request_in(c, dir, name), dir_after);
	}

	int rename(const caller &c, const handle &dir, std::string_view name, const handle &new_dir,
		   std::string_view new_name, unsigned flags) override
	{
		coop_st_body ask = request_in(c, dir, name);
		if (flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE))
			return -EINVAL;
		ask.fh2 = bytes_of(new_dir);
		ask.name2 = bytes_of(new_name);
		ask.flags = bit_if(flags & RENAME_NOREPLACE, COOP_ST_R_NOREPLACE) |
			    bit_if(flags & RENAME_EXCHANGE, COOP_ST_R_EXCHANGE);
		return plain(COOP_ST_RENAME, ask);
	}

	int link(const caller &c, const handle &node, const handle &new_dir,
		 std::string_view new_name, entry &out, attributes *dir_after) override
	{
		coop_st_body ask = request_in(c, new_dir, new_name);
		ask.fh2 = bytes_of(node);
		return entry_call(COOP_ST_LINK, ask, out, dir_after);
	}

	int symlink(const caller &c, std::string_view target, const handle &dir,
		    std::string_view name, entry &out, attributes *dir_after) override
	{
		coop_st_body ask = request_in(c, dir, name);
		ask.text = bytes_of(target);
		return entry_call(COOP_ST_SYMLINK, ask, out, dir_after);
	}

	int readlink(const caller &c, const handle &fh, std::string &out) override
	{
		coop_st_body ask = request_on(c, fh), got{};
		return link_.ask(COOP_ST_READLINK, ask, got, out);
	}

	int readdir(const caller &c, const handle &dir, std::uint64_t cookie,
		    std::uint32_t max_bytes, std::vector<dir_entry> &out, bool &end) override
	{
		coop_st_body ask = request_on(c, dir), got{};
		std::string text, data;
		ask.cookie = cookie;
		ask.count = std::min(max_bytes, COOP_ST_IO_MAX);
		out.clear();
		bool shared_dir = false;
		if (int err = link_.ask(
			    COOP_ST_READDIR, ask, got, text, &data, {}, {},
			    [&](const storage_link::outcome &o) { shared_dir = o.shared_dir; }))
			return err;
		if (const int err = entries_of(data, out))
			return err;
		end = got.flags & 1;
		if (!out.empty())
			out.front().node.attr.shared_dir = shared_dir;
		return 0;
	}

	int lock(const handle &fh, std::uint64_t open_id, const coop_st_lock &what, bool wait,
		 lock_granted granted, std::uint64_t &cookie) override
	{
		return locks_.lock({fh, open_id, what}, wait, std::move(granted), cookie);
	}
	bool cancel_lock(std::uint64_t cookie) override { return locks_.cancel(cookie); }
	int unlock(const handle &fh, const coop_st_lock &what) override
	{
		return locks_.unlock({fh, 0, what});
	}
	int test_lock(const handle &fh, std::uint64_t open_id, coop_st_lock &what) override
	{
		lock_book::lock l{fh, open_id, what};
		const int err = locks_.test(l);
		if (!err)
			what = l.what;
		return err;
	}
	bool holds_lock(const handle &fh, const coop_st_lock &what) override
	{
		return locks_.book().holds({fh, 0, what}, what.type == COOP_ST_LOCK_WRITE);
	}
	std::uint64_t lock_era(const handle &fh) override { return locks_.book().era(fh); }
	int vouch(const handle &fh, std::uint64_t open_id) override
	{
		const lock_book &book = locks_.book();
		while (book.any()) {
			if (book.is_lost(open_id))
				return -EBADF;
			if (!book.era(fh) || link_.trusted())
				break;
			// The answer of a daemon that forgot us comes after we know what is lost.
			if (const int err = ping())
				return err;
		}
		return 0;
	}
	int getxattr(const caller &c, const handle &fh, std::string_view name, std::uint32_t room,
		     std::string &value, std::size_t &size) override
	{
		return extended(COOP_ST_GETXATTR, request_in(c, fh, name), room, value, size);
	}
	int listxattr(const caller &c, const handle &fh, std::uint32_t room, std::string &names,
		      std::size_t &size) override
	{
		return extended(COOP_ST_LISTXATTR, request_on(c, fh), room, names, size);
	}
	int setxattr(const caller &c, const handle &fh, std::string_view name,
		     std::string_view value, int flags, write_result &out, late_reply late) override
	{
		coop_st_body ask = request_in(c, fh, name);
		ask.flags = bit_if(flags & XATTR_CREATE, COOP_ST_X_CREATE) |
			    bit_if(flags & XATTR_REPLACE, COOP_ST_X_REPLACE);
		const iovec v = {const_cast<char *>(value.data()), value.size()};
		return changed(COOP_ST_SETXATTR, ask, out, {&v, value.empty() ? 0u : 1u},
			       std::move(late));
	}
	int removexattr(const caller &c, const handle &fh, std::string_view name, write_result &out,
			late_reply late) override
	{
		return changed(COOP_ST_REMOVEXATTR, request_in(c, fh, name), out, {},
			       std::move(late));
	}
	int statfs(const caller &c, const handle &fh, struct statvfs &out) override
	{
		coop_st_body ask = request_on(c, fh), got{};
		std::string text;
		if (int err = link_.ask(COOP_ST_STATFS, ask, got, text))
			return err;
		out = statvfs_of(got.statfs);
		return 0;
	}

private:
	// Unless there is none.
	void tell_address()
	{
		const auto self = link_.self();
		if (!self)
			return;
		auto c = link_.make(link_.join_op(), *self);
		c->done = [](storage_link::outcome &o) {
			if (o.err)
				spdlog::warn("storage: the node's new address was not "
					     "registered: {}; peers cannot request pages from it",
					     std::strerror(-o.err));
		};
		link_.submit(std::move(c));
	}

	int plain(std::uint16_t op, const coop_st_body &ask, attributes *dir_after = nullptr)
	{
		coop_st_body got{};
		std::string text;
		const int err = link_.ask(op, ask, got, text);
		if (!err && dir_after)
			*dir_after = attributes_of(got.dir);
		return err;
	}

	int extended(std::uint16_t op, coop_st_body ask, std::uint32_t room, std::string &data,
		     std::size_t &size)
	{
		coop_st_body got{};
		std::string text;
		ask.count = room;
		data.clear();
		if (int err = link_.ask(op, ask, got, text, &data))
			return err;
		size = got.size;
		return data.size() == (room ? size : 0) && (!room || size <= room) ? 0 : -EPROTO;
	}

	int entry_call(std::uint16_t op, const coop_st_body &ask, entry &out,
		       attributes *dir_after = nullptr,
		       std::function<void(const storage_link::outcome &)> heard = {})
	{
		coop_st_body got{};
		const int err = link_.ask(op, ask, got, out.fh, nullptr, {}, {}, std::move(heard));
		if (err)
			return err;
		out.attr = attributes_of(got.attr);
		if (dir_after)
			*dir_after = attributes_of(got.dir);
		return 0;
	}

	int changed(std::uint16_t op, const coop_st_body &ask, write_result &out,
		    std::span<const iovec> data = {}, late_reply late = {},
		    std::uint64_t *length = nullptr)
	{
		coop_st_body got{};
		std::string text;
		std::function<void(storage_link::outcome &)> orphan;
		if (late)
			orphan = [late = std::move(late)](storage_link::outcome &o) {
				late(o.err, o.err ? write_result{} : change_of(*o.body));
			};
		const int err = link_.ask(op, ask, got, text, nullptr, data, std::move(orphan));
		if (!err)
			out = change_of(got);
		if (!err && op == COOP_ST_WRITE)
			out.stable = got.flags & COOP_ST_WRITE_STABLE;
		if (!err && length)
			*length = got.length;
		return err;
	}

	std::unique_ptr<storage_link> connection_;
	storage_link &link_;
	lock_keeper keeper_;
	storage_locks locks_;
	storage_opens opens_;
	storage_reads reads_;
	std::mutex leaving_mutex_;
	bool leaving_ = false; // a LEAVE is under way
};

} // namespace

std::unique_ptr<storage> connect_without_leases(const storage_options &o)
{
	return std::make_unique<remote_storage>(o);
}

} // namespace coop::client
