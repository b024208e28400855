// SPDX-License-Identifier: MIT
// transport.cpp - the transport `ntrdma`: between processes of one user on a host, by shared
// memory, and between hosts, by TCP.
#include <algorithm>
#include <cerrno>

#include "coop/cluster_key.hpp"
#include "machine.hpp"

namespace coop::net
{

namespace nt
{

namespace
{

constexpr spi::parameter keys[] = {
	{"backend", "window",
	 "window: shared memory, between processes of one user on a host; tcp: TCP connections, to "
	 "any "
	 "host; auto: window to addresses of this host, tcp to others",
	 spi::sides::agree},
	{"key", "", "tcp: file with the cluster's secret; none: everybody who reaches us is a peer",
	 spi::sides::agree},
	{"eager", "16k",
	 "largest message that is copied through the rings; the receiver reads a larger one from "
	 "the memory of its sender (bytes)"},
	{"receives", "64",
	 "receives of a transfer machine, each for a message of eager= bytes (number)"},
	{"max_links", "4096",
	 "connections of a transfer machine, of four descriptors each; further peers wait, and "
	 "requests to them end with -ENOBUFS (number)"},
	{"hold", "5000", "a message waits this long for a receive buffer, then it is dropped (ms)"},
	{"parked", "64m",
	 "small messages that wait for a buffer, in total; above that the peer with the largest "
	 "share is disconnected (bytes)"},
	{"max_message", "1m", "largest message (bytes)", spi::sides::agree},
	{"bound", "10000", "a peer that is silent for this long is taken for dead (ms)"},
	{"idle", "10000",
	 "a connection without requests for this long costs nothing until the next one (ms)"},
	{"test_pull", "1",
	 "tests: processes read each other's memory where the kernel lets them (0 or 1)"},
	{"test_answer", "1", "tests: peers that want to connect get an answer (0 or 1)"},
};

class domain final : public spi::transport_domain
{
public:
	explicit domain(const spi::parameter_values &v)
	{
		constexpr std::size_t gib = std::size_t(1) << 30;
		options_.eager = v.number("eager", 64, 1u << 16);
		options_.receives = static_cast<std::uint32_t>(v.number("receives", 4, 4096));
		options_.max_links = static_cast<std::uint32_t>(v.number("max_links", 1, 1u << 16));
		options_.hold = std::chrono::milliseconds(v.number("hold", 1, 3600000));
		options_.parked = v.number("parked", 4096, std::size_t(1) << 40);
		// A message that waits is as large as a receive, at most.
		const std::size_t least = 2 * (options_.receive_bytes() + held_costs);
		if (options_.parked < least)
			v.refuse("parked",
				 "must be at least " + std::to_string(least) + " with this eager=");
		options_.max_message = v.number("max_message", 64, gib);
		options_.bound = std::chrono::milliseconds(v.number("bound", 100, 3600000));
		options_.idle = std::chrono::milliseconds(v.number("idle", 1, 3600000));
		options_.pull = v.flag("test_pull");
		options_.answer = v.flag("test_answer");
		read_reach(v);
		limits_ = {options_.max_message, gib, gib, segments_most, 0, board::words};
		traits_ = {{false, true, true}, true, false, 0};
		// A TCP port does not tell networks apart.
		traits_.networks_apart = options_.reach == reach::windows;
	}
	const domain_limits &limits() const override { return limits_; }
	const spi::traits &traits() const override { return traits_; }
	int check(const address &a) const override { return spi::check_own_ip(a.ip); }
	int register_memory(std::span<const segment>, void **r) override
	{
		*r = nullptr;
		return 0;
	}
	void deregister_memory(void *) override {}
	std::unique_ptr<spi::transport_machine> make_machine(spi::sink &s) override
	{
		return std::make_unique<machine>(s, options_);
	}

private:
	void read_reach(const spi::parameter_values &v)
	{
		const std::string &name = v.text("backend");
		options_.reach = name == "tcp"    ? reach::tcp
				 : name == "auto" ? reach::both
						  : reach::windows;
		if (options_.reach == reach::windows && name != "window")
			v.refuse("backend", "must be window, tcp or auto");
		if (v.text("key").empty())
			return;
		if (options_.reach == reach::windows)
			v.refuse("key", "is for backend=tcp or auto");
		try {
			options_.key = fabric_key(load_cluster_key(v.text("key")));
		} catch (const std::runtime_error &e) {
			v.refuse("key", std::string("cannot be used: ") + e.what());
		}
	}

	options options_{};
	domain_limits limits_{};
	spi::traits traits_{};
};

class transport final : public spi::transport
{
public:
	const char *name() const override { return "ntrdma"; }
	std::span<const spi::parameter> parameters() const override { return keys; }
	std::unique_ptr<spi::transport_domain> open(const spi::parameter_values &v) const override
	{
		return std::make_unique<domain>(v);
	}
};

constexpr transport the;

} // namespace

} // namespace nt

const spi::transport &spi::ntrdma_transport = nt::the;

} // namespace coop::net
