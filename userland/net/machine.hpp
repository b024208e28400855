// SPDX-License-Identifier: MIT
// machine.hpp - a transfer machine: its life, its lock, and the calls between its parts.
//
// One lock guards the machine and all of its parts; a `hold` takes it for a moment at a time. Its
// owner calls the transport, which reports into lists. When the hold ends, settle() does the
// remaining work: it fills the receive queue, closes unused peers, continues stopping, and wakes
// the background thread if that sleeps and has something to do. Handlers are called without the
// lock, from a batch taken under it.
//
//   station        what the parts share: state, transport, time, notes for settle()
//   peers          end points while they are in use
//   delivery       events, and which of them are in handlers
//   operations     slots, queues, deadlines, statistics
//   receive_queue  where messages go, and buffers from the pool
//   sleeper        the sleep of the background thread
//
// Each knows those above it only. The machine owns them, the transport's address, the thread, and
// the steps of starting and stopping.
//
//   machine.cpp   life and the calls of programs and transports
//   progress.cpp  which thread calls the transport, and which calls the handlers
#pragma once

#include <cerrno>
#include <condition_variable>
#include <thread>

#include "claim.hpp"
#include "operations.hpp"
#include "receive_queue.hpp"
#include "sleeper.hpp"
#include "thread.hpp"

namespace coop::net::core
{

class machine final : public spi::sink, public std::enable_shared_from_this<machine>
{
public:
	machine(transfer_machine &, std::shared_ptr<domain_state>, tm_handler *);

	// Described in transfer_machine, which is a friend and does the rest of its calls itself.
	int start(std::string_view address);
	int stop(bool abort);
	int fini();
	/// For the destructor of a transfer_machine: stops if necessary, then fini().
	void end();
	int wait(tm_state wanted, time_point deadline);
	tm_state state() const { return station_.state.load(std::memory_order_acquire); }
	int add(net::buffer &, const operation &);
	bool del(net::buffer &);
	std::uint32_t receive_deficit() const { return receive_.deficit(); }
	std::size_t deliver_all();

	/// Fills the receive queue from the pool; called by the domain's thread.
	void provision();
	/// The program drops its last reference.
	void put_last(core::peer &);

	// spi::sink: called by the transport, under the lock.
	void started() override;
	void failed(int status) override;
	void stopped() override;
	void completed(spi::token, int status, std::size_t length) override;
	using spi::sink::find;
	const spi::transfer *find(spi::token) override;
	spi::token use(spi::token t, std::size_t offset, std::size_t length,
		       spi::peer_number by) override
	{
		return operations_.use(t, offset, length, by);
	}
	void given_up(spi::token t) override { operations_.given_up(t); }
	int place(std::size_t length, spi::landing &out) override
	{
		return receive_.place(length, out);
	}
	void received(const spi::landing &l, spi::peer_number from) override
	{
		receive_.received(l, from);
	}
	int receive(const void *bytes, std::size_t length, spi::peer_number from) override
	{
		return receive_.receive(bytes, length, from);
	}
	void abandon(const spi::landing &l) override { receive_.abandon(l); }
	bool received_in(spi::token t, std::size_t offset, std::size_t length,
			 spi::peer_number from) override
	{
		return receive_.received_in(t, offset, length, from);
	}
	spi::peer_number peer(const net::address &a) override { return peers_.hold(a); }
	void release(spi::peer_number n) override { peers_.release(n); }
	time_point now() override { return station_.now(); }
	bool polled() const override { return delivery_.sync; }

private:
	friend class net::transfer_machine;

	/// The lock, from construction to destruction.
	class hold;

	/// Makes a setting, which only an initialized machine takes.
	template <class function> int set(function);
	void set_state(tm_state s)
	{
		station_.state.store(s, std::memory_order_release);
		changed_.notify_all();
	}

	// machine.cpp
	int claim_and_start(net::address);
	int fail_start(int status);
	void cancel(slot &, int reason);
	void cancel_all(int reason);
	void settle()
	{
		if (station_.over || station_.fill || station_.starved || peers_.unused() ||
		    state() == tm_state::stopping)
			settle_all();
	}
	void settle_all();
	bool advance_stop();
	void close_transport();

	// progress.cpp
	void run();
	bool turn();
	bool poll();
	time_point next_deadline();
	bool deadlines_due();
	bool sleeper_wanted();
	void deliver(batch &);

	transfer_machine &handle_;
	tm_handler *const handler_;

	adaptive_mutex lock_; // guards everything below that is not atomic
	std::condition_variable_any changed_;
	station station_;
	peers peers_;
	delivery delivery_;
	operations operations_;
	receive_queue receive_;
	sleeper sleeper_;

	// Settings.
	std::vector<unsigned> cpus_;
	std::chrono::nanoseconds spin_{0};

	// Start and stop.
	claim claim_;
	net::address address_;
	tm_state told_ = tm_state::initialized; // the last state event delivered
	bool abort_ = false;                    // cancel everything now
	bool swept_ = false;                    // everything has been told to end
	bool stop_called_ = false;              // the transport's stop()
	tm_state final_ = tm_state::stopped;
	int final_status_ = 0;

	// Progress.
	channel *notify_ = nullptr;
	ticks looked_ = 0;        // when deadlines were last looked at
	unsigned busy_turns_ = 0; // turns without such a look
	bool exit_ = false;
	std::thread thread_;
};

/// Takes the lock; at its end settles, releases the lock, and wakes the thread if necessary.
class machine::hold
{
public:
	explicit hold(machine &m) : m_(m)
	{
		m_.lock_.lock();
		m_.station_.begin_hold();
	}
	~hold();
	hold(const hold &) = delete;
	hold &operator=(const hold &) = delete;

private:
	machine &m_;
};

template <class function> int machine::set(function f)
{
	hold h(*this);
	return state() == tm_state::initialized ? f(*this) : -EBADFD;
}

} // namespace coop::net::core
