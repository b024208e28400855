// SPDX-License-Identifier: MIT
// objects.cpp - see objects.hpp.
#include "objects.hpp"

namespace coop::net::fabric
{

int objects::open(fi_info &info, fi_wait_obj wait)
{
	int r = take(fabric, [&](auto **o) { return fi_fabric(info.fabric_attr, o, nullptr); });
	if (!r)
		r = take(domain,
			 [&](auto **o) { return fi_domain(fabric.get(), &info, o, nullptr); });
	return r ? r : open_queue(wait);
}

int objects::open_queue(fi_wait_obj wait)
{
	fi_cq_attr attr{};
	attr.size = queue_size;
	attr.format = FI_CQ_FORMAT_DATA;
	attr.wait_obj = wait;
	queue.reset();
	return take(queue, [&](auto **o) { return fi_cq_open(domain.get(), &attr, o, nullptr); });
}

int bind_queue(fid_ep &ep, fid_cq &queue)
{
	const int r = fi_ep_bind(&ep, &queue.fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION);
	return r ? r : fi_ep_bind(&ep, &queue.fid, FI_RECV);
}

} // namespace coop::net::fabric
