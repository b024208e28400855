// SPDX-License-Identifier: MIT
// stream.cpp - creating and mapping the streams of frames; see stream.hpp.
#include "userland/ntrdma/ether/stream.hpp"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace coop::ntrdma
{

namespace
{

constexpr std::size_t both = 2 * std::size_t{frame_stream_bytes};
constexpr int fixed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

} // namespace

std::unique_ptr<frame_streams> frame_streams::create(unique_fd *fd)
{
	*fd = unique_fd{memfd_create("coop-ether", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
	if (!*fd || ftruncate(fd->get(), both) || fcntl(fd->get(), F_ADD_SEALS, fixed))
		throw std::system_error{errno, std::generic_category(), "memory for frames"};
	auto made = map(fd->get());
	if (!made)
		throw std::system_error{errno, std::generic_category(), "memory for frames"};
	return made;
}

std::unique_ptr<frame_streams> frame_streams::map(int fd)
{
	struct stat st;
	int has = fcntl(fd, F_GET_SEALS);
	if (has < 0 || (has & fixed) != fixed || fstat(fd, &st) ||
	    st.st_size != static_cast<off_t>(both)) {
		errno = EINVAL;
		return nullptr;
	}
	void *at = mmap(nullptr, both, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return nullptr;
	return std::unique_ptr<frame_streams>{new frame_streams{static_cast<std::uint8_t *>(at)}};
}

frame_streams::~frame_streams()
{
	munmap(at_, both);
}

} // namespace coop::ntrdma
