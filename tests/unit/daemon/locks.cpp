// SPDX-License-Identifier: MIT
// locks.cpp - locks among clients of one daemon: ranges, queues, deadlocks, clients that end,
// daemons that restart.
#include "members_rig.hpp"

#include <random>

#include "coop/lock_ranges.hpp"

using namespace rig;

namespace
{

constexpr std::uint64_t last = ~0ull;

coop_st_lock range(std::uint64_t owner, std::uint32_t type, std::uint64_t start = 0,
		   std::uint64_t end = last)
{
	return {owner, start, end, COOP_ST_LOCK_POSIX, type, 1};
}

coop_st_lock whole(std::uint64_t owner, std::uint32_t type)
{
	return {owner, 0, last, COOP_ST_LOCK_FLOCK, type, 1};
}

constexpr std::uint32_t rd = COOP_ST_LOCK_READ, wr = COOP_ST_LOCK_WRITE;

// Its session's id begins with 'm'. Restores what it had: one open file, and its lock.
class mute_client : public plain_client
{
public:
	mute_client(std::uint16_t port, const entry &e, std::uint64_t used) :
		plain_client(port, COOP_ST_VERSION, COOP_ST_VERSION, 'm', used),
		forgotten(got.flags & COOP_ST_W_NEW_SESSION),
		file_(e)
	{
	}
	int open_again() { return open(file_, 1, COOP_ST_O_READ | COOP_ST_O_AGAIN); }
	int lock(const coop_st_lock &l, std::uint32_t how = 0)
	{
		coop_st_body b = on(file_, 1);
		b.lock = l;
		b.flags = how;
		return ask(COOP_ST_LOCK, b);
	}
	int close() { return plain_client::close(file_, 1); }
	static std::string session()
	{
		std::string id(COOP_ST_SESSION, 0);
		id[0] = 'm';
		return id;
	}

	const bool forgotten; // the daemon said so

private:
	const entry file_;
};

// A client that has the file open.
struct node {
	entry file;
	std::uint64_t open_id = 0;
	std::mutex mutex;
	std::vector<std::pair<std::uint64_t, int>> granted; // tag, error
	std::unique_ptr<storage> s;                         // ends first: its thread grants

	int lock(const coop_st_lock &l) const
	{
		std::uint64_t cookie;
		return s->lock(file.fh, open_id, l, false, nullptr, cookie);
	}
	// Returns -EINPROGRESS; later 'tag' appears in 'granted'.
	int wait(const coop_st_lock &l, std::uint64_t tag, std::uint64_t *cookie = nullptr)
	{
		std::uint64_t name;
		const int err = s->lock(
			file.fh, open_id, l, true,
			[this, tag](int e) {
				std::lock_guard guard(mutex);
				granted.emplace_back(tag, e);
			},
			name);
		if (cookie)
			*cookie = name;
		return err;
	}
	int unlock(const coop_st_lock &l) const { return s->unlock(file.fh, l); }
	std::size_t grants()
	{
		std::lock_guard guard(mutex);
		return granted.size();
	}
	coop_st_lock test(coop_st_lock l) const
	{
		EXPECT_EQ(s->test_lock(file.fh, open_id, l), 0);
		return l;
	}
};

} // namespace

class daemon_locks : public daemon_test
{
protected:
	void SetUp() override
	{
		daemon_test::SetUp();
		put("f", "0123456789");
	}
	std::unique_ptr<node> join(const std::string &name = "f", int flags = O_RDWR)
	{
		auto n = std::make_unique<node>();
		n->s = connect();
		EXPECT_EQ(n->s->lookup(me(), n->s->root().fh, name, n->file), 0);
		open_result o{};
		EXPECT_EQ(n->s->open(me(), n->file.fh, flags, 0, o), 0);
		n->open_id = o.open_id;
		return n;
	}
	bool stats_say(const std::string &line)
	{
		return (server_->stats_text()).find("\n" + line + "\n") != std::string::npos;
	}
};

TEST_F(daemon_locks, one_writer_or_many_readers_over_all_clients)
{
	start();
	auto a = join(), b = join();
	EXPECT_EQ(a->lock(range(1, rd, 0, 9)), 0);
	EXPECT_EQ(b->lock(range(1, rd, 5, 20)), 0)
		<< "the same number is another owner at another client";
	EXPECT_EQ(b->lock(range(1, wr, 5, 20)), -EAGAIN);
	EXPECT_EQ(b->lock(range(1, wr, 10, 20)), 0);
	EXPECT_EQ(a->lock(range(1, wr, 0, 9)), -EAGAIN) << "b reads 5 to 9";
	EXPECT_EQ(a->lock(range(2, rd, 10, 10)), -EAGAIN);
	EXPECT_EQ(a->lock(whole(1, wr)), 0) << "flock(2) and fcntl(2) do not see each other";
	EXPECT_EQ(b->lock(whole(1, rd)), -EAGAIN);
	EXPECT_EQ(a->unlock(whole(1, wr)), 0);
	EXPECT_EQ(b->lock(whole(1, rd)), 0);

	const coop_st_lock other = a->test(range(1, wr, 0, 30));
	EXPECT_EQ(other.type, rd);
	EXPECT_EQ(other.start, 5u);
	EXPECT_EQ(other.end, 9u);
	EXPECT_EQ(a->test(range(1, wr, 30, 40)).type, COOP_ST_LOCK_NONE);
}

TEST_F(daemon_locks, waits_end_in_the_order_in_which_they_began)
{
	start();
	auto a = join(), b = join(), c = join();
	ASSERT_EQ(a->lock(range(1, wr)), 0);
	EXPECT_EQ(b->wait(range(1, wr), 1), -EINPROGRESS);
	EXPECT_EQ(c->wait(range(1, rd), 2), -EINPROGRESS);
	EXPECT_EQ(b->wait(range(2, rd), 3), -EINPROGRESS);
	EXPECT_TRUE(stats_say("lock_waiters 3"));
	ASSERT_EQ(a->unlock(range(1, wr)), 0);
	ASSERT_TRUE(eventually([&] { return b->grants() == 1; }));
	EXPECT_EQ(c->grants(), 0u);
	// A new owner that holds nothing waits behind the queue.
	EXPECT_EQ(a->wait(range(9, rd), 4), -EINPROGRESS);
	ASSERT_EQ(b->unlock(range(1, wr)), 0);
	ASSERT_TRUE(eventually([&] { return c->grants() == 1 && b->grants() == 2; }));
	ASSERT_TRUE(eventually([&] { return a->grants() == 1; }));
	EXPECT_TRUE(stats_say("lock_waiters 0"));
}

TEST_F(daemon_locks, a_reader_that_comes_late_does_not_overtake_a_writer)
{
	start();
	auto a = join(), b = join(), c = join();
	ASSERT_EQ(a->lock(range(1, rd)), 0);
	EXPECT_EQ(b->wait(range(1, wr), 1), -EINPROGRESS);
	EXPECT_EQ(c->wait(range(1, rd), 2), -EINPROGRESS);
	EXPECT_EQ(a->wait(range(1, rd, 0, 3), 3), 0)
		<< "a lock holder does not wait behind the queue";
	ASSERT_EQ(a->unlock(range(1, rd)), 0);
	ASSERT_TRUE(eventually([&] { return b->grants() == 1; }));
	EXPECT_EQ(c->grants(), 0u);
	ASSERT_EQ(b->unlock(range(1, wr)), 0);
	EXPECT_TRUE(eventually([&] { return c->grants() == 1; }));
}

// Its client believes so, and notes no lock that another process took by the same open file.
TEST_F(daemon_locks, a_conversion_that_waits_holds_nothing_also_when_it_is_asked_for_again)
{
	start();
	auto a = join();
	EXPECT_EQ(a->lock(whole(1, rd)), 0);
	plain_client m(server_->port(), COOP_ST_VERSION, COOP_ST_VERSION, 'm');
	ASSERT_EQ(m.open(a->file, 1), 0);
	coop_st_body wants = plain_client::on(a->file, 1), has = wants;
	wants.lock = whole(1, wr), wants.flags = COOP_ST_L_WAIT, wants.cookie = 5;
	has.lock = whole(1, rd);
	EXPECT_EQ(m.ask(COOP_ST_LOCK, wants), 0);
	EXPECT_EQ(m.got.flags, COOP_ST_LOCK_QUEUED + 0u);
	EXPECT_EQ(m.ask(COOP_ST_LOCK, has), 0);
	EXPECT_EQ(m.got.flags, COOP_ST_LOCK_HELD + 0u);
	EXPECT_TRUE(stats_say("locks 2"));
	EXPECT_EQ(m.ask(COOP_ST_LOCK, wants), 0);
	EXPECT_EQ(m.got.flags, COOP_ST_LOCK_QUEUED + 0u);
	EXPECT_TRUE(stats_say("locks 1"));
}

TEST_F(daemon_locks, a_wait_that_is_cancelled_is_never_granted)
{
	start();
	auto a = join(), b = join(), c = join();
	std::uint64_t cookie = 0;
	ASSERT_EQ(a->lock(range(1, wr)), 0);
	ASSERT_EQ(b->wait(range(1, wr), 1, &cookie), -EINPROGRESS);
	ASSERT_EQ(c->wait(range(1, wr), 2), -EINPROGRESS);
	EXPECT_TRUE(b->s->cancel_lock(cookie));
	EXPECT_FALSE(b->s->cancel_lock(cookie));
	ASSERT_TRUE(eventually([&] { return stats_say("lock_waiters 1"); }));
	ASSERT_EQ(a->unlock(range(1, wr)), 0);
	ASSERT_TRUE(eventually([&] { return c->grants() == 1; }));
	EXPECT_EQ(b->grants(), 0u);
}

TEST_F(daemon_locks, a_cancellation_that_comes_too_late_gives_the_lock_back)
{
	start();
	auto a = join(), b = join();
	for (int i = 0; i < 200; i++) {
		std::uint64_t cookie = 0;
		ASSERT_EQ(a->lock(range(1, wr)), 0);
		ASSERT_EQ(b->wait(range(1, wr), 1, &cookie), -EINPROGRESS);
		std::jthread free([&] { EXPECT_EQ(a->unlock(range(1, wr)), 0); });
		if (!b->s->cancel_lock(cookie)) {
			ASSERT_EQ(b->unlock(range(1, wr)), 0);
		}
		free.join();
		ASSERT_TRUE(eventually([&] { return a->lock(range(1, wr)) == 0; }));
		ASSERT_EQ(a->unlock(range(1, wr)), 0);
	}
}

TEST_F(daemon_locks, a_circle_of_processes_is_refused)
{
	put("g", "0123456789");
	start();
	auto a = join(), b = join(), c = join();
	auto ag = join("g");
	ag->s.reset();
	// Three clients and three ranges: each waits for the next one's.
	ASSERT_EQ(a->lock(range(1, wr, 0, 0)), 0);
	ASSERT_EQ(b->lock(range(1, wr, 1, 1)), 0);
	ASSERT_EQ(c->lock(range(1, wr, 2, 2)), 0);
	EXPECT_EQ(a->wait(range(1, wr, 1, 1), 1), -EINPROGRESS);
	EXPECT_EQ(b->wait(range(1, wr, 2, 2), 1), -EINPROGRESS);
	EXPECT_EQ(c->wait(range(1, wr, 0, 0), 1), -EDEADLK);
	EXPECT_EQ(c->lock(range(1, wr, 0, 0)), -EAGAIN) << "without waiting there is no deadlock";
	ASSERT_EQ(c->unlock(range(1, wr, 2, 2)), 0);
	EXPECT_TRUE(eventually([&] { return b->grants() == 1; }));
	// Others may release the lock of an open file description: no deadlock is reported.
	coop_st_lock ofd = range(5, wr, 100, 100);
	ofd.kind = COOP_ST_LOCK_OFD;
	ASSERT_EQ(a->lock(ofd), 0);
	EXPECT_EQ(b->wait(ofd, 2), -EINPROGRESS);
}

TEST_F(daemon_locks, a_lock_ends_with_its_open_file_and_with_its_client)
{
	settings_.silence = std::chrono::hours(1); // nor because its client says nothing
	start();
	auto a = join(), b = join();
	ASSERT_EQ(a->lock(range(1, wr)), 0);
	ASSERT_EQ(b->wait(range(1, wr), 1), -EINPROGRESS);
	write_result out;
	ASSERT_EQ(a->s->close(a->file.fh, a->open_id, out), 0);
	ASSERT_TRUE(eventually([&] { return b->grants() == 1; }));

	auto c = join();
	ASSERT_EQ(c->wait(range(1, wr), 1), -EINPROGRESS);
	b.reset(); // says BYE
	EXPECT_TRUE(eventually([&] { return c->grants() == 1; }));
	c.reset();
	EXPECT_TRUE(eventually([&] { return stats_say("locks 0"); }));
}

// The CLOSE of a reader may wait for the next request, but not if others may wait for its lock.
TEST_F(daemon_locks, an_unlock_names_any_open_file_of_its_client)
{
	put("f", "");
	up();
	const entry f = find("f");
	plain_client c(port_, COOP_ST_VERSION, COOP_ST_VERSION, 'm');
	for (const std::uint64_t open_id : {1, 2})
		ASSERT_EQ(c.open(f, open_id, COOP_ST_O_READ | COOP_ST_O_WRITE), 0);
	coop_st_body b = plain_client::on(f, 1);
	b.lock = range(1, wr);
	ASSERT_EQ(c.ask(COOP_ST_LOCK, b), 0);
	EXPECT_EQ(c.got.flags, COOP_ST_LOCK_HELD + 0u);
	EXPECT_TRUE(stats_say("locks 1"));
	b.open_id = 2;
	EXPECT_EQ(c.ask(COOP_ST_UNLOCK, b), 0);
	EXPECT_TRUE(stats_say("locks 0"));
}

TEST_F(daemon_locks, a_reader_that_holds_one_is_closed_at_once)
{
	start();
	auto a = join();
	open_result o{};
	ASSERT_EQ(a->s->open(me(), a->file.fh, O_RDONLY, 0, o), 0);
	std::uint64_t cookie;
	ASSERT_EQ(a->s->lock(a->file.fh, o.open_id, whole(1, wr), false, nullptr, cookie), 0);
	a->s->close_reader(a->file.fh, o.open_id);
	for (const auto &call : a->s->calls())
		EXPECT_NE(std::string_view(call.state), "queued") << call.op;
	EXPECT_TRUE(eventually([&] { return stats_say("locks 0"); }));
}

TEST_F(daemon_locks, what_an_open_file_may_not_do_it_may_not_lock)
{
	start();
	auto a = join();
	open_result o{};
	std::uint64_t cookie;
	ASSERT_EQ(a->s->open(me(), a->file.fh, O_RDONLY, 0, o), 0);
	EXPECT_EQ(a->s->lock(a->file.fh, o.open_id, range(1, wr), false, nullptr, cookie), -EBADF);
	EXPECT_EQ(a->s->lock(a->file.fh, o.open_id, range(1, rd), false, nullptr, cookie), 0);
	EXPECT_EQ(a->s->lock(a->file.fh, o.open_id, whole(1, wr), false, nullptr, cookie), 0);
	EXPECT_EQ(a->s->lock(a->file.fh, 4711, range(1, rd), false, nullptr, cookie), -EBADF);
}

TEST_F(daemon_locks, a_restarted_daemon_gives_locks_to_their_holders_first)
{
	start();
	auto a = join(), b = join(), w = join();
	ASSERT_EQ(a->lock(range(1, wr, 0, 4)), 0);
	ASSERT_EQ(b->lock(range(1, wr, 5, 9)), 0);
	ASSERT_EQ(w->wait(range(1, wr, 0, 9), 1), -EINPROGRESS);
	restart();
	// No other client may take the lock first, even one that reconnects first.
	auto late = join();
	EXPECT_EQ(late->lock(range(1, wr, 0, 0)), -EAGAIN);
	EXPECT_EQ(late->lock(range(1, wr, 9, 9)), -EAGAIN);
	EXPECT_EQ(a->test(range(1, wr, 0, 9)).start, 5u);
	ASSERT_EQ(a->unlock(range(1, wr, 0, 4)), 0);
	EXPECT_EQ(w->grants(), 0u);
	ASSERT_EQ(b->unlock(range(1, wr, 5, 9)), 0);
	EXPECT_TRUE(eventually([&] { return w->grants() == 1; })) << "a wait outlives a restart";
	EXPECT_EQ(late->lock(range(1, wr, 9, 9)), -EAGAIN);
}

TEST_F(daemon_locks, a_holder_that_does_not_come_back_loses_its_lock)
{
	settings_.lock_grace = std::chrono::milliseconds(1500);
	start();
	auto a = join(), b = join();
	ASSERT_EQ(a->lock(range(1, wr)), 0);
	const auto stopped = std::chrono::steady_clock::now();
	server_.reset();
	a->s.reset();
	start_again();
	EXPECT_EQ(b->lock(range(1, wr)), 0) << "delayed until the grace time ends, then granted";
	EXPECT_GE(std::chrono::steady_clock::now() - stopped, settings_.lock_grace);
	EXPECT_TRUE(std::filesystem::is_empty(base_ / "state" / "locks") ||
		    std::distance(std::filesystem::directory_iterator(base_ / "state" / "locks"),
				  {}) == 1);
}

TEST_F(daemon_locks, an_unlock_needs_no_open_file_that_a_restarted_daemon_refused)
{
	settings_.exports[0].read_only = true; // else an owner may open its file again
	std::filesystem::permissions(tree_ / "f", std::filesystem::perms::all);
	start();
	const auto a = join("f", O_RDONLY), b = join("f", O_RDONLY);
	open_result program{};
	ASSERT_EQ(a->s->open(me(), a->file.fh, O_RDONLY | storage::open_exec, 0, program), 0);
	ASSERT_EQ(a->lock(whole(1, wr)), 0);
	server_.reset();
	std::filesystem::permissions(tree_ / "f", std::filesystem::perms::owner_read);
	start_again();
	ASSERT_TRUE(eventually([&] { return a->s->stats().reconnects == 1; }));
	int err = 0;
	(void)read_text(*a->s, a->file, program.open_id, 0, 4, &err);
	ASSERT_EQ(err, -EBADF);
	EXPECT_EQ(a->s->unlock(a->file.fh, whole(1, wr)), 0);
	EXPECT_EQ(b->lock(whole(2, wr)), 0);
}

TEST_F(daemon_locks, without_its_lock_an_open_file_is_of_no_use)
{
	settings_.lock_grace = std::chrono::milliseconds(300);
	start();
	auto a = join(), b = join();
	ASSERT_EQ(a->lock(range(1, wr)), 0);
	open_result other, late;
	ASSERT_EQ(a->s->open(me(), a->file.fh, O_RDWR | O_APPEND, 0, other), 0);
	ASSERT_TRUE(a->s->goes_with(other.open_id, a->open_id));
	server_.reset();
	std::filesystem::remove_all(base_ / "state" / "locks"); // the daemon forgets the lock
	start_again();
	ASSERT_EQ(b->lock(range(1, wr)), 0);
	write_result out;
	EXPECT_EQ(write_text(*a->s, a->file, a->open_id, 0, "mine", out), -EBADF);
	EXPECT_EQ(write_text(*a->s, a->file, other.open_id, 0, "mine", out), -EBADF);
	storage::setattr_request cut{};
	cut.valid = storage::set_size;
	cut.by = a->open_id;
	EXPECT_EQ(a->s->setattr(me(), a->file.fh, cut, out), -EBADF);
	ASSERT_EQ(a->s->open(me(), a->file.fh, O_RDWR | O_APPEND, 0, late), 0);
	EXPECT_FALSE(a->s->goes_with(late.open_id, a->open_id));
	EXPECT_EQ(disk("f"), "0123456789");
}

// A client is told that it was forgotten until it has restored all. Its connection may be lost
// after the daemon has given locks to others again: its own are still there.
class daemon_locks_restored : public daemon_locks
{
protected:
	void restore_and_lose_the_connection()
	{
		start();
		rival_ = join();
		mute_client first(port_, rival_->file, 0);
		ASSERT_EQ(first.open(rival_->file, 1), 0);
		ASSERT_EQ(first.lock(whole(1, wr)), 0);
		restart();
		second_ = come_back(first.used());
		ASSERT_EQ(second_->lock(whole(1, wr), COOP_ST_L_RECLAIM), 0);
	}
	std::unique_ptr<mute_client> come_back(std::uint64_t used)
	{
		auto c = std::make_unique<mute_client>(port_, rival_->file, used);
		EXPECT_TRUE(c->forgotten);
		EXPECT_EQ(c->open_again(), 0);
		return c;
	}
	void expect_it_holds(mute_client &c)
	{
		EXPECT_EQ(c.lock(whole(1, wr), COOP_ST_L_RECLAIM), 0);
		EXPECT_EQ(c.got.flags, COOP_ST_LOCK_HELD + 0u);
		EXPECT_TRUE(stats_say("locks 1"));
	}

	std::unique_ptr<node> rival_;
	std::unique_ptr<mute_client> second_;
};

TEST_F(daemon_locks_restored, a_lock_that_was_taken_back_is_kept_when_the_grace_time_is_over)
{
	restore_and_lose_the_connection();
	server_->files().recovery.reclaimed(mute_client::session()); // as at the end of that time
	const auto third = come_back(second_->used());
	expect_it_holds(*third);
	EXPECT_EQ(rival_->lock(whole(1, wr)), -EAGAIN);
	EXPECT_EQ(third->lock(whole(2, wr), COOP_ST_L_RECLAIM), ESTALE) << "another owner";
	EXPECT_EQ(third->lock(range(1, rd), COOP_ST_L_RECLAIM), ESTALE) << "another kind";
	EXPECT_EQ(third->close(), 0);
	EXPECT_EQ(rival_->lock(whole(1, wr)), 0);
	ASSERT_EQ(third->open_again(), 0);
	EXPECT_EQ(third->lock(whole(1, wr), COOP_ST_L_RECLAIM), ESTALE) << "it was given back";
}

TEST_F(daemon_locks_restored, the_end_of_restoring_may_come_late_on_a_lost_connection)
{
	restore_and_lose_the_connection();
	const auto third = come_back(second_->used() + 1);
	EXPECT_EQ(second_->ask(COOP_ST_RECLAIMED, {}), -1) << "it is not run";
	EXPECT_TRUE(server_->files().recovery.may_reclaim(mute_client::session()));
	expect_it_holds(*third);
	const auto fourth = come_back(third->used());
	expect_it_holds(*fourth);
	EXPECT_EQ(fourth->ask(COOP_ST_RECLAIMED, {}), 0);
	EXPECT_FALSE(server_->files().recovery.may_reclaim(mute_client::session()));
	EXPECT_EQ(rival_->lock(whole(1, wr)), -EAGAIN);
}

// A program on the daemon's machine may make it fail for a while, once the close of a writer has
// dropped the descriptor to read from.
TEST_F(daemon_locks_restored, an_open_that_meets_itself_and_fails_closes_nothing)
{
	start();
	rival_ = join();
	const entry e = rival_->file;
	std::filesystem::permissions(tree_ / "f", std::filesystem::perms::all);
	mute_client c(port_, e, 0);
	constexpr std::uint32_t program = COOP_ST_O_READ | COOP_ST_O_EXEC | COOP_ST_O_AGAIN;
	ASSERT_EQ(c.open(e, 1, program), 0);
	ASSERT_EQ(c.lock(whole(1, wr)), 0);
	write_result w{};
	ASSERT_EQ(rival_->s->close(e.fh, rival_->open_id, w), 0);
	{
		const coop::unique_fd used(::open((tree_ / "f").c_str(), O_RDWR | O_CLOEXEC));
		ASSERT_EQ(::fcntl(used.get(), F_SETLEASE, F_WRLCK), 0);
		EXPECT_EQ(c.open(e, 1, program), EAGAIN);
	}
	rival_ = join();
	EXPECT_EQ(rival_->lock(whole(1, wr)), -EAGAIN);
	EXPECT_EQ(c.close(), 0);
	EXPECT_EQ(rival_->lock(whole(1, wr)), 0);
}

TEST_F(daemon_locks, who_took_locks_back_may_do_so_after_the_next_restart)
{
	const coop::daemon::state_directory dir(base_ / "state");
	const std::string came(COOP_ST_SESSION, 'c'), stayed_away(COOP_ST_SESSION, 's');
	constexpr std::chrono::milliseconds none{0};
	using coop::daemon::lock_recovery;
	{
		lock_recovery first(dir);
		first.holds(came);
		first.holds(stayed_away);
	}
	{
		lock_recovery second(dir, none);
		second.holds(came);
		EXPECT_FALSE(second.in_grace());
	}
	lock_recovery third(dir);
	EXPECT_TRUE(third.may_reclaim(came));
	EXPECT_FALSE(third.may_reclaim(stayed_away));
	third.ended(came);
	EXPECT_FALSE(third.in_grace());
}

TEST(lock_table, a_session_holds_and_awaits_a_bounded_number)
{
	using namespace coop::daemon;
	lock_table table;
	lock_table::grants grants;
	const auto s = std::make_shared<session>("s"), other = std::make_shared<session>("other"),
		   waiting = std::make_shared<session>("waiting");
	const auto asked = [](const auto &of, std::uint64_t i) { // 64 bytes of each file
		return lock_table::asked{{i / 64, 0},
					 {{of.get(), 1},
					  1,
					  i % 64 * 2,
					  i % 64 * 2,
					  COOP_ST_LOCK_OFD,
					  0,
					  false,
					  true},
					 i};
	};
	const auto lock = [&](const auto &of, std::uint64_t i, bool wait = false) {
		return table.lock(of, asked(of, i), wait, grants);
	};
	constexpr std::uint64_t most = 65536, most_waits = 4096;
	for (std::uint64_t i = 0; i < most; i++)
		ASSERT_EQ(lock(s, i), COOP_ST_LOCK_HELD) << i;
	EXPECT_EQ(lock(s, most), -ENOLCK);
	EXPECT_EQ(lock(other, most), COOP_ST_LOCK_HELD) << "another's are its own";
	for (std::uint64_t i = 0; i < most_waits; i++)
		ASSERT_EQ(lock(waiting, i, true), COOP_ST_LOCK_QUEUED) << i;
	EXPECT_EQ(lock(waiting, most_waits, true), -ENOLCK);
	EXPECT_EQ(lock(waiting, most_waits), COOP_ST_LOCK_CONFLICT);
	table.unlock(asked(s, 0), grants);
	ASSERT_EQ(grants.size(), 1u);
	EXPECT_EQ(lock(s, most + 1), COOP_ST_LOCK_HELD);
	EXPECT_EQ(lock(waiting, most_waits, true), COOP_ST_LOCK_QUEUED);
}

// Against an array with one owner per byte.
TEST(lock_ranges, ranges_are_split_and_joined_like_single_bytes)
{
	constexpr std::uint64_t bytes = 24;
	constexpr int owners = 3;
	std::minstd_rand dice(7);
	coop::lock_ranges<int> locks;
	char held[owners][bytes] = {};
	for (int i = 0; i < 20000; i++) {
		const int who = static_cast<int>(dice() % owners);
		std::uint64_t from = dice() % bytes, to = dice() % bytes;
		if (from > to)
			std::swap(from, to);
		coop::lock_ranges<int>::range r{who, 1, from, to, 0, 0, false, dice() % 2 == 0};
		const bool take = dice() % 3;
		bool free = true;
		for (int o = 0; o < owners && take; o++)
			for (std::uint64_t at = from; at <= to; at++)
				if (o != who && held[o][at] && (r.exclusive || held[o][at] == 'w'))
					free = false;
		if (take) {
			ASSERT_EQ(locks.conflict(r) == nullptr, free) << i;
			if (!free)
				continue;
			locks.take(r);
		} else {
			locks.release(r);
		}
		for (std::uint64_t at = from; at <= to; at++)
			held[who][at] = static_cast<char>(!take ? 0 : r.exclusive ? 'w' : 'r');
		// Every byte once.
		char now[owners][bytes] = {};
		for (const auto &h : locks.held())
			for (std::uint64_t at = h.start; at <= h.end; at++) {
				ASSERT_EQ(now[h.owner][at], 0) << i;
				now[h.owner][at] = h.exclusive ? 'w' : 'r';
			}
		ASSERT_EQ(std::memcmp(now, held, sizeof(now)), 0) << i;
	}
}
