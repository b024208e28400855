// SPDX-License-Identifier: MIT
// inode_numbers.cpp - the numbers of files, during and after the kernel's use of them.
#include "userland/client/inode_numbers.hpp"

#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "userland/client/inode.hpp"

namespace
{

using namespace coop::client;

struct client_inode_numbers : ::testing::Test {
	static coop_fid fid(std::uint64_t n) { return {n, n}; }
	std::unique_ptr<inode> known(std::uint64_t n)
	{
		entry e{};
		e.fh = "handle of " + std::to_string(n);
		e.attr.fid = fid(n);
		auto node = std::make_unique<inode>(e, ids.claim(e.attr.fid));
		ids.enter(node->id, *node);
		return node;
	}
	std::uint64_t forgotten(std::uint64_t n)
	{
		auto node = known(n);
		ids.forget(node->id, {node->fid, node->fh});
		return node->id;
	}
	inode_numbers ids{3};
};

TEST_F(client_inode_numbers, a_file_is_found_while_the_kernel_refers_to_it)
{
	auto a = known(1), b = known(2);
	EXPECT_NE(a->id, b->id);
	EXPECT_GE(a->id, inode_numbers::first);
	EXPECT_EQ(ids.find(a->id), a.get());
	EXPECT_EQ(ids.find(b->id), b.get());
	EXPECT_EQ(ids.find(1), nullptr);
	ids.forget(a->id, {a->fid, a->fh});
	EXPECT_EQ(ids.find(a->id), nullptr);
	EXPECT_EQ(ids.find(b->id), b.get());
}

TEST_F(client_inode_numbers, a_forgotten_file_keeps_its_number)
{
	const std::uint64_t id = forgotten(1);
	ASSERT_TRUE(ids.forgotten_file(id));
	EXPECT_EQ(ids.forgotten_file(id)->fh, "handle of 1");
	EXPECT_EQ(ids.forgotten_file(id)->fid.lo, 1u);
	auto again = known(1);
	EXPECT_EQ(again->id, id);
	EXPECT_EQ(ids.find(id), again.get());
	EXPECT_EQ(ids.forgotten_files(), 0u) << "the file is known again";
}

TEST_F(client_inode_numbers, the_oldest_make_room)
{
	const std::uint64_t one = forgotten(1), two = forgotten(2), three = forgotten(3);
	EXPECT_EQ(forgotten(1), one) << "it is now the youngest";
	const std::uint64_t four = forgotten(4);
	EXPECT_EQ(ids.forgotten_files(), 3u);
	EXPECT_FALSE(ids.forgotten_file(two));
	for (const std::uint64_t id : {one, three, four})
		EXPECT_TRUE(ids.forgotten_file(id));
}

TEST_F(client_inode_numbers, no_number_is_given_to_a_second_file)
{
	std::set<std::uint64_t> numbers;
	for (std::uint64_t n = 1; n <= 100; n++)
		EXPECT_TRUE(numbers.insert(forgotten(n)).second);
	EXPECT_TRUE(numbers.insert(known(1)->id).second) << "the node does not remember its number";
}

TEST(client_inode_numbers_of_two_mounts, have_nothing_in_common)
{
	inode_numbers a, b;
	EXPECT_NE(a.claim({1, 1}), b.claim({1, 1}));
}

} // namespace
