// SPDX-License-Identifier: MIT
// greeting.cpp - which greetings a machine answers over the TCP connection beside a link of
// reliable datagrams, and which make it hang up.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <iterator>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>

#include "coop/net.hpp"
#include "coop/unique_fd.hpp"
#include "tests/lib/own_ip.hpp"
#include "userland/net/fabric/datagram_port.hpp"
#include "userland/net/fabric/wire.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::fabric;
using namespace std::chrono_literals;

constexpr char provider_name[] = "tcp;ofi_rxm";

std::string here(unsigned n)
{
	return own_ip(10) + "@tcp:12345:31:" + std::to_string(n);
}

// An honest peer's greeting: the name of its end point is an address of its IP.
struct greeting {
	explicit greeting(const address &to)
	{
		address own;
		EXPECT_EQ(parse(here(9), own), 0);
		hello h;
		h.from = own;
		h.to = digest(to);
		h.link = 1;
		h.cookie = 7;
		h.window = 64;
		h.eager = 4096;
		const auto bytes = encode(h);
		text.assign(reinterpret_cast<const char *>(bytes.data()), bytes.size());
		const socket_address at = at_port(own, 9);
		name.assign(reinterpret_cast<const char *>(&at.storage), at.size);
	}
	std::string whole() const
	{
		std::string all = text;
		all += static_cast<char>(length ? length : name.size());
		all += '\0';
		return all + name;
	}

	std::string text, name;
	std::size_t length = 0; // that it states; 0: the true one
};

coop::unique_fd call(const address &to, const std::string &from_ip)
{
	const port_list l = ports_of(to);
	const socket_address at = at_port(to, l.ports[0]);
	coop::unique_fd s(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
	address own;
	EXPECT_EQ(parse(from_ip + "@tcp:12345:31:1", own), 0);
	const socket_address from = at_port(own, 0);
	EXPECT_EQ(::bind(s.get(), reinterpret_cast<const sockaddr *>(&from.storage),
			 static_cast<socklen_t>(from.size)),
		  0);
	EXPECT_EQ(::connect(s.get(), reinterpret_cast<const sockaddr *>(&at.storage),
			    static_cast<socklen_t>(at.size)),
		  0);
	return s;
}

std::ptrdiff_t open_files()
{
	const std::filesystem::directory_iterator files("/proc/self/fd");
	return std::distance(begin(files), end(files));
}

// What the machine sends until it hangs up, or until it has sent a whole greeting.
std::string answer_at(int fd)
{
	std::string all;
	for (const auto end = clock::now() + 30s; clock::now() < end;) {
		pollfd p{fd, POLLIN, 0};
		char text[512];
		if (::poll(&p, 1, 1000) <= 0)
			continue;
		const ssize_t n = ::recv(fd, text, sizeof(text), MSG_DONTWAIT);
		if (n <= 0 && !(n < 0 && errno == EAGAIN))
			return all;
		if (n > 0)
			all.append(text, static_cast<std::size_t>(n));
		if (all.size() > datagram_port::head)
			return all;
	}
	return "silence";
}

int one_message(transfer_machine &from, domain &home, const address &to)
{
	std::byte text[8]{};
	buffer b(home, text, sizeof(text));
	channel done;
	int status = -EINPROGRESS;
	buffer_callback ended([&](const buffer_event &e) {
		status = e.status;
		done.signal();
	});
	endpoint_ptr there;
	if (const int error = from.make_endpoint(to, there))
		return error;
	operation o;
	o.queue = queue_type::msg_send;
	o.to = there.get();
	o.length = sizeof(text);
	o.handler = &ended;
	o.deadline = clock::now() + 30s;
	if (const int error = from.add(b, o))
		return error;
	(void)done.wait();
	return status;
}

struct trick {
	const char *name;
	std::function<void(greeting &)> play;
	unsigned ip = 10; // it calls from there
};

void PrintTo(const trick &t, std::ostream *out)
{
	*out << t.name;
}

class fabric_greeting_with : public testing::TestWithParam<trick>
{
};

TEST_P(fabric_greeting_with, is_hung_up_on_and_others_are_not)
{
	domain d({"fabric", {{"provider", provider_name}}});
	transfer_machine tm(d), friendly(d);
	ASSERT_EQ(tm.start(here(1)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	ASSERT_EQ(friendly.start(here(2)), 0);
	ASSERT_EQ(friendly.wait(tm_state::started), 0);
	std::byte room[64];
	buffer b(d, room, sizeof(room));
	buffer_callback letters([](const buffer_event &) {});
	operation o;
	o.queue = queue_type::msg_recv;
	o.min_receive_size = 8;
	o.max_receive_msgs = 2;
	o.handler = &letters;
	ASSERT_EQ(tm.add(b, o), 0);
	ASSERT_EQ(one_message(friendly, d, tm.address()), 0);
	const auto files = open_files();
	{
		greeting g(tm.address());
		GetParam().play(g);
		const coop::unique_fd s = call(tm.address(), own_ip(GetParam().ip));
		const std::string text = g.whole();
		ASSERT_EQ(::send(s.get(), text.data(), text.size(), MSG_NOSIGNAL),
			  static_cast<ssize_t>(text.size()));
		EXPECT_EQ(answer_at(s.get()), "");
	}
	EXPECT_EQ(one_message(friendly, d, tm.address()), 0);
	const auto end = clock::now() + 30s;
	while (open_files() > files && clock::now() < end)
		std::this_thread::sleep_for(1ms);
	EXPECT_LE(open_files(), files);
	ASSERT_EQ(tm.stop(true), 0);
	ASSERT_EQ(tm.wait(tm_state::stopped), 0);
}

// The same greeting without a trick: the tricks are why the machine hangs up on the others.
TEST(fabric_greeting, that_is_in_order_is_answered_in_pieces_too)
{
	domain d({"fabric", {{"provider", provider_name}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(here(1)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	for (const std::size_t piece : {std::size_t{1000}, std::size_t{1}}) {
		const greeting g(tm.address());
		const coop::unique_fd s = call(tm.address(), own_ip(10));
		const std::string text = g.whole();
		for (std::size_t at = 0; at < text.size(); at += piece)
			ASSERT_GT(::send(s.get(), text.data() + at,
					 std::min(piece, text.size() - at), MSG_NOSIGNAL),
				  0);
		const std::string answer = answer_at(s.get());
		EXPECT_EQ(answer.size(), datagram_port::head + g.name.size());
		hello theirs;
		EXPECT_TRUE(decode(std::as_bytes(std::span(answer)).first(hello::size), theirs));
	}
}

const trick tricks[] = {
	{"noise", [](greeting &g) { g.text.assign(hello::size + 20, 'x'); }},
	{"for_another", [](greeting &g) { g.text[hello::size / 2] ^= 0x40; }},
	{"without_a_name", [](greeting &g) { g.text += std::string(2, '\0'); }},
	{"of_a_name_too_short", [](greeting &g) { g.name.resize(8); }},
	{"of_a_name_too_long", [](greeting &g) { g.name.append(100, 'n'); }},
	{"longer_than_it_says", [](greeting &g) { g.length = 4; }},
	{"of_the_name_of_another_host", [](greeting &g) { g.name[7] ^= 1; }},
	{"from_another_host_than_it_says", [](greeting &) {}, 11},
	{"and_a_word_more",
	 [](greeting &g) {
		 g.length = g.name.size();
		 g.name += "more";
	 }},
};

INSTANTIATE_TEST_SUITE_P(a_trick, fabric_greeting_with, testing::ValuesIn(tricks),
			 [](const auto &info) { return std::string(info.param.name); });

} // namespace
