// SPDX-License-Identifier: MIT
// objects.hpp - the libfabric objects that every port opens first.
#pragma once

#include "provider.hpp"

namespace coop::net::fabric
{

/// The objects of a port, for any kind of end points; closed in reverse.
struct objects {
	/// For completions of all end points; libfabric may make it larger.
	static constexpr std::size_t queue_size = 4096;

	handle<fid_fabric> fabric;
	handle<fid_domain> domain;
	handle<fid_cq> queue;

	/// @return 0 or -errno.
	int open(fi_info &, fi_wait_obj wait);
	/// Opens the queue again; it must be unused.
	int open_queue(fi_wait_obj wait);
};

/// Binds a completion queue to an end point for both directions; only requested completions are
/// reported.
int bind_queue(fid_ep &, fid_cq &);

/// Stores the object that libfabric's open function returns; `call(&object)` returns its status.
template <class object, class function> int take(handle<object> &out, const function &call)
{
	object *o = nullptr;
	const int r = call(&o);
	if (r == 0)
		out.reset(o);
	return r;
}

} // namespace coop::net::fabric
