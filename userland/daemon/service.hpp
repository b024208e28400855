// SPDX-License-Identifier: MIT
// service.hpp - the operations: decoded request in, reply out.
//
// Knows files, users and versions, but no sockets. Every function may block in the file system and
// may run on any thread, many at once.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "userland/daemon/audiences.hpp"
#include "userland/daemon/bundles.hpp"
#include "userland/daemon/holders.hpp"
#include "userland/daemon/leases.hpp"
#include "userland/daemon/listings.hpp"
#include "userland/daemon/lock_recovery.hpp"
#include "userland/daemon/locks.hpp"
#include "userland/daemon/members.hpp"
#include "userland/daemon/names_once.hpp"
#include "userland/daemon/replaced.hpp"
#include "userland/daemon/session.hpp"
#include "userland/daemon/stability.hpp"

namespace coop::daemon
{

// A READ up to this length is answered from memory, a longer one streamed from the file. Streaming
// saves a copy but costs the reader a round trip at its end (CHECK); a copy of one readahead window
// is cheaper than that. For a client that reads its replies slowly only short READs are copied.
constexpr std::uint32_t copy_max = 256u << 10;
constexpr std::uint32_t copy_slow_max = 64u << 10;

struct request {
	coop_st_header head{};
	coop_st_body body{};
	std::vector<std::uint8_t> raw; // body's byte strings point into it
	std::vector<std::uint8_t> data;
	std::uint32_t copy_most = copy_max; // READ: bytes
	bool makes = false; // BUNDLE: begin_bundle() has left it to this request to make the bundle
	bool counted = false; // BUNDLE: by bundle_table::for_few()
};

struct service_stats {
	std::array<std::atomic<std::uint64_t>, COOP_ST_OP_END> calls{};
	std::atomic<std::uint64_t> read_bytes{0}, written_bytes{0}, inline_bytes{0}, errors{0};
	// READs answered with nodes, their bytes, and the bytes of those sent again to insist.
	std::atomic<std::uint64_t> redirected{0}, redirected_bytes{0}, insisted_bytes{0};
	std::uint64_t egress_saved_bytes() const;
};

class service
{
public:
	service(std::vector<std::unique_ptr<exported>>, std::size_t inodes_max,
		const state_directory &state, const std::string &boot_id,
		std::chrono::milliseconds grace = lock_grace);

	const exported *find_export(std::string_view name) const;
	const std::vector<std::unique_ptr<exported>> &exports() const { return exports_; }
	// Fills the reply with handle and attributes of an export's root.
	[[nodiscard]] int root(const exported &, reply &);
	// Executes a request; maps its ids as the export says, in place.
	void execute(const exported &, session &, request &, reply &);
	// A change waits until no other client holds a lease on the files that it changes. True:
	// execute it now. False: go() is called when it may be executed. Pass 'what' to changed()
	// afterwards.
	[[nodiscard]] bool begin_change(const exported &, session &, const request &,
					lease_table::extent &what, std::function<void()> go);
	void changed(const lease_table::extent &what, bool done) { leases.end(what, done); }
	// True: execute this BUNDLE now. False: another request is making the bundle, and go() is
	// called, on any thread, when this may be tried again.
	[[nodiscard]] bool begin_bundle(const exported &, const session &, request &,
					std::function<void()> go);
	// The session is forgotten: its locks and leases are released.
	void ended(session &);
	// Who knows whether sessions are silent. Both are about those of the given ones.
	struct silence {
		// Drops the locks of those that are; true: there were some.
		std::function<bool(const lock_table::ids &)> lapse;
		std::function<lock_table::ids(const lock_table::ids &)> of; // which are
	};
	void watch_silence(silence s) { silence_ = std::move(s); } // before the first request
	// Pushes to clients.
	static void tell(const lock_table::grants &);
	void freeze(); // this daemon ends
	// For the tail of a streamed READ: 0, or ESTALE if the file has changed.
	static std::uint32_t still(const reply &);

	service_stats stats;
	opener_table openers;
	audience_table audiences;
	holder_table holders;
	inode_table inodes;
	replaced_files replaced;
	stability stable;
	done_files done;
	lock_table locks;
	lock_recovery recovery;
	lease_table leases{inodes};
	bundle_table bundles; // destroyed before the leases that its bundles hold
	listings listed;

private:
	using call = const request &;
	using operation = int (service::*)(const exported &, session &, call, reply &);
	static const std::array<operation, COOP_ST_OP_END> operations;
	int lookup(const exported &, session &, call, reply &);
	int getattr(const exported &, session &, call, reply &);
	int access(const exported &, session &, call, reply &);
	int setattr(const exported &, session &, call, reply &);
	int open(const exported &, session &, call, reply &);
	int create(const exported &, session &, call, reply &);
	int tmpfile(const exported &, session &, call, reply &);
	int close(const exported &, session &, call, reply &);
	int read(const exported &, session &, call, reply &);
	// True: the reply names nodes instead of the count bytes that it would have.
	bool redirected(session &, const inode &, call, std::uint32_t count, reply &);
	void note_inline(session &, const inode &, std::uint64_t version, const reply &);
	int check(const exported &, session &, call, reply &);
	int write(const exported &, session &, call, reply &);
	int commit(const exported &, session &, call, reply &);
	int mkdir(const exported &, session &, call, reply &);
	int mknod(const exported &, session &, call, reply &);
	int unlink(const exported &, session &, call, reply &);
	int rmdir(const exported &, session &, call, reply &);
	int rename(const exported &, session &, call, reply &);
	int link(const exported &, session &, call, reply &);
	int symlink(const exported &, session &, call, reply &);
	int readlink(const exported &, session &, call, reply &);
	int readdir(const exported &, session &, call, reply &);
	// Adds one entry to 'data' at 'used'. -ENOSPC: it does not fit.
	int list_entry(const exported &, session &, call, const inode &dir, const raw_entry &,
		       payload &data, std::uint32_t &used);
	int statfs(const exported &, session &, call, reply &);
	int getxattr(const exported &, session &, call, reply &);
	int setxattr(const exported &, session &, call, reply &);
	int listxattr(const exported &, session &, call, reply &);
	int removexattr(const exported &, session &, call, reply &);
	int ping(const exported &, session &, call, reply &);
	int lock(const exported &, session &, call, reply &);
	int lock_test(const exported &, session &, call, reply &);
	int unlock(const exported &, session &, call, reply &);
	int reclaimed(const exported &, session &, call, reply &);
	int bundle(const exported &, session &, call, reply &);
	int make_bundle(const exported &, call, const std::string &key,
			std::shared_ptr<class bundle> &);
	int bundled(session &, call, const std::shared_ptr<class bundle> &, reply &);
	// Whether to tell the client that others use the directory in which it looks.
	bool is_shared(session &, call, const inode &dir) const;
	int lease_return(const exported &, session &, call, reply &);
	// Releases the open file's locks.
	void closed(session &, std::uint64_t open_id, const open_file &);
	// lock_table::lock(), also where only locks of silent sessions are in the way.
	int take(session &, const lock_table::asked &, bool wait);
	int fallocate(const exported &, session &, call, reply &);
	int seek(const exported &, session &, call, reply &);
	int copy(const exported &, session &, call, reply &);
	// The directory and the name in it that a change of names is about. ours: the error if that
	// is our orphan directory.
	int place(const exported &, const coop_st_bytes &fh, const coop_st_bytes &name, int ours,
		  inode_ref &dir, std::string &out);
	int remove(const exported &, session &, call, int flags);
	// Creates a name: make(directory, name) as the caller, then looks its entry up. type: of
	// the file that it makes; linked: or the file that gets another name.
	template <class act>
	int add(const exported &, session &, call, reply &, mode_t type, const inode *linked,
		act make);
	// Creates a file's name as the caller, or finds the file that has it; not with EXCL.
	struct named_file {
		unique_fd path;
		unique_fd made;    // opened by its creation
		bool ours = false; // an earlier process made it for this request
	};
	int name_file(const exported &, session &, call, inode &dir, int access, named_file &);
	// For a request that changes names in these directories.
	names_once once(const exported &, session &, call, const inode &dir,
			const inode *other = nullptr);

	// The file that a removal or a rename takes a name from; forgotten afterwards if that was
	// its last.
	struct victim {
		unique_fd path;
		exported::named named; // no handle: there is no such file
		mode_t type = 0;
		bool replaced = false; // another file gets the name in the same step
	};
	[[nodiscard]] int find_victim(const exported &, const inode &dir, const std::string &name,
				      const coop_st_cred &, victim &);
	void forget(const exported &, victim &);
	// Runs change(), which removes a name of the victim. If it is the last one of an open file,
	// the file lives on. The caller holds the directory's mutex.
	template <class act>
	int removing(const exported &, const inode &dir, victim &, const coop_st_cred &,
		     act change);

	// The reply to a change that an earlier process has made, with this result; without the
	// inode's mutex.
	int made_before(const exported &, inode &, int err, reply &);
	// Runs change(fd) between two looks at the version. The caller holds the inode's mutex.
	template <class act> int change_locked(inode &, coop_st_body &, act change);
	int directory(const exported &, const coop_st_bytes &, inode_ref &);
	// Changes extended attributes: change(path of the inode), as the caller.
	template <class act>
	int change_xattr(const exported &, session &, call, reply &, act change);
	// Fills fh and attr of the reply for 'name' in dir.
	int entry(session &, call, const inode &dir, std::string_view name, unique_fd path, reply &,
		  inode_ref *keep);
	// The client becomes a member of the version that its OPEN found, if it may be one.
	void seat(session &, const inode &, const coop_st_attr &, open_file &);
	int commit_names(const exported &, call, reply &);
	int commit_all(const exported &, call, reply &);
	// The fsync of COMMIT. Call without the inode's mutex.
	int sync(const exported &, inode &, int fd, std::uint64_t &verifier);
	int attributes(inode &, coop_st_attr &);
	// Attributes that the client may rely on: with a lease if it wants one and gets one.
	int leased_attributes(session &, call, const inode_ref &, coop_st_attr &);
	// Grants a lease on this file for the reply; tell_offer() puts it into the attributes if it
	// still stands.
	lease_table::offer offer(session &, call, const inode_ref &);
	void tell_offer(lease_table::offer &, inode &, coop_st_attr &);
	// Reports a lease that the client kept over its own change.
	void tell_lease(session &, call, const inode &, coop_st_attr &);
	// Attributes of the directory that the request changed, for a client that keeps its lease
	// on it.
	void tell_directory(const exported &, session &, call, coop_st_attr &);
	void touched(const exported &, session &, call, lease_table::extent &what,
		     std::size_t &keeps);
	void lease_name(const exported &, const inode &dir, std::string_view name,
			lease_table::fids &what);
	// lease: to be reported; then the reply's attributes are from before the caller's rights
	// were checked.
	int opened(session &, inode_ref, call, std::uint32_t want_inline, lease_table::offer lease,
		   reply &);

	std::vector<std::unique_ptr<exported>> exports_;
	silence silence_;
};

std::string_view view(const coop_st_bytes &);
coop_st_bytes bytes(std::string_view);
// Checks the rights of the calling thread's user; 0 or -errno.
int permitted(int fd, int mask);
// Whether the name is our orphan directory, which no client may see.
bool hidden(const exported &, const inode &dir, std::string_view name);
// Whether the file has this version now.
bool matches(inode &, std::uint64_t version);
// Call with the inode's mutex held.
void fill_attr(const file_look &, inode &, std::uint64_t version, coop_st_attr &);

} // namespace coop::daemon
