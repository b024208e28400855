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
//   operations, peers, outbox, reader, bulk, resolver    of ud
//
// All of them run under the lock of the core's machine, which it holds in every call.
#pragma once

#include <memory>
#include <optional>

#include "device.hpp"
#include "engine.hpp"
#include "handles.hpp"
#include "memory.hpp"
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

private:
	std::uint64_t now() { return ud::now_us(sink_); }
	void make();
	void unmake();
	void close_device();
	void begin();
	int submit_receive(spi::token, const spi::transfer &, std::uint64_t now);
	void fail(int status);

	void dispatch(const coop_net_event &, std::uint64_t now);
	void dispatch_of_handle(const coop_net_event &, std::uint64_t now);
	void dispatch_of_peer(const coop_net_event &, std::uint64_t now);
	spi::peer_number sender(const coop_net_event &);
	void stranger(const coop_net_event &, std::uint64_t now);
	void resolve(std::uint64_t now);
	void follow(std::uint64_t now);

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
	std::optional<ud::reader> reader_;
	std::optional<ud::bulk> bulk_;
	int epoll_ = -1;
	std::uint32_t instance_ = 0; // as peers know it, once begun

	ud::linger linger_;
	bool armed_ = false, over_ = false, polls_ = false;
	std::uint32_t dry_ = 0;       // calls of progress() in a row that found nothing
	std::uint32_t held_back_ = 0; // messages that wait for others to leave with
	std::uint32_t turns_ = 0;
	std::uint64_t starts_at_ = ~0ull;
};

} // namespace coop::net::kernel
