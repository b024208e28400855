// SPDX-License-Identifier: MIT
// files_proved.cpp - the kernel's end of the file: an open is answered only when the kernel has one
// from after it began, and a read does not end before the one that the kernel has.
#include "files_rig.hpp"

namespace coop::client
{
namespace
{

class client_files_proved : public client_files
{
protected:
	// The kernel has attributes of version 10; another node made 11.
	void SetUp() override
	{
		EXPECT_TRUE(table.learn(*node, table.now(), s.file.attr, nullptr));
		EXPECT_TRUE(tell());
		s.set(11, 5);
	}
	bool tell() { return table.told(*node, table.now(), s.file.attr, false); }
	int ask(const files::seen &by_kernel, int flags = O_RDONLY)
	{
		files::open_answer a;
		const int err = f.open(who, *node, flags, a, by_kernel);
		EXPECT_EQ(err == 0, a.file != nullptr);
		attr_stale = a.attr_stale;
		file = std::move(a.file);
		return err;
	}
	int first(int flags = O_RDONLY) { return ask({true, {}, 0}, flags); }
	// What follows -ESTALE.
	std::optional<std::uint64_t> looks()
	{
		announce();
		return table.looks_again(*node);
	}
	void announce()
	{
		const inode_table::notification turn(table, *node);
		table.announced(*node, turn.since, node->version);
	}
	int second(std::optional<std::uint64_t> bumps, std::uint64_t version)
	{
		const int err = ask({false, bumps, version});
		table.has_looked(*node);
		return err;
	}
	std::unique_ptr<open_file> file;
};

TEST_F(client_files_proved, an_open_of_what_another_node_changed_is_refused_until_the_kernel_looked)
{
	EXPECT_EQ(first(), -ESTALE);
	const auto bumps = looks();
	ASSERT_TRUE(bumps);
	EXPECT_TRUE(tell());
	EXPECT_EQ(second(bumps, 11), 0);
	EXPECT_FALSE(attr_stale) << "no notification: the kernel has just taken these";
	EXPECT_EQ(first(), 0);
}

TEST_F(client_files_proved, what_is_refused_before_storage_was_asked_opens_nothing_there)
{
	EXPECT_EQ(first(), -ESTALE);
	EXPECT_EQ(s.opens, 1u) << "only storage's reply has shown the change";
	EXPECT_EQ(s.closes, 1u);
	looks();
	table.has_looked(*node);
	EXPECT_EQ(first(), -ESTALE);
	EXPECT_EQ(s.opens, 1u);
}

TEST_F(client_files_proved, a_notification_in_between_proves_nothing)
{
	EXPECT_EQ(first(), -ESTALE);
	const auto bumps = looks();
	EXPECT_TRUE(tell());
	announce();
	EXPECT_EQ(second(bumps, 11), 0) << "a call is refused once";
	EXPECT_EQ(first(), -ESTALE);
}

TEST_F(client_files_proved, a_writer_in_between_proves_nothing)
{
	EXPECT_EQ(first(), -ESTALE);
	const auto bumps = looks();
	EXPECT_TRUE(tell());
	close(open(O_RDWR));
	EXPECT_EQ(second(bumps, 11), 0);
	EXPECT_EQ(first(), -ESTALE);
}

TEST_F(client_files_proved, the_attributes_of_a_version_that_is_over_prove_nothing)
{
	EXPECT_EQ(first(), -ESTALE);
	const auto bumps = looks();
	EXPECT_TRUE(tell());
	s.set(12, 6);
	EXPECT_EQ(second(bumps, 11), 0);
	EXPECT_EQ(first(), -ESTALE);
}

TEST_F(client_files_proved, a_second_request_without_a_look_is_answered_and_proves_nothing)
{
	EXPECT_EQ(first(), -ESTALE);
	looks();
	EXPECT_EQ(second({}, 0), 0);
	EXPECT_EQ(first(), -ESTALE);
}

TEST_F(client_files_proved, the_kernel_drops_the_pages_before_it_gets_the_new_end)
{
	s.set(10, 0);
	auto reader = open();
	EXPECT_EQ(read(*reader), 0);
	s.set(11, 5);
	EXPECT_EQ(stale, 0u);
	EXPECT_EQ(first(), -ESTALE);
	EXPECT_EQ(stale, 1u);
	EXPECT_EQ(node->dropping_pages, 1u);
	close(std::move(reader));
}

TEST_F(client_files_proved, an_open_waits_for_the_proof_of_another)
{
	EXPECT_EQ(first(), -ESTALE);
	const auto bumps = looks();
	EXPECT_TRUE(tell());
	std::thread other([&] { table.prove(*node, *bumps, 11), table.has_looked(*node); });
	EXPECT_EQ(first(), 0);
	other.join();
}

TEST_F(client_files_proved, an_open_that_empties_the_file_or_finds_a_writer_here_is_not_refused)
{
	EXPECT_EQ(first(O_RDWR | O_TRUNC), 0);
	auto writer = std::move(file);
	s.set(20, 7);
	EXPECT_EQ(first(), 0);
	close(std::move(writer));
	EXPECT_EQ(first(), -ESTALE);
}

TEST_F(client_files_proved, it_is_in_doubt_after_a_read_by_which_the_kernel_moves_its_end)
{
	EXPECT_EQ(first(), -ESTALE);
	const auto bumps = looks();
	EXPECT_TRUE(tell());
	EXPECT_TRUE(table.refuses_short(*node, 0, 4096, 0, 4096));
	EXPECT_FALSE(table.refuses_short(*node, 0, 4096, 0, 4096));
	EXPECT_EQ(second(bumps, 11), 0);
	EXPECT_EQ(first(), -ESTALE);
}

TEST_F(client_files_proved, a_change_that_keeps_the_end_refuses_nothing)
{
	s.set(11, 0);
	EXPECT_EQ(first(), 0);
	s.set(12, 5);
	EXPECT_EQ(first(), -ESTALE);
	s.set(13, 0);
	looks();
	table.has_looked(*node);
	EXPECT_EQ(first(), -ESTALE) << "the kernel may have either end";
}

TEST_F(client_files_proved, attributes_from_before_the_refusal_do_not_go_to_the_kernel)
{
	const ticket listing = table.now();
	attributes old = s.file.attr;
	old.version = 10;
	EXPECT_EQ(first(), -ESTALE);
	EXPECT_FALSE(table.told(*node, listing, old, false));
}

class client_files_short : public client_files
{
protected:
	static constexpr std::uint64_t page = 4096;
	bool falls_short(std::uint32_t length)
	{
		read_answer a;
		EXPECT_EQ(f.read(*file, 0, length, a), 0);
		EXPECT_EQ(a.length, 0u) << "the file is empty at storage";
		return a.falls_short;
	}
	bool refuses(std::uint64_t from, std::uint64_t length)
	{
		return table.refuses_short(*node, from, length, 0, page);
	}
	// Of telling and notification.
	template <class turn> void waits_for_reads_in_hand()
	{
		EXPECT_TRUE(refuses(0, page));
		std::optional<inode_table::read_in_hand> hand(std::in_place, table,
							      node->shared_from_this());
		std::atomic<bool> ended{false};
		std::thread ends([&] {
			ended = true;
			hand.reset();
		});
		table.returns(*node, 0, 0, page);
		const turn begun(table, *node);
		EXPECT_TRUE(ended);
		ends.join();
	}
	std::unique_ptr<open_file> file = open();
};

TEST_F(client_files_short, a_read_falls_short_of_the_end_that_the_kernel_was_told)
{
	EXPECT_FALSE(falls_short(100));
	s.set(10, 3000);
	EXPECT_TRUE(table.told(*node, table.now(), s.file.attr, false));
	s.set(11, 0);
	r.good = 11;
	EXPECT_TRUE(falls_short(100));
	EXPECT_TRUE(table.told(*node, table.now(), s.file.attr, false));
	EXPECT_TRUE(falls_short(100)) << "the kernel may ignore the newer end";
}

// Another node empties the file and writes it again. A fault would get SIGBUS.
TEST_F(client_files_short, a_read_falls_short_only_if_storage_still_says_so)
{
	s.set(10, 3000);
	EXPECT_TRUE(table.told(*node, table.now(), s.file.attr, false));
	s.set(11, 0);
	EXPECT_TRUE(table.learn(*node, table.now(), s.file.attr, nullptr));
	r.good = 11;
	s.set(12, 3000);
	read_answer a;
	EXPECT_EQ(f.read(*file, 0, 100, a), 0);
	EXPECT_EQ(a.length, 100u);
	EXPECT_FALSE(a.falls_short);
}

TEST_F(client_files_short, it_is_refused_until_the_reader_asks_for_each_page)
{
	EXPECT_TRUE(refuses(0, 2 * page));
	EXPECT_TRUE(refuses(0, 3 * page)) << "readahead of another reader";
	EXPECT_FALSE(refuses(0, page));
	EXPECT_FALSE(refuses(page, page));
	EXPECT_TRUE(refuses(3 * page, page)) << "not of what was refused";
	EXPECT_FALSE(refuses(3 * page, page));
	EXPECT_TRUE(refuses(3 * page, page)) << "the next reader's readahead";
}

// The kernel reads the next part ahead before the reader has the first page of this one.
TEST_F(client_files_short, several_are_refused_at_a_time)
{
	EXPECT_TRUE(refuses(0, 32 * page));
	EXPECT_TRUE(refuses(32 * page, 32 * page));
	EXPECT_TRUE(refuses(64 * page, page));
	EXPECT_FALSE(refuses(0, page)) << "a program would get EINTR";
	EXPECT_FALSE(refuses(40 * page, page));
	EXPECT_FALSE(refuses(64 * page, page));
}

TEST_F(client_files_short, a_page_with_bytes_is_not_refused_for_a_fault_may_want_it)
{
	EXPECT_FALSE(table.refuses_short(*node, 0, page, 100, page));
	EXPECT_TRUE(table.refuses_short(*node, 0, 4 * page, 100, page));
}

// Attributes that overtake such a reader keep the kernel from moving its end of the file.
TEST_F(client_files_short, others_wait_for_the_reader_to_come_again_and_to_act)
{
	const auto before = std::chrono::steady_clock::now();
	const auto waits = [&] { return table.acts_until(*node) > before; };
	const auto asks = [&](std::uint64_t length, pid_t thread) {
		return table.refuses_short(*node, 0, length, 0, page, thread);
	};
	EXPECT_FALSE(waits());
	EXPECT_TRUE(asks(4 * page, 7));
	EXPECT_TRUE(waits());
	table.returns(*node, 7, 4 * page, page);
	EXPECT_TRUE(waits()) << "another page";
	table.returns(*node, 7, 0, page);
	EXPECT_TRUE(waits()) << "a whole page; the one with the end is still to come";
	table.returns(*node, 7, 3 * page, page);
	EXPECT_FALSE(waits());
	EXPECT_FALSE(asks(page, 7));
	EXPECT_TRUE(waits()) << "it may not have moved the end";
	table.returns(*node, 8, 0, page);
	table.has_acted(*node, 8);
	EXPECT_TRUE(waits());
	table.has_acted(*node, 7);
	EXPECT_FALSE(waits());

	EXPECT_TRUE(asks(4 * page, 7));
	table.has_acted(*node, 8);
	EXPECT_TRUE(waits());
	table.has_acted(*node, 7);
	EXPECT_FALSE(waits()) << "it wants the page no more";
}

TEST_F(client_files_short, of_several_readers_that_got_less_none_shows_that_all_have_acted)
{
	const auto before = std::chrono::steady_clock::now();
	for (pid_t thread : {7, 8}) {
		EXPECT_TRUE(table.refuses_short(*node, 0, page, 0, page, thread));
		EXPECT_FALSE(table.refuses_short(*node, 0, page, 0, page, thread));
	}
	table.has_acted(*node, 8);
	EXPECT_GT(table.acts_until(*node), before);
}

TEST_F(client_files_short, a_kernel_that_repeats_the_read_as_it_was_gets_an_answer)
{
	EXPECT_TRUE(refuses(0, 4 * page));
	EXPECT_FALSE(refuses(0, 4 * page));
	EXPECT_TRUE(refuses(0, 4 * page)) << "the next reader's readahead";
	EXPECT_FALSE(refuses(0, page));
	EXPECT_TRUE(refuses(0, 4 * page)) << "the kernel asked page by page: another's readahead";
}

// Else the kernel may have sent it before a notification, and ignore where it ends.
TEST_F(client_files_short, a_read_of_another_time_repeats_nothing)
{
	const auto comes = [&](std::uint64_t from, std::uint64_t length, pid_t thread = 7) {
		table.returns(*node, thread, from, length);
	};
	const auto comes_short = [&](std::uint64_t length) {
		comes(0, length);
		return table.refuses_short(*node, 0, length, 0, page, 7);
	};
	for (std::uint64_t length : {page, 4 * page}) {
		EXPECT_TRUE(comes_short(length));
		for (std::uint64_t at = 0; at < length; at += page)
			comes(at, page); // and gets it: the file has grown
		EXPECT_TRUE(comes_short(length)) << length << " bytes, after each page";
		comes(0, length); // as it was, and gets all
		EXPECT_TRUE(comes_short(length)) << length << " bytes, after the repetition";
		table.has_acted(*node, 7);
		EXPECT_TRUE(comes_short(length)) << length << " bytes, after other requests";
		EXPECT_FALSE(comes_short(length)) << length << " bytes, at once";
	}
}

// It asks for the pages before it one by one, and works on each.
TEST_F(client_files_short, a_reader_may_take_time_until_it_comes_to_the_end_of_the_file)
{
	EXPECT_TRUE(refuses(0, 32 * page));
	std::this_thread::sleep_for(std::chrono::milliseconds(100)); // the kernel's time is over
	EXPECT_FALSE(refuses(20 * page, page));
}

// Storage may be slow to answer the page that another reader of them waits for.
TEST_F(client_files_short, readers_that_are_late_are_answered_until_the_kernel_takes_attributes)
{
	EXPECT_TRUE(refuses(0, 32 * page));
	EXPECT_FALSE(refuses(20 * page, page));
	std::this_thread::sleep_for(std::chrono::milliseconds(100)); // the kernel's time is over
	EXPECT_FALSE(refuses(21 * page, page)) << "a program would get EINTR";
	EXPECT_TRUE(table.told(*node, table.now(), s.file.attr, false));
	std::this_thread::sleep_for(std::chrono::milliseconds(100));
	EXPECT_TRUE(refuses(22 * page, page)) << "the end may be new";
}

TEST_F(client_files_short, attributes_wait_for_reads_in_hand_then)
{
	waits_for_reads_in_hand<inode_table::telling>();
}

TEST_F(client_files_short, notifications_wait_for_them_too)
{
	waits_for_reads_in_hand<inode_table::notification>();
}

TEST_F(client_files_short, a_read_is_refused_when_no_notification_is_on_its_way)
{
	std::optional<inode_table::notification> turn(std::in_place, table, *node);
	std::atomic<bool> over{false};
	std::thread ends([&] {
		over = true;
		turn.reset();
	});
	EXPECT_TRUE(refuses(0, page));
	EXPECT_TRUE(over) << "the kernel could ignore the answer to the reader's next READ";
	ends.join();
}

} // namespace
} // namespace coop::client
