// SPDX-License-Identifier: MIT
// transport.cpp - the transport `fabric`: libfabric, with any suitable provider.
#include <cerrno>
#include <cstdlib>

#include "machine.hpp"

namespace coop::net
{

namespace fabric
{

namespace
{

constexpr char preferred[] = "tcp";

constexpr spi::parameter keys[] = {
	{"provider", preferred,
	 "libfabric providers; the first available one is used; unless given, those that "
	 "FI_PROVIDER names come after these",
	 spi::sides::agree},
	{"eager", "0", "largest message that is sent without an offer (bytes; 0: 16384)"},
	{"receives", "64",
	 "receive buffers of a transfer machine, each for a message of eager= bytes (number)"},
	{"window", "128", "messages of a peer that no buffer has taken yet (number)"},
	{"hold", "5000", "a message waits this long for a receive buffer, then it is dropped (ms)"},
	{"parked", "64m",
	 "small messages that wait for a buffer, in total; above that the peer with the largest "
	 "share is disconnected (bytes)"},
	{"max_message", "1m", "largest message (bytes)", spi::sides::agree},
	{"max_links", "16384",
	 "connections of a transfer machine, a descriptor or two each (number)"},
	{"idle", "600000",
	 "a connection that is unused for this long is closed; the next use makes a new one (ms)"},
	{"landing", "60000",
	 "time for a large message to fill its place, at most twice that, or its connection is "
	 "closed (ms)"},
	{"sockets", "0",
	 "poll each connection's socket, for programs with synchronous delivery: lowest latency "
	 "with a few connections, more time with each; provider tcp (0 or 1)"},
	{"local_keys", "0", "buffers get local keys, used or not (0 or 1; 1 is for tests)"},
	{"read", "1",
	 "bulk data that this side fetches are read by RDMA, if both providers can; 0: the peer "
	 "writes them (0 or 1)"},
	{"answer", "1", "peers that want to connect get an answer (0 or 1; 0 is for tests)"},
};

// Over tcp, copying this much costs about as much as negotiating a place.
constexpr std::size_t eager_standard = 16384;

// FI_PROVIDER hides all other providers from libfabric.
std::string providers(const std::string &given)
{
	const char *only = std::getenv("FI_PROVIDER");
	return given == preferred && only && *only != '^' ? given + ',' + only : given;
}

class domain final : public spi::transport_domain
{
public:
	explicit domain(const spi::parameter_values &v) :
		provider_(providers(v.text("provider")), v.flag("local_keys"))
	{
		constexpr std::size_t gib = std::size_t(1) << 30;
		options_.eager = v.number("eager", 0, 1u << 20);
		if (options_.eager == 0)
			options_.eager = eager_standard;
		if (options_.eager < 64)
			v.refuse("eager", "must be 0 or at least 64");
		options_.receives = static_cast<unsigned>(v.number("receives", 4, 4096));
		options_.window = static_cast<unsigned>(v.number("window", 2, word::credits_most));
		options_.hold = std::chrono::milliseconds(v.number("hold", 1, 3600000));
		options_.parked = v.number("parked", 4096, std::size_t(1) << 40);
		if (options_.parked / 2 < options_.eager)
			v.refuse("parked", "must hold two messages of eager= bytes");
		options_.max_message = v.number("max_message", 64, gib);
		options_.max_links = static_cast<unsigned>(v.number("max_links", 1, word::links));
		options_.idle = std::chrono::milliseconds(v.number("idle", 1, 1u << 31));
		if (options_.idle < options_.hold)
			v.refuse("idle", "must be at least as long as hold=");
		options_.landing = std::chrono::milliseconds(v.number("landing", 1, 1u << 31));
		options_.answer = v.flag("answer");
		options_.read = v.flag("read");
		options_.sockets = v.flag("sockets");
		if (options_.sockets && provider_.name() != "tcp")
			v.refuse("sockets", "is for provider=tcp");
		limits_ = {options_.max_message, gib, gib, control::segments_most, 0, 1u << 15};
		traits_ = {{false, true, true}, true, false, 0};
	}
	const domain_limits &limits() const override { return limits_; }
	const spi::traits &traits() const override { return traits_; }
	std::string chosen(std::string_view key) const override
	{
		return key == "provider" ? provider_.name() : std::string();
	}
	int check(const address &a) const override { return spi::check_own_ip(a.ip); }
	int register_memory(std::span<const segment> s, void **r) override
	{
		*r = nullptr;
		return provider_.local_keys() ? keys_.add(s, r) : 0;
	}
	void deregister_memory(void *r) override { keys_.remove(r); }
	std::unique_ptr<spi::transport_machine> make_machine(spi::sink &s) override
	{
		return std::make_unique<machine>(s, provider_, options_, keys_);
	}

private:
	const provider provider_;
	local_keys keys_;
	options options_;
	domain_limits limits_{};
	spi::traits traits_{};
};

class transport final : public spi::transport
{
public:
	const char *name() const override { return "fabric"; }
	std::span<const spi::parameter> parameters() const override { return keys; }
	std::unique_ptr<spi::transport_domain> open(const spi::parameter_values &v) const override
	{
		return std::make_unique<domain>(v);
	}
};

constexpr transport the;

} // namespace

} // namespace fabric

const spi::transport &spi::fabric_transport = fabric::the;

} // namespace coop::net
