// SPDX-License-Identifier: MIT
// locks_silent.cpp - what becomes of the locks of a client that says nothing more: killed, cut off,
// or stopped.
#include "members_rig.hpp"

#include "userland/daemon/session.hpp"

using namespace rig;

namespace
{

constexpr std::uint64_t last = ~0ull;
constexpr std::uint32_t rd = COOP_ST_LOCK_READ, wr = COOP_ST_LOCK_WRITE;

coop_st_lock range(std::uint32_t type, std::uint64_t start = 0, std::uint64_t end = last)
{
	return {1, start, end, COOP_ST_LOCK_POSIX, type, 1};
}

coop_st_lock whole(std::uint32_t type)
{
	return {1, 0, last, COOP_ST_LOCK_FLOCK, type, 1};
}

// It lives as long as the test lets it, and says nothing by itself.
class holder : public plain_client
{
public:
	holder(std::uint16_t port, const entry &e, char session = 'h', std::uint64_t used = 0,
	       std::uint32_t run = COOP_ST_RUN_LAPSES) :
		plain_client(port, COOP_ST_VERSION, COOP_ST_VERSION, session, used),
		file(e)
	{
		coop_st_body b{};
		b.flags = run;
		EXPECT_EQ(ask(COOP_ST_RUN, b), 0);
	}
	bool forgotten() const { return proof_flags & COOP_ST_W_NEW_SESSION; }
	int lock(const coop_st_lock &l, std::uint32_t how = 0, std::uint64_t open_id = 1)
	{
		coop_st_body b = on(file, open_id);
		b.lock = l;
		b.flags = how;
		b.cookie = how & COOP_ST_L_WAIT ? ++cookie_ : 0;
		return ask(COOP_ST_LOCK, b);
	}
	// Whether it got it.
	bool locks(const coop_st_lock &l, std::uint32_t how = 0)
	{
		return !lock(l, how) && got.flags == COOP_ST_LOCK_HELD;
	}
	std::uint32_t test(const coop_st_lock &l)
	{
		coop_st_body b = on(file, 1);
		b.lock = l;
		EXPECT_EQ(ask(COOP_ST_LOCK_TEST, b), 0);
		return got.lock.type;
	}
	int cut_to(std::uint64_t size)
	{
		coop_st_body b = on(file, 1);
		b.set.valid = COOP_ST_SET_SIZE;
		b.set.size = size;
		return ask(COOP_ST_SETATTR, b);
	}
	int allocate()
	{
		coop_st_body b = on(file, 1);
		b.length = 1 << 20;
		return ask(COOP_ST_FALLOCATE, b);
	}

	const entry file;

private:
	std::uint64_t cookie_ = 0;
};

constexpr std::uint32_t both = COOP_ST_O_READ | COOP_ST_O_WRITE;

} // namespace

class daemon_locks_of_a_silent_client : public daemon_test
{
protected:
	using clock = coop::boot_clock;
	static constexpr std::chrono::milliseconds all{COOP_ST_SILENCE_MS};
	static constexpr std::chrono::seconds second{1};

	void serve(std::chrono::milliseconds silence = all)
	{
		settings_.silence = silence;
		put("f", "0123456789");
		up();
		file_ = find("f");
	}
	std::unique_ptr<holder> come(char session = 'h', std::uint64_t used = 0,
				     std::uint32_t run = COOP_ST_RUN_LAPSES)
	{
		return std::make_unique<holder>(port_, file_, session, used, run);
	}
	// One that holds the whole file.
	std::unique_ptr<holder> hold(std::uint32_t run = COOP_ST_RUN_LAPSES)
	{
		auto h = come('h', 0, run);
		EXPECT_EQ(h->open(file_, 1, both), 0);
		EXPECT_TRUE(h->locks(range(wr)));
		return h;
	}
	std::unique_ptr<holder> want()
	{
		auto w = come('w');
		EXPECT_EQ(w->open(file_, 1, both), 0);
		return w;
	}
	std::shared_ptr<coop::daemon::session> session_of(char c)
	{
		std::string id(COOP_ST_SESSION, 0);
		id[0] = c;
		bool fresh;
		std::shared_ptr<coop::daemon::session> s;
		EXPECT_EQ(server_->attach(id, *server_->files().find_export("data"), fresh, s), 0);
		server_->detach(s, false);
		return s;
	}
	// The client's process ends, and its latest input was 'ago'. Returns the id of its latest
	// request.
	std::uint64_t ends(std::unique_ptr<holder> h, clock::duration ago, char session = 'h')
	{
		const std::uint64_t used = h->used();
		const std::size_t before = connections();
		h.reset();
		EXPECT_TRUE(eventually([&] { return connections() < before; }));
		const auto s = session_of(session);
		EXPECT_TRUE(eventually([&] { return !s->attached; }));
		s->hears(clock::now() - ago);
		return used;
	}
	std::size_t connections()
	{
		const std::string text = server_->stats_text(), key = "\nconnections ";
		return std::stoul(text.substr(text.find(key) + key.size()));
	}
	bool stats_say(const std::string &line)
	{
		return server_->stats_text().find("\n" + line + "\n") != std::string::npos;
	}

	entry file_;
};

TEST_F(daemon_locks_of_a_silent_client, are_kept_for_as_long_as_it_may_rely_on_them)
{
	serve();
	auto h = hold(), w = want();
	const std::uint64_t used = ends(std::move(h), all - second);
	EXPECT_EQ(w->lock(range(wr)), 0);
	EXPECT_EQ(w->got.flags, COOP_ST_LOCK_CONFLICT + 0u);
	EXPECT_EQ(w->test(range(wr)), wr);
	const auto back = come('h', used);
	EXPECT_FALSE(back->forgotten());
	EXPECT_EQ(back->cut_to(5), 0);
	EXPECT_EQ(w->lock(range(wr)), 0);
	EXPECT_EQ(w->got.flags, COOP_ST_LOCK_CONFLICT + 0u);
}

TEST_F(daemon_locks_of_a_silent_client, go_to_the_first_who_asks_after_that)
{
	serve();
	auto h = hold(), w = want();
	EXPECT_TRUE(h->locks(whole(rd)));
	ends(std::move(h), all);
	EXPECT_EQ(w->test(range(rd)), COOP_ST_LOCK_NONE + 0u);
	EXPECT_TRUE(stats_say("locks 2")) << "a test takes nothing away";
	EXPECT_TRUE(w->locks(range(rd, 3, 4)));
	EXPECT_TRUE(stats_say("locks 1")) << "all of them end with the first";
	EXPECT_TRUE(w->locks(whole(wr)));
}

// Nobody asks a second time.
TEST_F(daemon_locks_of_a_silent_client, go_to_one_that_waits_at_the_end_of_the_time)
{
	constexpr std::chrono::milliseconds silence{700};
	serve(silence);
	auto h = hold(), w = want();
	const auto heard = clock::now();
	w->lock(range(wr), COOP_ST_L_WAIT);
	EXPECT_EQ(w->got.flags, COOP_ST_LOCK_QUEUED + 0u);
	ends(std::move(h), {});
	EXPECT_TRUE(eventually([&] { return stats_say("lock_waiters 0"); }));
	EXPECT_GE(clock::now() - heard, silence);
	EXPECT_TRUE(stats_say("locks 1"));
	EXPECT_TRUE(eventually([&] {
		EXPECT_EQ(w->ask(COOP_ST_PING, {}), 0);
		return w->count(COOP_ST_LOCK_GRANTED) == 1;
	}));
}

TEST_F(daemon_locks_of_a_silent_client, are_there_when_it_comes_back_if_nobody_wanted_them)
{
	constexpr std::chrono::milliseconds silence{700};
	put("g", "");
	serve(silence);
	const entry g = find("g");
	const auto holder_of_g = [&](char session) {
		auto one = std::make_unique<holder>(port_, g, session);
		EXPECT_EQ(one->open(g, 1, both), 0);
		return one;
	};
	auto h = hold(), wanted = holder_of_g('x'), waits = holder_of_g('y');
	EXPECT_TRUE(wanted->locks(range(wr)));
	waits->lock(range(wr), COOP_ST_L_WAIT);
	EXPECT_EQ(waits->got.flags, COOP_ST_LOCK_QUEUED + 0u);
	const std::uint64_t used = ends(std::move(h), 4 * silence);
	ends(std::move(wanted), {}, 'x');
	// Silent clients end in the order of their ids.
	EXPECT_TRUE(eventually([&] { return stats_say("lock_waiters 0"); }));
	EXPECT_TRUE(stats_say("locks 2")) << "one was wanted";
	const auto back = come('h', used);
	EXPECT_FALSE(back->forgotten());
	const auto w = want();
	EXPECT_EQ(w->lock(range(wr)), 0);
	EXPECT_EQ(w->got.flags, COOP_ST_LOCK_CONFLICT + 0u);
}

// A client that does not say that it stops relying on its locks may go on doing so.
TEST_F(daemon_locks_of_a_silent_client, stay_if_it_made_no_promise)
{
	serve();
	auto h = hold(0), w = want();
	ends(std::move(h), 4 * all);
	EXPECT_EQ(w->lock(range(wr)), 0);
	EXPECT_EQ(w->got.flags, COOP_ST_LOCK_CONFLICT + 0u);
}

// What it sends from before it was cut off must not land under the lock of another.
TEST_F(daemon_locks_of_a_silent_client, are_lost_to_it_with_what_it_had_open)
{
	serve();
	auto h = hold(), w = want();
	const std::uint64_t used = ends(std::move(h), all + second);
	EXPECT_TRUE(w->locks(range(wr)));
	auto back = come('h', used);
	EXPECT_TRUE(back->forgotten());
	EXPECT_EQ(back->cut_to(5), EBADF);
	EXPECT_EQ(back->allocate(), EBADF);
	EXPECT_EQ(back->lock(range(rd)), EBADF);
	EXPECT_EQ(disk("f"), "0123456789");
	back = come('h', back->used());
	EXPECT_FALSE(back->forgotten()) << "it made other requests than those that restore";
}

TEST_F(daemon_locks_of_a_silent_client, are_refused_to_it_when_it_asks_for_them_again)
{
	serve();
	auto h = hold(), w = want();
	const std::uint64_t used = ends(std::move(h), all + second);
	EXPECT_TRUE(w->locks(range(wr)));
	EXPECT_EQ(w->close(file_, 1), 0) << "they are free, but others may have written";
	auto back = come('h', used);
	ASSERT_TRUE(back->forgotten());
	EXPECT_EQ(back->open(file_, 1, COOP_ST_O_READ | COOP_ST_O_AGAIN), EEXIST) << "another";
	EXPECT_EQ(back->open(file_, 1, both | COOP_ST_O_AGAIN), 0);
	EXPECT_EQ(back->lock(range(wr), COOP_ST_L_RECLAIM), ESTALE);
	back = come('h', back->used());
	ASSERT_TRUE(back->forgotten()) << "until it has restored all";
	EXPECT_EQ(back->ask(COOP_ST_RECLAIMED, {}), 0);
	EXPECT_EQ(back->cut_to(5), 0) << "a client that goes on without its lock may write";
}

// The file has no name, so it lives only as long as it is open.
TEST_F(daemon_locks_of_a_silent_client, do_not_take_its_open_files_with_them)
{
	serve();
	auto h = hold(), w = want();
	EXPECT_EQ(client_->unlink(me(), client_->root().fh, "f"), 0);
	const std::uint64_t used = ends(std::move(h), all + second);
	EXPECT_TRUE(w->locks(range(wr)));
	EXPECT_EQ(w->close(file_, 1), 0);
	w.reset();
	const auto back = come('h', used);
	EXPECT_EQ(back->open(file_, 1, both | COOP_ST_O_AGAIN), 0);
	EXPECT_EQ(back->cut_to(5), 0);
	EXPECT_EQ(back->close(file_, 1), 0);
	EXPECT_TRUE(eventually([&] { return stats_say("opens 0"); }));
}

// The daemon keeps replies for a client that did not get them. That it holds a lock is no longer
// true, that it has a file open is.
TEST_F(daemon_locks_of_a_silent_client, are_not_in_the_reply_to_a_request_that_is_repeated)
{
	serve();
	auto h = hold(), w = want();
	const std::uint64_t locked = h->used();
	EXPECT_EQ(h->open(file_, 2, both), 0);
	const std::uint64_t opened = h->used();
	ends(std::move(h), all + second);
	EXPECT_TRUE(w->locks(range(wr)));
	const auto back = come('h', opened);
	EXPECT_EQ(back->open(file_, 1, both | COOP_ST_O_AGAIN), 0);
	const std::uint64_t restored = back->used();
	back->flags = COOP_ST_F_REPEAT;
	back->number(opened);
	EXPECT_EQ(back->open(file_, 2, both), 0);
	back->number(locked);
	EXPECT_EQ(back->lock(range(wr)), 0);
	EXPECT_EQ(back->got.flags, COOP_ST_LOCK_CONFLICT + 0u);
	back->number(restored + 1);
	back->flags = 0;
	EXPECT_EQ(back->lock(range(rd, 4711, 4711), 0, 2), 0) << "it is open";
}

// A daemon that begins anew does not let it take them back from the next holder.
TEST_F(daemon_locks_of_a_silent_client, are_lost_to_it_after_a_restart_too)
{
	serve();
	auto h = hold(), w = want();
	std::uint64_t used = ends(std::move(h), all + second);
	EXPECT_TRUE(w->locks(range(wr)));
	const std::uint64_t used_w = w->used();
	restart();
	const auto back = come('h', used);
	ASSERT_TRUE(back->forgotten());
	EXPECT_EQ(back->open(file_, 1, both | COOP_ST_O_AGAIN), 0);
	EXPECT_EQ(back->lock(range(wr), COOP_ST_L_RECLAIM), ESTALE);
	const auto again = come('w', used_w);
	EXPECT_EQ(again->open(file_, 1, both | COOP_ST_O_AGAIN), 0);
	EXPECT_TRUE(again->locks(range(wr), COOP_ST_L_RECLAIM));
}

// Its machine still acknowledges what the daemon sends: it is stopped, not gone.
TEST_F(daemon_locks_of_a_silent_client, go_although_its_connection_stands)
{
	serve(std::chrono::milliseconds(700));
	auto h = hold(), w = want();
	w->lock(range(wr), COOP_ST_L_WAIT);
	EXPECT_EQ(w->got.flags, COOP_ST_LOCK_QUEUED + 0u);
	// This one says something in time.
	EXPECT_TRUE(eventually([&] {
		EXPECT_EQ(w->ask(COOP_ST_PING, {}), 0);
		return w->count(COOP_ST_LOCK_GRANTED) == 1;
	}));
	EXPECT_EQ(h->cut_to(5), -1) << "its connection has ended";
	EXPECT_EQ(disk("f"), "0123456789");
	EXPECT_EQ(come('h', h->used())->cut_to(5), EBADF);
}

TEST_F(daemon_locks_of_a_silent_client, are_why_its_connection_ends)
{
	serve(std::chrono::milliseconds(300));
	const auto h = hold(), without = come('n');
	const auto s = session_of('n');
	EXPECT_TRUE(eventually([&] {
		s->hears(clock::now() - all);
		return session_of('h')->attached == 0;
	}));
	EXPECT_EQ(without->ask(COOP_ST_PING, {}), 0);
}
