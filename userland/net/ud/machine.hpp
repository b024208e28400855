// SPDX-License-Identifier: MIT
// machine.hpp - a transfer machine of the ud transport.
//
// It has an end point of userland/ud to itself, or one a rail, so that machines run in parallel
// without a lock between them; on soft RoCE they share an IP by UDP ports of their own. Two engines
// run on it: rpc/chan for messages, one for all rails, and rpc/fetch for bulk data, on each. Their
// datagrams meet on the command queue pair, told apart by their first four bytes.
//
// Owns the rails, rpc/chan and the parts below, and passes events between them. All of them run
// under the lock of the core's machine, which it holds in every call.
//
//   rail         an end point; the receiving and the sending side of bulk data by it
//   operations   the records of operations
//   peers        addresses and sessions
//   outbox       messages on their way out
//   inbox        messages that arrive
//   peer_rails   which rails peers have
//   reader       the receiving side of bulk data, by the fetcher of each rail
//   bulk         who may read what, and the messages about it; has readers and read_log
//
// Each calls those above it, and the source of a rail calls bulk; the machine calls all.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bulk.hpp"
#include "inbox.hpp"
#include "linger.hpp"
#include "rail.hpp"

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
	std::vector<rail_stats> rails() const override;

private:
	std::uint64_t now() { return now_us(sink_); }
	rail &first() { return *rails_.front(); }
	void claim(identity own);
	void make(identity own);
	void make_parts(identity own);
	void unmake();
	void begin();
	void answer();
	int watch_endpoints(bool on);

	bool asking() const;
	bool question(std::uint64_t now);
	bool look_at_devices();
	void lose_rails(std::uint64_t now);
	std::size_t poll(unsigned budget, std::uint64_t &t);
	void dispatch(rail &, const coop::ud::completion &, std::uint64_t now);
	void received(rail &, std::uint32_t channel, std::span<const std::byte> datagram,
		      const coop::ud::completion &, std::uint64_t now);
	bool accept(coop_chan_in &, const std::byte *datagram, const coop_addr &from,
		    std::uint64_t now);
	void event(const coop_chan_ev &, std::uint64_t now);
	void resolve(std::uint64_t now);
	void forget_reads(spi::peer_number);
	void follow(std::uint64_t now);
	void watch_paths();

	void settle(std::uint64_t now);
	void drain(std::uint64_t now);
	void drain_chan(std::uint64_t now);
	void transmit(coop_chan_tx &, std::uint64_t now);
	void add(coop_chan_tx &, const keyed_memory *payload, std::uint64_t now);
	bool sends_over(std::uint64_t now);
	bool drain_reports(std::uint64_t now);
	bool drain_fetch(std::uint64_t now);
	bool drain_rail(rail &, std::optional<time_point> &began, std::uint64_t now);
	std::uint64_t next_time() const;

	const options &options_;
	spi::sink &sink_;
	address own_address_;
	std::vector<std::unique_ptr<rail>> rails_; // the first: of the own address

	// In the order of construction by make(); unmake() closes the rails before the memory that
	// they use goes.
	chan_engine chan_;
	std::optional<operations> operations_;
	std::optional<peers> peers_;
	std::optional<outbox> outbox_;
	std::optional<inbox> inbox_;
	std::optional<peer_rails> peer_rails_;
	std::optional<reader> reader_;
	std::optional<bulk> bulk_;
	std::size_t blank_at_ = 0, blank_bytes_ = 0; // the payload of a probe
	int epoll_ = -1;
	std::uint32_t instance_ = 0; // as peers know it, once begun
	std::uint32_t polls_ = 0;    // looks at the network
	unsigned turn_ = 0;          // of the rail that sends bulk data first

	std::vector<coop::ud::completion> completions_;
	std::vector<channels::over> over_;
	std::vector<coop_chan_piece> pieces_;

	bool owed_ = false;         // a message was delivered before settle()
	bool rest_ = false;         // bulk data wait until what arrived meanwhile is handled
	std::uint32_t arrived_ = 0; // of that
	time_point rest_until_{};
	bool claimed_ = false; // all rails have their places
	bool dry_ = true;      // the last poll found nothing
	bool armed_ = false;
	bool watching_ = false;       // the end points' descriptors are in epoll_
	std::uint32_t unarmed_ = 0;   // polls since arm()
	std::uint32_t held_back_ = 0; // messages that wait for others to leave with
	std::uint32_t turns_ = 0;
	std::uint64_t starts_at_ = ~0ull;
	linger linger_;
};

} // namespace coop::net::ud
