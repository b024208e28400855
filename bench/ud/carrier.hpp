// SPDX-License-Identifier: MIT
// carrier.hpp - the carriers that ud-bench compares: soft RoCE, and bare UDP sockets
// that move datagrams of the same size on the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace ud_bench
{

constexpr std::size_t page = 4096;
constexpr std::size_t wire_overhead = 28; // BTH, DETH, immediate, ICRC
constexpr std::size_t batch_pages = 64;

// One end. Each process makes its own, and they exchange addresses.
class carrier
{
public:
	virtual ~carrier() = default;
	carrier() = default;
	carrier(const carrier &) = delete;
	carrier &operator=(const carrier &) = delete;

	struct where {
		std::uint8_t bytes[32];
	};
	virtual where self() const = 0;
	virtual void connect(const where &) = 0;

	// Bulk: 'data' is whole pages, one datagram each, all in one post.
	virtual void send_pages(std::span<const std::uint8_t> data) = 0;
	// Receives available datagrams. Returns bytes of payload, 0: none.
	virtual std::size_t receive_pages() = 0;
	// Ping-pong: one datagram of that payload; receive_one() returns whether one came.
	virtual void send_one(std::size_t payload) = 0;
	virtual bool receive_one() = 0;
	// Returns false if data is already available.
	virtual bool arm() = 0;
	virtual int fd() const = 0;
	virtual std::string counters() const { return {}; }
};

enum class kind { soft_roce, udp_segmented, udp_plain };

std::unique_ptr<carrier> make_carrier(kind, const std::string &ip);

} // namespace ud_bench
