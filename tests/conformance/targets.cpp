// SPDX-License-Identifier: MIT
// targets.cpp - the transports under test.
//
// Each process has its own loopback addresses, so that suites run side by side.
#include "attack_fabric.hpp"
#include "attack_ntrdma.hpp"
#include "attack_ud.hpp"
#include "mute.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <unistd.h>

namespace conformance
{

namespace
{

std::string lnet(const std::string &ip, const std::string &net, unsigned portal,
		 const std::string &id)
{
	return ip + '@' + net + ":12345:" + std::to_string(portal) + ':' + id;
}

// All machines on one NID, as in most programs.
target mem(const std::string &label, parameters options)
{
	target t;
	t.label = label;
	t.transport = "mem";
	t.options = std::move(options);
	t.options.emplace_back("hold", "200"); // a message waits this long for a buffer
	t.address = [](unsigned n) { return lnet(own_ip(0), "tcp", 31, std::to_string(n)); };
	t.any = lnet(own_ip(0), "tcp", 32, "*");
	t.foreign = lnet("192.0.2.1", "tcp", 31, "0");
	t.stall = {{"lose", "1"}, {"remote_errors", "1"}};
	t.slow_start = {{"start_delay", "60000"}};
	for (const auto &[key, value] : t.options)
		if (key == "remote_errors" && value == "0")
			t.nobody = t.no_buffer = 0;
	return t;
}

// Soft RoCE: machines on one IP share it by their own UDP ports.
target ud(const std::string &label, parameters options)
{
	target t;
	t.label = label;
	t.transport = "ud";
	t.options = std::move(options);
	t.address = [](unsigned n) { return lnet(own_ip(0), "tcp", 31, std::to_string(n)); };
	t.any = lnet(own_ip(0), "tcp", 32, "*");
	t.foreign = lnet("192.0.2.1", "tcp", 31, "0");
	// Nothing arrives, and no side gives up.
	t.stall = {{"test_drop", "1000000"}, {"tries", "250"}, {"bulk_patience", "3600000"}};
	t.slow_start = {{"test_start_delay", "60000"}};
	t.wire = [](const faults &f) -> parameters {
		return {{"test_drop", std::to_string(f.drop)},
			{"test_duplicate", std::to_string(f.duplicate)},
			{"test_reorder", std::to_string(f.reorder)},
			{"test_seed", std::to_string(f.seed)},
			{"test_slow", std::to_string(f.slow_us)}};
	};
	t.near_wrap = {{"test_first_seq", "4294967290"}};
	t.for_another = -ENOENT; // the requester need not know of it
	t.ordered = 0;           // small ones have their own queue pair
	t.muteness = -EHOSTUNREACH;
	t.tires = true;
#ifdef COOP_NET_UD
	t.mute = mute_ud;
	t.attack = [](const net::address &a, std::uint64_t seed) {
		return attack_ud(a, seed, own_ip(7));
	};
#endif
	return t;
}

// One NID as well; an operation that a peer never answers stalls for longer than the tests wait.
target fabric(const std::string &label, parameters options)
{
	target t;
	t.label = label;
	t.transport = "fabric";
	t.options = std::move(options);
	t.address = [](unsigned n) { return lnet(own_ip(1), "tcp", 31, std::to_string(n)); };
	t.any = lnet(own_ip(1), "tcp", 32, "*");
	t.foreign = lnet("192.0.2.1", "tcp", 31, "0");
	t.stall = {{"answer", "0"}};
	t.idle = std::chrono::milliseconds(100);
	t.brief = {{"idle", "100"}, {"hold", "100"}};
	t.descriptors = t.options[0].second == "tcp"; // ofi_rxm keeps its own longer
	t.ordered = 16384;                            // above: on request
	t.come_again = 8192;
	t.no_buffer = 0; // a small message counts as sent once it has left
	t.told_early = true;
	t.collateral = -ECONNRESET;
#ifdef COOP_NET_FABRIC
	const std::string provider = t.options[0].second;
	t.mute = mute_fabric;
	t.attack = [provider](const net::address &a, std::uint64_t seed) {
		return attack_fabric(provider, a, seed);
	};
#endif
	return t;
}

// Processes of this host by shared memory.
target ntrdma(const std::string &label, parameters options)
{
	target t;
	t.label = label;
	t.transport = "ntrdma";
	t.options = std::move(options);
	t.address = [](unsigned n) { return lnet(own_ip(3), "tcp", 31, std::to_string(n)); };
	t.any = lnet(own_ip(3), "tcp", 32, "*");
	t.foreign = lnet("192.0.2.1", "tcp", 31, "0");
	t.stall = {{"test_answer", "0"}};
	t.ordered = 16384; // above: pulled
	t.no_buffer = 0;   // a small message counts as sent once the peer has it
	t.told_early = true;
	t.tires = true;
#ifdef COOP_NET_NTRDMA
	t.mute = mute_ntrdma;
	t.attack = attack_ntrdma;
#endif
	return t;
}

// Nearly every message is pulled.
target ntrdma_pull()
{
	target t = ntrdma("ntrdma_pull", {{"eager", "64"}});
	t.ordered = 64;
	t.come_again = 8192;
	return t;
}

// The same machines, as if on different hosts.
target ntrdma_tcp()
{
	target t = ntrdma("ntrdma_tcp", {{"backend", "tcp"}});
	t.address = [](unsigned n) { return lnet(own_ip(4), "tcp", 31, std::to_string(n)); };
	t.any = lnet(own_ip(4), "tcp", 32, "*");
#ifdef COOP_NET_NTRDMA
	t.mute = mute_ntrdma_tcp;
	t.attack = attack_ntrdma_tcp;
#endif
	return t;
}

// Machines of this host that others could reach by TCP, and as an enemy does. Links are set
// aside as soon as they have nothing to do.
target ntrdma_auto()
{
	target t = ntrdma("ntrdma_auto", {{"backend", "auto"}, {"idle", "1"}});
	t.address = [](unsigned n) { return lnet(own_ip(5), "tcp", 31, std::to_string(n)); };
	t.any = lnet(own_ip(5), "tcp", 32, "*");
#ifdef COOP_NET_NTRDMA
	t.attack = [](const net::address &a, std::uint64_t seed) {
		return seed % 2 ? attack_ntrdma(a, seed) : attack_ntrdma_tcp(a, seed);
	};
#endif
	return t;
}

// fabric, named by IP addresses and its own ports instead of machines of a node. The ports are
// below those that systems assign by themselves.
target fabric_inet(const std::string &label, parameters options)
{
	target t = fabric(label, std::move(options));
	t.address = [](unsigned n) {
		return "inet:tcp:" + own_ip(2) + '@' + std::to_string(10000 + n);
	};
	t.any = "inet:tcp:" + own_ip(2) + "@*";
	t.foreign = "inet:tcp:192.0.2.1@10000";
	t.highest_id = address::ports - 1;
	return t;
}

// An RDMA device and its IP address, by programs and by the kernel, in the lab of emulated
// machines; with other devices as rails, if there are any. The environment selects it, and the
// suite then tests nothing else. The enemy, if there is one, has soft RoCE at an address from where
// packets reach the device over a wire.
std::vector<target> of_device(const std::string &device, const std::string &rails,
			      const std::string &ip, const std::string &enemy)
{
	std::vector<target> all = {
		fabric("fabric_verbs", {{"provider", "verbs"}}),
		ud("ud_verbs", {{"device", device}}),
		ud("kernel", {{"device", device}}),
	};
	if (!rails.empty())
		all.push_back(ud("kernel_rails", {{"device", device}, {"rails", rails}}));
	for (target &t : std::span(all).subspan(2)) {
		t.transport = "kernel";
		t.kin = "ud";
		t.works_frozen = true;
	}
	for (target &t : all) {
		t.address = [ip](unsigned n) { return lnet(ip, "o2ib0", 31, std::to_string(n)); };
		t.any = lnet(ip, "o2ib0", 32, "*");
		t.foreign = lnet("192.0.2.1", "o2ib0", 31, "0");
		t.attack = nullptr;
		t.unattacked = "there is no enemy on the device's network";
	}
	for (target &t : std::span(all).subspan(1)) {
		t.stall = {}; // its wire is a real one
		t.wire = nullptr;
		t.collateral = -EHOSTDOWN; // an emulated device may not serve all of them in time
#ifdef COOP_NET_UD
		if (!enemy.empty())
			t.attack = [enemy](const net::address &a, std::uint64_t seed) {
				return attack_ud(a, seed, enemy);
			};
#endif
	}
	all[1].asks_who = device.starts_with("coop");
	all.front().mute = nullptr; // a device's ports are not sockets' ports
	all.front().come_again = 0; // it would take too long in the lab
	return all;
}

std::vector<target> make()
{
	const char *device = std::getenv("COOP_CONFORMANCE_DEVICE");
	const char *rails = std::getenv("COOP_CONFORMANCE_RAILS");
	const char *ip = std::getenv("COOP_CONFORMANCE_IP");
	const char *enemy = std::getenv("COOP_CONFORMANCE_ENEMY");
	if (device) // its machines may have any address of this host
		return of_device(device, rails ? rails : "", ip ? ip : own_ip(6),
				 enemy ? enemy : "");
	std::vector<target> all = {
		mem("mem", {}),
		mem("mem_in_order", {{"places", "0"}}),
		mem("mem_silent", {{"remote_errors", "0"}}),
		fabric("fabric_tcp", {{"provider", "tcp"}}),
		fabric("fabric_sockets", {{"provider", "tcp"}, {"sockets", "1"}}),
		fabric("fabric_keys", {{"provider", "tcp"}, {"local_keys", "1"}}),
		fabric("fabric_write", {{"provider", "tcp"}, {"read", "0"}}),
		fabric("fabric_rxm", {{"provider", "tcp;ofi_rxm"}}),
		fabric_inet("fabric_inet", {{"provider", "tcp"}}),
		ntrdma("ntrdma", {}),
		ntrdma_pull(),
		ntrdma_tcp(),
		ntrdma_auto(),
		ntrdma("ntrdma_copy", {{"test_pull", "0"}, {"receives", "8"}}),
		ud("ud", {}),
		ud("ud_rails", {{"rails", own_ip(5)}}),
		ud("ud_small", {{"mtu", "1024"}, {"seal", "1"}, {"bulk_crc", "1"}}),
	};
	const auto built = domain::transports();
	std::erase_if(all, [&](const target &t) {
		return std::find(built.begin(), built.end(), t.transport) == built.end();
	});
	return all;
}

} // namespace

std::string own_ip(unsigned n)
{
	// A helper process learns whose addresses to use.
	static const unsigned pid = [] {
		const char *of = std::getenv("COOP_CONFORMANCE_PID");
		return of ? static_cast<unsigned>(std::atoi(of))
			  : static_cast<unsigned>(::getpid());
	}();
	return "127." + std::to_string(1 + pid / 254 % 250) + '.' + std::to_string(1 + pid % 254) +
	       '.' + std::to_string(1 + n);
}

const std::vector<target> &targets()
{
	static const std::vector<target> all = make();
	return all;
}

const target *find_target(const std::string &label)
{
	for (const target &t : targets())
		if (t.label == label)
			return &t;
	return nullptr;
}

} // namespace conformance
