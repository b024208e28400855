// SPDX-License-Identifier: MIT
// rails.cpp - coop-rails: two transfer machines of one program move data by all their rails, and
// compare every byte, for as long as a test of the lab takes devices away.
//
//   coop-rails TRANSPORT DEVICE RAILS IP  TRANSPORT DEVICE RAILS IP
//
// RAILS is for rails=, or - for none. The first machine reads the memory of the second, then writes
// to it, in turn. Each such round prints a line. SIGTERM ends it; then each rail that still works
// prints a line with its machine, its name, and the bytes that were read by it. An operation that
// fails, or a byte that is wrong, ends it with status 1 and a line that says which.
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "coop/net.hpp"

namespace
{

using namespace coop::net;

constexpr std::size_t bytes = 1000001;

volatile std::sig_atomic_t ends = 0;

class waiter final : public buffer_handler
{
public:
	void on_buffer(const buffer_event &e) override
	{
		std::lock_guard guard(lock_);
		status_ = e.status;
		over_ = true;
		rung_.notify_one();
	}
	int wait()
	{
		std::unique_lock guard(lock_);
		rung_.wait(guard, [this] { return over_; });
		over_ = false;
		return status_;
	}

private:
	std::mutex lock_;
	std::condition_variable rung_;
	bool over_ = false;
	int status_ = 0;
};

void check(int status, const char *what)
{
	if (status)
		throw std::runtime_error(std::string(what) + ": " + std::strerror(-status));
}

std::vector<std::pair<std::string, std::string>> parameters(char **arguments)
{
	std::vector<std::pair<std::string, std::string>> all{{"device", arguments[1]},
							     {"bulk_patience", "60000"}};
	if (std::strcmp(arguments[2], "-") != 0)
		all.emplace_back("rails", arguments[2]);
	return all;
}

/// A machine and its memory. `arguments`: its four.
struct side {
	side(char **arguments, const char *id) :
		d({arguments[0], parameters(arguments)}),
		memory(bytes),
		b(d, memory.data(), bytes),
		tm(d)
	{
		check(tm.start(std::string(arguments[3]) + "@o2ib0:12345:31:" + id), "start");
		check(tm.wait(tm_state::started), "start");
	}
	void add(queue_type q, std::span<const std::byte> descriptor = {})
	{
		operation o;
		o.queue = q;
		o.length = bytes;
		o.handler = &event;
		o.descriptor = descriptor;
		check(tm.add(b, o), "add");
	}

	domain d;
	std::vector<std::byte> memory;
	buffer b;
	waiter event;
	transfer_machine tm;
};

/// `in`: the first reads the second's memory; else it writes to it.
void transfer(side &first, side &second, bool in, std::mt19937_64 &random)
{
	side &from = in ? second : first, &to = in ? first : second;
	for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
		const std::uint64_t r = random();
		std::memcpy(&from.memory[i], &r, 8);
	}
	second.add(in ? queue_type::passive_bulk_send : queue_type::passive_bulk_recv);
	const auto d = second.b.descriptor();
	const std::vector<std::byte> text(d.begin(), d.end());
	first.add(in ? queue_type::active_bulk_recv : queue_type::active_bulk_send, text);
	check(first.event.wait(), in ? "read" : "write");
	check(second.event.wait(), in ? "being read" : "being written");
	if (from.memory != to.memory)
		throw std::runtime_error(in ? "wrong bytes were read" : "wrong bytes were written");
}

void print(const char *which, side &s)
{
	for (const rail_stats &r : s.tm.rails())
		std::printf("%s %s %llu\n", which, r.name.c_str(),
			    static_cast<unsigned long long>(r.read_bytes));
}

} // namespace

int main(int n, char **arguments)
try {
	if (n != 9)
		throw std::runtime_error("coop-rails takes 8 arguments");
	std::signal(SIGTERM, [](int) { ends = 1; });
	std::mt19937_64 random{1};
	side first(arguments + 1, "1"), second(arguments + 5, "2");
	for (unsigned round = 1; !ends; round++) {
		transfer(first, second, true, random);
		transfer(first, second, false, random);
		std::printf("%u\n", round);
		std::fflush(stdout);
	}
	print("first", first);
	print("second", second);
	return 0;
} catch (const std::exception &e) {
	std::fprintf(stderr, "coop-rails: %s\n", e.what());
	return 1;
}
