// SPDX-License-Identifier: MIT
// net_alone.hpp - the core of libcoop-net without threads, under the clock of a play.
//
// A program linked with net_alone.cpp has a steady clock that the play sets, and while an
// `alone` exists its threads do not run: with synchronous delivery the core needs them only to
// fill receive queues from a pool that was empty, which turn_all() does. The caller of
// turn_all() drives every transfer machine of a play from here.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "userland/net/machine.hpp"

namespace fuzz_net
{

namespace net = coop::net;
namespace spi = coop::net::spi;

/// The time of net::clock.
extern std::chrono::nanoseconds the_time;

/// While one exists, no thread starts.
class alone
{
public:
	alone();
	~alone();
	alone(const alone &) = delete;
	alone &operator=(const alone &) = delete;
};

/// A machine of some transport, in the list of all machines.
class driven final : public spi::transport_machine
{
public:
	driven(std::unique_ptr<spi::transport_machine> inner, spi::sink &core);
	~driven() override;

	net::core::machine &core() { return core_; }

	const net::address &address() const { return address_; } // once it was started
	int prepare(const net::address &own) override { return inner_->prepare(own); }
	int start(const net::address &own) override
	{
		address_ = own;
		return inner_->start(own);
	}
	void stop() override { inner_->stop(); }
	int submit(spi::token t, const spi::transfer &x) override
	{
		last_token = t;
		return inner_->submit(t, x);
	}
	void flush() override { inner_->flush(); }
	void cancel(spi::token t) override { inner_->cancel(t); }
	int describe(spi::token t, std::span<std::byte> out) override
	{
		return inner_->describe(t, out);
	}
	void receivable() override { inner_->receivable(); }
	int peer_open(spi::peer_number n, const net::address &a) override
	{
		return inner_->peer_open(n, a);
	}
	void peer_close(spi::peer_number n) override { inner_->peer_close(n); }
	unsigned progress(unsigned budget) override
	{
		const unsigned n = inner_->progress(budget);
		moved += n;
		return n;
	}
	bool arm() override { return inner_->arm(); }
	int fd() const override { return inner_->fd(); }
	net::time_point deadline() const override { return inner_->deadline(); }
	void expire(net::time_point now) override { inner_->expire(now); }

	static std::vector<driven *> all;
	static std::uint64_t moved; ///< number of items that transports handled
	static spi::token last_token;

private:
	const std::unique_ptr<spi::transport_machine> inner_;
	net::core::machine &core_;
	net::address address_;
};

/// Progress and delivery of one machine. @return whether anything happened.
bool turn(net::core::machine &);
/// Of all machines, twice if the first pass found nothing: one may have left work for another.
bool turn_all();
/// The next time at which a transport wants to be called; never, if none does.
net::time_point next_deadline();

} // namespace fuzz_net
