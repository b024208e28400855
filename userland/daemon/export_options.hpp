// SPDX-License-Identifier: MIT
// export_options.hpp - what is said of an export: its name, its tree, who may
// come, and as whom they act there.
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

// An IPv4 or IPv6 prefix. IPv4 addresses are kept as IPv6 knows them (::ffff:a.b.c.d), so a client
// is the same one on a socket of either family.
class network
{
public:
	using address = std::array<std::uint8_t, 16>;

	// ADDR or ADDR/BITS. Throws std::runtime_error.
	explicit network(std::string_view text);
	[[nodiscard]] bool contains(const address &) const;
	// Of an address without a prefix; false: it is none.
	[[nodiscard]] static bool parse(const std::string &text, address &out);

private:
	address at_{};
	unsigned bits_ = 0;
};

struct export_spec {
	std::string name; // as clients say it, without the leading slash
	std::string path;
	bool devices = true; // clients' root may make device nodes
	bool read_only = false;
	bool root_squash = false, all_squash = false;
	std::uint32_t anonuid = 65534, anongid = 65534;
	std::vector<network> clients{}; // none: all

	// Whether a client of that address may use the export.
	[[nodiscard]] bool admits(const std::string &address) const;
	// Turns who asks into the user that the file system is asked as.
	void squash(coop_st_cred &) const;
};

// Throws std::runtime_error with a text that a person can act on.
[[nodiscard]] export_spec parse_export(std::string_view name, std::string_view path);
// The two parts of NAME[,OPTION]...=PATH; values of options have '=' too.
[[nodiscard]] std::pair<std::string_view, std::string_view> split_export(std::string_view);

} // namespace coop::daemon
