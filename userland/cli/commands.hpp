// SPDX-License-Identifier: MIT
// commands.hpp - one function for each command. It takes its options as a plain struct, prints its
// output and returns the exit status; main.cpp fills the structs from the command line.
#pragma once

#include <string>
#include <vector>

#include "userland/cli/result.hpp"

namespace coop::cli
{

struct mount_request {
	std::string spec; // SERVER[:PORT]:/EXPORT
	std::string mountpoint;
	std::vector<std::string> options; // each may be a list: "ro,readahead=64"
	std::string type; // empty: the kernel module if available; coopfs; fuse.coopfs
	double timeout_s = 30;
	bool foreground = false;
	bool verbose = false;
	bool fake = false; // everything but the mount itself
	bool from_mount8 =
		false; // called by mount(8): a remount gets all flags, not just the changed ones
};
int run_mount(const mount_request &);

struct umount_request {
	std::string mountpoint;
	bool lazy = false;
	bool force = false;     // fail the calls that wait for an answer
	bool read_only = false; // instead, if the mount is in use
	double timeout_s = 10;
};
int run_umount(const umount_request &);

struct peers_request {
	std::string mountpoint;
	std::vector<std::string> add; // lines as in ibaddr
	std::string introduce;        // another mount: each becomes a peer of the other
	bool json = false;
};
int run_peers(const peers_request &);

struct stats_request {
	std::string mountpoint;
	bool reset = false;
	bool json = false;
	double interval_s = 0; // 0: once
	unsigned count = 0;    // with interval: number of reports; 0: until interrupted
};
int run_stats(const stats_request &);

struct top_request {
	std::vector<std::string> mountpoints; // none: every coopfs mount
	double interval_s = 1;
	bool once = false;
	bool json = false;
};
int run_top(const top_request &);

struct tree_request {
	std::string file;
	bool json = false;
};
int run_tree(const tree_request &);

// "coopfs: TEXT" to standard error; the status, for `return report(...)`.
int report(const failure &);

} // namespace coop::cli
