// SPDX-License-Identifier: MIT
// storage.hpp - the interface to the storage daemon.
//
// One object is one mount's connection. Calls may come from any thread, any number may be in
// flight, and replies arrive in any order. A lost connection is re-established with backoff; calls
// that are safe to repeat are repeated, so a caller sees -EIO or -ETIMEDOUT only when storage was
// unreachable for longer than the timeout. Errors are -errno, as returned by the daemon's file
// system.
#pragma once

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <vector>

#include "coop/boot_clock.hpp"
#include "rpc/fetch/engine.h"
#include "rpc/storage/message.h"

namespace coop::client
{

// Opaque, made by the daemon, valid over its restart; at most 128 bytes.
using handle = std::string;

struct caller {
	uid_t uid;
	gid_t gid;
	std::vector<gid_t> groups;
};

// What this node can do for others.
struct node_ability {
	bool forwards = true;   // loads pages for its children in a forest
	std::uint32_t mbps = 0; // megabits a second that it can send; 0: unknown
};

// Mode of a new file and the caller's umask. The export's file system applies the umask, or the
// directory's default ACL in its place.
struct new_mode {
	new_mode(mode_t mode, mode_t umask = 0) : mode(mode), umask(umask) {}
	mode_t mode, umask;
};

struct attributes {
	coop_fid fid;          // never reused for another file
	std::uint64_t version; // data version; 0 for files without one (directories ...)
	std::uint32_t has; // enum coop_st_has: the kinds of extended attributes that the file has
	struct stat st;    // st_ino is the daemon's
	std::optional<timespec> btime; // if the export's file system keeps it
	// STATX_ATTR_* of statx(2), and the mask of those that the export's file system reports.
	std::uint32_t traits = 0, traits_known = 0;
	bool leased = false;   // valid until the daemon recalls the lease
	bool ask_open = false; // of an open: storage wants to know of each open
	bool no_names = false; // a directory that was just made: empty, covered by the lease
	// Of a lookup, also if there is no such name: other clients use the directory too.
	bool shared_dir = false;
};

struct entry {
	handle fh;
	attributes attr;
	// The name leads to it until the daemon recalls the lease of the name's directory.
	bool name_leased = false;
};

struct open_result {
	attributes attr;
	std::uint64_t
		open_id; // for close; stays valid over lost connections and restarts of the daemon
	std::vector<std::uint32_t>
		openers;            // node ids, most recent first, <= COOP_MAX_HINTS, never our own
	std::string inline_data;    // the file's first bytes, if the daemon sent them
	std::uint64_t verifier = 0; // see write_result
};

struct write_result {
	attributes attr; // after the change
	std::uint64_t
		version_before; // equal to the known version: no other client wrote in between
	// Of a change or a commit. If a commit returns the change's own verifier, the change is on
	// stable storage; if another, the change may be lost. 0 from close.
	std::uint64_t verifier = 0;
	bool stable = false; // of a stable write: all of it is on stable storage
};

struct dir_entry {
	std::string name;
	std::uint64_t cookie; // position after this entry, to continue from
	entry node; // fh empty: may be listed but not looked at; only st_ino and S_IFMT are set
};

struct node_event {
	bool joined;        // false: left
	std::uint32_t node; // id
	coop_addr addr;     // control queue pair; valid when joined
};

// This node's place among the members of one version of a file: see STORAGE.md, "Roles".
struct file_roles {
	coop_fid fid;
	std::uint64_t version;
	coop_st_roles roles; // members 1: this node is alone
};

// A bundle that was opened: see STORAGE.md, "Bundles".
struct open_bundle {
	coop_fid fid{};
	std::uint64_t version = 0, size = 0, open_id = 0;
	std::vector<std::uint32_t> openers;    // node ids
	std::array<std::uint8_t, 32> sha256{}; // of its bytes
	bool more = false;                     // there is a next part
	bool at_nodes = false;                 // contents that nodes have are not in it
	bool from_peers = false;               // read from these, not from storage
};

// The content of a file that these nodes were sent.
struct held_content {
	coop_fid fid;
	std::uint64_t version, size;
	std::vector<std::uint32_t> nodes; // node ids
};

// How a mount reads bundles, and keeps the contents of files that are in them.
class bundle_reader
{
public:
	virtual ~bundle_reader() = default;
	// Opens a bundle of this directory by open() and reads it, from peers or storage. 0 or
	// -errno. The bundle stays open for peers until closed(), if open() succeeded: then out has
	// its open id.
	virtual int read(const handle &dir, const std::function<int(open_bundle &)> &open,
			 open_bundle &out, std::string &bytes) = 0;
	virtual void closed(const open_bundle &) = 0;
	virtual void keep(const open_bundle &, const coop_fid &, std::uint64_t version,
			  std::string_view bytes) = 0;
	// Contents that are not in a bundle, since nodes have them: may fetch them ahead of their
	// use. Returns at once.
	virtual void at_nodes(std::vector<held_content>) = 0;
};

struct storage_options {
	std::string server; // host or address
	std::uint16_t port;
	std::string export_name; // "/data"
	std::string key_file;    // empty: none
	std::uint32_t timeout_ms =
		60000; // after which a call fails with -ETIMEDOUT; 0: never (hard)
	// For how long a promise of storage is relied on; for tests: less.
	std::chrono::milliseconds trust{COOP_ST_LEASE_TRUST_MS};
	std::function<void(const node_event &)> on_node; // on the connection's thread
	// Called after a reconnection and registration, before on_node reports the nodes. All
	// earlier nodes were reported as left when the connection was lost.
	std::function<void()> on_reconnect;
	// Without it the client is no member of any file, and reads are not redirected. Called on
	// the connection's thread, before the open that it belongs to returns, and again when the
	// roles change, which may be shortly after the file's last close. A lost connection ends
	// all roles.
	std::function<void(const file_roles &)> on_roles;
	// The daemon may have begun a new run, with this fabric key. It tells of no node before
	// this returns. On the connection's thread.
	std::function<void(const std::array<std::uint8_t, 16> &)> on_fabric_key;
	// Ask for leases. The three functions run on the connection's thread.
	bool leases = false;
	std::function<void(const coop_fid &)> on_recall; // the daemon waits for return_lease()
	// The daemon is about to learn that we no longer rely on the lease of this file, or on any
	// (0). Who else relies on it stops, and then calls then(), once, on any thread. Called on
	// any thread; must not wait.
	std::function<void(const coop_fid &, std::function<void()> then)> on_lease_over =
		[](const coop_fid &, const std::function<void()> &then) { then(); };
	// The connection is lost, and with it all leases and roles.
	std::function<void()> on_lost;
	std::function<void()> on_tick; // about ten times a second
	// The daemon has not answered for so long that it may give locks of this mount to others,
	// until it answers: nobody may read what the kernel has of the files for which locked() is
	// true. Called about each second, on a thread of its own.
	std::function<void(const std::function<bool(const handle &)> &locked)> on_locks_in_doubt;
	// A lock of this file is lost. On the connection's thread, before any request is sent.
	std::function<void(const handle &)> on_lock_lost;
	// With leases: ask for bundles where other clients use the same directory. Null: do not.
	std::shared_ptr<bundle_reader> bundles;
};

// Calls answered from leases without asking the daemon, and recalls.
struct lease_figures {
	std::uint64_t held = 0, lookups = 0, attributes = 0, opens = 0, listings = 0, recalls = 0;
	// Bundles asked for and those of them that were of use, and the files in them.
	std::uint64_t bundles_asked = 0, bundles = 0, bundled_files = 0;
};

class storage
{
public:
	virtual ~storage() = default;
	// Throws std::system_error or std::runtime_error with a text that tells the user what to
	// change.
	static std::unique_ptr<storage> connect(const storage_options &);

	virtual const entry &root() const = 0;
	// The fabric key of this run of the daemon: the nodes of the export have it.
	virtual std::array<std::uint8_t, 16> fabric_key() const = 0;
	// Registers this node. Returns its id; 0: not registered.
	virtual std::uint32_t register_node(const coop_addr &control_qp, const node_ability &) = 0;
	std::uint32_t register_node(const coop_addr &control_qp)
	{
		return register_node(control_qp, {});
	}
	// The registered node's address has changed. Returns at once.
	virtual void update_node(const coop_addr &control_qp) = 0;
	// Other nodes cannot reach this one until the next update_node(). Returns at once.
	virtual void withdraw_node() = 0;

	virtual int lookup(const caller &, const handle &dir, std::string_view name,
			   entry &out) = 0;
	virtual int getattr(const caller &, const handle &, attributes &out) = 0;
	// allowed: those of R_OK, W_OK and X_OK in `wanted` that storage permits the caller.
	virtual int access(const caller &, const handle &, int wanted, int &allowed,
			   attributes &out) = 0;
	struct setattr_request {
		std::uint32_t valid; // FUSE_SET_ATTR-like bits: see set_* below
		mode_t mode;
		uid_t uid;
		gid_t gid;
		std::uint64_t size;
		timespec atime, mtime;
		std::uint64_t by = 0; // open id of the file by which the size is set; 0: none
	};
	enum : std::uint32_t {
		set_mode = 1,
		set_uid = 2,
		set_gid = 4,
		set_size = 8,
		set_atime = 16,
		set_mtime = 32,
		set_atime_now = 64,
		set_mtime_now = 128,
		kill_id = 256, // clear set-id bits in the file's current mode
	};
	// Result of a change that was sent and whose caller got -EINTR or -ETIMEDOUT: 0 and the
	// result, or -errno. Called once, on the connection's thread; destroyed without a call if
	// the call itself returned its result.
	using late_reply = std::function<void(int err, const write_result &)>;
	// Time after which a call fails with -ETIMEDOUT; 0: never.
	virtual std::chrono::milliseconds patience() const = 0;
	// Like write: version_before shows whether another client wrote.
	virtual int setattr(const caller &, const handle &, const setattr_request &,
			    write_result &out, late_reply late = {}) = 0;
	// The kernel's mark of an open for execution, in the flags that FUSE passes.
	static constexpr int open_exec = 0x20;
	// In the same flags: -ESTALE, and nothing is done, if the file has no name.
	static constexpr int open_named = 0x10;
	static_assert(!(open_named & (O_ACCMODE | O_TRUNC | O_APPEND | O_EXCL | O_CREAT)));
	// flags: O_ACCMODE | O_TRUNC | O_APPEND | open_exec | open_named, or O_EXCL (create).
	// want_inline: most bytes wanted in the reply. late: for O_TRUNC, without version_before.
	virtual int open(const caller &, const handle &, int flags, std::uint32_t want_inline,
			 open_result &out, late_reply late = {}) = 0;
	virtual int create(const caller &, const handle &dir, std::string_view name, int flags,
			   const new_mode &mode, entry &node, open_result &out,
			   attributes *dir_after = nullptr) = 0;
	// A file without a name, until link() gives it one; with O_EXCL link() cannot.
	virtual int tmpfile(const caller &, const handle &dir, int flags, const new_mode &mode,
			    entry &node, open_result &out) = 0;
	// These are one open file to its user: the first also ends when the other does because a
	// lock is lost. False: the other has ended already.
	virtual bool goes_with([[maybe_unused]] std::uint64_t open_id,
			       [[maybe_unused]] std::uint64_t other)
	{
		return true;
	}
	// out: the version of the written contents, if the file was open for writing.
	virtual int close(const handle &, std::uint64_t open_id, write_result &out) = 0;
	// Closes a file that was open for reading: sent some time later; returns at once.
	virtual void close_reader(const handle &fh, std::uint64_t open_id) = 0;
	// stable: storage shall commit the write too; ignored for more than COOP_ST_IO_MAX bytes.
	virtual int write(const handle &, std::uint64_t open_id, std::uint64_t offset,
			  std::span<const iovec> data, write_result &out, late_reply late = {},
			  bool stable = false) = 0;
	virtual int commit(const handle &, std::uint64_t open_id, write_result &out) = 0;
	// Commits the names in a directory, and its attributes. lost: changes of this mount that
	// were answered before may be lost, also if storage could not write; told once.
	virtual int commit_names(const handle &dir, bool &lost)
	{
		write_result r;
		lost = false;
		return commit(dir, 0, r);
	}
	// mode: FALLOC_FL_*. Results as of write.
	virtual int fallocate(const handle &, std::uint64_t open_id, int mode, std::uint64_t offset,
			      std::uint64_t length, write_result &out, late_reply late = {}) = 0;
	// whence: SEEK_DATA or SEEK_HOLE. -ENXIO: none at or after offset.
	virtual int seek(const handle &, std::uint64_t open_id, int whence, std::uint64_t offset,
			 std::uint64_t &out) = 0;
	struct place {
		const handle &fh;
		std::uint64_t open_id, offset;
	};
	// Copies between open files, or within one. length: in bytes wanted, out bytes copied from
	// the start of the range: fewer if storage stopped early, 0 at the end of the file. Results
	// as of write, for 'to'.
	virtual int copy(const place &from, const place &to, std::uint64_t &length,
			 write_result &out, late_reply late = {}) = 0;

	struct read_result {
		int err;               // 0 or -errno
		std::uint64_t bytes;   // read into the buffers; fewer than asked: end of file
		std::uint64_t version; // of the file while it was read; changed during the read:
				       // -ESTALE here
		std::uint64_t size;    // of the file
		// Of a shared read: not empty: nodes that were sent these bytes; none were read.
		std::vector<std::uint32_t> holders{};
		std::uint32_t level = COOP_LEVEL_REDIRECTED; // of the load that asks these
	};
	// Asynchronous: done runs on the connection's thread, when the bytes are in dest. version
	// != 0: fail with -ESTALE if the file has another version.
	virtual void read(const handle &, std::uint64_t open_id, std::uint64_t offset,
			  std::vector<iovec> dest, std::uint64_t version,
			  std::function<void(const read_result &)> done) = 0;
	// The same, of a file that this node may have roles for. Storage may name nodes in place of
	// the bytes; insist: it shall not, because the nodes named before did not have them. At
	// most COOP_ST_IO_MAX bytes; longer reads are not shared.
	virtual void read_shared(const handle &fh, std::uint64_t open_id, std::uint64_t offset,
				 std::vector<iovec> dest, std::uint64_t version,
				 [[maybe_unused]] bool insist,
				 std::function<void(const read_result &)> done)
	{
		read(fh, open_id, offset, std::move(dest), version, std::move(done));
	}

	// dir_after: the directory's attributes after the change; mode 0 if storage does not report
	// them.
	virtual int mkdir(const caller &, const handle &dir, std::string_view name,
			  const new_mode &mode, entry &out, attributes *dir_after = nullptr) = 0;
	// mode includes the type: a FIFO, a socket, a device, a regular file.
	virtual int mknod(const caller &, const handle &dir, std::string_view name,
			  const new_mode &mode, dev_t device, entry &out,
			  attributes *dir_after = nullptr) = 0;
	virtual int unlink(const caller &, const handle &dir, std::string_view name,
			   attributes *dir_after = nullptr) = 0;
	virtual int rmdir(const caller &, const handle &dir, std::string_view name,
			  attributes *dir_after = nullptr) = 0;
	// flags: RENAME_NOREPLACE | RENAME_EXCHANGE
	virtual int rename(const caller &, const handle &dir, std::string_view name,
			   const handle &new_dir, std::string_view new_name, unsigned flags) = 0;
	virtual int link(const caller &, const handle &node, const handle &new_dir,
			 std::string_view new_name, entry &out,
			 attributes *dir_after = nullptr) = 0;
	virtual int symlink(const caller &, std::string_view target, const handle &dir,
			    std::string_view name, entry &out, attributes *dir_after = nullptr) = 0;
	virtual int readlink(const caller &, const handle &, std::string &out) = 0;
	// Entries after cookie (0: from the start), without "." and "..", up to max_bytes of reply.
	// max_bytes 0: no entries, only check that the caller may read the directory. An entry that
	// may be listed but not looked at has no handle.
	virtual int readdir(const caller &, const handle &dir, std::uint64_t cookie,
			    std::uint32_t max_bytes, std::vector<dir_entry> &out, bool &end) = 0;
	// Extended attributes, with the errors of getxattr(2) and related calls. room 0: the size
	// only; otherwise value is the attribute, at most room bytes.
	virtual int getxattr(const caller &, const handle &, std::string_view name,
			     std::uint32_t room, std::string &value, std::size_t &size) = 0;
	// All names, each with a terminating zero.
	virtual int listxattr(const caller &, const handle &, std::uint32_t room,
			      std::string &names, std::size_t &size) = 0;
	// flags: XATTR_CREATE or XATTR_REPLACE. out and late as for setattr.
	virtual int setxattr(const caller &, const handle &, std::string_view name,
			     std::string_view value, int flags, write_result &out,
			     late_reply late = {}) = 0;
	virtual int removexattr(const caller &, const handle &, std::string_view name,
				write_result &out, late_reply late = {}) = 0;
	virtual int statfs(const caller &, const handle &, struct statvfs &out) = 0;

	// Locks among all mounts of the export. what: an owner id of this mount's choice, and a
	// range. Returns 0: held; -EAGAIN: another owner holds a conflicting lock; -EINPROGRESS,
	// with 'wait': granted() will be called, once, on the connection's thread, with 0 or
	// -errno; until then 'cookie' names the wait.
	using lock_granted = std::function<void(int err)>;
	virtual int lock(const handle &, std::uint64_t open_id, const coop_st_lock &what, bool wait,
			 lock_granted granted, std::uint64_t &cookie) = 0;
	// True: the wait is over and granted() will not be called.
	[[nodiscard]] virtual bool cancel_lock(std::uint64_t cookie) = 0;
	// Releases the owner's locks in that range, whichever open files of this one they were
	// taken through. No lock there is no error.
	virtual int unlock(const handle &, const coop_st_lock &what) = 0;
	// what: in the wanted lock, out a conflicting one, or type COOP_ST_LOCK_NONE.
	virtual int test_lock(const handle &, std::uint64_t open_id, coop_st_lock &what) = 0;
	// Whether this mount's owner holds a lock in that range; a write lock if 'what' is one.
	virtual bool holds_lock(const handle &, const coop_st_lock &what) = 0;
	// 0: this mount holds no lock on the file. Otherwise a number that changes when a lock is
	// lost.
	virtual std::uint64_t lock_era(const handle &) = 0;
	// Call before a program is given what this mount has of the file. -EBADF: the open file has
	// lost a lock. If the mount holds a lock of the file, and the daemon may have given it to
	// others, asks the daemon first.
	virtual int vouch(const handle &, [[maybe_unused]] std::uint64_t open_id) { return 0; }

	// Returns a lease, or all (0), that we no longer trust. Returns at once; done: the daemon
	// knows.
	virtual void return_lease(const coop_fid &, std::function<void()> done) { done(); }
	// Whether a request of this mount to change the file, or names in it, is under way.
	virtual bool changes([[maybe_unused]] const handle &) { return false; }
	// 0: the daemon answers and knows our session. All that it sent before the answer has been
	// handled.
	virtual int ping() { return 0; }
	virtual void ping_later() {}
	// Send time of the latest request that has been answered.
	virtual boot_clock::time_point heard() const { return boot_clock::now(); }
	virtual std::uint64_t new_open_id() { return 0; }
	// Opens for reading with an id from new_open_id(). Returns at once; done runs on the
	// connection's thread.
	virtual void open_as(std::uint64_t open_id, const caller &, const handle &, int flags,
			     std::function<void(int err)> done)
	{
		done(-EOPNOTSUPP);
	}
	// Opens a bundle. flags: enum coop_st_bundle_flag. part: of a subtree, from 0. The leases
	// of what is in it come with the reply. -EOPNOTSUPP: the daemon makes none. No open file of
	// the mount: a lost connection ends it.
	virtual int bundle(const caller &, [[maybe_unused]] const handle &dir,
			   [[maybe_unused]] std::uint32_t flags,
			   [[maybe_unused]] std::uint32_t part, open_bundle &)
	{
		return -EOPNOTSUPP;
	}
	virtual lease_figures leases() const { return {}; }

	struct traffic {
		std::uint64_t tx_bytes, rx_bytes, rx_data_bytes, calls, reconnects;
		bool connected;
		std::uint64_t taken; // replies that their callers received themselves
	};
	virtual traffic stats() const = 0;
	// A call that waits for its reply, or to be sent.
	struct waiting {
		std::uint64_t id;  // on the wire; 0: not sent now
		const char *op;    // its name in the protocol
		const char *state; // "queued", "sent", "abandoned"
		std::uint64_t age_us;
	};
	virtual std::vector<waiting> calls() const = 0;
};

} // namespace coop::client
