// SPDX-License-Identifier: MIT
// lanes.cpp - a file system that hangs keeps threads of its own export only, and the daemon goes on
// answering what touches no file.
#include "rig.hpp"

#include <future>
#include <thread>

using namespace rig;
using coop::daemon::event_loop;
using coop::daemon::lane;
using coop::daemon::lanes;
using namespace std::chrono_literals;

namespace
{

// Work that hangs until the test lets it go on.
class hang
{
public:
	~hang() { end(); }
	void operator()() const { over_.wait(); }
	void end()
	{
		if (!ended_)
			end_.set_value();
		ended_ = true;
	}

private:
	std::promise<void> end_;
	std::shared_future<void> over_ = end_.get_future().share();
	bool ended_ = false;
};

void fill(event_loop &loop, lane &l, const hang &h, unsigned times)
{
	for (unsigned i = 0; i < times; i++)
		loop.post([&l, &h] { l.run([&h] { h(); }); });
}

} // namespace

TEST(Lanes, WorkThatFindsNoRoomRunsLaterInOrder)
{
	hang h;
	std::mutex mutex;
	std::vector<int> ran;
	event_loop loop(lanes::threads(1));
	lanes all(loop, 1);
	lane &l = all.add("a");
	loop.start();
	fill(loop, l, h, 1);
	ASSERT_TRUE(eventually([&] { return l.look().working == 1; }));
	for (int i = 0; i < 5; i++)
		l.run([&, i] {
			std::lock_guard lock(mutex);
			ran.push_back(i);
		});
	EXPECT_EQ(l.waiting(), 5u);
	EXPECT_TRUE(ran.empty());
	h.end();
	EXPECT_TRUE(eventually([&] {
		std::lock_guard lock(mutex);
		return ran == std::vector{0, 1, 2, 3, 4};
	}));
	EXPECT_TRUE(eventually([&] { return l.look().working == 0; }));
	loop.stop();
}

TEST(Lanes, WhatIsForgottenDoesNotRun)
{
	hang h;
	std::atomic<int> ran{0};
	const int mine = 0, theirs = 0;
	event_loop loop(lanes::threads(1));
	lanes all(loop, 1);
	lane &l = all.add("a");
	loop.start();
	fill(loop, l, h, 1);
	ASSERT_TRUE(eventually([&] { return l.look().working == 1; }));
	l.wait([&] { ran += 1; }, &mine);
	l.wait([&] { ran += 10; }, &theirs);
	l.wait([&] { ran += 1; }, &mine);
	l.forget(&mine);
	EXPECT_EQ(l.waiting(), 1u);
	h.end();
	EXPECT_TRUE(eventually([&] { return ran == 10; }));
	loop.stop();
}

// A file whose changes hang leaves half of the lane to others.
TEST(Lanes, ChangesOfOneFileDoNotFillALane)
{
	hang h;
	std::atomic<int> ran{0};
	event_loop loop(lanes::threads(4));
	lanes all(loop, 4);
	lane &l = all.add("a");
	loop.start();
	const unsigned file = lane::file("one");
	for (int i = 0; i < 6; i++)
		l.wait([&] { h(); }, nullptr, file);
	EXPECT_EQ(l.look().working, 2u);
	l.wait([&] { ran++; }, nullptr, lane::no_file);
	EXPECT_TRUE(eventually([&] { return ran == 1; }));
	EXPECT_EQ(l.waiting(), 4u);
	h.end();
	EXPECT_TRUE(eventually([&] { return !l.waiting() && !l.look().working; }));
	loop.stop();
}

TEST(Lanes, OneExportMayHaveAllThreads)
{
	hang h;
	event_loop loop(lanes::threads(4));
	lanes all(loop, 4);
	lane &l = all.add("a");
	loop.start();
	fill(loop, l, h, 8);
	EXPECT_TRUE(eventually([&] { return l.look().working == 4; }));
	h.end();
	EXPECT_TRUE(eventually([&] { return !l.waiting() && !l.look().working; }));
	loop.stop();
}

// Two that hang have all threads that may be in lanes; the third gets others.
TEST(Lanes, ThreadsThatAreStuckAreReplaced)
{
	hang h;
	std::atomic<bool> ran{false};
	event_loop loop(lanes::threads(4));
	lanes all(loop, 4);
	lane &a = all.add("a"), &b = all.add("b"), &c = all.add("c");
	loop.start();
	fill(loop, a, h, 4);
	fill(loop, b, h, 4);
	ASSERT_TRUE(eventually([&] { return a.look().working == 2 && b.look().working == 2; }));
	c.run([&] { ran = true; });
	EXPECT_EQ(c.waiting(), 1u);
	const auto now = lane::clock::now();
	all.look(now);
	EXPECT_EQ(c.waiting(), 1u);
	all.look(now + lanes::stuck_time);
	EXPECT_TRUE(eventually([&] { return ran.load(); }));
	EXPECT_EQ(a.look().working, 2u);
	h.end();
	EXPECT_TRUE(eventually([&] { return !a.look().working && !b.look().working; }));
	loop.stop();
}

// As if the file system of the export "data" hung.
class daemon_lanes : public daemon_test
{
protected:
	void SetUp() override
	{
		daemon_test::SetUp();
		std::filesystem::create_directory(base_ / "good");
		std::ofstream(base_ / "good" / "f") << "good";
		put("f", "text");
		settings_.exports.push_back({"good", (base_ / "good").string()});
		start();
	}
	void TearDown() override
	{
		h_.end();
		daemon_test::TearDown();
	}
	std::unique_ptr<storage> of(const std::string &name)
	{
		storage_options o = client_options();
		o.export_name = name;
		return storage::connect(o);
	}
	void hang_up()
	{
		lane &l = server_->lane_of(*server_->files().find_export("data"));
		fill(server_->loop(), l, h_, 20);
		ASSERT_TRUE(eventually([&] { return l.look().working == 2; }));
	}

	hang h_;
};

TEST_F(daemon_lanes, an_export_that_hangs_does_not_stop_others)
{
	auto hung = of("/data"), good = of("/good");
	hang_up();
	std::vector<std::thread> waiting;
	for (int i = 0; i < 20; i++)
		waiting.emplace_back([&] {
			entry e;
			EXPECT_EQ(hung->lookup(me(), hung->root().fh, "f", e), 0);
		});
	entry e;
	EXPECT_EQ(good->lookup(me(), good->root().fh, "f", e), 0);
	EXPECT_EQ(of("/good")->lookup(me(), good->root().fh, "f", e), 0);
	const std::string stats = server_->stats_text();
	EXPECT_NE(stats.find("export_working data 2\n"), stats.npos);
	EXPECT_EQ(stats.find("export_waiting data 0\n"), stats.npos);
	h_.end();
	for (std::thread &t : waiting)
		t.join();
}

TEST_F(daemon_lanes, what_touches_no_file_is_answered)
{
	constexpr coop_st_lock all{1, 0, ~0ull, COOP_ST_LOCK_POSIX, COOP_ST_LOCK_WRITE, 1};
	const auto hung = of("/data");
	entry e;
	open_result o{};
	std::uint64_t cookie;
	ASSERT_EQ(hung->lookup(me(), hung->root().fh, "f", e), 0);
	ASSERT_EQ(hung->open(me(), e.fh, O_RDWR, 0, o), 0);
	ASSERT_EQ(hung->lock(e.fh, o.open_id, all, false, nullptr, cookie), 0);
	hang_up();
	EXPECT_EQ(hung->ping(), 0);
	EXPECT_EQ(hung->unlock(e.fh, all), 0);
	std::promise<void> returned;
	hung->return_lease({}, [&] { returned.set_value(); });
	EXPECT_EQ(returned.get_future().wait_for(deadline), std::future_status::ready);
}
