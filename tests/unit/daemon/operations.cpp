// SPDX-License-Identifier: MIT
// operations.cpp - every operation over the wire against a real directory.
#include "rig.hpp"

#include <atomic>
#include <cstring>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <memory>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "rpc/storage/message.h"

using namespace rig;

using daemon_operations = daemon_test;

TEST_F(daemon_operations, looks_up_opens_reads_and_closes)
{
	up();
	put("small", "hello, world");
	const entry e = find("small");
	EXPECT_EQ(e.attr.st.st_size, 12);
	EXPECT_NE(e.attr.version, 0u);
	const open_result o = open(e, O_RDONLY, 5);
	EXPECT_EQ(o.inline_data, "hello");
	EXPECT_EQ(read_text(*client_, e, o.open_id, 7, 100), "world");
	EXPECT_EQ(read_text(*client_, e, o.open_id, 12, 100), "");
	write_result w{};
	EXPECT_EQ(client_->close(e.fh, o.open_id, w), 0);
	int err;
	read_text(*client_, e, o.open_id, 0, 1, &err);
	EXPECT_EQ(err, -EBADF);
}

TEST_F(daemon_operations, streams_long_reads_into_scattered_memory)
{
	up();
	std::string text(5'000'003, 0);
	for (std::size_t i = 0; i < text.size(); i++)
		text[i] = static_cast<char>(i * 2654435761u >> 13);
	put("big", text);
	const entry e = find("big");
	const open_result o = open(e, O_RDONLY);
	std::string a(1'000'001, 0), b(4'500'000, 0);
	const auto r = read_into(*client_, e, o.open_id, 0,
				 {{a.data(), a.size()}, {b.data(), b.size()}}, o.attr.version);
	ASSERT_EQ(r.err, 0);
	EXPECT_EQ(r.bytes, text.size());
	EXPECT_EQ(r.size, text.size());
	EXPECT_EQ(r.version, o.attr.version);
	EXPECT_EQ(a + b.substr(0, text.size() - a.size()), text);
}

TEST_F(daemon_operations, many_reads_are_in_flight_at_once)
{
	up();
	std::string text(1 << 20, 'x');
	for (std::size_t i = 0; i < text.size(); i += 4)
		std::memcpy(&text[i], &i, 4);
	put("f", text);
	const entry e = find("f");
	const open_result o = open(e, O_RDONLY);
	constexpr unsigned reads = 1000; // many more than may be in flight
	std::vector<std::string> got(reads, std::string(512, 0));
	std::atomic<unsigned> done{0}, bad{0};
	for (unsigned i = 0; i < reads; i++)
		client_->read(e.fh, o.open_id, i * 1000, {{got[i].data(), got[i].size()}}, 0,
			      [&](const storage::read_result &r) {
				      bad += r.err != 0;
				      done++;
			      });
	ASSERT_TRUE(eventually([&] { return done == reads; }));
	EXPECT_EQ(bad, 0u);
	for (unsigned i = 0; i < reads; i++)
		EXPECT_EQ(got[i], text.substr(i * 1000, 512)) << i;
}

TEST_F(daemon_operations, creates_writes_and_sets_attributes)
{
	up();
	entry e;
	open_result o{};
	ASSERT_EQ(client_->create(me(), client_->root().fh, "new", O_RDWR | O_EXCL, 0640, e, o), 0);
	EXPECT_EQ(e.attr.st.st_mode & 07777, 0640u);
	write_result w{};
	ASSERT_EQ(write_text(*client_, e, o.open_id, 0, std::string(3'000'000, 'a') + "tail", w),
		  0);
	EXPECT_EQ(w.attr.st.st_size, 3'000'004);
	EXPECT_EQ(read_text(*client_, e, o.open_id, 2'999'999, 100), "atail");
	EXPECT_EQ(client_->commit(e.fh, o.open_id, w), 0);
	storage::setattr_request s{};
	s.valid = storage::set_size | storage::set_mode | storage::set_mtime;
	s.size = 4;
	s.mode = 0600;
	s.mtime = {1000, 5};
	ASSERT_EQ(client_->setattr(me(), e.fh, s, w), 0);
	EXPECT_EQ(w.attr.st.st_size, 4);
	EXPECT_EQ(w.attr.st.st_mode & 07777, 0600u);
	EXPECT_EQ(w.attr.st.st_mtim.tv_sec, 1000);
	EXPECT_EQ(client_->close(e.fh, o.open_id, w), 0);
	EXPECT_EQ(disk("new"), "aaaa");
	open_result again{};
	entry e2;
	EXPECT_EQ(
		client_->create(me(), client_->root().fh, "new", O_RDWR | O_EXCL, 0640, e2, again),
		-EEXIST);
	EXPECT_EQ(client_->create(me(), client_->root().fh, "new", O_RDWR, 0640, e2, again), 0);
	EXPECT_EQ(e2.fh, e.fh);
	o = open(e, O_WRONLY | O_TRUNC | O_APPEND);
	EXPECT_EQ(o.attr.st.st_size, 0);
	ASSERT_EQ(write_text(*client_, e, o.open_id, 0, "one", w), 0);
	ASSERT_EQ(write_text(*client_, e, o.open_id, 0, "two", w), 0);
	EXPECT_EQ(disk("new"), "onetwo");
}

TEST_F(daemon_operations, names_and_links)
{
	up();
	const auto root = client_->root().fh;
	put("f", "text");
	entry dir, e, l;
	ASSERT_EQ(client_->mkdir(me(), root, "d", 0750, dir), 0);
	EXPECT_TRUE(S_ISDIR(dir.attr.st.st_mode));
	EXPECT_EQ(dir.attr.version, 0u);
	EXPECT_EQ(client_->mkdir(me(), root, "d", 0750, dir), -EEXIST);
	ASSERT_EQ(client_->rename(me(), root, "f", dir.fh, "g", 0), 0);
	EXPECT_EQ(client_->lookup(me(), root, "f", e), -ENOENT);
	ASSERT_EQ(client_->lookup(me(), dir.fh, "g", e), 0);
	ASSERT_EQ(client_->link(me(), e.fh, root, "h", l), 0);
	EXPECT_EQ(l.fh, e.fh);
	EXPECT_EQ(l.attr.st.st_nlink, 2u);
	EXPECT_EQ(client_->rename(me(), root, "h", dir.fh, "g", RENAME_NOREPLACE), -EEXIST);
	put("other", "x");
	ASSERT_EQ(client_->rename(me(), root, "other", dir.fh, "g", RENAME_EXCHANGE), 0);
	EXPECT_EQ(disk("d/g"), "x");
	ASSERT_EQ(client_->symlink(me(), "d/g", root, "s", l), 0);
	std::string target;
	EXPECT_EQ(client_->readlink(me(), l.fh, target), 0);
	EXPECT_EQ(target, "d/g");
	EXPECT_EQ(client_->rmdir(me(), root, "d"), -ENOTEMPTY);
	EXPECT_EQ(client_->unlink(me(), dir.fh, "g"), 0);
	EXPECT_EQ(client_->rmdir(me(), root, "d"), 0);
	EXPECT_EQ(client_->unlink(me(), root, "d"), -ENOENT);
	struct statvfs fs;
	EXPECT_EQ(client_->statfs(me(), root, fs), 0);
	EXPECT_GT(fs.f_blocks, 0u);
}

TEST_F(daemon_operations, lists_a_directory_in_pieces)
{
	up();
	constexpr int files = 300;
	for (int i = 0; i < files; i++)
		put("file-" + std::to_string(i), std::to_string(i));
	std::set<std::string> names;
	std::uint64_t cookie = 0;
	bool end = false;
	unsigned pieces = 0;
	while (!end) {
		std::vector<coop::client::dir_entry> got;
		ASSERT_EQ(client_->readdir(me(), client_->root().fh, cookie, 8192, got, end), 0);
		for (auto &d : got) {
			EXPECT_TRUE(names.insert(d.name).second) << d.name;
			EXPECT_EQ(d.node.fh, find(d.name).fh);
			cookie = d.cookie;
		}
		pieces++;
		ASSERT_LT(pieces, 1000u);
	}
	EXPECT_GT(pieces, 2u);
	EXPECT_EQ(names.size(), static_cast<std::size_t>(files));
}

TEST_F(daemon_operations, ranges_are_allocated_punched_and_searched)
{
	up();
	put("f", std::string(64 << 10, 'x'));
	const entry e = find("f");
	const open_result o = open(e, O_RDWR), reader = open(e, O_RDONLY);
	write_result w{};
	std::uint64_t at;
	ASSERT_EQ(client_->fallocate(e.fh, o.open_id, 0, 0, 100'000, w), 0);
	EXPECT_EQ(w.attr.st.st_size, 100'000);
	ASSERT_EQ(client_->fallocate(e.fh, o.open_id, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				     8192, 8192, w),
		  0);
	EXPECT_NE(w.verifier, 0u);
	EXPECT_EQ(disk("f").substr(8190, 8196), "xx" + std::string(8192, 0) + "xx");
	EXPECT_EQ(client_->seek(e.fh, o.open_id, SEEK_HOLE, 0, at), 0);
	EXPECT_EQ(at, 8192u);
	EXPECT_EQ(client_->seek(e.fh, reader.open_id, SEEK_DATA, 8192, at), 0);
	EXPECT_EQ(at, 16384u);
	EXPECT_EQ(client_->seek(e.fh, o.open_id, SEEK_DATA, 1 << 20, at), -ENXIO);
	EXPECT_EQ(client_->seek(e.fh, o.open_id, SEEK_DATA, ~0ull, at), -ENXIO);
	EXPECT_EQ(client_->fallocate(e.fh, reader.open_id, 0, 0, 1, w), -EBADF);
	EXPECT_EQ(client_->fallocate(e.fh, o.open_id, 0, 0, 0, w), -EINVAL);
	EXPECT_EQ(client_->fallocate(e.fh, o.open_id, 0, ~0ull, 1, w), -EINVAL);
	EXPECT_EQ(client_->fallocate(e.fh, o.open_id, 0, INT64_MAX, 1, w), -EFBIG);
	EXPECT_EQ(client_->fallocate(e.fh, o.open_id, 1 << 20, 0, 1, w), -EOPNOTSUPP);
}

TEST_F(daemon_operations, copies_from_file_to_file_in_pieces)
{
	up();
	put("from", std::string(20 << 20, 'f'));
	put("to", std::string(1000, 't'));
	const entry from = find("from"), to = find("to");
	const open_result a = open(from, O_RDONLY), b = open(to, O_RDWR),
			  c = open(to, O_WRONLY | O_APPEND);
	write_result w{};
	std::uint64_t length = 20 << 20, done = 0;
	ASSERT_EQ(client_->copy({from.fh, a.open_id, 0}, {to.fh, b.open_id, 500}, length, w), 0);
	EXPECT_GT(length, 0u);
	EXPECT_LT(length, 20u << 20) << "a short call blocks no other for long";
	done = length;
	while (length) {
		length = (20 << 20) - done;
		ASSERT_EQ(client_->copy({from.fh, a.open_id, done}, {to.fh, b.open_id, 500 + done},
					length, w),
			  0);
		done += length;
	}
	EXPECT_EQ(done, 20u << 20);
	EXPECT_EQ(disk("to"), std::string(500, 't') + disk("from"));
	length = 1;
	EXPECT_EQ(client_->copy({to.fh, c.open_id, 0}, {to.fh, b.open_id, 500}, length, w), -EBADF);
	EXPECT_EQ(client_->copy({from.fh, a.open_id, 0}, {to.fh, c.open_id, 0}, length, w), -EBADF);
	EXPECT_EQ(client_->copy({to.fh, b.open_id, 0}, {from.fh, a.open_id, 0}, length, w), -EBADF);
	EXPECT_EQ(client_->copy({from.fh, a.open_id, ~0ull}, {to.fh, b.open_id, 0}, length, w),
		  -EINVAL);
}

TEST_F(daemon_operations, what_is_above_is_found_within_the_export)
{
	up();
	std::filesystem::create_directories(tree_ / "a" / "b");
	const entry a = find("a");
	entry b, e;
	ASSERT_EQ(client_->lookup(me(), a.fh, "b", b), 0);
	const int err = client_->lookup(me(), b.fh, "..", e);
	if (err == -EOPNOTSUPP)
		GTEST_SKIP() << "handles are paths on this file system";
	ASSERT_EQ(err, 0);
	EXPECT_EQ(e.fh, a.fh);
	ASSERT_EQ(client_->lookup(me(), a.fh, "..", e), 0);
	EXPECT_EQ(e.fh, client_->root().fh);
	std::filesystem::rename(tree_ / "a" / "b", base_ / "moved");
	EXPECT_EQ(client_->lookup(me(), b.fh, "..", e), -ESTALE);
}

TEST_F(daemon_operations, nothing_leads_out_of_the_export)
{
	std::ofstream(base_ / "outside") << "secret";
	up();
	std::filesystem::create_symlink("../outside", tree_ / "way-out");
	std::filesystem::create_directory_symlink("..", tree_ / "up");
	const auto root = client_->root().fh;
	entry e;
	for (const char *name : {"..", ".", "", "../outside", "up/outside", "/etc/passwd"})
		EXPECT_EQ(client_->lookup(me(), root, name, e), -EINVAL) << name;
	EXPECT_EQ(client_->lookup(me(), root, std::string("a\0b", 3), e), -EINVAL);
	EXPECT_EQ(client_->lookup(me(), root, std::string(300, 'n'), e), -ENAMETOOLONG);
	open_result o{};
	const entry link = find("way-out");
	EXPECT_EQ(client_->open(me(), link.fh, O_RDONLY, 0, o), -ELOOP);
	EXPECT_EQ(client_->lookup(me(), find("up").fh, "outside", e), -ENOTDIR);
	EXPECT_EQ(client_->create(me(), root, "way-out", O_RDWR, 0644, e, o), -ELOOP);
	EXPECT_EQ(client_->unlink(me(), root, ".."), -EINVAL);
	EXPECT_EQ(client_->rename(me(), root, "up", root, "../x", 0), -EINVAL);
	// A handle of the same file system that the daemon did not make.
	std::string forged = find("way-out").fh;
	for (std::size_t i = 0; i < forged.size(); i++) {
		std::string f = forged;
		f[i] = static_cast<char>(f[i] ^ 1);
		attributes a;
		EXPECT_EQ(client_->getattr(me(), f, a), -ESTALE) << i;
	}
}

TEST_F(daemon_operations, what_is_mounted_below_an_export_is_not_entered)
{
	if (::geteuid())
		GTEST_SKIP() << "SKIPPED: only root can mount";
	std::filesystem::create_directories(tree_ / "d" / "other");
	std::filesystem::create_directory(base_ / "elsewhere");
	std::ofstream(base_ / "elsewhere" / "secret") << "secret";
	// The same file system, so its number does not tell.
	struct bound {
		const std::string at;
		bound(const std::string &what, std::string where) : at(std::move(where))
		{
			if (::mount(what.c_str(), at.c_str(), nullptr, MS_BIND, nullptr))
				throw std::runtime_error("mount " + at + ": " +
							 std::strerror(errno));
		}
		~bound() { ::umount2(at.c_str(), MNT_DETACH); }
	};
	auto other = std::make_unique<bound>(base_ / "elsewhere", tree_ / "d" / "other");
	up();
	const entry d = find("d");
	entry e;
	open_result o{};
	std::vector<coop::client::dir_entry> list;
	bool end = false;
	EXPECT_EQ(client_->lookup(me(), d.fh, "other", e), -EXDEV);
	EXPECT_EQ(client_->create(me(), d.fh, "other", O_RDWR, 0600, e, o), -EXDEV);
	EXPECT_NE(client_->rmdir(me(), d.fh, "other"), 0);
	EXPECT_EQ(client_->readdir(me(), d.fh, 0, 4096, list, end), 0);
	EXPECT_TRUE(list.empty());
	other.reset();
	EXPECT_EQ(client_->lookup(me(), d.fh, "other", e), 0);
	EXPECT_EQ(client_->lookup(me(), e.fh, "secret", e), -ENOENT);
}

TEST_F(daemon_operations, an_unlinked_file_stays_readable_while_open)
{
	up();
	put("gone", "still here");
	const entry e = find("gone");
	const open_result o = open(e, O_RDONLY);
	ASSERT_EQ(client_->unlink(me(), client_->root().fh, "gone"), 0);
	EXPECT_EQ(read_text(*client_, e, o.open_id, 0, 100), "still here");
}

TEST_F(daemon_operations, files_are_served_with_the_rights_of_the_caller)
{
	if (::geteuid())
		GTEST_SKIP() << "SKIPPED: only root can serve other users";
	up();
	constexpr uid_t other = 12345;
	constexpr gid_t group = 23456;
	const caller stranger{other, other, {}}, member{other, other, {group}};
	const auto root = client_->root().fh;
	put("private", "p");
	put("grouped", "g");
	::chmod((tree_ / "private").c_str(), 0600);
	::chmod((tree_ / "grouped").c_str(), 0640);
	ASSERT_EQ(::chown((tree_ / "grouped").c_str(), 0, group), 0);
	std::filesystem::create_directory(tree_ / "closed");
	put("closed/f", "x");
	::chmod((tree_ / "closed").c_str(), 0700);
	open_result o{};
	entry e;
	write_result w{};
	EXPECT_EQ(client_->open(stranger, find("private").fh, O_RDONLY, 0, o), -EACCES);
	EXPECT_EQ(client_->open(stranger, find("grouped").fh, O_RDONLY, 0, o), -EACCES);
	EXPECT_EQ(client_->open(member, find("grouped").fh, O_RDONLY, 0, o), 0);
	EXPECT_EQ(client_->open(member, find("grouped").fh, O_RDWR, 0, o), -EACCES);
	EXPECT_EQ(client_->lookup(stranger, find("closed").fh, "f", e), -EACCES);
	EXPECT_EQ(client_->create(stranger, root, "mine", O_RDWR, 0644, e, o), -EACCES);
	EXPECT_EQ(client_->unlink(stranger, root, "private"), -EACCES);
	storage::setattr_request s{};
	s.valid = storage::set_mode;
	s.mode = 0666;
	EXPECT_EQ(client_->setattr(stranger, find("private").fh, s, w), -EPERM);
	s.valid = storage::set_size;
	EXPECT_EQ(client_->setattr(stranger, find("private").fh, s, w), -EACCES);
	::chmod(tree_.c_str(), 0777);
	ASSERT_EQ(client_->create(stranger, root, "mine", O_RDWR, 0400, e, o), 0);
	EXPECT_EQ(e.attr.st.st_uid, other);
	EXPECT_EQ(e.attr.st.st_gid, other);
	EXPECT_EQ(write_text(*client_, e, o.open_id, 0, "w", w), 0)
		<< "made writable by its own open";
	// The thread is root again afterwards.
	EXPECT_EQ(client_->open(me(), find("private").fh, O_RDONLY, 0, o), 0);
}

TEST_F(daemon_operations, makes_files_of_every_type_and_opens_none_of_them)
{
	up();
	const auto root = client_->root().fh;
	entry e;
	open_result o{};
	ASSERT_EQ(client_->mknod(me(), root, "fifo", S_IFIFO | 0666, 0, e), 0);
	EXPECT_EQ(e.attr.st.st_mode, S_IFIFO | 0666u);
	// A daemon that opened the FIFO would wait for a writer.
	EXPECT_EQ(client_->open(me(), e.fh, O_RDONLY, 0, o), -ENXIO);
	EXPECT_EQ(client_->create(me(), root, "fifo", O_RDWR, 0600, e, o), -ENXIO);
	storage::setattr_request s{};
	write_result w{};
	s.valid = storage::set_mode | storage::set_mtime_now;
	s.mode = 0600;
	EXPECT_EQ(client_->setattr(me(), e.fh, s, w), 0);
	EXPECT_EQ(w.attr.st.st_mode, S_IFIFO | 0600u);
	s.valid = storage::set_size;
	EXPECT_EQ(client_->setattr(me(), e.fh, s, w), -EINVAL);
	EXPECT_EQ(client_->mknod(me(), root, "fifo", S_IFIFO | 0666, 0, e), -EEXIST);
	ASSERT_EQ(client_->mknod(me(), root, "sock", S_IFSOCK | 0700, 0, e), 0);
	EXPECT_TRUE(S_ISSOCK(e.attr.st.st_mode));
	EXPECT_EQ(client_->open(me(), e.fh, O_RDWR, 0, o), -ENXIO);
	EXPECT_EQ(client_->mknod(me(), root, "dir", S_IFDIR | 0700, 0, e), -EINVAL);
	EXPECT_EQ(client_->mknod(me(), root, "link", S_IFLNK | 0700, 0, e), -EINVAL);
	EXPECT_EQ(client_->mknod(me(), root, "x", S_IFIFO | 0600, makedev(1, 3), e), -EINVAL);
}

TEST_F(daemon_operations, devices_are_roots_to_make)
{
	if (::geteuid())
		GTEST_SKIP() << "SKIPPED: only root can make devices";
	up();
	::chmod(tree_.c_str(), 0777);
	const auto root = client_->root().fh;
	const caller stranger{12345, 12345, {}};
	entry e;
	ASSERT_EQ(client_->mknod(me(), root, "c", S_IFCHR | 0600, makedev(0xabc, 0x12345), e), 0);
	EXPECT_EQ(e.attr.st.st_rdev, makedev(0xabc, 0x12345));
	EXPECT_EQ(client_->mknod(stranger, root, "d", S_IFCHR | 0600, makedev(1, 3), e), -EPERM);
	EXPECT_EQ(client_->mknod(stranger, root, "w", S_IFCHR | 0600, 0, e), 0);
	EXPECT_EQ(client_->mknod(stranger, root, "p", S_IFIFO | 0600, 0, e), 0);
	EXPECT_EQ(e.attr.st.st_uid, 12345u);
}

TEST_F(daemon_operations, an_export_may_be_without_devices)
{
	settings_.exports[0].devices = false;
	up();
	entry e;
	const auto root = client_->root().fh;
	EXPECT_EQ(client_->mknod(me(), root, "c", S_IFCHR | 0600, makedev(1, 3), e), -EPERM);
	EXPECT_EQ(client_->mknod(me(), root, "b", S_IFBLK | 0600, makedev(7, 0), e), -EPERM);
	EXPECT_EQ(client_->mknod(me(), root, "p", S_IFIFO | 0600, 0, e), 0);
}

TEST(daemon_exports, options_follow_the_name)
{
	using coop::daemon::parse_export;
	EXPECT_TRUE(parse_export("a", "/p").devices);
	const auto spec = parse_export("/a,nodev", "/p,q");
	EXPECT_EQ(spec.name, "a");
	EXPECT_EQ(spec.path, "/p,q");
	EXPECT_FALSE(spec.devices);
	EXPECT_TRUE(parse_export("a,nodev,dev", "/p").devices);
	EXPECT_FALSE(parse_export("a", "/p").read_only);
	EXPECT_TRUE(parse_export("a,ro", "/p").read_only);
	EXPECT_FALSE(parse_export("a,ro,rw", "/p").read_only);
	EXPECT_THROW((void)parse_export("", "/p"), std::runtime_error);
	EXPECT_THROW((void)parse_export("a", ""), std::runtime_error);
	EXPECT_THROW((void)parse_export("a,such", "/p"), std::runtime_error);
	EXPECT_THROW((void)parse_export(",nodev", "/p"), std::runtime_error);
}

TEST_F(daemon_operations, a_read_only_export_is_read_and_never_changed)
{
	settings_.exports[0].read_only = true;
	up();
	put("f", "text");
	const auto root = client_->root().fh;
	const entry f = find("f");
	const open_result o = open(f, O_RDONLY);
	EXPECT_EQ(read_text(*client_, f, o.open_id, 0, 100), "text");
	entry e;
	open_result made{};
	EXPECT_EQ(client_->create(me(), root, "new", O_RDWR | O_EXCL, 0640, e, made), -EROFS);
	EXPECT_EQ(client_->unlink(me(), root, "f"), -EROFS);
	write_result w{};
	EXPECT_EQ(client_->close(f.fh, o.open_id, w), 0);
	// O_CREAT finds an existing file, as on a file system mounted read-only.
	ASSERT_EQ(client_->create(me(), root, "f", O_RDONLY, 0640, e, made), 0);
	EXPECT_EQ(client_->close(f.fh, made.open_id, w), 0);
	EXPECT_EQ(client_->create(me(), root, "f", O_RDWR, 0640, e, made), -EROFS);
	EXPECT_EQ(client_->create(me(), root, "none", O_RDONLY, 0640, e, made), -EROFS);
	EXPECT_EQ(client_->create(me(), root, "f", O_RDONLY | O_EXCL, 0640, e, made), -EEXIST);
	storage::setattr_request s{};
	s.valid = storage::set_mode;
	EXPECT_EQ(client_->setattr(me(), f.fh, s, w), -EROFS);
}

TEST_F(daemon_operations, squashed_users_act_as_the_anonymous_one)
{
	if (::geteuid() != 0)
		GTEST_SKIP() << "needs root";
	settings_.exports[0].root_squash = true;
	settings_.exports[0].anonuid = 4321;
	settings_.exports[0].anongid = 4322;
	up();
	const auto root = client_->root().fh;
	put("secret", "x");
	::chmod((tree_ / "secret").c_str(), 0600);
	put("of-group-0", "x");
	::chmod((tree_ / "of-group-0").c_str(), 0640);
	::chmod(tree_.c_str(), 0777);
	entry e;
	open_result o{};
	EXPECT_EQ(client_->open(me(), find("secret").fh, O_RDONLY, 0, o), -EACCES);
	const caller member{4000, 4000, {0}};
	EXPECT_EQ(client_->open(member, find("of-group-0").fh, O_RDONLY, 0, o), -EACCES);
	ASSERT_EQ(client_->create(me(), root, "mine", O_RDWR | O_EXCL, 0400, e, o), 0);
	EXPECT_EQ(e.attr.st.st_uid, 4321u);
	EXPECT_EQ(e.attr.st.st_gid, 4322u);
	write_result w{};
	EXPECT_EQ(write_text(*client_, e, o.open_id, 0, "w", w), 0);
	storage::setattr_request s{};
	s.valid = storage::set_uid;
	s.uid = 0;
	EXPECT_EQ(client_->setattr(me(), e.fh, s, w), -EPERM);
	ASSERT_EQ(client_->create(member, root, "theirs", O_RDWR | O_EXCL, 0600, e, o), 0);
	EXPECT_EQ(e.attr.st.st_uid, 4000u);
}

TEST(daemon_exports, values_and_the_path_have_equals_signs)
{
	using namespace coop::daemon;
	const auto [name, path] = split_export("a,anonuid=5,clients=fd00::/8,ro=/p=q,anongid=1");
	EXPECT_EQ(name, "a,anonuid=5,clients=fd00::/8,ro");
	EXPECT_EQ(path, "/p=q,anongid=1");
	EXPECT_EQ(split_export("a,anonuid=5=/p").second, "/p");
	EXPECT_EQ(split_export("anonuid=/p").first, "anonuid");
	EXPECT_EQ(split_export("a").second, "");
	const export_spec spec = parse_export(name, path);
	EXPECT_EQ(spec.anonuid, 5u);
	EXPECT_EQ(spec.anongid, 65534u);
	EXPECT_FALSE(spec.root_squash);
	EXPECT_EQ(spec.clients.size(), 1u);
	for (const char *bad : {"a,anonuid=", "a,anonuid=-1", "a,anonuid=4294967295", "a,anongid=x",
				"a,clients=", "a,clients=host", "a,clients=10.0.0.0/33",
				"a,clients=::/129", "a,clients=1.2.3.4/", "a,ro=1"})
		EXPECT_THROW((void)parse_export(bad, "/p"), std::runtime_error) << bad;
}

TEST(daemon_exports, networks_hold_their_addresses)
{
	using coop::daemon::parse_export;
	const auto admits = [](const char *net, const char *from) {
		return parse_export(std::string("a,clients=") + net, "/p").admits(from);
	};
	EXPECT_TRUE(parse_export("a", "/p").admits("10.1.2.3"));
	EXPECT_TRUE(admits("10.1.0.0/16", "10.1.2.3"));
	EXPECT_FALSE(admits("10.1.0.0/16", "10.2.2.3"));
	EXPECT_TRUE(admits("127.0.0.1", "127.0.0.1"));
	EXPECT_FALSE(admits("127.0.0.1", "127.0.0.2"));
	EXPECT_TRUE(admits("10.0.0.0/7", "11.9.9.9"));
	EXPECT_FALSE(admits("10.0.0.0/7", "12.0.0.0"));
	EXPECT_TRUE(admits("0.0.0.0/0", "1.2.3.4"));
	EXPECT_TRUE(admits("10.1.0.0/16", "::ffff:10.1.2.3")) << "IPv4 on an IPv6 socket";
	EXPECT_TRUE(admits("fd00::/8", "fdab::1"));
	EXPECT_FALSE(admits("fd00::/8", "fe80::1"));
	EXPECT_FALSE(admits("::/0", "10.1.2.3")) << "another family";
	EXPECT_FALSE(admits("0.0.0.0/0", "::1"));
	EXPECT_FALSE(admits("::/0", "?"));
}

TEST_F(daemon_operations, the_umask_of_the_caller_counts)
{
	up();
	const auto root = client_->root().fh;
	using coop::client::new_mode;
	entry e;
	open_result o{};
	ASSERT_EQ(client_->create(me(), root, "f", O_RDWR | O_EXCL, new_mode{0666, 027}, e, o), 0);
	EXPECT_EQ(e.attr.st.st_mode & 07777, 0640u);
	ASSERT_EQ(client_->mkdir(me(), root, "d", {0777, 077}, e), 0);
	EXPECT_EQ(e.attr.st.st_mode & 07777, 0700u);
	ASSERT_EQ(client_->mknod(me(), root, "p", {S_IFIFO | 0666, 0}, 0, e), 0);
	EXPECT_EQ(e.attr.st.st_mode & 07777, 0666u);
}

TEST_F(daemon_operations, birth_and_traits_are_the_file_systems)
{
	up();
	put("f", "text");
	const int fd = ::open((tree_ / "f").c_str(), O_RDONLY);
	ASSERT_GE(fd, 0);
	struct statx sx;
	const auto same = [&](const attributes &a) {
		ASSERT_EQ(::statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &sx), 0);
		ASSERT_EQ(a.btime.has_value(), (sx.stx_mask & STATX_BTIME) != 0);
		if (a.btime) {
			EXPECT_EQ(a.btime->tv_sec, sx.stx_btime.tv_sec);
			EXPECT_EQ(a.btime->tv_nsec, static_cast<long>(sx.stx_btime.tv_nsec));
		}
		EXPECT_EQ(a.traits_known, sx.stx_attributes_mask & COOP_ST_TRAIT_ALL);
		EXPECT_EQ(a.traits, sx.stx_attributes & a.traits_known);
	};
	same(find("f").attr);
	int flags = 0;
	if (!::ioctl(fd, FS_IOC_GETFLAGS, &flags)) {
		flags |= FS_NODUMP_FL;
		if (!::ioctl(fd, FS_IOC_SETFLAGS, &flags)) {
			const attributes after = find("f").attr;
			same(after);
			EXPECT_EQ(after.traits, STATX_ATTR_NODUMP & after.traits_known);
		}
	}
	::close(fd);
}

TEST_F(daemon_operations, extended_attributes_are_the_file_systems)
{
	up();
	put("f", "text");
	const entry e = find("f");
	EXPECT_EQ(e.attr.has, 0u);
	std::string value;
	std::size_t size = 0;
	write_result w{};
	EXPECT_EQ(client_->getxattr(me(), e.fh, "user.a", 100, value, size), -ENODATA);
	EXPECT_EQ(client_->setxattr(me(), e.fh, "user.a", "value", XATTR_REPLACE, w), -ENODATA);
	const open_result o = open(e, O_RDONLY);
	if (int err = client_->setxattr(me(), e.fh, "user.a", "value", XATTR_CREATE, w)) {
		ASSERT_EQ(err, -EOPNOTSUPP);
		GTEST_SKIP() << "SKIPPED: this file system has no attributes of users";
	}
	EXPECT_EQ(w.attr.has, static_cast<unsigned>(COOP_ST_HAS_XATTR));
	EXPECT_EQ(open(e, O_RDONLY).attr.has, static_cast<unsigned>(COOP_ST_HAS_XATTR));
	EXPECT_EQ(client_->setxattr(me(), e.fh, "user.a", "value", XATTR_CREATE, w), -EEXIST);
	EXPECT_EQ(client_->getxattr(me(), e.fh, "user.a", 0, value, size), 0);
	EXPECT_EQ(size, 5u);
	EXPECT_EQ(client_->getxattr(me(), e.fh, "user.a", 5, value, size), 0);
	EXPECT_EQ(value, "value");
	EXPECT_EQ(client_->getxattr(me(), e.fh, "user.a", 4, value, size), -ERANGE);
	EXPECT_EQ(client_->setxattr(me(), e.fh, "user.empty", "", 0, w), 0);
	EXPECT_EQ(client_->listxattr(me(), e.fh, 100, value, size), 0);
	EXPECT_NE(value.find(std::string("user.a\0", 7)), value.npos);
	EXPECT_NE(value.find(std::string("user.empty\0", 11)), value.npos);
	EXPECT_EQ(client_->listxattr(me(), e.fh, 3, value, size), -ERANGE);
	EXPECT_EQ(client_->removexattr(me(), e.fh, "user.a", w), 0);
	EXPECT_EQ(client_->removexattr(me(), e.fh, "user.a", w), -ENODATA);
	for (const std::string_view bad : {std::string_view(""), std::string_view("user.\0x", 7)})
		EXPECT_EQ(client_->setxattr(me(), e.fh, bad, "x", 0, w), -EINVAL);
	EXPECT_EQ(read_text(*client_, e, o.open_id, 0, 100), "text");
}

TEST_F(daemon_operations, what_root_alone_may_is_refused_to_others)
{
	if (::geteuid())
		GTEST_SKIP() << "SKIPPED: only root can serve other users";
	up();
	put("f", "text");
	::chmod((tree_ / "f").c_str(), 0666);
	ASSERT_EQ(::chown((tree_ / "f").c_str(), 12345, 12345), 0);
	const caller owner{12345, 12345, {}};
	const entry e = find("f");
	std::string value;
	std::size_t size = 0;
	write_result w{};
	// The daemon itself always has CAP_SYS_ADMIN and CAP_SETFCAP.
	EXPECT_EQ(client_->setxattr(owner, e.fh, "trusted.t", "x", 0, w), -EPERM);
	std::string caps("\0\0\0\2\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
	EXPECT_EQ(client_->setxattr(owner, e.fh, "security.capability", caps, 0, w), -EPERM);
	ASSERT_EQ(client_->setxattr(me(), e.fh, "security.capability", caps, 0, w), 0);
	EXPECT_TRUE(w.attr.has & COOP_ST_HAS_CAPABILITY);
	ASSERT_EQ(client_->setxattr(me(), e.fh, "trusted.t", "x", 0, w), 0);
	EXPECT_EQ(client_->getxattr(owner, e.fh, "trusted.t", 10, value, size), -ENODATA);
	EXPECT_EQ(client_->listxattr(owner, e.fh, 1000, value, size), 0);
	EXPECT_EQ(value.find("trusted.t"), value.npos);
	EXPECT_EQ(client_->getxattr(me(), e.fh, "trusted.t", 10, value, size), 0);
	EXPECT_EQ(value, "x");
	// A write removes the capability.
	open_result o{};
	ASSERT_EQ(client_->open(owner, e.fh, O_WRONLY, 0, o), 0);
	ASSERT_EQ(write_text(*client_, e, o.open_id, 0, "T", w), 0);
	EXPECT_FALSE(w.attr.has & COOP_ST_HAS_CAPABILITY);
}
