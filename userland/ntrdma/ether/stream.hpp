// SPDX-License-Identifier: MIT
// stream.hpp - the memory in which frames lie: one stream for each direction of a link.
//
// The streams of a half hold three segments of 64 KiB, too few for two processes that take turns on
// a processor. So frames have longer ones, in a memory of their own, sealed like a window.
#pragma once

#include <cstdint>
#include <memory>

#include "userland/ntrdma/window/window.hpp"

namespace coop::ntrdma
{

constexpr std::uint32_t frame_stream_bytes = 1u << 20;

class frame_streams
{
public:
	/// New ones. Throws std::system_error.
	static std::unique_ptr<frame_streams> create(unique_fd *fd);
	/// A peer's. Null if they may change their size, or have another.
	static std::unique_ptr<frame_streams> map(int fd);
	~frame_streams();
	frame_streams(const frame_streams &) = delete;
	frame_streams &operator=(const frame_streams &) = delete;
	/// The stream that side 0 or side 1 writes.
	std::uint8_t *side(unsigned i) { return at_ + std::size_t{i} * frame_stream_bytes; }

private:
	explicit frame_streams(std::uint8_t *at) : at_{at} {}
	std::uint8_t *at_;
};

} // namespace coop::ntrdma
