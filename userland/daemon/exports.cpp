// SPDX-License-Identifier: MIT
// exports.cpp - making handles, and opening files by handle.
#include "userland/daemon/exports.hpp"

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <linux/openat2.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <thread>

namespace coop::daemon
{

namespace
{

constexpr std::size_t head_size = 16;
constexpr std::size_t path_id_size = 16; // inode number, birth time
constexpr std::size_t id_max = COOP_ST_FH_MAX - head_size - handle_mac;
constexpr std::uint8_t handle_version = 1;
constexpr std::uint8_t kind_file = 1, kind_path = 2;

struct file_id {
	struct file_handle head;
	unsigned char room[MAX_HANDLE_SZ];
};

int openat_beneath(int dir, const char *path, int flags, std::uint64_t resolve, unique_fd &out,
		   mode_t mode = 0)
{
	struct open_how how = {};
	how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
	how.mode = mode;
	how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV | resolve;
	long fd;
	do
		fd = ::syscall(SYS_openat2, dir, path, &how, sizeof(how));
	while (fd < 0 && errno == EAGAIN); // a rename raced with the walk
	if (fd < 0)
		return -errno;
	out = unique_fd(static_cast<int>(fd));
	return 0;
}

int identify_by_birth(int fd, std::string &id)
{
	struct statx sx;
	if (::statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &sx))
		return -errno;
	std::uint64_t number[2] = {sx.stx_ino, 0};
	if (sx.stx_mask & STATX_BTIME)
		number[1] = static_cast<std::uint64_t>(sx.stx_btime.tv_sec) * 1'000'000'000 +
			    sx.stx_btime.tv_nsec;
	id.assign(reinterpret_cast<const char *>(number), sizeof(number));
	return 0;
}

int file_handle_of(int fd, file_id &id)
{
	int mount;
	id.head.handle_bytes = id_max;
	return ::name_to_handle_at(fd, "", &id.head, &mount, AT_EMPTY_PATH) ? -errno : 0;
}

// The inode number of a file that has gone may be in use for one that is being made. Until that is
// done, open_by_handle_at(2) says ENOMEM, and after it ESTALE.
int open_by_id(int root, file_id &id, unique_fd &path)
{
	constexpr unsigned tries = 20;
	constexpr std::chrono::milliseconds pause{1};
	for (unsigned i = 1;; i++) {
		path = unique_fd(::open_by_handle_at(root, &id.head, O_PATH | O_CLOEXEC));
		if (path)
			return 0;
		if (errno != ENOMEM || i == tries)
			return errno == ENOENT ? -ESTALE : -errno;
		std::this_thread::sleep_for(pause);
	}
}

coop_fid fid_of(std::string text, std::uint8_t kind, std::int32_t type, std::string_view id)
{
	text.push_back(static_cast<char>(kind));
	text.append(reinterpret_cast<const char *>(&type), sizeof(type));
	text.append(kind == kind_path ? id.substr(0, path_id_size) : id);
	const digest d = sha256(text);
	coop_fid fid;
	std::memcpy(&fid.hi, d.data(), 8);
	std::memcpy(&fid.lo, d.data() + 8, 8);
	return fid;
}

bool same_file(int a, int b)
{
	struct stat x, y;
	return !::fstatat(a, "", &x, AT_EMPTY_PATH) && !::fstatat(b, "", &y, AT_EMPTY_PATH) &&
	       x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

} // namespace

bool good_name(std::string_view name)
{
	return !name.empty() && name.size() <= COOP_ST_NAME_MAX && name != "." && name != ".." &&
	       name.find('/') == name.npos && name.find('\0') == name.npos;
}

exported::exported(const export_spec &spec, const digest &secret, bool force_paths) :
	spec_(spec),
	secret_(secret)
{
	id_.assign(as_view(sha256("coopfs export " + spec.name)).substr(0, 8));
	space_ = id_;
	root_ = unique_fd(::open(spec.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	if (!root_)
		throw std::runtime_error("export " + spec.name + ": " + spec.path + ": " +
					 std::strerror(errno));
	struct stat st;
	struct statfs on;
	if (::fstat(root_.get(), &st) || ::fstatfs(root_.get(), &on))
		throw std::runtime_error("export " + spec.name + ": " + spec.path + ": " +
					 std::strerror(errno));
	std::string what = "coopfs file system " + spec.name + " " + std::to_string(st.st_dev);
	what.append(reinterpret_cast<const char *>(&on.f_fsid), sizeof(on.f_fsid));
	const digest d = sha256(what);
	std::memcpy(&fs_, d.data(), sizeof(fs_));
	random_bytes(run_nonce_.data(), run_nonce_.size());
	clock_ = change_clock::probe(root_.get(), !spec.read_only);
	file_id id;
	int err = file_handle_of(root_.get(), id);
	if (!err) {
		unique_fd test(::open_by_handle_at(root_.get(), &id.head, O_PATH | O_CLOEXEC));
		err = test ? 0 : -errno;
	}
	by_path_ = force_paths || err;
	std::string prefix;
	for (const char c : id_)
		prefix += fmt::format("{:02x}", static_cast<unsigned char>(c));
	unnamed_ = std::make_unique<orphans>(root_.get(), prefix, !spec.read_only);
}

std::string exported::seal(std::uint8_t kind, std::int32_t type, std::string_view id) const
{
	std::string h(head_size, '\0');
	h[0] = static_cast<char>(handle_version);
	h[1] = static_cast<char>(kind);
	h[2] = static_cast<char>(id.size());
	std::memcpy(&h[4], &type, sizeof(type));
	std::memcpy(&h[8], id_.data(), id_.size());
	h.append(id);
	const digest mac = hmac(as_view(secret_), {h});
	h.append(as_view(mac).substr(0, handle_mac));
	return h;
}

void exported::identify(std::uint8_t kind, std::int32_t type, std::string_view id, named &out) const
{
	out.fid = fid_of(id_, kind, type, id);
	out.file = space_ == id_ ? out.fid : fid_of(space_, kind, type, id);
}

bool exported::shares_files(const exported &other) const
{
	struct stat mine, theirs;
	if (by_path_ || other.by_path_)
		return by_path_ == other.by_path_ && !::fstat(root_.get(), &mine) &&
		       !::fstat(other.root_.get(), &theirs) && mine.st_dev == theirs.st_dev;
	// Numbers of devices do not tell: parts of one file system may have several, as on Btrfs.
	file_id id;
	if (file_handle_of(root_.get(), id))
		return false;
	const unique_fd there(::open_by_handle_at(other.root_.get(), &id.head, O_PATH | O_CLOEXEC));
	return there && same_file(there.get(), root_.get());
}

void exported::meet(exported &earlier)
{
	if (!shares_files(earlier))
		return;
	if (siblings_.empty())
		space_ = earlier.space_;
	siblings_.push_back(&earlier);
	earlier.siblings_.push_back(this);
}

std::string exported::known_path(std::string_view handle) const
{
	const std::string id(handle.substr(head_size, handle.size() - head_size - handle_mac));
	std::lock_guard lock(mutex_);
	auto it = paths_.find(id.substr(0, path_id_size));
	if (it != paths_.end()) {
		uses_.splice(uses_.end(), uses_, it->second.use);
		return it->second.path;
	}
	return id.substr(path_id_size);
}

std::string exported::path_of(std::string_view dir, std::string_view name) const
{
	if (dir.empty())
		return ".";
	const std::string up = known_path(dir);
	return up == "." ? std::string(name) : up + "/" + std::string(name);
}

void exported::remember(std::string_view key, std::string path) const
{
	std::lock_guard lock(mutex_);
	auto [it, fresh] = paths_.try_emplace(std::string(key));
	it->second.path = std::move(path);
	if (fresh)
		it->second.use = uses_.insert(uses_.end(), it->first);
	else
		uses_.splice(uses_.end(), uses_, it->second.use);
	if (paths_.size() > path_table_max) {
		paths_.erase(uses_.front());
		uses_.pop_front();
	}
}

void exported::moved(std::string_view handle, std::string_view dir, std::string_view name) const
{
	if (by_path_)
		remember(handle.substr(head_size, path_id_size), path_of(dir, name));
}

int exported::name_of(int fd, std::string_view dir, std::string_view name, named &out) const
{
	if (!by_path_) {
		file_id id;
		if (int err = file_handle_of(fd, id))
			return err == -EOVERFLOW ? -EOPNOTSUPP : err;
		std::string_view bytes(reinterpret_cast<const char *>(id.head.f_handle),
				       id.head.handle_bytes);
		out.handle = seal(kind_file, id.head.handle_type, bytes);
		identify(kind_file, id.head.handle_type, bytes, out);
		return 0;
	}
	std::string id;
	if (int err = identify_by_birth(fd, id))
		return err;
	std::string path = path_of(dir, name);
	remember(id, path);
	// The handle carries only short paths, for use after a restart; the path is no part of the
	// identity.
	if (id.size() + path.size() <= id_max)
		id += path;
	out.handle = seal(kind_path, 0, id);
	identify(kind_path, 0, id, out);
	return 0;
}

int exported::open(std::string_view h, unique_fd &path, named &out) const
{
	if (h.size() < head_size + handle_mac || h.size() > COOP_ST_FH_MAX ||
	    h[0] != static_cast<char>(handle_version) || h.substr(8, 8) != id_ ||
	    h.size() != head_size + static_cast<std::uint8_t>(h[2]) + handle_mac)
		return -ESTALE;
	const digest mac = hmac(as_view(secret_), {h.substr(0, h.size() - handle_mac)});
	if (!equal_secret(mac.data(), h.data() + h.size() - handle_mac, handle_mac))
		return -ESTALE;
	const auto kind = static_cast<std::uint8_t>(h[1]);
	std::int32_t type;
	std::memcpy(&type, h.data() + 4, sizeof(type));
	const std::string_view bytes = h.substr(head_size, h.size() - head_size - handle_mac);
	out.handle = h;
	identify(kind, type, bytes, out);
	if (kind == kind_file && !by_path_) {
		file_id id;
		id.head.handle_bytes = static_cast<unsigned>(bytes.size());
		id.head.handle_type = type;
		std::memcpy(id.head.f_handle, bytes.data(), bytes.size());
		return open_by_id(root_.get(), id, path);
	}
	if (kind != kind_path || !by_path_ || bytes.size() < path_id_size)
		return -ESTALE;
	unique_fd found;
	std::string id;
	if (openat_beneath(root_.get(), known_path(h).c_str(), O_PATH | O_NOFOLLOW,
			   RESOLVE_NO_SYMLINKS, found) ||
	    identify_by_birth(found.get(), id) || id != bytes.substr(0, path_id_size)) {
		if (unnamed_->find(out.fid, found) || identify_by_birth(found.get(), id) ||
		    id != bytes.substr(0, path_id_size))
			return -ESTALE;
	}
	path = std::move(found);
	return 0;
}

int exported::walk(int dir, std::string_view name, unique_fd &path) const
{
	if (!good_name(name))
		return name.size() > COOP_ST_NAME_MAX ? -ENAMETOOLONG : -EINVAL;
	return openat_beneath(dir, std::string(name).c_str(), O_PATH | O_NOFOLLOW,
			      RESOLVE_NO_SYMLINKS, path);
}

int exported::above(int dir, unique_fd &path) const
{
	if (by_path_)
		return -EOPNOTSUPP;
	if (same_file(dir, root_.get()))
		return -EINVAL;
	path = unique_fd(::openat(dir, "..", O_PATH | O_DIRECTORY | O_CLOEXEC));
	return path ? 0 : -errno;
}

bool exported::contains(int dir) const
{
	unique_fd at;
	for (int here = dir; !same_file(here, root_.get()); here = at.get()) {
		unique_fd up(::openat(here, "..", O_PATH | O_DIRECTORY | O_CLOEXEC));
		if (!up || same_file(up.get(), here))
			return false;
		at = std::move(up);
	}
	return true;
}

int exported::make(int dir, std::string_view name, int access, mode_t mode, unique_fd &path,
		   unique_fd &data) const
{
	if (!good_name(name))
		return name.size() > COOP_ST_NAME_MAX ? -ENAMETOOLONG : -EINVAL;
	if (int err = openat_beneath(dir, std::string(name).c_str(),
				     O_CREAT | O_EXCL | O_NOFOLLOW | access, RESOLVE_NO_SYMLINKS,
				     data, mode & 07777))
		return err;
	// Open by descriptor: the name may already mean another file.
	path = unique_fd(::open(("/proc/self/fd/" + std::to_string(data.get())).c_str(),
				O_PATH | O_CLOEXEC));
	return path ? 0 : -errno;
}

} // namespace coop::daemon
