// SPDX-License-Identifier: MIT
// machine.hpp - the implementation of a transfer machine.
//
// One lock guards everything; a `hold` takes it for a moment at a time. Its owner calls the
// transport, which reports into lists. When the hold ends, settle() does the remaining work: it
// fills the receive queue, closes unused peers, continues stopping, and wakes the background thread
// if that sleeps and has something to do. Handlers are called without the lock, from a batch taken
// under it.
//
//   machine.cpp           life: start, stop, fini, states
//   machine_peers.cpp     end points
//   machine_queue.cpp     operations: add, cancel, end; deadlines; statistics
//   machine_receive.cpp   the receive queue: places, messages, provisioning from the pool
//   machine_progress.cpp  the background thread, polling, delivery
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "claim.hpp"
#include "coop/net/transfer_machine.hpp"
#include "deadlines.hpp"
#include "domain_state.hpp"
#include "peers.hpp"
#include "pool_state.hpp"
#include "random.hpp"
#include "slots.hpp"
#include "thread.hpp"
#include "ticks.hpp"

namespace coop::net::core
{

class machine final : public spi::sink, public std::enable_shared_from_this<machine>
{
public:
	machine(transfer_machine &, std::shared_ptr<domain_state>, tm_handler *);
	~machine();

	// Described in transfer_machine.
	int confine(std::span<const unsigned> cpus);
	int deliver_synchronously();
	int poll_before_block(std::chrono::microseconds);
	int attach(pool_state &, buffer_handler &, std::size_t min_size, std::uint32_t max_msgs);
	int set_pool_length(std::uint32_t);
	int set_colour(std::uint32_t);
	int start(std::string_view address);
	int stop(bool abort);
	int fini();
	/// For the destructor of a transfer_machine: stops if necessary, then fini().
	void end();
	int wait(tm_state wanted, time_point deadline);
	tm_state state() const { return state_.load(std::memory_order_acquire); }
	net::address address();
	std::uint32_t colour() const { return colour_; }
	int make_endpoint(const net::address &, endpoint_ptr &out);
	std::size_t endpoints();
	int add(net::buffer &, const operation &);
	bool del(net::buffer &);
	std::size_t queued(queue_type);
	std::uint32_t receive_deficit() const { return deficit_.load(); }
	bool pending();
	std::size_t deliver_all();
	int notify(channel &);
	queue_stats stats(queue_type, bool reset);

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
	int place(std::size_t length, spi::landing &out) override;
	void received(const spi::landing &, spi::peer_number from) override;
	int receive(const void *, std::size_t length, spi::peer_number from) override;
	void abandon(const spi::landing &) override;
	bool received_in(spi::token, std::size_t offset, std::size_t length,
			 spi::peer_number from) override;
	spi::peer_number peer(const net::address &) override;
	void release(spi::peer_number) override;
	time_point now() override;
	bool polled() const override { return sync_; }

private:
	/// The lock, from construction to destruction.
	class hold;

	/// An event to be delivered: of a buffer, or of a state, which is queued among them.
	struct event {
		buffer_event what;
		buffer_state *buffer; // null: a state event
		buffer_handler *handler;
		core::peer *sender; // counted in uses until it is delivered
		tm_state state;
	};
	using batch = std::vector<event>;

	bool operable() const { return state() == tm_state::started; }
	void set_state(tm_state s)
	{
		state_.store(s, std::memory_order_release);
		changed_.notify_all();
	}
	bool on_its_stack() const; // the caller is a callback of this machine
	bool more_follows() const; // it is, and other callbacks of the batch follow

	// machine.cpp
	int claim_and_start(net::address);
	int fail_start(int status);
	void settle()
	{
		if (transport_over_ || fill_wanted_ || starved_ || !reaping_.empty() ||
		    state() == tm_state::stopping)
			settle_all();
	}
	void settle_all();
	bool advance_stop();
	void close_transport();

	// machine_peers.cpp
	int open_peer(const net::address &, core::peer *&out);
	void use(core::peer &p)
	{
		p.uses++;
		want(p);
	}
	void unuse(core::peer &);
	void want(core::peer &p)
	{
		if (!std::exchange(p.wanted, true))
			wanted_peers_++;
	}
	void unwant(core::peer &p)
	{
		if (std::exchange(p.wanted, false))
			wanted_peers_--;
	}
	void reap_later(core::peer &);
	void reap();

	// machine_queue.cpp
	int add_locked(buffer_state &, const operation &, bool pooled);
	int prepare(slot &, const buffer_state &, const operation &);
	int prepare_active(slot &, const buffer_state &, const operation &);
	void write_descriptor(slot &);
	std::uint64_t new_key();
	void cancel(slot &, int reason);
	void cancel_all(int reason);
	void finish(slot &, int status, std::size_t length);
	void forget(slot &);
	slot_list &queue(queue_type q) { return queues_[static_cast<std::size_t>(q)]; }
	queue_stats &counters(queue_type q) { return stats_[static_cast<std::size_t>(q)]; }
	void expire_operations();

	// machine_receive.cpp
	bool has_room(const slot &) const;
	int room_for(std::size_t length, slot *&out);
	void give_out(slot &, std::size_t length);
	void open(slot &);
	void shut(slot &);
	void message(slot &, std::size_t offset, std::size_t length, spi::peer_number, bool last);
	void cancel_receive(slot &);
	void fill_from_pool();
	void set_deficit(std::uint32_t);
	int add_pooled(buffer_state &);

	// machine_progress.cpp
	void run();
	bool turn();
	time_point next_deadline();
	bool deadlines_due();
	void count_poll()
	{
		polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
	}
	ticks stamp() { return ticks_ ? ticks_ : ticks_ = read_ticks(); }
	// Even an operation that began and ended in one turn took some time.
	ticks since(ticks begun) { return (stamp() != begun ? stamp() : read_ticks()) - begun; }
	// A polling program first gets its messages; its next call, whichever it is, reads the
	// processor's counter.
	void time_messages()
	{
		if (untimed_ == 0)
			return;
		counters(queue_type::msg_recv).total_time += untimed_ * stamp() - untimed_begun_;
		untimed_ = untimed_begun_ = 0;
	}
	bool thread_wanted() { return sleeping_ != sleeping::no && !kicked_ && sleeper_wanted(); }
	bool sleeper_wanted();
	void kick();
	void take(batch &, batch &from);
	void take_apart(batch &, batch &from);
	bool deliverable() const;
	void deliver(batch &);
	void flush();
	void sleep(std::uint64_t &polls_seen);
	void push_state(tm_state, int status);

	transfer_machine &handle_;
	const std::shared_ptr<domain_state> domain_;
	tm_handler *const handler_;
	const bool places_;

	adaptive_mutex lock_; // guards everything below that is not atomic
	std::condition_variable_any changed_;
	std::atomic<tm_state> state_{tm_state::initialized};
	tm_state told_ = tm_state::initialized; // the last state event delivered
	bool sync_ = false;
	std::vector<unsigned> cpus_;
	std::chrono::nanoseconds spin_{0};

	// Start and stop.
	std::unique_ptr<spi::transport_machine> transport_;
	claim claim_;
	net::address address_;
	bool abort_ = false;          // cancel everything now
	bool swept_ = false;          // everything has been told to end
	bool stop_called_ = false;    // the transport's stop()
	bool transport_over_ = false; // stopped or failed: close it when the hold ends
	tm_state final_ = tm_state::stopped;
	int final_status_ = 0;

	// Operations.
	random_source random_; // keys of bulk operations
	slot_table slots_;
	std::array<slot_list, queue_types> queues_;
	deadline_heap deadlines_;
	std::array<queue_stats, queue_types> stats_{}; // total_time in ticks
	std::uint64_t late_ = 0; // completions of operations that had already ended

	// The receive queue.
	pool_state *pool_ = nullptr;
	buffer_handler *pool_handler_ = nullptr;
	std::size_t pool_min_size_ = 0;
	std::uint32_t pool_max_msgs_ = 0, pool_length_ = 2;
	std::uint32_t colour_ = 0;
	std::atomic<std::uint32_t> deficit_{0};
	pool_state::short_list::iterator short_at_; // valid while there is a deficit
	slot_list open_;                            // receive operations that take messages
	bool starved_ = false;                      // place() found nothing
	bool fill_wanted_ = false;                  // the receive queue may be short
	bool fill_blocked_ = false;                 // it is short, until an operation ends
	bool pool_below_ = false,
	     pool_first_ = false; // notifications due once the lock is released

	peer_table peers_;
	std::size_t wanted_peers_ = 0;
	std::vector<core::peer *> reaping_;

	// Progress and delivery.
	batch events_;            // buffer events; with automatic delivery all events
	batch state_events_;      // with synchronous delivery
	batch spare_;             // capacity for the next batch
	unsigned delivering_ = 0; // number of batches in handlers
	bool held_back_ = false;  // the transport may hold messages back for more to come
	channel *notify_ = nullptr;
	/// Calls of pending() and deliver_all(); changes under the lock.
	std::atomic<std::uint64_t> polls_{0};
	time_point now_{};
	bool now_known_ = false;
	ticks ticks_ = 0;         // of this hold; 0: not read
	ticks untimed_ = 0;       // messages not yet counted in total_time,
	ticks untimed_begun_ = 0; // and the sum of their buffers' add times
	ticks looked_ = 0;        // when deadlines were last looked at
	unsigned busy_turns_ = 0; // turns without such a look
	enum class sleeping : std::uint8_t { no, leased, armed } sleeping_ = sleeping::no;
	std::uint16_t polled_ = 0; // calls of progress() since arm()
	time_point sleep_until_{};
	int sleep_fd_ = -1;
	bool kicked_ = false, exit_ = false;
	const int kick_fd_;
	std::thread thread_;
};

/// Takes the lock; at its end settles, releases the lock, and wakes the thread if necessary.
class machine::hold
{
public:
	explicit hold(machine &m) : m_(m)
	{
		m_.lock_.lock();
		m_.now_known_ = false;
		m_.ticks_ = 0;
	}
	~hold();
	hold(const hold &) = delete;
	hold &operator=(const hold &) = delete;

private:
	machine &m_;
};

} // namespace coop::net::core
