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

constexpr const char *file = "verifier";

std::uint64_t fresh()
{
	std::uint64_t n;
	random_bytes(&n, sizeof(n));
	return n;
}

std::string first_line(std::string_view text)
{
	const std::size_t end = text.find('\n');
	return std::string(end == text.npos ? std::string_view() : text.substr(0, end));
}

std::string boot_of_this_kernel()
{
	char text[64];
	const unique_fd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
	const ssize_t n = fd ? ::read(fd.get(), text, sizeof(text)) : -1;
	return first_line({text, n > 0 ? static_cast<std::size_t>(n) : 0});
}

} // namespace

stability::stability(const state_directory &state, std::string boot_id) :
	state_(state),
	boot_id_(boot_id.empty() ? boot_of_this_kernel() : std::move(boot_id))
{
	if (boot_id_.empty() || !load()) {
		const std::uint64_t nonce = fresh();
		base_ = nonce;
		const int err = boot_id_.empty() ? -ENODATA : save(nonce);
		if (err)
			spdlog::warn("{}/{}: {}; a restart of the daemon will look to clients like "
				     "a crash of the machine (give --state DIR)",
				     state_.path(), file, std::strerror(-err));
		else
			(void)load();
	}
}

// A record is "boot id, nonce". It need not outlive the kernel, so it is never synced.
bool stability::load()
{
	std::string text;
	if (state_.read(file, text))
		return false;
	const std::string line = first_line(text);
	if (line.size() <= boot_id_.size() || !line.starts_with(boot_id_ + " "))
		return false;
	const digest d = sha256("coopfs verifier " + line);
	std::memcpy(&base_, d.data(), sizeof(base_));
	return true;
}

int stability::save(std::uint64_t nonce)
{
	const int err =
		state_.replace(file, fmt::format("{} {:016x}\n", boot_id_, nonce), synced::no);
	if (err) // better no record than one that hides a failure
		state_.remove(file);
	return err;
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
	if (const int err = save(fresh())) // for the next process
		spdlog::error("{}/{}: {}", state_.path(), file, std::strerror(-err));
}

} // namespace coop::daemon
