// SPDX-License-Identifier: MIT
// machine.hpp - a transfer machine of the ud transport.
//
// It has an end point of userland/ud to itself, so that machines run in parallel without a lock
// between them; on soft RoCE they share an IP by UDP ports of their own. Two engines run on it:
// rpc/chan for messages, and rpc/fetch for bulk data. Their datagrams meet on the command queue
// pair, told apart by their first four bytes.
//
// Owns the end point, the engines and the parts below, and passes events between them. All of them
// run under the lock of the core's machine, which it holds in every call.
//
//   operations   the records of operations
//   peers        addresses and sessions
//   outbox       messages on their way out
//   inbox        messages that arrive
//   bulk         who may read what, and the messages about it; has readers and read_log
//   reader       the receiving side of bulk data, by fetcher
//   source       the sending side
//
// Each calls those above it, and source calls bulk; the machine calls all.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bulk.hpp"
#include "device_memory.hpp"
#include "fetcher.hpp"
#include "inbox.hpp"
#include "linger.hpp"
#include "source.hpp"

namespace coop::net::ud
{

class machine final : public spi::transport_machine
{
public:
	using memory_keys = ud::memory_keys;

	machine(const options &, memory_keys &, spi::sink &);
	~machine() override;

	int prepare(const address &own) override;
	int start(const address &own) override;
	void stop() override;
	int submit(spi::token, const spi::transfer &) override;
	void flush() override;
	void cancel(spi::token) override;
	int describe(spi::token, std::span<std::byte>) override { return 0; }
	void receivable() override { outbox_->loop(now()); }
	int peer_open(spi::peer_number n, const address &a) override { return peers_->open(n, a); }
	void peer_close(spi::peer_number) override;
	unsigned progress(unsigned budget) override;
	bool arm() override;
	int fd() const override { return epoll_; }
	time_point deadline() const override;
	void expire(time_point now) override;

private:
	std::uint64_t now() { return now_us(sink_); }
	void make();
	void unmake();
	void make_fetch(std::uint64_t now);
	void begin();
	int watch_endpoint(bool on);

	void dispatch(const coop::ud::completion &, std::uint64_t now);
	void received(std::uint32_t channel, std::span<const std::byte> datagram,
		      const coop::ud::completion &, std::uint64_t now);
	void event(const coop_chan_ev &, std::uint64_t now);
	void resolve(std::uint64_t now);
	void follow(std::uint64_t now);

	void settle(std::uint64_t now);
	void drain(std::uint64_t now);
	void drain_chan(std::uint64_t now);
	void transmit(coop_chan_tx &, std::uint64_t now);
	bool sends_over(std::uint64_t now);
	bool drain_reports(std::uint64_t now);
	bool drain_fetch(std::uint64_t now);
	std::uint64_t next_time() const;

	const options &options_;
	memory_keys &keys_;
	spi::sink &sink_;
	address own_address_;

	// In the order of construction by make(); unmake() destroys the end point before the memory
	// that it uses.
	std::optional<resolver> resolver_;
	std::unique_ptr<coop::ud::endpoint> endpoint_;
	std::optional<fetch_host::slab> slab_;
	std::optional<channels> channels_;
	chan_engine chan_;
	std::optional<device_memory> memory_;
	std::optional<operations> operations_;
	std::optional<peers> peers_;
	std::optional<outbox> outbox_;
	std::optional<inbox> inbox_;
	std::optional<fetcher> fetcher_;
	std::optional<reader> reader_;
	std::optional<bulk> bulk_;
	std::optional<source> source_;
	std::optional<fetch_host::host> host_; // of bulk
	coop_engine *engine_ = nullptr;        // host_'s
	std::size_t blank_at_ = 0;             // the payload of a probe: MTU bytes
	int epoll_ = -1;
	coop_chan_peer_addr self_{};            // as the engines know it
	std::uint32_t instance_ = 0;            // as peers know it, once begun
	std::uint32_t changes_ = 0, polls_ = 0; // of the network; looks at it

	std::vector<coop::ud::completion> completions_;
	std::vector<channels::over> over_;
	std::vector<coop_chan_piece> pieces_;

	bool owed_ = false;         // a message was delivered before settle()
	bool rest_ = false;         // bulk data wait until what arrived meanwhile is handled
	std::uint32_t arrived_ = 0; // of that
	time_point rest_until_{};
	bool dry_ = true; // the last poll found nothing
	bool armed_ = false;
	bool watching_ = false;       // the end point's descriptor is in epoll_
	std::uint32_t unarmed_ = 0;   // polls since arm()
	std::uint32_t held_back_ = 0; // messages that wait for others to leave with
	std::uint32_t turns_ = 0;
	std::uint64_t starts_at_ = ~0ull;
	linger linger_;
};

} // namespace coop::net::ud
