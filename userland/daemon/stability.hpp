// SPDX-License-Identifier: MIT
// stability.hpp - verifiers: they tell a client whether its changes since its last COMMIT may be
// lost.
//
// A verifier is constant while the kernel runs that holds the page cache: it is derived from the
// kernel's boot id, so a restart of the daemon alone does not make clients write everything again.
// It changes for one file when writeback of that file failed: the kernel reports this once, to the
// fsync of one client, and the others must learn of it too.
//
// A file in the state directory carries a nonce from one daemon process to the next under the same
// kernel; a failure replaces it. If it cannot be read or written, a fresh nonce takes its place:
// then a restart looks like a crash, which costs clients work, or an error, but hides nothing.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "coop/fid.hpp"
#include "rpc/storage/message.h"
#include "userland/daemon/state_directory.hpp"

namespace coop::daemon
{

constexpr std::size_t failures_max = 4096; // above it all files get new verifiers

class stability
{
public:
	// The directory outlives this object. boot_id: empty: read from the kernel.
	stability(const state_directory &, std::string boot_id);

	// fs: of the export. Call before a change, and after an fsync.
	std::uint64_t verifier(std::uint64_t fs, const coop_fid &) const;
	// Of the kernel that holds the page cache; empty: not known.
	const std::string &boot() const { return boot_id_; }
	// Records that an fsync of this file failed.
	void failed(const coop_fid &);

private:
	bool load();
	[[nodiscard]] int save(std::uint64_t nonce);

	const state_directory &state_;
	std::string boot_id_;
	mutable std::mutex mutex_;
	std::uint64_t base_ = 0; // from boot id and nonce
	std::unordered_map<coop_fid, std::uint64_t, fid_hash, fid_equal> failed_;
};

} // namespace coop::daemon
