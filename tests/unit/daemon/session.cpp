// SPDX-License-Identifier: MIT
// session.cpp - keys, members, openers, lost connections, restarts.
#include "members_rig.hpp"
#include "relay.hpp"

#include <atomic>
#include <sstream>
#include <sys/wait.h>

#include "userland/client/asker.hpp"
#include "userland/daemon/identity.hpp"
#include "userland/daemon/session.hpp"

using namespace rig;

using daemon_session = daemon_test;

namespace
{

struct killed final : coop::client::asker {
	bool gone() override { return true; }
};

// What the daemon told a client about other nodes.
struct watcher {
	std::mutex mutex;
	std::map<std::uint32_t, std::uint32_t> nodes; // id -> qpn
	void operator()(const coop::client::node_event &e)
	{
		std::lock_guard lock(mutex);
		if (e.joined)
			nodes[e.node] = e.addr.qpn;
		else
			nodes.erase(e.node);
	}
	std::size_t size()
	{
		std::lock_guard lock(mutex);
		return nodes.size();
	}
	bool knows(std::uint32_t node)
	{
		std::lock_guard lock(mutex);
		return nodes.contains(node);
	}
};

} // namespace

TEST_F(daemon_session, both_sides_must_know_the_key)
{
	settings_.key_file = write_key("key", 'k');
	start();
	EXPECT_NO_THROW(connect());
	EXPECT_NE(connect()->fabric_key(), (std::array<std::uint8_t, 16>{}));
	storage_options o = client_options();
	o.key_file = write_key("other", 'x');
	EXPECT_THROW(storage::connect(o), std::runtime_error);
	o.key_file.clear();
	EXPECT_THROW(storage::connect(o), std::runtime_error);
	o.key_file = write_key("open", 'k', 0644);
	EXPECT_THROW(storage::connect(o), std::runtime_error);
	o = client_options();
	o.export_name = "/nothing";
	EXPECT_THROW(storage::connect(o), std::runtime_error);
}

TEST_F(daemon_session, outlives_its_connection_for_its_grace_time_only)
{
	EXPECT_EQ(coop::daemon::session_grace, std::chrono::seconds(90));
	put("f", "text");
	up();
	const entry f = find("f");
	const open_result own = open(f, O_RDONLY);
	coop_st_lock whole = {1, 0, ~0ull, COOP_ST_LOCK_FLOCK, COOP_ST_LOCK_WRITE, 1};
	std::uint64_t cookie;
	const auto lock_own = [&] {
		return client_->lock(f.fh, own.open_id, whole, false, nullptr, cookie);
	};
	coop_st_body lock = plain_client::on(f, 7);
	lock.lock = whole;
	const auto take_and_go = [&](char session) {
		plain_client c(port_, COOP_ST_VERSION, COOP_ST_VERSION, session);
		EXPECT_EQ(c.open(f, 7), 0);
		EXPECT_EQ(c.ask(COOP_ST_LOCK, lock), 0);
		return c.used();
	};
	std::uint64_t used = take_and_go('a');
	{
		plain_client back(port_, COOP_ST_VERSION, COOP_ST_VERSION, 'a', used);
		EXPECT_FALSE(back.proof_flags & COOP_ST_W_NEW_SESSION);
		EXPECT_EQ(lock_own(), -EAGAIN);
		EXPECT_EQ(back.close(f, 7), 0);
		EXPECT_EQ(lock_own(), 0);
		EXPECT_EQ(client_->unlock(f.fh, whole), 0);
	}
	settings_.session_grace = std::chrono::milliseconds(1);
	settings_.lock_grace = std::chrono::milliseconds(0);
	restart();
	ASSERT_TRUE(eventually([&] { return client_->stats().reconnects == 1; }));
	used = take_and_go('b');
	EXPECT_TRUE(eventually([&] { return !lock_own(); }));
	plain_client back(port_, COOP_ST_VERSION, COOP_ST_VERSION, 'b', used);
	EXPECT_TRUE(back.proof_flags & COOP_ST_W_NEW_SESSION);
	EXPECT_EQ(back.close(f, 7), EBADF);
}

TEST_F(daemon_session, without_a_key_only_loopback_is_served)
{
	settings_.listen = "0.0.0.0:0";
	try {
		start();
		FAIL();
	} catch (const std::runtime_error &e) {
		EXPECT_NE(std::string(e.what()).find("--key"), std::string::npos) << e.what();
	}
}

TEST_F(daemon_session, nodes_hear_of_each_other)
{
	start();
	watcher seen[3];
	std::unique_ptr<storage> c[3];
	std::uint32_t id[3];
	for (unsigned i = 0; i < 3; i++) {
		storage_options o = client_options();
		o.on_node = [&w = seen[i]](const coop::client::node_event &e) { w(e); };
		c[i] = storage::connect(o);
		id[i] = c[i]->register_node(address(100 + i));
		ASSERT_NE(id[i], 0u);
	}
	for (watcher &w : seen)
		EXPECT_TRUE(eventually([&] { return w.size() == 2; }));
	EXPECT_EQ(seen[0].nodes[id[2]], 102u);
	c[1].reset();
	EXPECT_TRUE(eventually([&] { return seen[0].size() == 1 && seen[2].size() == 1; }));
	EXPECT_FALSE(seen[0].knows(id[1]));
	restart();
	EXPECT_TRUE(eventually([&] {
		return c[0]->stats().reconnects && c[2]->stats().reconnects &&
		       seen[0].size() == 1 && !seen[0].knows(id[2]);
	})) << "after a restart the other node has a new id";
	for (auto &x : c)
		x.reset();
}

TEST_F(daemon_session, open_names_recent_openers_of_the_same_version)
{
	up();
	put("f", "some text");
	::usleep(30000);
	auto b = connect();
	const std::uint32_t na = client_->register_node(address(1)),
			    nb = b->register_node(address(2));
	const entry e = find("f");
	const open_result first = open(e, O_RDONLY, 100);
	EXPECT_TRUE(first.openers.empty());
	EXPECT_EQ(first.inline_data, "some text");
	open_result second{};
	ASSERT_EQ(b->open(me(), e.fh, O_RDONLY, 100, second), 0);
	EXPECT_EQ(second.openers, std::vector<std::uint32_t>{na});
	EXPECT_TRUE(second.inline_data.empty()) << "there is a peer to ask";
	EXPECT_EQ(open(e, O_RDONLY).openers, std::vector<std::uint32_t>{nb});
	put("f", "other text");
	::usleep(30000);
	EXPECT_TRUE(open(e, O_RDONLY).openers.empty());
	b.reset();
	EXPECT_TRUE(eventually([&] { return open(e, O_RDONLY).openers.empty(); }));
}

TEST_F(daemon_session, handles_and_open_files_survive_a_restart)
{
	up();
	put("f", "before");
	const entry e = find("f");
	const open_result o = open(e, O_RDWR);
	restart();
	EXPECT_EQ(read_text(*client_, e, o.open_id, 0, 100), "before");
	attributes a;
	EXPECT_EQ(client_->getattr(me(), e.fh, a), 0);
	EXPECT_EQ(a.fid.hi, e.attr.fid.hi);
	write_result w{};
	EXPECT_EQ(write_text(*client_, e, o.open_id, 0, "after!", w), 0);
	EXPECT_EQ(client_->close(e.fh, o.open_id, w), 0);
	EXPECT_EQ(disk("f"), "after!");
	EXPECT_GE(client_->stats().reconnects, 1u);
}

// The reply that says so may be lost: to the proof, to an open, to a lock, to the end of restoring.
TEST_F(daemon_session, a_client_learns_that_it_was_forgotten_whichever_reply_is_lost)
{
	up();
	put("f", "text");
	relay between(port_);
	storage_options o = client_options();
	o.port = between.port;
	const auto c = storage::connect(o);
	const entry e = find("f");
	open_result own{}, others{};
	ASSERT_EQ(c->open(me(), e.fh, O_RDWR, 0, own), 0);
	ASSERT_EQ(client_->open(me(), e.fh, O_RDWR, 0, others), 0);
	const coop_st_lock all{1, 0, ~0ull, COOP_ST_LOCK_POSIX, COOP_ST_LOCK_WRITE, 1};
	std::uint64_t cookie;
	ASSERT_EQ(c->lock(e.fh, own.open_id, all, false, nullptr, cookie), 0);
	for (unsigned lost = 1; lost <= 5; lost++) {
		const auto before = c->stats().reconnects;
		between.cut_at = lost;
		restart();
		ASSERT_TRUE(eventually([&] {
			return !between.cut_at && c->stats().reconnects > before;
		})) << lost;
		write_result w{};
		EXPECT_EQ(write_text(*c, e, own.open_id, 0, std::to_string(lost), w), 0) << lost;
		EXPECT_EQ(client_->lock(e.fh, others.open_id, all, false, nullptr, cookie), -EAGAIN)
			<< "reply " << lost << ": its lock was lost";
	}
	EXPECT_EQ(disk("f"), "5ext");
}

TEST_F(daemon_session, calls_wait_for_a_daemon_that_is_away_and_time_out)
{
	start();
	storage_options o = client_options();
	o.timeout_ms = 2000;
	auto c = storage::connect(o);
	server_.reset();
	entry e;
	EXPECT_EQ(c->lookup(me(), c->root().fh, "x", e), -ETIMEDOUT);
	start_again();
	put("x", "1");
	EXPECT_TRUE(eventually([&] { return c->lookup(me(), c->root().fh, "x", e) == 0; }));
}

TEST_F(daemon_session, an_answer_to_what_was_not_asked_ends_the_connection)
{
	start();
	relay between(port_);
	port_ = between.port;
	client_ = connect();
	std::uint64_t ended = 0;
	for (const std::uint32_t status : {EAGAIN, EIO}) {
		attributes a;
		between.forge = status;
		EXPECT_EQ(client_->getattr(me(), client_->root().fh, a), 0);
		EXPECT_EQ(client_->stats().reconnects, ++ended)
			<< std::strerror(static_cast<int>(status));
	}
	client_.reset();
}

// A write that never reached the daemon, of a caller that was killed.
class daemon_session_left : public daemon_session
{
protected:
	void leave()
	{
		start();
		daemon_ = port_;
		between_ = std::make_unique<relay>(port_);
		port_ = between_->port;
		client_ = connect();
		put("f", "........");
		const entry e = find("f");
		const open_result o = open(e, O_RDWR);
		std::string text = "given up"; // freed, like the caller's memory
		const iovec v{text.data(), text.size()};
		write_result out;
		between_->deaf = true;
		const killed one;
		ASSERT_EQ(client_->write(e.fh, o.open_id, 0, {&v, 1}, out,
					 [this](int err, const write_result &r) {
						 late_ = r;
						 told_ = err;
					 }),
			  -EINTR);
		text.assign(text.size(), '!');
		ASSERT_EQ(client_->calls().size(), 1u);
		EXPECT_STREQ(client_->calls()[0].state, "abandoned");
		EXPECT_EQ(told_, 1);
	}
	bool told_in_time()
	{
		return eventually([&] { return told_ <= 0; });
	}

	std::unique_ptr<relay> between_;
	std::uint16_t daemon_ = 0;
	std::atomic<int> told_{1}; // not yet
	write_result late_;
};

TEST_F(daemon_session_left, it_happens_and_is_told)
{
	leave();
	EXPECT_EQ(disk("f"), "........");
	between_->deaf = false;
	EXPECT_TRUE(told_in_time());
	EXPECT_EQ(told_, 0);
	EXPECT_EQ(disk("f"), "given up");
	EXPECT_NE(late_.attr.version, late_.version_before);
}

// Repeating it could overwrite a later change.
TEST_F(daemon_session_left, it_is_not_repeated_to_who_may_have_done_it)
{
	leave();
	port_ = daemon_;
	restart(); // the new one knows no sessions
	put("f", "later...");
	between_->deaf = false;
	EXPECT_TRUE(told_in_time());
	EXPECT_EQ(told_, -ESTALE);
	EXPECT_EQ(disk("f"), "later...");
	EXPECT_TRUE(client_->calls().empty());
}

// The handshake with a hung daemon would take ten seconds more.
TEST_F(daemon_session, who_waits_for_a_connection_to_be_made_can_be_killed)
{
	start();
	relay between(port_);
	port_ = between.port;
	client_ = connect();
	between.deaf = true;
	between.cut = true;
	ASSERT_TRUE(eventually([&] { return between.connections == 2; }));
	std::atomic<int> status{1};
	std::jthread caller([&] {
		const killed one;
		attributes a;
		status = client_->getattr(me(), client_->root().fh, a);
	});
	const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(9);
	while (status == 1 && std::chrono::steady_clock::now() < end)
		std::this_thread::sleep_for(std::chrono::milliseconds(2));
	EXPECT_EQ(status, -EINTR);
	between.deaf = false;
	caller.join();
	attributes a;
	EXPECT_EQ(client_->getattr(me(), client_->root().fh, a), 0);
	client_.reset();
}

TEST_F(daemon_session, a_write_that_was_waited_for_is_told_once)
{
	up();
	put("f", "........");
	const entry e = find("f");
	const open_result o = open(e, O_RDWR);
	std::string text = "waited";
	const iovec v{text.data(), text.size()};
	write_result out;
	auto held = std::make_shared<bool>(false);
	EXPECT_EQ(client_->write(e.fh, o.open_id, 0, {&v, 1}, out,
				 [held](int, const write_result &) { *held = true; }),
		  0);
	EXPECT_EQ(held.use_count(), 1) << "the write still holds its turn";
	EXPECT_FALSE(*held);
}

TEST_F(daemon_session, path_handles_follow_renames_and_refuse_other_files)
{
	settings_.path_handles = true;
	up();
	put("f", "text");
	const entry e = find("f");
	entry d;
	ASSERT_EQ(client_->mkdir(me(), client_->root().fh, "d", 0755, d), 0);
	ASSERT_EQ(client_->rename(me(), client_->root().fh, "f", d.fh, "g", 0), 0);
	const open_result o = open(e, O_RDONLY);
	EXPECT_EQ(read_text(*client_, e, o.open_id, 0, 10), "text");
	const entry still = find("d");
	client_.reset();
	restart();
	client_ = connect();
	attributes a;
	EXPECT_EQ(client_->getattr(me(), still.fh, a), 0) << "the handle carries a short path";
	std::filesystem::rename(tree_ / "d", tree_ / "e");
	std::filesystem::create_directory(tree_ / "d");
	client_.reset();
	restart();
	client_ = connect();
	EXPECT_EQ(client_->getattr(me(), still.fh, a), -ESTALE) << "another directory has the name";
}

TEST_F(daemon_session, a_restart_loses_path_handles_of_long_paths_until_they_are_looked_up)
{
	settings_.path_handles = true;
	up();
	const std::string names[] = {std::string(80, 's'), std::string(81, 'l')};
	entry e[2];
	for (int i = 0; i < 2; i++) {
		put(names[i], "text");
		e[i] = find(names[i]);
	}
	client_.reset();
	restart();
	client_ = connect();
	attributes a;
	EXPECT_EQ(client_->getattr(me(), e[0].fh, a), 0);
	EXPECT_EQ(client_->getattr(me(), e[1].fh, a), -ESTALE);
	find(names[1]);
	EXPECT_EQ(client_->getattr(me(), e[1].fh, a), 0);
}

TEST_F(daemon_session, what_arrives_on_a_replaced_connection_is_not_run)
{
	coop::daemon::session s("0123456789abcdef");
	using verdict = coop::daemon::session::verdict;
	std::string out;
	const std::uint64_t old = s.renew(nullptr, nullptr, true);
	EXPECT_EQ(s.admit(old, 1, nullptr, out), verdict::run);
	const std::uint64_t now = s.renew(nullptr, nullptr, true);
	EXPECT_EQ(s.admit(now, 2, nullptr, out), verdict::run);
	EXPECT_EQ(s.admit(old, 3, nullptr, out), verdict::late);
	EXPECT_EQ(s.admit(now, 1, nullptr, out), verdict::running) << "it began before";
	s.done(1, "reply");
	EXPECT_EQ(s.admit(old, 1, nullptr, out), verdict::late);
	EXPECT_EQ(s.admit(now, 1, nullptr, out), verdict::answered);
}

TEST_F(daemon_session, a_lease_given_on_the_newer_connection_is_not_returned_on_the_older_one)
{
	up();
	std::filesystem::create_directory(tree_ / "d");
	const entry d = find("d");
	plain_client older(port_, COOP_ST_VERSION, COOP_ST_VERSION, 'l');
	plain_client newer(port_, COOP_ST_VERSION, COOP_ST_VERSION, 'l', older.used() + 2);
	newer.flags = COOP_ST_F_LEASE;
	coop_st_body one{};
	one.fid = d.attr.fid;
	ASSERT_EQ(newer.ask(COOP_ST_GETATTR, plain_client::on(d, 0)), 0);
	ASSERT_TRUE(newer.got.attr.has & COOP_ST_HAS_LEASE);
	EXPECT_EQ(older.ask(COOP_ST_LEASE_RETURN, one), -1) << "it is not run";
	EXPECT_EQ(server_->files().leases.held(), 1u);
	EXPECT_EQ(newer.ask(COOP_ST_LEASE_RETURN, one), 0);
	EXPECT_EQ(server_->files().leases.held(), 0u);
}

// A client that gave up an OPEN sends the CLOSE on the next connection, while the OPEN may still
// wait for other clients' leases.
TEST_F(daemon_session, an_open_that_runs_after_its_close_leaves_nothing_open)
{
	up();
	put("f", "text");
	const entry e = find("f");
	plain_client c(port_, COOP_ST_VERSION, COOP_ST_VERSION, 'c');
	EXPECT_EQ(c.close(e, 1), EBADF);
	EXPECT_EQ(c.open(e, 1), EBADF);
	EXPECT_EQ(c.close(e, 1), EBADF);
	EXPECT_EQ(c.open(e, 2), 0);
	EXPECT_EQ(c.close(e, 2), 0);
	EXPECT_EQ(c.open(e, 1, COOP_ST_O_READ | COOP_ST_O_AGAIN), 0) << "it is restored";
	EXPECT_EQ(c.close(e, 1), 0);
	for (std::uint64_t id = 10; id < 10 + 2 * coop::daemon::replies_kept; id++)
		ASSERT_EQ(c.close(e, id), EBADF);
	EXPECT_EQ(c.open(e, 10), 0) << "it remembers only the latest";
}

TEST_F(daemon_session, silent_strangers_do_not_keep_clients_out)
{
	settings_.max_connections = 1; // else there is room for all of the crowd
	start();
	std::vector<coop::unique_fd> crowd;
	for (std::size_t i = 0; i < 2 * coop::daemon::strangers_max; i++) {
		coop::unique_fd s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
		sockaddr_in to{};
		to.sin_family = AF_INET;
		to.sin_port = htons(port_);
		::inet_pton(AF_INET, host().c_str(), &to.sin_addr);
		ASSERT_EQ(::connect(s.get(), reinterpret_cast<sockaddr *>(&to), sizeof(to)), 0);
		crowd.push_back(std::move(s));
	}
	ASSERT_TRUE(eventually([&] { return server_->accepted == crowd.size(); }));
	EXPECT_NO_THROW(connect());
}

TEST_F(daemon_session, without_a_key_other_users_of_the_machine_are_refused)
{
	if (::geteuid() != 0)
		GTEST_SKIP() << "needs root, to become another user";
	up();
	const pid_t child = ::fork();
	if (child == 0) {
		if (::setresuid(4101, 4101, 4101))
			::_exit(3);
		try {
			connect();
		} catch (const std::runtime_error &e) {
			const bool said =
				std::string(e.what()).find("cluster key") != std::string::npos;
			::_exit(said ? 0 : 2);
		}
		::_exit(1);
	}
	int status = 0;
	ASSERT_EQ(::waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(server_->auth_failures, 1u);
}

TEST(identity, a_closed_socket_is_nobodys)
{
	sockaddr_storage from{}, to{};
	auto &f = reinterpret_cast<sockaddr_in &>(from), &t = reinterpret_cast<sockaddr_in &>(to);
	f.sin_family = t.sin_family = AF_INET;
	f.sin_addr.s_addr = t.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	f.sin_port = htons(0x1234);
	t.sin_port = htons(0x4416);
	const std::string address = [] {
		const std::uint32_t loopback = htonl(INADDR_LOOPBACK);
		char text[9];
		std::snprintf(text, sizeof(text), "%08X", loopback);
		return std::string(text);
	}();
	const auto owner = [&](const char *state, const char *inode) {
		std::istringstream table("  sl  local_address rem_address   st ...\n   0: " +
					 address + ":1234 " + address + ":4416 " + state +
					 " 00000000:00000000 00:00000000 00000000  1000        0 " +
					 inode + " 1 0\n");
		return coop::daemon::owner_in(table, from, to);
	};
	EXPECT_EQ(owner("01", "77"), std::optional<uid_t>(1000));
	EXPECT_EQ(owner("05", "77"), std::nullopt);
	EXPECT_EQ(owner("01", "0"), std::nullopt);
	f.sin_port = htons(0x1235);
	EXPECT_EQ(owner("01", "77"), std::nullopt);
}

// A client that gave a request up takes EEXIST for its success, so the request must have succeeded.
// Root may open everything, so the users are others.
TEST_F(daemon_session, an_open_file_of_its_own_user_stays_open_over_a_restart_whatever_its_mode)
{
	if (::geteuid())
		GTEST_SKIP() << "needs root";
	up();
	const caller user{1234, 1234, {}};
	const auto opened = [&](const char *name, uid_t owner) {
		put(name, "old");
		const std::string path = (tree_ / name).string();
		EXPECT_EQ(::chown(path.c_str(), owner, owner), 0);
		EXPECT_EQ(::chmod(path.c_str(), 0666), 0);
		open_result o{};
		EXPECT_EQ(client_->open(user, find(name).fh, O_RDWR, 0, o), 0);
		EXPECT_EQ(::chmod(path.c_str(), 0), 0);
		return o.open_id;
	};
	const std::uint64_t own = opened("own", 1234), other = opened("other", 5678);
	restart();
	write_result w{};
	EXPECT_EQ(write_text(*client_, find("own"), own, 0, "new", w), 0);
	EXPECT_EQ(disk("own"), "new");
	EXPECT_EQ(write_text(*client_, find("other"), other, 0, "new", w), -EBADF);
	open_result o{};
	EXPECT_EQ(client_->open(user, find("own").fh, O_RDWR, 0, o), -EACCES) << "a first open";
}

TEST_F(daemon_session, an_open_is_delayed_while_another_one_of_its_id_runs)
{
	using coop::daemon::open_file;
	coop::daemon::session s("s");
	const auto first = std::make_shared<open_file>(), second = std::make_shared<open_file>();
	ASSERT_EQ(s.add(1, first, 2), 0);
	EXPECT_EQ(s.add(1, second, 2), -EAGAIN);
	EXPECT_TRUE(s.take_back(1, *first)); // it failed
	ASSERT_EQ(s.add(1, second, 2), 0);
	EXPECT_EQ(s.add(1, first, 2), -EAGAIN);
	s.stays(*second);
	EXPECT_EQ(s.add(1, first, 2), -EEXIST);
}
