// SPDX-License-Identifier: MIT
// ntrdma.cpp - the transport ntrdma met by callers that the test plays: what it refuses, and why.
#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"
#include "userland/net/ntrdma/board.hpp"
#include "userland/net/ntrdma/greeting.hpp"
#include "userland/net/ntrdma/tcp_greeting.hpp"
#include "userland/net/ntrdma/wire.hpp"
#include "userland/ntrdma/core/queue_pair.hpp"
#include "userland/ntrdma/stream/sockets.hpp"
#include "userland/ntrdma/stream/stream.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::nt;
using namespace std::chrono_literals;

// Addresses of this process alone.
address own(unsigned id)
{
	address a;
	EXPECT_EQ(parse(own_ip(9) + "@tcp:12345:31:" + std::to_string(id), a), 0);
	return a;
}

struct heedless final : tm_handler {
	void on_state(const tm_event &) override {}
};

struct called {
	explicit called(domain_options o, unsigned id = 0) : in(o), tm(in, &states)
	{
		EXPECT_EQ(tm.start(format(own(id))), 0);
		EXPECT_EQ(tm.wait(tm_state::started, clock::now() + 30s), 0);
	}
	~called() { (void)tm.stop(true); }
	void stop()
	{
		(void)tm.stop(true);
		(void)tm.wait(tm_state::stopped, clock::now() + 30s);
	}
	heedless states;
	domain in;
	transfer_machine tm;
};

// A message. It outlives its operation.
class message final : public buffer_handler
{
public:
	message(domain &in, transfer_machine &tm, const address &receiver, std::size_t length = 8) :
		memory_(length),
		buffer_(in, memory_.data(), length)
	{
		for (std::size_t i = 0; i < length; i++)
			memory_[i] = static_cast<std::uint8_t>(i * 3 + i / 256);
		EXPECT_EQ(tm.make_endpoint(format(receiver), to_), 0);
		operation o;
		o.queue = queue_type::msg_send;
		o.length = length;
		o.to = to_.get();
		o.handler = this;
		EXPECT_EQ(tm.add(buffer_, o), 0);
	}
	// The status of its end, once it has come; 1: it does not.
	int end(clock::duration within = 30s)
	{
		for (const auto until = clock::now() + within;
		     status_ == 1 && clock::now() < until;)
			std::this_thread::sleep_for(1ms);
		return status_;
	}
	bool is(const std::vector<std::uint8_t> &bytes) const { return memory_ == bytes; }

private:
	void on_buffer(const buffer_event &e) override { status_ = e.status; }

	std::vector<std::uint8_t> memory_;
	buffer buffer_;
	endpoint_ptr to_;
	std::atomic<int> status_{1};
};

struct caller {
	// Says HELLO, and START after WELCOME. @return 0 or what REFUSE said.
	int greet(const address &from, int bell)
	{
		EXPECT_EQ(call(own(0), socket), 0);
		rdma::unique_fd window;
		memory = rdma::window::create(&window);
		greeting g;
		g.kind = greeting_kind::hello;
		g.layout = sizeof(rdma::half);
		g.receives = control_most;
		std::strcpy(g.from, format(from).c_str());
		std::strcpy(g.to, format(own(0)).c_str());
		const int fds[] = {window.get(), bell, words.fd()};
		EXPECT_TRUE(send_greeting(socket.get(), g, fds));
		greeting answer;
		std::vector<rdma::unique_fd> theirs;
		int came = 0;
		for (const auto until = clock::now() + 30s; !came && clock::now() < until;) {
			came = receive_greeting(socket.get(), answer, theirs);
			std::this_thread::yield();
		}
		EXPECT_EQ(came, 1);
		if (answer.kind == greeting_kind::refuse)
			return answer.status;
		EXPECT_EQ(answer.kind, greeting_kind::welcome);
		g.kind = greeting_kind::start;
		EXPECT_TRUE(send_greeting(socket.get(), g, {}));
		return 0;
	}
	rdma::unique_fd socket, bell{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
	std::unique_ptr<rdma::window> memory;
	board words;
};

TEST(ntrdma, refuses_a_bell_that_could_block_it)
{
	called machine({"ntrdma", {}});
	int ends[2];
	ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
	const rdma::unique_fd reading{ends[0]}, writing{ends[1]};
	EXPECT_EQ(caller().greet(own(1), writing.get()), -EPROTO);
	caller good;
	EXPECT_EQ(good.greet(own(1), good.bell.get()), 0);
}

TEST(ntrdma, bounds_the_links_of_an_address)
{
	called machine({"ntrdma", {}});
	std::vector<std::unique_ptr<caller>> all;
	const auto greet = [&](unsigned id) {
		all.push_back(std::make_unique<caller>());
		return all.back()->greet(own(id), all.back()->bell.get());
	};
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(greet(1), 0) << i;
	EXPECT_EQ(greet(1), -ENOBUFS);
	EXPECT_EQ(greet(2), 0) << "another address";
}

TEST(ntrdma, calls_no_more_peers_than_it_may_have_links)
{
	called machine({"ntrdma", {{"max_links", "1"}}});
	caller one;
	EXPECT_EQ(one.greet(own(1), one.bell.get()), 0);
	message m(machine.in, machine.tm, own(2));
	EXPECT_EQ(m.end(), -ENOBUFS);
	machine.stop();
}

TEST(ntrdma, parked_has_room_for_two_offers)
{
	const auto opens = [](const char *parked) {
		try {
			domain d({"ntrdma", {{"eager", "64"}, {"parked", parked}}});
			return 0;
		} catch (const std::system_error &e) {
			return e.code().value();
		}
	};
	EXPECT_EQ(opens("16k"), EINVAL);
	EXPECT_EQ(opens("17k"), 0);
}

// A file of 32 bytes that only its owner can read.
struct key_file {
	explicit key_file(char c) : fd{::mkostemp(name, O_CLOEXEC)}
	{
		const std::string text(32, c);
		EXPECT_EQ(::write(fd.get(), text.data(), text.size()), 32);
	}
	~key_file() { ::unlink(name); }
	char name[32] = "/tmp/coop-ntrdma-key-XXXXXX";
	rdma::unique_fd fd;
};

using settings = std::vector<std::pair<std::string, std::string>>;

// The status of a message between machines with these options.
int sends(settings called_by, settings calling)
{
	called machine({"ntrdma", called_by}), sender({"ntrdma", calling}, 5);
	message m(sender.in, sender.tm, own(0));
	const int status = m.end();
	sender.stop();
	return status;
}

// The same by TCP.
int sends_by_tcp(settings called_by, settings calling)
{
	called_by.emplace_back("backend", "tcp");
	calling.emplace_back("backend", "tcp");
	return sends(std::move(called_by), std::move(calling));
}

TEST(ntrdma_auto, calls_a_machine_of_this_host_by_memory_and_never_by_tcp)
{
	rdma::unique_fd here, far;
	ASSERT_EQ(listen_at(own(0), here), 0);
	ASSERT_EQ(rdma::listen_tcp(own(0).ip, tcp_port(own(0)), far), 0);
	called sender({"ntrdma", {{"backend", "auto"}}}, 5);
	message m(sender.in, sender.tm, own(0));
	// Nobody greets it, so it gives up; by then it had every reason to try the other way.
	EXPECT_EQ(m.end(60s), -ECONNREFUSED);
	pollfd all[] = {{here.get(), POLLIN, 0}, {far.get(), POLLIN, 0}};
	EXPECT_EQ(::poll(all, 2, 0), 1);
	EXPECT_NE(all[0].revents, 0);
	EXPECT_EQ(all[1].revents, 0);
	sender.stop();
}

TEST(ntrdma_auto, takes_callers_both_ways)
{
	const settings both{{"backend", "auto"}}, tcp{{"backend", "tcp"}}, window;
	EXPECT_EQ(sends(both, both), 0);
	EXPECT_EQ(sends(both, tcp), 0);
	EXPECT_EQ(sends(both, window), 0);
	EXPECT_EQ(sends(window, both), 0);
	EXPECT_EQ(sends(tcp, both), -ECONNREFUSED) << "it cannot be reached by memory";
}

// Until `what`, the machine makes progress on this thread alone.
template <class condition> bool polls_until(transfer_machine &tm, condition what)
{
	for (const auto until = clock::now() + 30s; clock::now() < until;) {
		(void)tm.pending();
		if (what())
			return true;
	}
	return false;
}

TEST(ntrdma_idle, a_link_without_requests_is_set_aside_until_the_next_one)
{
	heedless states;
	domain in({"ntrdma", {{"idle", "50"}}});
	transfer_machine tm(in, &states);
	ASSERT_EQ(tm.deliver_synchronously(), 0);
	ASSERT_EQ(tm.start(format(own(0))), 0);
	ASSERT_EQ(tm.wait(tm_state::started, clock::now() + 30s), 0);
	caller one;
	ASSERT_EQ(one.greet(own(1), one.bell.get()), 0);
	const rdma::half &theirs = one.memory->side(1);
	// A machine that polls asks for no rings but on links set aside.
	int in_turn = 0;
	EXPECT_TRUE(polls_until(tm, [&] {
		in_turn = theirs.waiting.load() ? in_turn + 1 : 0;
		return in_turn == 1000;
	}));
	const message m(in, tm, own(1));
	EXPECT_TRUE(polls_until(tm, [&] { return rdma::is_there(theirs.wqes[0], 0); }));
	(void)tm.stop(true);
	(void)tm.wait(tm_state::stopped, clock::now() + 30s);
	while (tm.deliver_all())
		continue;
}

TEST(ntrdma_idle, messages_to_links_set_aside_arrive)
{
	for (const char *backend : {"window", "tcp"})
		for (const auto poll : {0us, 2000us}) {
			domain in({"ntrdma", {{"backend", backend}, {"idle", "1"}}});
			messenger a(in, {.poll = poll}), b(in, {.poll = poll});
			std::atomic<unsigned> came{0};
			const auto count = [&](endpoint &, std::span<const std::byte>) { came++; };
			ASSERT_EQ(a.start(format(own(0)), count), 0);
			ASSERT_EQ(b.start(format(own(1)), count), 0);
			// Longer than the links are awake, so that each finds them set aside.
			for (unsigned i = 0; i < 30; i++) {
				messenger &from = i % 3 ? a : b, &to = i % 3 ? b : a;
				EXPECT_EQ(from.send(to.text(), "x", clock::now() + 30s), 0);
				for (const auto until = clock::now() + 30s;
				     came <= i && clock::now() < until;)
					std::this_thread::yield();
				ASSERT_EQ(came, i + 1) << backend;
				std::this_thread::sleep_for(i % 4 * 2ms);
			}
		}
}

TEST(ntrdma_tcp, strangers_without_the_key_are_refused)
{
	const key_file one('1'), two('2');
	EXPECT_EQ(sends_by_tcp({}, {}), 0);
	EXPECT_EQ(sends_by_tcp({{"key", one.name}}, {{"key", one.name}}), 0);
	EXPECT_EQ(sends_by_tcp({{"key", one.name}}, {}), -EACCES);
	EXPECT_EQ(sends_by_tcp({}, {{"key", one.name}}), -EACCES);
	EXPECT_EQ(sends_by_tcp({{"key", one.name}}, {{"key", two.name}}), -EACCES);
}

TEST(ntrdma_tcp, a_machine_reached_by_memory_only_is_not_there)
{
	called machine({"ntrdma", {}});
	rdma::unique_fd socket;
	ASSERT_EQ(rdma::call_tcp(own(1).ip, own(0).ip, tcp_port(own(0)), socket), 0);
	int r = -EAGAIN;
	for (const auto until = clock::now() + 30s; r == -EAGAIN && clock::now() < until;)
		r = rdma::connected(socket.get());
	EXPECT_EQ(r, -ECONNREFUSED);
}

TEST(ntrdma_tcp, greetings_are_what_they_were)
{
	tcp_greeting g, back;
	g.kind = greeting_kind::welcome;
	g.receives = 77;
	g.takes = takes_messages;
	g.status = -5;
	g.own[3] = 9;
	g.from = format(own(1));
	g.to = format(own(2));
	const tcp_key key{1, 2, 3};
	const nonce peers{7};
	const auto text = put(g, key, peers);
	ASSERT_EQ(get(text, key, peers, back), 0);
	EXPECT_EQ(back.kind, g.kind);
	EXPECT_EQ(back.receives, g.receives);
	EXPECT_EQ(back.takes, g.takes);
	EXPECT_EQ(back.status, g.status);
	EXPECT_EQ(back.own, g.own);
	EXPECT_EQ(back.from, g.from);
	EXPECT_EQ(back.to, g.to);
	EXPECT_EQ(get(text, {}, peers, back), -EACCES) << "another key";
	EXPECT_EQ(get(text, key, {}, back), -EACCES) << "of another connection";
	for (std::size_t i = 0; i < text.size(); i++) {
		auto bad = text;
		bad[i] ^= 1;
		EXPECT_NE(get(bad, key, peers, back), 0) << i;
	}
}

constexpr std::size_t large = 40000; // bytes: no message of the rings

// A machine of another host, played by the test.
class far_machine final : public rdma::watcher, public rdma::placements
{
public:
	// It listens, but does not answer yet.
	explicit far_machine(std::uint32_t takes) : takes_(takes)
	{
		EXPECT_EQ(rdma::listen_tcp(own(1).ip, tcp_port(own(1)), listener_), 0);
		for (std::size_t i = 0; i < large; i++)
			pattern[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
	}
	template <class condition> bool until(condition what)
	{
		for (const auto end = clock::now() + 60s; !lost_ && clock::now() < end;) {
			if (what())
				return true;
			std::this_thread::yield();
		}
		return false;
	}
	// Greets the next caller.
	void answer()
	{
		rdma::unique_fd socket;
		rdma::ip_address from;
		ASSERT_TRUE(until(
			[&] { return rdma::accept_tcp(listener_.get(), socket, from) == 0; }));
		tcp_greeting g, theirs;
		ASSERT_EQ(hear(socket.get(), {}, theirs), 0);
		EXPECT_EQ(theirs.takes, takes_messages);
		g.kind = greeting_kind::welcome;
		g.receives = receive_bytes;
		g.takes = takes_;
		g.own[0] = 5;
		g.from = format(own(1));
		g.to = theirs.from;
		const auto text = put(g, {}, theirs.own);
		ASSERT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
			  static_cast<ssize_t>(text.size()));
		ASSERT_EQ(hear(socket.get(), g.own, theirs), 0);
		EXPECT_EQ(theirs.kind, greeting_kind::start);
		link(std::move(socket));
	}
	// Waits for a head of this kind, and takes it.
	head expect(kind k)
	{
		head found;
		EXPECT_TRUE(until([&] {
			turn();
			for (auto i = heard.begin(); i != heard.end(); ++i)
				if (i->first == k) {
					found = i->second;
					heard.erase(i);
					return true;
				}
			return false;
		})) << static_cast<int>(k);
		return found;
	}
	void say(kind k, const head &h)
	{
		rdma::send_request r{};
		r.op = rdma::operation::send_imm;
		r.imm = htole32(static_cast<std::uint32_t>(k));
		r.segments = 1;
		r.at[0] = {reinterpret_cast<std::uintptr_t>(&h), sizeof(h), key_};
		EXPECT_EQ(pair_->post_send(r), 0);
		pair_->flush_posts();
	}
	// Sends the pattern as a message of its own accord, or as bytes that were asked for.
	void send(std::uint64_t number, bool asked)
	{
		const std::array<rdma::piece, 1> all{{{pattern.data(), large}}};
		if (asked)
			tcp_->put_at(number, 0, all, 1);
		else
			tcp_->put_message(number, all, 1);
		EXPECT_TRUE(until([&] {
			turn();
			return !tcp_->placing();
		}));
	}
	// Waits until the peer has taken everything so far.
	void settle()
	{
		pair_->ask();
		EXPECT_TRUE(until([&] {
			turn();
			return pair_->answered();
		}));
	}
	void turn()
	{
		if (lost_)
			return;
		lost_ = tcp_->receive() < 0;
		EXPECT_FALSE(lost_) << "the machine hung up, or broke the protocol";
		rdma::completion got[4];
		const std::size_t n = queue_.poll(got);
		for (std::size_t i = 0; i < n; i++) {
			if (!got[i].receive)
				continue;
			head h{};
			(void)read_head(std::as_bytes(std::span(in_)).first(got[i].bytes), h);
			heard.emplace_back(static_cast<kind>(le32toh(got[i].imm)), h);
			listen();
		}
		tcp_->send();
	}

	std::vector<std::uint8_t> pattern = std::vector<std::uint8_t>(large);
	std::vector<std::pair<kind, head>> heard;
	std::vector<std::uint64_t> messages; // numbers of those that were not asked for
	std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(large);
	std::size_t got = 0; // of them

private:
	static constexpr std::uint32_t receive_bytes = 1u << 16;

	int hear(int socket, const nonce &mine, tcp_greeting &out)
	{
		std::array<std::uint8_t, tcp_greeting::size> text;
		std::size_t n = 0;
		EXPECT_TRUE(until([&] {
			const ssize_t part = ::recv(socket, text.data() + n, text.size() - n, 0);
			n += part > 0 ? static_cast<std::size_t>(part) : 0;
			return n == text.size();
		}));
		return get(text, {}, mine, out);
	}
	void link(rdma::unique_fd socket)
	{
		key_ = *regions_.add(reinterpret_cast<std::uint8_t *>(1),
				     std::numeric_limits<std::uint64_t>::max() - 1, 1, 1,
				     rdma::local_write);
		rdma::pair_options o;
		o.number = o.domain = 1;
		o.send_depth = o.recv_depth = 16;
		o.send_queue = o.recv_queue = &queue_;
		o.pull_from = std::numeric_limits<std::uint32_t>::max();
		tcp_ = std::make_unique<rdma::stream_port>(std::move(socket), this, [] {});
		pair_ = std::make_unique<rdma::queue_pair>(regions_, *this, o);
		pair_->set_state(rdma::pair_state::sends);
		pair_->attach(*tcp_);
		listen();
	}
	// One receive at a time, so that it is free again before the next comes.
	void listen()
	{
		rdma::recv_request r{};
		r.segments = 1;
		r.at[0] = {reinterpret_cast<std::uintptr_t>(in_.data()), receive_bytes, key_};
		EXPECT_EQ(pair_->post_recv(r), 0);
	}
	void completed(rdma::completion_queue &) override {}
	void happened(rdma::queue_pair &, rdma::event) override {}
	void few_receives(rdma::shared_receives &) override {}
	std::optional<std::size_t> places(std::uint64_t number, std::uint64_t offset,
					  std::uint64_t length, std::span<rdma::place> out) override
	{
		if (number != 1 || offset + length > large)
			return std::nullopt;
		out[0] = {bytes.data() + offset, length};
		return 1;
	}
	std::optional<std::uint64_t> message(std::uint64_t number, std::uint32_t length) override
	{
		if (length != large)
			return std::nullopt;
		messages.push_back(number);
		return 1;
	}
	void placed(std::uint64_t, std::uint64_t n) override { got += n; }

	const std::uint32_t takes_;
	rdma::unique_fd listener_;
	rdma::region_table regions_;
	rdma::completion_queue queue_{*this};
	std::vector<std::uint8_t> in_ = std::vector<std::uint8_t>(receive_bytes);
	std::uint32_t key_ = 0;
	std::unique_ptr<rdma::stream_port> tcp_;
	std::unique_ptr<rdma::queue_pair> pair_; // before its port
	bool lost_ = false;
};

const domain_options by_tcp{"ntrdma", {{"backend", "tcp"}}};

TEST(ntrdma_tcp, offers_large_messages_to_a_peer_that_takes_no_others)
{
	far_machine peer(0);
	called machine(by_tcp);
	message m(machine.in, machine.tm, own(1), large);
	peer.answer();
	const head offer = peer.expect(kind::offer);
	EXPECT_EQ(offer.length, large);
	EXPECT_TRUE(peer.messages.empty());
	head done;
	done.to = offer.from;
	peer.say(kind::done, done);
	EXPECT_EQ(m.end(60s), 0);
	machine.stop();
}

TEST(ntrdma_tcp, a_peer_without_a_place_gets_the_bytes_again_and_then_offers)
{
	far_machine peer(takes_messages);
	called machine(by_tcp);
	const auto goes_unasked = [&](message &m) {
		const std::size_t before = peer.messages.size();
		peer.got = 0;
		EXPECT_TRUE(peer.until([&] {
			peer.turn();
			return peer.got == large;
		}));
		EXPECT_EQ(peer.messages.size(), before + 1);
		EXPECT_TRUE(m.is(peer.bytes));
	};
	head h;
	{
		message m(machine.in, machine.tm, own(1), large);
		peer.answer();
		goes_unasked(m);
		// As if it had dropped them.
		peer.bytes.assign(large, 0);
		peer.got = 0;
		h.to = peer.messages.back();
		h.from = 1;
		peer.say(kind::want, h);
		EXPECT_TRUE(peer.until([&] {
			peer.turn();
			return peer.got == large;
		}));
		EXPECT_EQ(peer.messages.size(), 1u) << "a placement";
		EXPECT_TRUE(m.is(peer.bytes));
		peer.say(kind::done, h);
		EXPECT_EQ(m.end(60s), 0);
	}
	for (int i = 0; i < 16; i++) {
		message m(machine.in, machine.tm, own(1), large);
		h.to = peer.expect(kind::offer).from;
		peer.say(kind::done, h);
		EXPECT_EQ(m.end(60s), 0) << i;
	}
	message m(machine.in, machine.tm, own(1), large);
	goes_unasked(m);
	EXPECT_TRUE(peer.heard.empty());
	h.to = peer.messages.back();
	peer.say(kind::done, h);
	EXPECT_EQ(m.end(60s), 0);
	machine.stop();
}

// A receive buffer of a machine for one message.
class inbox final : public buffer_handler
{
public:
	explicit inbox(called &machine) : buffer_(machine.in, memory_.data(), large)
	{
		operation o;
		o.queue = queue_type::msg_recv;
		o.min_receive_size = large;
		o.max_receive_msgs = 1;
		o.handler = this;
		EXPECT_EQ(machine.tm.add(buffer_, o), 0);
	}
	bool has(const std::vector<std::uint8_t> &bytes) const
	{
		return length_ == bytes.size() && memory_ == bytes;
	}
	bool over() const { return over_; }

private:
	void on_buffer(const buffer_event &e) override
	{
		length_ = e.status ? 0 : e.length;
		over_ = !e.queued;
	}

	std::vector<std::uint8_t> memory_ = std::vector<std::uint8_t>(large);
	buffer buffer_;
	std::size_t length_ = 0;
	std::atomic<bool> over_{false};
};

TEST(ntrdma_tcp, a_message_that_found_no_place_is_asked_for_once_there_is_one)
{
	far_machine peer(takes_messages);
	called machine(by_tcp);
	message first(machine.in, machine.tm, own(1));
	peer.answer();
	(void)peer.expect(kind::message);
	EXPECT_EQ(first.end(60s), 0);
	const auto comes = [&](const inbox &to) {
		EXPECT_TRUE(peer.until([&] {
			peer.turn();
			return to.over();
		}));
		EXPECT_TRUE(to.has(peer.pattern));
	};
	peer.send(77, false);
	peer.settle();
	EXPECT_TRUE(peer.heard.empty());
	inbox late(machine);
	const head want = peer.expect(kind::want);
	EXPECT_EQ(want.to, 77u);
	EXPECT_FALSE(late.over());
	peer.send(want.from, true);
	comes(late);
	EXPECT_EQ(peer.expect(kind::done).to, 77u);
	// With a place it is not asked for.
	inbox early(machine);
	peer.send(78, false);
	comes(early);
	EXPECT_EQ(peer.expect(kind::done).to, 78u);
	EXPECT_TRUE(peer.heard.empty());
	machine.stop();
}

TEST(ntrdma_tcp, ports_follow_from_addresses)
{
	EXPECT_EQ(tcp_port(own(0)), 20904);
	EXPECT_EQ(tcp_port(own(343)), 21247);
	address a;
	ASSERT_EQ(parse("inet:tcp:127.0.0.1@3000", a), 0);
	EXPECT_EQ(tcp_port(a), 3000);
	ASSERT_EQ(parse("127.0.0.1@tcp:12345:63:4095", a), 0);
	EXPECT_EQ(tcp_port(a), 10240 + (344 * 63 + 4095) % 22016);
}

} // namespace
