// SPDX-License-Identifier: MIT
// verbs_watch.cpp - see verbs_watch.hpp.
#include "userland/ud/verbs_watch.hpp"

#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <linux/netlink.h>
#include <sys/socket.h>
#include <unistd.h>

namespace coop::ud
{

verbs_watch::verbs_watch(ibv_context *context) :
	context_(context),
	removal_(std::string("/infiniband_verbs/") + context->device->dev_name)
{
	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
	uevent_ = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK,
			   NETLINK_KOBJECT_UEVENT);
	sockaddr_nl self{};
	self.nl_family = AF_NETLINK;
	self.nl_groups = 1; // the kernel's own messages, not those that udev forwards
	if (uevent_ >= 0 &&
	    ::bind(uevent_, reinterpret_cast<const sockaddr *>(&self), sizeof(self))) {
		::close(uevent_);
		uevent_ = -1;
	}
}

verbs_watch::~verbs_watch()
{
	if (uevent_ >= 0)
		::close(uevent_);
}

verbs_watch::news verbs_watch::take()
{
	news n;
	take_async(n);
	take_uevents(n);
	return n;
}

void verbs_watch::take_async(news &n)
{
	ibv_async_event event;
	while (!ibv_get_async_event(context_, &event)) {
		switch (event.event_type) {
		case IBV_EVENT_DEVICE_FATAL:
			n.lost = true;
			break;
		case IBV_EVENT_GID_CHANGE:
		case IBV_EVENT_LID_CHANGE:
		case IBV_EVENT_PORT_ERR:
		case IBV_EVENT_PORT_ACTIVE:
		case IBV_EVENT_PKEY_CHANGE:
		case IBV_EVENT_CLIENT_REREGISTER:
		case IBV_EVENT_SM_CHANGE:
			n.port = true;
			break;
		default: // queue-pair events show as error completions
			break;
		}
		ibv_ack_async_event(&event);
	}
}

void verbs_watch::take_uevents(news &n)
{
	// "ACTION@PATH", then variables; trust only messages from the kernel.
	char text[2048];
	sockaddr_nl from{};
	iovec data{text, sizeof(text)};
	msghdr message{};
	message.msg_name = &from;
	message.msg_namelen = sizeof(from);
	message.msg_iov = &data;
	message.msg_iovlen = 1;
	while (uevent_ >= 0) {
		const ssize_t length = ::recvmsg(uevent_, &message, 0);
		if (length < 0 && errno == ENOBUFS) { // some were lost, maybe about our device
			n.lost |= ::access(context_->device->dev_path, F_OK) != 0;
			continue;
		}
		if (length <= 0)
			return;
		std::string_view line(text, static_cast<std::size_t>(length));
		line = line.substr(0, line.find('\0'));
		if (from.nl_pid == 0 && line.starts_with("remove@") && line.ends_with(removal_))
			n.lost = true;
	}
}

} // namespace coop::ud
