// SPDX-License-Identifier: MIT
// machine.hpp - a transfer machine of the kernel transport: an open file of /dev/coop-net.
//
// The module moves the bytes, whether this process runs or not. What a peer sees is the ud
// transport, whose parts decide here as well who the peers are, who may read what, and how fast to
// read: so the wire is one. Where those call an engine, operations go into the ring.
//
//   device       the file, and its rings
//   memory       buffers that the module knows
//   handles      of operations in the ring
//   receives     receive buffers
//   engine       operations in the ring, on behalf of the parts of ud
//   rail, offers further devices (rails=), each an open file of its own, for bulk data
//   operations, peers, outbox, peer_rails, reader, bulk, resolver    of ud
//
// All of them run under the lock of the core's machine, which it holds in every call.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "device.hpp"
#include "engine.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "offers.hpp"
#include "rail.hpp"
#include "receives.hpp"
#include "userland/net/ud/linger.hpp"

namespace coop::net::kernel
{

/// The sizes that these parameters ask for.
ring_sizes sizes_of(const options &);

class machine final : public spi::transport_machine
{
public:
	machine(const options &, buffers &, spi::sink &);
	~machine() override;

	int prepare(const address &own) override;
	int start(const address &own) override;
	void stop() override;
	int submit(spi::token, const spi::transfer &) override;
	void flush() override;
	void cancel(spi::token) override;
	int describe(spi::token, std::span<std::byte>) override { return 0; }
	int peer_open(spi::peer_number n, const address &a) override { return peers_->open(n, a); }
	void peer_close(spi::peer_number) override;
	unsigned progress(unsigned budget) override;
	bool arm() override;
	int fd() const override { return epoll_; }
	time_point deadline() const override;
	void expire(time_point now) override;
	std::vector<rail_stats> rails() const override;

private:
	std::uint64_t now() { return ud::now_us(sink_); }
	void claim(ud::identity own);
	void make(ud::identity own);
	void make_parts(ud::identity own);
	void watch(int fd);
	void unmake();
	void close_device();
	void begin();
	void answer();
	int submit_receive(spi::token, const spi::transfer &, std::uint64_t now);
	void fail(int status);
	void set_polls(bool on);

	void dispatch(const coop_net_event &, std::uint64_t now);
	void dispatch_of_handle(const coop_net_event &, std::uint64_t now);
	void dispatch_of_peer(const coop_net_event &, std::uint64_t now);
	spi::peer_number sender(const coop_net_event &);
	void text(const coop_net_event &, std::uint64_t now);
	void stranger(const coop_net_event &, std::uint64_t now);
	void resolve(std::uint64_t now);
	void follow(std::uint64_t now);

	// The rails but the first.
	bool asking() const;
	bool question(std::uint64_t now);
	void want_rails(spi::peer_number, std::uint64_t now);
	void forget_rails(spi::peer_number);
	void resolve_rails(std::uint64_t now);
	unsigned progress_rails(unsigned budget, std::uint64_t &now);
	void dispatch(rail &, const coop_net_event &, std::uint64_t now);
	void dispatch_of_handle(rail &, const coop_net_event &, std::uint64_t now);
	void lose(rail &, std::uint64_t now);
	void read_by(unsigned rail, const coop_net_event &, std::uint32_t index);

	void drain(std::uint64_t now);
	bool drain_bulk(std::uint64_t now);
	void drain_receives(std::uint64_t now);
	std::uint64_t next_time() const;

	const options &options_;
	buffers &buffers_;
	spi::sink &sink_;
	address own_address_;

	// In the order of construction by make().
	std::optional<ud::resolver> resolver_;
	std::optional<device> device_;
	std::optional<memory> memory_;
	std::optional<handles> handles_;
	std::optional<receives> receives_;
	std::optional<engine> engine_;
	std::optional<ud::operations> operations_;
	std::optional<ud::peers> peers_;
	std::optional<ud::outbox> outbox_;
	std::optional<ud::peer_rails> peer_rails_;
	std::optional<ud::reader> reader_;
	std::optional<all_offers> offers_; // if there are rails
	std::optional<ud::bulk> bulk_;
	std::vector<std::unique_ptr<rail>> rails_; // but the first
	int epoll_ = -1;
	std::uint32_t instance_ = 0; // as peers know it, once begun

	std::deque<coop_net_event> texts_; // questions for whose answers few records are left
	ud::linger linger_;
	bool claimed_ = false; // all rails have their resolvers
	bool armed_ = false, over_ = false, polls_ = false;
	std::uint32_t dry_ = 0;       // calls of progress() in a row that found nothing
	std::uint32_t held_back_ = 0; // messages that wait for others to leave with
	std::uint32_t turns_ = 0;
	std::uint64_t starts_at_ = ~0ull;
};

} // namespace coop::net::kernel
