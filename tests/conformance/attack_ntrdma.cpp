// SPDX-License-Identifier: MIT
// attack_ntrdma.cpp - an enemy among the peers of the transport ntrdma.
//
// It connects, with a greeting that may be refused, and sends through a queue pair of its own:
// noise of all kinds; heads with numbers out of range, and segments that it does not have; requests
// to write, to read and to swap. In between it may write noise into its half of the window, or into
// the TCP connection, and placements that nobody asked for. Then it hangs up. The seed decides all
// of it. (Any process of the same user may write anywhere: the kernel allows it.)
#include "attack_ntrdma.hpp"

#include <cstring>
#include <deque>
#include <limits>
#include <random>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "userland/net/ntrdma/board.hpp"
#include "userland/net/ntrdma/greeting.hpp"
#include "userland/net/ntrdma/tcp_greeting.hpp"
#include "userland/net/ntrdma/wire.hpp"
#include "userland/ntrdma/core/queue_pair.hpp"
#include "userland/ntrdma/stream/sockets.hpp"
#include "userland/ntrdma/stream/stream.hpp"

namespace conformance
{

using namespace coop::net::nt;

namespace
{

using namespace std::chrono_literals;

struct silence final : rdma::watcher {
	void completed(rdma::completion_queue &) override {}
	void happened(rdma::queue_pair &, rdma::event) override {}
	void few_receives(rdma::shared_receives &) override {}
};

// Its end of a link, with all that a queue pair needs.
struct enemy {
	silence watcher;
	rdma::region_table regions;
	rdma::completion_queue queue{watcher};
	rdma::unique_fd socket, memory_fd, bell{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
	board words;
	std::unique_ptr<rdma::window> memory;
	std::unique_ptr<rdma::window_port> port;
	std::unique_ptr<rdma::stream_port> tcp;
	std::unique_ptr<rdma::queue_pair> pair;
	std::uint32_t key = 0;
	std::vector<std::uint64_t> heard;        // numbers of the victim
	std::deque<std::vector<std::byte>> sent; // may wait for room
	std::vector<std::byte> in = std::vector<std::byte>(1u << 16);

	// The answer to HELLO; false: refused.
	bool welcome(greeting &g, std::vector<rdma::unique_fd> &fds)
	{
		for (const auto until = clock::now() + 10s; clock::now() < until;) {
			const int r = receive_greeting(socket.get(), g, fds);
			if (r)
				return r > 0 && g.kind == greeting_kind::welcome && fds.size() == 2;
			std::this_thread::yield();
		}
		return false;
	}
	// @return whether all of it came.
	bool hear(std::array<std::uint8_t, tcp_greeting::size> &text)
	{
		std::size_t got = 0;
		for (const auto until = clock::now() + 10s;
		     got < text.size() && clock::now() < until;) {
			const ssize_t n = ::recv(socket.get(), text.data() + got, text.size() - got,
						 MSG_DONTWAIT);
			if (n == 0 || (n < 0 && errno != EAGAIN))
				return false;
			got += n > 0 ? static_cast<std::size_t>(n) : 0;
			std::this_thread::yield();
		}
		return got == text.size();
	}
	// `peer_bell`: of a window; none: by TCP.
	void link(rdma::unique_fd peer_bell)
	{
		key = *regions.add(reinterpret_cast<std::uint8_t *>(1),
				   std::numeric_limits<std::uint64_t>::max() - 1, 1, 1,
				   rdma::local_write);
		rdma::pair_options o;
		o.number = 1;
		o.domain = 1;
		o.send_depth = 256;
		o.recv_depth = 16;
		o.send_queue = o.recv_queue = &queue;
		o.pull_from = 16384;
		pair = std::make_unique<rdma::queue_pair>(regions, watcher, o);
		pair->set_state(rdma::pair_state::sends);
		if (peer_bell) {
			port = std::make_unique<rdma::window_port>(std::move(memory), 0,
								   std::move(peer_bell), ::getpid(),
								   rdma::unique_fd{}, false, [] {});
			pair->attach(*port);
		} else {
			tcp = std::make_unique<rdma::stream_port>(std::move(socket), nullptr,
								  [] {});
			pair->attach(*tcp);
		}
		for (std::uint64_t i = 0; i < 8; i++)
			listen(i);
	}
	void listen(std::uint64_t id)
	{
		rdma::recv_request r{};
		r.id = id;
		r.segments = 1;
		r.at[0] = {reinterpret_cast<std::uintptr_t>(in.data()),
			   static_cast<std::uint32_t>(in.size()), key};
		(void)pair->post_recv(r);
	}
	void send(rdma::send_request r, const std::vector<std::byte> &text, std::size_t length)
	{
		sent.emplace_back(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
		r.segments = 1;
		r.at[0] = {reinterpret_cast<std::uintptr_t>(sent.back().data()),
			   static_cast<std::uint32_t>(length), key};
		(void)pair->post_send(r);
		pair->flush_posts();
	}
	void look()
	{
		if (tcp && tcp->receive() < 0 && pair->linked())
			pair->peer_gone();
		rdma::completion got[8];
		const std::size_t n = queue.poll(got);
		for (std::size_t i = 0; i < n; i++) {
			if (!got[i].receive)
				continue;
			if (head h; read_head({in.data(), got[i].bytes}, h)) {
				heard.push_back(h.to);
				heard.push_back(h.from);
			}
			listen(got[i].id);
		}
	}
};

// Whatever it likes, behind what it has sent properly.
void make_noise(enemy &e, std::mt19937_64 &random)
{
	const auto pick = [&](std::uint64_t n) { return random() % n; };
	if (e.port) {
		auto *half = reinterpret_cast<std::byte *>(&e.port->out());
		for (int k = 0; k < 32; k++)
			half[pick(2) ? pick(128) : pick(sizeof(rdma::half))] = std::byte(random());
		e.port->ring();
		return;
	}
	std::vector<std::uint8_t> text(rdma::update_bytes + pick(4000));
	for (std::uint8_t &b : text)
		b = static_cast<std::uint8_t>(random());
	rdma::update u;
	u.wqes = static_cast<std::uint16_t>(pick(3));
	u.entries = static_cast<std::uint32_t>(u.wqes * rdma::wqe_front);
	u.stream = static_cast<std::uint32_t>(pick(300));
	u.word = static_cast<std::uint8_t>(pick(16) == 0);
	if (pick(4))
		put(text.data(), u);
	if (pick(4) == 0)
		put(text.data(),
		    rdma::placement{pick(2) ? rdma::placement_kind : rdma::message_kind,
				    static_cast<std::uint32_t>(pick(5000)),
				    e.heard.empty() ? random() : e.heard.back(),
				    pick(2) ? 0 : random()});
	(void)::send(e.tcp->socket().get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void assail(enemy &e, std::mt19937_64 &random)
{
	const auto pick = [&](std::uint64_t n) { return random() % n; };
	std::vector<std::byte> text(40000);
	for (std::byte &b : text)
		b = std::byte(random());
	for (int i = 0; i < 64 && e.pair->linked(); i++) {
		rdma::send_request r{};
		const auto number = [&] {
			return pick(2) && !e.heard.empty() ? e.heard[pick(e.heard.size())]
							   : random();
		};
		r.op = rdma::operation::send_imm;
		// No messages: they would be as good as anyone's.
		r.imm = static_cast<std::uint32_t>((2 + pick(11)) % 12);
		switch (pick(8)) {
		case 0:
			r.imm = static_cast<std::uint32_t>(random());
			e.send(r, text, pick(text.size()));
			break;
		case 1:
			// Its requests to the victim's memory.
			r.op = static_cast<rdma::operation>(pick(7));
			r.remote = random();
			r.rkey = static_cast<std::uint32_t>(pick(2) ? 0x10001 : random());
			e.send(r, text, r.op >= rdma::operation::cmp_swap ? 8 : pick(20000));
			break;
		case 2:
			if (pick(8) == 0)
				make_noise(e, random);
			break;
		default: {
			head h;
			h.to = number();
			h.from = number();
			h.key = random();
			h.length = pick(2) ? pick(1u << 21) : random();
			h.value = pick(2) ? 0 : random();
			h.word =
				static_cast<std::uint32_t>(pick(2) ? pick(board::words) : random());
			h.segments = static_cast<std::uint32_t>(pick(4) ? pick(3) : random());
			h.status = pick(2) ? 0 : -static_cast<int>(pick(6000));
			std::vector<std::byte> all(text.begin(), text.begin() + 20000);
			const std::size_t count = pick(4) ? h.segments % 600 : pick(1000);
			std::vector<rdma::wire_segment> list(count);
			for (auto &s : list)
				s = {pick(2) ? reinterpret_cast<std::uintptr_t>(text.data())
					     : random(),
				     pick(2) && count ? h.length / count : random()};
			std::memcpy(all.data(), &h, sizeof(h));
			if (count)
				std::memcpy(all.data() + sizeof(h), list.data(), count * 16);
			e.send(r, all, pick(8) ? sizeof(h) + count * 16 : pick(all.size()));
			break;
		}
		}
		for (int k = 0; k < 4; k++) {
			e.look();
			std::this_thread::yield();
		}
	}
}

} // namespace

bool attack_ntrdma(const net::address &a, std::uint64_t seed)
{
	std::mt19937_64 random(seed);
	const auto pick = [&](std::uint64_t n) { return random() % n; };
	net::address own = a;
	own.portal = 13;
	own.id = static_cast<std::uint32_t>(seed % net::address::machines);
	enemy e;
	if (call(a, e.socket))
		return false;
	e.memory = rdma::window::create(&e.memory_fd);
	greeting g;
	g.kind = greeting_kind::hello;
	g.layout = sizeof(rdma::half);
	g.receives = 1u << 16;
	const std::uint64_t probe = random();
	g.probe_at = reinterpret_cast<std::uintptr_t>(&probe);
	g.probe_value = probe;
	std::strcpy(g.from, format(own).c_str());
	std::strcpy(g.to, format(a).c_str());
	const std::uint64_t flaw = pick(32);
	if (flaw == 0)
		g.version++;
	if (flaw == 1)
		g.layout += 64;
	if (flaw == 2)
		std::memset(g.from, 'x', sizeof(g.from));
	if (flaw == 3)
		g.to[3] ^= 1;
	if (flaw == 4)
		g.receives = static_cast<std::uint32_t>(pick(control_most));
	if (flaw == 5)
		g.magic ^= 1;
	if (pick(4) == 0)
		g.probe_at = random(); // no pulls then
	const int windows[] = {e.memory_fd.get(), e.words.fd(), e.bell.get()};
	const int fds[] = {windows[flaw == 6 ? 1 + pick(2) : 0], e.bell.get(),
			   windows[flaw == 7 ? 0 : 1]};
	if (!send_greeting(e.socket.get(), g, {fds, flaw == 8 ? pick(3) : 3}))
		return false;
	std::vector<rdma::unique_fd> theirs;
	greeting answer;
	if (!e.welcome(answer, theirs))
		return false;
	greeting start = g;
	start.kind = pick(32) ? greeting_kind::start : greeting_kind::welcome;
	start.features = static_cast<std::uint32_t>(pick(2)); // feature::pulls
	if (!send_greeting(e.socket.get(), start, {}))
		return false;
	e.link(std::move(theirs[0]));
	assail(e, random);
	return true;
}

bool attack_ntrdma_tcp(const net::address &a, std::uint64_t seed)
{
	std::mt19937_64 random(seed);
	const auto pick = [&](std::uint64_t n) { return random() % n; };
	net::address own = a;
	own.portal = 13;
	own.id = static_cast<std::uint32_t>(seed % net::address::machines);
	enemy e;
	if (rdma::call_tcp(a.ip, a.ip, tcp_port(a), e.socket))
		return false;
	for (const auto until = clock::now() + 10s; rdma::connected(e.socket.get()) == -EAGAIN;) {
		if (clock::now() > until)
			return false;
		std::this_thread::yield();
	}
	tcp_greeting g;
	g.kind = greeting_kind::hello;
	g.receives = 1u << 16;
	g.from = format(own);
	g.to = format(a);
	const std::uint64_t flaw = pick(32);
	if (flaw == 2)
		g.from = std::string(80, 'x');
	if (flaw == 3)
		g.to[3] ^= 1;
	if (flaw == 4)
		g.receives = static_cast<std::uint32_t>(pick(control_most));
	if (flaw == 6) {
		own.ip[15] ^= 1;
		g.from = format(own); // it is not at that address
	}
	const tcp_key key{static_cast<std::uint8_t>(flaw == 7)};
	auto text = put(g, key, {});
	if (flaw == 0 || flaw == 1 || flaw == 5)
		text[pick(text.size())] ^= 1;
	const auto say = [&](std::size_t n) {
		return ::send(e.socket.get(), text.data(), n, MSG_DONTWAIT | MSG_NOSIGNAL) ==
		       static_cast<ssize_t>(text.size());
	};
	if (flaw == 8)
		return say(pick(text.size())); // and hangs up in the middle
	if (!say(text.size()) || !e.hear(text))
		return false;
	tcp_greeting answer;
	if (get(text, {}, {}, answer) || answer.kind != greeting_kind::welcome)
		return false;
	g.kind = pick(32) ? greeting_kind::start : greeting_kind::welcome;
	nonce theirs = answer.own;
	theirs[0] ^= static_cast<std::uint8_t>(pick(32) == 0);
	text = put(g, {}, theirs);
	if (!say(text.size()))
		return false;
	e.link(rdma::unique_fd());
	assail(e, random);
	return true;
}

} // namespace conformance
