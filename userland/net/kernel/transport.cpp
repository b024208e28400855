// SPDX-License-Identifier: MIT
// transport.cpp - the kernel transport: its parameters and its domains.
#include <algorithm>

#include "machine.hpp"

namespace coop::net::kernel
{

namespace
{

constexpr spi::parameter known[] = {
	{"device", "", "RDMA device of the node; none: the first with an active port"},
	{"port", "", "of the device (number); none: the first active one"},
	{"gid_index", "", "of the device's port; none: a usable one"},
	{"rails", "", "further RDMA devices, at most 3, by comma: they carry bulk data"},
	{"key", "", "file with the cluster's secret; none: everybody who reaches us is a peer",
	 spi::sides::agree},
	{"seal", "0", "1: MACs cover the payloads of messages, not their heads alone",
	 spi::sides::agree},
	{"bulk_crc", "0", "1: a CRC32C for each 4 KiB of bulk data"},
	{"max_message", "1m",
	 "longest message (bytes); half of window= times the room in a datagram is a limit as well",
	 spi::sides::agree},
	{"operations", "4096", "queued at a time on one machine (number)"},
	{"peers", "1024", "with a session at a time, of one machine (number)"},
	{"window", "4096", "segments to one peer that are not acknowledged (power of two)"},
	{"fetches", "8", "bulk requests of a machine under way, a queue pair each (number)"},
	{"serves", "16", "bulk requests of others answered at a time (number)"},
	{"bulk_patience", "5000", "bulk that makes no progress fails after that (ms)"},
	{"tries", "12", "timeouts in a row after which a peer is dead (number)"},
	{"test_start_delay", "0", "tests: before a machine says that it has started (ms)"},
	{"test_first_seq", "", "tests: first sequence number; none: at random"},
};

options read(const spi::parameter_values &p)
{
	options o;
	const auto number = [&](const char *key, std::uint64_t least, std::uint64_t most) {
		return static_cast<std::uint32_t>(p.number(key, least, most));
	};
	o.verbs = true;
	o.device.device = p.text("device");
	if (o.device.device.size() >= sizeof(coop_net_setup{}.device))
		p.refuse("device", "is too long for a name");
	o.device.port = 0;
	if (!p.text("port").empty())
		o.device.port = static_cast<std::uint8_t>(number("port", 1, 255));
	o.device.gid_index = -1;
	if (!p.text("gid_index").empty())
		o.device.gid_index = static_cast<int>(number("gid_index", 0, 255));
	o.rails = ud::read_rails(p, o);
	for (const std::string &name : o.rails)
		if (name.size() >= sizeof(coop_net_setup{}.device))
			p.refuse("rails", "'" + name + "' is too long for a name");
	if (!o.rails.empty() && o.device.device.empty())
		p.refuse("rails", "needs device=, which names the first");
	ud::read_shared(p, {4096, 16384, 256}, o);
	return o;
}

class kernel_domain final : public spi::transport_domain
{
public:
	explicit kernel_domain(options o) : options_(std::move(o))
	{
		// What is missing is an error here, where there is a text to say so; the start of a
		// machine returns a number only.
		const device trial(options_, ring_sizes{});
		check_rails();
		limits_ = ud::limits_of(options_, std::min<std::size_t>(options_.max_message,
									trial.setup().max_message));
	}

	const domain_limits &limits() const override { return limits_; }
	const spi::traits &traits() const override { return traits_; }
	int check(const address &own) const override { return ud::check_own(own); }
	// The module pins memory for each open file, so each machine does it.
	int register_memory(std::span<const segment> s, void **registration) override
	{
		*registration = nullptr;
		return buffers_.add(s, registration);
	}
	void deregister_memory(void *registration) override { buffers_.remove(registration); }
	std::unique_ptr<spi::transport_machine> make_machine(spi::sink &s) override
	{
		return std::make_unique<machine>(options_, buffers_, s);
	}

private:
	// Peers find a rail at the IP address of its device.
	void check_rails() const
	{
		for (const std::string &name : options_.rails) {
			options o = options_;
			o.device.device = name;
			ud::check_rail("kernel", name, device(o, ring_sizes{}).self().command.gid);
		}
	}

	const options options_;
	buffers buffers_;
	domain_limits limits_{};
	// A message is acknowledged when it is in its receiver's memory.
	spi::traits traits_{{true, true, true}, false, false, 0, false};
};

class kernel_kind final : public spi::transport
{
public:
	const char *name() const override { return "kernel"; }
	const char *wire() const override { return "ud"; }
	std::span<const spi::parameter> parameters() const override { return known; }
	std::unique_ptr<spi::transport_domain> open(const spi::parameter_values &p) const override
	{
		return std::make_unique<kernel_domain>(read(p));
	}
};

const kernel_kind the;

} // namespace

} // namespace coop::net::kernel

namespace coop::net::spi
{

extern const transport &kernel_transport;
const transport &kernel_transport = kernel::the;

} // namespace coop::net::spi
