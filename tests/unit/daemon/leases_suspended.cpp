// SPDX-License-Identifier: MIT
// leases_suspended.cpp - a lease grows old while the machine is suspended.
//
// In suspend CLOCK_BOOTTIME goes on and CLOCK_MONOTONIC stands still. This program's
// clock_gettime() shows its client and daemon such a machine.
#include "rig.hpp"

#include <sys/syscall.h>
#include <thread>

#include "userland/client/leased_storage.hpp"

using namespace rig;

namespace
{
std::atomic<std::int64_t> asleep_s{0};

std::string count_of(const std::string &stats, const std::string &name)
{
	std::string line;
	for (std::istringstream in(stats); std::getline(in, line);)
		if (line.starts_with(name + " "))
			return line.substr(name.size() + 1);
	return "0";
}
} // namespace

extern "C" int clock_gettime(clockid_t id, timespec *t) noexcept
{
	const auto err = static_cast<int>(::syscall(SYS_clock_gettime, id, t));
	if (!err && id == CLOCK_BOOTTIME)
		t->tv_sec += asleep_s;
	return err;
}

class daemon_leases_of_a_suspended_machine : public daemon_test
{
protected:
	std::string stat(const std::string &name) { return count_of(server_->stats_text(), name); }
	void TearDown() override
	{
		daemon_test::TearDown();
		asleep_s = 0;
	}
};

TEST_F(daemon_leases_of_a_suspended_machine, are_not_trusted_without_a_word)
{
	put("f", "0123456789");
	start();
	storage_options o = client_options();
	o.leases = true;
	const auto a = coop::client::connect_with_leases(o);
	entry f;
	attributes attr;
	ASSERT_EQ(a->lookup(me(), a->root().fh, "f", f), 0);
	ASSERT_EQ(a->ping(), 0);
	ASSERT_EQ(a->getattr(me(), f.fh, attr), 0);
	const std::string asked = stat("calls getattr");
	const auto pings = std::stoi(stat("calls ping"));
	ASSERT_EQ(a->getattr(me(), f.fh, attr), 0);
	EXPECT_EQ(stat("calls getattr"), asked) << "the lease answers";
	ASSERT_EQ(stat("calls ping"), std::to_string(pings));

	asleep_s += 3600;
	ASSERT_EQ(a->getattr(me(), f.fh, attr), 0);
	EXPECT_EQ(stat("calls ping"), std::to_string(pings + 1))
		<< "the daemon may have ended the lease meanwhile";
}

// The client's machine measures its trust by the same time, so nobody need wait longer.
TEST_F(daemon_leases_of_a_suspended_machine, that_serves_end_in_time)
{
	put("f", "0123456789");
	start();
	storage_options o = client_options();
	o.leases = true;
	std::atomic<bool> told{false};
	o.on_recall = [&](const coop_fid &) { told = true; };
	const auto a = coop::client::connect_without_leases(o);
	client_ = connect();
	entry f;
	ASSERT_EQ(a->lookup(me(), a->root().fh, "f", f), 0);
	ASSERT_TRUE(f.attr.leased);
	std::thread changer([&] { EXPECT_EQ(client_->unlink(me(), client_->root().fh, "f"), 0); });
	EXPECT_TRUE(eventually([&] { return told.load(); }));
	asleep_s +=
		std::chrono::ceil<std::chrono::seconds>(coop::daemon::lease_answer_time).count();
	auto &table = server_->files().leases;
	table.expire();
	EXPECT_EQ(stat("leases_unanswered"), "1");
	changer.join();
}
