// SPDX-License-Identifier: MIT
// main.cpp - prints the requests that the start of a program costs storage: of one node, and of
// many at once.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <spdlog/spdlog.h>

#include "bench/start/start.hpp"
#include "tests/lib/scratch.hpp"

namespace
{

void print(const char *what, const launch::counts &c)
{
	std::printf("%s: %llu requests, %llu bytes sent, %llu answers wrong\n", what,
		    static_cast<unsigned long long>(c.requests),
		    static_cast<unsigned long long>(c.sent_bytes),
		    static_cast<unsigned long long>(c.wrong));
	if (c.wrong)
		std::printf("  wrong: %s\n", c.what.c_str());
	for (const auto &[op, n] : c.calls)
		std::printf("  %-20s %llu\n", op.c_str(), static_cast<unsigned long long>(n));
	for (const auto &[key, n] : c.other)
		std::printf("  %-20s %llu\n", key.c_str(), static_cast<unsigned long long>(n));
}

} // namespace

extern "C" void coop_assert_failed(const char *what, const char *file, int line)
{
	std::fprintf(stderr, "%s:%d: engine: %s\n", file, line, what);
	std::abort();
}

int main(int argc, char **argv)
{
	launch::options o{.nodes = 64, .files = 5000, .dirs = 300};
	unsigned *const numbers[] = {&o.nodes, &o.files, &o.dirs};
	for (int i = 0; i < 3 && i + 1 < argc; i++)
		*numbers[i] = static_cast<unsigned>(std::strtoul(argv[i + 1], nullptr, 10));
	const std::string bundles = argc > 4 ? argv[4] : "bundles";
	o.bundles = bundles == "bundles";
	if (!o.nodes || !o.files || !o.dirs || argc > 5 || (!o.bundles && bundles != "off")) {
		std::fprintf(stderr,
			     "usage: start-bench [NODES [FILES [DIRECTORIES [bundles|off]]]]\n");
		return 2;
	}
	spdlog::set_level(spdlog::level::warn);
	try {
		const test::scratch scratch("coopfs-start");
		const auto tree = scratch.path() / "tree";
		launch::make_tree(tree, o);
		launch::options alone = o;
		alone.nodes = 1;
		const launch::counts one = launch::run(tree, scratch.path() / "s1", alone);
		print("1 node", one);
		const launch::counts all = launch::run(tree, scratch.path() / "s2", o);
		print((std::to_string(o.nodes) + " nodes").c_str(), all);
		std::printf("requests of %u nodes over those of one: %.2f\n", o.nodes,
			    static_cast<double>(all.requests) / static_cast<double>(one.requests));
		return one.wrong || all.wrong ? 1 : 0;
	} catch (const std::exception &e) {
		std::fprintf(stderr, "start-bench: %s\n", e.what());
		return 1;
	}
}
