// SPDX-License-Identifier: MIT
// objects.hpp - the libfabric objects that every port opens first.
#pragma once

#include "provider.hpp"

namespace coop::net::fabric
{

/// Stores the object that libfabric's open function returns; `call(&object)` returns its status.
template <class object, class function> int take(handle<object> &out, const function &call)
{
	object *o = nullptr;
	const int r = call(&o);
	if (r == 0)
		out.reset(o);
	return r;
}

/// The objects of a port, for any kind of end points; closed in reverse.
struct objects {
	/// For completions of all end points; libfabric may make it larger.
	static constexpr std::size_t queue_size = 4096;

	handle<fid_fabric> fabric;
	handle<fid_domain> domain;
	handle<fid_cq> queue;

	/// @return 0 or -errno.
	int open(fi_info &info, fi_wait_obj wait)
	{
		int r = take(fabric,
			     [&](auto **o) { return fi_fabric(info.fabric_attr, o, nullptr); });
		if (!r)
			r = take(domain, [&](auto **o) {
				return fi_domain(fabric.get(), &info, o, nullptr);
			});
		return r ? r : open_queue(wait);
	}
	/// Opens the queue again; it must be unused.
	int open_queue(fi_wait_obj wait)
	{
		fi_cq_attr attr{};
		attr.size = queue_size;
		attr.format = FI_CQ_FORMAT_DATA;
		attr.wait_obj = wait;
		queue.reset();
		return take(queue,
			    [&](auto **o) { return fi_cq_open(domain.get(), &attr, o, nullptr); });
	}
};

/// Binds a completion queue to an end point for both directions; only requested completions are
/// reported.
inline int bind_queue(fid_ep &ep, fid_cq &queue)
{
	const int r = fi_ep_bind(&ep, &queue.fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION);
	return r ? r : fi_ep_bind(&ep, &queue.fid, FI_RECV);
}

} // namespace coop::net::fabric
