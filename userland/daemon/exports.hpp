// SPDX-License-Identifier: MIT
// exports.hpp - exported directory trees, and the handles of their files.
//
// A handle names a file independently of its path, also after a restart of the daemon:
//
//   version 1 | kind | length of id | handle type | export id (8) | id | MAC (16)
//
// kind 1: id is the handle of name_to_handle_at(). Opening it needs CAP_DAC_READ_SEARCH.
// kind 2, where that is not available: id is the inode number and birth time,
// followed by the path at that time; a table remembers renames. Opening walks the
// path and accepts the result only if number and birth time match.
//
// The MAC keeps clients from forging handles of files outside the export. An export is one file
// system: mounts below it are not entered (-EXDEV).
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coop/cluster_key.hpp"
#include "coop/unique_fd.hpp"
#include "rpc/storage/message.h"
#include "userland/daemon/export_options.hpp"
#include "userland/daemon/orphans.hpp"
#include "userland/daemon/version.hpp"

namespace coop::daemon
{

constexpr std::size_t handle_mac = 16; // bytes
constexpr std::size_t path_table_max = 1
				       << 18; // paths remembered an export, where handles need them

class exported
{
public:
	// Throws std::runtime_error with a text that tells the administrator what to change.
	exported(const export_spec &, const digest &handle_secret, bool force_paths);

	const std::string &name() const { return spec_.name; }
	const std::string &path() const { return spec_.path; }
	const change_clock &clock() const { return clock_; }
	bool by_path() const { return by_path_; }
	const export_spec &spec() const { return spec_; }
	int root() const { return root_.get(); }
	// Files that are open and have lost their last name.
	orphans &unnamed() const { return *unnamed_; }
	// Identifies the file system below the export; the same after a restart.
	std::uint64_t fs() const { return fs_; }
	// Random in each run of the daemon, and told to those only whom it let in.
	const std::array<std::uint8_t, COOP_ST_NONCE> &run_nonce() const { return run_nonce_; }

	// Handle and fid name a file in this export, and differ in every other one, so that no
	// client reaches a file through an export that does not serve it. 'file' is the same in all
	// exports of the file system: what one client does to the file concerns the clients of all.
	struct named {
		std::string handle;
		coop_fid fid, file;
	};
	// Call for each earlier export, in order, before either is used.
	void meet(exported &earlier);
	// Others that have files of this one.
	const std::vector<const exported *> &siblings() const { return siblings_; }
	// The handle of an open file. dir_handle, name: where it was found, for kind 2.
	[[nodiscard]] int name_of(int fd, std::string_view dir_handle, std::string_view name,
				  named &out) const;
	// An O_PATH descriptor of a handle; -ESTALE: forged, of another export, or gone. out: its
	// handle and fids.
	[[nodiscard]] int open(std::string_view handle, unique_fd &path, named &out) const;
	// Opens one component below dir, never through a link or into another mount. Runs as the
	// calling thread's user.
	[[nodiscard]] int walk(int dir, std::string_view name, unique_fd &path) const;
	// Opens the parent directory. -EINVAL: dir is the export's root. -ESTALE: dir is no longer
	// in the export. -EOPNOTSUPP: handles are paths. Runs as the calling thread's user, who
	// needs search permission on dir.
	[[nodiscard]] int above(int dir, unique_fd &path) const;
	// Whether dir is the root or below it.
	[[nodiscard]] bool contains(int dir) const;
	// Creates a regular file; -EEXIST if the name is taken. Runs as the calling thread's user.
	// data: opened as 'access' says (O_RDONLY or O_RDWR), independently of the new file's mode.
	[[nodiscard]] int make(int dir, std::string_view name, int access, mode_t mode,
			       unique_fd &path, unique_fd &data) const;
	// kind 2: records a rename.
	void moved(std::string_view handle, std::string_view dir_handle,
		   std::string_view name) const;

private:
	std::string seal(std::uint8_t kind, std::int32_t type, std::string_view id) const;
	void identify(std::uint8_t kind, std::int32_t type, std::string_view id, named &) const;
	bool shares_files(const exported &) const;
	std::string path_of(std::string_view dir_handle, std::string_view name) const;
	std::string known_path(std::string_view handle) const;
	void remember(std::string_view key, std::string path) const;

	export_spec spec_;
	digest secret_;
	std::string id_;    // 8 bytes, from the name, so that it survives restarts
	std::string space_; // id_ of the first export of this file system
	std::vector<const exported *> siblings_;
	unique_fd root_;
	std::uint64_t fs_ = 0;
	std::array<std::uint8_t, COOP_ST_NONCE> run_nonce_{};
	change_clock clock_;
	bool by_path_ = false;
	std::unique_ptr<orphans> unnamed_;
	struct remembered {
		std::string path;
		std::list<std::string>::iterator use;
	};
	mutable std::mutex mutex_; // guards the path table
	mutable std::unordered_map<std::string, remembered> paths_;
	mutable std::list<std::string> uses_; // oldest first
};

// A name that a client may use: one component, neither "." nor "..".
[[nodiscard]] bool good_name(std::string_view);

} // namespace coop::daemon
