// SPDX-License-Identifier: MIT
// connection.hpp - one client's TCP connection: framing, handshake, and queued output.
//
// Input: one thread at a time. The connection stops reading requests when the client has too many
// in flight or too much data waits to be written; TCP then stops the client. Output: a queue; a
// thread that adds to an idle queue sends it. A request counts as in flight until its reply has
// been sent, so we stop serving a client that does not read its replies, and the memory that it
// costs is bounded. Only the last owner closes the descriptor, so no thread can meet another
// connection's descriptor under the same number.
#pragma once

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <span>

#include "userland/daemon/server.hpp"

namespace coop::daemon
{

constexpr std::size_t input_max = 16384;         // bytes of the receive buffer: one body and more
constexpr std::size_t hello_max = 1024;          // the same before authentication
constexpr std::size_t unwritten_max = 16u << 20; // bytes of WRITE data held for a connection
// Bytes of replies queued on a connection. Above it, reads longer than copy_slow_max are streamed.
// This, and one block per thread, bounds the memory that a client costs which does not read its
// replies.
constexpr std::size_t unsent_most = 4u << 20;
constexpr std::size_t pushes_max = 4u << 20;      // bytes of pushes queued for a slow client
constexpr std::size_t roles_max = pushes_max / 4; // beyond this, ROLES are dropped: only hints
constexpr unsigned send_timeout_ms = 30000;       // TCP_USER_TIMEOUT

class connection : public std::enable_shared_from_this<connection>
{
public:
	connection(server &, asio::ip::tcp::socket);
	~connection();
	void start();
	// Accepts no more requests; ends when all replies have been sent.
	void drain();
	void shut(std::string_view why);
	bool ended();
	void flush(); // sends what is queued
	// Its session, if nothing of the client waits to be read. Null: something may.
	const session *silent() const;
	std::string describe() const;

private:
	struct item {
		std::string head; // header and body, after pushes
		payload data;
		std::shared_ptr<unique_fd> file;
		std::unique_ptr<reply> source; // of a streamed read: the tail is made from it
		std::uint64_t offset = 0;
		std::uint32_t left = 0; // bytes of the file still to send
		std::uint32_t status = 0;
		std::size_t sent = 0;   // of head and data
		std::size_t pushed = 0; // of head: pushes
		bool request = false;   // counts as in flight
	};
	enum class state { hello, proof, ready, over };
	using work = std::unique_ptr<request>;

	void arm();
	void again();
	void pause();
	void readable();
	enum class parsed { more, full, bad };
	parsed parse(std::vector<work> &);
	void receive_data(const char *&end);
	// more: another request of the same input follows, and its reply is sent together with this
	// one's.
	void run(work, bool more = false);
	void serve(work, bool more);
	void greet(std::vector<work>);
	void change(work);
	void bundle(work);
	std::uint32_t copy_most() const;
	void handshake(const request &);
	void hello(const request &);
	void proof(const request &);
	void enroll(const request &);
	void withdraw(const request &);
	void leave_fabric();
	void answer(const request &, reply &, bool more = false);
	void refuse(const request &, int err);
	std::string encode(const coop_st_header &, const reply &) const;
	void enqueue(item, bool more = false);
	void send();
	enum class progress { done, blocked, broken, drained, reads };
	progress send_some();
	progress send_file(item &);
	bool push(std::uint16_t op, const coop_st_body &); // ROLES: flush() sends it
	void push_nodes(std::string_view messages, bool soon);
	void will_name(std::span<const std::uint32_t> nodes);
	void append_locked(std::string_view messages);
	void take_pushes_locked(item &);
	bool posts_locked();
	void post_flush();

	server &server_;
	asio::ip::tcp::socket socket_;
	const int fd_;
	std::string address_; // of the peer, numeric
	std::string peer_;
	asio::steady_timer deadline_; // start() arms it; then under mutex_

	// Input: owned by the thread that runs readable().
	std::vector<std::uint8_t> in_;
	std::size_t have_ = 0;
	work partial_; // WRITE whose data are incomplete
	std::size_t data_have_ = 0;

	// Handshake, then constant.
	state state_ = state::hello;
	struct handshake shake_;
	const exported *export_ = nullptr;
	lane *lane_ = nullptr; // of the export
	std::shared_ptr<session> session_;
	std::uint64_t epoch_ = 0; // of the session
	std::atomic<std::uint32_t> node_{0};
	// The node as which it is told of others; set before pushes may name any.
	std::atomic<std::uint32_t> knows_as_{0};
	std::mutex enroll_mutex_;    // taken before the mutexes of the tables
	std::uint64_t enrolled_ = 0; // id of the latest request that registered or withdrew it

	mutable std::mutex mutex_; // guards all below
	std::deque<item> out_;
	std::string pushes_;  // messages to send after these
	bool posted_ = false; // flush() will be called for them
	bool writing_ = false, over_ = false, paused_ = false, draining_ = false, forget_ = false;
	unsigned in_flight_ = 0;
	std::size_t unwritten_ = 0, unsent_ = 0;
	std::size_t pushed_ = 0; // bytes of all pushes that are not sent
	std::atomic<std::uint64_t> tx_bytes_{0}, requests_{0};
};

} // namespace coop::daemon
