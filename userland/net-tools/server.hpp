// SPDX-License-Identifier: MIT
// server.hpp - the other side of every measurement: answers, counts, reads and writes.
//
// It keeps no state of a client except a counter, so clients may come and go, die and restart.
// Memory is bounded: answers waiting for a slot, bulk operations under way and waiting, and the
// size of each are limited; anything beyond is refused or dropped, and counted.
#pragma once

#include <array>
#include <deque>

#include "outbox.hpp"
#include "questions.hpp"
#include "station.hpp"

namespace coop::net_tools
{

class server final : net::buffer_handler, outbox::owner
{
public:
	struct limits {
		std::size_t bulk = 64 << 20; ///< bytes of one bulk operation
	};
	struct counters {
		std::uint64_t messages, answered, bulk_ok, bulk_failed, malformed, dropped;
		std::uint64_t calls, unsent; ///< unsent: answers to calls
	};

	/// Reaching `end` ends run().
	server(station &, const limits &, goal &end);
	~server();

	trouble start(const std::string &address);
	/// Serves until the end is reached, or its machine fails.
	trouble run();
	counters count() const;
	/// Those of its machine, after run().
	const std::vector<net::rail_stats> &rails() const { return rails_; }

private:
	struct answer {
		net::endpoint_ptr to;
		head what;
		std::size_t length;
		std::uint64_t body;
	};
	struct offer {
		net::endpoint_ptr from;
		head what;
		std::size_t length;
		std::vector<std::byte> descriptor;
	};
	/// Memory of a bulk operation; grows to the largest request.
	struct place {
		memory bytes;
		std::unique_ptr<net::buffer> buffer;
		offer now;
	};
	class bulk_events final : public net::buffer_handler
	{
	public:
		explicit bulk_events(server &s) : server_(s) {}
		void on_buffer(const net::buffer_event &e) override { server_.bulk_over(e); }

	private:
		server &server_;
	};

	void on_buffer(const net::buffer_event &) override;
	void sent(int status) override;
	void take(std::span<const std::byte> message, net::endpoint &from);
	void tell(const net::request &) const;
	void give(net::endpoint &to, const head &, std::size_t length, std::uint64_t body = 0);
	bool put(net::endpoint &to, const head &, std::size_t length, std::uint64_t body);
	void accept(std::span<const std::byte> message, const head &, net::endpoint &from);
	void begin(place &, offer);
	void refuse(const offer &, int status);
	void bulk_over(const net::buffer_event &);
	bool grow(place &, std::size_t size);
	std::size_t max_bulk() const;

	station &station_;
	const limits limits_;
	goal &end_;
	counters count_{};
	std::vector<net::rail_stats> rails_;
	std::array<std::uint32_t, 65536> counted_{}; ///< by head::run
	const std::uint64_t instance_;
	outbox outbox_;
	net::rpc rpc_;
	std::deque<answer> answers_;
	bulk_events bulk_events_{*this};
	std::vector<place> places_;
	std::vector<place *> idle_;
	std::deque<offer> offers_;
};

/// Processor time of this process, user and system.
std::uint64_t cpu_us();
/// Resident memory of this process, in bytes.
std::uint64_t resident();

} // namespace coop::net_tools
