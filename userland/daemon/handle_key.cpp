// SPDX-License-Identifier: MIT
// handle_key.cpp - derives the secret of file handles, and makes the file that it comes from.
#include "userland/daemon/handle_key.hpp"

#include <algorithm>
#include <cerrno>
#include <spdlog/spdlog.h>

namespace coop::daemon
{

namespace
{

constexpr const char *file = "handle.key";

// A crash of the machine could leave an earlier daemon's file empty, or full of zeros. A key that
// anyone can guess is worse than handles that have become invalid.
bool is_damaged(const std::string &key)
{
	return key.size() < cluster_key_min ||
	       std::all_of(key.begin(), key.end(), [](char c) { return !c; });
}

// 0 or -errno. Throws if it may not be trusted.
int kept_key(const state_directory &state, std::string &key)
{
	const int err = state.error() ? state.error() : state.read(file, key);
	if (err == -EPERM && !state.error())
		throw std::runtime_error(
			state.path() + "/" + file +
			": another user may know or have made this key of file handles, because "
			"it is not a file of the daemon's user alone with mode 0600. Remove it; "
			"clients then have to mount again");
	if (err && err != -ENOENT)
		return err;
	if (!err && !is_damaged(key))
		return 0;
	if (!err)
		spdlog::warn("{}/{} was damaged by a crash and is made anew: clients that mounted "
			     "before the crash have to mount again",
			     state.path(), file);
	key.assign(cluster_key_min, '\0');
	random_bytes(key.data(), key.size());
	return err ? state.create(file, key, synced::yes) : state.replace(file, key, synced::yes);
}

} // namespace

digest handle_key(const secret &cluster, const state_directory &state)
{
	constexpr const char *label = "coopfs handles 1";
	if (!cluster.empty())
		return hmac(as_view(cluster), {label});
	std::string key;
	int err = kept_key(state, key);
	if (err == -EEXIST) // another daemon was faster
		err = kept_key(state, key);
	if (err) {
		spdlog::warn("{}/{}: {}; file handles will not survive a restart (give --state "
			     "DIR)",
			     state.path(), file, std::strerror(-err));
		key.assign(cluster_key_min, '\0');
		random_bytes(key.data(), key.size());
	}
	return hmac(key, {label});
}

} // namespace coop::daemon
