// SPDX-License-Identifier: MIT
// wire_simulator.hpp - a bad wire for tests: drops, duplicates, reorders, corrupts and
// slows single datagrams between soft RoCE and its socket. The fate of the n-th datagram
// depends only on the seed and n.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "userland/ud/endpoint.hpp"
#include "userland/ud/roce_socket.hpp"

namespace coop::ud
{

class wire_simulator
{
public:
	using emit = std::function<void(const any_sockaddr &, std::span<const std::uint8_t>)>;

	explicit wire_simulator(const wire_faults &faults);

	bool active() const { return active_; }
	// May change the bytes.
	void pass(const any_sockaddr &to, std::span<std::uint8_t> datagram, const emit &);
	// Passes a datagram that waits to be overtaken.
	void release(const emit &);

private:
	bool happens(std::uint32_t ppm);
	std::uint64_t random();

	wire_faults faults_;
	bool active_;
	std::uint64_t state_;
	std::uint64_t passed_ = 0;
	any_sockaddr held_to_{};
	std::vector<std::uint8_t> held_;
};

} // namespace coop::ud
