// SPDX-License-Identifier: MIT
// stability.cpp - making verifiers, and keeping them over a restart.
#include "userland/daemon/stability.hpp"

#include <cerrno>
#include <cinttypes>
#include <fcntl.h>
#include <spdlog/spdlog.h>

#include "coop/cluster_key.hpp"
#include "coop/unique_fd.hpp"

namespace coop::daemon
{

namespace
{

constexpr std::size_t record_max = 128; // bytes of the file

std::uint64_t fresh()
{
	std::uint64_t n;
	random_bytes(&n, sizeof(n));
	return n;
}

// The first line of a small file; empty if there is none.
std::string first_line(const std::string &path)
{
	char text[record_max];
	unique_fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
	const ssize_t n = fd ? ::read(fd.get(), text, sizeof(text)) : -1;
	const std::string_view all(text, n > 0 ? static_cast<std::size_t>(n) : 0);
	const std::size_t end = all.find('\n');
	return std::string(end == all.npos ? std::string_view() : all.substr(0, end));
}

} // namespace

stability::stability(const std::string &state_dir, std::string boot_id) :
	path_(state_dir + "/verifier"),
	boot_id_(std::move(boot_id))
{
	if (boot_id_.empty())
		boot_id_ = first_line("/proc/sys/kernel/random/boot_id");
	if (boot_id_.empty() || !load()) {
		const std::uint64_t nonce = fresh();
		base_ = nonce;
		if (boot_id_.empty() || !save(nonce))
			spdlog::warn("{}: {}; a restart of the daemon will look to clients like a "
				     "crash of the machine (give --state DIR)",
				     path_, std::strerror(errno));
		else
			(void)load();
	}
}

// A record is "boot id, nonce". It need not outlive the kernel, so it is never synced.
bool stability::load()
{
	const std::string line = first_line(path_);
	if (line.size() <= boot_id_.size() || !line.starts_with(boot_id_ + " "))
		return false;
	const digest d = sha256("coopfs verifier " + line);
	std::memcpy(&base_, d.data(), sizeof(base_));
	return true;
}

bool stability::save(std::uint64_t nonce)
{
	const std::string line = fmt::format("{} {:016x}\n", boot_id_, nonce);
	const std::string made = path_ + ".new";
	unique_fd fd(::open(made.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
	if (fd &&
	    ::write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
	    !::rename(made.c_str(), path_.c_str()))
		return true;
	// Better no record than one that hides a failure.
	const int err = errno;
	::unlink(path_.c_str());
	errno = err;
	return false;
}

std::uint64_t stability::verifier(std::uint64_t fs, const coop_fid &fid) const
{
	std::lock_guard lock(mutex_);
	const auto it = failed_.find(fid);
	return base_ ^ fs ^ (it == failed_.end() ? 0 : it->second);
}

void stability::failed(const coop_fid &fid)
{
	std::lock_guard lock(mutex_);
	if (failed_.size() >= failures_max && !failed_.contains(fid)) {
		failed_.clear();
		base_ = fresh();
	}
	failed_[fid] = fresh();
	if (!save(fresh())) // for the next process
		spdlog::error("{}: {}", path_, std::strerror(errno));
}

} // namespace coop::daemon
