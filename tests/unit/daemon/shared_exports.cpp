// SPDX-License-Identifier: MIT
// shared_exports.cpp - one file in several exports: what a client does through one of them holds
// for the clients of all, and its handle is good in that one alone.
#include "rig.hpp"

#include <thread>

#include "userland/client/leased_storage.hpp"

using namespace rig;

namespace
{

class daemon_shared_exports : public daemon_test
{
protected:
	void SetUp() override
	{
		daemon_test::SetUp();
		put("f", "0123456789");
		settings_.exports = {{"data", tree_.string()},
				     {"also", tree_.string()},
				     {"above", base_.string()}};
		settings_.threads = 4;
	}
	// A client of an export; told: the fids that it was asked to give back.
	struct client {
		std::mutex mutex;
		std::vector<coop_fid> told;
		std::unique_ptr<storage> s; // ends first
		entry top;                  // the directory that all exports have

		client(storage_options o, const std::string &in)
		{
			o.export_name = "/" + in;
			o.leases = true;
			o.on_recall = [this](const coop_fid &f) {
				std::lock_guard lock(mutex);
				told.push_back(f);
			};
			s = coop::client::connect_without_leases(o);
			top = s->root();
			if (in == "above")
				EXPECT_EQ(s->lookup(me(), s->root().fh, "tree", top), 0);
		}
		entry find(const std::string &name) const
		{
			entry e;
			EXPECT_EQ(s->lookup(me(), top.fh, name, e), 0) << name;
			return e;
		}
		// There is no lease until the clock has left the file's change time.
		entry find_leased(const std::string &name) const
		{
			entry e;
			EXPECT_TRUE(eventually([&] {
				e = find(name);
				return e.attr.leased;
			})) << name;
			return e;
		}
		open_result open(const entry &e, int flags) const
		{
			open_result o{};
			EXPECT_EQ(s->open(me(), e.fh, flags, 0, o), 0);
			return o;
		}
		bool told_of(const coop_fid &f)
		{
			std::lock_guard lock(mutex);
			return std::any_of(told.begin(), told.end(), [&](const coop_fid &t) {
				return coop::fid_equal{}(t, f);
			});
		}
	};
	// Calls change(), which must not return before the client has given back its lease.
	template <class act> void recalls(client &who, const coop_fid &what, act change)
	{
		std::atomic<bool> done{false};
		std::thread changer([&] {
			change();
			done = true;
		});
		EXPECT_TRUE(eventually([&] { return done || who.told_of(what); }));
		EXPECT_TRUE(who.told_of(what));
		EXPECT_FALSE(done);
		who.s->return_lease(what, [] {});
		changer.join();
	}
};

coop_st_lock whole(std::uint32_t kind)
{
	return {1, 0, ~0ull, kind, COOP_ST_LOCK_WRITE, 1};
}

} // namespace

TEST_F(daemon_shared_exports, a_handle_is_good_in_its_own_export_only)
{
	start();
	client a(client_options(), "data"), b(client_options(), "also");
	const entry of_a = a.find("f"), of_b = b.find("f");
	attributes attr;
	EXPECT_FALSE(coop::fid_equal{}(of_a.attr.fid, of_b.attr.fid));
	EXPECT_EQ(a.s->getattr(me(), of_b.fh, attr), -ESTALE);
	EXPECT_EQ(b.s->getattr(me(), of_a.fh, attr), -ESTALE);
}

TEST_F(daemon_shared_exports, locks_exclude)
{
	start();
	for (const char *other : {"also", "above"}) {
		client a(client_options(), "data"), b(client_options(), other);
		const entry of_a = a.find("f"), of_b = b.find("f");
		a.s->return_lease({}, [] {});
		b.s->return_lease({}, [] {});
		const open_result oa = a.open(of_a, O_RDWR), ob = b.open(of_b, O_RDWR);
		for (const std::uint32_t kind : {COOP_ST_LOCK_POSIX, COOP_ST_LOCK_FLOCK}) {
			std::uint64_t cookie = 0;
			ASSERT_EQ(a.s->lock(of_a.fh, oa.open_id, whole(kind), false, {}, cookie),
				  0);
			EXPECT_EQ(b.s->lock(of_b.fh, ob.open_id, whole(kind), false, {}, cookie),
				  -EAGAIN);
			ASSERT_EQ(a.s->unlock(of_a.fh, whole(kind)), 0);
			EXPECT_EQ(b.s->lock(of_b.fh, ob.open_id, whole(kind), false, {}, cookie),
				  0);
			ASSERT_EQ(b.s->unlock(of_b.fh, whole(kind)), 0);
		}
	}
}

TEST_F(daemon_shared_exports, a_change_recalls_leases)
{
	start();
	client a(client_options(), "data"), b(client_options(), "above");
	storage::setattr_request q{};
	q.valid = storage::set_mode;
	q.mode = 0600;
	write_result r;
	for (client *who : {&a, &b}) {
		client *const other = who == &a ? &b : &a;
		const entry f = who->find_leased("f"), theirs = other->find_leased("f");
		recalls(*other, theirs.attr.fid,
			[&] { EXPECT_EQ(who->s->setattr(me(), f.fh, q, r), 0); });
		attributes dir;
		ASSERT_EQ(other->s->getattr(me(), other->top.fh, dir), 0);
		ASSERT_TRUE(dir.leased);
		recalls(*other, dir.fid, [&, name = other == &a ? "x" : "y"] {
			entry made;
			EXPECT_EQ(who->s->mkdir(me(), who->top.fh, name, 0755, made), 0);
		});
		who->s->return_lease({}, [] {});
		other->s->return_lease({}, [] {});
		who->told.clear();
		other->told.clear();
	}
}

// WRITE recalls none.
TEST_F(daemon_shared_exports, what_one_has_open_for_writing_has_no_lease_in_another)
{
	start();
	client a(client_options(), "data"), b(client_options(), "also");
	const entry of_b = b.find_leased("f"); // and its version is proved
	const entry of_a = a.find("f");
	open_result o{};
	recalls(b, of_b.attr.fid, [&] { o = a.open(of_a, O_RDWR); });
	EXPECT_FALSE(b.find("f").attr.leased);
	write_result w{};
	EXPECT_EQ(write_text(*a.s, of_a, o.open_id, 0, "new", w), 0);
	EXPECT_NE(b.find("f").attr.version, of_b.attr.version);
	EXPECT_EQ(a.s->close(of_a.fh, o.open_id, w), 0);
}

TEST_F(daemon_shared_exports, nothing_is_written_to_a_read_only_one_for_its_open_files)
{
	settings_.exports = {{"data", tree_.string()}, {"also", tree_.string()}};
	settings_.exports[1].read_only = true;
	start();
	client a(client_options(), "data"), b(client_options(), "also");
	const entry of_b = b.find("f");
	const open_result o = b.open(of_b, O_RDONLY);
	(void)b.s->return_lease({}, [] {});
	ASSERT_EQ(a.s->unlink(me(), a.top.fh, "f"), 0);
	EXPECT_FALSE(std::filesystem::exists(tree_ / ".coopfs-orphans"));
	EXPECT_EQ(read_text(*b.s, of_b, o.open_id, 0, 10), "0123456789");
	restart();
	int err = 0;
	read_text(*b.s, of_b, o.open_id, 0, 10, &err);
	EXPECT_NE(err, 0) << "it lived as long as the daemon ran";
}

TEST_F(daemon_shared_exports, an_open_file_that_loses_its_name_through_another_lives_on)
{
	start();
	client a(client_options(), "data"), b(client_options(), "above");
	const entry of_a = a.find("f");
	const open_result o = a.open(of_a, O_RDONLY);
	(void)a.s->return_lease({}, [] {});
	ASSERT_EQ(b.s->unlink(me(), b.top.fh, "f"), 0);
	entry none;
	EXPECT_EQ(b.s->lookup(me(), b.top.fh, ".coopfs-orphans", none), -ENOENT);
	EXPECT_TRUE(std::filesystem::exists(tree_ / ".coopfs-orphans"));
	restart();
	EXPECT_EQ(read_text(*a.s, of_a, o.open_id, 0, 10), "0123456789");
}
