// SPDX-License-Identifier: MIT
// verbs_ah_cache.cpp - see verbs_ah_cache.hpp.
#include "userland/ud/verbs_ah_cache.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace coop::ud
{

namespace
{
constexpr std::uint8_t usual_hop_limit = 64;
}

ibv_ah *ah_cache::find(ibv_pd *pd, const verbs_device &device, const address &to,
		       std::uint32_t own_qpn, int &error)
{
	key k{};
	std::copy_n(to.gid, k.gid.size(), k.gid.begin());
	k.lid = to.lid;
	k.sl = to.sl;
	const bool by_gid =
		std::any_of(k.gid.begin(), k.gid.end(), [](std::uint8_t b) { return b; });
	if (device.roce() || by_gid) // else there is no GRH, which has the label
		k.flow = static_cast<std::uint8_t>(coop_flow_of(own_qpn, to.qpn));
	if (const auto it = handles_.find(k); it != handles_.end() && it->second.handle) {
		it->second.used = ++clock_;
		return it->second.handle.get();
	}
	// That of flow 0 first, so that a peer who cannot be resolved is asked for once.
	const auto flow = std::exchange(k.flow, 0);
	ibv_ah *const any = find(pd, device, k, error);
	if (!any || !flow)
		return any;
	k.flow = flow;
	int refused;
	ibv_ah *const own = find(pd, device, k, refused);
	return own ? own : any;
}

ibv_ah *ah_cache::find(ibv_pd *pd, const verbs_device &device, const key &k, int &error)
{
	auto it = handles_.find(k);
	if (it != handles_.end()) {
		entry &e = it->second;
		e.used = ++clock_;
		if (e.handle)
			return e.handle.get();
		if (std::chrono::steady_clock::now() - e.failed < keep_failure) {
			error = e.error;
			return nullptr;
		}
	} else {
		if (handles_.size() == max_handles && !make_room()) {
			error = -EAGAIN;
			return nullptr;
		}
		it = handles_.try_emplace(k).first;
	}

	const bool by_gid =
		std::any_of(k.gid.begin(), k.gid.end(), [](std::uint8_t b) { return b; });
	ibv_ah_attr attr{};
	attr.port_num = device.port();
	attr.dlid = k.lid;
	attr.sl = k.sl;
	// Use the peer's GID if it has one, also on InfiniBand: only then do its completions name
	// ours.
	if (device.roce() || by_gid || !k.lid) {
		attr.is_global = 1;
		std::memcpy(attr.grh.dgid.raw, k.gid.data(), k.gid.size());
		attr.grh.sgid_index = device.gid_index();
		attr.grh.hop_limit = usual_hop_limit;
		attr.grh.traffic_class = traffic_class_;
		attr.grh.flow_label = coop_flow_label(device.gid().data(), k.gid.data(), k.flow);
	}

	entry &e = it->second;
	e.used = ++clock_;
	errno = 0;
	if (!attr.is_global || by_gid)
		e.handle.reset(ibv_create_ah(pd, &attr));
	else
		errno = EADDRNOTAVAIL;
	if (e.handle)
		return e.handle.get();
	e.error = error = errno ? -errno : -EHOSTUNREACH;
	e.failed = std::chrono::steady_clock::now();
	return nullptr;
}

// Puts the least recently used handle to rest.
bool ah_cache::make_room()
{
	if (resting_.size() == max_handles)
		return false;
	const auto oldest = std::min_element(
		handles_.begin(), handles_.end(),
		[](const auto &a, const auto &b) { return a.second.used < b.second.used; });
	if (oldest->second.handle)
		resting_.push_back(std::move(oldest->second.handle));
	handles_.erase(oldest);
	return true;
}

void ah_cache::forget()
{
	for (auto &[key, e] : handles_)
		if (e.handle)
			resting_.push_back(std::move(e.handle));
	handles_.clear();
}

} // namespace coop::ud
