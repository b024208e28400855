// SPDX-License-Identifier: MIT
// storage_codec.cpp - see storage_codec.hpp.
#include "userland/client/storage_codec.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <linux/falloc.h>

namespace coop::client
{

void fill_cred(const caller &c, coop_st_cred &out)
{
	out.uid = c.uid;
	out.gid = c.gid;
	out.n_groups = static_cast<u32>(std::min<std::size_t>(c.groups.size(), COOP_ST_GROUPS_MAX));
	std::copy_n(c.groups.begin(), out.n_groups, out.groups);
}

coop_st_bytes bytes_of(std::string_view s)
{
	return {reinterpret_cast<const u8 *>(s.data()), static_cast<u32>(s.size())};
}

coop_st_body request_on(const caller &c, const handle &fh)
{
	coop_st_body b{};
	fill_cred(c, b.cred);
	b.fh = bytes_of(fh);
	return b;
}

coop_st_body request_on(const handle &fh, std::uint64_t open_id)
{
	coop_st_body b{};
	b.fh = bytes_of(fh);
	b.open_id = open_id;
	return b;
}

coop_st_body request_in(const caller &c, const handle &dir, std::string_view name)
{
	coop_st_body b = request_on(c, dir);
	b.name = bytes_of(name);
	return b;
}

attributes attributes_of(const coop_st_attr &a)
{
	const auto time = [](const coop_st_time &t) {
		return timespec{static_cast<time_t>(t.sec), static_cast<long>(t.nsec)};
	};
	attributes out{};
	out.fid = a.fid;
	out.version = a.version;
	out.has = a.has & COOP_ST_HAS_XATTRS;
	out.st.st_ino = a.ino;
	out.st.st_size = static_cast<off_t>(a.size);
	out.st.st_blocks = static_cast<blkcnt_t>(a.blocks);
	out.st.st_rdev = a.rdev;
	out.st.st_mode = a.mode;
	out.st.st_nlink = a.nlink;
	out.st.st_uid = a.uid;
	out.st.st_gid = a.gid;
	out.st.st_blksize = static_cast<blksize_t>(a.blksize);
	out.st.st_atim = time(a.atime);
	out.st.st_mtim = time(a.mtime);
	out.st.st_ctim = time(a.ctime);
	if (a.has & COOP_ST_HAS_BTIME)
		out.btime = time(a.btime);
	out.traits = a.traits;
	out.traits_known = a.traits_known;
	out.leased = a.has & COOP_ST_HAS_LEASE;
	out.ask_open = a.has & COOP_ST_HAS_ASK_OPEN;
	out.no_names = a.has & COOP_ST_HAS_NO_NAMES;
	return out;
}

write_result change_of(const coop_st_body &reply)
{
	return {attributes_of(reply.attr), reply.before, reply.verifier};
}

int entries_of(std::string_view data, std::vector<dir_entry> &out)
{
	const auto text = [](const coop_st_bytes &b) {
		return std::string(reinterpret_cast<const char *>(b.p), b.len);
	};
	const auto *p = reinterpret_cast<const u8 *>(data.data());
	for (std::size_t at = 0; at < data.size();) {
		coop_st_body e;
		const int n = coop_st_dirent_get(&e, p + at, static_cast<u32>(data.size() - at));
		if (n <= 0)
			return -EPROTO;
		out.push_back({text(e.name), e.cookie, {text(e.fh), attributes_of(e.attr)}});
		at += static_cast<std::size_t>(n);
	}
	return 0;
}

struct statvfs statvfs_of(const coop_st_statfs &s)
{
	struct statvfs out = {};
	out.f_bsize = s.bsize;
	out.f_frsize = s.frsize;
	out.f_blocks = s.blocks;
	out.f_bfree = s.bfree;
	out.f_bavail = s.bavail;
	out.f_files = s.files;
	out.f_ffree = out.f_favail = s.ffree;
	out.f_namemax = s.namelen;
	return out;
}

open_bundle bundle_of(std::uint64_t open_id, const coop_st_body &reply)
{
	open_bundle out;
	out.fid = reply.fid;
	out.version = reply.version;
	out.size = reply.size;
	out.open_id = open_id;
	out.openers.assign(reply.nodes, reply.nodes + reply.n_nodes);
	std::copy(std::begin(reply.proof), std::end(reply.proof), out.sha256.begin());
	out.more = reply.flags & COOP_ST_B_MORE;
	out.at_nodes = reply.flags & COOP_ST_B_AT_NODES;
	return out;
}

coop_st_setattr set_of(const storage::setattr_request &r)
{
	const auto time = [](const timespec &t) {
		return coop_st_time{t.tv_sec, static_cast<u32>(t.tv_nsec)};
	};
	// The bits are the protocol's own. Times that are not set are undefined.
	coop_st_setattr out{};
	out.valid = r.valid;
	out.mode = r.mode;
	out.uid = r.uid;
	out.gid = r.gid;
	out.size = r.valid & storage::set_size ? r.size : 0;
	if (r.valid & storage::set_atime)
		out.atime = time(r.atime);
	if (r.valid & storage::set_mtime)
		out.mtime = time(r.mtime);
	return out;
}

std::uint32_t open_flags(int flags)
{
	const int mode = flags & O_ACCMODE;
	return bit_if(mode != O_WRONLY, COOP_ST_O_READ) |
	       bit_if(mode != O_RDONLY, COOP_ST_O_WRITE) |
	       bit_if(flags & O_TRUNC, COOP_ST_O_TRUNC) |
	       bit_if(flags & O_APPEND, COOP_ST_O_APPEND) | bit_if(flags & O_EXCL, COOP_ST_O_EXCL) |
	       bit_if(flags & storage::open_exec, COOP_ST_O_EXEC) |
	       bit_if(flags & storage::open_named, COOP_ST_O_NAMED);
}

int fallocate_flags(int mode, std::uint32_t &out)
{
	constexpr int known = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE |
			      FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE |
			      FALLOC_FL_UNSHARE_RANGE;
	out = bit_if(mode & FALLOC_FL_KEEP_SIZE, COOP_ST_FA_KEEP_SIZE) |
	      bit_if(mode & FALLOC_FL_PUNCH_HOLE, COOP_ST_FA_PUNCH) |
	      bit_if(mode & FALLOC_FL_ZERO_RANGE, COOP_ST_FA_ZERO) |
	      bit_if(mode & FALLOC_FL_COLLAPSE_RANGE, COOP_ST_FA_COLLAPSE) |
	      bit_if(mode & FALLOC_FL_INSERT_RANGE, COOP_ST_FA_INSERT) |
	      bit_if(mode & FALLOC_FL_UNSHARE_RANGE, COOP_ST_FA_UNSHARE);
	return mode & ~known ? -EOPNOTSUPP : 0;
}

} // namespace coop::client
