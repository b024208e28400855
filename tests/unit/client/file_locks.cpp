// SPDX-License-Identifier: MIT
// file_locks.cpp - a lock that was granted, and whose file cannot be looked at.
#include "commit_rig.hpp"

namespace coop::client
{
namespace
{

class client_file_locks : public client_commit
{
protected:
	// As a request for a lock does.
	int lock(open_file &file, const coop_st_lock &what)
	{
		bool drop = false;
		std::uint64_t cookie = 0;
		const auto undo = f->undo_of(file, what);
		if (const int err = f->lock(file, what, false, nullptr, cookie))
			return err;
		return f->refresh(file, undo, drop);
	}
	bool held() const { return s.era != 0; }

	coop_st_lock range{1, 0, 9, COOP_ST_LOCK_POSIX, COOP_ST_LOCK_WRITE, 1};
	coop_st_lock whole{1, 0, ~0ull, COOP_ST_LOCK_FLOCK, COOP_ST_LOCK_WRITE, 1};
};

TEST_F(client_file_locks, a_lock_that_the_program_is_told_it_did_not_get_is_not_held)
{
	auto file = open();
	for (const coop_st_lock &what : {range, whole}) {
		s.look_error = -ETIMEDOUT;
		EXPECT_EQ(lock(*file, what), -ETIMEDOUT);
		EXPECT_FALSE(held());
		s.look_error = 0;
		EXPECT_EQ(lock(*file, what), 0);
		EXPECT_TRUE(held());
		EXPECT_EQ(f->unlock(*file, what), 0);
	}
}

TEST_F(client_file_locks, a_conversion_that_fails_leaves_the_program_a_lock)
{
	auto file = open();
	EXPECT_EQ(lock(*file, range), 0);
	s.look_error = -ESTALE;
	EXPECT_EQ(lock(*file, range), -ESTALE);
	EXPECT_TRUE(held());
	s.look_error = 0;
	EXPECT_EQ(f->unlock(*file, range), 0);
	EXPECT_EQ(lock(*file, whole), 0);
	s.look_error = -ESTALE;
	EXPECT_EQ(lock(*file, whole), -ESTALE);
	EXPECT_FALSE(held()) << "flock(2) gives its older lock back first";
}

} // namespace
} // namespace coop::client
