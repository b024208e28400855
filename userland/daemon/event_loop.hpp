// SPDX-License-Identifier: MIT
// event_loop.hpp - the daemon's threads: one waits for input, the others help it work.
//
// If a thread that has waited hands the waiting to another thread before it works, as
// io_context::run() on several threads does, each request pays a wake-up. Here one thread, the
// leader, waits and also runs the handlers; the others sleep. They are woken
//
//   - when more is ready: a handler is posted while the leader runs one, or the
//     leader twice found the next handler ready as soon as the last one ended;
//   - when the leader is stuck. A file-system call may block; a watcher looks at
//     the leader every 'patience' and lets another thread lead if the leader is
//     still in the same handler. For a while other threads then run requests of
//     the kind that blocked, see blocks().
//
// The watcher sleeps while the leader only waits, so an idle daemon causes no wake-ups. Make every
// handler of io() with wrap() or post(): the watcher does not see others.
#pragma once

#include <array>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace coop::daemon
{

class event_loop
{
public:
	static constexpr std::chrono::milliseconds usual_patience{4};
	static constexpr unsigned kinds_max = 64;
	// How many times blocks() is true for a kind that has blocked, before the leader tries it
	// again.
	static constexpr unsigned handed_over = 64;

	// patience: how long the leader may stay in one handler; the watcher notices within twice
	// this time.
	explicit event_loop(unsigned threads, std::chrono::milliseconds patience = usual_patience);
	~event_loop();
	event_loop(const event_loop &) = delete;
	event_loop &operator=(const event_loop &) = delete;

	void start();
	// From here on there are at least so many threads.
	void grow(unsigned threads);
	// Waits for running handlers; queued ones never run. Not from a handler.
	void stop();
	asio::io_context &io() { return io_; }

	template <class function> auto wrap(function f)
	{
		return [this, f = std::move(f)](auto &&...arguments) mutable {
			const handling now(*this);
			f(std::forward<decltype(arguments)>(arguments)...);
		};
	}
	// Another thread runs f if one is idle and the leader is busy.
	template <class function> void post(function f)
	{
		asio::post(io_, wrap(std::move(f)));
		if (is_busy())
			call();
	}

	// Sets the kind of work that the current handler is in. Kinds from kinds_max on count as
	// one.
	static void doing(unsigned kind);
	// The leader was stuck in work of this kind: another thread should run the next ones.
	bool blocks(unsigned kind);
	// Every thread sleeps until input arrives.
	bool rests() const { return unwatched_; }

private:
	struct seat {
		std::atomic<std::uint64_t> turns{0}; // odd: in a handler
		std::atomic<unsigned> kind{0};       // an index of blocked_
	};
	class handling
	{
	public:
		explicit handling(event_loop &);
		~handling();
		handling(const handling &) = delete;
		handling &operator=(const handling &) = delete;
	};

	void serve(seat &);
	void lead(seat &);
	void call();
	void watch();
	bool is_busy() const;

	static thread_local seat *here_;
	const std::chrono::milliseconds patience_;
	asio::io_context io_;
	asio::executor_work_guard<asio::io_context::executor_type> stays_;
	std::vector<std::unique_ptr<seat>> seats_;
	std::vector<std::thread> threads_;
	std::array<std::atomic<unsigned>, kinds_max>
		blocked_{}; // by kind, see handed_over; 0: no kind

	std::mutex mutex_; // guards the next two lines, and changes of the atomic ones
	unsigned calls_ = 0 /* helpers called and not yet there */, idle_ = 0;
	bool over_ = false;
	std::condition_variable wake_, watch_;
	std::atomic<seat *> leader_{nullptr};
	std::atomic<bool> unwatched_{false}; // the watcher sleeps
};

} // namespace coop::daemon
