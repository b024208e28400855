// SPDX-License-Identifier: MIT
// far.cpp - links by TCP that are not to come up: callers that are not the named peer, and nodes
// that are not to listen; and one that a reset ends. Those that come up are among the tests of
// windows.
#include <array>
#include <chrono>
#include <cstdlib>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <system_error>
#include <thread>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "userland/ntrdma/node/node.hpp"
#include "userland/ntrdma/stream/encoder.hpp"
#include "userland/ntrdma/stream/frame.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace std::chrono_literals;

constexpr ip_address loopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
constexpr ip_address other{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 2};

struct nothing final : watcher {
	void completed(completion_queue &) override {}
	void happened(queue_pair &, event) override {}
	void few_receives(shared_receives &) override {}
};

struct far : testing::Test {
	far()
	{
		setenv("COOP_NTRDMA_BACKEND", "tcp", 1);
		n = std::make_unique<node>(seen);
		auto held = n->hold();
		pair_options o;
		o.send_queue = o.recv_queue = &queue;
		m = n->create(o);
		number = m->pair->options().number;
		m->pair->peer = peer = number + 1; // which calls
		m->by_tcp = route{loopback, loopback};
		for (auto s : {pair_state::init, pair_state::ready, pair_state::sends})
			m->pair->set_state(s);
		n->changed(m);
	}
	~far() override
	{
		auto held = n->hold();
		n->destroy(m);
		unsetenv("COOP_NTRDMA_BACKEND");
	}

	unique_fd connection(const ip_address &from)
	{
		unique_fd fd;
		auto port = static_cast<std::uint16_t>(first_port + (number >> slot_shift));
		EXPECT_EQ(call_tcp(from, loopback, port, fd), 0);
		pollfd p{fd.get(), POLLOUT, 0};
		EXPECT_EQ(poll(&p, 1, 30000), 1);
		EXPECT_EQ(connected(fd.get()), 0);
		return fd;
	}
	far_greeting hello() const { return {far_kind::hello, peer, number, loopback, loopback}; }
	/// The answer to a greeting; -1: hung up.
	static int answer(const unique_fd &fd, far_greeting *g)
	{
		far_text text;
		int r;
		do {
			pollfd p{fd.get(), POLLIN, 0};
			if (poll(&p, 1, 30000) != 1)
				return 0;
			r = receive_greeting(fd.get(), text, *g);
		} while (!r);
		return r;
	}
	link_stage stage()
	{
		auto held = n->hold();
		return m->stage;
	}
	bool gets(link_stage s)
	{
		auto until = std::chrono::steady_clock::now() + 30s;
		while (stage() != s && std::chrono::steady_clock::now() < until)
			std::this_thread::sleep_for(1ms);
		return stage() == s;
	}

	nothing seen;
	completion_queue queue{seen};
	std::unique_ptr<node> n;
	member *m;
	std::uint32_t number, peer;
};

TEST_F(far, the_named_peer_is_welcomed_and_its_start_brings_the_link_up)
{
	unique_fd fd = connection(loopback);
	far_greeting g;
	ASSERT_TRUE(send_greeting(fd.get(), hello()));
	ASSERT_EQ(answer(fd, &g), 1);
	EXPECT_EQ(g.kind, far_kind::welcome);
	EXPECT_EQ(g.from, number);
	EXPECT_EQ(g.to, peer);
	EXPECT_EQ(stage(), link_stage::welcomed);
	far_greeting start = hello();
	start.kind = far_kind::start;
	ASSERT_TRUE(send_greeting(fd.get(), start));
	EXPECT_TRUE(gets(link_stage::up));
	fd = unique_fd{};
	EXPECT_TRUE(gets(link_stage::over));
}

TEST_F(far, a_caller_that_hangs_up_before_its_start_may_call_again)
{
	for (int i = 0; i < 2; i++) {
		unique_fd fd = connection(loopback);
		far_greeting g;
		ASSERT_TRUE(send_greeting(fd.get(), hello()));
		ASSERT_EQ(answer(fd, &g), 1);
		EXPECT_EQ(g.kind, far_kind::welcome);
		fd = unique_fd{};
		EXPECT_TRUE(gets(link_stage::awaiting));
	}
}

TEST_F(far, a_caller_from_an_address_that_it_does_not_name_is_hung_up_on)
{
	unique_fd fd = connection(other);
	far_greeting g;
	ASSERT_TRUE(send_greeting(fd.get(), hello()));
	EXPECT_EQ(answer(fd, &g), -1);
	EXPECT_EQ(stage(), link_stage::awaiting);
}

TEST_F(far, greetings_that_do_not_fit_are_hung_up_on)
{
	far_greeting g, odd = hello();
	odd.kind = far_kind::start;
	far_greeting nobody = hello();
	nobody.to = number + 2;
	for (const far_greeting &one : {odd, nobody}) {
		unique_fd fd = connection(loopback);
		ASSERT_TRUE(send_greeting(fd.get(), one));
		EXPECT_EQ(answer(fd, &g), -1);
	}
	unique_fd fd = connection(loopback);
	std::array<char, far_greeting_bytes> noise;
	noise.fill('x');
	ASSERT_EQ(send(fd.get(), noise.data(), noise.size(), 0), far_greeting_bytes);
	EXPECT_EQ(answer(fd, &g), -1);
	EXPECT_EQ(stage(), link_stage::awaiting);
}

void say_in_another_version(int socket, const far_greeting &g)
{
	std::array<std::uint8_t, far_greeting_bytes> text{};
	writer to{text.data()};
	to.put(std::uint32_t{0x7472746e}).put(std::uint16_t{2});
	to.put(static_cast<std::uint16_t>(g.kind)).put(std::uint32_t{sizeof(half)});
	EXPECT_EQ(send(socket, text.data(), text.size(), MSG_NOSIGNAL), far_greeting_bytes);
}

/// How often the host 127.0.0.1 is named as one of another version.
std::size_t times_named(const std::string &said)
{
	std::size_t n = 0;
	const std::string what = "coop-verbs: host 127.0.0.1 has coop-verbs of another version";
	for (auto at = said.find(what); at != std::string::npos; at = said.find(what, at + 1))
		n++;
	return n;
}

TEST_F(far, a_caller_of_another_version_is_refused_and_its_host_named_once)
{
	testing::internal::CaptureStderr();
	for (int i = 0; i < 2; i++) {
		unique_fd fd = connection(loopback);
		say_in_another_version(fd.get(), hello());
		far_greeting g;
		EXPECT_EQ(answer(fd, &g), 1);
		EXPECT_EQ(g.kind, far_kind::refuse);
	}
	EXPECT_EQ(times_named(testing::internal::GetCapturedStderr()), 1u);
}

TEST_F(far, a_called_host_of_another_version_is_named_once)
{
	const std::uint32_t slot = number >> slot_shift;
	unique_fd listener;
	std::uint32_t lower = slot - 1;
	while (lower &&
	       listen_tcp(loopback, static_cast<std::uint16_t>(first_port + lower), listener))
		lower--;
	if (!lower)
		GTEST_SKIP() << "no lower port is free";
	testing::internal::CaptureStderr();
	{
		auto held = n->hold();
		m->pair->set_state(pair_state::reset);
		n->changed(m);
		m->pair->peer = lower << slot_shift | 1;
		for (auto s : {pair_state::init, pair_state::ready, pair_state::sends})
			m->pair->set_state(s);
		n->changed(m);
	}
	for (int i = 0; i < 3; i++) {
		pollfd caller{listener.get(), POLLIN, 0};
		ASSERT_EQ(poll(&caller, 1, 30000), 1);
		unique_fd fd;
		ip_address from;
		ASSERT_EQ(accept_tcp(listener.get(), fd, from), 0);
		far_greeting g;
		ASSERT_EQ(answer(fd, &g), 1);
		EXPECT_EQ(g.kind, far_kind::hello);
		g.kind = far_kind::refuse;
		say_in_another_version(fd.get(), g);
	}
	// It has heard the first two.
	EXPECT_EQ(times_named(testing::internal::GetCapturedStderr()), 1u);
}

TEST_F(far, what_is_no_frame_ends_the_link)
{
	unique_fd fd = connection(loopback);
	far_greeting g, start = hello();
	start.kind = far_kind::start;
	ASSERT_TRUE(send_greeting(fd.get(), hello()));
	ASSERT_EQ(answer(fd, &g), 1);
	ASSERT_TRUE(send_greeting(fd.get(), start));
	std::array<char, 100> noise;
	noise.fill('x');
	ASSERT_EQ(send(fd.get(), noise.data(), noise.size(), 0), 100);
	EXPECT_TRUE(gets(link_stage::over));
	auto held = n->hold();
	EXPECT_EQ(m->pair->state(), pair_state::error);
}

// The reset comes with no regard to what was sent before, but Linux keeps what has arrived.
TEST_F(far, what_a_peer_sent_before_a_reset_of_its_connection_counts)
{
	unique_fd fd = connection(loopback);
	far_greeting g, start = hello();
	start.kind = far_kind::start;
	ASSERT_TRUE(send_greeting(fd.get(), hello()));
	ASSERT_EQ(answer(fd, &g), 1);
	ASSERT_TRUE(send_greeting(fd.get(), start));
	ASSERT_TRUE(gets(link_stage::up));
	auto theirs = std::make_unique<half>();
	wqe &w = theirs->wqes[0];
	w.op = static_cast<std::uint8_t>(operation::send);
	w.how = static_cast<std::uint8_t>(carriage::within);
	w.length = 8;
	w.body[0] = 42;
	theirs->wqe_prod = 1;
	encoder e{*theirs};
	std::array<std::uint8_t, 8> memory{};
	const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
	{
		auto held = n->hold(); // the node reads all of it together
		recv_request r{};
		r.segments = 1;
		r.at[0] = {at, 8, *n->regions().add(memory.data(), 8, at, 0, local_write)};
		ASSERT_EQ(m->pair->post_recv(r), 0);
		std::array<piece, 8> pieces;
		const std::size_t count = e.next(pieces);
		for (std::size_t i = 0; i < count; i++)
			ASSERT_EQ(send(fd.get(), pieces[i].at, pieces[i].length, 0),
				  static_cast<ssize_t>(pieces[i].length));
		const linger none{1, 0};
		ASSERT_EQ(setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none)), 0);
		fd = unique_fd{};
	}
	EXPECT_TRUE(gets(link_stage::over));
	auto held = n->hold();
	std::array<completion, 2> got;
	ASSERT_EQ(queue.poll(got), 1u);
	EXPECT_EQ(got[0].result, status::success);
	EXPECT_EQ(memory[0], 42);
}

TEST_F(far, of_two_equal_numbers_the_higher_address_calls)
{
	for (bool higher : {true, false}) {
		auto held = n->hold();
		m->pair->set_state(pair_state::reset);
		n->changed(m);
		m->pair->peer = number;
		m->by_tcp = higher ? route{other, loopback} : route{loopback, other};
		for (auto s : {pair_state::init, pair_state::ready, pair_state::sends})
			m->pair->set_state(s);
		n->changed(m);
		EXPECT_EQ(m->stage, higher ? link_stage::calling : link_stage::awaiting);
	}
}

TEST(far_off, a_node_listens_only_if_it_is_told_to)
{
	nothing seen;
	node n{seen};
	completion_queue queue{seen};
	std::uint32_t number;
	{
		auto held = n.hold();
		pair_options o;
		o.send_queue = o.recv_queue = &queue;
		member *m = n.create(o);
		number = m->pair->options().number;
		n.destroy(m);
	}
	unique_fd fd;
	auto port = static_cast<std::uint16_t>(first_port + (number >> slot_shift));
	if (call_tcp(loopback, loopback, port, fd))
		return; // refused at once
	pollfd p{fd.get(), POLLOUT, 0};
	ASSERT_EQ(poll(&p, 1, 30000), 1);
	EXPECT_EQ(connected(fd.get()), -ECONNREFUSED);
}

TEST(far_off, a_host_that_vanishes_ends_connections_on_which_nothing_is_said)
{
	unique_fd listener, calling, called;
	ASSERT_EQ(listen_tcp(loopback, 0, listener), 0);
	sockaddr_in at{};
	socklen_t size = sizeof(at);
	ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr *>(&at), &size), 0);
	ASSERT_EQ(call_tcp(loopback, loopback, ntohs(at.sin_port), calling), 0);
	pollfd caller{listener.get(), POLLIN, 0};
	ASSERT_EQ(poll(&caller, 1, 60000), 1);
	ip_address from;
	ASSERT_EQ(accept_tcp(listener.get(), called, from), 0);
	for (const unique_fd *fd : {&calling, &called}) {
		auto option = [&](int level, int name) {
			int value = 0;
			socklen_t size = sizeof(value);
			EXPECT_EQ(getsockopt(fd->get(), level, name, &value, &size), 0);
			return value;
		};
		EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
		EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE) +
				  option(IPPROTO_TCP, TCP_KEEPINTVL) *
					  option(IPPROTO_TCP, TCP_KEEPCNT),
			  80); // seconds, as docs/messaging.md says
	}
}

TEST(far_off, a_back_end_that_is_not_known_is_refused)
{
	setenv("COOP_NTRDMA_BACKEND", "udp", 1);
	nothing seen;
	EXPECT_THROW(node{seen}, std::system_error);
	unsetenv("COOP_NTRDMA_BACKEND");
}

TEST(far_off, a_number_that_is_none_is_refused_and_named)
{
	nothing seen;
	for (const char *wrong : {"99", "3600001", "5s", "-500", "many"}) {
		setenv("COOP_NTRDMA_BOUND_MS", wrong, 1);
		try {
			node n{seen};
			ADD_FAILURE() << wrong;
		} catch (const std::system_error &e) {
			EXPECT_NE(std::string{e.what()}.find(std::string{"COOP_NTRDMA_BOUND_MS="} +
							     wrong),
				  std::string::npos)
				<< e.what();
		}
	}
	unsetenv("COOP_NTRDMA_BOUND_MS");
}

} // namespace
