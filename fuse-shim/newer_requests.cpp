// SPDX-License-Identifier: MIT
// newer_requests.cpp - see newer_requests.hpp. Opcodes are those of linux/fuse.h, which may be
// older where this is built than the kernel where it runs.
#include "fuse-shim/newer_requests.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <sys/uio.h>
#include <unistd.h>

#include <linux/fuse.h>

namespace coop::shim
{

namespace
{

constexpr std::uint32_t opcode_tmpfile = 51; // FUSE_TMPFILE, since 7.37

// The name is the end of it. What else may follow one is not negotiated.
void become_create(std::byte *request, std::size_t room)
{
	constexpr std::size_t at = sizeof(fuse_in_header) + sizeof(fuse_create_in);
	if (room <= at + nameless.size())
		return;
	std::memcpy(request + at, nameless.data(), nameless.size());
	request[at + nameless.size()] = std::byte{0};
	const std::uint32_t opcode = FUSE_CREATE;
	std::memcpy(request + offsetof(fuse_in_header, opcode), &opcode, sizeof(opcode));
}

// A worker that waits here is cancelled when the session ends: nothing to destroy in this frame.
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
	return n;
}

ssize_t write_reply(int fd, iovec *iov, int count, void *)
{
	return ::writev(fd, iov, count);
}

} // namespace

void take_newer_requests(fuse_session *session)
{
	fuse_custom_io io{};
	io.read = read_request;
	io.writev = write_reply;
	if (fuse_session_custom_io(session, &io, fuse_session_fd(session)) != 0)
		throw std::runtime_error("libfuse does not let its device be read");
}

} // namespace coop::shim
