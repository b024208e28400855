// SPDX-License-Identifier: MIT
// client.hpp - a connection to a server, and one measurement at a time over it.
//
// A measurement is a task: the client asks the server for its figures, runs the task, and asks the
// server again. Everything except the first question happens in handlers, so tasks need no lock, on
// whichever thread events arrive. A question that fails may end on another thread: that only leaves
// its status to the waiting one.
//
// While nothing arrives, the waiting thread asks whether the server is still there: a message sent
// successfully does not prove it, and the call ends when the server does. It sees by the answer
// whether another server has taken the place of the first. Before the first answer it knocks: who
// answers messages for some time, but no call, is a server of a version without calls.
#pragma once

#include "outbox.hpp"
#include "questions.hpp"
#include "station.hpp"

namespace coop::net_tools
{

class client;

class task
{
public:
	virtual ~task() = default;

	double seconds() const { return seconds_; }
	double client_cpu_us() const { return client_cpu_us_; }
	double server_cpu_us() const { return server_cpu_us_; }
	const figures &before() const { return before_; }
	const figures &after() const { return after_; }

protected:
	/// Starts the task; client::finish() or client::fail() ends it.
	virtual void go(client &) = 0;
	virtual void message(client &, const head &, std::span<const std::byte>) {}
	/// A message of the task has been sent, and there is a free slot.
	virtual void sent(client &) {}
	/// The answer to a last message counts in the time: it shows that everything has arrived.
	/// Then nothing of the task may be under way when it finishes.
	virtual bool timed_by_server() const { return false; }

private:
	friend class client;

	figures before_{}, after_{};
	std::uint64_t cpu_before_ = 0;
	net::time_point began_{};
	double seconds_ = 0, client_cpu_us_ = 0, server_cpu_us_ = 0;
};

class client final : net::buffer_handler, outbox::owner
{
public:
	/// `slots` messages under way at a time.
	client(station &, unsigned slots);
	~client();

	/// Starts at the address that routes to the server, and asks for its limits.
	/// @param patience limit without any sign of life.
	trouble connect(const net::address &server, std::chrono::milliseconds patience);
	/// Runs the task to its end.
	trouble run(task &);

	/// @name For tasks, from handlers
	/// @{
	outbox::slot *take() { return outbox_.take(); }
	/// Writes the head and sends; a failure ends the task.
	void send(outbox::slot &, command, std::uint32_t number, std::size_t length);
	void finish();
	void fail(int status);
	void step() { goal_.step(); }
	/// @}

	station &at() { return station_; }
	/// The goal that ends a task, and any wait for it.
	goal &over() { return goal_; }
	net::endpoint *server() const { return server_.get(); }
	const std::string &server_text() const { return text_; }
	/// Limits of both sides, from connect() on; bytes.
	std::size_t max_message() const;
	std::size_t max_bulk() const;
	const figures &takes() const { return takes_; }
	/// The run number in the heads of its messages.
	std::uint16_t run_number() const { return run_; }

private:
	enum class phase : std::uint8_t { idle, asked, running, draining, asked_again };

	/// What the peer is, if no server of this version. Positive, and so no status: the
	/// transport may end an operation with any errno value.
	enum stranger : int { older = 1, other };

	/// An `echo` beside the tasks, which counts as no step: the waiting thread sends it, beside
	/// the handlers.
	class knock final : net::buffer_handler
	{
	public:
		static constexpr std::uint32_t number = 0; ///< unused by tasks

		explicit knock(client &);
		void send();

	private:
		void on_buffer(const net::buffer_event &) override { out_ = false; }

		client &client_;
		memory bytes_;
		net::buffer buffer_;
		std::atomic<bool> out_{false};
	};

	void on_buffer(const net::buffer_event &) override;
	void sent(int status) override;
	void drain();
	void drained();
	void ask();
	int call(net::rpc::completion, net::time_point deadline);
	/// What the server told. @return 0, -errno, or what it is instead.
	int told(const net::call_result &, figures &out);
	void answered(const figures &);
	void knocked();
	void quiet();
	/// The server has gone, or is none: -errno, or what it is. On any thread.
	void lose(int why);

	station &station_;
	std::chrono::milliseconds patience_{};
	net::endpoint_ptr server_;
	std::string text_;
	figures takes_{};
	bool met_ = false;               ///< connect() has succeeded
	std::uint64_t instance_ = 0;     ///< the server's, or 0; for handlers
	bool calls_ = false;             ///< it has sent a message of calls; for handlers
	unsigned knocks_ = 0;            ///< that it answered; for handlers
	net::time_point asked_{};        ///< when connect() asked
	std::uint32_t drain_ = 1u << 31; ///< number of the last `echo`; tasks use lower ones
	net::address own_;
	const std::uint16_t run_;
	goal goal_;
	task *task_ = nullptr;
	phase phase_ = phase::idle;
	int status_ = 0;
	std::atomic<int> gone_{0}; ///< the argument of lose()
	std::atomic<bool> inquiring_{false};
	outbox outbox_;
	knock knock_{*this};
	net::rpc rpc_;
};

} // namespace coop::net_tools
