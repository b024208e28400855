// SPDX-License-Identifier: MIT
// done_names.cpp - a change of names whose reply was lost with the daemon's process is made once.
#include "members_rig.hpp"

#include <fcntl.h>
#include <fstream>
#include <functional>
#include <sys/stat.h>

using namespace rig;
using coop::daemon::done_files;
using coop::daemon::names_once;
using coop::daemon::state_directory;

namespace
{

constexpr const char *boot = "one boot";
constexpr std::uint64_t first = 3; // id of the first request after the handshake

coop_st_bytes text(const std::string &s)
{
	return {reinterpret_cast<const u8 *>(s.data()), static_cast<u32>(s.size())};
}

class daemon_done_names : public members_test
{
protected:
	daemon_done_names() { settings_.boot_id = boot; }
	void SetUp() override
	{
		members_test::SetUp();
		serve("file", 1);
		put("file2", "");
		std::filesystem::create_directory(tree_ / "sub");
		root_ = client_->root();
	}
	// A request of the session, sent by a connection of its own. It always has the same id.
	int ask(std::uint16_t op, const coop_st_body &b, bool repeated)
	{
		plain_client c(port_, COOP_ST_VERSION, COOP_ST_VERSION, session_);
		c.flags = repeated ? COOP_ST_F_REPEAT : 0;
		const int status = c.ask(op, b);
		got_ = c.got;
		return status;
	}
	coop_st_body in(const std::string &name) const
	{
		coop_st_body b = plain_client::on(root_, 0);
		b.name = text(name);
		return b;
	}
	std::filesystem::path files() { return base_ / "state" / "names"; }
	std::size_t kept()
	{
		const std::filesystem::directory_iterator all(files());
		return static_cast<std::size_t>(std::distance(begin(all), end(all)));
	}
	// A process notes that it begins the session's request, which takes the name from a file,
	// and is killed.
	void begin_and_end_process(const std::string &source = {})
	{
		server_.reset();
		done_files all(state(), boot);
		const auto names = all.open(session(), alive_);
		ASSERT_TRUE(names);
		coop::daemon::done_names::change c{};
		c.request = first;
		if (!source.empty())
			c.source = coop::daemon::identify(AT_FDCWD, (tree_ / source).string());
		EXPECT_NE(names->begin(c), coop::daemon::done_names::nowhere);
	}
	state_directory state() { return state_directory((base_ / "state").string()); }
	std::string session() const
	{
		std::string id(COOP_ST_SESSION, '\0');
		id[0] = session_;
		return id;
	}
	void next_process()
	{
		server_.reset();
		restart();
	}
	// What is stamped from now on is stamped later than what was, and than a process that has
	// begun. The clock of the stamps may be behind by more than one of its steps.
	static void tick(std::uint64_t ns = 0)
	{
		const auto then = static_cast<std::uint64_t>(
			std::chrono::nanoseconds(
				std::chrono::system_clock::now().time_since_epoch())
				.count());
		EXPECT_TRUE(
			eventually([&] { return coop::daemon::change_time_now() > then + ns; }));
	}

	const std::atomic<bool> alive_{false};
	char session_ = 's'; // of the test's requests: each of its own
	entry root_;
	coop_st_body got_;
	std::string names_[8] = {"n0", "n1", "n2", "n3", "n4", "file2", "sub", "file"};
};

struct change {
	const char *what;
	std::uint16_t op;
	std::function<void(coop_st_body &)> fill;
};

const std::vector<change> makers = {
	{"mkdir", COOP_ST_MKDIR, [](coop_st_body &b) { b.mode = 0755; }},
	{"mknod", COOP_ST_MKNOD, [](coop_st_body &b) { b.mode = S_IFIFO | 0600; }},
	{"symlink", COOP_ST_SYMLINK,
	 [](coop_st_body &b) {
		 b.text = {reinterpret_cast<const u8 *>("there"), 5};
	 }},
	{"create", COOP_ST_CREATE,
	 [](coop_st_body &b) {
		 b.mode = 0444; // which permits no second open
		 b.open_id = 7;
		 b.flags = COOP_ST_O_READ | COOP_ST_O_WRITE | COOP_ST_O_EXCL;
	 }},
};

} // namespace

TEST_F(daemon_done_names, what_an_earlier_process_made_is_not_made_again)
{
	for (const change &c : makers) {
		const std::string name = c.what;
		coop_st_body b = in(name);
		c.fill(b);
		ASSERT_EQ(ask(c.op, b, false), 0) << c.what;
		const coop_fid made = got_.attr.fid;
		next_process();
		EXPECT_EQ(ask(c.op, b, true), 0) << c.what;
		EXPECT_EQ(got_.attr.fid.hi, made.hi) << c.what;
		next_process();
		EXPECT_EQ(ask(c.op, b, true), 0) << c.what << ", once more";
		EXPECT_EQ(ask(c.op, b, false), 0) << "a reply of this process";
		session_++;
	}
}

TEST_F(daemon_done_names, a_link_a_removal_and_a_rename_are_done_once)
{
	const auto run = [&](std::uint16_t op, const coop_st_body &b) {
		EXPECT_EQ(ask(op, b, false), 0) << op;
		next_process();
		EXPECT_EQ(ask(op, b, true), 0) << op;
		session_++;
	};
	coop_st_body link = in(names_[0]);
	link.fh2 = text(file_.fh);
	run(COOP_ST_LINK, link);
	coop_st_body rename = in(names_[0]);
	rename.fh2 = rename.fh;
	rename.name2 = text(names_[1]);
	run(COOP_ST_RENAME, rename);
	coop_st_body exchange = in(names_[1]);
	exchange.fh2 = exchange.fh;
	exchange.name2 = text(names_[5]);
	exchange.flags = COOP_ST_R_EXCHANGE;
	run(COOP_ST_RENAME, exchange);
	EXPECT_EQ(disk("n1"), "") << "exchanged once";
	run(COOP_ST_RMDIR, in(names_[6]));
	run(COOP_ST_UNLINK, in(names_[5]));
	EXPECT_FALSE(std::filesystem::exists(tree_ / "file2"));
}

TEST_F(daemon_done_names, a_repeated_removal_spares_what_others_made_since)
{
	ASSERT_EQ(ask(COOP_ST_UNLINK, in(names_[5]), false), 0);
	server_.reset();
	put("file2", "another's");
	restart();
	EXPECT_EQ(ask(COOP_ST_UNLINK, in(names_[5]), true), 0);
	EXPECT_EQ(disk("file2"), "another's");
}

TEST_F(daemon_done_names, a_failure_stays_one)
{
	coop_st_body b = in(names_[7]); // exists
	ASSERT_EQ(ask(COOP_ST_MKDIR, b, false), EEXIST);
	server_.reset();
	std::filesystem::remove(tree_ / "file");
	restart();
	EXPECT_EQ(ask(COOP_ST_MKDIR, b, true), EEXIST);
}

TEST_F(daemon_done_names, a_name_that_others_made_since_is_not_ours)
{
	coop_st_body b = in(names_[0]);
	makers[3].fill(b);
	ASSERT_EQ(ask(COOP_ST_CREATE, b, false), 0);
	server_.reset();
	std::filesystem::remove(tree_ / "n0");
	tick(100'000'000);
	put("n0", "another's");
	restart();
	EXPECT_EQ(ask(COOP_ST_CREATE, b, true), ESTALE);
}

TEST_F(daemon_done_names, what_an_earlier_process_had_only_begun_is_known_by_its_traces)
{
	for (const bool made : {false, true}) {
		begin_and_end_process();
		if (made)
			std::filesystem::create_directory(tree_ / "n0");
		restart();
		coop_st_body b = in(names_[0]);
		b.mode = 0755;
		EXPECT_EQ(ask(COOP_ST_MKDIR, b, true), 0) << made;
		EXPECT_TRUE(std::filesystem::remove(tree_ / "n0"));
		session_++;
	}
}

TEST_F(daemon_done_names, what_was_there_before_it_began_is_not_ours)
{
	std::filesystem::create_directory(tree_ / "n0");
	tick();
	begin_and_end_process();
	restart();
	coop_st_body b = in(names_[0]);
	b.mode = 0755;
	EXPECT_EQ(ask(COOP_ST_MKDIR, b, true), EEXIST);
}

TEST_F(daemon_done_names, what_others_made_after_the_restart_is_not_ours)
{
	begin_and_end_process();
	restart();
	tick();
	put("n0", "another's");
	coop_st_body b = in(names_[0]);
	makers[3].fill(b);
	EXPECT_EQ(ask(COOP_ST_CREATE, b, true), EEXIST);
}

TEST_F(daemon_done_names, what_others_made_after_a_restart_is_not_ours_after_the_next)
{
	begin_and_end_process();
	restart(); // the client does not come back to this process
	tick();
	put("n0", "another's");
	tick();
	next_process();
	coop_st_body b = in(names_[0]);
	makers[3].fill(b);
	EXPECT_EQ(ask(COOP_ST_CREATE, b, true), EEXIST);
}

TEST_F(daemon_done_names, a_removal_that_had_begun_spares_what_others_made_since)
{
	begin_and_end_process("file2");
	std::filesystem::remove(tree_ / "file2"); // as that process did
	tick();
	put("file2", "another's");
	restart();
	EXPECT_EQ(ask(COOP_ST_UNLINK, in(names_[5]), true), 0);
	EXPECT_EQ(disk("file2"), "another's");
	session_++;
	begin_and_end_process("file2"); // which removed nothing
	restart();
	EXPECT_EQ(ask(COOP_ST_UNLINK, in(names_[5]), true), 0);
	EXPECT_FALSE(std::filesystem::exists(tree_ / "file2"));
}

TEST_F(daemon_done_names, a_rename_that_had_begun_spares_what_others_made_since)
{
	coop_st_body b = in(names_[5]);
	b.fh2 = b.fh;
	b.name2 = text(names_[7]);
	begin_and_end_process("file2");
	std::filesystem::rename(tree_ / "file2", tree_ / "file");
	tick();
	put("file2", "another's");
	restart();
	EXPECT_EQ(ask(COOP_ST_RENAME, b, true), 0);
	EXPECT_EQ(disk("file2"), "another's");
	EXPECT_EQ(disk("file"), "");
	session_++;
	begin_and_end_process("file2"); // which renamed nothing
	restart();
	EXPECT_EQ(ask(COOP_ST_RENAME, b, true), 0);
	EXPECT_EQ(disk("file"), "another's");
	session_++;
	put("file2", "");
	begin_and_end_process("file2");
	std::filesystem::remove(tree_ / "file2"); // another did that
	restart();
	EXPECT_EQ(ask(COOP_ST_RENAME, b, true), ENOENT);
}

TEST_F(daemon_done_names, an_exchange_that_had_begun_is_not_taken_back)
{
	begin_and_end_process("file");
	ASSERT_EQ(::renameat2(AT_FDCWD, (tree_ / "file").c_str(), AT_FDCWD,
			      (tree_ / "file2").c_str(), RENAME_EXCHANGE),
		  0);
	restart();
	coop_st_body b = in(names_[7]);
	b.fh2 = b.fh;
	b.name2 = text(names_[5]);
	b.flags = COOP_ST_R_EXCHANGE;
	EXPECT_EQ(ask(COOP_ST_RENAME, b, true), 0);
	EXPECT_EQ(disk("file2"), "x");
}

class daemon_done_appends : public daemon_done_names
{
protected:
	// A client of its own appends a line; always as the request of the same id.
	int append(char session, bool repeated = false)
	{
		constexpr std::uint64_t id = 7; // of the open file
		plain_client c(port_, COOP_ST_VERSION, COOP_ST_VERSION, session);
		coop_st_body o = plain_client::on(file_, id);
		o.flags = COOP_ST_O_WRITE | COOP_ST_O_APPEND | (repeated ? COOP_ST_O_AGAIN : 0);
		c.number(100);
		EXPECT_EQ(c.ask(COOP_ST_OPEN, o), 0);
		c.number(first);
		c.flags = repeated ? COOP_ST_F_REPEAT : 0;
		c.data = "line\n";
		return c.ask(COOP_ST_WRITE, plain_client::on(file_, id));
	}
	// The process is killed when appends have begun and have not ended.
	void kill()
	{
		constexpr std::uintmax_t change = 64, head = 64;
		server_.reset();
		for (const auto &f : std::filesystem::directory_iterator(files()))
			std::filesystem::resize_file(f, head + COOP_ST_REQUESTS_MAX * change);
	}
	// A process that got so far with the append of session 'a'.
	void begin_and_end_process(const std::string &has)
	{
		put("file", "x");
		EXPECT_EQ(append('a'), 0);
		kill();
		put("file", has);
		restart();
	}
	// A process that knows of no session, for the next round of a test.
	void begin_anew()
	{
		server_.reset();
		std::filesystem::remove_all(files());
		restart();
	}
};

TEST_F(daemon_done_appends, is_made_once)
{
	EXPECT_EQ(append('a'), 0);
	next_process();
	EXPECT_EQ(append('a', true), 0);
	EXPECT_EQ(disk("file"), "xline\n") << "of what had ended";
}

TEST_F(daemon_done_appends, one_that_had_begun_is_made_once)
{
	for (const char *had : {"x", "xli", "xline\n"}) {
		begin_and_end_process(had);
		EXPECT_EQ(append('a', true), 0);
		EXPECT_EQ(disk("file"), "xline\n") << had;
		begin_anew();
	}
	begin_and_end_process("xlimb\n"); // by a program of the daemon's machine
	EXPECT_EQ(append('a', true), 0);
	EXPECT_EQ(disk("file"), "xlimb\nline\n");
}

TEST_F(daemon_done_appends, one_that_was_not_made_is_not_lost_to_the_same_bytes_of_another)
{
	for (const bool restarted : {false, true}) {
		begin_and_end_process("x");
		EXPECT_EQ(append('b'), 0);
		if (restarted)
			next_process();
		EXPECT_EQ(append('a', true), 0);
		EXPECT_EQ(disk("file"), "xline\nline\n") << restarted;
		begin_anew();
	}
}

TEST_F(daemon_done_appends, only_what_was_made_whole_is_not_made_again_after_anothers)
{
	const std::pair<const char *, const char *> cases[] = {
		{"xline\n", "xline\nline\n"},
		{"xli", "xliline\nline\n"}, // others have appended to the part: the line is whole
	};
	for (const auto &[made, then] : cases) {
		begin_and_end_process(made);
		EXPECT_EQ(append('b'), 0);
		EXPECT_EQ(append('a', true), 0);
		EXPECT_EQ(disk("file"), then);
		begin_anew();
	}
}

TEST_F(daemon_done_appends, one_that_a_second_process_made_elsewhere_is_not_made_again)
{
	begin_and_end_process("x");
	EXPECT_EQ(append('b'), 0);
	EXPECT_EQ(append('a', true), 0);
	kill();
	restart();
	EXPECT_EQ(append('a', true), 0);
	EXPECT_EQ(append('b', true), 0);
	EXPECT_EQ(disk("file"), "xline\nline\n");
}

// A range that is collapsed or inserted: run twice, it moves what is behind it twice.
class daemon_done_shifts : public daemon_done_appends
{
protected:
	static constexpr std::size_t block = 65536; // no file system has larger ones
	void SetUp() override
	{
		daemon_done_appends::SetUp();
		put("file", blocks("ABCD"));
		const int fd = ::open((tree_ / "file").c_str(), O_RDWR);
		const bool can = !::fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, block);
		::close(fd);
		if (!can)
			GTEST_SKIP() << "the file system cannot do that";
		put("file", blocks("ABCD"));
	}
	static std::string blocks(const std::string &letters)
	{
		std::string all;
		for (const char c : letters)
			all.append(block, c);
		return all;
	}
	// The file, a letter a block; '.' is one that was inserted.
	std::string letters()
	{
		const std::string all = disk("file");
		std::string out;
		for (std::size_t at = 0; at < all.size(); at += block)
			out += all[at] ? all[at] : '.';
		return out;
	}
	// The second block is to go, or to become the third.
	int shift(char session, std::uint32_t how, bool repeated = false)
	{
		constexpr std::uint64_t id = 7;
		plain_client c(port_, COOP_ST_VERSION, COOP_ST_VERSION, session);
		coop_st_body b = plain_client::on(file_, id);
		b.flags = COOP_ST_O_WRITE | (repeated ? COOP_ST_O_AGAIN : 0);
		c.number(100);
		EXPECT_EQ(c.ask(COOP_ST_OPEN, b), 0);
		c.number(first);
		c.flags = repeated ? COOP_ST_F_REPEAT : 0;
		b = plain_client::on(file_, id);
		b.flags = how;
		b.offset = b.length = block;
		const int status = c.ask(COOP_ST_FALLOCATE, b);
		EXPECT_EQ(c.got.attr.size, status ? 0 : disk("file").size());
		return status;
	}
	static constexpr std::uint32_t both[] = {COOP_ST_FA_COLLAPSE, COOP_ST_FA_INSERT};
	static std::string once(std::uint32_t how)
	{
		return how == COOP_ST_FA_COLLAPSE ? "ACD" : "A.BCD";
	}
	// A process that has begun the change and made it, or not.
	void begin_and_end_shift(std::uint32_t how, bool made)
	{
		put("file", blocks("ABCD"));
		EXPECT_EQ(shift('a', how), 0);
		kill();
		if (!made)
			put("file", blocks("ABCD"));
		restart();
	}
};

TEST_F(daemon_done_shifts, are_made_once)
{
	for (const std::uint32_t how : both) {
		put("file", blocks("ABCD"));
		EXPECT_EQ(shift('a', how), 0);
		next_process();
		EXPECT_EQ(shift('a', how, true), 0);
		EXPECT_EQ(letters(), once(how)) << "what had ended";
		begin_anew();
		for (const bool made : {true, false}) {
			begin_and_end_shift(how, made);
			EXPECT_EQ(shift('a', how, true), 0);
			EXPECT_EQ(letters(), once(how)) << "what had begun, made " << made;
			begin_anew();
		}
	}
}

TEST_F(daemon_done_shifts, are_made_once_beside_those_of_others)
{
	for (const bool restarted : {false, true}) {
		begin_and_end_shift(COOP_ST_FA_COLLAPSE, false);
		EXPECT_EQ(shift('b', COOP_ST_FA_COLLAPSE), 0);
		if (restarted)
			next_process();
		EXPECT_EQ(shift('a', COOP_ST_FA_COLLAPSE, true), 0);
		EXPECT_EQ(letters(), "AD") << "both, restarted " << restarted;
		begin_anew();
		begin_and_end_shift(COOP_ST_FA_COLLAPSE, true);
		EXPECT_EQ(shift('b', COOP_ST_FA_INSERT), 0);
		if (restarted)
			next_process();
		EXPECT_EQ(shift('a', COOP_ST_FA_COLLAPSE, true), 0);
		EXPECT_EQ(letters(), "A.CD") << "both, restarted " << restarted;
		begin_anew();
	}
}

TEST_F(daemon_done_names, a_crash_of_the_machine_voids_what_was_kept)
{
	coop_st_body b = in(names_[0]);
	b.mode = 0755;
	ASSERT_EQ(ask(COOP_ST_MKDIR, b, false), 0);
	EXPECT_EQ(kept(), 1u);
	server_.reset();
	settings_.boot_id = "another boot";
	restart();
	EXPECT_EQ(kept(), 0u);
	std::filesystem::remove(tree_ / "n0"); // lost by the crash
	EXPECT_EQ(ask(COOP_ST_MKDIR, b, true), 0);
	EXPECT_TRUE(std::filesystem::exists(tree_ / "n0")) << "made again";
}

TEST_F(daemon_done_names, a_file_ends_with_its_session)
{
	coop_st_body b = in(names_[0]);
	b.mode = 0755;
	ASSERT_EQ(ask(COOP_ST_MKDIR, b, false), 0);
	ASSERT_EQ(kept(), 1u);
	std::uint64_t used = 0;
	// It ends with the last of its connections, and earlier ones may still be closing.
	EXPECT_TRUE(eventually([&] {
		plain_client end(port_, COOP_ST_VERSION, COOP_ST_VERSION, session_, used += 10);
		return end.ask(COOP_ST_BYE, {}) || !kept();
	}));
	EXPECT_EQ(kept(), 0u);
}

TEST_F(daemon_done_names, sessions_that_have_not_come_back_have_ended)
{
	coop_st_body b = in(names_[0]);
	b.mode = 0755;
	ASSERT_EQ(ask(COOP_ST_MKDIR, b, false), 0);
	server_.reset();
	done_files all(state(), boot);
	const auto other = all.open("other", alive_);
	ASSERT_TRUE(other);
	EXPECT_EQ(kept(), 2u);
	all.end_grace();
	EXPECT_EQ(kept(), 1u);
	const std::atomic<bool> over{true};
	EXPECT_FALSE(all.open(session(), over)) << "no file is left by a request that runs late";
	EXPECT_EQ(kept(), 1u);
	all.limit(1);
	EXPECT_FALSE(all.open(session(), alive_)) << "each takes a descriptor";
	all.forget("other");
	EXPECT_EQ(kept(), 0u);
}

TEST_F(daemon_done_names, what_is_no_file_of_ours_is_not_believed)
{
	coop_st_body b = in(names_[0]);
	b.mode = 0755;
	ASSERT_EQ(ask(COOP_ST_MKDIR, b, false), 0);
	server_.reset();
	const std::filesystem::path mine = *std::filesystem::directory_iterator(files());
	struct stat st;
	ASSERT_EQ(::stat(mine.c_str(), &st), 0);
	EXPECT_EQ(st.st_mode & 07777, 0600u);
	EXPECT_EQ(mine.string().find(session()), std::string::npos)
		<< "who knows it is the session";
	std::string good(static_cast<std::size_t>(st.st_size), '\0');
	std::ifstream(mine, std::ios::binary).read(good.data(), st.st_size);
	const auto becomes = [&](const std::string &bytes) {
		std::filesystem::remove(mine);
		std::ofstream(mine, std::ios::binary) << bytes;
		::chmod(mine.c_str(), 0600);
	};
	std::string other = good;
	other[20] ^= 1; // of another boot
	for (const std::string &bad : {std::string(), std::string("coopfs names 1"), other,
				       good + std::string(1 << 20, 'x')}) {
		becomes(bad);
		restart();
		EXPECT_EQ(ask(COOP_ST_MKDIR, b, true), EEXIST) << bad.size();
		server_.reset();
		std::filesystem::remove(mine);
	}
	// Garbage after a good head: no outcome that is none, and no crash.
	becomes(good.substr(0, 64) + std::string(good.size() - 64, '\377'));
	restart();
	EXPECT_EQ(ask(COOP_ST_MKDIR, b, true), EEXIST);
	server_.reset();
	// Cut short: what is there counts.
	becomes(good.substr(0, good.size() - 1));
	restart();
	EXPECT_NE(ask(COOP_ST_MKDIR, b, true), -1);
	server_.reset();
	// A link, or a file that others may write to, may be another user's work.
	std::filesystem::remove(mine);
	put("victim", "precious");
	std::filesystem::create_symlink(tree_ / "victim", mine);
	restart();
	EXPECT_EQ(ask(COOP_ST_MKDIR, b, true), EEXIST);
	EXPECT_EQ(disk("victim"), "precious");
	server_.reset();
	becomes(good);
	::chmod(mine.c_str(), 0622);
	restart();
	EXPECT_EQ(ask(COOP_ST_MKDIR, b, true), EEXIST);
}

TEST_F(daemon_done_names, the_latest_outcomes_are_kept_and_only_they)
{
	using coop::daemon::done_names;
	done_files all(state(), boot);
	constexpr std::uint64_t some = 1000;
	const auto begin = [](done_names &names, std::uint64_t id) {
		done_names::change c{};
		c.request = id;
		return names.begin(c);
	};
	{
		const auto names = all.open("a", alive_);
		for (std::uint64_t id = 1; id <= some; id++) {
			done_names::change c{};
			c.request = id;
			const std::size_t place = names->begin(c);
			names->ended(place, c, id % 2 ? 0 : -ENOENT);
		}
		for (std::uint64_t id = 1; id <= COOP_ST_REQUESTS_MAX; id++) {
			EXPECT_NE(begin(*names, some + id), done_names::nowhere);
			if (id == 1)
				tick();
		}
		EXPECT_EQ(begin(*names, 5000), done_names::nowhere) << "too many run";
	}
	const auto names = all.open("a", alive_);
	std::size_t place;
	for (std::uint64_t id = 1; id <= some; id++) {
		const auto found = names->earlier(id, place);
		EXPECT_EQ(found.has_value(), id > some - 2 * COOP_ST_REQUESTS_MAX) << id;
		if (found)
			EXPECT_EQ(found->status, id % 2 ? 0u : static_cast<unsigned>(ENOENT));
	}
	EXPECT_TRUE(names->earlier(some + 2, place));
	EXPECT_NE(begin(*names, 5000), done_names::nowhere)
		<< "what is not repeated does not stop new ones";
	EXPECT_FALSE(names->earlier(some + 1, place)) << "the oldest made room";
	EXPECT_TRUE(names->earlier(some + 3, place));
}
