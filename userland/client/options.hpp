// SPDX-License-Identifier: MIT
// options.hpp - mount options, checked before anything is started.
//
// The FUSE program and the mount helper of the kernel module take the same options, so both parse
// them here. An option that is unknown, out of range, given twice or without effect beside the
// others is refused by name, with the allowed values; no option is silently ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coop::client
{

inline constexpr std::uint16_t default_port = 17430;

struct mount_options {
	// SERVER[:PORT]:/EXPORT
	std::string server; // without brackets
	std::uint16_t port = default_port;
	std::string export_name; // "/data"

	std::uint32_t readahead = 256; // pages
	bool ra_async = true;
	std::uint64_t cache_size = 1ull << 30; // bytes
	// Keep in the page store what the kernel has cached, too? automatic: while memory is to
	// spare, what no other node is known to hold.
	enum class copies : std::uint8_t { automatic, never, always };
	copies keep_copies = copies::automatic;
	std::string key; // cluster key file, empty: none

	bool ib = false;        // exchange pages with peers
	std::string ib_devname; // empty: soft RoCE
	unsigned ib_port = 1;
	int ib_gid = -1; // index; -1: chosen automatically
	unsigned ib_sl = 0;
	unsigned ib_tclass = 0;
	std::uint32_t ib_qkey = 0x1c00b;
	unsigned ib_mtu = 0; // 0: the device's
	unsigned ib_num_rrpc = 64;
	unsigned ib_num_srpc = 64;
	unsigned peer_timeout_ms = 200;
	bool tree = true;    // take part in the forests of files that several nodes have open
	bool forward = true; // load for others, too, in these forests
	bool bundles = true; // ask for bundles of directories that other nodes use too
	unsigned wait_timeout_ms = 2000; // most time that a load waits for its parents
	std::string addr; // soft RoCE: own address; empty: the one that routes to the server
	bool page_crc = false, page_mac = false;
	std::uint32_t serve_mbps = 0; // megabits a second served to peers, 0: no limit

	bool commit_on_close = true; // close(2) waits until storage has the file on its disk

	bool local_flock = false, local_posix = false; // locks within this node only

	bool read_only = false;
	bool nosymfollow = false; // no symbolic link below the mount is followed
	bool allow_other = false;
	bool nolease = false; // ask storage each time
	bool strict = false;  // the kernel caches nothing that another node may change
	bool default_permissions = false;
	std::vector<std::string> vfs; // nosuid, noatime ...: for mount(2)
};

// Both return the error in the text, or nothing.
[[nodiscard]] std::optional<std::string> parse_source(std::string_view text, mount_options &out);
[[nodiscard]] std::optional<std::string> parse_options(std::string_view text, mount_options &out);

// server:/export, as mount tables show it.
std::string format_source(const mount_options &);
// One "option=value" a line for every option that is set.
std::string format_options(const mount_options &);
// Table for --help: option and its values.
const std::vector<std::pair<std::string_view, std::string_view>> &option_help();

} // namespace coop::client
