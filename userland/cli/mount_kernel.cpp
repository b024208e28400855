// SPDX-License-Identifier: MIT
// mount_kernel.cpp - see mount_kernel.hpp.
//
// The kernel resolves no names and should open no files of the mounter: so names become addresses
// here, and the cluster key is read here and passed as bytes. The new mount interface (fsopen(2))
// is used because it can pass such bytes, and because it returns the file system's messages about a
// failure.
#include "userland/cli/mount_kernel.hpp"

#include <netdb.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "userland/cli/process.hpp"
#include "userland/include/coop/cluster_key.hpp"
#include "userland/include/coop/unique_fd.hpp"

namespace coop::cli
{

namespace
{

constexpr unsigned most_addresses = 4; // the module's limit

bool listed()
{
	std::ifstream in("/proc/filesystems");
	for (std::string line; std::getline(in, line);)
		if (line.substr(line.find('\t') + 1) == "coopfs")
			return true;
	return false;
}

// Appends the addresses of one server, in the resolver's order.
result<done> resolve(const std::string &server, const std::string &port,
		     std::vector<std::string> &out)
{
	addrinfo hints{}, *found = nullptr;
	hints.ai_socktype = SOCK_STREAM;
	if (const int err = getaddrinfo(server.c_str(), nullptr, &hints, &found); err != 0)
		return failure{exit_failure, "server " + server + ": " + gai_strerror(err)};
	const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
	for (const addrinfo *a = found; a != nullptr; a = a->ai_next) {
		std::array<char, NI_MAXHOST> host;
		if (getnameinfo(a->ai_addr, a->ai_addrlen, host.data(), host.size(), nullptr, 0,
				NI_NUMERICHOST) != 0)
			continue;
		const std::string text = host.data();
		out.push_back((text.find(':') == std::string::npos ? text : "[" + text + "]") +
			      (port.empty() ? "" : ":" + port));
	}
	return done{};
}

// "10.0.0.1:17430+[fd00::1]:17430": the servers' addresses; first the first one of each, then the
// second one of each, so that a server with many addresses does not displace another.
result<std::string> addresses(const mount_spec &spec)
{
	std::vector<std::vector<std::string>> all(spec.servers.size());
	std::size_t longest = 0;
	for (std::size_t i = 0; i < all.size(); i++) {
		if (const auto ok = resolve(spec.servers[i], spec.port, all[i]); !ok)
			return ok.error();
		if (all[i].empty())
			return failure{exit_failure,
				       "server " + spec.servers[i] + " has no IP address"};
		longest = std::max(longest, all[i].size());
	}
	if (all.size() > most_addresses)
		return failure{exit_usage, std::to_string(all.size()) +
						   " servers; the module takes " +
						   std::to_string(most_addresses) + " at most"};
	std::string out;
	unsigned n = 0;
	for (std::size_t row = 0; row < longest; row++)
		for (const auto &of : all)
			if (row < of.size() && n < most_addresses)
				out += (n++ == 0 ? "" : "+") + of[row];
	return out;
}

// The file system's messages about its failure, one for each read: "e coopfs: text".
std::string said(int fs)
{
	std::string out;
	std::array<char, 1024> line;
	for (ssize_t n; (n = ::read(fs, line.data(), line.size())) > 0;) {
		std::string_view text(line.data(), static_cast<std::size_t>(n));
		if (text.size() < 2 || text[0] == 'i')
			continue;
		text.remove_prefix(2);
		if (text.starts_with("coopfs: "))
			text.remove_prefix(8);
		while (text.ends_with('\n'))
			text.remove_suffix(1);
		out += out.empty() ? "" : "; ";
		out += text;
	}
	return out;
}

failure refused(int fs, int err, const std::string &what)
{
	const std::string why = said(fs);
	if (err == EPERM && why.empty())
		return {exit_permission, "the kernel module mounts for root only (try sudo)"};
	return {err == EINVAL ? exit_usage : status_of(err),
		why.empty() ? what + ": " + std::strerror(err) : why};
}

result<done> set_key(int fs, const std::string &path)
{
	secret key;
	try {
		key = load_cluster_key(path);
	} catch (const std::exception &e) {
		return failure{exit_failure, e.what()};
	}
	if (fsconfig(fs, FSCONFIG_SET_STRING, "key", path.c_str(), 0) != 0 ||
	    fsconfig(fs, FSCONFIG_SET_BINARY, "key_data", key.data(),
		     static_cast<int>(key.size())) != 0)
		return refused(fs, errno, "option key=" + path);
	return done{};
}

result<done> set_option(int fs, const std::string &word)
{
	// Accepted so that one fstab line serves both kinds: a kernel mount is always open to all
	// users, and checks modes.
	if (word == "allow_other" || word == "default_permissions")
		return done{};
	const auto equals = word.find('=');
	const std::string name = word.substr(0, equals);
	if (name == "key" && equals != word.npos)
		return set_key(fs, word.substr(equals + 1));
	const int err = equals == word.npos
				? fsconfig(fs, FSCONFIG_SET_FLAG, name.c_str(), nullptr, 0)
				: fsconfig(fs, FSCONFIG_SET_STRING, name.c_str(),
					   word.c_str() + equals + 1, 0);
	if (err != 0)
		return refused(fs, errno, "option " + word);
	return done{};
}

// Flags that the file system itself must know, besides the mount's attributes.
result<done> set_flags(int fs, unsigned long flags, unsigned long said)
{
	struct row {
		unsigned long flag;
		const char *set, *clear;
	};
	constexpr std::array<row, 3> table{{{MS_RDONLY, "ro", "rw"},
					    {MS_SYNCHRONOUS, "sync", "async"},
					    {MS_DIRSYNC, "dirsync", nullptr}}};
	for (const auto &r : table) {
		const char *word = flags & r.flag ? r.set : said & r.flag ? r.clear : nullptr;
		if (word && fsconfig(fs, FSCONFIG_SET_FLAG, word, nullptr, 0) != 0)
			return refused(fs, errno, std::string("option ") + word);
	}
	return done{};
}

// Flags of the mount itself.
unsigned mount_attributes(unsigned long flags)
{
	constexpr std::array<std::pair<unsigned long, unsigned>, 7> table{{
		{MS_RDONLY, MOUNT_ATTR_RDONLY},
		{MS_NOSUID, MOUNT_ATTR_NOSUID},
		{MS_NODEV, MOUNT_ATTR_NODEV},
		{MS_NOEXEC, MOUNT_ATTR_NOEXEC},
		{MS_NOATIME, MOUNT_ATTR_NOATIME},
		{MS_NODIRATIME, MOUNT_ATTR_NODIRATIME},
		{MS_NOSYMFOLLOW, MOUNT_ATTR_NOSYMFOLLOW},
	}};
	unsigned out = 0;
	for (const auto &[flag, attribute] : table)
		if (flags & flag)
			out |= attribute;
	return out;
}

} // namespace

bool kernel_has_coopfs()
{
	if (listed())
		return true;
	const auto modprobe = find_program("modprobe");
	const std::string program = modprobe.empty() ? "/sbin/modprobe" : modprobe;
	if (::geteuid() != 0 || ::access(program.c_str(), X_OK) != 0)
		return false;
	if (auto child = process::start({program, "-q", "coopfs"}))
		(void)child->reap();
	return listed();
}

result<done> mount_kernel(const mount_request &r, const mount_spec &spec, const std::string &dir,
			  const mount_options &options)
{
	const auto address = addresses(spec);
	if (!address)
		return address.error();
	if (r.verbose)
		std::fprintf(stderr,
			     "coopfs: mounting %s (%s) on %s by the kernel module, options "
			     "\"%s\"\n",
			     r.spec.c_str(), address->c_str(), dir.c_str(),
			     options.fs_text().c_str());
	if (r.fake)
		return done{};
	const unique_fd fs(fsopen("coopfs", FSOPEN_CLOEXEC));
	if (fs.get() < 0)
		return refused(-1, errno, "fsopen");
	if (fsconfig(fs.get(), FSCONFIG_SET_STRING, "source", r.spec.c_str(), 0) != 0 ||
	    fsconfig(fs.get(), FSCONFIG_SET_STRING, "server_addr", address->c_str(), 0) != 0)
		return refused(fs.get(), errno, "source " + r.spec);
	for (const auto &word : options.fs)
		if (const auto ok = set_option(fs.get(), word); !ok)
			return ok.error();
	if (const auto ok = set_flags(fs.get(), options.flags, options.said); !ok)
		return ok;
	if (fsconfig(fs.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
		return refused(fs.get(), errno, "mounting " + r.spec);
	const unique_fd tree(fsmount(fs.get(), FSMOUNT_CLOEXEC, mount_attributes(options.flags)));
	if (tree.get() < 0)
		return refused(fs.get(), errno, "mounting " + r.spec);
	if (move_mount(tree.get(), "", AT_FDCWD, dir.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0)
		return refused(fs.get(), errno, "mounting on " + dir);
	return done{};
}

result<done> remount_kernel(const mount_request &r, const std::string &dir,
			    const mount_options &options)
{
	const unsigned long said = options.said | (r.from_mount8 ? ~0ul : 0);
	if (r.fake)
		return done{};
	const unique_fd fs(fspick(AT_FDCWD, dir.c_str(), FSPICK_CLOEXEC));
	if (fs.get() < 0)
		return refused(-1, errno, "fspick " + dir);
	for (const auto &word : options.fs)
		if (const auto ok = set_option(fs.get(), word); !ok)
			return ok.error();
	if (const auto ok = set_flags(fs.get(), options.flags, said); !ok)
		return ok;
	if (fsconfig(fs.get(), FSCONFIG_CMD_RECONFIGURE, nullptr, nullptr, 0) != 0)
		return refused(fs.get(), errno, "remounting " + dir);
	mount_attr attr{};
	attr.attr_set = mount_attributes(options.flags);
	attr.attr_clr = mount_attributes(said & ~options.flags);
	if (said &
	    (MS_NOATIME | MS_RELATIME)) // one field with several values: clear it before setting it
		attr.attr_clr = (attr.attr_clr & ~MOUNT_ATTR_NOATIME) | MOUNT_ATTR__ATIME;
	if (mount_setattr(AT_FDCWD, dir.c_str(), 0, &attr, sizeof(attr)) != 0)
		return refused(-1, errno, "flags of " + dir);
	return done{};
}

} // namespace coop::cli
