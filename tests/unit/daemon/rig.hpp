// SPDX-License-Identifier: MIT
// rig.hpp - a daemon in this process that serves a directory made for the test, and clients of
// it.
#pragma once

#include <condition_variable>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <mutex>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/own_ip.hpp"
#include "tests/lib/scratch.hpp"
#include "userland/client/storage.hpp"
#include "userland/daemon/server.hpp"

namespace rig
{

using coop::client::attributes;
using coop::client::caller;
using coop::client::entry;
using coop::client::open_result;
using coop::client::storage;
using coop::client::storage_options;
using coop::client::write_result;

constexpr std::chrono::seconds deadline{60}; // of what must come, also on slow disks

// The daemon's address, also in a child. Connections of this machine begin at 127.0.0.1, so none of
// them has the port of a daemon that restarts.
inline const std::string &host()
{
	static const std::string ip = own_ip(30);
	return ip;
}

inline caller me()
{
	return {::geteuid(), ::getegid(), {}};
}

// Waits for a condition that must come.
template <class predicate> bool eventually(predicate p)
{
	const auto end = std::chrono::steady_clock::now() + deadline;
	while (!p()) {
		if (std::chrono::steady_clock::now() > end)
			return false;
		std::this_thread::sleep_for(std::chrono::milliseconds(2));
	}
	return true;
}

class daemon_test : public testing::Test
{
protected:
	void SetUp() override
	{
		spdlog::set_level(spdlog::level::err);
		static const test::scratch all("coopfsd-test");
		::chmod(all.path().c_str(), 0755);
		base_ = all.path() / "one";
		std::filesystem::create_directory(base_);
		::chmod(base_.c_str(), 0755);
		tree_ = base_ / "tree";
		std::filesystem::create_directory(tree_);
		::chmod(tree_.c_str(), 0755); // whatever umask the tests were started with
		settings_.exports = {{"data", tree_.string()}};
		settings_.listen = host() + ":0";
		settings_.state_dir = (base_ / "state").string();
		settings_.threads = 4;
	}
	void TearDown() override
	{
		client_.reset();
		server_.reset();
		std::filesystem::remove_all(base_);
	}
	void start()
	{
		server_ = std::make_unique<coop::daemon::server>(settings_);
		port_ = server_->port();
	}
	// The server must have ended.
	void start_again()
	{
		settings_.listen = host() + ':' + std::to_string(port_);
		server_ = std::make_unique<coop::daemon::server>(settings_);
	}
	void restart()
	{
		server_.reset();
		start_again();
	}
	storage_options client_options()
	{
		storage_options o{};
		o.server = host();
		o.port = port_;
		o.export_name = "/data";
		o.key_file = settings_.key_file;
		o.timeout_ms = 60000;
		return o;
	}
	std::unique_ptr<storage> connect() { return storage::connect(client_options()); }
	void up()
	{
		start();
		client_ = connect();
	}
	std::string write_key(const std::string &name, char fill, mode_t mode = 0600)
	{
		const std::string path = (base_ / name).string();
		std::ofstream(path) << std::string(32, fill);
		::chmod(path.c_str(), mode);
		return path;
	}
	void put(const std::string &name, const std::string &text)
	{
		std::ofstream(tree_ / name, std::ios::binary) << text;
	}
	std::string disk(const std::string &name)
	{
		std::ifstream f(tree_ / name, std::ios::binary);
		return {std::istreambuf_iterator<char>(f), {}};
	}
	entry find(const std::string &name)
	{
		entry e;
		EXPECT_EQ(client_->lookup(me(), client_->root().fh, name, e), 0) << name;
		return e;
	}
	open_result open(const entry &e, int flags, std::uint32_t want = 0)
	{
		open_result o{};
		EXPECT_EQ(client_->open(me(), e.fh, flags, want, o), 0);
		return o;
	}

	std::filesystem::path base_, tree_;
	coop::daemon::settings settings_;
	std::uint16_t port_ = 0;
	std::unique_ptr<coop::daemon::server> server_;
	std::unique_ptr<storage> client_;
};

// Reads and waits for the result.
inline storage::read_result read_into(storage &s, const entry &e, std::uint64_t open_id,
				      std::uint64_t offset, std::vector<iovec> dest,
				      std::uint64_t version = 0)
{
	std::mutex mutex;
	std::condition_variable ready;
	bool done = false;
	storage::read_result result{};
	s.read(e.fh, open_id, offset, std::move(dest), version, [&](const storage::read_result &r) {
		std::lock_guard lock(mutex);
		result = r;
		done = true;
		ready.notify_one();
	});
	std::unique_lock lock(mutex);
	ready.wait(lock, [&] { return done; });
	return result;
}

inline std::string read_text(storage &s, const entry &e, std::uint64_t open_id,
			     std::uint64_t offset, std::size_t length, int *err = nullptr,
			     std::uint64_t version = 0)
{
	std::string text(length, '?');
	const auto r = read_into(s, e, open_id, offset, {{text.data(), text.size()}}, version);
	if (err)
		*err = r.err;
	else
		EXPECT_EQ(r.err, 0);
	text.resize(r.err ? 0 : r.bytes);
	return text;
}

inline int write_text(storage &s, const entry &e, std::uint64_t open_id, std::uint64_t offset,
		      const std::string &text, write_result &out)
{
	const iovec v = {const_cast<char *>(text.data()), text.size()};
	return s.write(e.fh, open_id, offset, {&v, 1}, out);
}

} // namespace rig
