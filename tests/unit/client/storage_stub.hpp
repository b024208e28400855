// SPDX-License-Identifier: MIT
// storage_stub.hpp - storage that can do nothing; a test overrides what it needs.
#pragma once

#include "userland/client/storage.hpp"

namespace client_test
{

using namespace coop::client;

class storage_stub : public storage
{
public:
	const entry &root() const override { return root_; }
	std::array<std::uint8_t, 16> fabric_key() const override { return key_; }
	std::uint32_t register_node(const coop_addr &, const node_ability &) override { return 1; }
	int lookup(const caller &, const handle &, std::string_view, entry &) override
	{
		return -ENOSYS;
	}
	int getattr(const caller &, const handle &, attributes &) override { return -ENOSYS; }
	int setattr(const caller &, const handle &, const setattr_request &, write_result &,
		    late_reply) override
	{
		return -ENOSYS;
	}
	int open(const caller &, const handle &, int, std::uint32_t, open_result &,
		 late_reply) override
	{
		return -ENOSYS;
	}
	int create(const caller &, const handle &, std::string_view, int, const new_mode &, entry &,
		   open_result &, attributes *) override
	{
		return -ENOSYS;
	}
	int close(const handle &, std::uint64_t, write_result &) override { return -ENOSYS; }
	int write(const handle &, std::uint64_t, std::uint64_t, std::span<const iovec>,
		  write_result &, late_reply, bool) override
	{
		return -ENOSYS;
	}
	int commit(const handle &, std::uint64_t, write_result &) override { return -ENOSYS; }
	int fallocate(const handle &, std::uint64_t, int, std::uint64_t, std::uint64_t,
		      write_result &, late_reply) override
	{
		return -ENOSYS;
	}
	int seek(const handle &, std::uint64_t, int, std::uint64_t, std::uint64_t &) override
	{
		return -ENOSYS;
	}
	int copy(const place &, const place &, std::uint64_t &, write_result &, late_reply) override
	{
		return -ENOSYS;
	}
	void read(const handle &, std::uint64_t, std::uint64_t, std::vector<iovec>, std::uint64_t,
		  std::function<void(const read_result &)> done) override
	{
		done({-ENOSYS, 0, 0, 0});
	}
	int mkdir(const caller &, const handle &, std::string_view, const new_mode &, entry &,
		  attributes *) override
	{
		return -ENOSYS;
	}
	int mknod(const caller &, const handle &, std::string_view, const new_mode &, dev_t,
		  entry &, attributes *) override
	{
		return -ENOSYS;
	}
	int unlink(const caller &, const handle &, std::string_view, attributes *) override
	{
		return -ENOSYS;
	}
	int rmdir(const caller &, const handle &, std::string_view, attributes *) override
	{
		return -ENOSYS;
	}
	int rename(const caller &, const handle &, std::string_view, const handle &,
		   std::string_view, unsigned) override
	{
		return -ENOSYS;
	}
	int link(const caller &, const handle &, const handle &, std::string_view, entry &,
		 attributes *) override
	{
		return -ENOSYS;
	}
	int symlink(const caller &, std::string_view, const handle &, std::string_view, entry &,
		    attributes *) override
	{
		return -ENOSYS;
	}
	int readlink(const caller &, const handle &, std::string &) override { return -ENOSYS; }
	int readdir(const caller &, const handle &, std::uint64_t, std::uint32_t,
		    std::vector<dir_entry> &, bool &) override
	{
		return -ENOSYS;
	}
	int statfs(const caller &, const handle &, struct statvfs &) override { return -ENOSYS; }
	traffic stats() const override { return {}; }
	void update_node(const coop_addr &) override {}
	void withdraw_node() override {}
	int access(const caller &, const handle &, int, int &, attributes &) override
	{
		return -EOPNOTSUPP;
	}
	std::chrono::milliseconds patience() const override { return {}; }
	int tmpfile(const caller &, const handle &, int, const new_mode &, entry &,
		    open_result &) override
	{
		return -EOPNOTSUPP;
	}
	void close_reader(const handle &fh, std::uint64_t open_id) override
	{
		write_result ignored;
		(void)close(fh, open_id, ignored);
	}
	int getxattr(const caller &, const handle &, std::string_view, std::uint32_t, std::string &,
		     std::size_t &) override
	{
		return -EOPNOTSUPP;
	}
	int listxattr(const caller &, const handle &, std::uint32_t, std::string &,
		      std::size_t &) override
	{
		return -EOPNOTSUPP;
	}
	int setxattr(const caller &, const handle &, std::string_view, std::string_view, int,
		     write_result &, late_reply) override
	{
		return -EOPNOTSUPP;
	}
	int removexattr(const caller &, const handle &, std::string_view, write_result &,
			late_reply) override
	{
		return -EOPNOTSUPP;
	}
	int lock(const handle &, std::uint64_t, const coop_st_lock &, bool, lock_granted,
		 std::uint64_t &) override
	{
		return -EOPNOTSUPP;
	}
	bool cancel_lock(std::uint64_t) override { return false; }
	int unlock(const handle &, const coop_st_lock &) override { return 0; }
	int test_lock(const handle &, std::uint64_t, coop_st_lock &) override
	{
		return -EOPNOTSUPP;
	}
	bool holds_lock(const handle &, const coop_st_lock &) override { return false; }
	std::uint64_t lock_era(const handle &) override { return 0; }
	std::vector<waiting> calls() const override { return {}; }

protected:
	entry root_{};

private:
	std::array<std::uint8_t, 16> key_{};
};

} // namespace client_test
