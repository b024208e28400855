// SPDX-License-Identifier: MIT
// verbs_watch.hpp - what happens to a device and its port under an endpoint.
//
// Two sources: the asynchronous events of the device, and the kernel's messages
// about devices that come and go. The second one is for drivers that cannot take
// a device away from its users, Soft-RoCE among them: its removal waits, without
// an event, until the last user has closed it.
#pragma once

#include <string>

#include "userland/ud/verbs_device.hpp"

namespace coop::ud
{

class verbs_watch
{
public:
	explicit verbs_watch(ibv_context *);
	~verbs_watch();
	verbs_watch(const verbs_watch &) = delete;
	verbs_watch &operator=(const verbs_watch &) = delete;

	struct news {
		bool port = false; // its state or its addresses may have changed
		bool lost = false; // the device is gone, broken, or waits to be let go
	};
	// All that has arrived; never blocks.
	news take();
	int async_fd() const { return context_->async_fd; }
	int uevent_fd() const { return uevent_; } // -1: not permitted here

private:
	void take_async(news &);
	void take_uevents(news &);

	ibv_context *context_;
	const std::string removal_; // the end of the line that tells of our device's
	int uevent_ = -1;
};

} // namespace coop::ud
