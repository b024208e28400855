// SPDX-License-Identifier: MIT
// text.cpp - names of numbers, and the helpers of libibverbs that need no device.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include <fcntl.h>
#include <unistd.h>

#include "userland/ntrdma/verbs/objects.hpp"

namespace
{

template <std::size_t N> const char *name(const std::array<const char *, N> &names, int i)
{
	return i >= 0 && static_cast<std::size_t>(i) < N && names[i] ? names[i] : "unknown";
}

struct rate {
	ibv_rate code;
	int mult, mbps; // mult: of 2.5 Gbit/s
};
constexpr rate rates[] = {
	{IBV_RATE_2_5_GBPS, 1, 2500},    {IBV_RATE_5_GBPS, 2, 5000},
	{IBV_RATE_10_GBPS, 4, 10000},    {IBV_RATE_20_GBPS, 8, 20000},
	{IBV_RATE_30_GBPS, 12, 30000},   {IBV_RATE_40_GBPS, 16, 40000},
	{IBV_RATE_60_GBPS, 24, 60000},   {IBV_RATE_80_GBPS, 32, 80000},
	{IBV_RATE_120_GBPS, 48, 120000}, {IBV_RATE_25_GBPS, 10, 25781},
	{IBV_RATE_50_GBPS, 20, 53125},   {IBV_RATE_100_GBPS, 40, 103125},
	{IBV_RATE_200_GBPS, 80, 206250}, {IBV_RATE_400_GBPS, 160, 425000},
};

/// The rate in which that member has this value; null if there is none.
template <typename T> const rate *find(T rate::*member, T value)
{
	const auto it = std::find_if(std::begin(rates), std::end(rates),
				     [=](const rate &r) { return r.*member == value; });
	return it == std::end(rates) ? nullptr : it;
}

} // namespace

COOP_VERB const char *ibv_wc_status_str(ibv_wc_status s)
{
	static constexpr std::array<const char *, 24> names = {
		"success",
		"local length error",
		"local QP operation error",
		"local EE context operation error",
		"local protection error",
		"Work Request Flushed Error",
		"memory management operation error",
		"bad response error",
		"local access error",
		"remote invalid request error",
		"remote access error",
		"remote operation error",
		"transport retry counter exceeded",
		"RNR retry counter exceeded",
		"local RDD violation error",
		"remote invalid RD request",
		"aborted error",
		"invalid EE context number",
		"invalid EE context state",
		"fatal error",
		"response timeout error",
		"general error",
		"TM error",
		"TM software rendezvous",
	};
	return name(names, s);
}

COOP_VERB const char *ibv_event_type_str(ibv_event_type e)
{
	static constexpr std::array<const char *, 20> names = {
		"CQ error",
		"local work queue catastrophic error",
		"invalid request local work queue error",
		"local access violation work queue error",
		"communication established",
		"send queue drained",
		"path migrated",
		"path migration request error",
		"local catastrophic error",
		"port active",
		"port error",
		"LID change",
		"P_Key table change",
		"SM change",
		"SRQ catastrophic error",
		"SRQ limit reached",
		"last WQE reached",
		"client reregistration",
		"GID table change",
		"WQ fatal error",
	};
	return name(names, e);
}

COOP_VERB const char *ibv_node_type_str(ibv_node_type t)
{
	static constexpr std::array<const char *, 8> names = {
		"unknown",           "InfiniBand channel adapter",
		"InfiniBand switch", "InfiniBand router",
		"iWARP NIC",         "usNIC",
		"usNIC UDP",         "unspecified",
	};
	return name(names, t);
}

COOP_VERB const char *ibv_port_state_str(ibv_port_state s)
{
	static constexpr std::array<const char *, 6> names = {
		"no state change (NOP)", "down", "init", "armed", "active", "active defer",
	};
	return s == IBV_PORT_ACTIVE ? "active" : name(names, s);
}

COOP_VERB int ibv_rate_to_mult(ibv_rate code)
{
	const rate *r = find(&rate::code, code);
	return r ? r->mult : -1;
}

COOP_VERB ibv_rate mult_to_ibv_rate(int mult)
{
	const rate *r = find(&rate::mult, mult);
	return r ? r->code : IBV_RATE_MAX;
}

COOP_VERB int ibv_rate_to_mbps(ibv_rate code)
{
	const rate *r = find(&rate::code, code);
	return r ? r->mbps : -1;
}

COOP_VERB ibv_rate mbps_to_ibv_rate(int mbps)
{
	const rate *r = find(&rate::mbps, mbps);
	return r ? r->code : IBV_RATE_MAX;
}

/// Nothing is pinned and no page is shared with a device, so a child's copies do no harm. The
/// child itself cannot use its parent's objects; it may open the device again.
COOP_VERB int ibv_fork_init()
{
	return 0;
}
COOP_VERB ibv_fork_status ibv_is_fork_initialized()
{
	return IBV_FORK_UNNEEDED;
}
COOP_VERB int ibv_dontfork_range(void *, std::size_t)
{
	return 0;
}
COOP_VERB int ibv_dofork_range(void *, std::size_t)
{
	return 0;
}

COOP_VERB const char *ibv_get_sysfs_path()
{
	return "/sys";
}

COOP_VERB int ibv_read_sysfs_file(const char *dir, const char *file, char *out, std::size_t size)
{
	std::array<char, 512> path;
	int n = std::snprintf(path.data(), path.size(), "%s/%s", dir, file);
	if (n < 0 || static_cast<std::size_t>(n) >= path.size() || !size)
		return -1;
	int fd = open(path.data(), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t got = read(fd, out, size);
	close(fd);
	if (got <= 0)
		return -1;
	if (out[got - 1] == '\n')
		out[--got] = 0;
	else if (static_cast<std::size_t>(got) < size)
		out[got] = 0;
	else
		return -1;
	return static_cast<int>(got);
}
