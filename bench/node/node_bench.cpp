// SPDX-License-Identifier: MIT
// node_bench.cpp - the cost of a page fetch without FUSE: two nodes in two
// processes over soft RoCE on loopback, beside a bare UDP ping-pong of the same
// sizes (64 bytes there, 4 KiB back) in the same run.
//
// The child holds a file in its page store and serves; the parent fetches it,
// page by page in random order for latency, then block by block, several at once,
// for throughput. CPU time is of both processes. The child ends when its pipe closes.
#include <arpa/inet.h>
#include <getopt.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "userland/client/node.hpp"

namespace
{

using namespace coop::client;

constexpr std::uint64_t page = 4096, block_bytes = 64 * page;
constexpr std::uint64_t all = ~std::uint64_t{0};
constexpr std::uint64_t fetch_deadline_us = 5000000;
constexpr int refusals = 500; // one per millisecond, before a block counts as missed

struct options {
	std::uint64_t mib = 1024;
	int rounds = 20000, depth = 8, repeat = 3;
	bool json = false, crc = false, mac = false;
	std::string own = "127.0.91.1", peer = "127.0.91.2";
};

double now_us()
{
	timespec t;
	::clock_gettime(CLOCK_MONOTONIC, &t);
	return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

double cpu_seconds()
{
	rusage r;
	::getrusage(RUSAGE_SELF, &r);
	return static_cast<double>(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
	       static_cast<double>(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

void must(bool good, const char *what)
{
	if (!good)
		throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

template <typename T> void put(int fd, const T &v)
{
	must(::write(fd, &v, sizeof(v)) == static_cast<ssize_t>(sizeof(v)), "pipe write");
}

template <typename T> T take(int fd)
{
	T v;
	must(::read(fd, &v, sizeof(v)) == static_cast<ssize_t>(sizeof(v)), "pipe read");
	return v;
}

content_key file_key(std::uint64_t number)
{
	return {{0x636f6f70, number}, 1};
}

// A bare UDP socket: spins, or sleeps in the kernel.
class ping_socket
{
public:
	ping_socket(const std::string &own, const std::string &peer)
	{
		fd_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		must(fd_ >= 0, "socket");
		const auto at = address(own), to = address(peer);
		must(::bind(fd_, reinterpret_cast<const sockaddr *>(&at), sizeof(at)) == 0, "bind");
		must(::connect(fd_, reinterpret_cast<const sockaddr *>(&to), sizeof(to)) == 0,
		     "connect");
		timeval limit{1, 0};
		::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	}
	~ping_socket() { ::close(fd_); }
	ping_socket(const ping_socket &) = delete;
	ping_socket &operator=(const ping_socket &) = delete;

	void send(std::size_t n) { (void)!::send(fd_, buf_, n, 0); }
	bool receive(bool spin)
	{
		if (!spin)
			return ::recv(fd_, buf_, sizeof(buf_), 0) > 0;
		const double until = now_us() + 1e6;
		while (::recv(fd_, buf_, sizeof(buf_), MSG_DONTWAIT) <= 0)
			if (now_us() > until)
				return false;
		return true;
	}

private:
	static sockaddr_in address(const std::string &ip)
	{
		sockaddr_in a{};
		a.sin_family = AF_INET;
		a.sin_port = htons(47910);
		must(::inet_pton(AF_INET, ip.c_str(), &a.sin_addr) == 1, "address");
		return a;
	}
	int fd_;
	char buf_[page] = {};
};

std::unique_ptr<node> make_node(const options &o, const std::string &ip, page_store &store)
{
	coop::ud::soft_roce_options e;
	e.ip = ip;
	node_options n;
	n.page_crc = o.crc;
	n.page_mac = o.mac;
	return std::make_unique<node>(n, coop::ud::make_soft_roce(e), store);
}

// Serves until the pipe closes: reports CPU seconds on 'c', answers one ping-pong on 'p' and 's'.
void child(const options &o, int in, int out)
{
	auto store = page_store::create((o.mib + 16) << 20, 12);
	const std::uint64_t size = o.mib << 20;
	for (std::uint64_t i = 0; i < size / block_bytes; i++) {
		const block_ref b = store->get(file_key(1), i, size);
		const std::uint64_t mine = b->claim(all);
		for (std::uint32_t p = 0; p < 64; p++)
			std::memset(b->data(p), static_cast<int>(i + p), page);
		b->publish(mine, origin::storage);
	}
	ping_socket ping(o.peer, o.own);
	auto n = make_node(o, o.peer, *store);
	put(out, n->self());
	for (char c; ::read(in, &c, 1) == 1;) {
		if (c == 'c')
			put(out, cpu_seconds());
		for (int i = 0; (c == 'p' || c == 's') && i < o.rounds; i++) {
			if (!ping.receive(c == 's'))
				break;
			ping.send(page);
		}
	}
}

struct latency {
	double median, p99, mean;
};

latency summary(std::vector<double> &us)
{
	std::sort(us.begin(), us.end());
	double sum = 0;
	for (const double v : us)
		sum += v;
	return {us[us.size() / 2], us[us.size() * 99 / 100], sum / static_cast<double>(us.size())};
}

latency ping_pong(const options &o, ping_socket &s, int to_child, bool spin)
{
	put(to_child, spin ? 's' : 'p');
	std::vector<double> us;
	for (int i = 0; i < o.rounds; i++) {
		const double begun = now_us();
		s.send(64);
		if (!s.receive(spin))
			throw std::runtime_error("a ping was lost; the machine is too busy");
		us.push_back(now_us() - begun);
	}
	return summary(us);
}

struct fetcher {
	node &n;
	page_store &store;
	std::uint64_t size;
	std::atomic<std::uint64_t> in_flight{0}, good_pages{0};

	bool start(std::uint64_t index, std::uint64_t pages)
	{
		block_ref b = store.get(file_key(1), index, size);
		const std::uint64_t mine = b ? b->claim(pages) : 0;
		if (mine == 0)
			return false;
		auto keep = std::make_shared<block_ref>(b.clone());
		in_flight++;
		const int err = n.fetch(file_key(1), size, std::move(b), mine, {},
					[this, keep, mine](const fetch_outcome &o) {
						(*keep)->abandon(mine & ~o.good);
						*keep = block_ref();
						good_pages += static_cast<std::uint64_t>(
							std::popcount(o.good));
						in_flight--;
					});
		if (err != 0) {
			(*keep)->abandon(mine);
			in_flight--;
		}
		return err == 0;
	}
	void idle(std::uint64_t us)
	{
		n.drive_until([] { return false; }, static_cast<std::uint64_t>(now_us()) + us);
	}
	void wait(std::uint64_t below)
	{
		n.drive_until([&] { return in_flight < below; },
			      static_cast<std::uint64_t>(now_us()) + fetch_deadline_us);
		if (in_flight >= below)
			throw std::runtime_error("a fetch did not end");
	}
};

struct bulk {
	double gb_s, cpu_s_gib, own_share, lost;
};

int run(const options &o, int to_child, int from_child)
{
	auto store = page_store::create((o.mib + 16) << 20, 12);
	ping_socket ping(o.own, o.peer);
	auto n = make_node(o, o.own, *store);
	if (n->add_by_hand(take<coop_addr>(from_child)) != 0)
		throw std::runtime_error("the peer's address was refused");
	const std::uint64_t size = o.mib << 20;
	fetcher f{*n, *store, size};

	const latency spin = ping_pong(o, ping, to_child, true);
	const latency block = ping_pong(o, ping, to_child, false);

	std::vector<double> us;
	std::mt19937_64 rng(1);
	for (int i = 0; i < o.rounds; i++) {
		const std::uint64_t p = rng() % (size / page);
		const double begun = now_us();
		if (!f.start(p / 64, std::uint64_t{1} << p % 64))
			continue;
		f.wait(1);
		us.push_back(now_us() - begun);
	}
	if (us.empty())
		throw std::runtime_error("no page came from the peer");
	const latency lone = summary(us);
	const std::uint64_t lone_lost = us.size() - f.good_pages;

	std::vector<bulk> runs;
	for (int r = 0; r < o.repeat; r++) {
		store->drop(file_key(1));
		f.good_pages = 0;
		put(to_child, 'c');
		const double child_before = take<double>(from_child), own_before = cpu_seconds();
		const double begun = now_us();
		for (std::uint64_t i = 0; i < size / block_bytes; i++) {
			f.wait(static_cast<std::uint64_t>(o.depth));
			// On a busy machine the peer's circuit may open for a moment.
			for (int t = 0; !f.start(i, all) && t < refusals; t++)
				f.idle(1000);
		}
		f.wait(1);
		const double seconds = (now_us() - begun) / 1e6;
		const double own = cpu_seconds() - own_before;
		put(to_child, 'c');
		const double theirs = take<double>(from_child) - child_before;
		const double gib = static_cast<double>(f.good_pages * page) / (1u << 30);
		runs.push_back(
			{static_cast<double>(f.good_pages * page) / seconds / 1e9,
			 (own + theirs) / gib, own / (own + theirs),
			 1 - static_cast<double>(f.good_pages * page) / static_cast<double>(size)});
	}
	std::sort(runs.begin(), runs.end(),
		  [](const bulk &a, const bulk &b) { return a.gb_s < b.gb_s; });
	const bulk &m = runs[runs.size() / 2];

	if (o.json) {
		std::printf("{\"ping_spin_us\": %.2f, \"ping_block_us\": %.2f, "
			    "\"fetch_us\": {\"median\": %.2f, \"p99\": %.2f, \"mean\": %.2f, "
			    "\"missed\": %llu}, \"ratio_to_spin\": %.2f, \"bulk\": "
			    "{\"gb_s\": %.3f, \"cpu_s_gib\": %.3f, \"requester_share\": %.2f, "
			    "\"missed\": %.5f, \"depth\": %d, \"mib\": %llu}}\n",
			    spin.median, block.median, lone.median, lone.p99, lone.mean,
			    static_cast<unsigned long long>(lone_lost), lone.median / spin.median,
			    m.gb_s, m.cpu_s_gib, m.own_share, m.lost, o.depth,
			    static_cast<unsigned long long>(o.mib));
		return 0;
	}
	std::printf("UDP ping-pong 64 B / 4 KiB, spinning   %8.2f us   p99 %8.2f\n", spin.median,
		    spin.p99);
	std::printf("UDP ping-pong 64 B / 4 KiB, blocking   %8.2f us   p99 %8.2f\n", block.median,
		    block.p99);
	std::printf("fetch of one 4 KiB page                %8.2f us   p99 %8.2f   mean %.2f   "
		    "%.2f x spinning   missed %llu\n",
		    lone.median, lone.p99, lone.mean, lone.median / spin.median,
		    static_cast<unsigned long long>(lone_lost));
	std::printf("fetch of %llu MiB, %d blocks at once     %8.3f GB/s   CPU %.3f s/GiB "
		    "(requester %.0f %%)   missed %.3f %%\n",
		    static_cast<unsigned long long>(o.mib), o.depth, m.gb_s, m.cpu_s_gib,
		    m.own_share * 100, m.lost * 100);
	return 0;
}

int usage(const char *name, int code)
{
	std::fprintf(code != 0 ? stderr : stdout,
		     "usage: %s [--mib N] [--rounds N] [--depth N] [--repeat N] [--crc | --mac]\n"
		     "       [--json] [--own ADDR] [--peer ADDR]   (loopback addresses of the two "
		     "nodes)\n",
		     name);
	return code;
}

} // namespace

extern "C" void coop_assert_failed(const char *what, const char *file, int line)
{
	std::fprintf(stderr, "node-bench: %s:%d: %s does not hold\n", file, line, what);
	std::abort();
}

int main(int argc, char **argv)
{
	options o;
	enum { mib, rounds, depth, repeat, crc, mac, json, own, peer, help };
	static const option names[] = {
		{"mib", 1, nullptr, mib},     {"rounds", 1, nullptr, rounds},
		{"depth", 1, nullptr, depth}, {"repeat", 1, nullptr, repeat},
		{"crc", 0, nullptr, crc},     {"mac", 0, nullptr, mac},
		{"json", 0, nullptr, json},   {"own", 1, nullptr, own},
		{"peer", 1, nullptr, peer},   {"help", 0, nullptr, help},
		{nullptr, 0, nullptr, 0},
	};
	for (int c; (c = ::getopt_long(argc, argv, "", names, nullptr)) != -1;) {
		const int number = optarg != nullptr ? std::atoi(optarg) : 0;
		switch (c) {
		case mib:
			o.mib = static_cast<std::uint64_t>(std::max(number, 1));
			break;
		case rounds:
			o.rounds = std::max(number, 1);
			break;
		case depth:
			o.depth = std::clamp(number, 1, 64);
			break;
		case repeat:
			o.repeat = std::max(number, 1);
			break;
		case crc:
			o.crc = true;
			break;
		case mac:
			o.mac = true;
			break;
		case json:
			o.json = true;
			break;
		case own:
			o.own = optarg;
			break;
		case peer:
			o.peer = optarg;
			break;
		case help:
			return usage(argv[0], 0);
		default:
			return usage(argv[0], 2);
		}
	}
	int down[2], up[2];
	if (::pipe(down) != 0 || ::pipe(up) != 0) {
		std::perror("node-bench: pipe");
		return 1;
	}
	const pid_t pid = ::fork();
	int code = 1;
	try {
		if (pid == 0) {
			::close(down[1]);
			::close(up[0]);
			child(o, down[0], up[1]);
			return 0;
		}
		::close(down[0]);
		::close(up[1]);
		code = run(o, down[1], up[0]);
	} catch (const std::exception &e) {
		std::fprintf(stderr, "node-bench: %s\n", e.what());
	}
	if (pid > 0) {
		::close(down[1]);
		::waitpid(pid, nullptr, 0);
	}
	return code;
}
