// SPDX-License-Identifier: MIT
// stream.hpp - the back end for peers of another host: a copy of both halves, and a TCP connection.
//
// The encoder sends what the core published, the decoder stores what the peer did. Calls never
// block: what the socket does not take stays in the half, and send() is called again when it has
// room. Nothing can be pulled, so all bytes go through the streams of the halves, except those of
// placements, which the kernel copies from the sender's memory and into the receiver's.
#pragma once

#include <functional>
#include <memory>

#include "userland/include/coop/unique_fd.hpp"
#include "userland/ntrdma/core/port.hpp"
#include "userland/ntrdma/stream/decoder.hpp"
#include "userland/ntrdma/stream/encoder.hpp"

namespace coop::ntrdma
{

class stream_port final : public port
{
public:
	/// `socket`: connected, and does not block. `known`: see decoder. Throws std::bad_alloc.
	stream_port(unique_fd socket, placements *known, std::function<void()> ended);
	/// Closes the connection. What the socket has taken still reaches the peer.
	~stream_port() override;

	half &out() override { return halves_[0]; }
	const half &in() const override { return halves_[1]; }
	bool can_pull() const override { return false; }
	int pull(std::span<const wire_segment>, std::span<const place>) override;
	void ring() override { send(); }
	void ended() override { ended_(); }

	/// Stores what has come, as far as a bound. > 0: something; 0: nothing; -ECONNRESET: the
	/// peer hung up, or is lost; -EPROTO: it broke the protocol.
	[[nodiscard]] int receive();
	/// Sends what the socket takes.
	void send();
	/// True if the socket took not all; send() goes on when it can be written.
	bool blocked() const { return blocked_; }
	/// True if something waits to be sent.
	bool waits() const { return !broken_ && encoder_.waits(); }
	/// As encoder::put_at(), and sends what the socket takes.
	void put_at(std::uint64_t number, std::uint64_t offset, std::span<const piece> from,
		    std::uint64_t owner);
	/// As encoder::put_message(), alike.
	void put_message(std::uint64_t number, std::span<const piece> from, std::uint64_t owner);
	bool placing() const { return encoder_.placing(); }
	bool placing_message() const { return encoder_.placing_message(); }
	void withdraw(std::uint64_t owner) { encoder_.withdraw(owner); }
	const unique_fd &socket() const { return socket_; }

private:
	struct unmap {
		void operator()(half *) const;
	};

	unique_fd socket_;
	std::unique_ptr<half[], unmap> halves_; // the own one, and the copy of the peer's
	encoder encoder_;
	decoder decoder_;
	bool blocked_ = false, broken_ = false; // broken_: receive() learns why
	std::function<void()> ended_;
};

} // namespace coop::ntrdma
