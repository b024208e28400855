// SPDX-License-Identifier: MIT
// stability.cpp - a client can tell whether its writes have reached stable storage: over
// crashes, restarts, and failures reported to one client only.
#include "rig.hpp"

#include <atomic>
#include <functional>
#include <sys/syscall.h>
#include <utility>

#include "userland/client/file.hpp"
#include "userland/client/page_store.hpp"

namespace
{
std::atomic<int> sync_failures{0}, syncs{0};
std::function<void()> during_sync; // called in the next fsync: done, not yet returned
} // namespace

// Replaces the C library's: fails like a disk that does not write back.
extern "C" int fsync(int fd)
{
	if (sync_failures.load() > 0) {
		sync_failures--;
		errno = EIO;
		return -1;
	}
	syncs++;
	const int result = static_cast<int>(::syscall(SYS_fsync, fd));
	if (const auto then = std::exchange(during_sync, nullptr))
		then();
	return result;
}

using namespace rig;

namespace
{

class daemon_stability : public daemon_test
{
protected:
	std::uint64_t write(storage &s, const entry &e, std::uint64_t open_id)
	{
		write_result w{};
		EXPECT_EQ(write_text(s, e, open_id, 0, "text", w), 0);
		return w.verifier;
	}
	write_result write_stable(const entry &e, std::uint64_t open_id)
	{
		char text[] = "text";
		const iovec v{text, 4};
		write_result w{};
		EXPECT_EQ(client_->write(e.fh, open_id, 0, {&v, 1}, w, {}, true), 0);
		return w;
	}
	std::uint64_t commit(storage &s, const entry &e, std::uint64_t open_id, int err = 0)
	{
		write_result w{};
		EXPECT_EQ(s.commit(e.fh, open_id, w), err);
		return w.verifier;
	}
	void restart_under(const std::string &boot_id)
	{
		settings_.boot_id = boot_id;
		restart();
	}
	std::string record() { return (base_ / "state" / "verifier").string(); }
};

} // namespace

TEST_F(daemon_stability, a_restart_of_the_daemon_keeps_the_verifier)
{
	up();
	put("f", "");
	const entry e = find("f");
	const open_result o = open(e, O_RDWR);
	const std::uint64_t v = write(*client_, e, o.open_id);
	EXPECT_EQ(o.verifier, v);
	EXPECT_EQ(commit(*client_, e, o.open_id), v);
	restart();
	EXPECT_EQ(commit(*client_, e, o.open_id), v);
}

TEST_F(daemon_stability, a_crash_of_its_machine_changes_it)
{
	settings_.boot_id = "one boot";
	up();
	put("f", "");
	const entry e = find("f");
	const open_result o = open(e, O_RDWR);
	const std::uint64_t v = write(*client_, e, o.open_id);
	restart_under("another boot");
	const std::uint64_t now = commit(*client_, e, o.open_id);
	EXPECT_NE(now, v);
	EXPECT_EQ(write(*client_, e, o.open_id), now);
}

TEST_F(daemon_stability, a_failure_that_one_client_is_told_shows_to_the_others)
{
	up();
	put("f", "");
	put("g", "");
	const entry e = find("f"), g = find("g");
	auto other = connect();
	open_result mine = open(e, O_RDWR), bystander = open(g, O_RDWR), theirs{};
	ASSERT_EQ(other->open(me(), e.fh, O_RDWR, 0, theirs), 0);
	const std::uint64_t v = write(*client_, e, mine.open_id),
			    w = write(*client_, g, bystander.open_id);
	EXPECT_EQ(write(*other, e, theirs.open_id), v);
	sync_failures = 1;
	commit(*client_, e, mine.open_id, -EIO);
	EXPECT_NE(commit(*other, e, theirs.open_id), v);
	EXPECT_EQ(commit(*client_, g, bystander.open_id), w) << "another file";
	other.reset();
	restart();
	EXPECT_NE(commit(*client_, e, mine.open_id), v)
		<< "the next process does not know the old verifier";
}

TEST_F(daemon_stability, a_write_commits_if_it_is_to)
{
	up();
	put("f", "");
	const entry e = find("f");
	const open_result o = open(e, O_RDWR);
	const int before = syncs;
	write_result w{};
	ASSERT_EQ(write_text(*client_, e, o.open_id, 0, "text", w), 0);
	EXPECT_FALSE(w.stable);
	EXPECT_EQ(syncs, before);
	w = write_stable(e, o.open_id);
	EXPECT_TRUE(w.stable);
	EXPECT_EQ(syncs, before + 1);
	EXPECT_EQ(w.verifier, o.verifier);
	EXPECT_EQ(disk("f"), "text");
}

// The client keeps the bytes, and its COMMIT finds out what became of them.
TEST_F(daemon_stability, a_write_that_cannot_commit_is_as_any_other)
{
	up();
	put("f", "");
	const entry e = find("f");
	const open_result o = open(e, O_RDWR);
	sync_failures = 1;
	const write_result w = write_stable(e, o.open_id);
	EXPECT_FALSE(w.stable);
	EXPECT_EQ(w.verifier, o.verifier) << "from before the failure";
	EXPECT_NE(commit(*client_, e, o.open_id), w.verifier);
	EXPECT_TRUE(write_stable(e, o.open_id).stable);
}

// Another client's fsync met an error that may have hit these bytes.
TEST_F(daemon_stability, a_write_is_not_stable_if_the_verifier_moves_meanwhile)
{
	up();
	put("f", "");
	const entry e = find("f");
	const open_result o = open(e, O_RDWR);
	during_sync = [&] { server_->files().stable.failed(e.attr.fid); };
	const write_result w = write_stable(e, o.open_id);
	EXPECT_FALSE(w.stable);
	EXPECT_EQ(w.verifier, o.verifier);
	EXPECT_NE(commit(*client_, e, o.open_id), w.verifier);
}

TEST_F(daemon_stability, without_a_record_nothing_is_taken_for_stable)
{
	up();
	put("f", "");
	const entry e = find("f");
	const open_result o = open(e, O_RDWR);
	const std::uint64_t v = write(*client_, e, o.open_id);
	for (const char *left : {"", "no boot id at all\n", "\n"}) {
		server_.reset();
		std::ofstream(record(), std::ios::trunc) << left;
		start_again();
		EXPECT_NE(commit(*client_, e, o.open_id), v) << left;
	}
}

// The client's side, over the wire.
TEST_F(daemon_stability, a_writer_writes_again_what_the_crash_took)
{
	using namespace coop::client;
	settings_.boot_id = "one boot";
	up();
	put("f", "");
	auto store = page_store::create(4 << 20, 12);
	coop::client::inode_table table{*store, {[](coop::client::inode &) {}}};
	auto read = reader::create({}, *store, nullptr, *client_);
	membership m;
	files f{*client_, *store, *read, table, m};
	coop::client::inode *node = table.ref(find("f"));
	files::open_answer a, b;
	ASSERT_EQ(f.open(me(), *node, O_RDWR, a), 0);
	ASSERT_EQ(f.open(me(), *node, O_RDWR, b), 0);
	char text[] = "text";
	const iovec v{text, 4};
	std::optional<files::range> drop;
	ASSERT_EQ(f.write(*a.file, false, 0, {&v, 1}, 4, drop), 0);
	restart_under("one boot");
	EXPECT_EQ(f.commit(*a.file), 0);
	ASSERT_EQ(f.write(*a.file, false, 0, {&v, 1}, 4, drop), 0);
	server_.reset();
	put("f", "");
	settings_.boot_id = "another boot";
	start_again();
	EXPECT_EQ(f.flush(*a.file), 0);
	EXPECT_EQ(f.commit(*b.file), 0);
	EXPECT_EQ(disk("f"), "text");
	EXPECT_EQ(f.written_again(), 1u);
	ASSERT_EQ(f.write(*a.file, false, 0, {&v, 1}, 4, drop), 0);
	EXPECT_EQ(f.flush(*a.file), 0);
	f.release(std::move(a.file));
	f.release(std::move(b.file));
}
