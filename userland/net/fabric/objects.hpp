// SPDX-License-Identifier: MIT
// objects.hpp - what every port opens of libfabric before anything else.
#pragma once

#include "provider.hpp"

namespace coop::net::fabric
{

/// What a port has, whatever its end points are; closed in reverse.
struct objects {
	/// Completions of all end points; the size is libfabric's to exceed.
	static constexpr std::size_t queue_size = 4096;

	handle<fid_fabric> fabric;
	handle<fid_domain> domain;
	handle<fid_cq> queue;

	/// @return 0 or -errno.
	int open(fi_info &, fi_wait_obj wait);
	/// The queue, anew: nothing uses it.
	int open_queue(fi_wait_obj wait);
};

/// A completion queue for both directions of an end point, which reports what it is asked to.
int bind_queue(fid_ep &, fid_cq &);

/// Takes what open() of libfabric has put there: `call(&object)` says whether it has.
template <class object, class function> int take(handle<object> &out, const function &call)
{
	object *o = nullptr;
	const int r = call(&o);
	if (r == 0)
		out.reset(o);
	return r;
}

} // namespace coop::net::fabric
