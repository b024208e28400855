// SPDX-License-Identifier: MIT
// leases.cpp - which replies the lease book believes when they arrive in any order, along with
// recalls and our own changes.
#include <gtest/gtest.h>

#include "userland/client/lease_book.hpp"
#include "userland/client/lease_returns.hpp"

using namespace coop::client;
using right = lease_book::right;
using found = lease_book::found;

namespace
{

const caller me{1000, 1000, {5, 6}};

attributes file(std::uint64_t number, std::uint64_t version = 1)
{
	attributes a{};
	a.fid = {0, number};
	a.version = version;
	a.st.st_mode = S_IFREG | 0644;
	a.leased = true;
	return a;
}

attributes directory(std::uint64_t number)
{
	attributes a = file(number);
	a.st.st_mode = S_IFDIR | 0755;
	return a;
}

dir_entry listed(const std::string &name, std::uint64_t cookie, std::uint64_t number)
{
	return {name, cookie, {"h" + name, file(number)}};
}

} // namespace

TEST(client_leases, a_reply_from_before_the_recall_is_not_believed)
{
	lease_book book;
	attributes a;
	const auto asked = book.now();
	EXPECT_FALSE(book.recalled({0, 1}));
	book.returned({0, 1});
	book.learned(asked, "f", file(1));
	EXPECT_FALSE(book.attributes_of("f", a));
	book.learned(book.now(), "f", file(1));
	EXPECT_TRUE(book.attributes_of("f", a));
	EXPECT_EQ(book.recalled({0, 1}), "f");
	EXPECT_FALSE(book.attributes_of("f", a));
	// The daemon may execute the return after a request sent later.
	book.learned(book.now(), "f", file(1));
	EXPECT_FALSE(book.attributes_of("f", a));
	book.returned({0, 1});
	book.learned(book.now(), "f", file(1));
	EXPECT_TRUE(book.attributes_of("f", a));
}

// The daemon reports no change from before the lease, so a reply to an earlier request may be
// older than the lease, even if it arrives later.
TEST(client_leases, what_was_asked_for_before_the_lease_proves_nothing)
{
	lease_book book;
	attributes a;
	entry e;
	std::string target;
	std::vector<dir_entry> entries;
	bool end = false;
	const auto early = book.now();
	book.learned(book.now(), "d", directory(1));
	book.learned(book.now(), "l", file(2));
	book.allowed(early, "d", me, right::search);
	EXPECT_FALSE(book.may("d", me, right::search));
	book.allowed(book.now(), "d", me, right::search);
	book.allowed(book.now(), "d", me, right::list);
	EXPECT_TRUE(book.may("d", me, right::search));
	book.absent(early, "d", "x");
	EXPECT_EQ(book.lookup("d", "x", me, e), found::unknown);
	book.listed(early, "d", 0, {}, true);
	EXPECT_FALSE(book.list("d", me, 0, 4096, entries, end));
	EXPECT_EQ(book.lookup("d", "y", me, e), found::unknown);
	book.points_at(early, "l", "old");
	EXPECT_FALSE(book.target_of("l", target));
	// Another reply that reports the existing lease changes nothing.
	const auto within = book.now();
	book.learned(book.now(), "d", directory(1));
	book.absent(within, "d", "x");
	EXPECT_EQ(book.lookup("d", "x", me, e), found::absent);
}

// The daemon ended the lease without a recall, possibly after it answered a request sent later.
TEST(client_leases, a_reply_that_tells_of_no_lease_ends_it)
{
	lease_book book;
	attributes a, none = file(1);
	none.leased = false;
	const auto early = book.now();
	book.learned(book.now(), "f", file(1));
	book.learned(book.now(), "f", none);
	EXPECT_FALSE(book.attributes_of("f", a));
	book.learned(book.now(), "f", file(1));
	EXPECT_TRUE(book.attributes_of("f", a));
	book.learned(early, "f", none);
	EXPECT_FALSE(book.attributes_of("f", a));
	book.learned(book.now(), "f", file(1));
	EXPECT_TRUE(book.attributes_of("f", a));
}

TEST(client_leases, nothing_is_known_of_what_we_are_changing)
{
	lease_book book;
	attributes a;
	book.learned(book.now(), "f", file(1, 1));
	const auto before = book.now();
	book.begin_change("f", false);
	EXPECT_FALSE(book.attributes_of("f", a));
	const auto during = book.now();
	book.learned(during, "f", file(1, 1));
	EXPECT_FALSE(book.attributes_of("f", a));
	book.end_change("f", false);
	book.learned(before, "f", file(1, 1));
	book.learned(during, "f", file(1, 1));
	EXPECT_FALSE(book.attributes_of("f", a)) << "may be from before the change";
	book.learned(book.now(), "f", file(1, 2));
	ASSERT_TRUE(book.attributes_of("f", a));
	EXPECT_EQ(a.version, 2u);
}

TEST(client_leases, the_reply_to_a_change_is_known_unless_more_has_happened)
{
	lease_book book;
	attributes a;
	book.learned(book.now(), "f", file(1, 1));
	book.begin_change("f", false);
	auto begun = book.now();
	book.end_change("f", begun, file(1, 2));
	ASSERT_TRUE(book.attributes_of("f", a));
	EXPECT_EQ(a.version, 2u);

	book.begin_change("f", false);
	begun = book.now();
	book.begin_change("f", false);
	book.end_change("f", false); // another change, possibly the later one
	book.end_change("f", begun, file(1, 3));
	EXPECT_FALSE(book.attributes_of("f", a));

	book.learned(book.now(), "f", file(1, 4));
	book.begin_change("f", false);
	begun = book.now();
	book.recalled({0, 1});
	book.end_change("f", begun, file(1, 5));
	EXPECT_FALSE(book.attributes_of("f", a));
}

TEST(client_leases, a_directory_that_was_read_whole_has_no_other_names)
{
	lease_book book;
	entry e;
	book.learned(book.now(), "d", directory(1));
	auto asked = book.now();
	book.allowed(asked, "d", me, right::search);
	book.allowed(asked, "d", me, right::list);
	book.learned(asked, "ha", file(2));
	book.learned(asked, "hb", file(3));
	book.listed(asked, "d", 0, {listed("a", 10, 2)}, false);
	EXPECT_EQ(book.lookup("d", "none", me, e), found::unknown);
	book.listed(asked, "d", 10, {listed("b", 5, 3)}, true);
	EXPECT_EQ(book.lookup("d", "none", me, e), found::absent);
	EXPECT_EQ(book.lookup("d", "a", me, e), found::here);
	EXPECT_EQ(e.fh, "ha");
	EXPECT_EQ(book.lookup("d", "a", {1, 1, {}}, e), found::unknown) << "another user's right";

	std::vector<dir_entry> out;
	bool end = false;
	ASSERT_TRUE(book.list("d", me, 0, 1, out, end));
	ASSERT_EQ(out.size(), 1u);
	EXPECT_FALSE(end);
	ASSERT_TRUE(book.list("d", me, out[0].cookie, 4096, out, end));
	ASSERT_EQ(out.size(), 1u);
	EXPECT_EQ(out[0].name, "b");
	EXPECT_TRUE(end);

	// A file's lease ends: the name is still known, the file is not.
	book.recalled({0, 3});
	EXPECT_EQ(book.lookup("d", "b", me, e), found::unknown);
	ASSERT_TRUE(book.list("d", me, 0, 4096, out, end));
	EXPECT_EQ(out[1].node.fh, "");

	book.begin_change("d", true);
	EXPECT_EQ(book.lookup("d", "none", me, e), found::unknown);
	book.renamed("d", "a", "");
	book.end_change("d", true);
	EXPECT_EQ(book.lookup("d", "a", me, e), found::absent);
	EXPECT_EQ(book.lookup("d", "none", me, e), found::absent);
	EXPECT_FALSE(book.list("d", me, 0, 4096, out, end));
	book.recalled({0, 1});
	EXPECT_EQ(book.lookup("d", "none", me, e), found::unknown);
}

TEST(client_leases, a_listing_is_of_one_moment)
{
	lease_book book;
	entry e;
	book.learned(book.now(), "d", directory(1));
	const auto asked = book.now();
	book.allowed(asked, "d", me, right::search);
	book.allowed(asked, "d", me, right::list);
	book.listed(asked, "d", 0, {listed("a", 10, 2)}, false);
	book.begin_change("d", true);
	book.renamed("d", "new", "hnew");
	book.end_change("d", true);
	book.listed(book.now(), "d", 10, {listed("b", 20, 3)}, true);
	std::vector<dir_entry> out;
	bool end;
	EXPECT_FALSE(book.list("d", me, 0, 4096, out, end));
	EXPECT_EQ(book.lookup("d", "none", me, e), found::unknown);
	// Nor is a listing that does not start at the beginning.
	book.listed(book.now(), "d", 7, {listed("b", 20, 3)}, true);
	EXPECT_FALSE(book.list("d", me, 0, 4096, out, end));
}

TEST(client_leases, who_reads_a_directory_goes_on_over_our_own_changes)
{
	lease_book book;
	book.learned(book.now(), "d", directory(1));
	const auto asked = book.now();
	book.allowed(asked, "d", me, right::search);
	book.allowed(asked, "d", me, right::list);
	book.listed(asked, "d", 0, {listed("a", 10, 2), listed("b", 20, 3), listed("c", 30, 4)},
		    true);
	std::vector<dir_entry> out;
	bool end;
	ASSERT_TRUE(book.list("d", me, 0, 1, out, end));
	ASSERT_EQ(out.size(), 1u);
	for (const char *gone : {"a", "c"}) {
		book.begin_change("d", true);
		EXPECT_FALSE(book.list("d", me, 10, 4096, out, end)) << "the directory is changing";
		book.renamed("d", gone, {});
		book.end_change("d", true);
	}
	ASSERT_TRUE(book.list("d", me, 10, 4096, out, end));
	ASSERT_EQ(out.size(), 1u);
	EXPECT_EQ(out[0].name, "b");
	EXPECT_TRUE(end);
	// A new reader asks storage, and the reply becomes the listing.
	EXPECT_FALSE(book.list("d", me, 0, 4096, out, end));
	book.listed(book.now(), "d", 0, {listed("b", 20, 3)}, false);
	EXPECT_FALSE(book.list("d", me, 20, 4096, out, end));
	// Another client's change ends it.
	EXPECT_TRUE(book.recalled({0, 1}));
	EXPECT_FALSE(book.list("d", me, 10, 4096, out, end));
}

TEST(client_leases, what_was_given_up_is_never_known_again)
{
	lease_book book;
	attributes a;
	book.learned(book.now(), "d", directory(1));
	book.begin_change("d", true);
	book.unsure("d");
	book.end_change("d", true);
	EXPECT_EQ(book.evicted().size(), 1u) << "the client returns its lease";
	book.returned({0, 1});
	book.learned(book.now(), "d", directory(1));
	EXPECT_FALSE(book.attributes_of("d", a));
}

TEST(client_leases, nothing_survives_the_connection)
{
	lease_book book;
	attributes a;
	book.learned(book.now(), "f", file(1));
	const auto asked = book.now();
	book.lost();
	EXPECT_FALSE(book.attributes_of("f", a));
	EXPECT_EQ(book.held(), 0u);
	book.learned(book.now(), "f", file(1));
	EXPECT_FALSE(book.attributes_of("f", a))
		<< "not before the daemon has forgotten the old lease";
	const auto later = book.now();
	book.resume();
	book.learned(asked, "f", file(1));
	book.learned(later, "f", file(1));
	EXPECT_FALSE(book.attributes_of("f", a));
	book.learned(book.now(), "f", file(1));
	EXPECT_TRUE(book.attributes_of("f", a));
}

TEST(client_leases, the_longest_unused_makes_room)
{
	lease_book book;
	attributes a;
	for (std::uint64_t i = 1; i <= lease_book::files_max; i++) {
		book.learned(book.now(), "f" + std::to_string(i), file(i));
		if (i == 2)
			book.keep("f2", 1); // open
	}
	EXPECT_TRUE(book.attributes_of("f1", a)); // used
	book.learned(book.now(), "more", file(1000001));
	book.learned(book.now(), "more2", file(1000002));
	EXPECT_TRUE(book.attributes_of("f1", a));
	EXPECT_TRUE(book.attributes_of("f2", a));
	EXPECT_FALSE(book.attributes_of("f3", a));
	const auto gone = book.evicted();
	ASSERT_EQ(gone.size(), 2u);
	EXPECT_EQ(gone[0].lo, 3u);
	EXPECT_EQ(book.held(), lease_book::files_max);
}

TEST(client_leases, a_file_that_leaves_the_book_leaves_its_last_change_behind)
{
	lease_book book;
	const auto asked = book.now(); // a bundle, whose reading takes long
	book.begin_change("d", true);
	book.end_change("d", true);
	for (std::size_t i = 0; i <= lease_book::files_max; i++)
		book.learned(book.now(), "f" + std::to_string(i), file(100 + i));
	EXPECT_FALSE(book.learned(asked, "d", directory(1)));
	EXPECT_TRUE(book.learned(book.now(), "d", directory(1)));
}

TEST(client_leases, none_is_believed_before_the_last_return_of_all_is_answered)
{
	lease_book book;
	lease_returns returns(book);
	const auto believed = [&] { return book.learned(book.now(), "f", file(1)); };
	EXPECT_TRUE(believed());
	returns.begin(false);
	returns.begin(false);
	EXPECT_FALSE(believed());
	returns.answered();
	EXPECT_FALSE(believed());
	returns.answered();
	EXPECT_TRUE(believed());
	// A return from before the connection was lost is answered on the next one.
	returns.begin(false);
	returns.lost();
	returns.lost();
	returns.answered();
	EXPECT_FALSE(believed()) << "that of the new connection is still to come";
	returns.begin(true);
	EXPECT_FALSE(believed());
	returns.answered();
	EXPECT_TRUE(believed());
}
