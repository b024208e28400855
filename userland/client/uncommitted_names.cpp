// SPDX-License-Identifier: MIT
// uncommitted_names.cpp - see uncommitted_names.hpp.
#include "userland/client/uncommitted_names.hpp"

#include <cstring>

#include "coop/cluster_key.hpp"

namespace coop::client
{

namespace
{

// Handles have no fixed length.
coop_fid key_of(const handle &dir)
{
	const digest d = sha256(dir);
	coop_fid key;
	std::memcpy(&key, d.data(), sizeof(key));
	return key;
}

} // namespace

uncommitted_names::uncommitted_names() :
	memory_(coop_uncommitted_size(COOP_UNCOMMITTED_DIRS) / sizeof(std::uint64_t) + 1)
{
	coop_uncommitted_init(&table_, memory_.data(), COOP_UNCOMMITTED_DIRS);
}

void uncommitted_names::changed(const handle &dir, std::uint64_t run, std::uint64_t own)
{
	const coop_fid key = key_of(dir);
	std::lock_guard lock(mutex_);
	coop_uncommitted_add(&table_, &key, run, own);
}

std::uint64_t uncommitted_names::now()
{
	std::lock_guard lock(mutex_);
	return coop_uncommitted_now(&table_);
}

bool uncommitted_names::committed(const handle &dir, std::uint64_t covers, std::uint64_t run,
				  std::uint64_t verifier)
{
	const coop_fid key = key_of(dir);
	std::lock_guard lock(mutex_);
	return coop_uncommitted_done(&table_, &key, covers, run, verifier);
}

void uncommitted_names::failed(const handle &dir, std::uint64_t covers)
{
	const coop_fid key = key_of(dir);
	std::lock_guard lock(mutex_);
	coop_uncommitted_failed(&table_, &key, covers);
}

} // namespace coop::client
