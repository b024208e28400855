// SPDX-License-Identifier: MIT
// control.hpp - the directory .coopfs at the root of a mount.
//
// It is found by name but not listed, so that copying a tree does not copy it. A real entry of that
// name in the export cannot be reached through the mount. Each open sees one text, rendered at the
// open; a write is one command, executed or refused as a whole.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <sys/stat.h>

#include <fuse_lowlevel.h>

#include "userland/client/mount.hpp"

namespace coop::shim
{

class control
{
public:
	static constexpr std::string_view directory_name = ".coopfs";
	static constexpr fuse_ino_t directory = 2; // its files have the following numbers

	control(client::mount &mount, std::string mountpoint);

	static bool owns(fuse_ino_t ino);
	struct stat attributes(fuse_ino_t ino) const;
	// 0: no such file.
	static fuse_ino_t find(std::string_view name);

	// The operations on inodes for which owns() is true.
	void lookup(fuse_req_t, fuse_ino_t parent, std::string_view name) const;
	void getattr(fuse_req_t, fuse_ino_t) const;
	void setattr(fuse_req_t, fuse_ino_t, int to_set) const;
	void open(fuse_req_t, fuse_ino_t, fuse_file_info *) const;
	void read(fuse_req_t, std::size_t size, off_t, fuse_file_info *) const;
	void write(fuse_req_t, fuse_ino_t, std::string_view text) const;
	void release(fuse_req_t, fuse_file_info *) const;
	void readdir(fuse_req_t, std::size_t size, off_t, bool plus) const;

private:
	std::string render(fuse_ino_t ino) const;
	std::string info() const;
	int command(fuse_ino_t ino, std::string_view text) const;

	client::mount &mount_;
	const std::string mountpoint_;
	const uid_t owner_;
	const gid_t group_;
	const timespec since_;
};

} // namespace coop::shim
