// SPDX-License-Identifier: MIT
// unsaid_opens.cpp - storage is told of a close if it may have the file open.
#include "userland/client/unsaid_opens.hpp"

#include <chrono>
#include <deque>
#include <fcntl.h>
#include <gtest/gtest.h>

#include "storage_stub.hpp"

using namespace client_test;

namespace
{

// Answers reports when the test says so.
class slow_storage : public storage_stub
{
public:
	std::uint64_t new_open_id() override { return ++last_; }
	void open_as(std::uint64_t, const caller &, const handle &, int how,
		     std::function<void(int)> done) override
	{
		flags = how;
		reports.push_back(std::move(done));
	}
	void close_reader(const handle &, std::uint64_t open_id) override
	{
		closed.push_back(open_id);
	}

	std::deque<std::function<void(int)>> reports;
	int flags = 0; // of the last report
	std::vector<std::uint64_t> closed;

private:
	std::uint64_t last_ = 0;
};

class client_unsaid_opens : public testing::Test
{
protected:
	using ids = std::vector<std::uint64_t>;

	void SetUp() override
	{
		opens.start(storage);
		id = opens.add("f", {1, 1, {}}, 0);
	}
	void report()
	{
		opens.tell(id, [this](int err) { told = err; });
		ASSERT_EQ(storage.reports.size(), 1u);
	}
	void answer(int err)
	{
		const auto done = std::move(storage.reports.front());
		storage.reports.pop_front();
		done(err);
		EXPECT_EQ(told, err);
	}

	lease_book book;
	slow_storage storage;
	unsaid_opens opens{book};
	std::uint64_t id = 0;
	int told = 1;
};

} // namespace

// Meanwhile its name may have come to mean another file.
TEST_F(client_unsaid_opens, a_report_does_not_ask_for_the_name)
{
	id = opens.add("f", {1, 1, {}}, O_RDONLY | storage::open_named);
	report();
	EXPECT_EQ(storage.flags, O_RDONLY);
	answer(0);
}

TEST_F(client_unsaid_opens, what_storage_has_not_opened_is_not_closed)
{
	opens.close("f", id);
	id = opens.add("f", {1, 1, {}}, 0);
	report();
	answer(-EMFILE);
	opens.close("f", id);
	id = opens.add("f", {1, 1, {}}, 0);
	report();
	answer(-EACCES);
	EXPECT_TRUE(opens.unsaid(id));
	opens.close("f", id);
	EXPECT_FALSE(opens.unsaid(id));
	EXPECT_EQ(storage.closed, ids{});
}

TEST_F(client_unsaid_opens, what_storage_has_opened_is_closed)
{
	report();
	answer(0);
	EXPECT_FALSE(opens.unsaid(id));
	opens.close("f", id);
	EXPECT_EQ(storage.closed, ids{id});
}

TEST_F(client_unsaid_opens, a_close_waits_for_the_answer)
{
	report();
	opens.close("f", id);
	EXPECT_EQ(storage.closed, ids{});
	answer(0);
	EXPECT_EQ(storage.closed, ids{id});
}

// Storage may have opened the file, and keeps it open until the session ends.
TEST_F(client_unsaid_opens, a_file_is_closed_whose_report_was_given_up)
{
	report();
	answer(-ETIMEDOUT);
	EXPECT_TRUE(opens.unsaid(id)) << "it is reported again";
	opens.close("f", id);
	EXPECT_FALSE(opens.unsaid(id));
	EXPECT_EQ(storage.closed, ids{id});
}

TEST_F(client_unsaid_opens, a_file_is_closed_whose_report_was_given_up_after_the_close)
{
	report();
	opens.close("f", id);
	answer(-ETIMEDOUT);
	EXPECT_EQ(storage.closed, ids{id});
}

// Storage that lacks descriptors is not asked again for each message that comes.
TEST_F(client_unsaid_opens, a_report_that_failed_is_repeated_after_a_pause)
{
	const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
	while (storage.reports.empty() && std::chrono::steady_clock::now() < end)
		opens.tell_old();
	told = -ENFILE; // nobody waits for it
	answer(-ENFILE);
	opens.tell_old();
	EXPECT_TRUE(storage.reports.empty());
	while (storage.reports.empty() && std::chrono::steady_clock::now() < end)
		opens.tell_old();
	EXPECT_FALSE(storage.reports.empty());
}

TEST_F(client_unsaid_opens, a_later_answer_does_not_say_what_became_of_a_report)
{
	report();
	answer(-ETIMEDOUT);
	report();
	answer(-EMFILE);
	EXPECT_EQ(storage.closed, ids{});
	report();
	answer(-EACCES);
	EXPECT_EQ(storage.closed, ids{id});
	opens.close("f", id);
	EXPECT_EQ(storage.closed, ids{id});
}
