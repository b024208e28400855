// SPDX-License-Identifier: MIT
// watched_mem.hpp - the transport `mem` for plays: it drives its machines and counts their
// memory.
#pragma once

#include <map>
#include <utility>

#include "tests/fuzz/check.hpp"
#include "tests/fuzz/net_alone.hpp"

namespace fuzz_net
{

/// Memory registered by one domain.
struct ledger {
	std::map<std::uintptr_t, std::size_t> regions;
	std::uintptr_t next = 1;
	std::size_t most = SIZE_MAX; ///< most bytes of a later region

	std::size_t bytes() const
	{
		std::size_t sum = 0;
		for (const auto &[key, size] : regions)
			sum += size;
		return sum;
	}
};

/// The ledger of domains opened later.
inline std::shared_ptr<ledger> the_ledger = std::make_shared<ledger>();

class watched_domain final : public spi::transport_domain
{
public:
	explicit watched_domain(std::unique_ptr<spi::transport_domain> inner) :
		inner_(std::move(inner)),
		ledger_(the_ledger)
	{
	}
	const net::domain_limits &limits() const override { return inner_->limits(); }
	const spi::traits &traits() const override { return inner_->traits(); }
	int check(const net::address &a) const override { return inner_->check(a); }
	int register_memory(std::span<const net::segment> segments, void **out) override
	{
		std::size_t size = 0;
		for (const net::segment &s : segments)
			size += s.length;
		FUZZ_CHECK(size <= ledger_->most);
		ledger_->regions[ledger_->next] = size;
		*out = reinterpret_cast<void *>(ledger_->next++);
		return 0;
	}
	void deregister_memory(void *r) override
	{
		FUZZ_CHECK(ledger_->regions.erase(reinterpret_cast<std::uintptr_t>(r)));
	}
	std::unique_ptr<spi::transport_machine> make_machine(spi::sink &s) override
	{
		return std::make_unique<driven>(inner_->make_machine(s), s);
	}

private:
	const std::unique_ptr<spi::transport_domain> inner_;
	const std::shared_ptr<ledger> ledger_;
};

class watched_mem final : public spi::transport
{
public:
	const char *name() const override { return "watched"; }
	std::span<const spi::parameter> parameters() const override
	{
		return spi::mem_transport.parameters();
	}
	std::unique_ptr<spi::transport_domain> open(const spi::parameter_values &v) const override
	{
		return std::make_unique<watched_domain>(spi::mem_transport.open(v));
	}
};

} // namespace fuzz_net
