// SPDX-License-Identifier: MIT
// newer_requests.cpp - see newer_requests.hpp. Defines what it needs of linux/fuse.h under names of
// its own: the header at build time may be older than the running kernel.
#include "fuse-shim/newer_requests.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <linux/fuse.h>

namespace coop::shim
{

namespace
{

constexpr std::uint32_t opcode_tmpfile = 51; // FUSE_TMPFILE, since 7.37
constexpr std::uint32_t opcode_statx = 52;   // FUSE_STATX, since 7.39

constexpr std::uint32_t killpriv_v2 = 1u << 28; // FUSE_HANDLE_KILLPRIV_V2, since 7.33

// A process has one session. The id of its INIT if the kernel offers killpriv_v2, else 0.
std::atomic<std::uint64_t> offered_by{0};
std::atomic<bool> agreed{false};

constexpr std::uint32_t init_has_more = 1u << 30; // FUSE_INIT_EXT, since 7.36: flags2 counts
constexpr std::uint32_t expires_only = 1u << 3;   // FUSE_HAS_EXPIRE_ONLY in flags2, since 7.38
constexpr std::uint32_t only_expire = 1;          // FUSE_EXPIRE_ONLY

std::atomic<bool> expires_names{false};

struct expired_name { // fuse_notify_inval_entry_out, since 7.38
	std::uint64_t parent;
	std::uint32_t name_length, flags;
};

struct statx_time { // fuse_sx_time
	std::int64_t sec;
	std::uint32_t nsec;
	std::int32_t reserved;
};

struct statx_out { // fuse_statx_out, with fuse_statx from 'mask' on
	std::uint64_t valid;
	std::uint32_t valid_nsec, flags;
	std::uint64_t spare[2];
	std::uint32_t mask, blksize;
	std::uint64_t attributes;
	std::uint32_t nlink, uid, gid;
	std::uint16_t mode, spare0;
	std::uint64_t ino, size, blocks, attributes_mask;
	statx_time atime, btime, ctime, mtime;
	std::uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
	std::uint64_t spare2[14];
};
static_assert(offsetof(statx_out, mask) == 32 && sizeof(statx_out) == 288);

void set_opcode(std::byte *request, std::uint32_t opcode)
{
	std::memcpy(request + offsetof(fuse_in_header, opcode), &opcode, sizeof(opcode));
}

// The name is the last part. We negotiate nothing that could follow it.
void become_create(std::byte *request, std::size_t room)
{
	constexpr std::size_t at = sizeof(fuse_in_header) + sizeof(fuse_create_in);
	if (room <= at + nameless.size())
		return;
	std::memcpy(request + at, nameless.data(), nameless.size());
	request[at + nameless.size()] = std::byte{0};
	set_opcode(request, FUSE_CREATE);
}

void look_at_init(const std::byte *request, std::size_t length)
{
	fuse_in_header head;
	fuse_init_in init;
	if (length < sizeof(head) + offsetof(fuse_init_in, flags) + sizeof(init.flags))
		return;
	std::memcpy(&head, request, sizeof(head));
	std::memcpy(&init, request + sizeof(head),
		    offsetof(fuse_init_in, flags) + sizeof(init.flags));
	if (init.flags & killpriv_v2)
		offered_by = head.unique;
	std::uint32_t more;
	constexpr std::size_t at =
		sizeof(head) + offsetof(fuse_init_in, flags) + sizeof(init.flags);
	if (init.flags & init_has_more && length >= at + sizeof(more)) {
		std::memcpy(&more, request + at, sizeof(more));
		expires_names = more & expires_only;
	}
}

// libfuse answers INIT with a header and the arguments after it.
void agree(const iovec *iov, int count)
{
	fuse_out_header head;
	constexpr std::size_t at = offsetof(fuse_init_out, flags);
	std::uint32_t flags;
	if (count < 2 || iov[0].iov_len != sizeof(head) || iov[1].iov_len < at + sizeof(flags))
		return;
	std::memcpy(&head, iov[0].iov_base, sizeof(head));
	if (head.unique != offered_by || head.error)
		return;
	auto *const where = static_cast<std::byte *>(iov[1].iov_base) + at;
	std::memcpy(&flags, where, sizeof(flags));
	flags |= killpriv_v2;
	std::memcpy(where, &flags, sizeof(flags));
	agreed = true;
	offered_by = 0;
}

// A worker blocked here is cancelled when the session ends, so this frame must own nothing.
ssize_t read_request(int fd, void *buffer, std::size_t room, void *)
{
	const ssize_t n = ::read(fd, buffer, room);
	if (n < static_cast<ssize_t>(sizeof(fuse_in_header)))
		return n;
	auto *const request = static_cast<std::byte *>(buffer);
	std::uint32_t opcode;
	std::memcpy(&opcode, request + offsetof(fuse_in_header, opcode), sizeof(opcode));
	if (opcode == opcode_tmpfile)
		become_create(request, room);
	else if (opcode == opcode_statx)
		set_opcode(request,
			   FUSE_BMAP); // its arguments are no longer than these, and are not used
	else if (opcode == FUSE_INIT)
		look_at_init(request, static_cast<std::size_t>(n));
	return n;
}

ssize_t write_reply(int fd, iovec *iov, int count, void *)
{
	if (offered_by)
		agree(iov, count);
	return ::writev(fd, iov, count);
}

statx_time time_of(const timespec &t)
{
	return {t.tv_sec, static_cast<std::uint32_t>(t.tv_nsec), 0};
}

} // namespace

void reply_statx(fuse_req_t req, const client::attributes &a, double lifetime)
{
	statx_out out{};
	out.valid = static_cast<std::uint64_t>(lifetime);
	out.mask = STATX_BASIC_STATS;
	out.blksize = static_cast<std::uint32_t>(a.st.st_blksize);
	out.attributes = a.traits;
	out.attributes_mask = a.traits_known;
	out.nlink = static_cast<std::uint32_t>(a.st.st_nlink);
	out.uid = a.st.st_uid;
	out.gid = a.st.st_gid;
	out.mode = static_cast<std::uint16_t>(a.st.st_mode);
	out.ino = a.st.st_ino;
	out.size = static_cast<std::uint64_t>(a.st.st_size);
	out.blocks = static_cast<std::uint64_t>(a.st.st_blocks);
	out.atime = time_of(a.st.st_atim);
	out.ctime = time_of(a.st.st_ctim);
	out.mtime = time_of(a.st.st_mtim);
	if (a.btime) {
		out.mask |= STATX_BTIME;
		out.btime = time_of(*a.btime);
	}
	out.rdev_major = major(a.st.st_rdev);
	out.rdev_minor = minor(a.st.st_rdev);
	fuse_reply_buf(req, reinterpret_cast<const char *>(&out), sizeof(out));
}

bool storage_takes_set_id()
{
	return agreed;
}

bool kernel_expires_names()
{
	return expires_names;
}

// The kernel may have forgotten the directory or the name: that is an error of no interest.
void expire_name(fuse_session *session, fuse_ino_t dir, std::string_view name)
{
	expired_name what{dir, static_cast<std::uint32_t>(name.size()), only_expire};
	std::string text(name);
	fuse_out_header head{};
	head.len = static_cast<std::uint32_t>(sizeof(head) + sizeof(what) + text.size() + 1);
	head.error = FUSE_NOTIFY_INVAL_ENTRY;
	const iovec iov[] = {
		{&head, sizeof(head)}, {&what, sizeof(what)}, {text.data(), text.size() + 1}};
	(void)!::writev(fuse_session_fd(session), iov, std::size(iov));
}

void take_newer_requests(fuse_session *session)
{
	fuse_custom_io io{};
	io.read = read_request;
	io.writev = write_reply;
	if (fuse_session_custom_io(session, &io, fuse_session_fd(session)) != 0)
		throw std::runtime_error("libfuse does not support a custom device reader");
}

} // namespace coop::shim
