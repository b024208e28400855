// SPDX-License-Identifier: MIT
// mounts.cpp - reading /proc/self/mountinfo (proc(5)):
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
//
// The number of fields before the lone "-" varies; type and source follow it.
#include "userland/cli/mounts.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace coop::cli
{

namespace
{

constexpr const char *mountinfo_path = "/proc/self/mountinfo";

std::vector<std::string_view> words(std::string_view line)
{
	std::vector<std::string_view> out;
	while (!line.empty()) {
		const auto end = std::min(line.find(' '), line.size());
		if (end != 0)
			out.push_back(line.substr(0, end));
		line.remove_prefix(std::min(end + 1, line.size()));
	}
	return out;
}

std::optional<mount_entry> parse_line(std::string_view line)
{
	const auto field = words(line);
	const auto dash = std::find(field.begin(), field.end(), "-");
	if (field.size() < 6 || dash < field.begin() + 6 || field.end() - dash < 3)
		return std::nullopt;
	mount_entry m;
	m.id = std::strtoul(std::string(field[0]).c_str(), nullptr, 10);
	if (const auto colon = field[2].find(':'); colon != std::string_view::npos)
		m.dev_minor = static_cast<unsigned>(
			std::strtoul(std::string(field[2].substr(colon + 1)).c_str(), nullptr, 10));
	m.mountpoint = unescape_octal(field[4]);
	m.type = dash[1];
	m.source = unescape_octal(dash[2]);
	return m;
}

bool lies_in(std::string_view path, std::string_view dir)
{
	if (dir == "/")
		return path.starts_with('/');
	return path.starts_with(dir) && (path.size() == dir.size() || path[dir.size()] == '/');
}

} // namespace

std::string unescape_octal(std::string_view text)
{
	const auto octal = [](char c) { return c >= '0' && c <= '7'; };
	std::string out;
	out.reserve(text.size());
	for (std::size_t i = 0; i < text.size(); i++) {
		if (text[i] == '\\' && i + 3 < text.size() && text[i + 1] <= '3' &&
		    octal(text[i + 1]) && octal(text[i + 2]) && octal(text[i + 3])) {
			out += static_cast<char>((text[i + 1] - '0') << 6 |
						 (text[i + 2] - '0') << 3 | (text[i + 3] - '0'));
			i += 3;
		} else {
			out += text[i];
		}
	}
	return out;
}

std::vector<mount_entry> parse_mountinfo(std::string_view text)
{
	std::vector<mount_entry> out;
	while (!text.empty()) {
		const auto end = std::min(text.find('\n'), text.size());
		if (auto m = parse_line(text.substr(0, end))) {
			std::erase_if(out,
				      [&](const auto &o) { return o.mountpoint == m->mountpoint; });
			out.push_back(std::move(*m));
		}
		text.remove_prefix(std::min(end + 1, text.size()));
	}
	return out;
}

std::optional<mount_entry> mount_of(const std::vector<mount_entry> &mounts, std::string_view path)
{
	const mount_entry *best = nullptr;
	for (const auto &m : mounts)
		if (lies_in(path, m.mountpoint) &&
		    (!best || m.mountpoint.size() >= best->mountpoint.size()))
			best = &m;
	return best ? std::optional(*best) : std::nullopt;
}

result<std::vector<mount_entry>> read_mounts()
{
	std::ifstream in(mountinfo_path);
	std::stringstream text;
	text << in.rdbuf();
	if (!in || !text)
		return failure{exit_failure, std::string("cannot read ") + mountinfo_path +
						     ": is /proc mounted?"};
	return parse_mountinfo(text.str());
}

std::string canonical(const std::string &path)
{
	namespace fs = std::filesystem;
	std::error_code ec;
	if (auto real = fs::canonical(path, ec); !ec)
		return real.string();
	// The last component of a dead mount's path cannot be looked up, but its parent can.
	auto plain = fs::absolute(path, ec).lexically_normal();
	if (!plain.has_filename())
		plain = plain.parent_path();
	auto parent = fs::canonical(plain.parent_path(), ec);
	return ec ? plain.string() : (parent / plain.filename()).string();
}

result<mount_entry> choose_mount(const std::string &path)
{
	auto mounts = read_mounts();
	if (!mounts)
		return mounts.error();
	if (!path.empty()) {
		const auto real = canonical(path);
		auto m = mount_of(*mounts, real);
		if (m && m->is_coopfs())
			return *m;
		std::error_code ec;
		if (!std::filesystem::exists(real, ec))
			return failure{exit_not_coopfs, path + ": no such directory"};
		return failure{
			exit_not_coopfs,
			path + " is not in a coopfs mount (it is on " + (m ? m->type : "nothing") +
				"); `findmnt -t coopfs,fuse.coopfs` lists the coopfs mounts"};
	}
	std::erase_if(*mounts, [](const auto &m) { return !m.is_coopfs(); });
	if (mounts->size() == 1)
		return mounts->front();
	if (mounts->empty())
		return failure{exit_not_coopfs,
			       "nothing is mounted; try `coopfs mount SERVER:/EXPORT DIRECTORY`"};
	std::string text = "several mounts; name one of:";
	for (const auto &m : *mounts)
		text += "\n  " + m.mountpoint;
	return failure{exit_usage, text};
}

result<std::vector<mount_entry>> choose_mounts(const std::vector<std::string> &paths)
{
	std::vector<mount_entry> out;
	if (paths.empty()) {
		auto mounts = read_mounts();
		if (!mounts)
			return mounts.error();
		for (auto &m : *mounts)
			if (m.is_coopfs())
				out.push_back(std::move(m));
		if (out.empty())
			return failure{
				exit_not_coopfs,
				"nothing is mounted; try `coopfs mount SERVER:/EXPORT DIRECTORY`"};
		return out;
	}
	for (const auto &path : paths) {
		auto m = choose_mount(path);
		if (!m)
			return m.error();
		out.push_back(std::move(*m));
	}
	return out;
}

} // namespace coop::cli
