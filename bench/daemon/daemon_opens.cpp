// SPDX-License-Identifier: MIT
// daemon_opens.cpp - how many OPENs and CLOSEs a second a daemon answers to many clients.
//
// Each connection is a client with a node: it opens a file, closes it, and so on, one request at a
// time. --version 7 makes it one that takes no roles. The daemon has no cluster key and runs as
// this user or for root.
//
//     daemon-opens PORT EXPORT FILES [--connections N] [--threads T] [--seconds S] [--same]
//                  [--version V] [--hold] [--named] [--pid P]
//
// FILES: names f0, f1, ... in the export's root; client i opens file i mod FILES; --same: all f0.
// --pid: the daemon, to say its processor time for an OPEN and a CLOSE, which a busy machine
// changes less than the rate. --hold: a client has another open file all the time, so none is ever
// alone in its file. --named: as a client that needs only the nodes that are named to it. The bytes
// of NODE are what all clients got until their opens, and after.
#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netinet/tcp.h>
#include <poll.h>
#include <string>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "rpc/storage/message.h"

namespace
{

using clock_type = std::chrono::steady_clock;

struct options {
	std::uint16_t port = 0;
	std::string export_name;
	unsigned files = 1, connections = 1000, threads = 2, seconds = 5;
	std::uint16_t version = COOP_ST_VERSION;
	bool same = false, hold = false, named = false;
	int pid = 0; // the daemon's
};

[[noreturn]] void die(const char *what)
{
	std::fprintf(stderr, "daemon-opens: %s: %s\n", what, std::strerror(errno));
	std::exit(1);
}

class client
{
public:
	client(const options &o, unsigned number) : number_(number), named_(o.named)
	{
		fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		sockaddr_in a{};
		a.sin_family = AF_INET;
		a.sin_port = htons(o.port);
		a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		if (fd_ < 0 || ::connect(fd_, reinterpret_cast<sockaddr *>(&a), sizeof(a)))
			die("connect");
		const int one = 1;
		::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		coop_st_body b{};
		b.version_min = b.version_max = o.version;
		std::memcpy(b.session, &number, sizeof(number));
		const int pid = ::getpid();
		std::memcpy(b.session + 4, &pid, sizeof(pid));
		b.text = {reinterpret_cast<const u8 *>(o.export_name.data()),
			  static_cast<u32>(o.export_name.size())};
		ask(COOP_ST_HELLO, b);
		ask(COOP_ST_PROOF_OP, {});
		const std::string root(reinterpret_cast<const char *>(got_.fh.p), got_.fh.len);
		coop_st_body where{};
		where.cred.uid = ::geteuid();
		where.fh = bytes(root);
		const std::string name = "f" + std::to_string(o.same ? 0 : number % o.files);
		where.name = bytes(name);
		ask(COOP_ST_LOOKUP, where);
		fh_.assign(reinterpret_cast<const char *>(got_.fh.p), got_.fh.len);
	}
	~client() { ::close(fd_); }
	client(const client &) = delete;

	void enroll()
	{
		coop_st_body b{};
		b.addr.gid[15] = 1;
		b.addr.qpn = number_ + 2;
		b.count = 100000;
		b.flags = named_ ? COOP_ST_JOIN_NAMED : 0;
		ask(opens_since() ? COOP_ST_JOIN : COOP_ST_REGISTER, b);
	}
	void hold()
	{
		open_id_++;
		ask(COOP_ST_OPEN, open_body());
	}
	void start()
	{
		if (open_)
			send(COOP_ST_CLOSE, open_body());
		else
			open_id_++, send(COOP_ST_OPEN, open_body());
		open_ = !open_;
	}
	// Takes what has arrived. Replies to what start() sent.
	unsigned take()
	{
		unsigned replies = 0;
		const ssize_t n = ::recv(fd_, in_ + have_, sizeof(in_) - have_, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN))
			die("the daemon ended a connection");
		have_ += n > 0 ? static_cast<std::size_t>(n) : 0;
		std::size_t at = 0;
		coop_st_header h;
		while (have_ - at >= COOP_ST_HEADER) {
			if (coop_st_header_get(&h, in_ + at))
				die("header");
			if (have_ - at < COOP_ST_HEADER + h.body_len + h.data_len)
				break;
			if (h.id == id_) {
				replies++;
				if (h.status)
					errno = static_cast<int>(h.status), die("a request");
			}
			if (h.op == COOP_ST_ROLES)
				roles++;
			if (h.op == COOP_ST_NODE)
				node_bytes += COOP_ST_HEADER + h.body_len;
			if (h.id == id_ && h.body_len)
				keep(h, in_ + at + COOP_ST_HEADER);
			at += COOP_ST_HEADER + h.body_len + h.data_len;
		}
		std::memmove(in_, in_ + at, have_ -= at);
		return replies;
	}
	int fd() const { return fd_; }
	std::uint64_t roles = 0, node_bytes = 0;
	std::uint16_t version = 0;

private:
	static coop_st_bytes bytes(const std::string &s)
	{
		return {reinterpret_cast<const u8 *>(s.data()), static_cast<u32>(s.size())};
	}
	bool opens_since() const { return version >= coop_st_op_since(COOP_ST_JOIN); }
	coop_st_body open_body() const
	{
		coop_st_body b{};
		b.cred.uid = ::geteuid();
		b.fh = bytes(fh_);
		b.flags = COOP_ST_O_READ;
		b.open_id = open_id_;
		return b;
	}
	void send(std::uint16_t op, const coop_st_body &b)
	{
		std::uint8_t buf[COOP_ST_HEADER + COOP_ST_BODY_MAX];
		const int n = coop_st_body_put(&b, coop_st_request_fields(op), buf + COOP_ST_HEADER,
					       COOP_ST_BODY_MAX);
		coop_st_header h{op, 0, static_cast<u32>(n), 0, 0, ++id_};
		coop_st_header_put(&h, buf);
		const std::size_t all = COOP_ST_HEADER + static_cast<std::size_t>(n);
		if (::send(fd_, buf, all, MSG_NOSIGNAL) != static_cast<ssize_t>(all))
			die("send");
	}
	void ask(std::uint16_t op, const coop_st_body &b)
	{
		send(op, b);
		while (!take()) {
			pollfd p{fd_, POLLIN, 0};
			::poll(&p, 1, 60000);
		}
	}
	void keep(const coop_st_header &h, const std::uint8_t *body)
	{
		kept_.assign(body, body + h.body_len);
		if (coop_st_body_get(&got_, coop_st_reply_fields(h.op), kept_.data(), h.body_len))
			die("body");
		if (h.op == COOP_ST_HELLO)
			version = got_.version_min;
	}

	const unsigned number_;
	const bool named_;
	int fd_;
	std::string fh_;
	std::uint64_t id_ = 0, open_id_ = 0;
	bool open_ = false;
	std::uint8_t in_[65536];
	std::size_t have_ = 0;
	std::vector<std::uint8_t> kept_;
	coop_st_body got_{};
};

// Of the process, us.
double processor_us(int pid)
{
	FILE *f = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "re");
	unsigned long user = 0, kernel = 0;
	const char *form = "%*d %*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu";
	if (!f || std::fscanf(f, form, &user, &kernel) != 2)
		user = kernel = 0;
	if (f)
		std::fclose(f);
	return static_cast<double>(user + kernel) * 1e6 /
	       static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::atomic<bool> over{false};
std::atomic<std::uint64_t> answered{0};

void drive(const std::vector<client *> &mine)
{
	const int ep = ::epoll_create1(EPOLL_CLOEXEC);
	for (client *c : mine) {
		epoll_event e{};
		e.events = EPOLLIN;
		e.data.ptr = c;
		if (::epoll_ctl(ep, EPOLL_CTL_ADD, c->fd(), &e))
			die("epoll");
		c->start();
	}
	epoll_event ready[64];
	while (!over) {
		const int n = ::epoll_wait(ep, ready, 64, 100);
		for (int i = 0; i < n; i++) {
			client *c = static_cast<client *>(ready[i].data.ptr);
			if (const unsigned r = c->take()) {
				answered.fetch_add(r, std::memory_order_relaxed);
				c->start();
			}
		}
	}
	::close(ep);
}

} // namespace

static int usage()
{
	std::fprintf(stderr, "usage: daemon-opens PORT EXPORT FILES [--same] [--hold] [--named] "
			     "[--connections N] [--threads N] [--seconds N] [--pid N] "
			     "[--version N]\n");
	return 2;
}

int main(int argc, char **argv)
{
	options o;
	if (argc < 4)
		return usage();
	o.port = static_cast<std::uint16_t>(std::atoi(argv[1]));
	o.export_name = argv[2];
	o.files = static_cast<unsigned>(std::atoi(argv[3]));
	for (int i = 4; i < argc; i++) {
		const std::string name = argv[i];
		const auto number = [&] {
			return static_cast<unsigned>(++i < argc ? std::atoi(argv[i]) : 0);
		};
		if (name == "--same")
			o.same = true;
		else if (name == "--hold")
			o.hold = true;
		else if (name == "--named")
			o.named = true;
		else if (name == "--connections")
			o.connections = number();
		else if (name == "--threads")
			o.threads = number();
		else if (name == "--seconds")
			o.seconds = number();
		else if (name == "--pid")
			o.pid = static_cast<int>(number());
		else if (name == "--version")
			o.version = static_cast<std::uint16_t>(number());
		else
			return usage();
	}
	if (!o.port || !o.files || !o.connections || !o.threads)
		return usage();
	rlimit files{};
	::getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	::setrlimit(RLIMIT_NOFILE, &files);
	const auto begun = clock_type::now();
	std::vector<std::unique_ptr<client>> all;
	for (unsigned i = 0; i < o.connections; i++)
		all.push_back(std::make_unique<client>(o, i));
	const auto connected = clock_type::now();
	std::vector<std::thread> threads;
	const auto each = [&](auto work) {
		for (unsigned t = 0; t < o.threads; t++)
			threads.emplace_back([&, t] {
				std::vector<client *> mine;
				for (std::size_t i = t; i < all.size(); i += o.threads)
					mine.push_back(all[i].get());
				work(mine);
			});
		for (std::thread &t : threads)
			t.join();
		threads.clear();
	};
	each([](const std::vector<client *> &mine) {
		for (client *c : mine) {
			c->enroll();
			for (client *other : mine) // what is pushed to them
				other->take();
		}
	});
	if (o.hold)
		each([](const std::vector<client *> &mine) {
			for (client *c : mine)
				c->hold();
		});
	const auto enrolled = clock_type::now();
	const auto node_bytes = [&] {
		std::uint64_t sum = 0;
		for (const auto &c : all)
			sum += c->node_bytes;
		return sum;
	};
	const std::uint64_t joins = node_bytes();
	const double before = processor_us(o.pid);
	std::thread watch([&] {
		std::this_thread::sleep_for(std::chrono::seconds(o.seconds));
		over = true;
	});
	each(drive);
	watch.join();
	const std::chrono::duration<double> took = clock_type::now() - enrolled;
	const double spent = processor_us(o.pid) - before;
	std::uint64_t roles = 0;
	for (const auto &c : all)
		roles += c->roles;
	using seconds = std::chrono::duration<double>;
	std::printf(
		"version %u connect_s %.2f enroll_s %.2f opens_s %.0f daemon_us %.1f roles %llu "
		"node_bytes %llu %llu\n",
		all[0]->version, seconds(connected - begun).count(),
		seconds(enrolled - connected).count(),
		static_cast<double>(answered) / 2 / took.count(),
		2 * spent / static_cast<double>(answered), static_cast<unsigned long long>(roles),
		static_cast<unsigned long long>(joins),
		static_cast<unsigned long long>(node_bytes() - joins));
	return 0;
}
