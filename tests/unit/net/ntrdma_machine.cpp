// SPDX-License-Identifier: MIT
// ntrdma_machine.cpp - the transport ntrdma, under a core, a clock and peers of the test.
//
// Time is a number, so a pause of the process takes none, and the test knows what has arrived when
// the machine looks.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <endian.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/lib/own_ip.hpp"
#include "userland/net/ntrdma/machine.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::nt;
using namespace std::chrono_literals;

// Addresses of this process alone.
address address_of(unsigned id)
{
	address a;
	EXPECT_EQ(parse(own_ip(10) + "@tcp:12345:31:" + std::to_string(id), a), 0);
	return a;
}

// Bytes between sockets of a host take their time.
template <class condition> bool until(condition what)
{
	for (const auto end = clock::now() + 60s; !what();) {
		if (clock::now() > end)
			return false;
		std::this_thread::yield();
	}
	return true;
}

// The core: operations by token, peers by address, and room for every message.
struct test_core final : spi::sink {
	time_point time{24h};
	std::map<spi::token, spi::transfer> operations;
	std::map<spi::token, int> ended; // status
	std::vector<address> peers;
	unsigned came = 0; // large messages

	void started() override {}
	void failed(int) override {}
	void stopped() override {}
	void completed(spi::token t, int status, std::size_t) override
	{
		if (operations.erase(t))
			ended[t] = status;
	}
	const spi::transfer *find(spi::token t) override
	{
		const auto at = operations.find(t);
		return at == operations.end() ? nullptr : &at->second;
	}
	spi::token use(spi::token t, std::size_t offset, std::size_t length,
		       spi::peer_number) override
	{
		spi::transfer x = operations.at(t);
		x.reusable = false;
		x.offset = offset;
		x.length = length;
		operations.emplace(++last_use_, x);
		return last_use_;
	}
	void given_up(spi::token) override {}
	int place(std::size_t length, spi::landing &out) override
	{
		out = {1, {{&segment_, 1}, sizeof(room_), nullptr}, 0, length};
		return 0;
	}
	void received(const spi::landing &, spi::peer_number) override { came++; }
	int receive(const void *, std::size_t, spi::peer_number) override { return 0; }
	void abandon(const spi::landing &) override {}
	bool received_in(spi::token, std::size_t, std::size_t, spi::peer_number) override
	{
		return false;
	}
	spi::peer_number peer(const address &a) override
	{
		const auto at = std::find(peers.begin(), peers.end(), a);
		const auto n = static_cast<spi::peer_number>(at - peers.begin());
		if (at == peers.end())
			peers.push_back(a);
		return n;
	}
	void release(spi::peer_number) override {}
	time_point now() override { return time; }
	bool polled() const override { return false; }

private:
	spi::token last_use_ = 1u << 20;
	std::byte room_[64];
	segment segment_{room_, sizeof(room_)};
};

struct alone {
	explicit alone(nt::reach reach, std::uint32_t links = 4096) : m(c, settings(reach, links))
	{
		EXPECT_EQ(m.start(address_of(0)), 0);
	}
	~alone()
	{
		m.stop();
		look_after(1s);
	}
	static nt::options settings(nt::reach reach, std::uint32_t links)
	{
		nt::options o{};
		o.eager = 16384;
		o.receives = 64;
		o.max_links = links;
		o.hold = 5s;
		o.parked = 1u << 20;
		o.max_message = 1u << 20;
		o.bound = 10s;
		o.idle = 1h;
		o.pull = o.answer = true;
		o.reach = reach;
		return o;
	}
	void look_after(clock::duration pause)
	{
		c.time += pause;
		m.expire(c.time);
	}
	// Until so many of its sockets hold something that it has not read.
	bool holds(int sockets)
	{
		epoll_event e[128];
		return until([&] { return ::epoll_wait(m.fd(), e, 128, 0) == sockets; });
	}
	void send(spi::token t, unsigned to)
	{
		spi::transfer x{};
		x.queue = queue_type::msg_send;
		x.memory = {{&segment_, 1}, sizeof(text_), nullptr};
		x.length = sizeof(text_);
		x.peer = c.peer(address_of(to));
		c.operations.emplace(t, x);
		EXPECT_EQ(m.submit(t, x), 0);
	}

	test_core c;
	machine m;

private:
	std::byte text_[8]{};
	segment segment_{text_, sizeof(text_)};
};

struct silence final : rdma::watcher {
	void completed(rdma::completion_queue &) override {}
	void happened(rdma::queue_pair &, rdma::event) override {}
	void few_receives(rdma::shared_receives &) override {}
};

// What both kinds of peers have: a queue pair that posts no receive.
struct peer_side {
	void link(rdma::port &p)
	{
		key_ = *regions_.add(reinterpret_cast<std::uint8_t *>(1),
				     std::numeric_limits<std::uint64_t>::max() - 1, 1, 1,
				     rdma::local_write);
		rdma::pair_options o;
		o.number = 1;
		o.domain = 1;
		o.send_depth = 1024;
		o.send_queue = o.recv_queue = &queue_;
		pair = std::make_unique<rdma::queue_pair>(regions_, watcher_, o);
		pair->set_state(rdma::pair_state::sends);
		pair->attach(p);
	}
	// It fits into an entry of the ring, so it is copied.
	void send(kind k, const head &h, std::span<const rdma::wire_segment> list = {})
	{
		std::vector<std::byte> text(sizeof(h) + list.size_bytes());
		std::memcpy(text.data(), &h, sizeof(h));
		if (!list.empty())
			std::memcpy(text.data() + sizeof(h), list.data(), list.size_bytes());
		rdma::send_request r{};
		r.op = rdma::operation::send_imm;
		r.imm = htole32(static_cast<std::uint32_t>(k));
		r.segments = 1;
		r.at[0] = {reinterpret_cast<std::uintptr_t>(text.data()),
			   static_cast<std::uint32_t>(text.size()), key_};
		EXPECT_EQ(pair->post_send(r), 0);
		pair->flush_posts();
	}

private:
	silence watcher_;
	rdma::region_table regions_;
	rdma::completion_queue queue_{watcher_};
	std::uint32_t key_ = 0;

public:
	std::unique_ptr<rdma::queue_pair> pair; // last: it ends before its queue
};

// What a greeting was answered with.
enum class answer { none, welcome, refused, hung_up };

// A peer by TCP.
struct far_peer {
	explicit far_peer(unsigned number) : id(number)
	{
		const address own = address_of(id), to = address_of(0);
		EXPECT_EQ(rdma::call_tcp(own.ip, to.ip, tcp_port(to), socket), 0);
		EXPECT_TRUE(until([&] { return rdma::connected(socket.get()) != -EAGAIN; }));
	}
	void say(greeting_kind k)
	{
		tcp_greeting g;
		g.kind = k;
		g.receives = 1u << 16;
		g.from = format(address_of(id));
		g.to = format(address_of(0));
		if (k != greeting_kind::start)
			g.own = nonce_ = {1, 2, 3};
		const auto text = put(g, {}, theirs_);
		EXPECT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
			  static_cast<ssize_t>(text.size()));
	}
	void hello() { say(greeting_kind::hello); }
	answer hears()
	{
		const ssize_t n = ::recv(socket.get(), text_.data() + got_, text_.size() - got_,
					 MSG_DONTWAIT);
		if (n < 0 && errno == EAGAIN)
			return answer::none;
		if (n <= 0)
			return answer::hung_up;
		if ((got_ += static_cast<std::size_t>(n)) < text_.size())
			return answer::none;
		got_ = 0;
		tcp_greeting g;
		EXPECT_EQ(get(text_, {}, nonce_, g), 0);
		EXPECT_EQ(g.to, format(address_of(id)));
		status = g.status;
		theirs_ = g.own;
		return g.kind == greeting_kind::welcome ? answer::welcome : answer::refused;
	}
	void start()
	{
		say(greeting_kind::start);
		port = std::make_unique<rdma::stream_port>(std::move(socket), nullptr, [] {});
		side.link(*port);
	}
	// Answers the machine's question for a sign of life.
	bool answers()
	{
		EXPECT_GE(port->receive(), 0);
		side.pair->progress();
		port->send();
		return port->in().ping.load() != 0;
	}

	unsigned id;
	int status = 0; // of the last greeting that it heard
	rdma::unique_fd socket;
	std::unique_ptr<rdma::stream_port> port;
	peer_side side;

private:
	std::array<std::uint8_t, tcp_greeting::size> text_{};
	std::size_t got_ = 0;
	nonce nonce_{}, theirs_{};
};

// A peer by shared memory.
struct near_peer {
	explicit near_peer(unsigned number) : id(number)
	{
		EXPECT_EQ(call(address_of(0), socket), 0);
		memory_ = rdma::window::create(&memory_fd_);
	}
	void say(greeting_kind k, std::span<const int> fds) const
	{
		greeting g;
		g.kind = k;
		g.layout = sizeof(rdma::half);
		g.receives = 1u << 16;
		g.features = feature::pulls;
		g.probe_at = reinterpret_cast<std::uintptr_t>(&sign_);
		g.probe_value = sign_;
		const std::string from = format(address_of(id)), to = format(address_of(0));
		std::memcpy(g.from, from.data(), from.size());
		std::memcpy(g.to, to.data(), to.size());
		EXPECT_TRUE(send_greeting(socket.get(), g, fds));
	}
	void hello() const
	{
		const int fds[] = {memory_fd_.get(), bell_.get(), words.fd()};
		say(greeting_kind::hello, fds);
	}
	answer hears()
	{
		greeting g;
		std::vector<rdma::unique_fd> fds;
		const int came = receive_greeting(socket.get(), g, fds);
		if (came <= 0)
			return came ? answer::hung_up : answer::none;
		if (g.kind != greeting_kind::welcome)
			return answer::refused;
		EXPECT_EQ(fds.size(), 2u);
		theirs_ = std::move(fds[0]);
		return answer::welcome;
	}
	void start()
	{
		say(greeting_kind::start, {});
		port = std::make_unique<rdma::window_port>(std::move(memory_), 0,
							   std::move(theirs_), ::getpid(),
							   rdma::unique_fd{}, false, [] {});
		side.link(*port);
	}
	bool is_up() const { return port->in().recv_post.load() != 0; }

	unsigned id;
	rdma::unique_fd socket;
	board words;
	std::unique_ptr<rdma::window_port> port;
	peer_side side;

private:
	std::uint64_t sign_ = 0x5157a6e0c0ffee11;
	std::unique_ptr<rdma::window> memory_;
	rdma::unique_fd memory_fd_, theirs_, bell_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
};

// What a caller's HELLO is answered with.
template <class peer> answer greeted(alone &a, peer &p)
{
	answer got = answer::none;
	EXPECT_TRUE(until([&] {
		a.look_after(0s);
		return (got = p.hears()) != answer::none;
	}));
	return got;
}

using far_peers = std::vector<std::unique_ptr<far_peer>>;

constexpr unsigned many = 40; // more than one look at the set reports

TEST(ntrdma_pause, a_sign_of_life_that_waits_in_a_socket_counts)
{
	alone a(reach::tcp);
	far_peers all;
	for (unsigned i = 1; i <= many + 1; i++) {
		auto &p = *all.emplace_back(std::make_unique<far_peer>(i));
		p.hello();
		ASSERT_EQ(greeted(a, p), answer::welcome);
		p.start();
		ASSERT_TRUE(a.holds(1));
		a.look_after(0s);
		a.send(i, i);
	}
	ASSERT_TRUE(a.holds(0));
	a.look_after(3s); // it asks
	for (unsigned i = 0; i < many; i++)
		EXPECT_TRUE(until([&] { return all[i]->answers(); }));
	ASSERT_TRUE(a.holds(many));
	a.look_after(11s);
	const std::map<spi::token, int> silent{{many + 1, -EHOSTDOWN}};
	EXPECT_EQ(a.c.ended, silent);
	a.look_after(1s);
	EXPECT_EQ(a.c.ended, silent);
}

TEST(ntrdma_pause, a_greeting_that_waits_in_a_socket_counts)
{
	alone a(reach::tcp);
	far_peers all;
	for (unsigned i = 1; i <= many + 1; i++) {
		all.emplace_back(std::make_unique<far_peer>(i));
		ASSERT_TRUE(a.holds(1));
		a.look_after(0s);
	}
	ASSERT_TRUE(a.holds(0));
	for (unsigned i = 0; i < many; i++)
		all[i]->hello();
	ASSERT_TRUE(a.holds(many));
	a.look_after(5s);
	for (const auto &p : all) {
		answer got = answer::none;
		EXPECT_TRUE(until([&] { return (got = p->hears()) != answer::none; }));
		EXPECT_EQ(got, p == all.back() ? answer::hung_up : answer::welcome) << p->id;
	}
}

// Its proof is right each time.
TEST(ntrdma_greetings, one_of_another_kind_is_refused_with_the_reason)
{
	constexpr greeting_kind kinds[] = {greeting_kind::hello, greeting_kind::welcome,
					   greeting_kind::start, greeting_kind::refuse};
	alone a(reach::tcp);
	unsigned id = 0;
	for (const auto awaited : {greeting_kind::hello, greeting_kind::start})
		for (const greeting_kind k : kinds) {
			if (k == awaited)
				continue;
			far_peer p(++id);
			if (awaited == greeting_kind::start) {
				p.hello();
				ASSERT_EQ(greeted(a, p), answer::welcome);
			}
			p.say(k);
			EXPECT_EQ(greeted(a, p), answer::refused) << static_cast<int>(k);
			EXPECT_EQ(p.status, -EPROTO);
			EXPECT_EQ(greeted(a, p), answer::hung_up);
		}
}

template <class peer> void calls_a_machine_without_room(nt::reach how)
{
	alone a(how, 1);
	auto first = std::make_unique<peer>(1);
	first->hello();
	ASSERT_EQ(greeted(a, *first), answer::welcome);
	peer second(2);
	second.hello();
	ASSERT_TRUE(a.holds(1));
	for (int i = 0; i < 3; i++) {
		a.look_after(200ms); // more than the time after which it listens again
		EXPECT_EQ(second.hears(), answer::none);
	}
	first.reset();
	ASSERT_TRUE(a.holds(2)); // the end of the first, and the second
	a.look_after(0s);
	a.look_after(200ms);
	EXPECT_EQ(greeted(a, second), answer::welcome);
}

TEST(ntrdma_room, a_caller_by_memory_waits_for_it)
{
	calls_a_machine_without_room<near_peer>(reach::windows);
}

TEST(ntrdma_room, a_caller_by_tcp_waits_for_it)
{
	calls_a_machine_without_room<far_peer>(reach::tcp);
}

// They say START, if at all, after all have been welcomed.
template <class peer> void calls_by_many_links(nt::reach how)
{
	alone a(how);
	std::vector<std::unique_ptr<peer>> all;
	for (int i = 0; i < 5; i++) {
		auto &p = *all.emplace_back(std::make_unique<peer>(1));
		p.hello();
		EXPECT_EQ(greeted(a, p), i < 4 ? answer::welcome : answer::refused) << i;
	}
	peer other(2);
	other.hello();
	EXPECT_EQ(greeted(a, other), answer::welcome);
}

TEST(ntrdma_room, callers_by_memory_that_were_welcomed_count_for_their_address)
{
	calls_by_many_links<near_peer>(reach::windows);
}

TEST(ntrdma_room, callers_by_tcp_that_were_welcomed_count_for_their_address)
{
	calls_by_many_links<far_peer>(reach::tcp);
}

TEST(ntrdma_room, callers_by_tcp_that_say_nothing_do_not_take_all_of_it)
{
	alone a(reach::tcp);
	far_peers silent;
	for (unsigned i = 1; i <= 256; i++) {
		silent.emplace_back(std::make_unique<far_peer>(i));
		ASSERT_TRUE(a.holds(1));
		a.look_after(0s);
	}
	a.look_after(200ms); // it listens again
	far_peer next(257);
	next.hello();
	ASSERT_TRUE(a.holds(1));
	a.look_after(1s);
	a.look_after(0s);
	EXPECT_EQ(next.hears(), answer::none);
	a.look_after(5s); // their time is over
	a.look_after(200ms);
	EXPECT_EQ(greeted(a, next), answer::welcome);
}

TEST(ntrdma_room, callers_of_another_user_hold_nothing_up)
{
	if (::geteuid() != 0)
		GTEST_SKIP() << "needs the right to become another user";
	alone a(reach::windows);
	std::vector<rdma::unique_fd> all(100); // fewer than any backlog has room for
	std::thread([&] {
		// Of this thread alone.
		ASSERT_EQ(::syscall(SYS_setresuid, -1, 65534, -1), 0);
		for (rdma::unique_fd &fd : all)
			EXPECT_EQ(call(address_of(0), fd), -EACCES);
	}).join();
	EXPECT_EQ(::prctl(PR_SET_DUMPABLE, 1), 0); // what that has changed for the process
	const auto sent_away = [&] {
		return std::count_if(all.begin(), all.end(), [](const rdma::unique_fd &fd) {
			std::byte b;
			return ::recv(fd.get(), &b, 1, MSG_DONTWAIT) == 0;
		});
	};
	a.look_after(0s);
	EXPECT_GT(sent_away(), 0);
	EXPECT_LT(sent_away(), 100) << "a caller of this user waits as long as others call";
	EXPECT_TRUE(until([&] {
		a.look_after(0s);
		return sent_away() == 100;
	}));
}

void bring_up(alone &a, near_peer &p)
{
	p.hello();
	ASSERT_EQ(greeted(a, p), answer::welcome);
	p.start();
	EXPECT_TRUE(until([&] {
		a.look_after(0s);
		return p.is_up();
	}));
}

TEST(ntrdma_pulls, large_messages_that_were_given_up_delay_no_other)
{
	alone a(reach::windows);
	near_peer p(1);
	bring_up(a, p);
	const std::uint64_t bytes = 42;
	const rdma::wire_segment where{reinterpret_cast<std::uintptr_t>(&bytes), sizeof(bytes)};
	const auto offer = [&] {
		const board::loan loan = p.words.lend();
		head h;
		h.from = 1;
		h.length = sizeof(bytes);
		h.word = loan.word;
		h.value = loan.value;
		h.segments = 1;
		p.side.send(kind::offer, h, {&where, 1});
	};
	for (int i = 0; i < 200; i++)
		offer();
	for (std::uint64_t i = 0; i < 400; i++) { // the machine's numbers are among these
		head h;
		h.to = i;
		h.status = -ECANCELED;
		p.side.send(kind::refuse, h);
	}
	EXPECT_TRUE(until([&] {
		(void)a.m.progress(64);
		p.side.pair->progress();
		return !p.side.pair->sends_outstanding();
	}));
	(void)a.m.progress(64);
	const unsigned before = a.c.came;
	EXPECT_LT(before, 100u); // most were given up
	offer();
	for (int i = 0; i < 3; i++)
		(void)a.m.progress(64);
	EXPECT_EQ(a.c.came, before + 1);
}

// The bytes of answers that wait are bounded for all peers together.
TEST(ntrdma_room, of_peers_that_take_no_answers_one_is_disconnected)
{
	alone a(reach::windows);
	near_peer all[] = {near_peer(1), near_peer(2)};
	for (near_peer &p : all)
		bring_up(a, p);
	// Of as many segments as an answer may name, and too long to be sent at once.
	std::vector<std::byte> memory(1u << 17);
	std::vector<segment> pieces;
	for (std::size_t i = 0; i < segments_most; i++)
		pieces.push_back({memory.data() + i * 256, 255});
	spi::transfer x{};
	x.queue = queue_type::passive_bulk_send;
	x.memory = {pieces, segments_most * 255, nullptr};
	x.length = x.memory.size;
	x.peer = spi::no_peer;
	x.key = 7;
	x.reusable = true;
	a.c.operations.emplace(1, x);
	head get;
	get.to = 1;
	get.key = x.key;
	get.length = x.length;
	const rdma::wire_segment offset{0, 0};
	const auto ended = [&] {
		return std::count_if(std::begin(all), std::end(all),
				     [](near_peer &p) { return p.hears() == answer::hung_up; });
	};
	// 37 MB to each, by and by.
	for (std::uint64_t i = 1; i <= 4500 && !ended(); i++) {
		get.from = i;
		for (near_peer &p : all)
			p.side.send(kind::get_at, get, {&offset, 1});
		if (i % 500)
			continue;
		for (near_peer &p : all)
			EXPECT_TRUE(until([&] {
				(void)a.m.progress(64);
				p.side.pair->progress();
				return !p.side.pair->sends_outstanding();
			}));
	}
	EXPECT_EQ(ended(), 1);
}

} // namespace
