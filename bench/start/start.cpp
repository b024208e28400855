// SPDX-License-Identifier: MIT
// start.cpp - see start.hpp.
#include "bench/start/start.hpp"

#include <barrier>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <unistd.h>
#include <vector>

#include <spdlog/spdlog.h>

#include "tests/lib/own_ip.hpp"
#include "userland/client/mount.hpp"
#include "userland/daemon/server.hpp"

namespace launch
{

namespace
{

using coop::client::caller;
using coop::client::entry;
using coop::client::handle;
using coop::client::mount;

// Names under which a module is looked for before its file is found.
constexpr const char *suffixes[] = {"", ".cpython-311.so", ".abi3.so", ".so"};
// Directories of a package: itself and two below it.
constexpr const char *parts[] = {"", "/core", "/util"};

std::string package(unsigned i)
{
	return "pkg" + std::to_string(i);
}

std::string module_name(unsigned i)
{
	return "mod" + std::to_string(i);
}

std::string text_of(unsigned file)
{
	std::string text = "# module " + std::to_string(file) + "\n";
	while (text.size() < 100 + file * 37 % 2900)
		text += "x = " + std::to_string(file) + "\n";
	return text;
}

// A node, and what its kernel would know.
class program
{
public:
	program(mount &m, const options &o) : m_(m), o_(o) {}

	// Returns the number of answers that were wrong.
	std::uint64_t run()
	{
		const handle root = m_.storage().root().fh;
		entry app, lib, site;
		expect(look(root, "app", app), 0, "app");
		expect(look(root, "lib", lib), 0, "lib");
		expect(look(lib.fh, "site-packages", site), 0, "site-packages");
		for (unsigned p = 0; p < o_.dirs / 3; p++) {
			entry pkg;
			absent(app.fh, package(p));
			absent(lib.fh, package(p));
			expect(look(site.fh, package(p), pkg), 0, package(p));
			for (unsigned d = 0; d < 3; d++) {
				entry dir = pkg;
				if (d)
					expect(look(pkg.fh, parts[d] + 1, dir), 0, parts[d]);
				import_all(dir.fh, p * 3 + d);
			}
		}
		return wrong_;
	}
	const std::string &what() const { return what_; }

private:
	void expect(int err, int wanted, const std::string &name)
	{
		if (err == wanted)
			return;
		wrong_++;
		what_ = name + ": error " + std::to_string(-err);
	}

	int look(const handle &dir, const std::string &name, entry &out)
	{
		return m_.storage().lookup(who_, dir, name, out);
	}

	void absent(const handle &dir, const std::string &name)
	{
		entry e;
		for (const char *suffix : suffixes)
			expect(look(dir, name + suffix, e), -ENOENT, name + suffix);
	}

	void import_all(const handle &dir, unsigned number)
	{
		for (unsigned f = number; f < o_.files; f += o_.dirs) {
			entry e;
			absent(dir, module_name(f));
			expect(look(dir, module_name(f) + ".py", e), 0, module_name(f));
			if (!e.fh.empty())
				read(e, module_name(f), text_of(f));
		}
	}

	void read(const entry &e, const std::string &name, const std::string &expected)
	{
		coop::client::inode *const node = m_.inodes().ref(e);
		coop::client::files::open_answer file;
		coop::client::read_answer got;
		std::string text;
		if (const int err = m_.files().open(who_, *node, O_RDONLY, file))
			return expect(err, 0, name + " (open)");
		const auto size = static_cast<std::uint32_t>(e.attr.st.st_size);
		const int err = m_.files().read(*file.file, 0, size, got);
		for (const coop::client::piece &p : got.pieces)
			text.append(reinterpret_cast<const char *>(m_.pages().base()) +
					    p.arena_offset,
				    p.length);
		text.append(reinterpret_cast<const char *>(got.direct.get()), got.direct_length);
		m_.files().release(std::move(file.file));
		m_.inodes().forget(node, 1);
		expect(err, 0, name + " (read)");
		expect(text == expected ? 0 : -EILSEQ, 0, name + " (content)");
	}

	mount &m_;
	const options o_;
	const caller who_{::geteuid(), ::getegid(), {}};
	std::uint64_t wrong_ = 0;
	std::string what_;
};

std::map<std::string, std::uint64_t> counters(const coop::daemon::server &s)
{
	std::map<std::string, std::uint64_t> out;
	std::istringstream all(s.stats_text());
	for (std::string line; std::getline(all, line);) {
		const std::size_t space = line.rfind(' ');
		out[line.substr(0, space)] = std::strtoull(line.c_str() + space + 1, nullptr, 10);
	}
	return out;
}

// Clients send the closes of readers some time later.
std::map<std::string, std::uint64_t> settled(const coop::daemon::server &s)
{
	constexpr std::chrono::milliseconds quiet{500};
	auto before = counters(s);
	for (;;) {
		std::this_thread::sleep_for(quiet);
		auto now = counters(s);
		if (now == before)
			return now;
		before = std::move(now);
	}
}

} // namespace

void make_tree(const std::filesystem::path &tree, const options &o)
{
	const auto site = tree / "lib/site-packages";
	std::filesystem::create_directories(tree / "app");
	for (unsigned p = 0; p < o.dirs / 3; p++)
		for (const char *part : parts)
			std::filesystem::create_directories(site / (package(p) + part));
	for (unsigned f = 0; f < o.files; f++) {
		const unsigned dir = f % o.dirs;
		const auto path =
			site / (package(dir / 3) + parts[dir % 3]) / (module_name(f) + ".py");
		std::ofstream(path, std::ios::binary) << text_of(f);
	}
	// Versions of files are proved only after some time.
	std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

counts run(const std::filesystem::path &tree, const std::filesystem::path &state, const options &o)
{
	coop::daemon::settings settings;
	settings.exports = {{"data", tree.string()}};
	settings.listen = "127.0.0.1:0";
	settings.state_dir = state.string();
	coop::daemon::server server(settings);

	coop::client::mount_options mo;
	mo.server = "127.0.0.1";
	mo.port = server.port();
	mo.export_name = "/data";
	mo.ib = true;
	mo.cache_size = o.cache;
	mo.bundles = o.bundles;
	std::vector<std::unique_ptr<mount>> mounts;
	for (unsigned i = 0; i < o.nodes; i++) {
		mo.addr = own_ip(1 + i);
		mounts.push_back(
			std::make_unique<mount>(mo, coop::client::inode_events{[](auto &) {}}));
	}

	auto before = settled(server);
	std::barrier together(o.nodes);
	counts out;
	std::mutex mutex; // guards what 'out' has of errors
	std::vector<std::thread> threads;
	for (const auto &m : mounts)
		threads.emplace_back([&, &m = *m] {
			program p(m, o);
			together.arrive_and_wait();
			const std::uint64_t wrong = p.run();
			const std::lock_guard lock(mutex);
			out.wrong += wrong;
			if (wrong)
				out.what = p.what();
		});
	for (std::thread &t : threads)
		t.join();
	auto after = settled(server);

	for (const auto &[key, value] : after) {
		const std::uint64_t n = value - before[key];
		if (key.starts_with("calls ") && n) {
			out.calls[key.substr(6)] = n;
			out.requests += n;
		} else if (key.starts_with("bundle")) {
			out.other[key] = value;
		}
	}
	// Each bundle is closed once, some seconds later.
	const std::uint64_t used = after["bundles_used"];
	if (used)
		out.calls["close (of bundles)"] = used;
	out.requests += used;
	out.sent_bytes = after["served_bytes"] - before["served_bytes"];
	return out;
}

} // namespace launch
