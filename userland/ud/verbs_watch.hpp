// SPDX-License-Identifier: MIT
// verbs_watch.hpp - watches the device and its port under an endpoint.
//
// It has two sources: the asynchronous events of the device, and the kernel's messages
// about added and removed devices. The second is for drivers that cannot take a device
// from its users, Soft-RoCE among them: its removal waits, without an event, until the
// last user has closed it.
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
		bool port = false; // the port's state or addresses may have changed
		bool lost = false; // the device is gone, broken, or its removal waits for us
	};
	// Takes all events that have arrived; never blocks.
	news take();
	int async_fd() const { return context_->async_fd; }
	int uevent_fd() const { return uevent_; } // -1: not permitted here

private:
	void take_async(news &);
	void take_uevents(news &);

	ibv_context *context_;
	const std::string removal_; // the end of the line that reports the removal of our device
	int uevent_ = -1;
};

} // namespace coop::ud
