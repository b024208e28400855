// SPDX-License-Identifier: MIT
// locks_silent_client.cpp - a client that holds a lock, and is cut off from the daemon for longer
// than the daemon waits for it.
#include "relay.hpp"

using namespace rig;

namespace
{

constexpr coop_st_lock all{1, 0, ~0ull, COOP_ST_LOCK_FLOCK, COOP_ST_LOCK_WRITE, 1};

} // namespace

// client_ is connected to the daemon, far_ through a wire that the test can break.
class daemon_locks_silent_client : public daemon_test
{
protected:
	void SetUp() override
	{
		daemon_test::SetUp();
		settings_.silence = silence;
		put("f", "0123456789");
		put("g", "0123456789");
		up();
		wire_ = std::make_unique<relay>(port_);
		storage_options o = client_options();
		o.port = wire_->port;
		o.trust = trust;
		o.on_locks_in_doubt =
			[this](const std::function<bool(const std::string &)> &locked) {
				if (locked(f_.fh) && !locked(g_.fh))
					doubts_++;
			};
		o.on_lock_lost = [this](const std::string &fh) { losses_ += fh == f_.fh; };
		f_ = find("f");
		g_ = find("g");
		far_ = storage::connect(o);
		for (std::uint64_t *id : {&mine_, &other_}) {
			open_result r{};
			EXPECT_EQ(far_->open(me(), f_.fh, O_RDWR, 0, r), 0);
			*id = r.open_id;
		}
		near_ = open(f_, O_RDWR).open_id;
		EXPECT_EQ(lock(*far_, mine_), 0);
	}
	void TearDown() override
	{
		far_.reset();
		wire_.reset();
		daemon_test::TearDown();
	}
	int lock(storage &s, std::uint64_t open_id)
	{
		std::uint64_t cookie;
		return s.lock(f_.fh, open_id, all, false, nullptr, cookie);
	}
	unsigned long pings()
	{
		const std::string text = server_->stats_text(), key = "\ncalls ping ";
		const std::size_t at = text.find(key);
		return at == text.npos ? 0 : std::stoul(text.substr(at + key.size()));
	}

	static constexpr std::chrono::milliseconds trust{1200}, silence{2400};
	entry f_, g_;
	std::uint64_t mine_ = 0, other_ = 0, near_ = 0;
	std::atomic<unsigned> doubts_{0}, losses_{0};
	std::unique_ptr<relay> wire_;
	std::unique_ptr<storage> far_;
};

TEST_F(daemon_locks_silent_client, that_holds_one_speaks_and_keeps_it)
{
	// More of them than fit into the time for which the daemon waits.
	EXPECT_TRUE(eventually([&] { return pings() >= 6; }));
	EXPECT_EQ(lock(*client_, near_), -EAGAIN);
	EXPECT_EQ(far_->vouch(f_.fh, mine_), 0);
	EXPECT_EQ(wire_->connections, 1u);
}

TEST_F(daemon_locks_silent_client, that_is_cut_off_doubts_its_locks_and_then_has_lost_them)
{
	wire_->deaf = true; // both ends of the connection stand
	EXPECT_TRUE(eventually([&] { return lock(*client_, near_) == 0; }));
	EXPECT_GT(doubts_, 0u) << "it stopped relying on them before that";
	EXPECT_EQ(losses_, 0u);
	write_result out;
	EXPECT_EQ(write_text(*client_, f_, near_, 0, "next", out), 0);
	wire_->deaf = false;
	EXPECT_EQ(far_->vouch(f_.fh, mine_), -EBADF);
	EXPECT_EQ(losses_, 1u);
	EXPECT_EQ(far_->vouch(f_.fh, other_), 0);
	EXPECT_EQ(write_text(*far_, f_, mine_, 0, "late", out), -EBADF);
	EXPECT_EQ(lock(*far_, other_), -EAGAIN);
	EXPECT_EQ(disk("f"), "next456789");
	EXPECT_EQ(write_text(*far_, f_, other_, 4, "too", out), 0) << "it was opened again";
	EXPECT_EQ(far_->close(f_.fh, mine_, out), 0);
}

// What it sends from before arrives after the next holder has the lock.
TEST_F(daemon_locks_silent_client, that_is_cut_off_in_a_write_does_not_write)
{
	wire_->deaf = true;
	std::atomic<int> wrote{1};
	std::thread writer([&] {
		write_result out;
		wrote = write_text(*far_, f_, mine_, 0, "late", out);
	});
	EXPECT_TRUE(eventually([&] { return lock(*client_, near_) == 0; }));
	EXPECT_EQ(wrote, 1);
	wire_->deaf = false;
	writer.join();
	EXPECT_EQ(wrote, -EBADF);
	EXPECT_EQ(disk("f"), "0123456789");
}

TEST_F(daemon_locks_silent_client, that_is_cut_off_keeps_what_nobody_wants)
{
	wire_->closed = true;
	wire_->cut = true;
	EXPECT_TRUE(eventually([&] { return doubts_ > 0; }));
	wire_->closed = false;
	EXPECT_EQ(far_->vouch(f_.fh, mine_), 0) << "the daemon has answered";
	EXPECT_EQ(losses_, 0u);
	EXPECT_EQ(lock(*client_, near_), -EAGAIN);
}
