// SPDX-License-Identifier: MIT
// wire_simulator.cpp - see wire_simulator.hpp.
#include "userland/ud/wire_simulator.hpp"

#include <chrono>
#include <thread>

namespace coop::ud
{

namespace
{
constexpr std::uint32_t million = 1000000;
}

wire_simulator::wire_simulator(const wire_faults &faults) :
	faults_(faults),
	active_(faults.drop_ppm || faults.duplicate_ppm || faults.reorder_ppm ||
		faults.corrupt_ppm || faults.slow_us || faults.longest || faults.cut_after),
	state_(faults.seed)
{
}

// splitmix64
std::uint64_t wire_simulator::random()
{
	std::uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

bool wire_simulator::happens(std::uint32_t ppm)
{
	return random() % million < ppm;
}

void wire_simulator::pass(const any_sockaddr &to, std::span<std::uint8_t> datagram, const emit &out)
{
	// Always draw for each fault, in this order, so that results depend on seed and n only.
	const bool drop = happens(faults_.drop_ppm);
	const bool twice = happens(faults_.duplicate_ppm);
	const bool hold = happens(faults_.reorder_ppm);
	const bool corrupt = happens(faults_.corrupt_ppm);
	const std::uint64_t where = random();

	std::this_thread::sleep_for(std::chrono::microseconds(faults_.slow_us));
	if (drop || (faults_.longest && datagram.size() > faults_.longest) ||
	    (faults_.cut_after && passed_ == faults_.cut_after))
		return;
	passed_++;
	if (corrupt) {
		const std::uint64_t bit = where % (datagram.size() * 8);
		datagram[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
	}
	if (hold && held_.empty()) {
		held_.assign(datagram.begin(), datagram.end());
		held_to_ = to;
	} else {
		out(to, datagram);
		release(out);
	}
	if (twice)
		out(to, datagram);
}

void wire_simulator::release(const emit &out)
{
	if (held_.empty())
		return;
	out(held_to_, held_);
	held_.clear();
}

} // namespace coop::ud
