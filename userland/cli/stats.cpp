// SPDX-License-Identifier: MIT
// stats.cpp - coopfs stats: the sources of data.
//
// With --interval each report is the difference of two readings, so it does not disturb another
// user's count with --reset.
#include <chrono>
#include <cstdio>
#include <thread>

#include "userland/cli/commands.hpp"
#include "userland/cli/control.hpp"
#include "userland/cli/documents.hpp"
#include "userland/cli/format.hpp"
#include "userland/cli/mounts.hpp"

namespace coop::cli
{

namespace
{

void print(const mount_entry &mount, const mount_stats &stats, bool json, double seconds)
{
	if (json) {
		std::printf("%s\n", stats_document(mount, stats, seconds).c_str());
	} else {
		std::printf("%s  (%s)", printable(mount.mountpoint).c_str(),
			    printable(mount.source).c_str());
		if (seconds > 0)
			std::printf("  %s",
				    human_rate(static_cast<double>(total_bytes(stats)) / seconds)
					    .c_str());
		std::printf("\n%s", stats_table(stats).c_str());
	}
	std::fflush(stdout);
}

int follow(const mount_entry &mount, const stats_request &r)
{
	using clock = std::chrono::steady_clock;
	auto earlier = read_stats(mount.mountpoint);
	if (!earlier)
		return report(earlier.error());
	const auto step = std::chrono::duration_cast<clock::duration>(
		std::chrono::duration<double>(r.interval_s));
	auto last = clock::now();
	auto next = last + step;
	for (unsigned n = 0; r.count == 0 || n < r.count; n++) {
		std::this_thread::sleep_until(next);
		auto later = read_stats(mount.mountpoint);
		if (!later)
			return report(later.error());
		const auto now = clock::now();
		if (n && !r.json)
			std::printf("\n");
		print(mount, difference(*later, *earlier), r.json,
		      std::chrono::duration<double>(now - last).count());
		if (std::ferror(stdout))
			return exit_failure; // the output is closed
		earlier = std::move(later);
		last = now;
		next = std::max(next + step,
				now); // after a stall continue from now, do not catch up
	}
	return exit_ok;
}

} // namespace

int run_stats(const stats_request &r)
{
	const auto mount = choose_mount(r.mountpoint);
	if (!mount)
		return report(mount.error());
	if (r.reset) {
		const auto ok = write_control(mount->mountpoint, "stats", "reset\n");
		return ok ? exit_ok : report(ok.error());
	}
	if (r.interval_s > 0)
		return follow(*mount, r);
	const auto stats = read_stats(mount->mountpoint);
	if (!stats)
		return report(stats.error());
	print(*mount, *stats, r.json, 0);
	return exit_ok;
}

} // namespace coop::cli
