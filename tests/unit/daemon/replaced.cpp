// SPDX-License-Identifier: MIT
// replaced.cpp - a file that lost its name to another one between its look-up and its open.
#include "rig.hpp"

#include "userland/daemon/replaced.hpp"

using namespace rig;
using coop::daemon::replaced_files;

class daemon_replaced : public daemon_test
{
protected:
	void replace(const std::string &name, const std::string &text)
	{
		put("new", text);
		ASSERT_EQ(client_->rename(me(), client_->root().fh, "new", client_->root().fh, name,
					  0),
			  0);
	}
	int try_open(const entry &e, int flags)
	{
		open_result o{};
		return client_->open(me(), e.fh, flags, 0, o);
	}
};

TEST_F(daemon_replaced, opens_what_was_looked_up)
{
	up();
	put("f", "old");
	const entry e = find("f");
	replace("f", "new");
	const open_result o = open(e, O_RDONLY);
	EXPECT_EQ(o.attr.st.st_nlink, 0u);
	EXPECT_EQ(read_text(*client_, e, o.open_id, 0, 10), "old");
	attributes a;
	EXPECT_EQ(client_->getattr(me(), e.fh, a), 0);
	EXPECT_EQ(read_text(*client_, find("f"), open(find("f"), O_RDONLY).open_id, 0, 10), "new");
}

TEST_F(daemon_replaced, also_after_its_last_close)
{
	up();
	put("f", "old");
	const entry e = find("f");
	const open_result first = open(e, O_RDWR);
	replace("f", "new");
	write_result w{};
	EXPECT_EQ(client_->close(e.fh, first.open_id, w), 0);
	EXPECT_EQ(read_text(*client_, e, open(e, O_RDONLY).open_id, 0, 10), "old");
}

// The table of files is full of idle ones on a daemon that has run for a while.
TEST_F(daemon_replaced, is_kept_while_less_than_half_of_the_table_is_in_use)
{
	constexpr int most = 16;
	settings_.max_inodes = most;
	up();
	for (int i = 0; i < 2 * most; i++) {
		put("other" + std::to_string(i), "");
		find("other" + std::to_string(i));
	}
	put("f", "old");
	entry e = find("f");
	replace("f", "new");
	EXPECT_EQ(read_text(*client_, e, open(e, O_RDONLY).open_id, 0, 10), "old");
	for (int i = 1; i < most / 2; i++) // with the one that is open
		open(find("other" + std::to_string(i)), O_RDONLY);
	e = find("f");
	replace("f", "newer");
	EXPECT_EQ(try_open(e, O_RDONLY), -ESTALE);
}

TEST_F(daemon_replaced, is_not_opened_for_a_name)
{
	up();
	put("f", "old");
	const entry e = find("f");
	const open_result held = open(e, O_RDONLY | storage::open_named);
	replace("f", "new");
	for (const int flags : {O_RDONLY, O_RDWR, O_WRONLY | O_TRUNC})
		EXPECT_EQ(try_open(e, flags | storage::open_named), -ESTALE) << flags;
	EXPECT_EQ(read_text(*client_, e, held.open_id, 0, 10), "old");
	EXPECT_EQ(disk("f"), "new");
	EXPECT_EQ(try_open(find("f"), O_RDONLY | storage::open_named), 0);
}

TEST_F(daemon_replaced, is_not_opened_for_a_name_at_an_older_daemon)
{
	settings_.newest_version = COOP_ST_VERSION_NAMED - 1;
	up();
	put("f", "old");
	const entry e = find("f");
	replace("f", "new");
	EXPECT_EQ(try_open(e, O_RDONLY | storage::open_named), -ESTALE);
	EXPECT_EQ(try_open(e, O_RDONLY), 0);
}

TEST(daemon_replaced_files, go_in_time_and_by_size)
{
	replaced_files files;
	const auto begin = replaced_files::clock::now();
	files.keep(nullptr, 10, begin);
	files.keep(nullptr, 10, begin + std::chrono::milliseconds(replaced_files::time) / 2);
	files.expire(begin + replaced_files::time);
	EXPECT_EQ(files.size(), 1u);
	files.keep(nullptr, replaced_files::bytes_max + 1, begin + replaced_files::time);
	EXPECT_EQ(files.size(), 1u);
	files.keep(nullptr, replaced_files::bytes_max, begin + replaced_files::time);
	EXPECT_EQ(files.size(), 1u);
	for (std::size_t i = 0; i < 2 * replaced_files::files_max; i++)
		files.keep(nullptr, 0, begin + replaced_files::time);
	EXPECT_EQ(files.size(), replaced_files::files_max);
	files.clear();
	EXPECT_EQ(files.size(), 0u);
}
