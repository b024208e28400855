// SPDX-License-Identifier: MIT
// window.cpp - two nodes of this process: greetings, doorbells, ends, and peers that never come.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <iterator>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/ntrdma/process.hpp"
#include "userland/ntrdma/window/descriptors.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace std::chrono_literals;

/// The numbers of this process's threads.
std::set<std::string> threads()
{
	std::set<std::string> all;
	for (const auto &e : std::filesystem::directory_iterator{"/proc/self/task"})
		all.insert(e.path().filename());
	return all;
}

/// The thread that is in `after` alone.
std::string added(const std::set<std::string> &before, const std::set<std::string> &after)
{
	for (const std::string &t : after)
		if (!before.count(t))
			return t;
	ADD_FAILURE() << "no thread was started";
	return {};
}

/// Looks at a thread of this process; opens no descriptor after the first.
class onlooker
{
public:
	explicit onlooker(const std::string &thread) :
		stat_{open(("/proc/self/task/" + thread + "/stat").c_str(), O_RDONLY | O_CLOEXEC)}
	{
	}
	/// What wakes the thread makes it runnable at once, so after that a sleep is a new one.
	bool sleeps() const
	{
		char line[512];
		ssize_t n = pread(stat_.get(), line, sizeof(line), 0);
		std::string_view text{line, n < 0 ? 0 : static_cast<std::size_t>(n)};
		return text.at(text.rfind(')') + 2) == 'S';
	}
	bool sleeps_soon() const
	{
		auto until = std::chrono::steady_clock::now() + 30s;
		while (std::chrono::steady_clock::now() < until) {
			if (sleeps())
				return true;
			std::this_thread::sleep_for(1ms);
		}
		return false;
	}

private:
	unique_fd stat_;
};

struct windows : testing::TestWithParam<const char *> {
	windows()
	{
		if (by_tcp())
			setenv("COOP_NTRDMA_BACKEND", "tcp", 1);
		else
			setenv("COOP_NTRDMA_PULL", GetParam(), 1);
	}
	~windows() override
	{
		unsetenv("COOP_NTRDMA_BACKEND");
		unsetenv("COOP_NTRDMA_PULL");
	}
	static bool by_tcp() { return GetParam() == std::string_view{"tcp"}; }
};
INSTANTIATE_TEST_SUITE_P(pull, windows, testing::Values("1", "0", "tcp"));

TEST_P(windows, threads_alone_make_progress)
{
	process a, b;
	a.connect(b.number());
	b.connect(a.number());
	for (std::uint32_t n : {8u, 4000u, 900000u}) {
		std::memset(a.memory.data(), static_cast<int>(n % 251), n);
		a.send(operation::write, n, b.base(), b.key);
		EXPECT_EQ(a.wait().result, status::success);
		EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data(), n), 0);
		std::memset(b.memory.data(), 7, n);
		a.send(operation::read, n, b.base(), b.key);
		EXPECT_EQ(a.wait().result, status::success);
		EXPECT_EQ(a.memory[n - 1], 7);
	}
	auto held = a.n.hold();
	EXPECT_EQ(!a.m->port, by_tcp());
	if (a.m->port)
		EXPECT_EQ(a.m->port->can_pull(), GetParam()[0] == '1');
	else
		EXPECT_TRUE(a.m->far);
}

TEST_P(windows, a_peer_that_leaves_ends_what_is_outstanding)
{
	setenv("COOP_NTRDMA_BOUND_MS", "1000", 1);
	process a;
	unsetenv("COOP_NTRDMA_BOUND_MS");
	{
		process b;
		a.connect(b.number());
		b.connect(a.number());
		a.send(operation::send, 8); // it posts no receive
	}
	EXPECT_EQ(a.wait().result, status::retry_exceeded);
}

TEST_P(windows, a_node_that_ends_leaves_its_links)
{
	process a;
	{
		process b;
		a.connect(b.number());
		b.connect(a.number());
		a.send(operation::write, 8, b.base(), b.key);
		EXPECT_EQ(a.wait().result, status::success);
		a.send(operation::send, 8); // it posts no receive
		b.m = nullptr;
	}
	EXPECT_EQ(a.wait().result, status::retry_exceeded);
}

TEST(window, a_process_without_the_queue_pair_ends_sends_within_the_bound)
{
	setenv("COOP_NTRDMA_BOUND_MS", "300", 1);
	process a, b;
	unsetenv("COOP_NTRDMA_BOUND_MS");
	// b lives and answers, but has no such queue pair; of two, one has the higher number.
	process *low = a.number() < b.number() ? &a : &b, *high = low == &a ? &b : &a;
	std::uint32_t index = (low->number() + 1) % pairs_most;
	high->connect((low->number() & ~(pairs_most - 1)) | index);
	high->send(operation::send, 8);
	EXPECT_EQ(high->wait().result, status::retry_exceeded);
}

TEST(window, a_send_that_is_posted_while_the_thread_sleeps_ends_within_the_bound)
{
	setenv("COOP_NTRDMA_BOUND_MS", "300", 1);
	auto before = threads();
	process a;
	auto with_a = threads();
	process b;
	auto with_b = threads();
	unsetenv("COOP_NTRDMA_BOUND_MS");
	bool a_is_low = a.number() < b.number();
	process &low = a_is_low ? a : b, &high = a_is_low ? b : a;
	onlooker thread{a_is_low ? added(before, with_a) : added(with_a, with_b)};
	low.connect(high.number()); // which never calls
	while (!low.tended())
		std::this_thread::sleep_for(1ms);
	ASSERT_TRUE(thread.sleeps_soon());
	low.send(operation::send, 8);
	EXPECT_EQ(low.wait().result, status::retry_exceeded);
}

TEST(window, both_ends_in_one_process)
{
	process a;
	pair_options o = a.m->pair->options();
	member *other;
	{
		auto held = a.n.hold();
		other = a.n.create(o);
		other->pair->peer = a.number();
		other->pair->set_rights(15);
		for (auto s : {pair_state::init, pair_state::ready})
			other->pair->set_state(s);
		a.n.changed(other);
	}
	a.connect(other->pair->options().number);
	a.memory[0] = 9;
	a.send(operation::write, 100000, a.base() + 500000, a.key);
	EXPECT_EQ(a.wait().result, status::success);
	EXPECT_EQ(a.memory[500000], 9);
	auto held = a.n.hold();
	a.n.destroy(other);
}

TEST(window, a_peer_that_never_comes_ends_sends_within_the_bound)
{
	setenv("COOP_NTRDMA_BOUND_MS", "200", 1);
	process a;
	unsetenv("COOP_NTRDMA_BOUND_MS");
	for (std::uint32_t nobody : {(a.number() & ~(pairs_most - 1)) + 1, 0x00ffffffu, 5u}) {
		{
			auto held = a.n.hold();
			a.m->pair->set_state(pair_state::reset);
			a.n.changed(a.m);
		}
		a.connect(nobody == a.number() ? nobody + 1 : nobody);
		a.send(operation::send, 8);
		EXPECT_EQ(a.wait().result, status::retry_exceeded);
	}
}

TEST(window, a_region_outlives_the_reads_that_pull_from_it)
{
	process a;
	auto held = a.n.hold();
	EXPECT_FALSE(a.n.remove_region(a.key + 1, held));
	EXPECT_TRUE(a.n.remove_region(a.key, held));
	EXPECT_FALSE(a.n.remove_region(a.key, held));
}

TEST(window, a_pull_from_a_process_after_exec_fails)
{
	std::uint64_t sign = 0x5157a6e0c0ffee11, data = 42, got = 0;
	int stdin_of[2], alive[2];
	ASSERT_EQ(pipe2(stdin_of, O_CLOEXEC), 0);
	ASSERT_EQ(pipe2(alive, O_CLOEXEC), 0);
	pid_t child = fork();
	if (!child) {
		char byte;
		if (read(stdin_of[0], &byte, 1) == 1 && dup2(stdin_of[0], 0) == 0)
			execl("/bin/cat", "cat", nullptr);
		_exit(1);
	}
	unique_fd reading{stdin_of[0]}, writing{stdin_of[1]}, ends{alive[0]}, held{alive[1]};
	held = unique_fd{};
	unique_fd fd;
	window_port port{window::create(&fd),
			 0,
			 unique_fd{},
			 child,
			 unique_fd{},
			 true,
			 [] {},
			 {reinterpret_cast<std::uintptr_t>(&sign), sign}};
	wire_segment from{reinterpret_cast<std::uintptr_t>(&data), sizeof(data)};
	place to{reinterpret_cast<std::uint8_t *>(&got), sizeof(got)};
	EXPECT_EQ(port.pull({&from, 1}, {&to, 1}), 0);
	EXPECT_EQ(got, 42u);
	wire_segment nowhere{8, sizeof(data)};
	EXPECT_EQ(port.pull({&nowhere, 1}, {&to, 1}), -EFAULT);
	EXPECT_EQ(write(writing.get(), "", 1), 1);
	char byte;
	EXPECT_EQ(read(ends.get(), &byte, 1), 0); // it has gone over
	EXPECT_EQ(port.pull({&from, 1}, {&to, 1}), -ESRCH);
	writing = unique_fd{};
	int status = 1;
	EXPECT_EQ(waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
}

/// In a child: the first thread ends, the next one at a byte of `orders`, and the third with the
/// process once nobody writes there any more.
[[noreturn]] void end_by_threads(int orders)
{
	std::thread{[orders] {
		char byte;
		[[maybe_unused]] ssize_t n = read(orders, &byte, 1);
		syscall(SYS_exit, 0);
	}}.detach();
	std::thread{[orders] {
		pollfd p{orders, 0, 0};
		poll(&p, 1, -1);
		_exit(0);
	}}.detach();
	syscall(SYS_exit, 0); // pthread_exit() would run the destructors of the test's frames
	std::abort();
}

/// The state of a thread, as the kernel tells it.
char state_of(pid_t process)
{
	std::ifstream stat{"/proc/" + std::to_string(process) + "/stat"};
	std::string text{std::istreambuf_iterator<char>{stat}, {}};
	std::size_t after = text.rfind(") ");
	return after == std::string::npos ? '?' : text[after + 2];
}

TEST(window, a_process_whose_first_thread_has_ended_is_pulled_from)
{
	std::uint64_t sign = 0x5157a6e0c0ffee11, data = 42, got = 0;
	int orders[2];
	ASSERT_EQ(pipe2(orders, O_CLOEXEC), 0);
	unique_fd reading{orders[0]}, writing{orders[1]};
	pid_t child = fork();
	if (!child) {
		writing = unique_fd{};
		end_by_threads(reading.get());
	}
	unique_fd life{static_cast<int>(syscall(SYS_pidfd_open, child, 0))};
	while (state_of(child) != 'Z')
		std::this_thread::sleep_for(1ms);
	EXPECT_FALSE(has_ended(life.get()));
	std::uint64_t at = reinterpret_cast<std::uintptr_t>(&sign);
	EXPECT_TRUE(can_read(child, at, sign));
	EXPECT_FALSE(can_read(child, at, sign + 1));
	unique_fd fd;
	window_port port{window::create(&fd), 0,    unique_fd{}, child,
			 std::move(life),     true, [] {},       {at, sign}};
	wire_segment from{reinterpret_cast<std::uintptr_t>(&data), sizeof(data)};
	place to{reinterpret_cast<std::uint8_t *>(&got), sizeof(got)};
	auto pulls = [&] {
		got = 0;
		EXPECT_EQ(port.pull({&from, 1}, {&to, 1}), 0);
		return got;
	};
	EXPECT_EQ(pulls(), 42u);
	EXPECT_EQ(write(writing.get(), "", 1), 1);
	auto threads_left = [&] {
		std::filesystem::directory_iterator all{"/proc/" + std::to_string(child) + "/task"};
		return std::distance(all, {});
	};
	while (threads_left() != 2)
		std::this_thread::sleep_for(1ms);
	EXPECT_EQ(pulls(), 42u);
	writing = unique_fd{};
	int status = 1;
	EXPECT_EQ(waitpid(child, &status, 0), child);
	EXPECT_EQ(port.pull({&from, 1}, {&to, 1}), -ESRCH);
}

TEST(window, a_memory_that_could_shrink_is_refused)
{
	unique_fd fd;
	auto made = window::create(&fd);
	EXPECT_TRUE(window::map(fd.get()));
	EXPECT_FALSE(window::map(0));
	EXPECT_NE(ftruncate(fd.get(), 0), 0);
}

TEST(window, a_caller_that_a_child_holds_open_keeps_the_thread_from_nothing)
{
	auto before = threads();
	process a;
	onlooker thread{added(before, threads())};
	unique_fd fd = call(slot_name(a.number() >> slot_shift));
	ASSERT_TRUE(fd);
	ASSERT_TRUE(thread.sleeps_soon()); // it has accepted
	int ends[2];
	ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
	pid_t child = fork();
	if (!child) {
		// It keeps the node's end alone, until the test is over.
		close(ends[1]);
		close(fd.get());
		char byte;
		_exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
	}
	unique_fd reading{ends[0]}, until{ends[1]};
	reading = unique_fd{};
	EXPECT_TRUE(send_greeting(fd.get(), greeting{}, {})); // which the node hangs up on
	EXPECT_TRUE(thread.sleeps_soon());
	fd = unique_fd{};
	EXPECT_TRUE(thread.sleeps_soon());
	until = unique_fd{};
	int status = 1;
	EXPECT_EQ(waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
}

TEST(window, a_caller_that_finds_no_descriptor_left_waits_and_the_thread_sleeps)
{
	auto before = threads();
	process a;
	onlooker thread{added(before, threads())};
	rlimit usual;
	ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
	rlimit few = usual;
	few.rlim_cur = 256;
	ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
	std::vector<unique_fd> all;
	while (all.empty() || all.back())
		all.emplace_back(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
	all.pop_back();
	ASSERT_FALSE(all.empty());
	all.pop_back();
	unique_fd fd = call(slot_name(a.number() >> slot_shift)); // takes the last one
	ASSERT_TRUE(fd);
	EXPECT_TRUE(thread.sleeps_soon());
	all.clear();
	ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
	EXPECT_TRUE(send_greeting(fd.get(), greeting{}, {}));
	pollfd hung_up{fd.get(), POLLIN | POLLRDHUP, 0};
	EXPECT_EQ(poll(&hung_up, 1, 30000), 1) << "it was never accepted";
}

TEST(window, a_bell_that_could_block_is_refused)
{
	process a;
	unique_fd memory, fd = call(slot_name(a.number() >> slot_shift));
	ASSERT_TRUE(fd);
	ASSERT_TRUE(window::create(&memory));
	int ends[2];
	ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
	unique_fd reading{ends[0]}, writing{ends[1]};
	a.connect(a.number() + 1);
	greeting g{};
	g.magic = greeting_magic;
	g.version = greeting_version;
	g.kind = greeting_kind::hello;
	g.layout = sizeof(half);
	g.from = a.number() + 1;
	g.to = a.number();
	int fds[] = {memory.get(), writing.get()};
	ASSERT_TRUE(send_greeting(fd.get(), g, fds));
	pollfd answer{fd.get(), POLLIN | POLLRDHUP, 0};
	ASSERT_EQ(poll(&answer, 1, 30000), 1);
	std::vector<unique_fd> got;
	EXPECT_EQ(receive_greeting(fd.get(), &g, &got), -1) << "it hung up";
}

/// What this process wrote to stderr about peers of another version, and about whom.
std::string named_peers(const std::string &said)
{
	std::string all;
	std::istringstream lines{said};
	for (std::string line; std::getline(lines, line);)
		if (line.find(" of another version") != std::string::npos)
			all += line.substr(0, line.find(" has ")) + '\n';
	return all;
}

const std::string this_process = "coop-verbs: process " + std::to_string(getpid()) + '\n';

greeting of_another_version(greeting_kind kind)
{
	greeting g{};
	g.magic = greeting_magic;
	g.version = greeting_version + 1;
	g.kind = kind;
	g.layout = sizeof(half);
	return g;
}

TEST(window, a_caller_of_another_version_is_refused_and_named_once)
{
	process a;
	testing::internal::CaptureStderr();
	greeting newer = of_another_version(greeting_kind::hello), larger = newer;
	larger.version = greeting_version;
	larger.layout++;
	std::array<greeting, 2> longer{newer, greeting{}};
	const std::span<const std::byte> texts[] = {std::as_bytes(std::span{&newer, 1}),
						    std::as_bytes(std::span{&larger, 1}),
						    std::as_bytes(std::span{longer})};
	for (const auto &text : texts) {
		unique_fd fd = call(slot_name(a.number() >> slot_shift));
		ASSERT_TRUE(fd);
		ASSERT_TRUE(send_message(fd.get(), text, {}));
		pollfd answer{fd.get(), POLLIN | POLLRDHUP, 0};
		ASSERT_EQ(poll(&answer, 1, 30000), 1);
		greeting g{};
		std::vector<unique_fd> got;
		EXPECT_EQ(receive_greeting(fd.get(), &g, &got), 1);
		EXPECT_EQ(g.kind, greeting_kind::refuse);
	}
	EXPECT_EQ(named_peers(testing::internal::GetCapturedStderr()), this_process);
}

TEST(window, a_called_process_of_another_version_is_named_once)
{
	auto low = std::make_unique<process>(), high = std::make_unique<process>();
	if (low->number() > high->number())
		std::swap(low, high);
	const std::uint32_t to = low->number();
	low.reset();
	unique_fd listener = listen_at(slot_name(to >> slot_shift));
	ASSERT_TRUE(listener);
	testing::internal::CaptureStderr();
	high->connect(to);
	for (int i = 0; i < 3; i++) {
		pollfd caller{listener.get(), POLLIN, 0};
		ASSERT_EQ(poll(&caller, 1, 30000), 1);
		unique_fd fd{accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
		ASSERT_TRUE(fd);
		pollfd hello{fd.get(), POLLIN, 0};
		ASSERT_EQ(poll(&hello, 1, 30000), 1);
		greeting g{};
		std::vector<unique_fd> got;
		ASSERT_EQ(receive_greeting(fd.get(), &g, &got), 1);
		EXPECT_EQ(g.kind, greeting_kind::hello);
		ASSERT_TRUE(send_greeting(fd.get(), of_another_version(greeting_kind::refuse), {}));
	}
	// It has heard the first two.
	EXPECT_EQ(named_peers(testing::internal::GetCapturedStderr()), this_process);
}

TEST(window, strangers_on_the_socket_do_no_harm)
{
	process a;
	std::uint32_t slot = a.number() >> slot_shift;
	for (int i = 0; i < 20; i++) {
		unique_fd fd = call(slot_name(slot));
		ASSERT_TRUE(fd);
		greeting g{};
		g.magic = greeting_magic;
		g.version = static_cast<std::uint16_t>(i % 3);
		g.kind = static_cast<greeting_kind>(i);
		g.layout = sizeof(half);
		g.to = a.number();
		send_greeting(fd.get(), g, {});
	}
	process b;
	a.connect(b.number());
	b.connect(a.number());
	a.send(operation::write, 8, b.base(), b.key);
	EXPECT_EQ(a.wait().result, status::success);
}

} // namespace
