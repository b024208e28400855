// SPDX-License-Identifier: MIT
// main.cpp - a rendezvous: N processes find each other through one machine, then pass a message
// round.
//
//     coop-rendezvous [--processes N] [--transport T] [--seconds S] [-o KEY=VALUE...]
//
// Each process calls `meet` of the rendezvous with its own address, which answers when all have
// come: the result is the roster, one address a line. Then each sends a message to the next one of
// the roster, waits for that of the one before, and calls `leave`, which is answered when all have
// done so: no machine stops while another may still send to it. Both calls are barriers.
//
// Prints one line of figures. The exit status is 0 if every process has got its message before the
// deadline; else the first reasons are on stderr. The parent forks before it has any thread.
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "coop/net.hpp"

namespace net = coop::net;

namespace
{

enum : std::uint32_t { meet = 1, leave };

constexpr std::size_t address_size = 96; // of the rendezvous, in the pipe

struct settings {
	unsigned processes = 100;
	std::string transport = "ud";
	std::vector<std::pair<std::string, std::string>> parameters;
	net::time_point deadline;
};

// Small ones: a thousand machines share a host. Most of a machine's memory on ud is for peers.
net::domain_options domain_of(const settings &s, bool home)
{
	net::domain_options o{s.transport, s.parameters};
	if (o.transport != "ud")
		return o;
	const auto set = [&](const char *key, const char *value) {
		o.parameters.emplace_back(key, value);
	};
	set("max_message", "8k");
	set("window", "64");
	set("peers", home ? "4096" : "16");
	set("operations", home ? "4096" : "64");
	set("fetches", home ? "8" : "1");
	set("serves", home ? "64" : "2");
	set("socket_buffer", home ? "8m" : "128k");
	return o;
}

net::rpc_options options_of(const settings &s, bool home)
{
	net::rpc_options o;
	o.messages.max_message = 8 << 10;
	o.messages.send_buffers = home ? 256 : 8;
	o.messages.receive_buffers = home ? 256 : 4;
	o.eager = 4 << 10; // a roster of more than a hundred goes by bulk transfer
	o.max_requests = home ? 2 * s.processes : 16;
	o.probe = std::chrono::seconds(10);
	return o;
}

void need(int status, const std::string &what)
{
	if (status)
		throw std::system_error(-status, std::generic_category(), what);
}

std::string own_ip()
{
	const auto pid = static_cast<unsigned>(::getpid());
	return "127." + std::to_string(1 + pid / 254 % 250) + '.' + std::to_string(1 + pid % 254) +
	       ".7";
}

std::string text_of(std::span<const std::byte> b)
{
	return {reinterpret_cast<const char *>(b.data()), b.size()};
}

// ---- a member --------------------------------------------------------------------

std::vector<std::string> lines_of(const std::string &text)
{
	std::vector<std::string> lines;
	for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
		end = text.find('\n', at);
		lines.push_back(text.substr(at, end - at));
	}
	return lines;
}

// On a busy host a peer may seem to have ended, or have no room. Everything here may be repeated.
bool repeatable(int status)
{
	return status && status != -ETIMEDOUT && status != -ENOSYS && status != -EMSGSIZE;
}

std::string call(net::rpc &me, const std::string &to, std::uint32_t method, const std::string &text,
		 net::time_point deadline, unsigned &repeats)
{
	for (;; repeats++) {
		const net::call_result r = me.call(to, method, text, deadline).get();
		if (r.status == 0)
			return text_of(r.bytes);
		if (!repeatable(r.status))
			need(r.status, method == meet ? "meet" : "leave");
	}
}

// Memory of this process that no other one shares, in KiB.
long own_kib()
{
	long kib = 0;
	if (std::FILE *f = std::fopen("/proc/self/smaps_rollup", "re")) {
		char line[256];
		while (std::fgets(line, sizeof(line), f))
			if (std::sscanf(line, "Private_Dirty: %ld", &kib) == 1)
				break;
		std::fclose(f);
	}
	return kib;
}

// Threads, descriptors and KiB of this process, and its repeats.
std::string figures(unsigned repeats)
{
	const auto entries = [](const char *path) {
		return std::distance(std::filesystem::directory_iterator(path), {});
	};
	return std::to_string(entries("/proc/self/task")) + ' ' +
	       std::to_string(entries("/proc/self/fd")) + ' ' + std::to_string(own_kib()) + ' ' +
	       std::to_string(repeats);
}

void take_part(const settings &s, const std::string &home, const std::string &own)
{
	std::mutex lock;
	std::condition_variable changed;
	std::string from;
	unsigned repeats = 0;
	net::domain d(domain_of(s, false));
	net::rpc me(d, options_of(s, false));
	need(me.start(own,
		      [&](net::endpoint &, std::span<const std::byte> bytes) {
			      std::lock_guard hold(lock);
			      from = text_of(bytes);
			      changed.notify_all();
		      }),
	     "start at " + own);
	const std::string address = me.text();
	const std::vector<std::string> roster =
		lines_of(call(me, home, meet, address, s.deadline, repeats));
	const auto at = std::find(roster.begin(), roster.end(), address);
	if (at == roster.end() || roster.size() != s.processes)
		throw std::runtime_error("the roster is not complete");
	const std::string next = at + 1 == roster.end() ? roster.front() : at[1];
	const std::string before = at == roster.begin() ? roster.back() : at[-1];
	const auto own_text = std::as_bytes(std::span(address));
	int status = me.send(next, own_text, s.deadline);
	for (; repeatable(status); repeats++)
		status = me.send(next, own_text, s.deadline);
	need(status, "send to " + next);
	{
		std::unique_lock hold(lock);
		if (!changed.wait_until(hold, s.deadline, [&] { return !from.empty(); }))
			throw std::runtime_error("no message came round");
		if (from != before)
			throw std::runtime_error("a message from " + from + ", not " + before);
	}
	call(me, home, leave, figures(repeats), s.deadline, repeats);
}

// ---- the rendezvous --------------------------------------------------------------

// Answers all requests when each process has made one.
class barrier
{
public:
	explicit barrier(unsigned processes) : processes_(processes) {}

	void arrive(const net::request &r, const std::function<std::string()> &result)
	{
		std::vector<net::request> all;
		{
			std::lock_guard hold(lock_);
			if (open_) { // repeated, because an answer has not arrived
				all.push_back(r);
			} else {
				callers_.insert(net::format(r.from()));
				waiting_.push_back(r);
				if (callers_.size() < processes_)
					return;
				open_ = true;
				all.swap(waiting_);
			}
		}
		const std::string text = result();
		for (const net::request &each : all)
			if (const int status = each.answer(text))
				each.fail(status);
	}
	std::size_t callers()
	{
		std::lock_guard hold(lock_);
		return callers_.size();
	}

private:
	const unsigned processes_;
	std::mutex lock_;
	std::set<std::string> callers_;
	std::vector<net::request> waiting_;
	bool open_ = false;
};

struct largest {
	unsigned threads = 0, descriptors = 0, repeats = 0; ///< repeats: of all together
	long kib = 0;

	void take(const std::string &figures)
	{
		unsigned t, d, r;
		long k;
		if (std::sscanf(figures.c_str(), "%u %u %ld %u", &t, &d, &k, &r) != 4)
			return;
		repeats += r;
		threads = std::max(threads, t);
		descriptors = std::max(descriptors, d);
		kib = std::max(kib, k);
	}
};

double seconds_of(const timeval &t)
{
	return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
}

// @return how many have failed.
unsigned collect(std::vector<pid_t> &members, net::time_point deadline)
{
	unsigned failed = 0;
	for (const pid_t member : members) {
		int status = 0;
		// Each ends by itself soon after the deadline; one that hangs is ended.
		while (::waitpid(member, &status, WNOHANG) == 0) {
			if (net::clock::now() > deadline + std::chrono::seconds(10))
				::kill(member, SIGKILL);
			::usleep(10000);
		}
		failed += status != 0;
	}
	members.clear();
	return failed;
}

int preside(const settings &s, std::vector<pid_t> &members, int pipe)
{
	const net::time_point began = net::clock::now();
	barrier met(s.processes), left(s.processes);
	std::string roster;
	largest most;
	net::domain d(domain_of(s, true));
	net::rpc home(d, options_of(s, true));
	// Methods run one at a time, so they share the roster and the figures.
	home.serve(meet, [&](const net::request &r) {
		const std::string line = text_of(r.bytes()) + '\n';
		if (roster.find(line) == roster.npos)
			roster += line;
		met.arrive(r, [&] { return roster; });
	});
	home.serve(leave, [&](const net::request &r) {
		most.take(text_of(r.bytes()));
		left.arrive(r, [] { return std::string(); });
	});
	const std::string ip = own_ip() + "@tcp:12345:";
	need(home.start(ip + "30:0"), "rendezvous");
	char address[address_size] = "";
	std::snprintf(address, sizeof(address), "%s", home.text().c_str());
	for (unsigned i = 0; i < s.processes; i++)
		if (::write(pipe, address, sizeof(address)) != sizeof(address))
			throw std::system_error(errno, std::generic_category(), "pipe");
	const unsigned failed = collect(members, s.deadline);
	rusage own{}, all{};
	::getrusage(RUSAGE_SELF, &own);
	::getrusage(RUSAGE_CHILDREN, &all);
	std::printf(
		"%u processes, %zu met, %zu left, %u failed; %.1f s, processor %.1f s; of a member "
		"at most %u threads, %u descriptors, %ld KiB; of the rendezvous %ld KiB, %llu "
		"requests "
		"refused, %llu answers unsent; %u calls and messages repeated\n",
		s.processes, met.callers(), left.callers(), failed,
		std::chrono::duration<double>(net::clock::now() - began).count(),
		seconds_of(own.ru_utime) + seconds_of(own.ru_stime) + seconds_of(all.ru_utime) +
			seconds_of(all.ru_stime),
		most.threads, most.descriptors, most.kib, own_kib(),
		static_cast<unsigned long long>(home.stats().refused),
		static_cast<unsigned long long>(home.stats().unsent), most.repeats);
	const bool whole = met.callers() == s.processes && left.callers() == s.processes;
	return failed || !whole;
}

// Runs in the child. @return its exit status.
int member(const settings &s, int pipe, const std::string &own)
try {
	char home[address_size];
	if (::read(pipe, home, sizeof(home)) != sizeof(home))
		throw std::runtime_error("there is no rendezvous");
	::close(pipe);
	take_part(s, home, own);
	return 0;
} catch (const std::exception &e) {
	std::fprintf(stderr, "coop-rendezvous: %s: %s\n", own.c_str(), e.what());
	return 1;
}

int run(const settings &s)
{
	int ends[2];
	if (::pipe(ends))
		throw std::system_error(errno, std::generic_category(), "pipe");
	const pid_t parent = ::getpid();
	const std::string own = own_ip() + "@tcp:12345:31:";
	std::vector<pid_t> members;
	for (unsigned i = 0; i < s.processes; i++) {
		const pid_t child = ::fork();
		if (child == 0) {
			::prctl(PR_SET_PDEATHSIG, SIGKILL);
			::close(ends[1]);
			// A thousand that wait for the rendezvous must not take its processor.
			::setpriority(PRIO_PROCESS, 0, 19);
			const bool orphan = ::getppid() != parent;
			::_exit(orphan ? 1 : member(s, ends[0], own + std::to_string(i)));
		}
		if (child < 0) {
			std::perror("coop-rendezvous: fork");
			break;
		}
		members.push_back(child);
	}
	::close(ends[0]);
	int status = 1;
	if (members.size() == s.processes)
		try {
			status = preside(s, members, ends[1]);
		} catch (const std::exception &e) {
			std::fprintf(stderr, "coop-rendezvous: %s\n", e.what());
		}
	::close(ends[1]); // those that still wait for the address end
	collect(members, s.deadline);
	return status;
}

} // namespace

int main(int argc, char **argv)
{
	settings s;
	long seconds = 120;
	for (int i = 1; i < argc; i += 2) {
		const std::string option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
		if (option == "--processes") {
			s.processes = static_cast<unsigned>(std::atoi(value.c_str()));
		} else if (option == "--transport") {
			s.transport = value;
		} else if (option == "--seconds") {
			seconds = std::atol(value.c_str());
		} else if (option == "-o" && value.find('=') != value.npos) {
			const std::size_t middle = value.find('=');
			s.parameters.emplace_back(value.substr(0, middle),
						  value.substr(middle + 1));
		} else {
			s.processes = 0;
		}
	}
	if (!s.processes || seconds < 1) {
		std::fprintf(stderr, "usage: coop-rendezvous [--processes N] [--transport T] "
				     "[--seconds S] [-o KEY=VALUE...]\n");
		return 2;
	}
	s.deadline = net::clock::now() + std::chrono::seconds(seconds);
	::signal(SIGPIPE, SIG_IGN);
	return run(s);
}
