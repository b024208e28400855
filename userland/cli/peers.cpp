// SPDX-License-Identifier: MIT
// peers.cpp - coopfs peers: list them, register them by hand.
//
// Peers of one daemon find each other; adding by hand is for nodes that do not share a daemon, and
// for testing a fabric. A line is passed on unchanged: the mount checks the address.
#include <cstdio>

#include "userland/cli/commands.hpp"
#include "userland/cli/control.hpp"
#include "userland/cli/documents.hpp"
#include "userland/cli/format.hpp"
#include "userland/cli/mounts.hpp"

namespace coop::cli
{

namespace
{

// First line of ibaddr: the mount's own address.
result<std::string> own_address(const mount_entry &mount)
{
	auto text = read_control(mount.mountpoint, "ibaddr");
	if (!text)
		return text;
	text->erase(std::min(text->find('\n'), text->size()));
	if (text->empty())
		return failure{exit_failure,
			       mount.mountpoint +
				       " has no peers: it was mounted without the option ib"};
	return text;
}

result<done> introduce(const mount_entry &a, const mount_entry &b)
{
	const auto of_a = own_address(a);
	if (!of_a)
		return of_a.error();
	const auto of_b = own_address(b);
	if (!of_b)
		return of_b.error();
	if (const auto ok = write_control(a.mountpoint, "ibaddr", *of_b + "\n"); !ok)
		return ok.error();
	return write_control(b.mountpoint, "ibaddr", *of_a + "\n");
}

int list(const mount_entry &mount, bool json)
{
	const auto self = own_address(mount);
	if (!self)
		return report(self.error());
	const auto peers = read_peers(mount.mountpoint);
	if (!peers)
		return report(peers.error());
	if (json) {
		std::printf("%s\n", peers_document(mount, *self, *peers).c_str());
	} else {
		std::printf("%s  (%s)\nself  %s\n\n%s", printable(mount.mountpoint).c_str(),
			    printable(mount.source).c_str(), printable(*self).c_str(),
			    peers_table(*peers).c_str());
	}
	return exit_ok;
}

} // namespace

int run_peers(const peers_request &r)
{
	const auto mount = choose_mount(r.mountpoint);
	if (!mount)
		return report(mount.error());
	for (const auto &line : r.add)
		if (const auto ok = write_control(mount->mountpoint, "ibaddr", line + "\n"); !ok)
			return report(ok.error());
	if (!r.introduce.empty()) {
		const auto other = choose_mount(r.introduce);
		if (!other)
			return report(other.error());
		if (other->mountpoint == mount->mountpoint)
			return report({exit_usage, "--introduce needs two mounts; both are " +
							   mount->mountpoint});
		if (const auto ok = introduce(*mount, *other); !ok)
			return report(ok.error());
	}
	const bool changed = !r.add.empty() || !r.introduce.empty();
	return changed && !r.json ? exit_ok : list(*mount, r.json);
}

} // namespace coop::cli
