// SPDX-License-Identifier: MIT
// uncommitted_names.hpp - the directories whose changes no commit has covered yet.
//
// The connection notes a change when its reply arrives, under the verifier of names that this
// connection was told; an fsync asks whether the changes before it may be lost. The rules are in
// rpc/storage/uncommitted.h, which this guards with a lock.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "rpc/storage/uncommitted.h"
#include "userland/client/storage.hpp"

namespace coop::client
{

class uncommitted_names
{
public:
	uncommitted_names();
	// run: the verifier of names, own: the reply's own verifier; 0: none.
	void changed(const handle &dir, std::uint64_t run, std::uint64_t own = 0);
	// What a commit that is sent from now on covers.
	std::uint64_t now();
	// The commit's verifier. True: changes before it may be lost.
	[[nodiscard]] bool committed(const handle &dir, std::uint64_t covers, std::uint64_t run,
				     std::uint64_t verifier);
	// The commit failed at storage.
	void failed(const handle &dir, std::uint64_t covers);

private:
	std::mutex mutex_;
	std::vector<std::uint64_t> memory_;
	coop_uncommitted table_;
};

} // namespace coop::client
