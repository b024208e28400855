// SPDX-License-Identifier: MIT
// verbs_device.cpp - finds the device, the port and the GID. The exception names what
// is missing, because the user who mounts must provide it.
#include "userland/ud/verbs_device.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace coop::ud
{

namespace
{

constexpr std::uint8_t v4_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

[[noreturn]] void fail(int error, const std::string &text)
{
	throw std::system_error(error, std::generic_category(), text);
}

bool query_gid(ibv_context *context, std::uint32_t port, std::uint32_t index, ibv_gid_entry &out)
{
	return !ibv_query_gid_ex(context, port, index, &out, 0);
}

bool is_zero(const ibv_gid &gid)
{
	return std::all_of(gid.raw, gid.raw + 16, [](std::uint8_t b) { return !b; });
}

} // namespace

verbs_device::verbs_device(const verbs_options &options) : port_(options.port)
{
	int count = 0;
	std::unique_ptr<ibv_device *, verbs_delete<ibv_free_device_list>> list(
		ibv_get_device_list(&count));
	if (!list || !count)
		fail(ENODEV,
		     "verbs: " +
			     (options.device.empty() ? std::string()
						     : "device '" + options.device + "': ") +
			     "this machine has no RDMA device (Soft-RoCE: 'rdma link add rxe0 "
			     "type rxe netdev IF'; or leave the device name out to use soft RoCE)");

	std::string seen;
	int error = ENODEV;
	for (int i = 0; i < count && !context_; i++) {
		ibv_device *device = list.get()[i];
		const std::string name = ibv_get_device_name(device);
		seen += (seen.empty() ? "" : ", ") + name;
		if (!options.device.empty() && name != options.device)
			continue;
		if (!open(device))
			error = errno;
	}
	if (!context_) {
		if (options.device.empty())
			fail(ENODEV, "verbs: port " + std::to_string(port_) +
					     " is not active on any device (found: " + seen + ")");
		fail(error, "verbs: device '" + options.device + "' port " + std::to_string(port_) +
				    " is missing, not permitted or not active (found: " + seen +
				    ")");
	}

	gid_is_ours_ = options.gid_index < 0;
	const int index = gid_is_ours_ ? choose_gid(port_attr_) : options.gid_index;
	if (index < 0)
		fail(EADDRNOTAVAIL,
		     "verbs: " + name() +
			     " has no RoCE v2 GID: give its network interface an address");
	if (index > UINT8_MAX || index >= port_attr_.gid_tbl_len)
		fail(EINVAL, "verbs: GID index " + std::to_string(index) + ": the port has " +
				     std::to_string(port_attr_.gid_tbl_len));
	gid_index_ = static_cast<std::uint8_t>(index);
	by_lid_ = !roce() && gid_is_ours_;
	if (!adopt(port_attr_))
		fail(EADDRNOTAVAIL,
		     "verbs: GID index " + std::to_string(index) + " of " + name() + " is empty");
}

// Keeps the device if its port is up.
bool verbs_device::open(ibv_device *device)
{
	verbs_context context(ibv_open_device(device));
	if (!context)
		return false;
	ibv_device_attr attr{};
	ibv_port_attr port{};
	if (ibv_query_device(context.get(), &attr) || ibv_query_port(context.get(), port_, &port))
		return false;
	if (port.state != IBV_PORT_ACTIVE) {
		errno = ENETDOWN;
		return false;
	}
	context_ = std::move(context);
	device_name_ = ibv_get_device_name(device);
	attr_ = attr;
	port_attr_ = port;
	return true;
}

int verbs_device::choose_gid(const ibv_port_attr &port) const
{
	if (!roce())
		return 0;
	int fallback = -1;
	for (int i = 0; i < port.gid_tbl_len; i++) {
		ibv_gid_entry entry{};
		if (!query_gid(context_.get(), port_, static_cast<std::uint32_t>(i), entry) ||
		    entry.gid_type != IBV_GID_TYPE_ROCE_V2 || is_zero(entry.gid))
			continue;
		if (!std::memcmp(entry.gid.raw, v4_prefix, sizeof(v4_prefix)))
			return i;
		if (fallback < 0)
			fallback = i;
	}
	return fallback;
}

bool verbs_device::refresh()
{
	ibv_port_attr port{};
	if (ibv_query_port(context_.get(), port_, &port) || port.state != IBV_PORT_ACTIVE)
		return false;
	if (gid_is_ours_) {
		const int index = choose_gid(port);
		ibv_gid gid{};
		if (index < 0 || index > UINT8_MAX ||
		    ibv_query_gid(context_.get(), port_, index, &gid))
			return false;
		// An IPv4 endpoint waits for the next IPv4 address: its peers have no other.
		if (ipv4() && std::memcmp(gid.raw, v4_prefix, sizeof(v4_prefix)))
			return false;
		gid_index_ = static_cast<std::uint8_t>(index);
	}
	return adopt(port);
}

bool verbs_device::adopt(const ibv_port_attr &port)
{
	ibv_gid gid{};
	if (!by_lid_ && (ibv_query_gid(context_.get(), port_, gid_index_, &gid) || is_zero(gid)))
		return false;
	port_attr_ = port;
	std::copy_n(gid.raw, gid_.size(), gid_.begin());
	return true;
}

bool verbs_device::ipv4() const
{
	return roce() && !std::memcmp(gid_.data(), v4_prefix, sizeof(v4_prefix));
}

std::uint32_t verbs_device::mtu() const
{
	return 128u << port_attr_.active_mtu; // IBV_MTU_256 is 1
}

std::uint32_t verbs_device::mbps() const
{
	// Each has one bit set: that of the lane's generation, and that of the number of lanes.
	constexpr std::uint32_t lane[] = {2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000};
	constexpr std::uint32_t lanes[] = {1, 4, 8, 12, 2};
	const auto speed = static_cast<std::size_t>(std::bit_width(port_attr_.active_speed));
	const auto width = static_cast<std::size_t>(std::bit_width(port_attr_.active_width));
	if (!speed || speed > std::size(lane) || !width || width > std::size(lanes))
		return 0;
	return lane[speed - 1] * lanes[width - 1];
}

std::string verbs_device::name() const
{
	return device_name_ + "/" + std::to_string(port_) + " gid " + std::to_string(gid_index_);
}

} // namespace coop::ud
