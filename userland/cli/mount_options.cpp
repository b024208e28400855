// SPDX-License-Identifier: MIT
// mount_options.cpp - see mount_options.hpp. Options for mount(8) itself (defaults, _netdev, x-...)
// reach helpers from some callers but not from others. They must be dropped here: the file system
// refuses unknown options by name.
#include "userland/cli/mount_options.hpp"

#include <sys/mount.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

namespace coop::cli
{

namespace
{

struct flag {
	std::string_view word;
	unsigned long set, clear;
};

constexpr std::array flags{
	flag{"ro", MS_RDONLY, 0},
	flag{"rw", 0, MS_RDONLY},
	flag{"nosuid", MS_NOSUID, 0},
	flag{"suid", 0, MS_NOSUID},
	flag{"nodev", MS_NODEV, 0},
	flag{"dev", 0, MS_NODEV},
	flag{"noexec", MS_NOEXEC, 0},
	flag{"exec", 0, MS_NOEXEC},
	flag{"noatime", MS_NOATIME, 0},
	flag{"atime", 0, MS_NOATIME},
	flag{"nodiratime", MS_NODIRATIME, 0},
	flag{"diratime", 0, MS_NODIRATIME},
	flag{"relatime", MS_RELATIME, 0},
	flag{"norelatime", 0, MS_RELATIME},
	flag{"sync", MS_SYNCHRONOUS, 0},
	flag{"async", 0, MS_SYNCHRONOUS},
	flag{"dirsync", MS_DIRSYNC, 0},
	flag{"nosymfollow", MS_NOSYMFOLLOW, 0},
	flag{"symfollow", 0, MS_NOSYMFOLLOW},
};

// Accepted without effect: storage keeps the times and versions of files, and its locks.
constexpr std::array idle{
	std::string_view{"strictatime"}, std::string_view{"nostrictatime"},
	std::string_view{"lazytime"},    std::string_view{"nolazytime"},
	std::string_view{"iversion"},    std::string_view{"noiversion"},
	std::string_view{"silent"},      std::string_view{"loud"},
};

bool for_mount8_alone(std::string_view word)
{
	static constexpr std::array words{"defaults", "auto",   "noauto", "user",
					  "nouser",   "users",  "owner",  "group",
					  "_netdev",  "nofail", "mand",   "nomand"};
	return std::find(words.begin(), words.end(), word) != words.end() ||
	       word.starts_with("x-") || word.starts_with("X-") || word.starts_with("comment=") ||
	       word.starts_with("user=");
}

std::string joined(const std::vector<std::string> &words)
{
	std::string out;
	for (const auto &w : words)
		out += (out.empty() ? "" : ",") + w;
	return out;
}

void sort_word(std::string_view word, mount_options &out)
{
	if (word.empty() || for_mount8_alone(word) ||
	    std::find(idle.begin(), idle.end(), word) != idle.end())
		return;
	for (const auto &f : flags) {
		if (f.word != word)
			continue;
		out.flags = (out.flags & ~f.clear) | f.set;
		out.said |= f.set | f.clear;
		return;
	}
	if (word == "remount") {
		out.remount = true;
		return;
	}
	out.fs.emplace_back(word);
}

} // namespace

std::string mount_options::fs_text() const
{
	return joined(fs);
}

std::string mount_options::fuse_text() const
{
	auto all = generic;
	all.insert(all.end(), fs.begin(), fs.end());
	return joined(all);
}

mount_options sort_options(const std::vector<std::string> &lists)
{
	mount_options out;
	for (std::string_view list : lists)
		while (!list.empty()) {
			const auto end = std::min(list.find(','), list.size());
			sort_word(list.substr(0, end), out);
			list.remove_prefix(std::min(end + 1, list.size()));
		}
	for (const auto &f : flags)
		if (f.set && (out.flags & f.set))
			out.generic.emplace_back(f.word);
	return out;
}

result<mount_spec> parse_spec(const std::string &text)
{
	const auto wrong = [&](const char *why) {
		return failure{exit_usage,
			       "\"" + text + "\" " + why +
				       "; the source is SERVER[,SERVER...][:PORT]:/EXPORT, " +
				       "for example storage1:/data or [fd00::1]:17430:/data"};
	};
	mount_spec out;
	std::size_t at = 0; // finally: the colon after the servers
	for (bool more = true; more;) {
		std::size_t end;
		if (text.compare(at, 1, "[") == 0) {
			end = text.find(']', at);
			if (end == std::string::npos)
				return wrong("lacks a closing bracket");
			out.servers.push_back(text.substr(at + 1, end - at - 1));
			end++;
		} else {
			end = std::min(text.find_first_of(",:", at), text.size());
			out.servers.push_back(text.substr(at, end - at));
		}
		if (out.servers.back().empty())
			return wrong("names no server");
		more = text.compare(end, 1, ",") == 0;
		at = end + more;
	}
	if (at >= text.size() || text[at] != ':')
		return wrong("names no export");
	if (text.compare(at, 2, ":/") != 0) {
		const auto colon = text.find(":/", at + 1);
		if (colon == std::string::npos)
			return wrong("names no export");
		out.port = text.substr(at + 1, colon - at - 1);
		unsigned value = 0;
		const auto *end = out.port.data() + out.port.size();
		const auto [stop, err] = std::from_chars(out.port.data(), end, value);
		if (err != std::errc() || stop != end || value == 0 || value > 65535)
			return wrong(out.servers.back().find_first_not_of(
					     "0123456789abcdefABCDEF") == std::string::npos
					     ? "has a port that is not 1 to 65535 (an IPv6 address "
					       "goes in brackets)"
					     : "has a port that is not 1 to 65535");
		at = colon;
	}
	out.export_path = text.substr(at + 1);
	return out;
}

} // namespace coop::cli
