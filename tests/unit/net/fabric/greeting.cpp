// SPDX-License-Identifier: MIT
// greeting.cpp - which greetings a machine of shm answers, and which make it hang up.
//
// A greeting carries a name to map and two descriptors; each can be anything that another process
// of the same user has.
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <iterator>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"
#include "userland/net/fabric/host_socket.hpp"
#include "userland/net/fabric/wire.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::fabric;
using namespace std::chrono_literals;

std::string here(unsigned n)
{
	return own_ip(10) + "@tcp:12345:31:" + std::to_string(n);
}

// An honest peer's greeting, except that its name leads to no peer.
struct greeting {
	explicit greeting(const address &to)
	{
		hello h;
		EXPECT_EQ(parse(here(9), h.from), 0);
		h.to = digest(to);
		h.link = 1;
		h.cookie = 7;
		h.window = 64;
		h.eager = 4096;
		const auto bytes = encode(h);
		text.assign(reinterpret_cast<const char *>(bytes.data()), bytes.size());
		text += "fi_shm://coop-net-nobody";
		EXPECT_EQ(::ftruncate(page.get(), 4096), 0);
		EXPECT_EQ(::fcntl(page.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
	}

	std::string text;
	descriptor bell{::eventfd(0, EFD_CLOEXEC)};
	descriptor page{::memfd_create("greeting", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
};

// A page that its owner may remove while others have it mapped.
descriptor memory(off_t size, int seals)
{
	descriptor d(::memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	EXPECT_EQ(::ftruncate(d.get(), size), 0);
	EXPECT_EQ(::fcntl(d.get(), F_ADD_SEALS, seals), 0);
	return d;
}

// A file without a name: it has no seals, and its owner can shorten it.
descriptor file(off_t size)
{
	std::FILE *const f = std::tmpfile();
	EXPECT_NE(f, nullptr);
	descriptor d(f ? ::fcntl(::fileno(f), F_DUPFD_CLOEXEC, 0) : -1);
	EXPECT_TRUE(d);
	if (f)
		std::fclose(f);
	EXPECT_EQ(::ftruncate(d.get(), size), 0);
	return d;
}

std::ptrdiff_t open_files()
{
	const std::filesystem::directory_iterator files("/proc/self/fd");
	return std::distance(begin(files), end(files));
}

// True if the machine will send nothing more.
bool hung_up(int fd)
{
	for (const auto end = clock::now() + 30s; clock::now() < end;) {
		pollfd p{fd, POLLIN, 0};
		char byte;
		if (::poll(&p, 1, 1000) <= 0)
			continue;
		const ssize_t n = ::recv(fd, &byte, 1, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN))
			return true;
	}
	return false;
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
	domain d({"fabric", {{"provider", "shm"}}});
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
		descriptor s;
		ASSERT_EQ(connect_there("shm", tm.address(), s), 0);
		ASSERT_EQ(send_packet(s.get(), g.text, g.bell.get(), g.page.get()), 0);
		EXPECT_TRUE(hung_up(s.get()));
	}
	EXPECT_EQ(one_message(friendly, d, tm.address()), 0);
	EXPECT_EQ(open_files(), files) << "what came with it was kept";
	ASSERT_EQ(tm.stop(true), 0);
	ASSERT_EQ(tm.wait(tm_state::stopped), 0);
}

// The same greeting without a trick: the tricks are why the machine hangs up on the others.
TEST(fabric_greeting, that_is_in_order_is_answered)
{
	domain d({"fabric", {{"provider", "shm"}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(here(1)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	greeting g(tm.address());
	descriptor s, bell, page;
	ASSERT_EQ(connect_there("shm", tm.address(), s), 0);
	ASSERT_EQ(send_packet(s.get(), g.text, g.bell.get(), g.page.get()), 0);
	pollfd p{s.get(), POLLIN, 0};
	ASSERT_EQ(::poll(&p, 1, 30000), 1);
	std::string answer;
	EXPECT_GT(receive_packet(s.get(), answer, bell, page), static_cast<int>(hello::size));
	EXPECT_TRUE(bell && page);
}

const trick tricks[] = {
	{"too_short", [](greeting &g) { g.text.resize(hello::size - 1); }},
	{"noise", [](greeting &g) { g.text.assign(hello::size + 20, 'x'); }},
	{"for_another", [](greeting &g) { g.text[hello::size / 2] ^= 0x40; }},
	{"without_a_name", [](greeting &g) { g.text.resize(hello::size); }},
	{"of_a_name_too_long", [](greeting &g) { g.text.append(200, 'n'); }},
	{"of_a_name_that_ends_before_it_ends", [](greeting &g) { g.text[hello::size + 12] = 0; }},
	{"longer_than_any", [](greeting &g) { g.text.append(1000, 'n'); }},
	{"page_that_may_shrink", [](greeting &g) { g.page = memory(4096, 0); }},
	{"page_too_short", [](greeting &g) { g.page = memory(64, F_SEAL_SHRINK); }},
	{"page_that_is_read_only",
	 [](greeting &g) { g.page = memory(4096, F_SEAL_SHRINK | F_SEAL_WRITE); }},
	{"page_that_is_a_file", [](greeting &g) { g.page = file(4096); }},
	{"page_that_is_none", [](greeting &g) { g.page = descriptor(::eventfd(0, EFD_CLOEXEC)); }},
};

INSTANTIATE_TEST_SUITE_P(a_trick, fabric_greeting_with, testing::ValuesIn(tricks),
			 [](const auto &info) { return std::string(info.param.name); });

} // namespace
