// SPDX-License-Identifier: MIT
// verbs_ah_cache.hpp - address handles by destination and flow (rpc/base/flow.h).
//
// Making a handle may resolve the peer's MAC in the kernel, which takes milliseconds,
// or seconds if the peer is gone. So the cache keeps handles, and for a while also
// remembers that a peer cannot be resolved. A replaced handle must live while a send
// may name it: it rests until the endpoint has no send in flight.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "rpc/base/flow.h"
#include "userland/ud/verbs_device.hpp"

namespace coop::ud
{

class ah_cache
{
public:
	explicit ah_cache(std::uint8_t traffic_class = 0) : traffic_class_(traffic_class) {}
	// The handle for what the queue pair with this number sends, or nullptr and *error =
	// -errno. The device may refuse a handle for a flow; then it is that of flow 0.
	ibv_ah *find(ibv_pd *pd, const verbs_device &device, const address &to,
		     std::uint32_t own_qpn, int &error);
	// The port's addresses changed: all handles are stale.
	void forget();
	// No send is in flight.
	void quiet() { resting_.clear(); }

private:
	static constexpr std::size_t max_handles = 1024 * COOP_FLOWS; // in use, and resting
	static constexpr std::chrono::seconds keep_failure{1};

	struct key {
		std::array<std::uint8_t, 16> gid;
		std::uint16_t lid;
		std::uint8_t sl, flow;
		auto operator<=>(const key &) const = default;
	};
	struct entry {
		verbs_ah handle;
		std::uint64_t used = 0;
		int error = 0;
		std::chrono::steady_clock::time_point failed{};
	};

	ibv_ah *find(ibv_pd *, const verbs_device &, const key &, int &error);
	bool make_room();

	std::uint8_t traffic_class_;
	std::map<key, entry> handles_;
	std::vector<verbs_ah> resting_;
	std::uint64_t clock_ = 0;
};

} // namespace coop::ud
