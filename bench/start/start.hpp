// SPDX-License-Identifier: MIT
// start.hpp - many nodes start the same program at once: what it costs storage, in requests.
//
// Every node is a mount of the user-space client, without the kernel: with its connection to
// storage, its leases, its page store and its peers. The daemon and all nodes are in this process.
// A node does what the start of a Python program does: it looks for each module in several
// directories under several names, most of which do not exist, and opens, reads and closes the
// file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace launch
{

struct options {
	unsigned nodes = 8, files = 300, dirs = 18; // dirs: a multiple of 3
	bool bundles = true;
	std::uint64_t cache = 128u << 20; // bytes, of each node
};

struct counts {
	std::map<std::string, std::uint64_t> calls; // at the daemon, by operation
	std::uint64_t requests = 0;                 // sum of them
	std::uint64_t sent_bytes = 0;               // contents of files and bundles
	std::map<std::string, std::uint64_t> other; // counters of bundles, at the daemon
	std::uint64_t wrong = 0;                    // answers that a node got wrongly
	std::string what;                           // one of them
};

// Files of 100 to 3000 bytes.
void make_tree(const std::filesystem::path &, const options &);
// A fresh daemon, and fresh nodes that begin together. Throws std::exception.
counts run(const std::filesystem::path &tree, const std::filesystem::path &state, const options &);

} // namespace launch
