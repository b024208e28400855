// SPDX-License-Identifier: MIT
// session.cpp - mounting, negotiation with the kernel, the loop.
//
// The order matters at both ends: the client's parts exist before the kernel can send requests, and
// are destroyed only after the last worker has ended. In between, an unreachable daemon makes
// requests wait (signals.hpp limits how long the end waits).
#include "fuse-shim/session.hpp"

#include "fuse-shim/newer_requests.hpp"
#include "fuse-shim/signals.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <stdexcept>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace coop::shim
{

namespace
{

// Largest request of the kernel: twice 512 KiB halves the number of requests and wake-ups.
constexpr unsigned max_read = 1u << 20;
constexpr unsigned max_write = 1u << 20;
// A read that waits for the network blocks a worker.
constexpr unsigned max_workers = 64;
constexpr unsigned max_background = 64;

void want(fuse_conn_info *conn, unsigned cap, bool on)
{
	if (on)
		conn->want |= conn->capable & cap;
	else
		conn->want &= ~cap;
}

void op_init(void *userdata, fuse_conn_info *conn)
{
	want(conn, FUSE_CAP_ASYNC_READ, true);
	want(conn, FUSE_CAP_PARALLEL_DIROPS, true);
	want(conn, FUSE_CAP_READDIRPLUS, true);
	want(conn, FUSE_CAP_READDIRPLUS_AUTO, true);
	want(conn, FUSE_CAP_ATOMIC_O_TRUNC, true);
	// Replies are written from the page store's mapping, and written data go from memory to a
	// socket: no pipe in between.
	want(conn, FUSE_CAP_SPLICE_WRITE, false);
	want(conn, FUSE_CAP_SPLICE_MOVE, false);
	want(conn, FUSE_CAP_SPLICE_READ, false);
	want(conn, FUSE_CAP_WRITEBACK_CACHE, false);
	// A directory's default ACL replaces the umask, and only storage's file system knows it.
	want(conn, FUSE_CAP_DONT_MASK, true);
	// A handle of name_to_handle_at(2) stays valid for a file that the kernel has forgotten.
	want(conn, FUSE_CAP_EXPORT_SUPPORT, true);
	const client::mount_options &o = static_cast<context *>(userdata)->mount.options();
	// Data versions say exactly what is stale; times and sizes do not. Besides, our own writes
	// move the time, so the kernel would drop pages while a pwrite() is on its way, which
	// userland/client/inode.hpp forbids. With the flag, each read(2) would ask for the
	// attributes and see other nodes' writes, but a lost write is too high a price, also on a
	// strict mount.
	want(conn, FUSE_CAP_AUTO_INVAL_DATA, false);
	want(conn, FUSE_CAP_POSIX_LOCKS, !o.local_posix);
	want(conn, FUSE_CAP_FLOCK_LOCKS, !o.local_flock);
	// After a direct write the kernel drops pages that buffered readers loaded in between, but
	// not if the write is asynchronous (Linux up to 6.18 at least): they would stay stale. A
	// synchronous one completes under the inode's lock.
	want(conn, FUSE_CAP_ASYNC_DIO, false);
	// If the kernel checks permissions it has to know the ACLs. The flag turns
	// default_permissions on, so without that ACLs are ordinary attributes, and storage checks
	// them.
	want(conn, FUSE_CAP_POSIX_ACL, o.default_permissions || o.allow_other);
	conn->max_read = max_read;
	conn->max_readahead = ~0u; // set_readahead() sets the limit
	conn->max_write = std::min(conn->max_write, max_write);
	conn->max_background = max_background;
	conn->congestion_threshold = max_background * 3 / 4;
	conn->time_gran = 1;
	if (auto &ready = static_cast<context *>(userdata)->on_init)
		ready();
}

fuse_lowlevel_ops session_operations()
{
	fuse_lowlevel_ops ops = operations();
	ops.init = op_init;
	return ops;
}

std::string escaped(const std::string &text)
{
	std::string out;
	for (char c : text) {
		if (c == ',' || c == '\\')
			out += '\\';
		out += c;
	}
	return out;
}

std::string fuse_options(const client::mount_options &o)
{
	std::string s = fmt::format("fsname={},subtype=coopfs,max_read={}",
				    escaped(client::format_source(o)), max_read);
	if (o.read_only)
		s += ",ro";
	if (o.allow_other)
		s += ",allow_other";
	// The kernel's cache of names is not per user: with several users it has to check
	// permissions.
	if (o.default_permissions || o.allow_other)
		s += ",default_permissions";
	// libfuse adds nosuid and nodev unless told otherwise. A mount by root behaves as on any
	// other file system.
	if (geteuid() == 0)
		s += ",suid,dev";
	for (const std::string &v : o.vfs)
		s += "," + v;
	return s;
}

// libfuse has no word for it. Only the mount itself is looked at: nothing asks us.
bool follow_no_symlinks(const std::string &mountpoint)
{
	mount_attr attr{};
	attr.attr_set = MOUNT_ATTR_NOSYMFOLLOW;
	return ::mount_setattr(AT_FDCWD, mountpoint.c_str(), 0, &attr, sizeof(attr)) == 0;
}

} // namespace

// If nothing is mounted, there is nothing to clean up.
void session::end()
{
	if (fuse_session *live = live_)
		fuse_session_exit(live);
	else
		_exit(1);
}

void session::give_up()
{
	spdlog::warn("failing the requests that still wait for storage");
	if (fuse_session *live = live_)
		fuse_session_unmount(live);
	_exit(0);
}

session::session(const client::mount_options &o, const std::string &mountpoint) :
	options_(o),
	mountpoint_(mountpoint),
	fuse_(nullptr, fuse_session_destroy)
{
	struct stat st;
	if (stat(mountpoint.c_str(), &st) != 0 || !S_ISDIR(st.st_mode))
		throw std::runtime_error(
			fmt::format("mount point '{}' is not a directory", mountpoint));

	client::inode_events events;
	events.pages_stale = [this](client::inode &node) {
		invalidator_.pages_stale(number_of(*context_, node));
	};
	// The kernel takes no page lock for it, and its answer is a request of its own: so this may
	// run inside a request, and on the thread that serves peers.
	events.retrieve = [this](client::inode &node, std::uint64_t offset, std::uint32_t length,
				 std::uint64_t cookie) {
		const std::lock_guard lock(retrieving_);
		if (!retrieves_)
			return -ENODEV;
		return fuse_lowlevel_notify_retrieve(fuse_.get(), number_of(*context_, node),
						     length, static_cast<off_t>(offset),
						     reinterpret_cast<void *>(cookie));
	};
	events.pages_dropped = [this](std::function<void()> f) {
		invalidator_.after(std::move(f));
	};
	events.lease_over = [this](client::inode *node, std::function<void()> then) {
		context *const c = named_.load();
		if (c && node)
			return c->names.lease_over(number_of(*c, *node),
						   c->mount.storage().changes(node->fh),
						   std::move(then));
		if (c)
			c->names.leases_over();
		then();
	};
	mount_ = std::make_unique<client::mount>(o, std::move(events));
	context_ = std::unique_ptr<context>(new context{
		*mount_, control(*mount_, mountpoint_), {}, nullptr, nullptr, {}, {}, {}, {}});
	context_->pages_dropped = [this](std::function<void()> f) {
		invalidator_.after(std::move(f));
	};
	context_->root = mount_->inodes().ref(mount_->storage().root());
	named_ = context_.get();

	std::string options = fuse_options(o);
	std::string words[] = {"coopfs-fuse", "-o", options};
	char *argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
	fuse_args args = FUSE_ARGS_INIT(3, argv);
	fuse_lowlevel_ops ops = session_operations();
	fuse_.reset(fuse_session_new(&args, &ops, sizeof(ops), context_.get()));
	fuse_opt_free_args(&args);
	if (!fuse_)
		throw std::runtime_error("libfuse refused the mount options");
	context_->session = fuse_.get();
	if (fuse_session_mount(fuse_.get(), mountpoint.c_str()) != 0)
		throw std::runtime_error(fmt::format("cannot mount on '{}' (does /dev/fuse exist, "
						     "and do you have access to it?)",
						     mountpoint));
	live_ = fuse_.get();
	if (o.nosymfollow && !follow_no_symlinks(mountpoint)) {
		const int err = errno;
		fuse_session_unmount(fuse_.get());
		throw std::runtime_error(
			fmt::format("option 'nosymfollow': {}", std::strerror(err)));
	}
	take_newer_requests(fuse_.get());
}

// Peers are served until the mount ends, and their requests may lead here.
void session::stop_retrieving()
{
	const std::lock_guard lock(retrieving_);
	retrieves_ = false;
}

session::~session()
{
	invalidator_.stop();
	stop_retrieving();
	if (fuse_session *live = live_.exchange(nullptr))
		fuse_session_unmount(live);
	fuse_.reset();
	// Storage may report changes until it is closed, and uses the context for that.
	mount_.reset();
}

// Waits for the lock of each page. The kernel cannot move its end of the file by the replies to
// READs that it sent before.
void session::drop_pages(fuse_ino_t ino)
{
	client::inode_table &inodes = mount_->inodes();
	const auto node = inodes.to_drop(ino, true);
	if (!node)
		return;
	inodes.let_reads_end(*node);
	if (!inodes.to_drop(ino, mount_->options().strict))
		return;
	unsigned told;
	{
		const client::inode_table::notification turn(inodes, *node);
		if (!inodes.to_drop(ino, mount_->options().strict)) // it may have waited, too
			return;
		told = node->dropping_pages;
		fuse_lowlevel_notify_inval_inode(fuse_.get(), ino, 0, 0);
		inodes.announced(*node, turn.since);
	}
	node->dropping_pages.compare_exchange_strong(told, 0); // unless told again
}

int session::run(const std::function<void()> &usable)
{
	invalidator_.start([this](fuse_ino_t ino) { drop_pages(ino); });
	context_->later.start();
	set_readahead();
	context_->on_init = [this, &usable] {
		if (kernel_expires_names())
			context_->names.start([this](fuse_ino_t dir, const std::string &name) {
				expire_name(fuse_.get(), dir, name);
			});
		usable();
	};
	int err = loop();
	context_->names.stop();
	context_->later.stop();
	invalidator_.stop();
	stop_retrieving();
	fuse_session_unmount(fuse_.get());
	return err;
}

int session::loop()
{
	fuse_loop_config *config = fuse_loop_cfg_create();
	fuse_loop_cfg_set_clone_fd(config, 1);
	fuse_loop_cfg_set_max_threads(config, max_workers);
	fuse_loop_cfg_set_idle_threads(config, max_workers);
	int err = fuse_session_loop_mt(fuse_.get(), config);
	fuse_loop_cfg_destroy(config);
	return err;
}

// Set before INIT, which can only lower it. No thread of ours may access the mount: if it were
// killed while it waits for our own answer, it would keep the device open and wait forever.
void session::set_readahead() const
{
	struct statx st;
	if (statx(AT_FDCWD, mountpoint_.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &st) != 0)
		return; // unmounted in between
	auto path = fmt::format("/sys/class/bdi/{}:{}/read_ahead_kb", st.stx_dev_major,
				st.stx_dev_minor);
	std::ofstream file(path);
	file << options_.readahead * (1u << COOP_PAGE_MIN_SHIFT) / 1024 << std::flush;
	if (!file)
		spdlog::warn("cannot set {}: the kernel keeps its own readahead", path);
}

} // namespace coop::shim
