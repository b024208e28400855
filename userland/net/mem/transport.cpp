// SPDX-License-Identifier: MIT
// transport.cpp - the transport `mem`: within a process, simple, the reference for the others.
//
// Its parameters give a test a weaker network: one that reports no errors, loses messages, needs
// receive buffers beforehand, or starts slowly.
#include <cerrno>

#include "machine.hpp"

namespace coop::net
{

namespace mem
{

namespace
{

constexpr spi::parameter keys[] = {
	{"remote_errors", "1",
	 "senders learn that a message found no machine or no buffer (0 or 1)"},
	{"places", "1", "the core chooses where messages land; 0: buffers given before (0 or 1)"},
	{"lose", "0", "every n-th message or bulk request vanishes (number; 0: none)"},
	{"hold", "5000", "a message waits this long for a receive buffer, then it is dropped (ms)"},
	{"start_delay", "0", "from STARTING to STARTED (ms)"},
	{"max_message", "64k", "largest message (bytes)", spi::sides::agree},
};

class domain final : public spi::transport_domain
{
public:
	explicit domain(const spi::parameter_values &v)
	{
		constexpr std::size_t gib = std::size_t(1) << 30;
		options_.remote_errors = v.flag("remote_errors");
		options_.places = v.flag("places");
		options_.lose = v.number("lose", 0, 1u << 30);
		options_.hold = std::chrono::milliseconds(v.number("hold", 0, 3600000));
		options_.start_delay = std::chrono::milliseconds(v.number("start_delay", 0, 60000));
		options_.max_message = v.number("max_message", 1, 1u << 24);
		limits_ = {options_.max_message, gib, gib, 512, 0, 1u << 16};
		traits_ = {{options_.remote_errors, false, true}, options_.places, true, 0};
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
	options options_{};
	domain_limits limits_{};
	spi::traits traits_{};
};

class transport final : public spi::transport
{
public:
	const char *name() const override { return "mem"; }
	std::span<const spi::parameter> parameters() const override { return keys; }
	std::unique_ptr<spi::transport_domain> open(const spi::parameter_values &v) const override
	{
		return std::make_unique<domain>(v);
	}
};

constexpr transport the;

} // namespace

} // namespace mem

const spi::transport &spi::mem_transport = mem::the;

} // namespace coop::net
