// SPDX-License-Identifier: MIT
// node_ids.cpp - the numbers of files, during and after the kernel's use of them.
#include "userland/client/node_ids.hpp"

#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "userland/client/inode.hpp"

namespace
{

using namespace coop::client;

struct client_node_ids : ::testing::Test {
	static coop_fid fid(std::uint64_t n) { return {n, n}; }
	std::unique_ptr<inode> known(std::uint64_t n)
	{
		entry e{};
		e.fh = "handle of " + std::to_string(n);
		e.attr.fid = fid(n);
		auto node = std::make_unique<inode>(e, ids.claim(e.attr.fid));
		ids.enter(*node);
		return node;
	}
	std::uint64_t forgotten(std::uint64_t n)
	{
		auto node = known(n);
		ids.forget(*node);
		return node->id;
	}
	node_ids ids{3};
};

TEST_F(client_node_ids, a_file_is_found_while_the_kernel_refers_to_it)
{
	auto a = known(1), b = known(2);
	EXPECT_NE(a->id, b->id);
	EXPECT_GE(a->id, node_ids::first);
	EXPECT_EQ(ids.find(a->id), a.get());
	EXPECT_EQ(ids.find(b->id), b.get());
	EXPECT_EQ(ids.find(1), nullptr);
	EXPECT_EQ(ids.identify(a->id)->fh, "handle of 1");
	ids.forget(*a);
	EXPECT_EQ(ids.find(a->id), nullptr);
	EXPECT_EQ(ids.find(b->id), b.get());
}

TEST_F(client_node_ids, a_forgotten_file_keeps_its_number)
{
	const std::uint64_t id = forgotten(1);
	ASSERT_TRUE(ids.identify(id));
	EXPECT_EQ(ids.identify(id)->fh, "handle of 1");
	EXPECT_EQ(ids.identify(id)->fid.lo, 1u);
	auto again = known(1);
	EXPECT_EQ(again->id, id);
	EXPECT_EQ(ids.find(id), again.get());
	EXPECT_EQ(ids.forgotten_files(), 0u) << "the file is known again";
}

TEST_F(client_node_ids, the_oldest_make_room)
{
	const std::uint64_t one = forgotten(1), two = forgotten(2), three = forgotten(3);
	EXPECT_EQ(forgotten(1), one) << "it is now the youngest";
	const std::uint64_t four = forgotten(4);
	EXPECT_EQ(ids.forgotten_files(), 3u);
	EXPECT_FALSE(ids.identify(two));
	for (const std::uint64_t id : {one, three, four})
		EXPECT_TRUE(ids.identify(id));
}

TEST_F(client_node_ids, no_number_is_given_to_a_second_file)
{
	std::set<std::uint64_t> numbers;
	for (std::uint64_t n = 1; n <= 100; n++)
		EXPECT_TRUE(numbers.insert(forgotten(n)).second);
	EXPECT_TRUE(numbers.insert(known(1)->id).second) << "the node does not remember its number";
}

TEST(client_node_ids_of_two_mounts, have_nothing_in_common)
{
	node_ids a, b;
	EXPECT_NE(a.claim({1, 1}), b.claim({1, 1}));
}

} // namespace
