// SPDX-License-Identifier: MIT
// export_options.hpp - the description of an export: its name, its tree, which clients it admits,
// and as which users they act.
//
//   NAME[,OPTION]...=PATH
//
// The options follow exports(5) in meaning and in name.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc/storage/message.h"

namespace coop::daemon
{

// An IPv4 or IPv6 prefix. IPv4 addresses are stored as IPv4-mapped IPv6 (::ffff:a.b.c.d), so a
// client is the same on a socket of either family.
class network
{
public:
	using address = std::array<std::uint8_t, 16>;

	// ADDR or ADDR/BITS. Throws std::runtime_error.
	explicit network(std::string_view text);
	[[nodiscard]] bool contains(const address &) const;
	// Parses an address without a prefix; false: it is none.
	[[nodiscard]] static bool parse(const std::string &text, address &out);

private:
	address at_{};
	unsigned bits_ = 0;
};

struct export_spec {
	std::string name; // as in a client's mount, without the leading slash
	std::string path;
	bool devices = true; // clients' root may make device nodes
	bool read_only = false;
	bool root_squash = false, all_squash = false;
	std::uint32_t anonuid = 65534, anongid = 65534;
	std::vector<network> clients{}; // none: all clients

	// Whether a client at that address may use the export.
	[[nodiscard]] bool admits(const std::string &address) const;
	// Maps the caller's ids to those that file-system calls run as.
	void squash(coop_st_cred &) const;
};

// Throws std::runtime_error with a text that tells the administrator what to change.
[[nodiscard]] export_spec parse_export(std::string_view name, std::string_view path);
// Splits NAME[,OPTION]...=PATH at the right '='; values of options contain '=' too.
[[nodiscard]] std::pair<std::string_view, std::string_view> split_export(std::string_view);

} // namespace coop::daemon
