// SPDX-License-Identifier: MIT
// ud_bench.cpp - the cost of soft RoCE beyond the UDP socket that carries it.
//
//	bulk        one way, 4 KiB datagrams in posts of 64, a window of 16 posts
//	ping-pong   a request of 64 bytes, an answer of 64 or 4096; both ends spin
//
// Two processes; the carriers take turns in every round, and the medians of the rounds
// count, so that other load on the machine affects all of them alike. CPU time is user and
// system time of both processes; in bulk a waiting process sleeps.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/ud/carrier.hpp"

namespace
{

using namespace ud_bench;
using steady = std::chrono::steady_clock;

constexpr std::size_t source_bytes = 16u << 20;
constexpr std::size_t post_bytes = batch_pages * page;
constexpr std::size_t window_posts = 16;
constexpr int patience_ms = 1000; // then missing datagrams count as lost

double seconds_since(steady::time_point t)
{
	return std::chrono::duration<double>(steady::now() - t).count();
}

double cpu_seconds()
{
	rusage u{};
	getrusage(RUSAGE_SELF, &u);
	const auto s = [](const timeval &t) {
		return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
	};
	return s(u.ru_utime) + s(u.ru_stime);
}

// Memory that both processes share.
struct shared_page {
	carrier::where where[2];
	std::atomic<int> ready[2];
	std::atomic<std::uint64_t> received;
	std::atomic<bool> done;
	double cpu;
	char counters[400];
};

struct far_end {
	shared_page *shared;
	int credit; // eventfd: the receiver got another post

	far_end()
	{
		void *p = mmap(nullptr, sizeof(shared_page), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		credit = eventfd(0, EFD_CLOEXEC);
		if (p == MAP_FAILED || credit < 0)
			throw std::system_error(errno, std::generic_category(), "shared page");
		shared = new (p) shared_page{};
	}
	~far_end()
	{
		munmap(shared, sizeof(*shared));
		close(credit);
	}
	far_end(const far_end &) = delete;
	far_end &operator=(const far_end &) = delete;

	void meet(carrier &l, int me)
	{
		shared->where[me] = l.self();
		shared->ready[me] = 1;
		while (!shared->ready[1 - me])
			usleep(50);
		l.connect(shared->where[1 - me]);
	}
};

// Runs 'child' in a new process and 'parent' in this one. The child dies with this process.
template <typename Child, typename Parent> void in_two(Child child, Parent parent)
{
	const pid_t us = getpid();
	const pid_t pid = fork();
	if (pid < 0)
		throw std::system_error(errno, std::generic_category(), "fork");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != us)
			_exit(1);
		try {
			child();
			_exit(0);
		} catch (const std::exception &e) {
			std::fprintf(stderr, "ud-bench: receiving process: %s\n", e.what());
			_exit(1);
		}
	}
	std::exception_ptr failure;
	try {
		parent();
	} catch (...) {
		failure = std::current_exception();
		kill(pid, SIGKILL);
	}
	int status = 0;
	waitpid(pid, &status, 0);
	if (failure)
		std::rethrow_exception(failure);
	if (status)
		throw std::runtime_error("the receiving process failed");
}

std::string address(unsigned side)
{
	const auto pid = static_cast<unsigned>(getpid());
	return "127." + std::to_string(128 + pid / 250 % 64) + "." + std::to_string(pid % 250 + 1) +
	       "." + std::to_string(side + 1);
}

struct entrant {
	kind k;
	const char *name;
};
constexpr entrant entrants[] = {{kind::soft_roce, "soft-roce"},
				{kind::udp_segmented, "udp-gso-gro"},
				{kind::udp_plain, "udp-plain"}};

struct bulk_result {
	double gb_s, cpu_s_gib, lost;
};

void receive_bulk(carrier &l, far_end &far, std::uint64_t total)
{
	const double before = cpu_seconds();
	std::uint64_t got = 0, credited = 0;
	while (got < total && !far.shared->done) {
		const std::size_t n = l.receive_pages();
		got += n;
		far.shared->received.store(got, std::memory_order_relaxed);
		while (credited + post_bytes <= got) {
			const std::uint64_t one = 1;
			if (write(far.credit, &one, sizeof(one)) < 0)
				throw std::system_error(errno, std::generic_category(), "eventfd");
			credited += post_bytes;
		}
		if (!n && l.arm()) {
			pollfd p{l.fd(), POLLIN, 0};
			poll(&p, 1, 50);
		}
	}
	far.shared->cpu = cpu_seconds() - before;
	std::snprintf(far.shared->counters, sizeof(far.shared->counters), "%s",
		      l.counters().c_str());
}

bulk_result bulk(const entrant &e, std::uint64_t total, bool verbose)
{
	const kind k = e.k;
	prctl(PR_SET_NAME, e.name); // lets perf tell the carriers apart
	far_end far;
	bulk_result result{};
	const std::string here = address(0), there = address(1);
	in_two(
		[&] {
			const auto l = make_carrier(k, there);
			far.meet(*l, 1);
			receive_bulk(*l, far, total);
		},
		[&] {
			const auto l = make_carrier(k, here);
			std::vector<std::uint8_t> source(source_bytes);
			for (std::size_t i = 0; i < source.size(); i++)
				source[i] = static_cast<std::uint8_t>(i * 2654435761u >> 13);
			far.meet(*l, 0);
			const double cpu = cpu_seconds();
			const auto start = steady::now();
			std::size_t at = 0;
			std::uint64_t credits = window_posts;
			for (std::uint64_t sent = 0; sent < total; sent += post_bytes) {
				while (!credits) {
					pollfd p{far.credit, POLLIN, 0};
					if (poll(&p, 1, patience_ms) <= 0)
						credits = window_posts; // the rest was lost
					else if (read(far.credit, &credits, sizeof(credits)) < 0)
						credits = 0;
				}
				credits--;
				l->send_pages({source.data() + at, post_bytes});
				at = (at + post_bytes) % source.size();
			}
			const auto quiet = steady::now();
			while (far.shared->received < total &&
			       seconds_since(quiet) < patience_ms * 1e-3)
				usleep(20);
			const double took = seconds_since(start);
			far.shared->done = true;
			const double mine = cpu_seconds() - cpu;
			result.gb_s = static_cast<double>(far.shared->received) / took * 1e-9;
			result.cpu_s_gib = mine;
			result.lost = 1.0 - static_cast<double>(far.shared->received) /
						    static_cast<double>(total);
			if (verbose && !l->counters().empty())
				std::fprintf(stderr, "  sender: %s\n", l->counters().c_str());
		});
	result.cpu_s_gib = (result.cpu_s_gib + far.shared->cpu) /
			   (static_cast<double>(total) / static_cast<double>(1u << 30));
	if (verbose && far.shared->counters[0])
		std::fprintf(stderr, "  receiver: %s\n", far.shared->counters);
	return result;
}

// Mean microseconds from request to answer.
double ping_pong(kind k, std::size_t answer, unsigned count)
{
	constexpr std::size_t request = 64;
	far_end far;
	double us = 0;
	const std::string here = address(2), there = address(3);
	in_two(
		[&] {
			const auto l = make_carrier(k, there);
			far.meet(*l, 1);
			while (!far.shared->done)
				if (l->receive_one())
					l->send_one(answer);
		},
		[&] {
			const auto l = make_carrier(k, here);
			far.meet(*l, 0);
			const auto once = [&] {
				l->send_one(request);
				for (auto sent = steady::now(); !l->receive_one();)
					if (seconds_since(sent) > 1) {
						sent = steady::now();
						l->send_one(request);
					}
			};
			for (unsigned i = 0; i < count / 10; i++)
				once();
			const auto start = steady::now();
			for (unsigned i = 0; i < count; i++)
				once();
			us = seconds_since(start) * 1e6 / count;
			far.shared->done = true;
		});
	return us;
}

double median(std::vector<double> v)
{
	std::sort(v.begin(), v.end());
	return v[v.size() / 2];
}

nlohmann::json run_bulk(unsigned rounds, std::uint64_t total, bool verbose)
{
	std::map<std::string, std::vector<double>> speed, cpu, lost;
	for (unsigned r = 0; r < rounds; r++) {
		for (const entrant &c : entrants) {
			const bulk_result b = bulk(c, total, verbose);
			speed[c.name].push_back(b.gb_s);
			cpu[c.name].push_back(b.cpu_s_gib);
			lost[c.name].push_back(b.lost);
		}
	}
	nlohmann::json out;
	for (const entrant &c : entrants) {
		auto &j = out[c.name];
		j["gb_s"] = median(speed[c.name]);
		j["cpu_s_gib"] = median(cpu[c.name]);
		j["lost"] = median(lost[c.name]);
	}
	const auto ratio = [&](const char *what) {
		return out["soft-roce"][what].get<double>() /
		       out["udp-gso-gro"][what].get<double>();
	};
	out["ratio"] = {{"gb_s", ratio("gb_s")}, {"cpu_s_gib", ratio("cpu_s_gib")}};
	return out;
}

nlohmann::json run_ping_pong(unsigned rounds, std::size_t answer, unsigned count)
{
	std::map<std::string, std::vector<double>> us;
	for (unsigned r = 0; r < rounds; r++)
		for (const entrant &c : entrants)
			if (c.k != kind::udp_segmented)
				us[c.name].push_back(ping_pong(c.k, answer, count));
	nlohmann::json out;
	for (const auto &[name, values] : us)
		out[name]["us"] = median(values);
	out["ratio"] = median(us["soft-roce"]) / median(us["udp-plain"]);
	return out;
}

void print(const nlohmann::json &report)
{
	const auto &b = report["bulk_4k"];
	std::printf("one way, 4 KiB datagrams\n%-14s %8s %14s %8s\n", "", "GB/s", "CPU s/GiB",
		    "lost");
	for (const entrant &c : entrants) {
		const auto &j = b[c.name];
		std::printf("%-14s %8.2f %14.3f %7.2f%%\n", c.name, j["gb_s"].get<double>(),
			    j["cpu_s_gib"].get<double>(), j["lost"].get<double>() * 100);
	}
	std::printf("%-14s %8.2f %14.2f\n", "ratio to gso", b["ratio"]["gb_s"].get<double>(),
		    b["ratio"]["cpu_s_gib"].get<double>());
	for (const char *size : {"64", "4096"}) {
		const auto &p = report["ping_pong_" + std::string(size)];
		std::printf(
			"request 64 B, answer %s B: soft-roce %.2f us, udp %.2f us, ratio %.2f\n",
			size, p["soft-roce"]["us"].get<double>(),
			p["udp-plain"]["us"].get<double>(), p["ratio"].get<double>());
	}
}

} // namespace

int main(int argc, char **argv)
{
	CLI::App app{"ud-bench: soft RoCE against bare UDP sockets, over the loopback"};
	unsigned rounds = 5, mib = 1024, count = 20000;
	bool json = false, verbose = false;
	app.add_option("--rounds", rounds, "rounds; the median counts")->check(CLI::Range(1, 100));
	app.add_option("--mib", mib, "bulk bytes per round, in MiB")->check(CLI::Range(16, 65536));
	app.add_option("--count", count, "ping-pongs per round")->check(CLI::Range(100, 10000000));
	app.add_flag("--json", json, "print JSON");
	app.add_flag("--verbose", verbose, "print the endpoints' counters");
	CLI11_PARSE(app, argc, argv);
	try {
		nlohmann::json report;
		report["bulk_4k"] = run_bulk(rounds, std::uint64_t{mib} << 20, verbose);
		report["ping_pong_64"] = run_ping_pong(rounds, 64, count);
		report["ping_pong_4096"] = run_ping_pong(rounds, page, count);
		if (json)
			std::printf("%s\n", report.dump(2).c_str());
		else
			print(report);
	} catch (const std::exception &e) {
		std::fprintf(stderr, "ud-bench: %s\n", e.what());
		return 1;
	}
	return 0;
}
