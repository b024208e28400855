// SPDX-License-Identifier: MIT
// verbs_device.hpp - an opened RDMA device and the port and GID that an endpoint
// uses; owners for everything that libibverbs hands out.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include <infiniband/verbs.h>

#include "userland/ud/endpoint.hpp"

namespace coop::ud
{

template <auto destroy> struct verbs_delete {
	template <typename T> void operator()(T *object) const { destroy(object); }
};
template <typename T, auto destroy> using verbs_owner = std::unique_ptr<T, verbs_delete<destroy>>;

using verbs_context = verbs_owner<ibv_context, ibv_close_device>;
using verbs_pd = verbs_owner<ibv_pd, ibv_dealloc_pd>;
using verbs_mr = verbs_owner<ibv_mr, ibv_dereg_mr>;
using verbs_channel = verbs_owner<ibv_comp_channel, ibv_destroy_comp_channel>;
using verbs_cq = verbs_owner<ibv_cq, ibv_destroy_cq>;
using verbs_qp_owner = verbs_owner<ibv_qp, ibv_destroy_qp>;
using verbs_ah = verbs_owner<ibv_ah, ibv_destroy_ah>;

class verbs_device
{
public:
	// Throws std::system_error; its text names the missing device, port or GID.
	explicit verbs_device(const verbs_options &);

	ibv_context *context() const { return context_.get(); }
	std::uint8_t port() const { return port_; }
	std::uint8_t gid_index() const { return gid_index_; }
	bool roce() const { return port_attr_.link_layer == IBV_LINK_LAYER_ETHERNET; }
	// Whether the own GID, and so every peer's, is an IPv4 address.
	bool ipv4() const;
	// Zero if the fabric addresses nodes by LID only.
	const std::array<std::uint8_t, 16> &gid() const { return gid_; }
	std::uint16_t lid() const { return port_attr_.lid; }
	std::uint32_t mtu() const;  // of the port, payload bytes
	std::uint32_t mbps() const; // of the link, megabits a second; 0: unknown
	const ibv_device_attr &attr() const { return attr_; }
	// Soft-RoCE up to Linux 6.3 also runs its responder on the thread of a sender, and RESET
	// does not wait for it. After the last flushed completion it may still be on its way out; a
	// state other than ERR then makes it read a missing packet, and the kernel crashes.
	// Destroying a queue pair waits.
	bool may_reset() const { return attr_.vendor_id && attr_.vendor_id != 0xffffff; }
	std::string name() const;
	// LID and GID may change under a running endpoint. False: the port is down now, and its
	// attributes here stay as they were.
	bool refresh();
	// Closes the device. Everything made from it must have been destroyed before.
	void close() { context_.reset(); }

private:
	bool open(ibv_device *);
	int choose_gid(const ibv_port_attr &) const;
	bool adopt(const ibv_port_attr &);

	verbs_context context_;
	std::string device_name_;
	ibv_device_attr attr_{};
	ibv_port_attr port_attr_{};
	std::uint8_t port_;
	std::uint8_t gid_index_ = 0;
	bool gid_is_ours_ = false; // chosen here; choose again when addresses change
	bool by_lid_ = false;      // InfiniBand without ib_gid=: no GRH, gid() is zero
	std::array<std::uint8_t, 16> gid_{};
};

} // namespace coop::ud
