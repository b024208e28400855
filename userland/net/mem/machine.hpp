// SPDX-License-Identifier: MIT
// machine.hpp - a transfer machine of the transport `mem`.
//
// An operation that waits for an answer is in outstanding_. An answer that finds nothing there
// still goes to the sink, which recognises late completions.
#pragma once

#include <unordered_set>

#include "hub.hpp"

namespace coop::net::mem
{

struct options {
	bool remote_errors, places;
	std::uint64_t lose;                    // drops every n-th message, get and put; 0: none
	std::chrono::milliseconds start_delay; // from start() to started()
	std::chrono::milliseconds hold;        // time for which a message waits for a buffer
	std::size_t max_message;
};

class machine final : public spi::transport_machine
{
public:
	machine(spi::sink &s, const options &o) : sink_(s), options_(o) {}
	~machine() override;

	int start(const address &own) override;
	void stop() override;
	int submit(spi::token, const spi::transfer &) override;
	void cancel(spi::token) override;
	int describe(spi::token, std::span<std::byte>) override { return 0; }
	int peer_open(spi::peer_number, const address &) override;
	void peer_close(spi::peer_number) override {}
	unsigned progress(unsigned budget) override;
	void receivable() override;
	bool arm() override { return !(held_.size() && receives_.size()) && box_->arm(); }
	int fd() const override { return box_->fd(); }
	time_point deadline() const override;
	void expire(time_point now) override;

private:
	/// False: it will never arrive.
	bool send(const address &, packet &&);
	void answer(const packet &, kind, int status);
	void handle(packet &);
	/// False: there is no buffer for this message.
	bool take(const packet &);
	int place(const packet &, spi::peer_number from);
	int place_in_order(const packet &, spi::peer_number from);
	void hold(packet &&);
	/// Finds the passive operation for a get or put. @return 0, -ENOENT, -EPERM, -EFBIG.
	int passive(const packet &, queue_type, const spi::transfer *&);
	void serve_get(packet &);
	void leave();
	spi::peer_number number_of(const address &);

	spi::sink &sink_;
	const options options_;
	address own_;
	std::shared_ptr<mailbox> box_ = std::make_shared<mailbox>();
	bool listed_ = false;
	std::vector<address> peers_; // by number
	std::unordered_set<spi::token> outstanding_;
	std::uint64_t sent_ = 0;
	time_point starts_ = never;

	struct held { // a message waiting for a buffer; later ones wait behind it
		packet message;
		time_point until;
	};
	std::deque<held> held_;

	struct receive { // for transports that do not place
		spi::token token;
		spi::memory memory;
		std::size_t offset;
	};
	std::deque<receive> receives_;
};

} // namespace coop::net::mem
