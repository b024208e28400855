// SPDX-License-Identifier: MIT
// leases.cpp - leases among clients of one daemon: requests that a lease saves, recalls before
// a change, clients that do not answer.
#include "rig.hpp"

#include <sys/mman.h>
#include <thread>

#include "userland/client/leased_storage.hpp"

using namespace rig;

namespace
{

std::string calls(const std::string &stats)
{
	std::string out, line;
	std::istringstream in(stats);
	while (std::getline(in, line))
		if (line.starts_with("calls ") && line.find("lease_return") == line.npos &&
		    line.find("close") == line.npos)
			out += line + "\n";
	return out;
}

// A client that records recalls and returns a lease when the test says so.
struct holder {
	std::mutex mutex;
	std::vector<coop_fid> recalls;
	std::unique_ptr<storage> s; // ends first

	explicit holder(storage_options o)
	{
		o.leases = true;
		o.on_recall = [this](const coop_fid &f) {
			std::lock_guard lock(mutex);
			recalls.push_back(f);
		};
		s = coop::client::connect_without_leases(o);
	}
	bool told_of(const coop_fid &f)
	{
		std::lock_guard lock(mutex);
		for (const coop_fid &r : recalls)
			if (r.hi == f.hi && r.lo == f.lo)
				return true;
		return false;
	}
	void give_back_all() const
	{
		s->return_lease({}, [] {});
	}
	entry find(const std::string &name) const
	{
		entry e;
		EXPECT_EQ(s->lookup(me(), s->root().fh, name, e), 0) << name;
		EXPECT_TRUE(e.attr.leased) << name;
		return e;
	}
};

} // namespace

class daemon_leases : public daemon_test
{
protected:
	void SetUp() override
	{
		daemon_test::SetUp();
		put("f", "0123456789");
		put("g", "9876543210");
		std::filesystem::create_directory(tree_ / "d");
		put("d/inside", "x");
		std::filesystem::create_symlink("f", tree_ / "s");
		// Change times must prove the contents of files, even where they are coarse.
		std::this_thread::sleep_for(std::chrono::milliseconds(60));
	}
	std::unique_ptr<storage> leased()
	{
		storage_options o = client_options();
		o.leases = true;
		return coop::client::connect_with_leases(o);
	}
	std::string asked() { return calls(server_->stats_text()); }
	bool stats_say(const std::string &line)
	{
		return (server_->stats_text()).find("\n" + line + "\n") != std::string::npos;
	}
	static entry lookup(storage &s, const entry &dir, const std::string &name)
	{
		entry e;
		EXPECT_EQ(s.lookup(me(), dir.fh, name, e), 0) << name;
		return e;
	}
	static std::vector<std::string> names(storage &s, const entry &dir)
	{
		std::vector<std::string> out;
		bool end = false;
		for (std::uint64_t cookie = 0; !end;) {
			std::vector<coop::client::dir_entry> part;
			EXPECT_EQ(s.readdir(me(), dir.fh, cookie, 300, part, end), 0);
			for (const auto &e : part) {
				out.push_back(e.name);
				cookie = e.cookie;
			}
		}
		std::sort(out.begin(), out.end());
		return out;
	}
	// Asks everything that a look at the tree asks; returns the answers.
	std::string look(storage &s)
	{
		std::string out;
		attributes a;
		const entry root = s.root();
		EXPECT_EQ(s.getattr(me(), root.fh, a), 0);
		const entry f = lookup(s, root, "f"), d = lookup(s, root, "d"),
			    inside = lookup(s, d, "inside"), link = lookup(s, root, "s");
		for (const entry *e : {&root, &d})
			for (const std::string &name : names(s, *e))
				out += name + " ";
		entry none;
		EXPECT_EQ(s.lookup(me(), root.fh, "missing", none), -ENOENT);
		EXPECT_EQ(s.getattr(me(), f.fh, a), 0);
		out += std::to_string(a.st.st_mode) + " " + std::to_string(a.st.st_size) + " ";
		open_result o{};
		EXPECT_EQ(s.open(me(), inside.fh, O_RDONLY, 0, o), 0);
		out += std::to_string(o.attr.version) + " ";
		s.close_reader(inside.fh, o.open_id);
		std::string target;
		EXPECT_EQ(s.readlink(me(), link.fh, target), 0);
		return out + target;
	}
};

TEST_F(daemon_leases, what_is_leased_is_not_asked_for_again)
{
	start();
	auto a = leased();
	const std::string first = look(*a), once = asked();
	EXPECT_EQ(look(*a), first);
	EXPECT_EQ(asked(), once);
	EXPECT_NE(first.find("d f g s inside"), first.npos);
	EXPECT_GE(a->leases().held, 5u);
}

TEST_F(daemon_leases, a_change_of_names_tells_what_the_directory_is_then)
{
	start();
	holder a(client_options());
	const auto root = a.s->root().fh;
	entry e;
	coop::client::attributes before{}, after{};
	ASSERT_EQ(a.s->mkdir(me(), root, "new", 0755, e, &after), 0);
	EXPECT_TRUE(e.attr.leased && e.attr.no_names);
	EXPECT_EQ(after.st.st_mode, 0u) << "without a lease it proves nothing";
	ASSERT_EQ(a.s->getattr(me(), root, before), 0);
	ASSERT_TRUE(before.leased);
	ASSERT_EQ(a.s->mkdir(me(), root, "newer", 0755, e, &after), 0);
	EXPECT_TRUE(after.leased);
	EXPECT_EQ(after.st.st_nlink, before.st.st_nlink + 1);
	ASSERT_EQ(a.s->mkdir(me(), e.fh, "below", 0755, e, &after), 0);
	EXPECT_EQ(after.st.st_nlink, 3u);
	ASSERT_EQ(a.s->rmdir(me(), root, "new", &after), 0);
	EXPECT_EQ(after.st.st_nlink, before.st.st_nlink);
	ASSERT_EQ(a.s->unlink(me(), root, "f", &after), 0);
	ASSERT_EQ(a.s->getattr(me(), root, before), 0);
	EXPECT_EQ(after.st.st_mtim.tv_nsec, before.st.st_mtim.tv_nsec);
}

TEST_F(daemon_leases, another_user_is_judged_by_storage)
{
	if (::geteuid())
		GTEST_SKIP() << "needs root";
	::chmod((tree_ / "f").c_str(), 0600);
	::chmod((tree_ / "d").c_str(), 0700);
	start();
	auto a = leased();
	look(*a);
	const entry f = lookup(*a, a->root(), "f"), d = lookup(*a, a->root(), "d");
	const caller other{12345, 12345, {}};
	open_result o{};
	entry e;
	bool end;
	std::vector<coop::client::dir_entry> list;
	EXPECT_EQ(a->open(other, f.fh, O_RDONLY, 0, o), -EACCES);
	EXPECT_EQ(a->lookup(other, d.fh, "inside", e), -EACCES);
	EXPECT_EQ(a->readdir(other, d.fh, 0, 4096, list, end), -EACCES);
	EXPECT_EQ(a->lookup(me(), d.fh, "inside", e), 0);
}

TEST_F(daemon_leases, a_change_waits_until_the_lease_is_back)
{
	start();
	holder a(client_options());
	client_ = connect();
	const entry f = a.find("f");
	std::atomic<bool> done{false};
	std::thread changer([&] {
		storage::setattr_request q{};
		q.valid = storage::set_mode;
		q.mode = 0600;
		write_result r;
		EXPECT_EQ(client_->setattr(me(), f.fh, q, r), 0);
		done = true;
	});
	ASSERT_TRUE(eventually([&] { return a.told_of(f.attr.fid); }));
	attributes now;
	EXPECT_EQ(a.s->getattr(me(), f.fh, now), 0);
	EXPECT_EQ(now.st.st_mode & 07777, f.attr.st.st_mode & 07777)
		<< "not before we return the lease";
	EXPECT_FALSE(now.leased) << "it is about to change";
	EXPECT_FALSE(done);
	a.s->return_lease(f.attr.fid, [] {});
	changer.join();
	EXPECT_EQ(a.s->getattr(me(), f.fh, now), 0);
	EXPECT_EQ(now.st.st_mode & 07777, 0600u);
}

// The daemon reports each change, before it happens, to every client that relies on it. A
// waiting change of ours must not hide one that does not wait.
TEST_F(daemon_leases, changes_on_the_daemons_machine_are_told_while_others_wait)
{
	start();
	holder a(client_options()), b(client_options());
	attributes root;
	for (const holder *h : {&a, &b}) {
		ASSERT_EQ(h->s->getattr(me(), h->s->root().fh, root), 0);
		ASSERT_TRUE(root.leased);
	}
	std::thread changer([&] {
		entry made;
		EXPECT_EQ(a.s->mkdir(me(), a.s->root().fh, "new", 0755, made), 0);
	});
	EXPECT_TRUE(eventually([&] { return b.told_of(root.fid); }));
	EXPECT_FALSE(a.told_of(root.fid)) << "a keeps its lease over its own change";
	put("local", "x");
	EXPECT_TRUE(eventually([&] { return a.told_of(root.fid); }));
	b.give_back_all();
	changer.join();
	a.give_back_all();
}

TEST_F(daemon_leases, every_change_recalls_what_it_touches)
{
	start();
	client_ = connect();
	storage &b = *client_;
	const entry root = b.root();
	struct change {
		const char *what;
		std::vector<std::string> touched; // "": the root
		std::function<int()> act;
	};
	entry e;
	open_result o{};
	write_result w;
	const auto close = [&](int err, const entry &of) {
		return err ? err : b.close(of.fh, o.open_id, w);
	};
	const change all[] = {
		{"create",
		 {""},
		 [&] { return close(b.create(me(), root.fh, "new", O_WRONLY, 0644, e, o), e); }},
		{"create of what is there",
		 {"f"},
		 [&] { return close(b.create(me(), root.fh, "f", O_WRONLY, 0644, e, o), e); }},
		{"open for writing",
		 {"f"},
		 [&] {
			 e = find("f");
			 return close(b.open(me(), e.fh, O_RDWR, 0, o), e);
		 }},
		{"truncation",
		 {"f"},
		 [&] {
			 storage::setattr_request q{};
			 q.valid = storage::set_size;
			 q.size = 3;
			 return b.setattr(me(), find("f").fh, q, w);
		 }},
		{"mkdir", {""}, [&] { return b.mkdir(me(), root.fh, "newdir", 0755, e); }},
		{"mknod", {""}, [&] { return b.mknod(me(), root.fh, "p", S_IFIFO | 0644, 0, e); }},
		{"symlink", {""}, [&] { return b.symlink(me(), "x", root.fh, "sym", e); }},
		{"link", {"", "f"}, [&] { return b.link(me(), find("f").fh, root.fh, "f2", e); }},
		{"rename",
		 {"", "d", "f2"},
		 [&] { return b.rename(me(), root.fh, "f2", find("d").fh, "f3", 0); }},
		{"rename over a file",
		 {"", "f", "g"},
		 [&] { return b.rename(me(), root.fh, "g", root.fh, "f", 0); }},
		{"unlink", {"", "f"}, [&] { return b.unlink(me(), root.fh, "f"); }},
		{"rmdir", {"", "newdir"}, [&] { return b.rmdir(me(), root.fh, "newdir"); }},
	};
	for (const change &c : all) {
		std::this_thread::sleep_for(std::chrono::milliseconds(60)); // as in SetUp()
		holder a(client_options());
		std::vector<coop_fid> leases;
		for (const std::string &name : c.touched) {
			attributes dir;
			if (name.empty()) {
				EXPECT_EQ(a.s->getattr(me(), root.fh, dir), 0);
				EXPECT_TRUE(dir.leased);
				leases.push_back(dir.fid);
			} else {
				leases.push_back(a.find(name).attr.fid);
			}
		}
		std::atomic<int> result{1};
		std::thread changer([&] { result = c.act(); });
		for (std::size_t i = 0; i < leases.size(); i++)
			EXPECT_TRUE(eventually([&] { return a.told_of(leases[i]); }))
				<< c.what << ": '" << c.touched[i] << "' was not recalled";
		EXPECT_EQ(result, 1) << c.what << " did not wait";
		a.give_back_all();
		changer.join();
		EXPECT_EQ(result, 0) << c.what;
	}
}

TEST_F(daemon_leases, who_does_not_answer_loses_it)
{
	start();
	holder a(client_options());
	client_ = connect();
	const entry f = a.find("f");
	std::thread changer([&] { EXPECT_EQ(client_->unlink(me(), client_->root().fh, "f"), 0); });
	ASSERT_TRUE(eventually([&] { return a.told_of(f.attr.fid); }));
	auto &table = server_->files().leases;
	table.expire(coop::boot_clock::now() + coop::daemon::lease_answer_time / 2);
	EXPECT_TRUE(std::filesystem::exists(tree_ / "f"));
	table.expire(coop::boot_clock::now() + coop::daemon::lease_answer_time);
	changer.join();
	EXPECT_FALSE(std::filesystem::exists(tree_ / "f"));
	EXPECT_TRUE(stats_say("leases_unanswered 1"));
}

TEST_F(daemon_leases, a_client_that_ends_gives_them_back)
{
	start();
	auto a = std::make_unique<holder>(client_options());
	client_ = connect();
	a->find("f");
	std::thread changer([&] { EXPECT_EQ(client_->unlink(me(), client_->root().fh, "f"), 0); });
	ASSERT_TRUE(eventually([&] { return stats_say("leases_recalled 1"); }));
	a.reset();
	changer.join();
	EXPECT_TRUE(eventually([&] { return stats_say("leases 0"); }));
}

TEST_F(daemon_leases, two_that_rely_on_the_same_do_not_wait_for_each_other)
{
	start();
	auto a = leased(), b = leased();
	std::vector<std::thread> threads;
	for (storage *s : {a.get(), b.get()})
		threads.emplace_back([this, s] {
			const entry root = s->root();
			for (int i = 0; i < 50; i++) {
				look(*s);
				entry e;
				const std::string name = "n" + std::to_string(i);
				const int made = s->mkdir(me(), root.fh, name, 0755, e);
				EXPECT_TRUE(made == 0 || made == -EEXIST) << made;
				const int gone = s->rmdir(me(), root.fh, name);
				EXPECT_TRUE(gone == 0 || gone == -ENOENT) << gone;
			}
		});
	for (std::thread &t : threads)
		t.join();
	EXPECT_TRUE(stats_say("leases_unanswered 0"));
	const std::string expected = look(*a);
	EXPECT_EQ(look(*b), expected);
	EXPECT_NE(expected.find("d f g s inside"), expected.npos);
}

// What a client knows of its own directory is right.
TEST_F(daemon_leases, its_own_changes_are_known)
{
	start();
	auto a = leased();
	const entry root = a->root();
	entry dir, e;
	ASSERT_EQ(a->mkdir(me(), root.fh, "own", 0755, dir), 0);
	EXPECT_EQ(a->lookup(me(), dir.fh, "none", e), -ENOENT); // we may search it
	const std::string before = asked();
	EXPECT_EQ(a->lookup(me(), dir.fh, "another", e), -ENOENT);
	EXPECT_EQ(asked(), before) << "no other client can have changed it";
	EXPECT_TRUE(names(*a, dir).empty());
	open_result o{};
	write_result w;
	ASSERT_EQ(a->create(me(), dir.fh, "one", O_WRONLY, 0644, e, o), 0);
	ASSERT_EQ(a->close(e.fh, o.open_id, w), 0);
	EXPECT_EQ(names(*a, dir), std::vector<std::string>{"one"});
	ASSERT_EQ(a->rename(me(), dir.fh, "one", dir.fh, "two", 0), 0);
	EXPECT_EQ(a->lookup(me(), dir.fh, "one", e), -ENOENT);
	EXPECT_EQ(a->lookup(me(), dir.fh, "two", e), 0);
	ASSERT_EQ(a->link(me(), e.fh, dir.fh, "three", e), 0);
	attributes attr;
	EXPECT_EQ(a->getattr(me(), e.fh, attr), 0);
	EXPECT_EQ(attr.st.st_nlink, 2u);
	EXPECT_EQ(names(*a, dir), (std::vector<std::string>{"three", "two"}));
	ASSERT_EQ(a->unlink(me(), dir.fh, "two"), 0);
	EXPECT_EQ(a->getattr(me(), e.fh, attr), 0);
	EXPECT_EQ(attr.st.st_nlink, 1u);
	EXPECT_EQ(a->rmdir(me(), root.fh, "own"), -ENOTEMPTY);
	ASSERT_EQ(a->unlink(me(), dir.fh, "three"), 0);
	EXPECT_TRUE(names(*a, dir).empty());
	ASSERT_EQ(a->rmdir(me(), root.fh, "own"), 0);
	EXPECT_EQ(a->lookup(me(), root.fh, "own", e), -ENOENT);
	storage::setattr_request q{};
	q.valid = storage::set_mode;
	q.mode = 0640;
	e = lookup(*a, root, "f");
	ASSERT_EQ(a->setattr(me(), e.fh, q, w), 0);
	EXPECT_EQ(a->getattr(me(), e.fh, attr), 0);
	EXPECT_EQ(attr.st.st_mode & 07777, 0640u);
}

TEST_F(daemon_leases, a_file_opened_within_a_lease_lives_until_its_last_close)
{
	start();
	auto a = leased();
	client_ = connect();
	const entry f = lookup(*a, a->root(), "f");
	open_result o{}, o2{};
	ASSERT_EQ(a->open(me(), f.fh, O_RDONLY, 0, o), 0);
	const std::string before = asked();
	ASSERT_EQ(a->open(me(), f.fh, O_RDONLY, 0, o2), 0);
	EXPECT_EQ(asked(), before);
	a->close_reader(f.fh, o.open_id);
	ASSERT_EQ(client_->unlink(me(), client_->root().fh, "f"), 0);
	EXPECT_EQ(read_text(*a, f, o2.open_id, 0, 100), "0123456789");
	a->close_reader(f.fh, o2.open_id);
	EXPECT_TRUE(eventually([&] { return stats_say("opens 0"); }));
}

TEST_F(daemon_leases, nothing_is_relied_on_over_a_restart_of_the_daemon)
{
	start();
	auto a = leased();
	const entry f = lookup(*a, a->root(), "f");
	open_result o{};
	ASSERT_EQ(a->open(me(), f.fh, O_RDONLY, 0, o), 0);
	a->close_reader(f.fh, o.open_id);
	ASSERT_EQ(a->open(me(), f.fh, O_RDONLY, 0, o), 0);
	ASSERT_GT(a->leases().held, 0u);
	restart();
	ASSERT_TRUE(eventually([&] { return a->stats().reconnects == 1; }));
	EXPECT_EQ(a->leases().held, 0u);
	ASSERT_TRUE(eventually([&] { return stats_say("opens 1"); }))
		<< "the client reports its open files";
	client_ = connect();
	ASSERT_EQ(client_->unlink(me(), client_->root().fh, "f"), 0);
	EXPECT_EQ(read_text(*a, f, o.open_id, 0, 100), "0123456789");
	// Leases come back, too.
	EXPECT_TRUE(eventually([&] {
		attributes attr;
		return !a->getattr(me(), a->root().fh, attr) && a->leases().held > 0;
	}));
}

TEST_F(daemon_leases, changes_on_the_daemons_machine_are_told)
{
	start();
	auto a = leased();
	look(*a);
	put("f", "changed here");
	put("fresh", "x");
	std::filesystem::remove(tree_ / "g");
	const entry root = a->root();
	entry e;
	EXPECT_TRUE(eventually([&] {
		attributes attr;
		return !a->getattr(me(), lookup(*a, root, "f").fh, attr) && attr.st.st_size == 12;
	}));
	EXPECT_TRUE(eventually([&] { return a->lookup(me(), root.fh, "fresh", e) == 0; }));
	EXPECT_TRUE(eventually([&] { return a->lookup(me(), root.fh, "g", e) == -ENOENT; }));
	EXPECT_TRUE(stats_say("leases_unanswered 0"));
}

// Another client may look before the daemon has read the kernel's notice.
TEST_F(daemon_leases, a_change_that_another_client_sees_first_is_told)
{
	start();
	for (int i = 0; i < 50; i++) {
		holder a(client_options()), b(client_options());
		attributes root;
		ASSERT_EQ(a.s->getattr(me(), a.s->root().fh, root), 0);
		ASSERT_TRUE(root.leased);
		put("local" + std::to_string(i), "x");
		ASSERT_EQ(b.s->getattr(me(), b.s->root().fh, root), 0);
		ASSERT_TRUE(eventually([&] { return a.told_of(root.fid); })) << i;
	}
}

// The client asks once for each file that can be leased, whatever their number.
TEST_F(daemon_leases, the_second_reading_asks_nothing)
{
	constexpr unsigned few = 48;
	settings_.max_inodes = 64;
	for (unsigned i = 0; i < few; i++)
		put("d/few" + std::to_string(i), "x");
	std::this_thread::sleep_for(std::chrono::milliseconds(60));
	start();
	auto a = leased();
	const auto read_all = [&] {
		const entry d = lookup(*a, a->root(), "d");
		for (unsigned i = 0; i < few; i++) {
			const entry f = lookup(*a, d, "few" + std::to_string(i));
			open_result o{};
			ASSERT_EQ(a->open(me(), f.fh, O_RDONLY, 0, o), 0);
			a->close_reader(f.fh, o.open_id);
		}
	};
	read_all();
	const std::string once = asked();
	read_all();
	EXPECT_EQ(asked(), once);
}

// Storage judges after it granted the lease, so one reply with both is enough.
TEST_F(daemon_leases, what_comes_with_the_lease_is_known)
{
	start();
	client_ = connect();
	auto a = leased();
	const entry f = find("f"), g = find("g");
	open_result o{};
	int allowed;
	attributes attr;
	ASSERT_EQ(a->open(me(), f.fh, O_RDONLY, 0, o), 0);
	a->close_reader(f.fh, o.open_id);
	ASSERT_EQ(a->access(me(), g.fh, R_OK, allowed, attr), 0);
	const std::string before = asked();
	ASSERT_EQ(a->open(me(), f.fh, O_RDONLY, 0, o), 0);
	a->close_reader(f.fh, o.open_id);
	ASSERT_EQ(a->access(me(), g.fh, R_OK, allowed, attr), 0);
	EXPECT_EQ(asked(), before);
}

// Storage judges a change between the lease and the judgement, or reports it; never neither.
TEST_F(daemon_leases, who_is_judged_is_judged_within_the_lease)
{
	if (::geteuid())
		GTEST_SKIP() << "needs root";
	start();
	client_ = connect();
	auto a = leased();
	const entry f = find("f");
	const caller other{12345, 12345, {}};
	for (int i = 1; i <= 20; i++) {
		const auto node = server_->files().inodes.find(f.fh);
		ASSERT_TRUE(node);
		int allowed = 0;
		attributes attr;
		const std::string before = asked();
		// The mutex stops new leases and looks at the file.
		std::unique_lock still(node->mutex);
		std::thread asker(
			[&] { EXPECT_EQ(a->access(other, f.fh, R_OK, allowed, attr), 0); });
		EXPECT_TRUE(eventually([&] { return asked() != before; }));
		EXPECT_EQ(::chmod((tree_ / "f").c_str(), i % 2 ? 0600 : 0644), 0);
		still.unlock();
		asker.join();
		EXPECT_EQ(allowed, i % 2 ? 0 : R_OK) << i;
		ASSERT_EQ(a->access(other, f.fh, R_OK, allowed, attr), 0);
		EXPECT_EQ(allowed, i % 2 ? 0 : R_OK) << i;
		server_->files().leases.changed(f.attr.fid);
		EXPECT_TRUE(eventually([&] { return stats_say("leases 0"); }));
	}
}

// In any order of requests: a permission from before a change does not count once the change
// has returned.
TEST_F(daemon_leases, no_right_is_older_than_the_lease_that_it_came_with)
{
	if (::geteuid())
		GTEST_SKIP() << "needs root";
	start();
	client_ = connect();
	auto a = leased();
	const entry f = find("f");
	const caller other{12345, 12345, {}};
	const auto may = [&] {
		open_result o{};
		int allowed = 0;
		attributes attr;
		const int opened = a->open(other, f.fh, O_RDONLY, 0, o);
		if (!opened)
			a->close_reader(f.fh, o.open_id);
		EXPECT_EQ(a->access(other, f.fh, R_OK, allowed, attr), 0);
		EXPECT_EQ(opened, allowed & R_OK ? 0 : -EACCES);
		return opened == 0;
	};
	for (int i = 0; i < 100; i++) {
		std::atomic<bool> done{false};
		std::vector<std::thread> askers;
		for (int n = 0; n < 3; n++)
			askers.emplace_back([&, n] {
				while (!done) {
					open_result o{};
					int allowed;
					attributes attr;
					if (n)
						(void)a->access(other, f.fh, R_OK, allowed, attr);
					else if (!a->open(other, f.fh, O_RDONLY, 0, o))
						a->close_reader(f.fh, o.open_id);
				}
			});
		storage::setattr_request q{};
		write_result r;
		q.valid = storage::set_mode;
		q.mode = i % 2 ? 0644 : 0600;
		EXPECT_EQ(client_->setattr(me(), f.fh, q, r), 0);
		done = true;
		for (std::thread &t : askers)
			t.join();
		ASSERT_EQ(may(), i % 2 == 1) << i;
	}
	EXPECT_TRUE(stats_say("leases_unanswered 0"));
}

// With more files than guards, a client asks storage for opens only.
TEST_F(daemon_leases, what_cannot_be_guarded_keeps_its_lease)
{
	settings_.max_inodes = 16;
	for (int i = 0; i < 16; i++)
		put("d/many" + std::to_string(i), "x");
	std::this_thread::sleep_for(std::chrono::milliseconds(60));
	start();
	holder a(client_options());
	entry d = a.find("d"), e;
	unsigned asks = 0;
	for (int i = 0; i < 16; i++) {
		ASSERT_EQ(a.s->lookup(me(), d.fh, "many" + std::to_string(i), e), 0);
		open_result o{};
		ASSERT_EQ(a.s->open(me(), e.fh, O_RDONLY, 0, o), 0);
		EXPECT_TRUE(o.attr.leased);
		asks += o.attr.ask_open;
		a.s->close_reader(e.fh, o.open_id);
	}
	EXPECT_EQ(asks, 16 - server_->files().leases.guards_max());
	EXPECT_TRUE(stats_say("leases_recalled 0"));
	// A client that was told to ask does ask.
	auto b = leased();
	for (int twice = 0; twice < 2; twice++) {
		open_result o{};
		ASSERT_EQ(b->open(me(), e.fh, O_RDONLY, 0, o), 0);
		b->close_reader(e.fh, o.open_id);
	}
	EXPECT_EQ(b->leases().opens, 0u);
}

// Another request of the client may have reported the lease, so it does not end silently. The
// kernel does not report a store through a mapping on this machine.
TEST_F(daemon_leases, storage_asks_for_what_it_cannot_keep)
{
	start();
	holder a(client_options());
	const entry f = a.find("f");
	struct stat before, after;
	ASSERT_EQ(::stat((tree_ / "f").c_str(), &before), 0);
	const coop::unique_fd fd(::open((tree_ / "f").c_str(), O_RDWR | O_CLOEXEC));
	void *const at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
	ASSERT_NE(at, MAP_FAILED);
	*static_cast<char *>(at) = 'X';
	::msync(at, 4096, MS_SYNC);
	ASSERT_EQ(::stat((tree_ / "f").c_str(), &after), 0);
	::munmap(at, 4096);
	if (before.st_ctim.tv_nsec == after.st_ctim.tv_nsec)
		GTEST_SKIP() << "stores leave the change time here";
	EXPECT_FALSE(a.told_of(f.attr.fid));
	attributes now;
	ASSERT_EQ(a.s->getattr(me(), f.fh, now), 0);
	EXPECT_FALSE(now.leased);
	EXPECT_TRUE(eventually([&] { return a.told_of(f.attr.fid); }));
	EXPECT_TRUE(stats_say("leases 1")) << "until it answers";
	a.give_back_all();
	EXPECT_TRUE(eventually([&] { return stats_say("leases 0"); }));
}

TEST_F(daemon_leases, a_client_has_a_bounded_number)
{
	for (unsigned i = 0; i < coop::daemon::leases_max + 200; i++)
		put("d/many" + std::to_string(i), "");
	std::this_thread::sleep_for(std::chrono::milliseconds(60));
	start();
	auto a = leased();
	const entry d = lookup(*a, a->root(), "d");
	EXPECT_EQ(names(*a, d).size(), coop::daemon::leases_max + 201);
	for (unsigned i = 0; i < coop::daemon::leases_max + 200; i += 100)
		lookup(*a, d, "many" + std::to_string(i));
	EXPECT_LE(server_->files().leases.held(), coop::daemon::leases_max);
	EXPECT_LE(a->leases().held, coop::daemon::leases_max);
}
