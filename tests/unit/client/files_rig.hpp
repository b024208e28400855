// SPDX-License-Identifier: MIT
// files_rig.hpp - one file of a mount, and scripts that play storage and reader.
#pragma once

#include "userland/client/file.hpp"

#include <fcntl.h>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "storage_stub.hpp"

namespace coop::client
{
namespace
{

const caller who{1000, 1000, {}};

// One regular file. A test sets 'attr' to the state at storage; changes count up from there.
class one_file final : public client_test::storage_stub
{
public:
	one_file()
	{
		root_.fh = "root";
		file.fh = "file";
		file.attr.fid = {1, 2};
		file.attr.st.st_mode = S_IFREG | 0644;
		set(10, 0);
	}
	void set(std::uint64_t version, off_t size)
	{
		file.attr.version = version;
		file.attr.st.st_size = size;
	}
	int change(write_result &out, off_t size)
	{
		out.version_before = foreign ? 0 : file.attr.version;
		foreign = false;
		set(file.attr.version + 1, size);
		out.attr = file.attr;
		out.verifier = verifier;
		return 0;
	}

	int lookup(const caller &, const handle &, std::string_view, entry &out) override
	{
		out = file;
		return 0;
	}
	int getattr(const caller &, const handle &, attributes &out) override
	{
		out = file.attr;
		getattrs++;
		return 0;
	}
	int setattr(const caller &, const handle &, const setattr_request &q, write_result &out,
		    late_reply late) override
	{
		if (leave)
			return left(std::move(late));
		return change(out, q.valid & set_size ? static_cast<off_t>(q.size)
						      : file.attr.st.st_size);
	}
	int open(const caller &, const handle &, int flags, std::uint32_t want_inline,
		 open_result &out, late_reply late) override
	{
		if (leave)
			return left(std::move(late));
		asked_inline = want_inline;
		if (auto then = std::exchange(before_open, nullptr))
			then();
		if (flags & O_TRUNC)
			set(file.attr.version + 1, 0);
		out = {file.attr, ++opens, {}, {}, verifier};
		return 0;
	}
	int create(const caller &, const handle &, std::string_view, int, const new_mode &,
		   entry &node, open_result &out, attributes *) override
	{
		node = file;
		out = {file.attr, ++opens, {}, {}, verifier};
		return 0;
	}
	void close_reader(const handle &, std::uint64_t) override { closes++; }
	int close(const handle &, std::uint64_t, write_result &out) override
	{
		closes++;
		out = {file.attr, file.attr.version, 0};
		return 0;
	}
	int write(const handle &, std::uint64_t, std::uint64_t offset, std::span<const iovec> data,
		  write_result &out, late_reply late, bool) override
	{
		if (leave)
			return left(std::move(late));
		auto end = appends ? file.attr.st.st_size : static_cast<off_t>(offset);
		for (const iovec &v : data)
			end += static_cast<off_t>(v.iov_len);
		const int err = change(out, std::max(end, file.attr.st.st_size));
		if (auto then = std::exchange(during_write, nullptr))
			then();
		return err;
	}
	int commit(const handle &, std::uint64_t, write_result &out) override
	{
		commits++;
		if (commit_error)
			verifier++;
		out = {file.attr, file.attr.version, verifier};
		return commit_error;
	}
	void read(const handle &, std::uint64_t, std::uint64_t, std::vector<iovec> dest,
		  std::uint64_t version, std::function<void(const read_result &)> done) override
	{
		direct_reads++;
		EXPECT_EQ(version, 0u);
		done({0, dest[0].iov_len, file.attr.version, 100});
	}
	entry file;
	std::atomic<std::uint64_t> opens = 0, closes = 0;
	std::uint32_t asked_inline = 0;
	unsigned getattrs = 0, direct_reads = 0;
	bool foreign = false; // another client writes just before our next change
	bool appends = false;
	std::function<void()> before_open;  // called when the next open is on its way
	std::function<void()> during_write; // called in the next write: done, reply in flight
	std::chrono::milliseconds patience() const override { return wait; }
	int left(late_reply late)
	{
		late_ones.push_back(std::move(late));
		return -EINTR;
	}
	int vouch(const handle &, std::uint64_t) override { return unvouched; }
	int unvouched = 0;
	int commit_error = 0;
	unsigned commits = 0;
	bool leave = false; // the caller of a change dies before the reply
	std::vector<late_reply> late_ones;
	std::chrono::milliseconds wait{0};
	std::uint64_t verifier = 1; // changes when storage's machine restarts
};

// Answers -ESTALE to every version but 'good' (0: to all).
class picky_reader final : public reader
{
public:
	int read(const content &c, stream &, std::uint64_t, std::uint32_t,
		 std::vector<piece> &) override
	{
		seen.push_back(c.key.version);
		if (auto then = std::exchange(during_read, nullptr))
			then();
		if (refuse)
			return refuse;
		return c.key.version == good ? 0 : -ESTALE;
	}
	int read_whole(const content &, std::vector<piece> &, source &) override { return -EIO; }
	void fetch_ahead(std::vector<held_content>) override {}
	void relay(const wanted_pages &) override {}
	void take(const offered_pages &) override {}
	void put_inline(const content &, std::string_view, origin) override {}
	reader_stats stats() const override { return {}; }
	void reset_stats() override {}

	std::uint64_t good = 10;
	int refuse = 0;
	std::function<void()> during_read; // called in the next read
	std::vector<std::uint64_t> seen;
};

class client_files : public testing::Test
{
protected:
	std::unique_ptr<open_file> open(int flags = O_RDONLY)
	{
		files::open_answer a;
		EXPECT_EQ(f.open(who, *node, flags, a), 0);
		kept = a.keep;
		attr_stale = a.attr_stale;
		return std::move(a.file);
	}
	int read(open_file &file)
	{
		read_answer a;
		return f.read(file, 0, 100, a);
	}
	void write(open_file &file, std::uint64_t offset = 0)
	{
		char data[10] = {};
		iovec v{data, sizeof(data)};
		ASSERT_EQ(f.write(file, file.appends(), offset, {&v, 1}, sizeof(data), drop), 0);
	}
	void close(std::unique_ptr<open_file> file) { f.release(std::move(file)); }
	// A file with its second block in the store, open for writing, with pages in the
	// kernel.
	std::unique_ptr<open_file> writer_of_a_cached_file()
	{
		constexpr off_t size = 10 * 64 * 4096;
		s.set(10, size);
		table.learn(*node, table.now(), s.file.attr, nullptr);
		{
			auto block = store->get({node->fid, 10}, 1, size);
			block->claim(1);
			block->publish(1, origin::storage);
		}
		auto file = open(O_RDWR);
		EXPECT_EQ(read(*file), 0);
		return file;
	}

	one_file s;
	picky_reader r;
	std::unique_ptr<page_store> store = page_store::create(4 << 20, 12);
	unsigned stale = 0;
	membership m;
	inode_table table{*store, {[this](inode &) { stale++; }}};
	files f{s, *store, r, table, m};
	inode *node = table.ref(s.file);
	bool kept = false, attr_stale = false;
	std::optional<files::range> drop; // by the last write
};

} // namespace
} // namespace coop::client
