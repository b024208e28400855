// SPDX-License-Identifier: MIT
// client.hpp - a connection to a server, and one measurement at a time over it.
//
// A measurement is a task: the client asks the server for its figures, runs the task, and asks the
// server again. Everything except the first question happens in handlers, so tasks need no lock, on
// whichever thread events arrive.
#pragma once

#include "outbox.hpp"
#include "station.hpp"
#include "wire.hpp"

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
	/// The last figures count in the time: they show that everything has arrived.
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
	enum class phase : std::uint8_t { idle, asked, running, asked_again };

	/// Asks whether the server is still there, while nothing arrives: a message sent
	/// successfully does not prove it. Question and answer count as no step and touch nothing
	/// that tasks use: the waiting thread sends it, beside the handlers.
	class inquiry final : net::buffer_handler
	{
	public:
		static constexpr std::uint32_t number = 0; ///< unused by ordinary questions

		explicit inquiry(client &);
		void ask();
		/// Its failure, once; 0 if none.
		int failure() { return status_.exchange(0); }

	private:
		void on_buffer(const net::buffer_event &) override;

		client &client_;
		memory bytes_;
		net::buffer buffer_;
		std::atomic<bool> out_{false};
		std::atomic<int> status_{0};
	};

	void on_buffer(const net::buffer_event &) override;
	void sent(unsigned tag, int status) override;
	void ask();

	station &station_;
	std::chrono::milliseconds patience_{};
	net::endpoint_ptr server_;
	std::string text_;
	figures takes_{};
	bool met_ = false; ///< the server has answered
	net::address own_;
	const std::uint16_t run_;
	goal goal_;
	task *task_ = nullptr;
	phase phase_ = phase::idle;
	std::uint32_t question_ = 0;
	bool unasked_ = false; ///< waits for a free slot
	int status_ = 0;
	outbox outbox_;
	inquiry inquiry_{*this};
};

} // namespace coop::net_tools
