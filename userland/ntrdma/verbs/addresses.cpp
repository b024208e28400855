// SPDX-License-Identifier: MIT
// addresses.cpp - see addresses.hpp.
#include "userland/ntrdma/verbs/addresses.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

namespace coop::ntrdma::verbs
{

namespace
{

constexpr std::size_t addresses_most = 32;
constexpr gid_bytes empty{};

/// The GID of an address that datagrams can use; else the empty one.
gid_bytes usable(const ifaddrs &i)
{
	gid_bytes ip{};
	if (!i.ifa_addr || !(i.ifa_flags & IFF_UP))
		return ip;
	if (i.ifa_addr->sa_family == AF_INET) {
		sockaddr_in a;
		std::memcpy(&a, i.ifa_addr, sizeof(a));
		return gid_of(a.sin_addr);
	}
	if (i.ifa_addr->sa_family == AF_INET6) {
		sockaddr_in6 a;
		std::memcpy(&a, i.ifa_addr, sizeof(a));
		if (!IN6_IS_ADDR_LINKLOCAL(&a.sin6_addr) && !IN6_IS_ADDR_LOOPBACK(&a.sin6_addr))
			std::memcpy(ip.data(), &a.sin6_addr, 16);
	}
	return ip;
}

bool has(const std::vector<gid_bytes> &all, const gid_bytes &ip)
{
	return std::find(all.begin(), all.end(), ip) != all.end();
}

} // namespace

gid_bytes gid_of(const in_addr &a)
{
	gid_bytes ip{};
	ip[10] = ip[11] = 0xff;
	std::memcpy(ip.data() + 12, &a, 4);
	return ip;
}

bool is_v4(const gid_bytes &ip)
{
	constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	return !std::memcmp(ip.data(), mapped, sizeof(mapped));
}

bool is_empty(const gid_bytes &ip)
{
	return ip == empty;
}

std::string text_of(const gid_bytes &ip)
{
	char text[INET6_ADDRSTRLEN] = "";
	inet_ntop(is_v4(ip) ? AF_INET : AF_INET6, ip.data() + (is_v4(ip) ? 12 : 0), text,
		  sizeof(text));
	return text;
}

namespace
{

std::timed_mutex guard; // of the table
thread_local bool held_for_fork = false;

} // namespace

// A signal may have interrupted the thread that has it, and fork() is called in the handler.
void hold_addresses()
{
	held_for_fork = guard.try_lock_for(std::chrono::milliseconds{200});
}

void let_addresses_go()
{
	if (std::exchange(held_for_fork, false))
		guard.unlock();
}

std::vector<gid_bytes> own_addresses()
{
	static std::vector<gid_bytes> table{gid_of({htonl(INADDR_LOOPBACK)})};
	std::scoped_lock held{guard};
	ifaddrs *list = nullptr;
	if (getifaddrs(&list))
		return table;
	std::vector<gid_bytes> now{table[0]};
	for (const ifaddrs *i = list; i; i = i->ifa_next)
		if (gid_bytes ip = usable(*i); !is_empty(ip) && !has(now, ip))
			now.push_back(ip);
	freeifaddrs(list);
	for (gid_bytes &ip : table)
		if (!has(now, ip))
			ip = empty;
	for (const gid_bytes &ip : now) {
		if (has(table, ip))
			continue;
		if (auto free = std::find(table.begin(), table.end(), empty); free != table.end())
			*free = ip;
		else if (table.size() < addresses_most)
			table.push_back(ip);
	}
	return table;
}

} // namespace coop::ntrdma::verbs
