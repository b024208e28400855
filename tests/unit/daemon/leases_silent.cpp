// SPDX-License-Identifier: MIT
// leases_silent.cpp - how long a change waits for a client that holds a lease and says nothing.
#include "rig.hpp"

#include <thread>

#include "userland/daemon/session.hpp"

using namespace rig;

// A change of files of which a session, whose latest input came 'ago', holds leases.
class daemon_leases_of_a_silent_client : public daemon_test
{
protected:
	using clock = coop::boot_clock;
	bool stats_say(const std::string &line)
	{
		return server_->stats_text().find("\n" + line + "\n") != std::string::npos;
	}
	void hold(const std::vector<std::string> &names)
	{
		for (const std::string &name : names)
			put(name, name);
		who_->renew(
			[this](std::uint16_t op, const coop_st_body &b) {
				EXPECT_EQ(op, COOP_ST_LEASE_RECALL);
				recalls_.push_back(b.fid);
				return true;
			},
			[] {}, false);
		start();
		client_ = connect();
		auto &files = server_->files();
		for (const std::string &name : names) {
			const entry e = find(name);
			coop::daemon::inode_ref node;
			ASSERT_EQ(files.inodes.get(*files.find_export("data"), e.fh, node), 0);
			const auto lease = files.leases.grant(who_, node);
			ASSERT_NE(lease, 0u);
			ASSERT_TRUE(
				files.leases.tell(who_.get(), node->fid, lease,
						  {e.attr.st.st_ctim.tv_sec,
						   static_cast<u32>(e.attr.st.st_ctim.tv_nsec)}));
		}
	}
	void silent_for(clock::duration time) { who_->hears(clock::now() - time); }
	// Whether a change of the file may begin at once.
	bool may_change(const std::string &name)
	{
		auto &table = server_->files().leases;
		const coop::daemon::lease_table::extent what{{find(name).attr.fid}, {}};
		const auto other = std::make_shared<coop::daemon::session>("other");
		std::atomic<bool> goes{false};
		if (table.begin(other, what, 0, [&] { goes = true; }))
			goes = true;
		const bool at_once = goes;
		table.give_back_all(who_.get());
		table.end(what, false);
		return at_once;
	}
	int unlink(const std::string &name)
	{
		return client_->unlink(me(), client_->root().fh, name);
	}

	std::vector<coop_fid> recalls_;
	const std::shared_ptr<coop::daemon::session> who_ =
		std::make_shared<coop::daemon::session>("silent");
};

TEST_F(daemon_leases_of_a_silent_client, is_told_and_not_waited_for)
{
	hold({"f", "g"});
	silent_for(coop::daemon::lease_answer_time);
	EXPECT_TRUE(may_change("f"));
	EXPECT_EQ(recalls_.size(), 1u);
	EXPECT_TRUE(stats_say("leases_unanswered 1"));
}

// It waits for the rest of the time since the latest input, and not once more for the next file.
TEST_F(daemon_leases_of_a_silent_client, is_waited_for_once)
{
	const auto half = coop::daemon::lease_answer_time / 2;
	hold({"f", "g"});
	silent_for(half);
	std::thread changer([&] { EXPECT_EQ(unlink("f"), 0); });
	EXPECT_TRUE(eventually([&] { return stats_say("leases_recalled 1"); }));
	auto &table = server_->files().leases;
	table.expire(clock::now());
	EXPECT_TRUE(stats_say("leases_unanswered 0"));
	table.expire(clock::now() + half);
	changer.join();
	EXPECT_TRUE(stats_say("leases_unanswered 1"));
	silent_for(2 * half);
	EXPECT_TRUE(may_change("g"));
	EXPECT_TRUE(stats_say("leases_unanswered 2"));
}

// The recall of one file says nothing of the others: a client that goes on talking keeps them.
TEST_F(daemon_leases_of_a_silent_client, that_speaks_again_is_waited_for)
{
	hold({"f", "g"});
	silent_for(coop::daemon::lease_answer_time);
	who_->hears();
	EXPECT_FALSE(may_change("f"));
	EXPECT_TRUE(stats_say("leases_unanswered 0"));
}
