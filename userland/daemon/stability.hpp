// SPDX-License-Identifier: MIT
// stability.hpp - the verifiers that tell a client whether what it changed since
// its last COMMIT can still be there.
//
// A verifier is the same for as long as the kernel that holds the page cache
// runs: it is made from the kernel's boot id, so a restart of the daemon alone
// does not make clients write everything again. It changes for one file when
// that file could not be written back: the kernel tells this once, to the fsync
// of one client, and the others must learn of it too.
//
// A file in the state directory carries a nonce from one process of the daemon
// to the next under the same kernel; a failure replaces it. Wherever it cannot
// be read or written a fresh nonce takes its place: then a restart does look
// like a crash, which costs clients work, or an error, but hides nothing.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "rpc/storage/message.h"

namespace coop::daemon
{

constexpr std::size_t failures_max = 4096; // files; then all files get new verifiers

class stability
{
public:
	// boot_id: of the kernel; empty: as it says itself.
	stability(const std::string &state_dir, std::string boot_id);

	// fs: of the export. Ask before a change, and after an fsync.
	std::uint64_t verifier(std::uint64_t fs, const coop_fid &) const;
	// An fsync of this file has failed.
	void failed(const coop_fid &);

private:
	bool load();
	bool save(std::uint64_t nonce);

	std::string path_, boot_id_;
	mutable std::mutex mutex_;
	std::uint64_t base_ = 0; // of boot id and nonce
	struct hash {
		std::size_t operator()(const coop_fid &f) const { return f.lo; }
	};
	struct equal {
		bool operator()(const coop_fid &a, const coop_fid &b) const
		{
			return a.hi == b.hi && a.lo == b.lo;
		}
	};
	std::unordered_map<coop_fid, std::uint64_t, hash, equal> failed_;
};

} // namespace coop::daemon
