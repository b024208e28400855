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
#include "userland/daemon/lock_recovery.hpp"

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
using coop::client::handle;

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

// Else the session could take them back after a crash, from those that got them.
TEST_F(daemon_stability, locks_lapse_when_the_end_of_their_file_is_stable)
{
	const coop::daemon::state_directory dir(base_ / "state");
	const std::filesystem::path files = base_ / "state" / "locks";
	const std::string session(COOP_ST_SESSION, 's');
	coop::daemon::lock_recovery locks(dir);
	spdlog::set_level(spdlog::level::critical);
	locks.holds(session);
	for (const bool lost : {false, true}) { // its file, meanwhile
		sync_failures = 1;
		EXPECT_EQ(locks.lapses(session), -EIO);
		EXPECT_FALSE(std::filesystem::is_empty(files)) << "it keeps its locks";
		if (lost)
			for (const auto &f : std::filesystem::directory_iterator(files))
				std::filesystem::remove(f);
	}
	const int before = syncs;
	EXPECT_EQ(locks.lapses(session), 0);
	EXPECT_GT(syncs, before);
	EXPECT_TRUE(std::filesystem::is_empty(files));
}

TEST_F(daemon_stability, locks_of_ended_sessions_go_to_others_when_the_end_of_their_file_is_stable)
{
	up();
	put("f", "");
	const auto rival = connect();
	const entry e = find("f");
	const coop_st_lock all{1, 0, UINT64_MAX, COOP_ST_LOCK_FLOCK, COOP_ST_LOCK_WRITE, 0};
	std::uint64_t cookie;
	std::atomic<int> granted{0};
	const auto take = [&](storage &s, storage::lock_granted done) {
		open_result o{};
		EXPECT_EQ(s.open(me(), e.fh, O_RDWR, 0, o), 0);
		const bool waits = !!done;
		return s.lock(e.fh, o.open_id, all, waits, std::move(done), cookie);
	};
	// Before: it has its file already, so that its lock needs none.
	EXPECT_EQ(take(*rival, {}), 0);
	EXPECT_EQ(rival->unlock(e.fh, all), 0);
	EXPECT_EQ(take(*client_, {}), 0);
	EXPECT_EQ(take(*rival, [&](int) { granted++; }), -EINPROGRESS);
	const std::filesystem::path files = base_ / "state" / "locks";
	int granted_at_sync = -1;
	during_sync = [&] {
		const std::filesystem::directory_iterator left(files);
		EXPECT_EQ(std::distance(begin(left), end(left)), 1) << "removed before";
		granted_at_sync = granted;
	};
	client_.reset();
	EXPECT_TRUE(eventually([&] { return granted == 1; }));
	EXPECT_EQ(granted_at_sync, 0);
	during_sync = nullptr;
}

TEST_F(daemon_stability, locks_of_who_did_not_come_back_end_when_the_end_of_their_file_is_stable)
{
	const coop::daemon::state_directory dir(base_ / "state");
	{
		coop::daemon::lock_recovery before(dir);
		before.holds(std::string(COOP_ST_SESSION, 's'));
	}
	coop::daemon::lock_recovery next(dir, std::chrono::milliseconds(0));
	const int before = syncs;
	EXPECT_FALSE(next.in_grace());
	EXPECT_GT(syncs, before);
	EXPECT_TRUE(std::filesystem::is_empty(base_ / "state" / "locks"));
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

// Each change of names, in directories of its own; 'commit' after it.
TEST_F(daemon_stability, an_fsync_of_a_directory_does_not_hide_names_that_a_crash_took)
{
	settings_.boot_id = "one boot";
	up();
	struct change {
		const char *what;
		std::function<int(const handle &dir, const handle &other)> make;
		bool both = false;
	};
	entry made;
	open_result o{};
	write_result w{};
	const auto in = [&](const handle &dir, const char *name) {
		EXPECT_EQ(client_->mkdir(me(), dir, name, {0755, 0}, made), 0);
		return made.fh;
	};
	const std::vector<change> changes = {
		{"mkdir",
		 [&](auto &d, auto &) {
			 return client_->mkdir(me(), d, "n", {0755, 0}, made);
		 }},
		{"mknod",
		 [&](auto &d, auto &) {
			 return client_->mknod(me(), d, "n", {S_IFIFO | 0600, 0}, 0, made);
		 }},
		{"symlink",
		 [&](auto &d, auto &) { return client_->symlink(me(), "t", d, "n", made); }},
		{"create",
		 [&](auto &d, auto &) {
			 return client_->create(me(), d, "n", O_RDWR | O_EXCL, {0600, 0}, made, o);
		 }},
		{"link",
		 [&](auto &d, auto &) { return client_->link(me(), find("f").fh, d, "n", made); }},
		{"unlink", [&](auto &d, auto &) { return client_->unlink(me(), d, "file"); }},
		{"rmdir", [&](auto &d, auto &) { return client_->rmdir(me(), d, "sub"); }},
		{"rename",
		 [&](auto &d, auto &t) { return client_->rename(me(), d, "file", t, "n", 0); },
		 true},
		{"setattr",
		 [&](auto &d, auto &) {
			 return client_->setattr(me(), d,
						 {storage::set_mode, 0700, 0, 0, 0, {}, {}}, w);
		 }},
		{"setxattr",
		 [&](auto &d, auto &) { return client_->setxattr(me(), d, "user.n", "v", 0, w); }},
	};
	put("f", "");
	bool lost;
	std::vector<std::pair<handle, handle>> dirs;
	for (const change &c : changes) {
		const handle d = in(client_->root().fh, c.what),
			     t = in(client_->root().fh, (std::string(c.what) + "2").c_str());
		in(d, "sub");
		ASSERT_EQ(client_->mknod(me(), d, "file", {S_IFREG | 0600, 0}, 0, made), 0);
		EXPECT_EQ(client_->commit_names(d, lost), 0);
		EXPECT_FALSE(lost);
		dirs.emplace_back(d, t);
	}
	EXPECT_EQ(client_->commit_names(client_->root().fh, lost), 0);
	for (std::size_t i = 0; i < changes.size(); i++)
		EXPECT_EQ(changes[i].make(dirs[i].first, dirs[i].second), 0) << changes[i].what;
	restart_under("another boot");
	for (std::size_t i = 0; i < changes.size(); i++) {
		EXPECT_EQ(client_->commit_names(dirs[i].first, lost), 0);
		EXPECT_TRUE(lost) << changes[i].what;
		EXPECT_EQ(client_->commit_names(dirs[i].first, lost), 0);
		EXPECT_FALSE(lost) << changes[i].what << ", told already";
		EXPECT_EQ(client_->commit_names(dirs[i].second, lost), 0);
		EXPECT_EQ(lost, changes[i].both) << changes[i].what << ", the other directory";
	}
	EXPECT_EQ(client_->commit_names(client_->root().fh, lost), 0);
	EXPECT_FALSE(lost) << "committed before the crash";
}

TEST_F(daemon_stability, a_restart_of_the_daemon_loses_no_names)
{
	up();
	entry made;
	bool lost;
	ASSERT_EQ(client_->mkdir(me(), client_->root().fh, "d", {0755, 0}, made), 0);
	restart();
	EXPECT_EQ(client_->commit_names(client_->root().fh, lost), 0);
	EXPECT_FALSE(lost);
}

TEST_F(daemon_stability, a_failed_fsync_of_a_directory_shows_to_every_client_once)
{
	up();
	auto other = connect();
	const handle &root = client_->root().fh;
	entry made;
	bool lost;
	ASSERT_EQ(client_->mkdir(me(), root, "a", {0755, 0}, made), 0);
	ASSERT_EQ(other->mkdir(me(), root, "b", {0755, 0}, made), 0);
	sync_failures = 1;
	EXPECT_EQ(client_->commit_names(root, lost), -EIO);
	EXPECT_TRUE(lost);
	EXPECT_EQ(other->commit_names(root, lost), 0);
	EXPECT_TRUE(lost);
	for (storage *s : {client_.get(), other.get()}) {
		EXPECT_EQ(s->commit_names(root, lost), 0);
		EXPECT_FALSE(lost);
		ASSERT_EQ(s->mkdir(me(), root, s == client_.get() ? "c" : "d", {0755, 0}, made), 0);
		EXPECT_EQ(s->commit_names(root, lost), 0);
		EXPECT_FALSE(lost) << "the directory's own verifier is known";
	}
}

TEST_F(daemon_stability, a_failure_shows_to_clients_of_other_exports)
{
	settings_.exports.push_back({"also", tree_.string()});
	up();
	put("f", "");
	storage_options options = client_options();
	options.export_name = "/also";
	const auto other = storage::connect(options);
	entry theirs;
	ASSERT_EQ(other->lookup(me(), other->root().fh, "f", theirs), 0);
	const entry e = find("f");
	open_result mine = open(e, O_RDWR), o{};
	ASSERT_EQ(other->open(me(), theirs.fh, O_RDWR, 0, o), 0);
	write(*client_, e, mine.open_id);
	const std::uint64_t v = write(*other, theirs, o.open_id);
	sync_failures = 1;
	commit(*client_, e, mine.open_id, -EIO);
	EXPECT_NE(commit(*other, theirs, o.open_id), v);
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
