// SPDX-License-Identifier: MIT
// stream.cpp - creating and mapping the streams of frames; see stream.hpp.
#include "userland/ntrdma/ether/stream.hpp"

#include <cerrno>
#include <system_error>

#include <sys/mman.h>

#include "userland/ntrdma/window/sealed.hpp"

namespace coop::ntrdma
{

namespace
{

constexpr std::size_t both = 2 * std::size_t{frame_stream_bytes};

} // namespace

std::unique_ptr<frame_streams> frame_streams::create(unique_fd *fd)
{
	*fd = make_sealed("coop-ether", both);
	auto made = *fd ? map(fd->get()) : nullptr;
	if (!made)
		throw std::system_error{errno, std::generic_category(), "memory for frames"};
	return made;
}

std::unique_ptr<frame_streams> frame_streams::map(int fd)
{
	auto *at = static_cast<std::uint8_t *>(map_sealed(fd, both));
	return std::unique_ptr<frame_streams>{at ? new frame_streams{at} : nullptr};
}

frame_streams::~frame_streams()
{
	munmap(at_, both);
}

} // namespace coop::ntrdma
