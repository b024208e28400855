// SPDX-License-Identifier: MIT
// machine.hpp - a transfer machine of the transport `ntrdma`.
//
// It owns its links, and all queue pairs share a completion queue and a receive queue. A message of
// at most eager= bytes is a send, which the peer copies out of its receive at once, to the place
// that the core chooses or to a queue of messages that wait for one. Larger messages and bulk data
// are pulled by the side that owns the target (wire.hpp).
//
// An own operation is in one of these places:
//   peer::queue   not posted: there is no link yet, or no room
//   the ring      a small message; its bytes were copied, so its memory is quiet already
//   operations_   a peer has to end it
// A passive operation is in operations_ only while a peer uses it.
//
// Files: machine.cpp its life; links.cpp how links come up and end, tcp.cpp those by TCP; gives.cpp
// the giver's side; takes.cpp the taker's.
#pragma once

#include <array>
#include <limits>
#include <unordered_map>

#include "link.hpp"
#include "userland/net/lanes.hpp"
#include "wire.hpp"

namespace coop::net::nt
{

/// Bytes that a message costs while it waits, beside its own.
constexpr std::size_t held_costs = 128;

/// Bytes of one placement.
constexpr std::size_t placed_at_once = 1u << 20;

/// How machines reach each other.
enum class reach : std::uint8_t { windows, tcp, both };

struct options {
	std::size_t eager;              ///< largest message that is sent without an offer
	std::uint32_t receives;         ///< receives of a machine
	std::uint32_t max_links;        ///< links of a machine
	std::chrono::milliseconds hold; ///< time for which a message waits for a buffer
	std::size_t parked;             ///< bytes of all small messages that wait
	std::size_t max_message;
	std::chrono::milliseconds bound; ///< time for which a peer may be silent
	std::chrono::milliseconds idle;  ///< time without requests after which a link is set aside
	bool pull, answer;               ///< test_pull=, test_answer=
	nt::reach reach;
	tcp_key key; ///< zeros: none

	/// Bytes of a receive.
	std::size_t receive_bytes() const { return std::max(eager, ranged_most); }
};

class machine final : public spi::transport_machine, public rdma::watcher
{
public:
	machine(spi::sink &, const options &);
	~machine() override;

	int start(const address &own) override;
	void stop() override;
	int submit(spi::token, const spi::transfer &) override;
	void flush() override { ring_all(); }
	void cancel(spi::token) override;
	int describe(spi::token, std::span<std::byte>) override { return 0; }
	void receivable() override;
	int peer_open(spi::peer_number, const address &) override;
	void peer_close(spi::peer_number) override;
	unsigned progress(unsigned budget) override;
	bool arm() override;
	int fd() const override { return epoll_.get(); }
	time_point deadline() const override;
	void expire(time_point now) override;

	// rdma::watcher: links report their ends otherwise
	void completed(rdma::completion_queue &) override {}
	void happened(rdma::queue_pair &, rdma::event) override {}
	void few_receives(rdma::shared_receives &) override {}

private:
	/// First in, first out; takes no memory before its first use, because most peers of a
	/// machine may be idle.
	class token_queue
	{
	public:
		bool empty() const { return first_ == all_.size(); }
		std::size_t size() const { return all_.size() - first_; }
		spi::token front() const { return all_[first_]; }
		void push_back(spi::token t) { all_.push_back(t); }
		void pop_front()
		{
			if (++first_ == all_.size() || first_ == 1024) {
				all_.erase(all_.begin(),
					   all_.begin() + static_cast<std::ptrdiff_t>(first_));
				first_ = 0;
			}
		}

	private:
		std::vector<spi::token> all_;
		std::size_t first_ = 0;
	};
	/// What a peer's number stands for.
	struct peer {
		address at;
		link *sends = nullptr;     ///< the link for requests to it; may be coming up
		std::vector<link *> links; ///< all that are up
		/// Requests that wait for it; some may have ended.
		lanes<token_queue> queue;
		unsigned holds = 0; ///< links and held messages
	};
	enum class role : std::uint8_t { offer, put, get, lent, filled };
	/// An own operation that a peer has to end, or uses.
	struct operation {
		nt::machine::role role;
		link *of;                 ///< the peer's
		board::loan loan;         ///< offer, put, lent
		std::uint64_t intake;     ///< get, filled
		std::size_t length;       ///< lent: of the request
		std::uint64_t reader = 0; ///< lent: the peer's number
		bool unasked = false; ///< offer: a message that went out without being asked for
	};
	/// Bytes that this side takes.
	struct intake {
		std::uint64_t id;
		link *of;
		spi::token own;       ///< get, put: the own operation; 0: a message
		spi::landing landing; ///< a message's place
		std::uint64_t giver;  ///< the peer's token
		std::size_t length, moved;
		std::vector<rdma::wire_segment> from; ///< empty: the bytes come in `data`
		std::size_t segment, into;            ///< the position in it
		std::uint32_t word;
		std::uint64_t value;
	};
	/// A message that waits for a buffer.
	struct held {
		spi::peer_number from;
		std::vector<std::byte> bytes; ///< of a small one; else of the offer
		bool offer;
		std::uint64_t serial; ///< offer: of its link
		time_point until;
	};

	// machine.cpp
	unsigned reap(unsigned budget);
	unsigned serve_starved();
	void handle(const rdma::completion &);
	void repost(std::uint64_t index);
	void disarm();
	bool finish_stop(time_point now);
	void close_all();

	// links.cpp
	void dial(spi::peer_number);
	void call_peer(link &);
	link &make_link(nt::stage);
	void accept_callers();
	void look_at_sockets();
	void hear(link &);
	bool hears(link &);
	int meet(link &, const address &from);
	int answer_hello(link &, const greeting &, std::vector<rdma::unique_fd> &);
	int take_welcome(link &, const greeting &, std::vector<rdma::unique_fd> &);
	greeting make_greeting(greeting_kind, const address &to) const;
	void bring_up(link &, unsigned side);
	void make_pair(link &);
	void join(link &, rdma::port &);
	rdma::unique_fd make_bell(const link &);
	/// Takes links without requests out of the rounds: they ring if something comes.
	void set_idle_aside(time_point now);
	bool is_idle(link &, time_point now);
	bool set_aside(link &);
	void bring_back(link &);
	bool must_wait(int error);
	void leave_waiting();
	void tend(time_point now);
	void tend(link &, time_point now);
	/// It ends before the current call returns, with this status for its operations.
	void end_link(link &, int status);
	void settle_ends();
	void finish_link(link &);
	void watch(int fd, std::uint64_t what);
	void unwatch(const rdma::unique_fd &);
	void hold(spi::peer_number);
	void drop(spi::peer_number);

	// tcp.cpp
	class far_places;
	bool is_far(const address &) const;
	void call_far(link &);
	void accept_far();
	void hear_far(link &);
	int take_far_greeting(link &, const tcp_greeting &);
	int answer_far_hello(link &, const tcp_greeting &);
	int send_far(link &, greeting_kind, const address &to, int status = 0);
	void bring_up_far(link &);
	void note_room(link &);
	unsigned look_at_streams();
	unsigned flush_streams();
	void note_pieces(const spi::memory &, std::size_t offset, std::size_t length);
	bool goes_unasked(link &, const spi::transfer &);
	bool place_message(link &, spi::token, const spi::transfer &);
	std::uint64_t take_message(link &, std::uint64_t giver, std::uint32_t length);
	bool place_next(link &, const stream &, const spi::transfer &, std::size_t length);

	// gives.cpp
	bool post(link &, kind, spi::token, std::span<const std::byte> front,
		  const spi::memory *memory = nullptr, std::size_t offset = 0,
		  std::size_t length = 0);
	bool post_operation(link &, spi::token, const spi::transfer &);
	bool post_offer(link &, spi::token, const spi::transfer &);
	bool post_get(link &, spi::token, const spi::transfer &);
	/// An answer, now or as soon as there is room.
	void owe(link &, kind, const head &, std::span<const rdma::wire_segment> = {});
	void disown();
	void block(link &);
	bool drain(link &);
	void ring(link &);
	void ring_all();
	std::size_t segments_of(const spi::memory &, std::size_t offset, std::size_t length);
	operation *find(spi::token, const link &);
	void forget(spi::token);
	void end_operation(spi::token, int status, std::size_t length);
	void serve_get(link &, const head &, spi::token);
	/// The peer does not want it (any more).
	void give_up(spi::token);
	void serve_want(link &, const head &);
	void serve_done(link &, const head &);

	// takes.cpp
	void take(link &, kind, std::span<const std::byte> bytes);
	void arrive(spi::peer_number, std::span<const std::byte> message);
	void take_offer(link &, std::span<const std::byte> text);
	int begin_message(link &, const head &, intake *&out);
	int place_offer(link &, std::span<const std::byte> text);
	void keep(spi::peer_number, std::span<const std::byte>, const link *offered_by);
	void make_room(std::size_t bytes);
	void let_go(const held &);
	int admit(link &, const head &, queue_type, const std::uint64_t *offset, spi::token &);
	void take_put(link &, const head &, spi::token, std::span<const std::byte> rest);
	void take_request(link &, bool put, const head &, const std::uint64_t *offset,
			  std::span<const std::byte> rest);
	void take_lend(link &, const head &, std::span<const std::byte> rest);
	void unwanted(link &, const head &);
	void take_data(link &, const head &, std::span<const std::byte> rest);
	void take_refuse(link &, const head &);
	intake &begin(link &, spi::token own, std::uint64_t giver, std::size_t length);
	bool read_segments(intake &, const head &, std::span<const std::byte> rest);
	bool target(const intake &, spi::memory &, std::size_t &offset);
	void pull(intake &);
	void finish_intake(intake &);
	/// Ends it without its bytes. `told`: the peer learns of it.
	void drop_intake(std::uint64_t id, int status, bool told);
	void replace(std::uint64_t id);
	void offer_room();

	spi::sink &sink_;
	const options options_;
	address own_;
	std::uint64_t probe_ = 0;

	rdma::region_table regions_;
	rdma::completion_queue queue_;
	rdma::shared_receives receives_;
	std::unique_ptr<std::byte[]> receive_memory_;
	std::uint32_t all_memory_ = 0; ///< the key of own requests' segments
	std::vector<std::byte> scratch_;
	std::vector<rdma::wire_segment> segments_;
	std::vector<rdma::piece> pieces_;

	rdma::unique_fd listener_, far_listener_, bell_, epoll_;
	std::unique_ptr<nt::board> board_;
	std::vector<std::unique_ptr<link>> links_; ///< by index; some are null
	std::vector<std::uint32_t> free_links_;
	std::vector<link *> awake_;    ///< all but those set aside
	std::size_t next_starved_ = 0; ///< the first in the next serve_starved()
	std::vector<link *> blocked_, unrung_;
	std::vector<link *> far_; ///< links by TCP that are up
	unsigned far_news_ = 0;   ///< of these, those that said something in this turn
	std::vector<peer> peers_; ///< by number
	std::unordered_map<spi::token, operation> operations_;
	std::unordered_map<std::uint64_t, intake> intakes_;
	std::deque<std::uint64_t> pulls_; ///< intakes to go on with; some may have ended
	std::deque<held> held_;
	std::size_t held_bytes_ = 0;
	std::size_t owed_bytes_ = 0;    ///< of all links
	std::uint64_t next_number_ = 1; ///< of intakes and links

	bool armed_ = false, rests_ = false; ///< rests_: while armed, nothing waits for a peer
	bool ends_ = false;                  ///< a link ends
	bool starved_ = false;               ///< all receives were in use, and some are back
	bool room_ = false;                  ///< a place was returned; held_ was not asked since
	bool stopping_ = false;
	bool deaf_ = false; ///< the listener is out of the set, because of a lack of descriptors
	time_point tick_{}, tended_{}, stop_until_{}, active_{}; ///< active_: the last submit()
	time_point aside_at_{};                                  ///< the last look for idle links
};

} // namespace coop::net::nt
