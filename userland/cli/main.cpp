// SPDX-License-Identifier: MIT
// main.cpp - coopfs: the command line.
//
// The same program is the mount helper: called as mount.coopfs, mount.fuse.coopfs or
// umount.fuse.coopfs it takes the arguments that mount(8) and umount(8) give to helpers, so that a
// line in /etc/fstab works. Each command is in the file of its name.
#include <clocale>
#include <cstdio>
#include <functional>

#include <CLI/CLI.hpp>

#include "userland/cli/commands.hpp"

namespace coop::cli
{

int report(const failure &f)
{
	std::fprintf(stderr, "coopfs: %s\n", f.text.c_str());
	return f.status;
}

namespace
{

constexpr const char *exit_text =
	"Exit status: 0 done; 1 failed; 2 wrong usage; 3 not a coopfs mount; 4 no permission.";
constexpr const char *helper_exit_text =
	"Exit status, as mount(8) has it: 0 done; 1 wrong usage or no permission; 32 failed.";
constexpr const char *mountpoint_text = "MOUNTPOINT may be any path inside a mount; it may be "
					"omitted if there is only one mount.\n";

using action = std::function<int()>;

action add_mount(CLI::App &app, mount_request &r)
{
	app.add_option("SPEC", r.spec, "SERVER[,SERVER...][:PORT]:/EXPORT")->required();
	app.add_option("MOUNTPOINT", r.mountpoint, "an existing directory")->required();
	app.add_option("-o", r.options, "options, separated by commas; coopfs(5)")
		->allow_extra_args(false)
		->type_name("OPTIONS");
	app.add_option("-t,--type", r.type, "coopfs: kernel module only; fuse.coopfs: FUSE only")
		->check(CLI::IsMember({"coopfs", "fuse.coopfs"}));
	app.add_flag("-v,--verbose", r.verbose, "print each step");
	return [&r] { return run_mount(r); };
}

// CLI11 says of a wrong subcommand only that one is required.
std::string wrong_subcommand(const CLI::App &app)
{
	std::string text;
	const auto extra = app.remaining();
	if (!extra.empty())
		text = "'" + extra.front() + "' is no subcommand";
	else
		text = "a subcommand is required";
	const char *before = "; there are: ";
	for (const CLI::App *each : app.get_subcommands({})) {
		text += before + each->get_name();
		before = ", ";
	}
	return text;
}

void name_failures(CLI::App &app, const std::string &program)
{
	app.failure_message([program](const CLI::App *a, const CLI::Error &e) {
		const auto used = a->get_subcommands();
		const bool lacks_one = used.empty() && !a->get_subcommands({}).empty();
		return program + ": " + (lacks_one ? wrong_subcommand(*a) : e.what()) + "; `" +
		       a->get_name() + (used.empty() ? "" : " " + used.back()->get_name()) +
		       " --help` shows the usage\n";
	});
}

int parse_and_run(CLI::App &app, int argc, char **argv, const action &act)
{
	try {
		app.parse(argc, argv);
	} catch (const CLI::ParseError &e) {
		return app.exit(e) == 0 ? exit_ok : exit_usage;
	}
	return act();
}

// mount(8) exits with its helper's status, and defines the meaning of each.
int as_helper(int status)
{
	constexpr int usage_or_permission = 1, mount_failed = 32;
	if (status == exit_ok)
		return 0;
	return status == exit_usage || status == exit_permission ? usage_or_permission
								 : mount_failed;
}

// mount(8): mount.TYPE SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE.SUBTYPE]
int mount_helper(const std::string &name, int argc, char **argv)
{
	CLI::App app{"Mounts a coopfs export; called by mount(8).", name};
	app.footer(helper_exit_text);
	name_failures(app, name);
	mount_request r;
	const auto act = add_mount(app, r);
	r.from_mount8 = true;
	r.type = name == "mount.fuse.coopfs" ? "fuse.coopfs" : "coopfs";
	app.add_flag("-f", r.fake, "check everything, mount nothing");
	bool no_mtab = false, sloppy = false;
	app.add_flag("-n", no_mtab, "accepted for mount(8): no mtab is written in any case");
	app.add_flag("-s", sloppy,
		     "accepted for mount(8): unknown options are refused in any case");
	return as_helper(parse_and_run(app, argc, argv, act));
}

// umount(8): umount.TYPE DIR [-flnrv] [-N NAMESPACE] [-t TYPE.SUBTYPE]
int umount_helper(const std::string &name, int argc, char **argv)
{
	CLI::App app{"Unmounts a coopfs mount and waits for its process; called by umount(8).",
		     name};
	app.footer(helper_exit_text);
	name_failures(app, name);
	umount_request r;
	std::string type;
	bool no_mtab = false, verbose = false;
	app.add_option("MOUNTPOINT", r.mountpoint, "the mount")->required();
	app.add_flag("-f", r.force, "fail calls that wait for an answer");
	app.add_flag("-l", r.lazy, "detach now, unmount when its last user ends");
	app.add_flag("-r", r.read_only, "if it is in use, make it read-only");
	app.add_flag("-n", no_mtab, "accepted for umount(8): no mtab is written in any case");
	app.add_flag("-v", verbose, "accepted for umount(8)");
	app.add_option("-t", type, "accepted for umount(8): taken from the table of mounts");
	return as_helper(parse_and_run(app, argc, argv, [&r] { return run_umount(r); }));
}

int coopfs(int argc, char **argv)
{
	CLI::App app{"coopfs: a file system whose nodes share their page caches.", "coopfs"};
	app.footer(exit_text);
	app.set_version_flag("-V,--version", "coopfs " COOP_VERSION);
	app.require_subcommand(1);
	name_failures(app, "coopfs");
	action act;

	mount_request mount;
	auto *m = app.add_subcommand("mount",
				     "Mount an export, by the kernel module or else by FUSE");
	const auto mount_action = add_mount(*m, mount);
	m->add_option("--timeout", mount.timeout_s,
		      "time limit in seconds until the mount is usable")
		->check(CLI::Range(0.1, 86400.0))
		->capture_default_str();
	m->add_flag("--foreground", mount.foreground, "become coopfs-fuse instead of starting it");
	m->callback([&] { act = mount_action; });

	umount_request umount;
	auto *u = app.add_subcommand("umount", "Unmount, and wait until the node has disconnected");
	u->add_option("MOUNTPOINT", umount.mountpoint, "the mount")->required();
	u->add_flag("-l,--lazy", umount.lazy, "detach now, unmount when it is no longer in use");
	u->add_option("--timeout", umount.timeout_s,
		      "seconds to wait for the node's process to end")
		->check(CLI::Range(0.0, 86400.0))
		->capture_default_str();
	u->callback([&] { act = [&umount] { return run_umount(umount); }; });

	peers_request peers;
	auto *p = app.add_subcommand("peers", "List a mount's peers, or register one by hand");
	p->footer(std::string(mountpoint_text) + exit_text);
	p->add_option("MOUNTPOINT", peers.mountpoint, "the mount");
	p->add_option("--add", peers.add, "register: \"gid=... lid=... qpn=... qkey=... sl=...\"")
		->allow_extra_args(false)
		->type_name("LINE");
	p->add_option("--introduce", peers.introduce,
		      "register this mount and MOUNTPOINT with each other")
		->type_name("MOUNTPOINT");
	p->add_flag("--json", peers.json, "JSON");
	p->callback([&] { act = [&peers] { return run_peers(peers); }; });

	stats_request stats;
	auto *s = app.add_subcommand("stats", "Show the sources of data: buffer, peers, storage");
	s->footer(std::string(mountpoint_text) + exit_text);
	s->add_option("MOUNTPOINT", stats.mountpoint, "the mount");
	auto *reset = s->add_flag("--reset", stats.reset, "start counting from zero");
	auto *interval = s->add_option("--interval", stats.interval_s,
				       "seconds; show the changes in each interval")
				 ->check(CLI::Range(0.01, 86400.0))
				 ->type_name("SECONDS")
				 ->excludes(reset);
	s->add_option("--count", stats.count, "with --interval: number of reports")
		->needs(interval);
	s->add_flag("--json", stats.json, "JSON; with --interval one object per line");
	s->callback([&] { act = [&stats] { return run_stats(stats); }; });

	top_request top;
	auto *t = app.add_subcommand("top", "Watch sources, peers and cache live; q quits");
	t->footer(std::string(mountpoint_text) + exit_text);
	t->add_option("MOUNTPOINT", top.mountpoints, "the mounts; all if none is named");
	t->add_option("--interval", top.interval_s, "seconds between two readings")
		->check(CLI::Range(0.05, 3600.0))
		->capture_default_str();
	auto *once = t->add_flag("--once", top.once, "print once as text and end");
	t->add_flag("--json", top.json, "print once as JSON")->needs(once);
	t->callback([&] { act = [&top] { return run_top(top); }; });

	tree_request tree;
	auto *f = app.add_subcommand("tree", "Draw who feeds whom when several nodes read a file");
	f->add_option("FILE", tree.file, "a file on a mount")->required();
	f->add_flag("--json", tree.json, "JSON");
	f->callback([&] { act = [&tree] { return run_tree(tree); }; });

	return parse_and_run(app, argc, argv, [&] { return act(); });
}

} // namespace
} // namespace coop::cli

int main(int argc, char **argv)
{
	std::setlocale(LC_ALL, "");
	std::string name = argc > 0 ? argv[0] : "coopfs";
	name.erase(0, name.rfind('/') + 1);
	if (name == "mount.coopfs" || name == "mount.fuse.coopfs")
		return coop::cli::mount_helper(name, argc, argv);
	if (name == "umount.fuse.coopfs")
		return coop::cli::umount_helper(name, argc, argv);
	// Without our helper in /sbin, mount(8) finds that of libfuse, which calls the program
	// named by the type: coopfs SPEC DIR -o OPTIONS.
	if (argc >= 3 && std::string_view(argv[1]).find(":/") != std::string_view::npos)
		return coop::cli::mount_helper("mount.fuse.coopfs", argc, argv);
	return coop::cli::coopfs(argc, argv);
}
