// SPDX-License-Identifier: MIT
// commit_rig.hpp - one file of a mount on simulated storage: it has a disk, and a page cache
// that a crash empties.
#pragma once

#include "userland/client/file.hpp"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "storage_stub.hpp"

namespace coop::client
{
namespace
{

const caller who{1000, 1000, {}};
constexpr auto deadline = std::chrono::seconds(30);

template <class condition> bool comes(condition c)
{
	const auto end = std::chrono::steady_clock::now() + deadline;
	while (!c()) {
		if (std::chrono::steady_clock::now() > end)
			return false;
		std::this_thread::sleep_for(std::chrono::milliseconds(1));
	}
	return true;
}

class machine final : public client_test::storage_stub
{
public:
	machine()
	{
		file.fh = "file";
		file.attr.fid = {1, 2};
		file.attr.version = 10;
		file.attr.st.st_mode = S_IFREG | 0644;
	}
	void crash()
	{
		std::lock_guard guard(mutex);
		cache = disk;
		verifier++;
	}

	int getattr(const caller &, const handle &, attributes &out) override
	{
		std::lock_guard guard(mutex);
		out = seen();
		return look_error;
	}
	int open(const caller &, const handle &, int flags, std::uint32_t, open_result &out,
		 late_reply) override
	{
		std::lock_guard guard(mutex);
		if (flags & O_TRUNC) {
			cache.clear();
			file.attr.version++;
		}
		out = {seen(), ++opens, {}, {}, verifier};
		return 0;
	}
	int close(const handle &, std::uint64_t open_id, write_result &out) override
	{
		std::lock_guard guard(mutex);
		closed.insert(open_id);
		out = {seen(), file.attr.version, 0};
		return 0;
	}
	int setattr(const caller &, const handle &, const setattr_request &q, write_result &out,
		    late_reply) override
	{
		std::lock_guard guard(mutex);
		if (q.valid & set_size)
			cache.resize(q.size);
		return changed(out);
	}
	int fallocate(const handle &, std::uint64_t, int, std::uint64_t offset,
		      std::uint64_t length, write_result &out, late_reply) override
	{
		std::lock_guard guard(mutex);
		for (auto i = offset; i < std::min<std::uint64_t>(offset + length, cache.size());
		     i++)
			cache[i] = 0;
		return changed(out);
	}
	int write(const handle &, std::uint64_t open_id, std::uint64_t offset,
		  std::span<const iovec> data, write_result &out, late_reply late,
		  bool stable) override
	{
		std::function<void()> then;
		{
			std::lock_guard guard(mutex);
			if (leave) {
				left = std::move(late);
				return -EINTR;
			}
			if (write_error) {
				file.attr.version += half_writes;
				return write_error;
			}
			if (closed.contains(open_id))
				return -EBADF;
			through.push_back(open_id);
			if (appends)
				offset = cache.size();
			for (const iovec &v : data) {
				cache.resize(std::max(cache.size(), offset + v.iov_len));
				std::memcpy(&cache[offset], v.iov_base, v.iov_len);
				offset += v.iov_len;
			}
			changed(out);
			stable_asked += stable;
			out.stable = stable && commits_writes;
			if (out.stable)
				disk = cache;
			then = std::exchange(during_write, nullptr);
		}
		if (then)
			then();
		return 0;
	}
	int commit(const handle &, std::uint64_t open_id, write_result &out) override
	{
		std::unique_lock guard(mutex);
		commits++;
		while (hold) {
			guard.unlock();
			if (asker::has_gone())
				return -EINTR;
			std::this_thread::yield();
			guard.lock();
		}
		if (closed.contains(open_id))
			return -EBADF;
		if (const int err = std::exchange(commit_error, 0)) {
			verifier++;
			return err;
		}
		if (restless)
			verifier++;
		disk = cache;
		out = {seen(), file.attr.version, verifier};
		return 0;
	}
	int lock(const handle &, std::uint64_t, const coop_st_lock &, bool, lock_granted,
		 std::uint64_t &) override
	{
		era = 1;
		return 0;
	}
	int unlock(const handle &, const coop_st_lock &) override
	{
		era = 0;
		return 0;
	}
	bool holds_lock(const handle &, const coop_st_lock &) override { return era != 0; }
	std::uint64_t lock_era(const handle &) override { return era; }
	traffic stats() const override
	{
		looks += reconnects != 0;
		return {0, 0, 0, 0, reconnects, true};
	}

	entry file;
	std::mutex mutex;
	std::string disk, cache;
	std::uint64_t verifier = 1;
	std::uint64_t opens = 0;
	std::set<std::uint64_t> closed;
	std::vector<std::uint64_t> through;    // the open files of the writes
	std::function<void()> during_write;    // called in the next write: done, reply in flight
	int write_error = 0, commit_error = 0; // the latter fails once
	bool half_writes = false;              // writes that fail write a part
	int look_error = 0;
	bool restless = false; // every commit has a new verifier
	bool appends = false, leave = false;
	bool commits_writes = true; // those requested as stable
	unsigned stable_asked = 0;
	std::atomic<bool> hold{false}; // commits wait
	late_reply left;
	std::atomic<unsigned> commits{0};
	std::atomic<std::uint64_t> era{0}, reconnects{0};
	mutable std::atomic<unsigned> looks{0}; // reads of reconnects after the first reconnect

private:
	attributes seen()
	{
		file.attr.st.st_size = static_cast<off_t>(cache.size());
		return file.attr;
	}
	int changed(write_result &out)
	{
		out.version_before = file.attr.version++;
		out.attr = seen();
		out.verifier = verifier;
		return 0;
	}
};

class no_reader final : public reader
{
public:
	int read(const content &, stream &, std::uint64_t, std::uint32_t,
		 std::vector<piece> &) override
	{
		return -ENOSYS;
	}
	int read_whole(const content &, std::vector<piece> &, source &) override { return -EIO; }
	void fetch_ahead(std::vector<held_content>) override {}
	void relay(const wanted_pages &) override {}
	void take(const offered_pages &) override {}
	void put_inline(const content &, std::string_view, origin) override {}
	reader_stats stats() const override { return {}; }
	void reset_stats() override {}
};

class client_commit : public testing::Test
{
protected:
	std::unique_ptr<open_file> open(int flags = O_RDWR)
	{
		files::open_answer a;
		EXPECT_EQ(f->open(who, *node, flags, a), 0);
		return std::move(a.file);
	}
	int try_write(open_file &file, std::uint64_t offset, std::string text)
	{
		iovec v{text.data(), text.size()};
		std::optional<files::range> drop;
		return f->write(file, file.appends(), offset, {&v, 1}, text.size(), drop);
	}
	void write(open_file &file, std::uint64_t offset, std::string text)
	{
		ASSERT_EQ(try_write(file, offset, std::move(text)), 0);
	}
	int cut(std::uint64_t size)
	{
		attributes attr;
		return f->setattr(who, *node, {storage::set_size, 0, 0, 0, size, {}, {}}, attr);
	}
	std::string disk()
	{
		std::lock_guard guard(s.mutex);
		return s.disk;
	}

	machine s;
	no_reader r;
	std::unique_ptr<page_store> store = page_store::create(4 << 20, 12);
	membership m;
	inode_table table{*store, {[](inode &) {}}};
	std::unique_ptr<files> f = std::make_unique<files>(s, *store, r, table, m);
	inode *node = table.ref(s.file);
};

} // namespace
} // namespace coop::client
