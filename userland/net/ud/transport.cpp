// SPDX-License-Identifier: MIT
// transport.cpp - the ud transport: its parameters and its domains.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "machine.hpp"

// The engines' assertions: the network may write to memory, and wrong data would be worse than
// none. A program that has engines of its own has a hook of its own.
extern "C" __attribute__((weak, visibility("default"))) void
coop_assert_failed(const char *what, const char *file, int line)
{
	std::fprintf(stderr, "coop-net: %s:%d: broken invariant: %s\n", file, line, what);
	std::abort();
}

namespace coop::net::ud
{

namespace
{

constexpr spi::parameter known[] = {
	{"device", "", "RDMA device of the node; none: soft RoCE over UDP at the machine's IP",
	 spi::sides::agree},
	{"port", "1", "of the device (number)"},
	{"gid_index", "", "of the device's port; none: the first RoCE v2 one of IPv4"},
	{"sl", "0", "service level at the device (0 to 15)"},
	{"rails", "", "further rails, at most 3, by comma: IPv4 addresses, or RDMA devices"},
	{"udp_port", "",
	 "soft RoCE: 4791 to speak with devices, for one machine an IP; none: its own",
	 spi::sides::agree},
	{"mtu", "4096", "payload of a datagram at most (bytes, 256 to 4096)"},
	{"key", "", "file with the cluster's secret; none: everybody who reaches us is a peer",
	 spi::sides::agree},
	{"seal", "0", "1: MACs cover the payloads of messages, not their heads alone",
	 spi::sides::agree},
	{"bulk_crc", "0", "1: a CRC32C for each 4 KiB of bulk data"},
	{"socket_buffer", "8m", "soft RoCE: asked of the kernel for each direction (bytes)"},
	{"max_message", "1m",
	 "longest message (bytes); half of window= times the room in a datagram is a limit as well",
	 spi::sides::agree},
	{"operations", "4096", "queued at a time on one machine (number)"},
	{"peers", "16384", "with a session at a time, of one machine (number)"},
	{"window", "4096", "segments to one peer that are not acknowledged (power of two)"},
	{"fetches", "8", "bulk requests of a machine under way, a queue pair each (number)"},
	{"serves", "16", "bulk requests of others answered at a time (number)"},
	{"bulk_patience", "5000", "bulk that makes no progress fails after that (ms)"},
	{"tries", "12", "timeouts in a row after which a peer is dead (number)"},
	{"test_drop", "0", "tests: datagrams lost on the way out (per million)"},
	{"test_duplicate", "0", "tests: doubled (per million)"},
	{"test_reorder", "0", "tests: overtaken (per million)"},
	{"test_corrupt", "0", "tests: with a bit turned (per million)"},
	{"test_slow", "0", "tests: that each datagram takes a machine to send (us)"},
	{"test_longest", "0", "tests: longest UDP datagram that passes; 0: any (bytes)"},
	{"test_cut", "", "tests: RAIL:NUMBER, this rail loses all but so many datagrams"},
	{"test_seed", "1", "tests: of all these (number)"},
	{"test_start_delay", "0", "tests: before a machine says that it has started (ms)"},
	{"test_first_seq", "", "tests: first sequence number; none: at random"},
};

constexpr std::string_view of_device[] = {"port", "gid_index", "sl"};
constexpr std::string_view of_soft_roce[] = {
	"udp_port",     "socket_buffer", "test_drop",    "test_duplicate", "test_reorder",
	"test_corrupt", "test_slow",     "test_longest", "test_cut",       "test_seed"};

// Refuses a parameter without effect: its user believes that it has one.
void refuse_idle(const spi::parameter_values &p, bool verbs)
{
	const std::span<const std::string_view> idle =
		verbs ? std::span<const std::string_view>(of_soft_roce) : of_device;
	for (const spi::parameter &k : known)
		if (std::find(idle.begin(), idle.end(), k.key) != idle.end() &&
		    p.text(k.key) != k.standard)
			p.refuse(k.key, verbs ? "is for soft RoCE: leave it or device= out"
					      : "is for an RDMA device: give device= as well");
}

void read_cut(const spi::parameter_values &p, options &o)
{
	const std::string &text = p.text("test_cut");
	char end = 0;
	if (!text.empty() &&
	    std::sscanf(text.c_str(), "%u:%u%c", &o.cut_rail, &o.cut_after, &end) != 2)
		p.refuse("test_cut", "must be RAIL:NUMBER");
}

options read(const spi::parameter_values &p)
{
	options o;
	const auto number = [&](const char *key, std::uint64_t least, std::uint64_t most) {
		return static_cast<std::uint32_t>(p.number(key, least, most));
	};
	o.verbs = !p.text("device").empty();
	refuse_idle(p, o.verbs);
	o.device.device = p.text("device");
	o.device.port = static_cast<std::uint8_t>(number("port", 1, 255));
	if (!p.text("gid_index").empty())
		o.device.gid_index = static_cast<int>(number("gid_index", 0, 255));
	o.device.sl = static_cast<std::uint8_t>(number("sl", 0, 15));
	o.rails = read_rails(p, o);
	read_cut(p, o);
	if (!p.text("udp_port").empty())
		o.udp_port = static_cast<std::uint16_t>(number("udp_port", 1, 65535));
	o.mtu = number("mtu", COOP_MTU_MIN, COOP_MTU_MAX);
	if (o.mtu % 8)
		p.refuse("mtu", "must be a multiple of 8");
	o.device.mtu = o.verbs && o.mtu != COOP_MTU_MAX ? o.mtu : 0;
	o.socket_buffer = p.number("socket_buffer", 65536, 1u << 30);
	read_shared(p, {1u << 18, 1u << 18, 1024}, o);
	o.faults.drop_ppm = number("test_drop", 0, 1000000);
	o.faults.duplicate_ppm = number("test_duplicate", 0, 1000000);
	o.faults.reorder_ppm = number("test_reorder", 0, 1000000);
	o.faults.corrupt_ppm = number("test_corrupt", 0, 1000000);
	o.faults.slow_us = number("test_slow", 0, 1000000);
	o.faults.longest = number("test_longest", 0, 65536);
	o.faults.seed = p.number("test_seed", 0, ~0ull);
	return o;
}

class ud_domain final : public spi::transport_domain
{
public:
	explicit ud_domain(options o) : options_(std::move(o))
	{
		// A missing device is an error here, where there is a text to say so; the start of
		// a machine returns a number only.
		std::uint32_t mtu = options_.mtu;
		if (options_.verbs)
			mtu = std::min(mtu, coop::ud::find_verbs(options_.device));
		if (options_.verbs)
			check_rails();
		// The interface of a machine may allow soft RoCE less, and a peer its session.
		limits_ = limits_of(options_, options_.longest_message(mtu));
	}

	const domain_limits &limits() const override { return limits_; }
	const spi::traits &traits() const override { return traits_; }
	int check(const address &own) const override { return check_own(own); }
	// Soft RoCE reads and writes any memory. A device needs keys, and each machine has its own.
	int register_memory(std::span<const segment> s, void **registration) override
	{
		*registration = nullptr;
		return options_.verbs ? keys_.add(s, registration) : 0;
	}
	void deregister_memory(void *registration) override { keys_.remove(registration); }
	std::unique_ptr<spi::transport_machine> make_machine(spi::sink &s) override
	{
		return std::make_unique<machine>(options_, keys_, s);
	}

private:
	// Peers find a rail at the IP address of its device.
	void check_rails() const
	{
		for (const std::string &name : options_.rails) {
			coop::ud::verbs_options o = options_.device;
			o.device = name;
			check_rail("ud", name, coop::ud::make_verbs(o)->info().gid);
		}
	}

	const options options_;
	machine::memory_keys keys_;
	domain_limits limits_{};
	// A message is acknowledged when it is in its receiver's memory.
	spi::traits traits_{{true, true, true}, true, false, 0, false};
};

class ud_kind final : public spi::transport
{
public:
	const char *name() const override { return "ud"; }
	std::span<const spi::parameter> parameters() const override { return known; }
	std::unique_ptr<spi::transport_domain> open(const spi::parameter_values &p) const override
	{
		return std::make_unique<ud_domain>(read(p));
	}
};

const ud_kind the;

} // namespace

} // namespace coop::net::ud

namespace coop::net::spi
{

extern const transport &ud_transport;
const transport &ud_transport = ud::the;

} // namespace coop::net::spi
