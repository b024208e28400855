// SPDX-License-Identifier: MIT
// bundles.cpp - bundles of a daemon among its clients: what they save, and that nothing in them is
// ever older than storage, or more than its user may see.
#include "members_rig.hpp"

#include <map>
#include <thread>
#include <tuple>

#include "rpc/storage/bundle.h"
#include "userland/client/leased_storage.hpp"
#include "userland/daemon/bundles.hpp"

using namespace rig;
using coop::client::bundle_reader;
using coop::client::handle;
using coop::client::open_bundle;

namespace
{

// Reads bundles from storage. Tests change what it reads, or act before it reads.
struct plain_reader final : bundle_reader {
	storage *s = nullptr;
	std::function<void()> before_read;
	std::function<void(std::string &)> mangle;
	using key = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;
	std::map<key, std::string> kept;            // contents, by file and version
	std::vector<coop::client::held_content> at; // contents that nodes have
	std::vector<std::string> read_bytes;
	int last = -1; // result of the last open

	int read(const handle &dir, const std::function<int(open_bundle &)> &open, open_bundle &out,
		 std::string &bytes) override
	{
		last = open(out);
		if (last)
			return last;
		if (before_read)
			before_read();
		int err = 0;
		bytes = read_text(*s, {dir, {}}, out.open_id, 0, out.size, &err, out.version);
		read_bytes.push_back(bytes);
		if (mangle)
			mangle(bytes);
		return err;
	}
	void closed(const open_bundle &) override {}
	void keep(const open_bundle &, const coop_fid &f, std::uint64_t version,
		  std::string_view bytes) override
	{
		kept[{f.hi, f.lo, version}] = bytes;
	}
	void at_nodes(std::vector<coop::client::held_content> files) override
	{
		at.insert(at.end(), files.begin(), files.end());
	}
	std::string content(const attributes &a) const
	{
		const auto it = kept.find({a.fid.hi, a.fid.lo, a.version});
		return it == kept.end() ? "?" : it->second;
	}
};

struct mount {
	std::shared_ptr<plain_reader> bundles = std::make_shared<plain_reader>();
	std::unique_ptr<storage> s; // ends first
};

} // namespace

class daemon_bundles : public daemon_test
{
protected:
	static constexpr int files = 12;

	void SetUp() override
	{
		daemon_test::SetUp();
		settings_.threads = 8;
		fill("d");
	}
	static std::string name(int i) { return "f" + std::to_string(i); }
	static std::string text(const std::string &dir, int i)
	{
		return dir + " content " + std::to_string(i);
	}
	void fill(const std::string &dir)
	{
		std::filesystem::create_directories(tree_ / dir);
		for (int i = 0; i < files; i++)
			put(dir + "/" + name(i), text(dir, i));
	}
	// Once versions are proved, and changes of names move the change times of directories.
	static void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(60)); }
	void go()
	{
		settle();
		up();
	}
	mount come(bool bundles = true)
	{
		mount m;
		storage_options o = client_options();
		o.leases = true;
		o.on_roles = [](const coop::client::file_roles &) {};
		if (bundles)
			o.bundles = m.bundles;
		m.s = coop::client::connect_with_leases(o);
		m.bundles->s = m.s.get();
		return m;
	}
	static entry in(const mount &m, const handle &dir, const std::string &name, int want = 0,
			const caller &who = me())
	{
		entry e;
		EXPECT_EQ(m.s->lookup(who, dir, name, e), want) << name;
		return e;
	}
	static entry dir_of(const mount &m, const std::string &name = "d")
	{
		return in(m, m.s->root().fh, name);
	}
	static std::uint64_t bundles_of(const mount &m) { return m.s->leases().bundles; }
	// Looks in the directory until its bundle has come.
	static entry use(const mount &m, const std::string &name_of_dir = "d")
	{
		const entry d = dir_of(m, name_of_dir);
		in(m, d.fh, name(0));
		in(m, d.fh, name(1));
		return d;
	}
	// A client that uses the directory, so that others get bundles.
	mount other(const std::string &name_of_dir = "d")
	{
		mount m = come(false);
		in(m, dir_of(m, name_of_dir).fh, name(0));
		return m;
	}
	// A node that was sent the contents of the first files.
	mount holder_of_all(int most = files, std::uint32_t *node = nullptr)
	{
		mount m = other();
		const entry d = dir_of(m);
		const std::uint32_t id = m.s->register_node(address(1));
		for (int i = 0; i < most; i++) {
			const entry e = in(m, d.fh, name(i));
			open_result o{};
			EXPECT_EQ(m.s->open(me(), e.fh, O_RDONLY, 4096, o), 0);
			EXPECT_EQ(o.inline_data.size(), text("d", i).size());
			m.s->close_reader(e.fh, o.open_id);
		}
		if (node)
			*node = id;
		return m;
	}
	std::uint64_t stat(const std::string &key)
	{
		std::istringstream all(server_->stats_text());
		for (std::string line; std::getline(all, line);)
			if (line.starts_with(key + " "))
				return std::stoull(line.substr(key.size() + 1));
		return 0;
	}
	std::uint64_t calls(const std::string &op) { return stat("calls " + op); }
	std::uint64_t all_calls()
	{
		std::istringstream all(server_->stats_text());
		std::uint64_t sum = 0;
		for (std::string line; std::getline(all, line);)
			if (line.starts_with("calls "))
				sum += std::stoull(line.substr(line.rfind(' ') + 1));
		return sum;
	}
	static std::string content(const mount &m, const entry &e)
	{
		return m.bundles->content(e.attr);
	}
	static int open_and_close(const mount &m, const entry &e, const caller &who = me())
	{
		open_result o{};
		const int err = m.s->open(who, e.fh, O_RDONLY, 0, o);
		if (!err)
			m.s->close_reader(e.fh, o.open_id);
		return err;
	}
};

TEST_F(daemon_bundles, answers_for_all_of_a_directory_with_two_requests)
{
	std::filesystem::create_symlink("f3", tree_ / "d/link");
	go();
	const mount a = other();
	const mount b = come();
	const entry d = use(b);
	EXPECT_EQ(bundles_of(b), 1u);
	EXPECT_EQ(calls("bundle"), 1u);
	const std::uint64_t before = all_calls();
	for (int i = 0; i < files; i++) {
		const entry e = in(b, d.fh, name(i));
		EXPECT_EQ(content(b, e), text("d", i));
		EXPECT_EQ(open_and_close(b, e), 0);
	}
	in(b, d.fh, "absent", -ENOENT);
	std::string target;
	EXPECT_EQ(b.s->readlink(me(), in(b, d.fh, "link").fh, target), 0);
	EXPECT_EQ(target, "f3");
	std::vector<coop::client::dir_entry> listed;
	bool end = false;
	EXPECT_EQ(b.s->readdir(me(), d.fh, 0, 65536, listed, end), 0);
	EXPECT_EQ(listed.size(), files + 1u);
	EXPECT_TRUE(end);
	EXPECT_EQ(all_calls(), before);
}

TEST_F(daemon_bundles, are_made_once_for_all_clients_of_a_user)
{
	go();
	const mount a = other();
	std::vector<mount> all(5);
	for (mount &m : all) {
		m = come();
		use(m);
		EXPECT_EQ(bundles_of(m), 1u);
	}
	EXPECT_EQ(stat("bundles_made"), 1u);
	EXPECT_EQ(stat("bundles_used"), 5u);
	EXPECT_EQ(all[0].bundles->read_bytes, all[4].bundles->read_bytes);
}

TEST_F(daemon_bundles, cost_a_lone_client_nothing)
{
	go();
	client_.reset();
	std::string said[2];
	for (const bool with : {false, true}) {
		restart();
		const mount m = come(with);
		const entry d = dir_of(m);
		for (int i = 0; i < files; i++)
			EXPECT_EQ(open_and_close(m, in(m, d.fh, name(i))), 0);
		in(m, d.fh, "absent", -ENOENT);
		std::istringstream all(server_->stats_text());
		for (std::string line; std::getline(all, line);)
			if (line.starts_with("calls ") && line.find("close") == line.npos)
				said[with] += line + "\n";
		EXPECT_EQ(m.s->leases().bundles_asked, 0u);
	}
	EXPECT_EQ(said[0], said[1]);
}

// ---- changes ----------------------------------------------------------------

// Each changes f5, or the name next to it, as a client of the daemon.
struct change {
	const char *what;
	std::function<void(const mount &, const entry &dir, const entry &f5)> act;
	std::function<void(const mount &, const entry &dir)> see; // through a client that asks anew
};

static void write_as_client(const mount &m, const entry &, const entry &f)
{
	open_result o{};
	write_result w{};
	ASSERT_EQ(m.s->open(me(), f.fh, O_WRONLY, 0, o), 0);
	ASSERT_EQ(write_text(*m.s, f, o.open_id, 0, "changed!", w), 0);
	ASSERT_EQ(m.s->close(f.fh, o.open_id, w), 0);
}

static const change changes[] = {
	{"write", write_as_client,
	 [](const mount &m, const entry &d) {
		 entry e;
		 ASSERT_EQ(m.s->lookup(me(), d.fh, "f5", e), 0);
		 open_result o{};
		 ASSERT_EQ(m.s->open(me(), e.fh, O_RDONLY, 0, o), 0);
		 EXPECT_EQ(read_text(*m.s, e, o.open_id, 0, 8), "changed!");
		 const std::string kept = m.bundles->content(o.attr);
		 EXPECT_TRUE(kept == "?" || kept.starts_with("changed!")) << kept;
		 m.s->close_reader(e.fh, o.open_id);
	 }},
	{"unlink",
	 [](const mount &m, const entry &d, const entry &) {
		 ASSERT_EQ(m.s->unlink(me(), d.fh, "f5"), 0);
	 },
	 [](const mount &m, const entry &d) {
		 entry e;
		 EXPECT_EQ(m.s->lookup(me(), d.fh, "f5", e), -ENOENT);
	 }},
	{"mkdir",
	 [](const mount &m, const entry &d, const entry &) {
		 entry e;
		 ASSERT_EQ(m.s->mkdir(me(), d.fh, "fresh", 0755, e), 0);
	 },
	 [](const mount &m, const entry &d) {
		 entry e;
		 EXPECT_EQ(m.s->lookup(me(), d.fh, "fresh", e), 0);
	 }},
	{"chmod",
	 [](const mount &m, const entry &, const entry &f) {
		 write_result w{};
		 ASSERT_EQ(m.s->setattr(me(), f.fh, {storage::set_mode, 0640, 0, 0, 0, {}, {}}, w),
			   0);
	 },
	 [](const mount &m, const entry &d) {
		 entry e;
		 EXPECT_EQ(m.s->lookup(me(), d.fh, "f5", e), 0);
		 EXPECT_EQ(e.attr.st.st_mode & 07777, 0640u);
	 }},
	{"rename",
	 [](const mount &m, const entry &d, const entry &) {
		 ASSERT_EQ(m.s->rename(me(), d.fh, "f5", d.fh, "f6", 0), 0);
	 },
	 [](const mount &m, const entry &d) {
		 entry e, f;
		 EXPECT_EQ(m.s->lookup(me(), d.fh, "f5", e), -ENOENT);
		 EXPECT_EQ(m.s->lookup(me(), d.fh, "f6", f), 0);
		 EXPECT_EQ(f.attr.st.st_size, 11);
	 }},
};

class daemon_bundle_changes : public daemon_bundles, public testing::WithParamInterface<int>
{
};

TEST_P(daemon_bundle_changes, are_seen_by_those_who_have_the_bundle_and_those_who_come)
{
	const change &c = changes[GetParam()];
	go();
	const mount a = other();
	const entry d = dir_of(a), f5 = in(a, d.fh, "f5");
	const mount had = come();
	use(had);
	ASSERT_EQ(bundles_of(had), 1u);
	c.act(a, d, f5);
	c.see(had, d);
	const mount came = come();
	use(came);
	c.see(came, d);
}

// The recall comes before the bundle has been read, so before its statements are entered.
TEST_P(daemon_bundle_changes, overtake_the_bundle)
{
	const change &c = changes[GetParam()];
	go();
	const mount a = other();
	const entry d = dir_of(a), f5 = in(a, d.fh, "f5");
	const mount b = come();
	b.bundles->before_read = [&] { c.act(a, d, f5); };
	use(b);
	EXPECT_EQ(b.bundles->last, 0);
	c.see(b, d);
}

INSTANTIATE_TEST_SUITE_P(all, daemon_bundle_changes, testing::Range(0, 5),
			 [](const auto &i) { return changes[i.param].what; });

// Programs of the daemon's machine: a write waits, other changes are reported after the fact.
TEST_F(daemon_bundles, are_void_when_a_program_of_the_daemons_machine_writes_a_file)
{
	go();
	const mount a = other(), b = come();
	const entry d = use(b);
	ASSERT_EQ(bundles_of(b), 1u);
	put("d/f5", "changed!");
	changes[0].see(b, d);
	settle(); // else the version is provisional
	const mount c = come();
	use(c);
	changes[0].see(c, d);
}

TEST_F(daemon_bundles, are_void_when_a_program_of_the_daemons_machine_changes_a_name)
{
	go();
	const mount a = other(), b = come();
	const entry d = use(b);
	ASSERT_EQ(bundles_of(b), 1u);
	std::filesystem::rename(tree_ / "d/f5", tree_ / "d/g5");
	EXPECT_TRUE(eventually([&] {
		entry e;
		return b.s->lookup(me(), d.fh, "f5", e) == -ENOENT;
	}));
	in(b, d.fh, "g5");
	const mount c = come();
	use(c);
	in(c, d.fh, "f5", -ENOENT);
	in(c, d.fh, "g5");
}

// ---- rights -------------------------------------------------------------------

TEST_F(daemon_bundles, hold_nothing_that_their_user_may_not_read)
{
	if (::geteuid())
		GTEST_SKIP() << "needs root, to act for two users";
	const std::string secret = "not for everybody";
	put("d/secret", secret);
	::chmod((tree_ / "d/secret").c_str(), 0600);
	go();
	const mount a = other(), b = come();
	use(b);
	ASSERT_EQ(bundles_of(b), 1u);
	EXPECT_NE(b.bundles->read_bytes[0].find(secret), std::string::npos);

	const caller nobody{65534, 65534, {}};
	const mount c = come();
	const entry d = in(c, c.s->root().fh, "d", 0, nobody);
	for (int i = 0; i < files; i++)
		in(c, d.fh, name(i), 0, nobody);
	ASSERT_EQ(bundles_of(c), 1u);
	EXPECT_EQ(c.bundles->read_bytes[0].find(secret), std::string::npos);
	const entry e = in(c, d.fh, "secret", 0, nobody);
	EXPECT_EQ(open_and_close(c, e, nobody), -EACCES);
	EXPECT_EQ(open_and_close(c, in(c, d.fh, "f7", 0, nobody), nobody), 0);
	// A user has only the rights of its own bundle.
	const std::uint64_t before = calls("open");
	EXPECT_EQ(open_and_close(c, in(c, d.fh, "f8"), me()), 0);
	EXPECT_EQ(calls("open"), before + 1);
}

TEST_F(daemon_bundles, are_refused_of_a_directory_that_the_user_may_not_list)
{
	if (::geteuid())
		GTEST_SKIP() << "needs root, to act for two users";
	::chmod((tree_ / "d").c_str(), 0711);
	go();
	const mount a = other(), c = come();
	const caller nobody{65534, 65534, {}};
	const entry d = in(c, c.s->root().fh, "d", 0, nobody);
	for (int i = 0; i < files; i++)
		in(c, d.fh, name(i), 0, nobody);
	EXPECT_EQ(c.bundles->last, -EACCES);
	EXPECT_EQ(bundles_of(c), 0u);
}

// ---- failures -------------------------------------------------------------------

TEST_F(daemon_bundles, that_are_malformed_change_nothing)
{
	go();
	const mount a = other();
	const std::function<void(std::string &)> wrongs[] = {
		[](std::string &s) { s.clear(); },
		[](std::string &s) { s.pop_back(); },
		[](std::string &s) { s.resize(s.size() / 2); },
		[](std::string &s) { s[s.size() / 2] ^= 1; },
		[](std::string &s) { s.append(100, 'x'); },
		[](std::string &s) { s.replace(8, 8, 8, '\xff'); },
	};
	for (const auto &wrong : wrongs) {
		const mount b = come();
		b.bundles->mangle = wrong;
		const entry d = use(b);
		EXPECT_EQ(bundles_of(b), 0u);
		EXPECT_TRUE(b.bundles->kept.empty());
		for (int i = 0; i < files; i++)
			EXPECT_EQ(open_and_close(b, in(b, d.fh, name(i))), 0);
		in(b, d.fh, "absent", -ENOENT);
	}
}

TEST_F(daemon_bundles, that_are_gone_leave_the_ordinary_way)
{
	go();
	client_.reset();
	const mount a = other(), b = come();
	b.bundles->before_read = [&] { restart(); };
	const entry d = use(b);
	EXPECT_EQ(bundles_of(b), 0u);
	for (int i = 0; i < files; i++)
		EXPECT_EQ(open_and_close(b, in(b, d.fh, name(i))), 0);
}

TEST_F(daemon_bundles, leave_files_that_are_being_written_to_their_clients)
{
	go();
	const mount a = other();
	const entry d = dir_of(a), f5 = in(a, d.fh, "f5");
	open_result o{};
	write_result w{};
	ASSERT_EQ(a.s->open(me(), f5.fh, O_WRONLY, 0, o), 0);
	const mount b = come();
	use(b);
	ASSERT_EQ(bundles_of(b), 1u);
	ASSERT_EQ(write_text(*a.s, f5, o.open_id, 0, "changed!", w), 0);
	changes[0].see(b, d);
	ASSERT_EQ(a.s->close(f5.fh, o.open_id, w), 0);
}

TEST_F(daemon_bundles, are_unknown_to_older_clients)
{
	go();
	plain_client old(port_, 7, 8, 'o');
	ASSERT_EQ(old.status, 0);
	coop_st_body b{};
	b.fh = {reinterpret_cast<const u8 *>(client_->root().fh.data()),
		static_cast<u32>(client_->root().fh.size())};
	b.open_id = 1;
	EXPECT_EQ(old.ask(COOP_ST_BUNDLE, b), EOPNOTSUPP);
	plain_client current(port_, 7, 9, 'c');
	EXPECT_EQ(current.ask(COOP_ST_BUNDLE, b), EOPNOTSUPP) << "it asks for no leases";
	b.flags = 4;
	EXPECT_EQ(current.ask(COOP_ST_BUNDLE, b), EINVAL);
	b.flags = 0, b.count = 1;
	EXPECT_EQ(current.ask(COOP_ST_BUNDLE, b), EINVAL);
}

// ---- contents that stay with nodes -----------------------------------------------

TEST_F(daemon_bundles, leave_contents_to_nodes_that_were_sent_them)
{
	go();
	std::uint32_t node = 0;
	const mount a = holder_of_all(files - 2, &node);
	// Few clients ask that node, the others get contents, which they pass on.
	for (std::size_t n = 0; n < coop::daemon::bundle_few + 2; n++) {
		const mount b = come();
		b.s->register_node(address(10 + static_cast<std::uint32_t>(n)));
		const entry d = use(b);
		ASSERT_EQ(bundles_of(b), 1u);
		const bool few = n < coop::daemon::bundle_few;
		EXPECT_EQ(b.bundles->at.size(), few ? files - 2u : 0u);
		for (const auto &f : b.bundles->at) {
			EXPECT_EQ(f.nodes, std::vector<std::uint32_t>{node});
			EXPECT_EQ(f.size, text("d", 0).size());
		}
		const std::uint64_t before = calls("open");
		for (int i = 2; i < files; i++) {
			const entry e = in(b, d.fh, name(i));
			EXPECT_EQ(content(b, e), few && i < files - 2 ? "?" : text("d", i));
			open_result o{};
			ASSERT_EQ(b.s->open(me(), e.fh, O_RDONLY, 0, o), 0);
			EXPECT_EQ(o.openers.size(), few && i < files - 2 ? 1u : 0u);
			b.s->close_reader(e.fh, o.open_id);
		}
		EXPECT_EQ(calls("open"), before);
	}
	EXPECT_EQ(stat("bundles_made"), 2u);
}

// All wait until one of them has made the bundle, and ask again then.
TEST_F(daemon_bundles, leave_contents_to_nodes_for_clients_that_come_at_once)
{
	go();
	const mount a = holder_of_all();
	std::vector<mount> all(coop::daemon::bundle_few);
	std::vector<std::thread> threads;
	for (std::size_t n = 0; n < all.size(); n++) {
		all[n] = come();
		all[n].s->register_node(address(10 + static_cast<std::uint32_t>(n)));
	}
	for (const mount &m : all)
		threads.emplace_back([&m] { use(m); });
	for (std::thread &t : threads)
		t.join();
	EXPECT_EQ(stat("bundles_made"), 1u);
	for (const mount &m : all)
		EXPECT_EQ(m.bundles->at.size(), bundles_of(m) ? std::size_t{files} : 0u);
}

TEST_F(daemon_bundles, have_the_contents_when_their_nodes_are_gone)
{
	go();
	mount a = holder_of_all();
	const mount b = come(), keeps = other(), without_node = come();
	b.s->register_node(address(2));
	use(b);
	EXPECT_EQ(b.bundles->at.size(), std::size_t{files});
	use(without_node);
	EXPECT_TRUE(without_node.bundles->at.empty()) << "it could ask nobody";
	a.s.reset();
	const mount c = come();
	c.s->register_node(address(3));
	const entry d = use(c);
	EXPECT_TRUE(c.bundles->at.empty());
	EXPECT_EQ(content(c, in(c, d.fh, name(5))), text("d", 5));
}

// ---- subtrees --------------------------------------------------------------------

TEST_F(daemon_bundles, of_subtrees_follow_three_of_directories)
{
	constexpr int dirs = 40;
	for (int i = 0; i < dirs; i++)
		fill("top/p" + std::to_string(i) + "/sub");
	go();
	mount a = come(false);
	const mount b = come();
	const entry ta = dir_of(a, "top"), tb = dir_of(b, "top");
	for (int i = 0; i < dirs; i++) {
		const entry pa = in(a, ta.fh, "p" + std::to_string(i));
		in(a, in(a, pa.fh, "sub").fh, name(0));
	}
	std::uint64_t before = 0;
	for (int i = 0; i < dirs; i++) {
		const std::string p = "p" + std::to_string(i);
		const entry sub = in(b, in(b, tb.fh, p).fh, "sub");
		for (int k = 0; k < files; k++) {
			const entry e = in(b, sub.fh, name(k));
			EXPECT_EQ(open_and_close(b, e), 0);
			if (i > 20)
				EXPECT_EQ(content(b, e), text("top/" + p + "/sub", k));
		}
		if (i == 20)
			before = all_calls();
	}
	EXPECT_EQ(all_calls(), before) << "the subtree has them all";
	EXPECT_LE(b.s->leases().bundles_asked, 20u);
}

TEST_F(daemon_bundles, of_large_subtrees_come_in_parts)
{
	constexpr int dirs = 30, large = 20;
	const std::string block(COOP_BUNDLE_CONTENT, 'b');
	for (int i = 0; i < dirs; i++) {
		const std::string p = "top/p" + std::to_string(i);
		fill(p);
		for (int k = 0; k < large; k++)
			put(p + "/large" + std::to_string(k), block);
	}
	go();
	const mount a = come(false), b = come();
	const entry ta = dir_of(a, "top"), tb = dir_of(b, "top");
	for (int i = 0; i < dirs; i++)
		in(a, in(a, ta.fh, "p" + std::to_string(i)).fh, name(0));
	for (int i = 0; i < dirs; i++) {
		const entry p = in(b, tb.fh, "p" + std::to_string(i));
		for (int k = 0; k < large; k++)
			EXPECT_EQ(open_and_close(b, in(b, p.fh, "large" + std::to_string(k))), 0);
	}
	EXPECT_GE(bundles_of(b), 3u + dirs * large * COOP_BUNDLE_CONTENT / COOP_BUNDLE_BYTES - 1);
	EXPECT_LE(b.s->leases().bundles_asked, 12u);
	EXPECT_LE(stat("bundle_bytes"), coop::daemon::bundle_bytes_max);
}
