// SPDX-License-Identifier: MIT
// lost_replies.cpp - a reply is lost together with its connection: what the client believes from
// then on is what the daemon does.
#include "relay.hpp"

#include <algorithm>

using namespace rig;

namespace
{

constexpr coop_st_lock all{1, 0, ~0ull, COOP_ST_LOCK_POSIX, COOP_ST_LOCK_WRITE, 1},
	to_read{1, 0, ~0ull, COOP_ST_LOCK_POSIX, COOP_ST_LOCK_READ, 1};

int lock_now(storage &s, const entry &e, std::uint64_t open_id, const coop_st_lock &what = all)
{
	std::uint64_t cookie;
	return s.lock(e.fh, open_id, what, false, nullptr, cookie);
}

// Storage has answered all that the client sent, and what these answers led to.
bool settled(storage &s)
{
	const auto idle = [&] { return s.calls().empty(); };
	return eventually(idle) && !s.ping() && eventually(idle);
}

// The answer to a wait for a lock.
struct waiter {
	std::atomic<int> err{1}; // not yet
	std::uint64_t cookie = 0;

	void wait(storage &s, const entry &e, std::uint64_t open_id)
	{
		const int begun = s.lock(
			e.fh, open_id, all, true, [this](int result) { err = result; }, cookie);
		if (begun != -EINPROGRESS)
			err = begun;
	}
	bool answered()
	{
		return eventually([this] { return err <= 0; });
	}
};

} // namespace

// client_ is connected to the daemon, the others to the relay.
class daemon_lost_replies : public daemon_test
{
protected:
	void SetUp() override
	{
		daemon_test::SetUp();
		put("f", "0123456789");
		put("g", "0123456789");
		up();
		f_ = find("f");
		g_ = find("g");
		between_ = std::make_unique<relay>(port_);
	}
	std::unique_ptr<storage> join(std::uint32_t timeout_ms = 60000)
	{
		storage_options o = client_options();
		o.port = between_->port;
		o.timeout_ms = timeout_ms;
		return storage::connect(o);
	}
	std::uint64_t open_at(storage &s, const entry &e)
	{
		open_result o{};
		EXPECT_EQ(s.open(me(), e.fh, O_RDWR, 0, o), 0);
		return o.open_id;
	}

	entry f_, g_;
	std::unique_ptr<relay> between_;
};

// The replies are those to two requests of the handshake, three OPENs, two LOCKs, three CLOSEs and
// RECLAIMED.
TEST_F(daemon_lost_replies, without_its_lock_an_open_file_is_of_no_use_whichever_is_lost)
{
	spdlog::set_level(spdlog::level::critical); // each lost lock is an error in the log
	for (unsigned lost = 1; lost <= 11; lost++) {
		const auto c = join();
		const std::uint64_t f = open_at(*c, f_), g = open_at(*c, g_),
				    with = open_at(*c, f_);
		ASSERT_TRUE(c->goes_with(with, f));
		ASSERT_EQ(lock_now(*c, f_, f), 0);
		ASSERT_EQ(lock_now(*c, g_, g), 0);
		server_.reset();
		std::filesystem::remove_all(base_ / "state" / "locks"); // it forgets the locks
		const unsigned tries = between_->connections;
		ASSERT_TRUE(eventually([&] { return between_->connections > tries; }));
		between_->cut_at = lost;
		start_again();
		ASSERT_TRUE(eventually([&] { return c->stats().reconnects == 1; })) << lost;
		EXPECT_EQ(between_->cut_at, 0u) << lost;
		write_result out;
		EXPECT_EQ(write_text(*c, f_, f, 0, "mine", out), -EBADF) << lost;
		EXPECT_EQ(write_text(*c, g_, g, 0, "mine", out), -EBADF) << lost;
		EXPECT_EQ(write_text(*c, f_, with, 0, "mine", out), -EBADF) << lost;
	}
	EXPECT_EQ(disk("f"), "0123456789");
	EXPECT_EQ(disk("g"), "0123456789");
}

// The grant goes to the lost connection too.
TEST_F(daemon_lost_replies, a_wait_ends_whose_place_in_the_queue_was_not_told)
{
	waiter w;
	const std::uint64_t own = open_at(*client_, f_);
	ASSERT_EQ(lock_now(*client_, f_, own), 0);
	const auto c = join();
	const std::uint64_t f = open_at(*c, f_);
	between_->closed = true;
	between_->cut_at = 5; // after three of the handshake and that of the OPEN
	const std::jthread caller([&] { w.wait(*c, f_, f); });
	ASSERT_TRUE(eventually([&] { return !between_->cut_at; }));
	ASSERT_EQ(client_->unlock(f_.fh, all), 0);
	between_->closed = false;
	ASSERT_TRUE(w.answered());
	EXPECT_EQ(w.err, 0);
	EXPECT_EQ(lock_now(*client_, f_, own), -EAGAIN);
	EXPECT_EQ(c->unlock(f_.fh, all), 0);
	EXPECT_EQ(lock_now(*client_, f_, own), 0);
}

// Locks end with the CLOSE of the open file that they were taken through.
TEST_F(daemon_lost_replies, an_unlock_releases_what_a_close_before_it_did_not)
{
	constexpr coop_st_lock parts[] = {{1, 0, 4, COOP_ST_LOCK_POSIX, COOP_ST_LOCK_WRITE, 1},
					  {1, 5, 9, COOP_ST_LOCK_POSIX, COOP_ST_LOCK_WRITE, 1}};
	const std::uint64_t own = open_at(*client_, f_);
	for (const unsigned closed : {0u, 1u}) {
		const auto c = join();
		const std::uint64_t opens[] = {open_at(*c, f_), open_at(*c, f_)};
		for (const unsigned i : {0u, 1u})
			ASSERT_EQ(lock_now(*c, f_, opens[i], parts[i]), 0);
		between_->closed = true;
		between_->cut_at = 8; // after three of the handshake, two OPENs and two LOCKs
		write_result out;
		std::jthread closer([&] { EXPECT_EQ(c->close(f_.fh, opens[closed], out), 0); });
		ASSERT_TRUE(eventually([&] { return !between_->cut_at; }));
		std::jthread unlocker([&] { EXPECT_EQ(c->unlock(f_.fh, all), 0); });
		ASSERT_TRUE(eventually([&] { return c->calls().size() == 2; }));
		between_->closed = false;
		closer.join();
		unlocker.join();
		EXPECT_EQ(lock_now(*client_, f_, own), 0) << closed;
		EXPECT_EQ(client_->unlock(f_.fh, all), 0);
	}
}

// Each holds a read lock, and c waits to make its own a write lock.
class daemon_lost_upgrade : public daemon_lost_replies
{
protected:
	void SetUp() override
	{
		daemon_lost_replies::SetUp();
		own_ = open_at(*client_, f_);
		c_ = join();
		opened_ = open_at(*c_, f_);
		ASSERT_EQ(lock_now(*client_, f_, own_, to_read), 0);
		ASSERT_EQ(lock_now(*c_, f_, opened_, to_read), 0);
	}
	void TearDown() override
	{
		c_.reset();
		daemon_lost_replies::TearDown();
	}
	void expect_its_read_lock()
	{
		ASSERT_TRUE(settled(*c_));
		EXPECT_TRUE(c_->holds_lock(f_.fh, to_read));
		EXPECT_EQ(lock_now(*client_, f_, own_), -EAGAIN) << "c reads";
	}

	waiter w_;
	std::uint64_t own_ = 0, opened_ = 0;
	std::unique_ptr<storage> c_;
};

TEST_F(daemon_lost_upgrade, a_wait_that_a_restart_ended_is_cancelled)
{
	w_.wait(*c_, f_, opened_);
	ASSERT_EQ(w_.err, 1);
	server_.reset();
	EXPECT_TRUE(c_->cancel_lock(w_.cookie));
	start_again();
	ASSERT_TRUE(eventually([&] { return c_->stats().reconnects == 1; }));
	expect_its_read_lock();
	EXPECT_EQ(w_.err, 1);
}

// The requests to cancel it and to queue it again may run in any order.
TEST_F(daemon_lost_upgrade, a_wait_is_cancelled_that_is_asked_for_again)
{
	for (unsigned i = 1; i <= 12; i++) {
		w_.wait(*c_, f_, opened_);
		ASSERT_EQ(w_.err, 1);
		restart();
		ASSERT_TRUE(eventually([&] { return c_->stats().reconnects >= i; }));
		EXPECT_TRUE(c_->cancel_lock(w_.cookie));
		expect_its_read_lock();
		ASSERT_FALSE(HasFailure()) << i;
		EXPECT_NE(server_->stats_text().find("\nlock_waiters 0\n"), std::string::npos);
	}
}

// c holds a lock. The wire is away for longer than c's calls wait, but the daemon keeps the
// session.
class daemon_lost_patience : public daemon_lost_replies
{
protected:
	void SetUp() override
	{
		daemon_lost_replies::SetUp();
		own_ = open_at(*client_, f_);
		c_ = join(300);
		opened_ = open_at(*c_, f_);
	}
	void TearDown() override
	{
		c_.reset();
		daemon_lost_replies::TearDown();
	}
	void go_away()
	{
		between_->closed = true;
		between_->cut = true;
		ASSERT_TRUE(eventually([&] { return !c_->stats().connected; }));
	}
	void come_back()
	{
		attributes a;
		EXPECT_EQ(c_->getattr(me(), f_.fh, a), -ETIMEDOUT) << "and all calls before it";
		between_->closed = false;
		ASSERT_TRUE(eventually([&] { return c_->stats().connected; }));
		ASSERT_TRUE(settled(*c_));
	}
	// One call is under way; a LOCK of its owner is not sent.
	void expect_a_lock_waits_for_it()
	{
		std::atomic<int> err{1};
		const std::jthread caller([&] { err = lock_now(*c_, f_, opened_); });
		std::size_t most = 0;
		while (err == 1)
			most = std::max(most, c_->calls().size());
		EXPECT_EQ(most, 1u);
		EXPECT_EQ(err, -ETIMEDOUT);
	}
	void expect_it_holds_what_it_locks()
	{
		EXPECT_EQ(lock_now(*c_, f_, opened_), 0);
		EXPECT_EQ(lock_now(*client_, f_, own_), -EAGAIN);
	}

	waiter w_;
	std::uint64_t own_ = 0, opened_ = 0;
	std::unique_ptr<storage> c_;
};

TEST_F(daemon_lost_patience, an_unlock_is_not_given_up)
{
	ASSERT_EQ(lock_now(*c_, f_, opened_), 0);
	go_away();
	EXPECT_EQ(c_->unlock(f_.fh, all), 0);
	come_back();
	EXPECT_EQ(lock_now(*client_, f_, own_), 0);
}

TEST_F(daemon_lost_patience, an_unlock_goes_on_after_its_caller_has_gone)
{
	coop_st_lock head = all, tail = all;
	head.end = 4;
	tail.start = 5;
	const std::uint64_t closed = open_at(*c_, f_);
	ASSERT_EQ(lock_now(*c_, f_, closed, head), 0);
	ASSERT_EQ(lock_now(*c_, f_, opened_, tail), 0);
	between_->closed = true;
	between_->cut_at = 8; // after three of the handshake, two OPENs and two LOCKs
	write_result out;
	std::jthread closer([&] { EXPECT_EQ(c_->close(f_.fh, closed, out), -ETIMEDOUT); });
	ASSERT_TRUE(eventually([&] { return !between_->cut_at; }));
	EXPECT_EQ(c_->unlock(f_.fh, all), 0);
	come_back();
	EXPECT_EQ(lock_now(*client_, f_, own_), 0);
}

TEST_F(daemon_lost_patience, a_close_is_not_given_up)
{
	ASSERT_EQ(lock_now(*c_, f_, opened_), 0);
	go_away();
	write_result out;
	EXPECT_EQ(c_->close(f_.fh, opened_, out), -ETIMEDOUT);
	come_back();
	EXPECT_EQ(lock_now(*client_, f_, own_), 0);
}

TEST_F(daemon_lost_patience, the_close_of_a_reader_is_not_given_up)
{
	ASSERT_EQ(lock_now(*c_, f_, opened_), 0);
	go_away();
	c_->close_reader(f_.fh, opened_);
	come_back();
	EXPECT_EQ(lock_now(*client_, f_, own_), 0);
}

TEST_F(daemon_lost_patience, a_cancellation_is_not_given_up)
{
	ASSERT_EQ(lock_now(*client_, f_, own_), 0);
	w_.wait(*c_, f_, opened_);
	ASSERT_EQ(w_.err, 1);
	go_away();
	EXPECT_TRUE(c_->cancel_lock(w_.cookie));
	come_back();
	EXPECT_EQ(client_->unlock(f_.fh, all), 0);
	EXPECT_EQ(lock_now(*client_, f_, own_), 0);
}

// The daemon runs requests in any order: an UNLOCK must not release a lock that was asked for
// later.
TEST_F(daemon_lost_patience, a_lock_is_asked_for_after_the_unlock_before_it)
{
	ASSERT_EQ(lock_now(*c_, f_, opened_), 0);
	go_away();
	EXPECT_EQ(c_->unlock(f_.fh, all), 0);
	expect_a_lock_waits_for_it();
	come_back();
	expect_it_holds_what_it_locks();
}

// A lock that is granted after its caller gave up is given back. The owner's next lock must not
// come before that.
TEST_F(daemon_lost_patience, a_lock_is_asked_for_after_one_that_was_given_up)
{
	between_->closed = true;
	between_->cut_at = 5; // after three of the handshake and that of the OPEN
	EXPECT_EQ(lock_now(*c_, f_, opened_), -ETIMEDOUT);
	EXPECT_EQ(between_->cut_at, 0u) << "the daemon has granted it";
	expect_a_lock_waits_for_it();
	come_back();
	expect_it_holds_what_it_locks();
}

TEST_F(daemon_lost_patience, a_lock_is_asked_for_after_a_wait_that_was_cancelled)
{
	ASSERT_EQ(lock_now(*client_, f_, own_), 0);
	w_.wait(*c_, f_, opened_);
	ASSERT_EQ(w_.err, 1);
	between_->closed_by_cut = true;
	between_->cut_at = 4; // the answer about the wait, on the next connection
	between_->cut = true;
	ASSERT_TRUE(eventually([&] { return between_->closed.load(); }));
	EXPECT_TRUE(c_->cancel_lock(w_.cookie));
	expect_a_lock_waits_for_it();
	come_back();
	EXPECT_EQ(client_->unlock(f_.fh, all), 0);
	expect_it_holds_what_it_locks();
	EXPECT_EQ(w_.err, 1);
}

// A file that was opened under a lease is reported again under its id.
TEST_F(daemon_lost_patience, an_open_that_was_given_up_can_be_repeated)
{
	const std::uint64_t id = c_->new_open_id();
	std::atomic<int> err{1};
	const auto report = [&] {
		err = 1;
		c_->open_as(id, me(), f_.fh, O_RDONLY, [&](int e) { err = e; });
	};
	between_->closed = true;
	between_->cut_at = 5; // after three of the handshake and that of the other OPEN
	report();
	ASSERT_TRUE(eventually([&] { return err != 1; }));
	EXPECT_EQ(err, -ETIMEDOUT);
	EXPECT_EQ(between_->cut_at, 0u) << "the daemon has opened it";
	between_->closed = false;
	ASSERT_TRUE(eventually([&] {
		report();
		return eventually([&] { return err != 1; }) && err != -ETIMEDOUT;
	}));
	EXPECT_EQ(err, 0);
	EXPECT_EQ(read_text(*c_, f_, id, 0, 4), "0123");
	restart();
	EXPECT_TRUE(eventually([&] { return c_->stats().reconnects == 2; }));
	EXPECT_EQ(read_text(*c_, f_, id, 0, 4), "0123");
}
