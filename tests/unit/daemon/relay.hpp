// SPDX-License-Identifier: MIT
// relay.hpp - a wire between a client and the daemon that a test can break.
#pragma once

#include "rig.hpp"

#include <arpa/inet.h>
#include <atomic>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

#include "coop/unique_fd.hpp"
#include "rpc/storage/message.h"

namespace rig
{

// Between a client and the daemon: forwards both ways. On demand it answers one request itself,
// as no daemon does: with an operation other than the requested one. While it is deaf it drops
// what the client sends, and when it hears again it cuts the connection.
class relay
{
public:
	explicit relay(std::uint16_t daemon) : daemon_(daemon), listener_(make())
	{
		sockaddr_in at = loopback(0);
		socklen_t size = sizeof(at);
		::bind(listener_.get(), reinterpret_cast<sockaddr *>(&at), size);
		::listen(listener_.get(), 4);
		::getsockname(listener_.get(), reinterpret_cast<sockaddr *>(&at), &size);
		port = ntohs(at.sin_port);
		thread_ = std::jthread([this](std::stop_token stop) {
			while (!stop.stop_requested())
				if (closed)
					std::this_thread::sleep_for(std::chrono::milliseconds(2));
				else if (readable(listener_.get()))
					connection(stop);
		});
	}

	std::uint16_t port = 0;
	std::atomic<std::uint32_t> forge{0};       // status of the next answer
	std::atomic<bool> deaf{false}, cut{false}; // cut: ends the connection once
	std::atomic<unsigned> cut_at{0};           // loses that reply of a connection, and ends it
	std::atomic<bool> closed_by_cut{false};    // from then on it is closed
	std::atomic<bool> closed{false};           // the next connection has to wait
	std::atomic<unsigned> connections{0};

private:
	static coop::unique_fd make()
	{
		return coop::unique_fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	}
	static sockaddr_in loopback(std::uint16_t port)
	{
		sockaddr_in at{};
		at.sin_family = AF_INET;
		at.sin_port = htons(port);
		::inet_pton(AF_INET, host().c_str(), &at.sin_addr);
		return at;
	}
	static bool readable(int fd)
	{
		pollfd p{fd, POLLIN, 0};
		return ::poll(&p, 1, 5) > 0;
	}
	static bool pass(int from, int to, std::string &bytes)
	{
		bytes.resize(1 << 16);
		const ssize_t n = ::recv(from, bytes.data(), bytes.size(), 0);
		bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
		return n > 0 && ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL) == n;
	}
	void connection(std::stop_token stop)
	{
		const coop::unique_fd client(
			::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
		connections++;
		const coop::unique_fd daemon = make();
		const sockaddr_in at = loopback(daemon_);
		if (::connect(daemon.get(), reinterpret_cast<const sockaddr *>(&at), sizeof(at)))
			return;
		bool lost = false;
		unsigned replies = 0;
		for (std::string bytes; !stop.stop_requested();) {
			if ((lost && !deaf) || cut.exchange(false))
				return;
			pollfd p[2] = {{client.get(), POLLIN, 0}, {daemon.get(), POLLIN, 0}};
			if (::poll(p, 2, 5) <= 0)
				continue;
			coop_st_header h{};
			if (p[0].revents && forge) { // nothing else is in flight: a whole request
				std::uint8_t head[COOP_ST_HEADER];
				::recv(client.get(), head, sizeof(head), MSG_PEEK | MSG_WAITALL);
				EXPECT_EQ(coop_st_header_get(&h, head), 0);
				h.op = COOP_ST_PING;
				h.flags = COOP_ST_F_REPLY;
				h.body_len = h.data_len = 0;
				h.status = forge.exchange(0);
				coop_st_header_put(&h, head);
				::send(client.get(), head, sizeof(head), MSG_NOSIGNAL);
			}
			if (p[0].revents && deaf) {
				lost = true;
				bytes.resize(1 << 16);
				if (::recv(client.get(), bytes.data(), bytes.size(), 0) <= 0)
					return;
			} else if (p[0].revents && !pass(client.get(), daemon.get(), bytes)) {
				return;
			}
			if (p[1].revents && ++replies == cut_at) {
				closed = closed || closed_by_cut.exchange(false);
				cut_at = 0;
				return;
			}
			if (p[1].revents && !pass(daemon.get(), client.get(), bytes))
				return;
		}
	}

	const std::uint16_t daemon_;
	const coop::unique_fd listener_;
	std::jthread thread_; // last
};

} // namespace rig
