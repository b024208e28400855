// SPDX-License-Identifier: MIT
// files_late.cpp - changes of a file whose callers were killed, and which happen later or never.
#include "files_rig.hpp"

namespace coop::client
{
namespace
{

class client_files_late : public client_files, public testing::WithParamInterface<const char *>
{
protected:
	int change()
	{
		const std::string_view which = GetParam();
		files::open_answer a;
		attributes attr;
		char byte = 0;
		iovec v{&byte, 1};
		if (which == "write")
			return f.write(*writer, false, 0, {&v, 1}, 1, drop);
		if (which == "cut")
			return f.setattr(who, *node, {storage::set_size, 0, 0, 0, 5, {}, {}}, attr);
		return f.open(who, *node, O_RDWR | O_TRUNC, a);
	}
	void give_up()
	{
		writer = writer_of_a_cached_file();
		s.leave = true;
		EXPECT_EQ(change(), -EINTR);
		s.leave = false;
		ASSERT_EQ(s.late_ones.size(), 1u);
		s.wait = std::chrono::milliseconds(1);
	}
	std::unique_ptr<open_file> writer;
};

TEST_P(client_files_late, keeps_its_turn_until_it_has_happened)
{
	give_up();
	EXPECT_EQ(change(), -ETIMEDOUT);
	EXPECT_EQ(node->version, 10u);
	write_result r;
	s.change(r, 5);
	s.late_ones[0](0, r);
	EXPECT_EQ(node->version, 11u);
	EXPECT_EQ(node->size, 5u);
	EXPECT_GT(stale, 0u);
	EXPECT_EQ(change(), -ETIMEDOUT) << "the connection's thread still holds the turn";
	s.late_ones.clear();
	EXPECT_EQ(change(), 0);
	open();
	EXPECT_EQ(kept, GetParam() == std::string_view("empty")) << "that truncates all pages";
}

TEST_P(client_files_late, that_never_happened_leaves_nothing)
{
	give_up();
	s.late_ones[0](-ESHUTDOWN, {});
	s.late_ones.clear();
	EXPECT_EQ(node->version, 10u);
	EXPECT_EQ(stale, 0u);
	EXPECT_EQ(change(), 0);
}

TEST_P(client_files_late, who_waits_for_its_turn_can_be_killed)
{
	struct killed : asker {
		bool gone() override { return true; }
	};
	give_up();
	s.wait = {};
	{
		killed me;
		EXPECT_EQ(change(), -EINTR);
	}
	s.late_ones.clear();
	EXPECT_EQ(change(), 0);
}

TEST_P(client_files_late, is_before_those_of_who_looks_the_file_up_anew)
{
	give_up();
	table.forget(node, 1);
	EXPECT_EQ(table.ref(s.file), node);
	EXPECT_EQ(change(), -ETIMEDOUT);
	table.forget(node, 1);
	write_result r;
	s.change(r, 5);
	s.late_ones[0](0, r);
	EXPECT_EQ(table.count().held, 1u);
	s.late_ones.clear();
	EXPECT_EQ(table.count().held, 0u);
}

INSTANTIATE_TEST_SUITE_P(changes, client_files_late, testing::Values("write", "cut", "empty"),
			 [](const auto &p) { return std::string(p.param); });

} // namespace
} // namespace coop::client
