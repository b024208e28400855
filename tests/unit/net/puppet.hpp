// SPDX-License-Identifier: MIT
// puppet.hpp - a transport that does what the test says, when it says it.
#pragma once

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "userland/net/transport.hpp"

#include "coop/net.hpp"

namespace puppets
{

using namespace coop::net;

constexpr char here[] = "127.0.0.1@tcp:12345:1:1", there[] = "127.0.0.1@tcp:12345:1:2",
	       elsewhere[] = "127.0.0.1@tcp:12345:1:3";
constexpr std::size_t size = 1000;

/// What prepare() does and returns, on the thread that starts a machine; null: nothing.
inline std::function<int()> preparing;
/// What becomes of the memory of the next buffers.
inline int registering = 0;

// Records all calls to a transport, and lets the test call the sink.
class puppet final : public spi::transport_machine
{
public:
	explicit puppet(spi::sink &s) : sink(s), fd_(::eventfd(0, EFD_NONBLOCK)) { last = this; }
	~puppet() override
	{
		::close(fd_);
		last = nullptr;
	}
	int prepare(const address &) override { return preparing ? preparing() : 0; }
	int start(const address &a) override
	{
		if (busy > 0) {
			busy--;
			return -EADDRINUSE;
		}
		own = a;
		sink.started();
		return 0;
	}
	void stop() override { stops++; }
	int submit(spi::token t, const spi::transfer &x) override
	{
		if (refuse)
			return refuse;
		submitted.push_back(t);
		more.push_back(x.more);
		return 0;
	}
	void flush() override
	{
		(std::this_thread::get_id() == maker_ ? flushes : others_flushes)++;
	}
	void cancel(spi::token t) override { cancelled.push_back(t); }
	int describe(spi::token, std::span<std::byte>) override { return undescribable; }
	void receivable() override { receivables++; }
	int peer_open(spi::peer_number n, const address &) override
	{
		opened.push_back(n);
		return 0;
	}
	void peer_close(spi::peer_number n) override { closed.push_back(n); }
	unsigned progress(unsigned) override
	{
		std::deque<std::function<void()>> now;
		{
			std::lock_guard guard(lock_);
			calls_++;
			now.swap(calls_to_make_);
		}
		for (auto &f : now)
			f();
		return static_cast<unsigned>(now.size());
	}
	bool arm() override
	{
		std::lock_guard guard(lock_);
		std::uint64_t n;
		[[maybe_unused]] ssize_t r = ::read(fd_, &n, sizeof(n));
		if (!calls_to_make_.empty())
			return false;
		calls_ = 0;
		arms++;
		return true;
	}
	int fd() const override { return fd_; }
	time_point deadline() const override { return never; }
	void expire(time_point) override {}

	// Runs f under the machine's lock, and returns when the core has settled.
	void run(std::function<void()> f)
	{
		post(f);
		post([] {});
	}
	// Like run(), for the last call of this object.
	void end(std::function<void()> f) { post(f); }
	// Like run(), without waiting.
	void leave(std::function<void()> f)
	{
		std::lock_guard guard(lock_);
		calls_to_make_.push_back(std::move(f));
		ring();
	}
	static inline puppet *last = nullptr;
	static inline int busy = 0;
	std::atomic<int> arms{0};
	spi::sink &sink;
	address own;
	std::vector<spi::token> submitted, cancelled;
	std::vector<spi::peer_number> opened, closed;
	std::vector<bool> more;
	std::atomic<int> flushes{0}, others_flushes{0}; ///< by the maker's thread; by others
	int stops = 0, receivables = 0, refuse = 0, undescribable = 0;

private:
	void post(const std::function<void()> &f)
	{
		std::mutex m;
		std::condition_variable c;
		bool done = false;
		{
			std::lock_guard guard(lock_);
			calls_to_make_.push_back([&] {
				f();
				std::lock_guard told(m);
				done = true;
				c.notify_all();
			});
			ring();
		}
		std::unique_lock guard(m);
		c.wait(guard, [&] { return done; });
	}
	// Rings no longer than promised.
	void ring()
	{
		if (calls_ >= spi::armed_calls)
			return;
		const std::uint64_t one = 1;
		[[maybe_unused]] ssize_t n = ::write(fd_, &one, sizeof(one));
	}

	const int fd_;
	const std::thread::id maker_ = std::this_thread::get_id();
	unsigned calls_ = 0; // of progress() since arm()
	std::mutex lock_;
	std::deque<std::function<void()>> calls_to_make_;
};

class puppet_domain final : public spi::transport_domain
{
public:
	explicit puppet_domain(bool private_addresses) :
		traits_{{true, false, private_addresses}, true, private_addresses, 0}
	{
	}
	const domain_limits &limits() const override { return limits_; }
	const spi::traits &traits() const override { return traits_; }
	int check(const address &) const override { return 0; }
	int register_memory(std::span<const segment>, void **r) override
	{
		*r = nullptr;
		return registering;
	}
	void deregister_memory(void *) override {}
	std::unique_ptr<spi::transport_machine> make_machine(spi::sink &s) override
	{
		return std::make_unique<puppet>(s);
	}

private:
	const domain_limits limits_{4096, 1 << 20, 1 << 20, 8, 0, 100};
	const spi::traits traits_;
};

class puppet_transport final : public spi::transport
{
public:
	/// Its addresses are of this process, or of the host.
	explicit puppet_transport(const char *name, bool private_addresses) :
		name_(name),
		private_(private_addresses)
	{
	}
	const char *name() const override { return name_; }
	std::span<const spi::parameter> parameters() const override { return {}; }
	std::unique_ptr<spi::transport_domain> open(const spi::parameter_values &) const override
	{
		return std::make_unique<puppet_domain>(private_);
	}

private:
	const char *const name_;
	const bool private_;
};

inline void add_puppet_transport()
{
	static const puppet_transport the("puppet", true), of_the_host("host puppet", false);
	for (const puppet_transport *t : {&the, &of_the_host})
		if (!spi::find_transport(t->name()))
			spi::add_transport(*t);
}

} // namespace puppets
