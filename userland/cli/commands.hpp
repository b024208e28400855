// SPDX-License-Identifier: MIT
// commands.hpp - one function a command. Each takes its options as a plain struct,
// prints what it has to say and returns the exit status; main.cpp fills the structs
// from the command line.
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
	std::string type; // empty: the kernel module if it is there; coopfs; fuse.coopfs
	double timeout_s = 30;
	bool foreground = false;
	bool verbose = false;
	bool fake = false; // everything but the mount itself
	bool from_mount8 =
		false; // as its helper: a remount is told all flags, not just what changes
};
int run_mount(const mount_request &);

struct umount_request {
	std::string mountpoint;
	bool lazy = false;
	bool force = false;     // what waits for an answer fails
	bool read_only = false; // instead, if it is in use
	double timeout_s = 10;
};
int run_umount(const umount_request &);

struct peers_request {
	std::string mountpoint;
	std::vector<std::string> add; // lines as in ibaddr
	std::string introduce;        // another mount: each is registered with the other
	bool json = false;
};
int run_peers(const peers_request &);

struct stats_request {
	std::string mountpoint;
	bool reset = false;
	bool json = false;
	double interval_s = 0; // 0: once
	unsigned count = 0;    // with interval: how many; 0: until interrupted
};
int run_stats(const stats_request &);

struct top_request {
	std::vector<std::string> mountpoints; // none: every coopfs mount
	double interval_s = 1;
	bool once = false;
	bool json = false;
};
int run_top(const top_request &);

// "coopfs: TEXT" to standard error; the status, for `return report(...)`.
int report(const failure &);

} // namespace coop::cli
