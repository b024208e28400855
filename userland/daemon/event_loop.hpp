// SPDX-License-Identifier: MIT
// event_loop.hpp - the daemon's threads: who waits for input, and who works.
//
// A thread that waits and then hands the waiting to another before it works, as
// io_context::run() on several threads does, pays a wake-up for each request.
// Here one thread, the leader, waits and also runs what it finds; the others
// sleep. They are woken
//
//   - when more is ready: a handler is posted while the leader runs one, or the
//     leader has found the next one ready as soon as the last had ended, twice;
//   - when the leader is stuck. A file-system call may block; a watcher looks at
//     the leader every 'patience' and lets another one lead if it is still in the
//     same handler. What the handler was doing is then handed to other threads
//     for a while, see blocks().
//
// The watcher sleeps while the leader only waits, so an idle daemon stays idle.
// Every handler of io() is made by wrap() or post(): the watcher does not see others.
#pragma once

#include <array>
#include <asio.hpp>
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
	// So often blocks() says so of what has blocked, before it is tried again.
	static constexpr unsigned handed_over = 64;

	// patience: how long the leader may be in a handler; more is seen within twice this time.
	explicit event_loop(unsigned threads, std::chrono::milliseconds patience = usual_patience);
	~event_loop();
	event_loop(const event_loop &) = delete;
	event_loop &operator=(const event_loop &) = delete;

	void start();
	// Waits for the handlers that run; the others never do. Not from a handler.
	void stop();
	asio::io_context &io() { return io_; }

	template <class function> auto wrap(function f)
	{
		return [this, f = std::move(f)](auto &&...arguments) mutable {
			const handling now(*this);
			f(std::forward<decltype(arguments)>(arguments)...);
		};
	}
	// Another thread runs it if there is one and the leader is busy.
	template <class function> void post(function f)
	{
		asio::post(io_, wrap(std::move(f)));
		if (is_busy())
			call();
	}

	// What the handler that runs here goes on with. From kinds_max on all kinds are one.
	static void doing(unsigned kind);
	// The leader was stuck in one of this kind: better another thread runs the next ones.
	bool blocks(unsigned kind);
	// Every thread sleeps until something comes.
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
	std::array<std::atomic<unsigned>, kinds_max> blocked_{}; // 0: of no kind

	std::mutex mutex_; // the next two lines, and changes of the atomic ones
	unsigned calls_ = 0 /* helpers that are to come */, idle_ = 0;
	bool over_ = false;
	std::condition_variable wake_, watch_;
	std::atomic<seat *> leader_{nullptr};
	std::atomic<bool> unwatched_{false}; // the watcher sleeps
};

} // namespace coop::daemon
