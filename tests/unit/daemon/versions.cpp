// SPDX-License-Identifier: MIT
// versions.cpp - equal versions mean equal bytes, every change changes
// the version, and a writer knows the version of what it wrote.
#include "rig.hpp"

#include <atomic>
#include <linux/falloc.h>
#include <map>
#include <sys/mman.h>
#include <thread>

#include "coop/unique_fd.hpp"
#include "userland/daemon/version.hpp"

using namespace rig;

using daemon_versions = daemon_test;
using coop::unique_fd;

namespace
{

bool provisional(std::uint64_t v)
{
	return v & coop::daemon::provisional_bit;
}

void older_than_any_granularity()
{
	const std::uint64_t until = coop::daemon::stamping_time_ns() + coop::daemon::coarse_ns;
	while (coop::daemon::stamping_time_ns() <= until)
		::usleep(1000);
}

} // namespace

TEST_F(daemon_versions, every_way_to_change_content_changes_the_version)
{
	up();
	put("f", "0123456789");
	const entry e = find("f");
	std::set<std::uint64_t> seen;
	const auto fresh = [&](const char *what) {
		attributes a;
		ASSERT_EQ(client_->getattr(me(), e.fh, a), 0);
		EXPECT_NE(a.version, 0u);
		EXPECT_TRUE(seen.insert(a.version).second) << what;
	};
	fresh("first");
	const open_result o = open(e, O_RDWR);
	write_result w{};
	write_text(*client_, e, o.open_id, 3, "x", w);
	fresh("write");
	write_text(*client_, e, o.open_id, 3, "x", w);
	fresh("the same bytes again");
	ASSERT_EQ(client_->fallocate(e.fh, o.open_id, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2,
				     2, w),
		  0);
	fresh("punched");
	std::uint64_t length = 2;
	ASSERT_EQ(client_->copy({e.fh, o.open_id, 0}, {e.fh, o.open_id, 5}, length, w), 0);
	fresh("copied");
	storage::setattr_request s{};
	s.valid = storage::set_size;
	s.size = 5;
	client_->setattr(me(), e.fh, s, w);
	fresh("truncation");
	client_->close(e.fh, o.open_id, w);
	put("f", "abcde"); // behind the daemon's back
	fresh("a write by somebody else");
	::truncate((tree_ / "f").c_str(), 2);
	fresh("a truncation by somebody else");
	open_result t = open(e, O_WRONLY | O_TRUNC);
	fresh("O_TRUNC");
}

// The choice of clock matters: the real time is ahead of the stamps of changes.
TEST_F(daemon_versions, a_change_is_stamped_with_the_time_that_was_asked_for_or_later)
{
	up();
	put("f", "");
	for (int i = 0; i < 1000; i++) {
		// Where there is fine time, a file whose time was read gets a fine stamp.
		const unique_fd fd(::open(tree_.c_str(), O_TMPFILE | O_WRONLY, 0600));
		const std::uint64_t now = coop::daemon::stamping_time_ns();
		struct stat st;
		ASSERT_EQ(::pwrite(fd.get(), "x", 1, 0), 1);
		ASSERT_EQ(::fstat(fd.get(), &st), 0);
		ASSERT_LE(now, coop::daemon::change_time_ns(st)) << i;
	}
}

TEST_F(daemon_versions, a_change_time_proves_nothing_until_its_clock_has_left_it)
{
	static std::uint64_t now;
	coop::daemon::change_clock clock{.fine = false, .now = [] { return now; }};
	const unique_fd fd(::open(tree_.c_str(), O_TMPFILE | O_RDWR, 0600));
	const coop::daemon::stillness still(fd.get(), true);
	ASSERT_TRUE(still.granted());
	const auto observed = [&](long nsec) {
		coop::daemon::version_record fresh;
		struct stat st {
		};
		st.st_ctim = {1000, nsec};
		return fresh.observe(st, still, clock);
	};
	const std::uint64_t at = 1'000'000'000'007;
	now = at; // even if hours have passed since
	EXPECT_TRUE(provisional(observed(7)));
	now = at + coop::daemon::coarse_ns;
	EXPECT_TRUE(provisional(observed(7)));
	now++;
	EXPECT_EQ(observed(7), at);
	// A file system with whole seconds stamps the rest of this second alike.
	EXPECT_TRUE(provisional(observed(0)));
	now = 1'001'000'000'001 + coop::daemon::coarse_ns;
	EXPECT_EQ(observed(0), 1'000'000'000'000u);
	// The clock of another machine may be behind ours.
	clock.ours = false;
	now = at + coop::daemon::coarse_ns + coop::daemon::settle_ns;
	EXPECT_TRUE(provisional(observed(7)));
	now++;
	EXPECT_EQ(observed(7), at);
}

TEST_F(daemon_versions, a_file_at_rest_keeps_its_version_also_over_a_restart)
{
	up();
	put("f", "text");
	older_than_any_granularity();
	const std::uint64_t version = find("f").attr.version;
	EXPECT_FALSE(provisional(version));
	EXPECT_EQ(find("f").attr.version, version);
	client_.reset();
	restart();
	client_ = connect();
	EXPECT_EQ(find("f").attr.version, version);
	EXPECT_EQ(open(find("f"), O_RDONLY).attr.version, version);
}

TEST_F(daemon_versions, a_writer_can_follow_its_own_versions)
{
	up();
	if (!server_->port() ||
	    !coop::daemon::change_clock::probe(::open(tree_.c_str(), O_RDONLY)).fine)
		GTEST_SKIP() << "SKIPPED: change times of this file system are coarse";
	put("f", "");
	const entry e = find("f");
	const open_result o = open(e, O_RDWR);
	std::uint64_t known = o.attr.version;
	write_result w{};
	for (int i = 0; i < 50; i++) {
		ASSERT_EQ(write_text(*client_, e, o.open_id, 4 * i, "text", w), 0);
		EXPECT_EQ(w.version_before, known) << i;
		EXPECT_NE(w.attr.version, known);
		known = w.attr.version;
	}
	// A foreign write in between shows.
	put("f", "foreign");
	ASSERT_EQ(write_text(*client_, e, o.open_id, 0, "text", w), 0);
	EXPECT_NE(w.version_before, known);
	known = w.attr.version;
	ASSERT_EQ(client_->close(e.fh, o.open_id, w), 0);
	EXPECT_EQ(w.version_before, known);
	EXPECT_EQ(w.attr.version, known);
}

TEST_F(daemon_versions, what_somebody_may_be_writing_never_gets_the_same_version_twice)
{
	up();
	put("f", std::string(4096, 'a'));
	const entry e = find("f");
	const int fd = ::open((tree_ / "f").c_str(), O_RDWR);
	ASSERT_EQ(::pwrite(fd, "x", 1, 0), 1); // from here on it may write at any time
	std::set<std::uint64_t> seen;
	for (int i = 0; i < 20; i++) {
		const std::uint64_t v = open(e, O_RDONLY).attr.version;
		EXPECT_TRUE(provisional(v));
		EXPECT_TRUE(seen.insert(v).second);
	}
	void *p = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(p, MAP_FAILED);
	::close(fd); // the mapping keeps it open for writing
	static_cast<char *>(p)[0] = 'b';
	EXPECT_TRUE(provisional(open(e, O_RDONLY).attr.version));
	::munmap(p, 4096);
	older_than_any_granularity();
	EXPECT_FALSE(provisional(open(e, O_RDONLY).attr.version));
}

TEST_F(daemon_versions, a_read_of_an_old_version_is_stale)
{
	up();
	put("f", std::string(300'000, 'a'));
	const entry e = find("f");
	const open_result o = open(e, O_RDONLY);
	int err;
	EXPECT_EQ(read_text(*client_, e, o.open_id, 0, 4, &err, o.attr.version), "aaaa");
	put("f", std::string(300'000, 'b'));
	read_text(*client_, e, o.open_id, 0, 4, &err, o.attr.version);
	EXPECT_EQ(err, -ESTALE);
	read_text(*client_, e, o.open_id, 0, 200'000, &err, o.attr.version);
	EXPECT_EQ(err, -ESTALE);
	EXPECT_EQ(read_text(*client_, e, o.open_id, 0, 200'000, &err), std::string(200'000, 'b'));
}

// Writers behind the daemon's back: each write puts one letter over the whole file, so that a
// mixture shows.
TEST_F(daemon_versions, equal_versions_mean_equal_bytes_under_racing_writers)
{
	up();
	constexpr std::size_t size = 512 * 1024; // streamed; half of it is copied
	static_assert(size > coop::daemon::copy_max && size / 2 <= coop::daemon::copy_max);
	put("f", std::string(size, 'a'));
	const entry e = find("f");
	std::atomic<bool> stop{false};
	std::thread writer([&] {
		for (unsigned i = 0; !stop; i++) {
			const int fd = ::open((tree_ / "f").c_str(), O_WRONLY);
			const std::string text(size, static_cast<char>('a' + i % 26));
			for (std::size_t at = 0; at < size; at += 16384)
				if (::pwrite(fd, text.data() + at, 16384, static_cast<off_t>(at)) !=
				    16384)
					break;
			::close(fd);
			std::this_thread::sleep_for(std::chrono::milliseconds(i % 4));
		}
	});
	std::map<std::pair<std::uint64_t, std::size_t>, std::string> content;
	unsigned round = 0, good = 0, stale = 0;
	// Few versions settle, and few reads meet a write, where the processors are busy.
	const auto begun = std::chrono::steady_clock::now();
	const auto within = [&](auto time) {
		return std::chrono::steady_clock::now() - begun < time;
	};
	while ((good < 300 || stale == 0) && within(good ? deadline / 3 : deadline)) {
		open_result o{};
		ASSERT_EQ(client_->open(me(), e.fh, O_RDONLY, 0, o), 0);
		int err;
		const std::size_t length = round++ % 2 ? size : size / 2;
		const std::string got =
			read_text(*client_, e, o.open_id, 0, length, &err, o.attr.version);
		write_result w{};
		client_->close(e.fh, o.open_id, w);
		if (err) {
			EXPECT_EQ(err, -ESTALE);
			stale++;
			continue;
		}
		if (provisional(o.attr.version))
			continue; // no other reply has this version
		good++;
		auto [it, fresh] = content.try_emplace({o.attr.version, length}, got);
		ASSERT_EQ(it->second == got, true) << "two contents of version " << o.attr.version;
		ASSERT_EQ(got.find_first_not_of(got[0]), got.npos)
			<< "a mixture has a settled version";
	}
	stop = true;
	writer.join();
	EXPECT_GT(good, 0u);
}
