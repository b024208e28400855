// SPDX-License-Identifier: MIT
// options.cpp - a table with a row per option: its parser, its values, the option that it depends
// on. Parsing, help and the listing all use that table, so they cannot disagree.
#include "userland/client/options.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/format.h>

namespace coop::client
{

namespace
{

using problem = std::optional<std::string>;

struct option {
	std::string_view name;
	std::string_view takes; // empty: a flag
	std::string_view needs; // option without which this one has no effect
	problem (*set)(mount_options &, std::string_view value);
	std::string (*show)(const mount_options &); // empty text: not set
};

bool parse_number(std::string_view text, std::uint64_t &out)
{
	int base = 10;
	if (text.starts_with("0x") || text.starts_with("0X")) {
		text.remove_prefix(2);
		base = 16;
	}
	auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), out, base);
	return err == std::errc() && end == text.data() + text.size() && !text.empty();
}

// With an optional K, M, G or T (powers of 1024).
bool parse_size(std::string_view text, std::uint64_t &out)
{
	constexpr std::string_view units = "kKmMgGtT";
	const auto unit = text.empty() ? units.npos : units.find(text.back());
	const auto shift = unit == units.npos ? 0 : 10 * (unit / 2 + 1);
	if (shift)
		text.remove_suffix(1);
	if (!parse_number(text, out) || out > (UINT64_MAX >> shift))
		return false;
	out <<= shift;
	return true;
}

template <auto Member, std::uint64_t Min, std::uint64_t Max> constexpr auto number()
{
	return [](mount_options &o, std::string_view text) -> problem {
		std::uint64_t n;
		if (!parse_size(text, n) || n < Min || n > Max)
			return fmt::format("takes a number from {} to {}", Min, Max);
		o.*Member = static_cast<std::remove_reference_t<decltype(o.*Member)>>(n);
		return {};
	};
}

template <auto Member> constexpr auto zero_or_one()
{
	return [](mount_options &o, std::string_view text) -> problem {
		if (text != "0" && text != "1")
			return "takes 0 or 1";
		o.*Member = text == "1";
		return {};
	};
}

template <auto Member, bool Value = true> constexpr auto flag()
{
	return [](mount_options &o, std::string_view) -> problem {
		o.*Member = Value;
		return {};
	};
}

template <auto Member> constexpr auto text()
{
	return [](mount_options &o, std::string_view value) -> problem {
		if (value.empty())
			return "takes a non-empty value";
		o.*Member = value;
		return {};
	};
}

problem set_copies(mount_options &o, std::string_view text)
{
	using copies = mount_options::copies;
	if (text != "auto" && text != "0" && text != "1")
		return "takes auto, 0 or 1";
	o.keep_copies = text == "auto" ? copies::automatic
			: text == "0"  ? copies::never
				       : copies::always;
	return {};
}

std::string show_copies(const mount_options &o)
{
	constexpr const char *words[] = {"auto", "0", "1"};
	return words[static_cast<unsigned>(o.keep_copies)];
}

template <auto Member> std::string show_number(const mount_options &o)
{
	return fmt::format("{}", o.*Member);
}

template <auto Member> std::string show_bit(const mount_options &o)
{
	return o.*Member ? "1" : "0";
}

template <auto Member> std::string show_text(const mount_options &o)
{
	return o.*Member;
}

template <auto Member> std::string show_flag(const mount_options &o)
{
	return o.*Member ? "yes" : "";
}

problem set_mtu(mount_options &o, std::string_view value)
{
	for (unsigned mtu = 256; mtu <= 4096; mtu *= 2) {
		if (value == std::to_string(mtu)) {
			o.ib_mtu = mtu;
			return {};
		}
	}
	return "takes 256, 512, 1024, 2048 or 4096";
}

problem set_addr(mount_options &o, std::string_view value)
{
	unsigned char scratch[sizeof(in6_addr)];
	std::string copy(value);
	if (inet_pton(AF_INET, copy.c_str(), scratch) != 1 &&
	    inet_pton(AF_INET6, copy.c_str(), scratch) != 1)
		return "takes a numeric IPv4 or IPv6 address of this machine";
	o.addr = value;
	return {};
}

template <bool mount_options::*what> problem set_auto(mount_options &o, std::string_view value)
{
	if (value != "auto" && value != "off")
		return "takes auto or off";
	o.*what = value == "auto";
	return {};
}

template <bool mount_options::*what> std::string show_auto(const mount_options &o)
{
	return o.*what ? "auto" : "off";
}

problem set_local_lock(mount_options &o, std::string_view value)
{
	const bool all = value == "all";
	if (!all && value != "none" && value != "flock" && value != "posix")
		return "takes none, flock, posix or all";
	o.local_flock = all || value == "flock";
	o.local_posix = all || value == "posix";
	return {};
}

std::string show_local_lock(const mount_options &o)
{
	if (o.local_flock)
		return o.local_posix ? "all" : "flock";
	return o.local_posix ? "posix" : "none";
}

// The engine counts bytes a second in 32 bits.
constexpr std::uint64_t serve_mbps_max = UINT32_MAX / 125000;

using m = mount_options;

constexpr option table[] = {
	{"readahead", "0 to 65536 pages", "", number<&m::readahead, 0, 65536>(),
	 show_number<&m::readahead>},
	{"ra_async", "0 or 1", "", zero_or_one<&m::ra_async>(), show_bit<&m::ra_async>},
	{"cache_size", "bytes (K, M, G), at least 4M", "",
	 number<&m::cache_size, 4ull << 20, 1ull << 42>(), show_number<&m::cache_size>},
	{"keep_copies", "auto, 0 or 1", "", set_copies, show_copies},
	{"key", "cluster key file", "", text<&m::key>(), show_text<&m::key>},
	{"ib", "", "", flag<&m::ib>(), show_flag<&m::ib>},
	{"ib_devname", "verbs device (default: soft RoCE)", "ib", text<&m::ib_devname>(),
	 show_text<&m::ib_devname>},
	{"ib_port", "1 to 255", "ib_devname", number<&m::ib_port, 1, 255>(),
	 show_number<&m::ib_port>},
	{"ib_gid", "GID index, 0 to 255", "ib_devname", number<&m::ib_gid, 0, 255>(),
	 show_number<&m::ib_gid>},
	{"ib_sl", "0 to 15", "ib_devname", number<&m::ib_sl, 0, 15>(), show_number<&m::ib_sl>},
	{"ib_tclass", "0 to 255", "ib", number<&m::ib_tclass, 0, 255>(),
	 show_number<&m::ib_tclass>},
	{"ib_qkey", "1 to 0xffffffff", "ib", number<&m::ib_qkey, 1, UINT32_MAX>(),
	 [](const m &o) { return fmt::format("{:#010x}", o.ib_qkey); }},
	{"ib_mtu", "256, 512, 1024, 2048 or 4096", "ib", set_mtu, show_number<&m::ib_mtu>},
	{"ib_num_rrpc", "1 to 1024 queue pairs to serve peers from", "ib",
	 number<&m::ib_num_rrpc, 1, 1024>(), show_number<&m::ib_num_rrpc>},
	{"ib_num_srpc", "1 to 1024 requests in flight", "ib", number<&m::ib_num_srpc, 1, 1024>(),
	 show_number<&m::ib_num_srpc>},
	{"peer_timeout_ms", "1 to 10000", "ib", number<&m::peer_timeout_ms, 1, 10000>(),
	 show_number<&m::peer_timeout_ms>},
	{"tree", "auto or off", "ib", set_auto<&m::tree>, show_auto<&m::tree>},
	{"bundles", "auto or off", "ib", set_auto<&m::bundles>, show_auto<&m::bundles>},
	{"forward", "0 or 1", "ib", zero_or_one<&m::forward>(), show_bit<&m::forward>},
	{"wait_timeout_ms", "1 to 60000", "ib", number<&m::wait_timeout_ms, 1, 60000>(),
	 show_number<&m::wait_timeout_ms>},
	{"addr", "own address for soft RoCE", "ib", set_addr, show_text<&m::addr>},
	{"page_crc", "0 or 1", "ib", zero_or_one<&m::page_crc>(), show_bit<&m::page_crc>},
	{"page_mac", "0 or 1", "ib", zero_or_one<&m::page_mac>(), show_bit<&m::page_mac>},
	{"serve_mbps", "0 to 34359 megabits per second, 0 for no limit", "ib",
	 number<&m::serve_mbps, 0, serve_mbps_max>(), show_number<&m::serve_mbps>},
	{"commit_on_close", "0 or 1", "", zero_or_one<&m::commit_on_close>(),
	 show_bit<&m::commit_on_close>},
	{"local_lock", "none, flock, posix or all", "", set_local_lock, show_local_lock},
	{"ro", "", "", flag<&m::read_only>(), show_flag<&m::read_only>},
	{"rw", "", "", flag<&m::read_only, false>(), [](const m &) { return std::string(); }},
	{"allow_other", "", "", flag<&m::allow_other>(), show_flag<&m::allow_other>},
	{"nolease", "", "", flag<&m::nolease>(), show_flag<&m::nolease>},
	{"strict", "", "", flag<&m::strict>(), show_flag<&m::strict>},
	{"nosymfollow", "", "", flag<&m::nosymfollow>(), show_flag<&m::nosymfollow>},
	{"symfollow", "", "", flag<&m::nosymfollow, false>(),
	 [](const m &) { return std::string(); }},
	{"default_permissions", "", "", flag<&m::default_permissions>(),
	 show_flag<&m::default_permissions>},
};

// Flags of mount(2); libfuse passes them on.
constexpr std::string_view vfs_flags[] = {
	"suid",  "nosuid",  "dev",  "nodev", "exec",    "noexec",
	"atime", "noatime", "sync", "async", "dirsync",
};

// Options of every mount that libfuse does not accept, and that have no effect here: storage keeps
// the times and versions of files, and its locks.
constexpr std::string_view vfs_idle[] = {
	"defaults",    "relatime",      "norelatime", "diratime",   "nodiratime",
	"strictatime", "nostrictatime", "lazytime",   "nolazytime", "iversion",
	"noiversion",  "mand",          "nomand",     "silent",     "loud",
};

constexpr std::string_view module_only[] = {"ib_copy", "ib_engines", "hard",
					    "soft",    "timeo",      "ra_sync"};

const option *find_option(std::string_view name)
{
	const auto row = std::ranges::find(table, name, &option::name);
	return row == std::end(table) ? nullptr : row;
}

std::string known_options()
{
	std::string names;
	for (const option &o : table)
		names += fmt::format("{}{}{}", names.empty() ? "" : ", ", o.name,
				     o.takes.empty() ? "" : "=");
	for (std::string_view name : vfs_idle)
		names += fmt::format(", {}", name);
	for (std::string_view name : vfs_flags)
		names += fmt::format(", {}", name);
	return names;
}

problem apply(std::string_view item, mount_options &out, std::set<std::string_view> &given)
{
	auto equals = item.find('=');
	auto name = item.substr(0, equals);
	if (std::ranges::find(vfs_flags, item) != std::end(vfs_flags)) {
		out.vfs.emplace_back(item);
		return {};
	}
	if (std::ranges::find(vfs_idle, item) != std::end(vfs_idle))
		return {};
	// Words in fstab for the programs that read it, not for file systems.
	if (name == "_netdev" || name.starts_with("x-"))
		return {};
	const option *o = find_option(name);
	if (!o && std::ranges::find(module_only, name) != std::end(module_only))
		return fmt::format("option '{}' is only for the kernel module (mount -t coopfs)",
				   name);
	if (!o)
		return fmt::format("option '{}' is unknown; the options are {}", name,
				   known_options());
	if (!given.insert(o->name).second)
		return fmt::format("option '{}' is given twice", name);
	if (o->takes.empty() && equals != item.npos)
		return fmt::format("option '{}' takes no value", name);
	if (!o->takes.empty() && equals == item.npos)
		return fmt::format("option '{}' needs a value: {}={}", name, name, o->takes);
	auto value = o->takes.empty() ? std::string_view() : item.substr(equals + 1);
	if (auto wrong = o->set(out, value))
		return fmt::format("option '{}': '{}' is invalid, the option {}", name, value,
				   *wrong);
	return {};
}

// Every given option must have an effect beside the others.
problem consistent(const mount_options &o, const std::set<std::string_view> &given)
{
	if (given.contains("nosymfollow") && given.contains("symfollow"))
		return "options 'nosymfollow' and 'symfollow' exclude each other";
	if (given.contains("ro") && given.contains("rw"))
		return "options 'ro' and 'rw' exclude each other";
	if (!o.addr.empty() && !o.ib_devname.empty())
		return "option 'addr' is for soft RoCE and 'ib_devname' for a device: give one";
	for (std::string_view name : given) {
		const option *row = find_option(name);
		if (!row->needs.empty() && !given.contains(row->needs))
			return fmt::format("option '{}' has no effect without '{}'", name,
					   row->needs);
	}
	return {};
}

} // namespace

std::optional<std::string> parse_options(std::string_view text, mount_options &out)
{
	std::set<std::string_view> given;
	std::string_view rest = text;
	while (!rest.empty()) {
		auto comma = rest.find(',');
		auto item = rest.substr(0, comma);
		rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
		if (item.empty())
			continue;
		if (auto wrong = apply(item, out, given))
			return wrong;
	}
	return consistent(out, given);
}

std::optional<std::string> parse_source(std::string_view text, mount_options &out)
{
	static constexpr std::string_view shape =
		"write SERVER:/EXPORT, SERVER:PORT:/EXPORT or [IPV6]:/EXPORT";
	auto bad = [&](std::string_view why) {
		return fmt::format("source '{}': {}; {}", text, why, shape);
	};
	auto slash = text.find(":/");
	if (slash == text.npos)
		return bad("':/' before the export is missing");
	auto host = text.substr(0, slash);
	out.export_name = text.substr(slash + 1);
	std::string_view port;
	bool has_port = false;
	if (host.starts_with('[')) {
		auto close = host.find(']');
		if (close == host.npos)
			return bad("']' is missing");
		auto after = host.substr(close + 1);
		host = host.substr(1, close - 1);
		has_port = !after.empty();
		if (has_port && after.front() != ':')
			return bad("only ':' may follow ']'");
		port = has_port ? after.substr(1) : after;
		unsigned char scratch[sizeof(in6_addr)];
		if (inet_pton(AF_INET6, std::string(host).c_str(), scratch) != 1)
			return bad("the text in brackets is not an IPv6 address");
	} else if (auto colon = host.find(':'); colon != host.npos) {
		has_port = true;
		port = host.substr(colon + 1);
		host = host.substr(0, colon);
		if (port.find(':') != port.npos)
			return bad("write an IPv6 address in brackets");
	}
	if (host.empty())
		return bad("the server's name is empty");
	out.server = host;
	std::uint64_t number = default_port;
	if (has_port && (!parse_number(port, number) || number < 1 || number > 65535))
		return bad(fmt::format("'{}' is not a port (1 to 65535)", port));
	out.port = static_cast<std::uint16_t>(number);
	return {};
}

std::string format_source(const mount_options &o)
{
	bool v6 = o.server.find(':') != o.server.npos;
	std::string host = v6 ? "[" + o.server + "]" : o.server;
	if (o.port != default_port)
		host += fmt::format(":{}", o.port);
	return host + ":" + o.export_name;
}

std::string format_options(const mount_options &o)
{
	std::string out;
	for (const option &row : table) {
		bool in_force = row.needs.empty() || (row.needs == "ib" && o.ib) ||
				(row.needs == "ib_devname" && !o.ib_devname.empty());
		std::string value = in_force ? row.show(o) : "";
		if (!value.empty())
			out += fmt::format("{}={}\n", row.name, value);
	}
	for (const std::string &v : o.vfs)
		out += fmt::format("{}=yes\n", v);
	return out;
}

const std::vector<std::pair<std::string_view, std::string_view>> &option_help()
{
	static const auto rows = [] {
		std::vector<std::pair<std::string_view, std::string_view>> r;
		for (const option &o : table)
			r.emplace_back(o.name, o.takes);
		return r;
	}();
	return rows;
}

} // namespace coop::client
