// SPDX-License-Identifier: MIT
// hostile.cpp - malicious clients: none may crash or hang the daemon, make it hold more than
// its limits, or keep it from serving others.
#include "rig.hpp"

#include <arpa/inet.h>
#include <cstring>
#include <map>
#include <netinet/in.h>
#include <poll.h>
#include <random>
#include <set>
#include <sys/socket.h>

#include "coop/cluster_key.hpp"
#include "userland/daemon/connection.hpp"

using namespace rig;
using coop::unique_fd;

namespace
{

class daemon_hostile : public daemon_test
{
protected:
	unique_fd raw()
	{
		unique_fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
		sockaddr_in a{};
		a.sin_family = AF_INET;
		a.sin_port = htons(port_);
		::inet_pton(AF_INET, host().c_str(), &a.sin_addr);
		EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr *>(&a), sizeof(a)), 0);
		return fd;
	}
	static bool send(int fd, const std::string &s)
	{
		return ::send(fd, s.data(), s.size(), MSG_NOSIGNAL) ==
		       static_cast<ssize_t>(s.size());
	}
	static std::string message(std::uint16_t op, std::uint64_t id, const coop_st_body &b,
				   std::uint32_t data_len = 0)
	{
		std::uint8_t buf[COOP_ST_HEADER + COOP_ST_BODY_MAX];
		const int n = coop_st_body_put(&b, coop_st_request_fields(op), buf + COOP_ST_HEADER,
					       COOP_ST_BODY_MAX);
		EXPECT_GE(n, 0);
		coop_st_header h{op, 0, static_cast<u32>(n), data_len, 0, id};
		coop_st_header_put(&h, buf);
		return {reinterpret_cast<char *>(buf),
			COOP_ST_HEADER + static_cast<std::size_t>(n)};
	}
	// True if the daemon closes the connection without another word.
	static bool closed(int fd)
	{
		char c[4096];
		pollfd p{fd, POLLIN, 0};
		for (;;) {
			if (::poll(&p, 1, static_cast<int>(deadline.count()) * 1000) <= 0)
				return false;
			if (::recv(fd, c, sizeof(c), 0) <= 0)
				return true;
		}
	}
	// One reply: its status, or -1.
	static int status(int fd, coop_st_header &h)
	{
		std::uint8_t buf[COOP_ST_HEADER];
		if (::recv(fd, buf, sizeof(buf), MSG_WAITALL) != sizeof(buf) ||
		    coop_st_header_get(&h, buf))
			return -1;
		std::string rest(h.body_len + h.data_len +
					 (h.flags & COOP_ST_F_STREAM ? COOP_ST_TAIL : 0),
				 0);
		if (!rest.empty() && ::recv(fd, rest.data(), rest.size(), MSG_WAITALL) < 0)
			return -1;
		return static_cast<int>(h.status);
	}
	// Without a key any proof passes.
	unique_fd admitted(u8 session = 1, const std::string &to = "/data", int expected = 0)
	{
		unique_fd fd = raw();
		coop_st_body b{};
		coop_st_header h;
		b.version_min = b.version_max = COOP_ST_VERSION;
		b.session[0] = session;
		b.text = {reinterpret_cast<const u8 *>(to.data()), static_cast<u32>(to.size())};
		EXPECT_TRUE(send(fd.get(), message(COOP_ST_HELLO, 1, b)));
		EXPECT_EQ(status(fd.get(), h), 0);
		EXPECT_TRUE(send(fd.get(), message(COOP_ST_PROOF_OP, 2, b)));
		EXPECT_EQ(status(fd.get(), h), expected);
		return fd;
	}
	void still_serves()
	{
		put("alive", "yes");
		entry e;
		EXPECT_EQ(client_->lookup(me(), client_->root().fh, "alive", e), 0);
	}
};

} // namespace

TEST_F(daemon_hostile, noise_ends_the_connection_and_nothing_else)
{
	up();
	std::mt19937 dice(7);
	for (int i = 0; i < 40; i++) {
		unique_fd fd = i % 2 ? raw() : admitted();
		std::string noise(64 + dice() % 2000, 0);
		for (char &c : noise)
			c = static_cast<char>(dice());
		send(fd.get(), noise);
		EXPECT_TRUE(closed(fd.get())) << i;
	}
	EXPECT_GE(server_->malformed, 40u);
	still_serves();
}

TEST_F(daemon_hostile, oversize_lengths_are_refused_before_memory_is_taken)
{
	up();
	for (auto [op, body, data] : {std::tuple<u16, u32, u32>{COOP_ST_HELLO, 0xffffffff, 0},
				      {COOP_ST_HELLO, COOP_ST_BODY_MAX, 0},
				      {COOP_ST_HELLO, 10, 10},
				      {COOP_ST_WRITE, 0, COOP_ST_IO_MAX}}) {
		unique_fd fd = raw();
		std::uint8_t buf[COOP_ST_HEADER];
		coop_st_header h{op, 0, body, data, 0, 1};
		coop_st_header_put(&h, buf);
		send(fd.get(), {reinterpret_cast<char *>(buf), sizeof(buf)});
		EXPECT_TRUE(closed(fd.get())) << body << " " << data;
	}
	EXPECT_EQ(server_->malformed, 4u) << "one was ended because it said nothing more";
	still_serves();
}

TEST_F(daemon_hostile, requests_before_the_proof_are_not_served)
{
	settings_.key_file = write_key("key", 'k');
	up();
	coop_st_body b{};
	coop_st_header h;
	b.version_min = b.version_max = COOP_ST_VERSION;
	b.text = {reinterpret_cast<const u8 *>("/data"), 5};
	b.fh = {reinterpret_cast<const u8 *>(client_->root().fh.data()),
		static_cast<u32>(client_->root().fh.size())};
	unique_fd early = raw();
	send(early.get(), message(COOP_ST_GETATTR, 1, b));
	EXPECT_EQ(status(early.get(), h), EPROTO);
	unique_fd wrong = raw();
	send(wrong.get(), message(COOP_ST_HELLO, 1, b));
	EXPECT_EQ(status(wrong.get(), h), 0);
	send(wrong.get(), message(COOP_ST_PROOF_OP, 2, b));
	EXPECT_EQ(status(wrong.get(), h), EKEYREJECTED);
	EXPECT_EQ(server_->auth_failures, 1u);
	send(wrong.get(), message(COOP_ST_GETATTR, 3, b));
	EXPECT_EQ(status(wrong.get(), h), EPROTO);
	still_serves();
}

// Who reads along has proofs of both sides; no later connection takes them.
TEST_F(daemon_hostile, a_proof_is_of_one_connection_and_one_side)
{
	settings_.key_file = write_key("key", 'k');
	up();
	const coop::secret key = coop::load_cluster_key(settings_.key_file);
	coop_st_body hello{}, got{};
	hello.version_min = hello.version_max = COOP_ST_VERSION;
	hello.text = {reinterpret_cast<const u8 *>("/data"), 5};
	const auto greet = [&](int fd) {
		std::uint8_t buf[COOP_ST_HEADER + COOP_ST_BODY_MAX];
		coop_st_header h{};
		ASSERT_TRUE(send(fd, message(COOP_ST_HELLO, 1, hello)));
		ASSERT_EQ(::recv(fd, buf, COOP_ST_HEADER, MSG_WAITALL), COOP_ST_HEADER);
		ASSERT_EQ(coop_st_header_get(&h, buf), 0);
		ASSERT_EQ(::recv(fd, buf, h.body_len, MSG_WAITALL), h.body_len);
		ASSERT_EQ(coop_st_body_get(&got, coop_st_reply_fields(COOP_ST_HELLO), buf,
					   h.body_len),
			  0);
	};
	const auto proves = [&](int fd, const void *proof) {
		coop_st_body b{};
		coop_st_header h;
		std::memcpy(b.proof, proof, sizeof(b.proof));
		EXPECT_TRUE(send(fd, message(COOP_ST_PROOF_OP, 2, b)));
		return status(fd, h);
	};
	const unique_fd first = raw(), again = raw(), mirror = raw();
	greet(first.get());
	const coop::handshake seen = {
		std::string(sizeof(hello.nonce), 0),
		std::string(reinterpret_cast<const char *>(got.nonce), sizeof(got.nonce)),
		std::string(sizeof(hello.session), 0),
		"/data",
		COOP_ST_VERSION,
		COOP_ST_VERSION,
		got.version_min,
		got.flags};
	const coop::digest right = seen.proof(key, "client");
	EXPECT_EQ(proves(first.get(), right.data()), 0);
	greet(again.get());
	EXPECT_EQ(proves(again.get(), right.data()), EKEYREJECTED);
	greet(mirror.get());
	EXPECT_EQ(proves(mirror.get(), got.proof), EKEYREJECTED);
	EXPECT_EQ(server_->auth_failures, 2u);
	still_serves();
}

// Else a file that was opened under the rules of one export could be used under those of another.
TEST_F(daemon_hostile, a_session_cannot_change_to_another_export)
{
	settings_.exports.push_back({"other", tree_.string()});
	up();
	const unique_fd first = admitted(1, "/data"), second = admitted(2, "/other");
	EXPECT_TRUE(closed(admitted(1, "/other", EACCES).get()));
	EXPECT_TRUE(closed(admitted(2, "data", EACCES).get()));
	EXPECT_EQ(server_->auth_failures, 2u);
	const unique_fd again = admitted(1, "data"); // its own, named in the other way
	still_serves();
}

TEST_F(daemon_hostile, unknown_operations_and_bad_bodies_are_answered)
{
	up();
	unique_fd fd = admitted();
	std::uint8_t buf[COOP_ST_HEADER + 3] = {};
	coop_st_header h{999, 0, 0, 0, 0, 5};
	coop_st_header_put(&h, buf);
	send(fd.get(), {reinterpret_cast<char *>(buf), COOP_ST_HEADER});
	EXPECT_EQ(status(fd.get(), h), EOPNOTSUPP);
	h = {COOP_ST_LOOKUP, 0, 3, 0, 0, 6};
	coop_st_header_put(&h, buf);
	send(fd.get(), {reinterpret_cast<char *>(buf), sizeof(buf)});
	EXPECT_EQ(status(fd.get(), h), EBADMSG);
	EXPECT_EQ(h.id, 6u);
}

TEST_F(daemon_hostile, strangers_that_stay_silent_are_bounded_and_keep_nobody_out_for_long)
{
	up();
	std::vector<unique_fd> idle;
	for (std::size_t i = 0; i < 2 * coop::daemon::strangers_max; i++)
		idle.push_back(raw());
	EXPECT_TRUE(eventually([&] { return server_->refused >= coop::daemon::strangers_max; }));
	still_serves(); // a known client is not affected
	idle.clear();
	std::unique_ptr<storage> late;
	EXPECT_TRUE(eventually([&] {
		try {
			late = connect();
			return true;
		} catch (const std::runtime_error &) {
			return false;
		}
	}));
}

TEST_F(daemon_hostile, a_client_that_reads_nothing_is_not_served_without_bound)
{
	up();
	put("big", std::string(1 << 20, 'z'));
	const entry e = find("big");
	unique_fd fd = admitted();
	const int small = 4096;
	::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	coop_st_body b{};
	coop_st_header h;
	b.fh = {reinterpret_cast<const u8 *>(e.fh.data()), static_cast<u32>(e.fh.size())};
	b.cred.uid = ::geteuid();
	b.flags = COOP_ST_O_READ;
	b.open_id = 1;
	send(fd.get(), message(COOP_ST_OPEN, 3, b));
	ASSERT_EQ(status(fd.get(), h), 0);
	b.count = COOP_ST_IO_MAX;
	::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
	const std::string one = message(COOP_ST_READ, 4, b);
	unsigned sent = 0;
	while (sent < 200'000 && send(fd.get(), one))
		sent++;
	const auto &calls = server_->files().stats.calls[COOP_ST_READ];
	EXPECT_TRUE(eventually([&] { return calls >= COOP_ST_REQUESTS_MAX; }));
	still_serves();
	// Replies that fit the socket's buffer have left; all others wait.
	EXPECT_LE(calls, COOP_ST_REQUESTS_MAX + 16u);
}

TEST_F(daemon_hostile, replies_that_a_client_does_not_take_are_not_copied_without_bound)
{
	up();
	put("big", std::string(1 << 20, 'z'));
	const entry e = find("big");
	unique_fd fd = admitted();
	coop_st_body b{};
	coop_st_header h;
	b.fh = {reinterpret_cast<const u8 *>(e.fh.data()), static_cast<u32>(e.fh.size())};
	b.cred.uid = ::geteuid();
	b.flags = COOP_ST_O_READ;
	b.open_id = 1;
	send(fd.get(), message(COOP_ST_OPEN, 3, b));
	ASSERT_EQ(status(fd.get(), h), 0);
	b.count = coop::daemon::copy_max;
	constexpr unsigned reads = COOP_ST_REQUESTS_MAX;
	std::string all;
	for (unsigned i = 0; i < reads; i++)
		all += message(COOP_ST_READ, 4 + i, b);
	ASSERT_TRUE(send(fd.get(), all));
	const auto &calls = server_->files().stats.calls[COOP_ST_READ];
	ASSERT_TRUE(eventually([&] { return calls >= reads; }));
	unsigned copied = 0;
	for (unsigned i = 0; i < reads; i++) {
		ASSERT_EQ(status(fd.get(), h), 0);
		EXPECT_EQ(h.data_len, coop::daemon::copy_max);
		copied += !(h.flags & COOP_ST_F_STREAM);
	}
	// Copies that the daemon held, one more per thread, and those that fit the sockets.
	const std::size_t held = coop::daemon::unsent_most / coop::daemon::copy_max;
	EXPECT_GE(copied, held) << "a new client is served from memory";
	EXPECT_LT(copied, reads / 2 + held);
}

TEST_F(daemon_hostile, a_change_sent_twice_happens_once)
{
	up();
	coop_st_body b{};
	coop_st_header h;
	const std::string &root = client_->root().fh;
	b.fh = {reinterpret_cast<const u8 *>(root.data()), static_cast<u32>(root.size())};
	b.cred.uid = ::geteuid();
	b.name = {reinterpret_cast<const u8 *>("d"), 1};
	b.mode = 0755;
	const std::string mkdir = message(COOP_ST_MKDIR, 77, b);
	{
		unique_fd fd = admitted();
		send(fd.get(), mkdir);
		EXPECT_EQ(status(fd.get(), h), 0);
	}
	unique_fd fd = admitted(); // the same session on another connection
	send(fd.get(), mkdir);
	EXPECT_EQ(status(fd.get(), h), 0) << "the remembered reply";
	send(fd.get(), message(COOP_ST_MKDIR, 78, b));
	EXPECT_EQ(status(fd.get(), h), EEXIST);
}

TEST_F(daemon_hostile, requests_that_arrive_together_are_all_answered)
{
	up();
	put("f", "x");
	const entry e = find("f");
	unique_fd fd = admitted();
	coop_st_body b{};
	coop_st_header h;
	b.fh = {reinterpret_cast<const u8 *>(e.fh.data()), static_cast<u32>(e.fh.size())};
	b.cred.uid = ::geteuid();
	b.flags = COOP_ST_O_READ;
	constexpr unsigned files = 8;
	std::uint64_t id = 2;
	std::string together;
	for (b.open_id = 1; b.open_id <= files; b.open_id++) {
		send(fd.get(), message(COOP_ST_OPEN, ++id, b));
		ASSERT_EQ(status(fd.get(), h), 0);
		together += message(COOP_ST_CLOSE, 100 + b.open_id, b);
	}
	const struct timeval patience = {deadline.count(), 0};
	::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	// First only closes, then closes and a slower request after them; the closes get the
	// remembered replies.
	for (unsigned extra : {0u, 1u}) {
		if (extra)
			together += message(COOP_ST_GETATTR, 300, b);
		send(fd.get(), together);
		std::set<std::uint64_t> answered;
		for (unsigned i = 0; i < files + extra; i++) {
			ASSERT_EQ(status(fd.get(), h), 0) << "a reply was delayed";
			answered.insert(h.id);
		}
		EXPECT_EQ(answered.size(), files + extra);
	}
}

TEST_F(daemon_hostile, of_two_addresses_the_one_sent_later_holds)
{
	start();
	std::mutex mutex;
	std::map<std::uint32_t, std::uint32_t> others; // their queue pairs, by node
	storage_options o = client_options();
	o.on_node = [&](const coop::client::node_event &e) {
		std::lock_guard lock(mutex);
		if (e.joined)
			others[e.node] = e.addr.qpn;
		else
			others.erase(e.node);
	};
	const auto watcher = storage::connect(o);
	coop_st_body b{};
	b.addr.gid[15] = 1;
	b.addr.qpn = 1;
	ASSERT_NE(watcher->register_node(b.addr), 0u);
	unique_fd fd = admitted();
	for (std::uint32_t qpn = 10; qpn < 400; qpn += 2) {
		std::string both;
		for (std::uint32_t i = 0; i < 2; i++) {
			b.addr.qpn = qpn + i;
			both += message(COOP_ST_REGISTER, qpn + i, b);
		}
		ASSERT_TRUE(send(fd.get(), both));
		for (int replies = 0; replies < 2;) { // skips news about itself
			coop_st_header h;
			ASSERT_EQ(status(fd.get(), h), 0);
			replies += h.id != 0;
		}
		ASSERT_TRUE(eventually([&] {
			std::lock_guard lock(mutex);
			return others.size() == 1 && others.begin()->second == qpn + 1;
		})) << qpn;
	}
}
