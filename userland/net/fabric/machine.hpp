// SPDX-License-Identifier: MIT
// machine.hpp - a transfer machine on libfabric.
//
// Small messages are sent unasked into receive buffers that are posted once for all peers, and are
// copied from there: that costs less than asking for a place. Every sender has a window of
// unconsumed messages, so a receiver without buffers holds a bounded number, and messages about
// other operations never wait behind them. Larger messages and bulk data are first negotiated, and
// then written by RMA to their place, or read from it over shm (wire.hpp). The owner of the memory
// checks the request first, so a stale descriptor touches no memory.
//
// Failures are reported when the memory is quiet: the link is closed first, then its completions
// are read, and then its works end. settle() does this at the end of every call, never within the
// handling of a completion.
//
//   machine.cpp          life, progress, cancelling
//   machine_links.cpp    links, and how they end
// idle links
//   machine_message.cpp  small messages, receive buffers, the window
//   machine_bulk.cpp     what is written by RMA, or read over shm
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <variant>
#include <vector>

#include "../roster.hpp"
#include "port.hpp"
#include "token_index.hpp"
#include "userland/net/random.hpp"

namespace coop::net::fabric
{

struct options {
	std::size_t eager = 0;       ///< largest message without an offer, in bytes
	unsigned receives = 0;       ///< buffers posted
	unsigned window = 0;         ///< unconsumed messages of a peer
	std::size_t max_message = 0; ///< bytes
	std::size_t parked = 0;      ///< bytes of small messages waiting for a buffer
	std::chrono::milliseconds hold{};
	unsigned max_links = 0;
	bool answer = true;                       ///< peers that want to connect
	bool lend = true;                         ///< memory to peers that can read it
	bool sockets = false;                     ///< poll them one by one, for polling programs
	std::chrono::milliseconds idle{600000};   ///< unused links are closed after that
	std::chrono::milliseconds landing{60000}; ///< time for a message to fill its place
};

class machine final : public spi::transport_machine, private port::events
{
public:
	machine(spi::sink &, const provider &, const options &, local_keys &);
	~machine() override;

	int start(const address &own) override;
	void stop() override;
	int submit(spi::token, const spi::transfer &) override;
	void cancel(spi::token) override;
	int describe(spi::token, std::span<std::byte>) override { return 0; }
	void receivable() override;
	int peer_open(spi::peer_number, const address &) override;
	void peer_close(spi::peer_number) override;
	unsigned progress(unsigned budget) override;
	bool arm() override;
	int fd() const override { return port_->fd(); }
	time_point deadline() const override;
	void expire(time_point now) override;

private:
	struct peer {
		net::address address;
		fabric::link *link = nullptr; ///< to send on
		unsigned links = 0;           ///< number of all links
		std::uint32_t works = 0;      ///< number of works on those
	};
	/// A message of a peer for which there is no buffer.
	struct parked {
		fabric::link *link = nullptr;
		std::uint32_t work = 0;   ///< an offer; 0: the bytes are here
		std::uint64_t number = 0; ///< unique, unlike ids of works
		std::size_t length = 0;
		std::unique_ptr<std::byte[]> data;
		time_point until; ///< end of its wait
	};

	// machine.cpp
	work *make_work(link &, spi::token);
	work *find_work(std::uint32_t id, const link &);
	void detach(work &);
	void release(work &);
	void finish(work &, int status);
	int keys_of(const spi::memory &, local_keys::descriptors &);
	int registered(int status);
	void be_patient(work &);
	unsigned drain(unsigned budget);
	void drain_all();
	void complete(const fi_cq_data_entry &);
	void complete_error();
	void landed(std::uint64_t word);
	void completed(posted &, int status);
	void put_on(posted &, link &);
	void take_off(posted &);
	void forgotten(link &);
	void settle();
	void give_up();
	void finish_stop();
	void nudge();
	void tick_over(time_point now);
	void look_at_landings(time_point now);

	// machine_links.cpp
	bool mute() const override { return !options_.answer; }
	link *admit(const hello &) override;
	hello greeting(const link &) const override;
	bool accept(link &, const hello &) override;
	void linked(link &) override;
	void unlinked(link &, int status) override;
	void broken(int status) override;
	time_point now() override { return sink_.now(); }
	bool polled() const override { return options_.sockets && sink_.polled(); }
	link *make_link(const net::address &);
	link *link_to(spi::peer_number, int &status);
	link *link_of(std::uint64_t word);
	void bury(link &);
	void send_waiting(link &);
	int post(link &, posted &);
	void backlog(link &);
	void send(link &, const control &, std::uint64_t nth = 0);
	void answer(link &, const control &);
	void on_control(link &, const control &);
	void on_bye(link &, bool idle);
	void on_farewell(link &);
	void violation(link &l) { unlinked(l, -EPROTO); }

	// machine_idle.cpp
	void watch(link &);
	void unwatch(link &);
	void look(link &);
	void look_at_links(time_point now);
	void make_room();
	void part(link &);
	void take_leave(link &);
	void take_leaves();

	// machine_message.cpp
	int start_receiving();
	int post_receive(bounce &);
	void post_receives();
	void give_back(bounce &);
	void arrived(bounce &, std::size_t length, std::uint64_t word);
	bool audible(link &);
	void heard(link &, const bounce &, std::size_t length, std::uint64_t word);
	void take(link &, const std::byte *, std::size_t length);
	void park(link &, work *, const std::byte *, std::size_t length);
	work *offer_of(const parked &);
	void leave_greediest();
	void drop_parked(time_point now);
	void drop_parked_of(link &);
	static std::size_t bytes_of(const parked &);
	void keep(link &, std::size_t bytes);
	parked next_parked();
	void unparked(const parked &);
	void consumed(link &);
	int send_message(spi::token, const spi::transfer &);
	int post_message(work &);
	int post_copy(link &, bounce &);
	bounce *make_copy(std::size_t length);
	void free_copy(bounce &);

	// machine_bulk.cpp
	int begin_bulk(spi::token, const spi::transfer &);
	void begin(work &);
	void on_offer(link &, const control &);
	void on_put(link &, const control &);
	void on_get(link &, const control &);
	void on_grant(link &, const control &);
	void on_landed(link &, std::uint32_t id, std::uint64_t length);
	void on_done(link &, const control &);
	void on_cancel(link &, const control &);
	int passive(link &, const control &, queue_type, const spi::transfer *&);
	void refuse(link &, std::uint32_t peer_id, int status);
	void grant(work &);
	int expose(work &, control &);
	// Stores the peer's memory regions, from index `first` on. False: they are too small.
	bool take_regions(work &, const control &, std::size_t first = 0);
	bool lends() const { return options_.lend && port_->lends(); }
	bool reads(const link &l) const { return options_.lend && port_->reads(l); }
	void lend(work &, control &);
	bool borrow(work &, const control &);
	void on_lend(link &, const control &);
	void read_lent(work &);
	int copy_lent(work &);
	int write_on(work &);
	void write_or_queue(work &);
	void wrote(work &);
	void drop_landing(work &);

	spi::sink &sink_;
	const provider &provider_;
	local_keys &keys_;
	const options options_;
	const unsigned looks_; ///< further reads of the queue after an empty one
	const std::size_t inject_, pieces_, buffer_size_;
	const bool wide_, ordered_;
	random_source random_;
	net::address own_;

	// libfabric may use all these until port_ is closed, so port_ is declared last; regions
	// must be closed before its domain: see ~machine().
	std::unique_ptr<std::byte[]> receive_memory_;
	handle<fid_mr> receive_region_;
	std::deque<bounce> receives_;
	std::vector<bounce *> unposted_;
	std::deque<bounce> copies_;
	std::vector<bounce *> free_copies_, free_small_;
	std::deque<work> works_; ///< index: the slot in the id, less one
	std::vector<work *> free_works_;
	token_index index_;
	std::vector<std::unique_ptr<link>> links_;
	std::vector<std::uint32_t> free_links_;
	std::vector<peer> peers_;
	shared_line<link, parked> parked_;
	std::size_t parked_bytes_ = 0;                   ///< memory used by parked_
	std::set<std::pair<std::size_t, link *>> greed_; ///< the same by link
	std::uint64_t parkings_ = 0;
	std::vector<std::pair<time_point, std::uint32_t>> patience_;
	std::vector<link *> dying_;
	roster<link *> backlog_, leaving_;
	roster<link *> posting_;                            ///< links with completions to come
	roster<work *> landing_;                            ///< messages that peers may write
	link *first_link_ = nullptr, *last_link_ = nullptr; ///< to be looked at, in order
	shared_line<work, std::monostate> unnamed_;         ///< writes that may fail without a name
	unsigned to_poll_ = 0; ///< calls of progress() until the port is polled
	unsigned live_links_ = 0;
	bool settling_ = false, stopping_ = false, over_ = false;
	int broken_ = 0; ///< reason of the end
	time_point stop_by_ = never;
	time_point landings_at_ = never; ///< next look at landing messages
	time_point tick_ = never;        ///< next poll of a provider that does not wake us
	unsigned out_ = 0;               ///< completions of sends and writes to come
	std::uint64_t strays_ = 0;       ///< words without an owner, messages too long
	std::uint64_t crowded_ = 0;      ///< works refused because the peer's share was used up
	std::unique_ptr<port> port_;
};

} // namespace coop::net::fabric
