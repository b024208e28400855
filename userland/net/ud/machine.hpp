// SPDX-License-Identifier: MIT
// machine.hpp - a transfer machine of the ud transport.
//
// It has an endpoint of userland/ud to itself, so that machines run in parallel without a
// lock between them; on soft RoCE they share an IP by UDP ports of their own. Two engines run
// on it: rpc/chan for messages, and rpc/fetch for bulk data. Their datagrams
// meet on the command queue pair, told apart by their first four bytes.
//
//   machine.cpp          life, progress, time
//   machine_peers.cpp    peers: their addresses and sessions
//   machine_message.cpp  messages: sends, landings, loopback
//   machine_bulk.cpp     bulk: who may read what, and the messages about it
//   machine_readers.cpp  bulk: whether those who have begun to read still do
//
// A GET is a request of rpc/fetch; when all is there a DONE tells the passive side. For a PUT
// the passive side is asked by message (PUT) to GET, and answers DONE: so data always falls
// into receives that were posted for it. PUT and DONE are messages of rpc/chan, sent again
// over a new session if the old one ended under them. A reader that has fallen silent without a
// DONE is asked (ASK): it may be dead, or its DONE may be lost.
#pragma once

#include <cerrno>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "bulk_message.hpp"
#include "channels.hpp"
#include "identity.hpp"
#include "options.hpp"
#include "reader.hpp"
#include "resolver.hpp"
#include "sessions.hpp"
#include "source.hpp"
#include "token_map.hpp"
#include "userland/net/registrations.hpp"
#include "userland/net/roster.hpp"

namespace coop::net::ud
{

class machine final : public spi::transport_machine, private source::owner
{
public:
	/// What devices call the memory of buffers.
	using memory_keys = registrations<std::unique_ptr<coop::ud::lent_memory>, std::uint32_t>;

	machine(const options &, memory_keys &, spi::sink &);
	~machine() override;

	int start(const address &own) override;
	void stop() override;
	int submit(spi::token, const spi::transfer &) override;
	void flush() override;
	void cancel(spi::token) override;
	int describe(spi::token, std::span<std::byte>) override { return 0; }
	void receivable() override;
	int peer_open(spi::peer_number, const address &) override;
	void peer_close(spi::peer_number) override;
	unsigned progress(unsigned budget) override;
	bool arm() override;
	int fd() const override { return epoll_; }
	time_point deadline() const override;
	void expire(time_point now) override;

private:
	static constexpr std::uint32_t none = token_map::none;
	/// How long a message to ourselves waits for a buffer; about what rpc/chan grants others.
	static constexpr std::uint64_t loop_patience_us = 700000;
	static constexpr std::uint32_t extra_ops = 1024; // whose end is being told
	static constexpr std::uint32_t receives = 1024;  // messages half received
	static constexpr std::size_t text_bytes = 64;    // of a bulk message
	static constexpr std::uint32_t held_back_most = 32;
	static constexpr unsigned evict_looks = 16; // at sessions that turn out to be busy
	static constexpr std::uint64_t watch_every_us = 250000;
	static constexpr std::uint64_t probe_every_us = 1000000;
	static constexpr std::size_t untold_most = 1024;

	struct peer {
		address where;
		identity who;
		coop_chan_peer_addr addr{};
		std::uint32_t instance = 0;  // of the machine there; 0: unknown
		std::uint32_t chan = 0;      // its id there; 0: not open
		sessions::place session = 0; // that; 0: not open
		bool used = false, self = false;
		bool held = false;                  // by us, at the core
		bool resolved = false;              // addr is right as far as we know
		std::uint32_t bulk = none;          // bulk operations with it under way: the first
		std::uint32_t active = 0;           // all operations with it under way
		std::size_t watched_at = 0;         // its place in watched_, while there are some
		std::uint64_t bulk_since = 0;       // when the first of those began
		std::uint64_t probe_at = 0;         // bulk: when it is asked whether it lives
		int death = -EHOSTDOWN;             // why it was given up last
		std::vector<std::uint32_t> waiting; // operations that wait for its address
	};

	enum class op_state : std::uint8_t {
		free,
		gone,    // ended, but still in a line; free when it comes to the front
		address, // waits for its peer's address
		line,    // waits for a place at rpc/chan
		loop,    // to ourselves, waits for a receive buffer
		sent,    // a message at rpc/chan
		passive, // may be read, or may be written to when asked
		reading, // data comes in
		offered, // PUT: the other side is told or reading
		telling, // the core knows its end; the other side is being told
	};

	struct op {
		spi::token token = 0;
		queue_type queue{};
		op_state state = op_state::free;
		bool ending = false; // as soon as nobody reads its memory
		bool cancelled = false;
		bool sending = false;      // a bulk message of it is at rpc/chan
		std::uint8_t attempts = 0; // of that
		int status = 0;            // of the end, while `ending`
		std::uint32_t id = 0;      // at rpc/chan
		std::uint32_t serving = 0; // requests that read its memory
		bool under_way = false;    // bulk, and stands with the others of its peer
		std::uint32_t before = none, after = none; // there
		spi::peer_number peer = spi::no_peer;
		identity who; // telling: the peer, whose number may have become another's
		keyed_memory memory;
		std::size_t length = 0;
		spi::token remote = 0;        // the other side's operation
		std::uint64_t key = 0;        // what others have to show to use ours
		std::uint64_t remote_key = 0; // what we show to use theirs
		std::uint64_t since = 0;      // loop: when it began to wait
		// Passive, and `reader` has begun to read it.
		std::size_t begun_at = 0; // its place in begun_, while it has
		identity reader;          // who asked last
		std::uint64_t ask_at = 0; // when the reader is asked whether it still reads
		bool asked = false;       // it was, and has read nothing since
		bool question = false;    // telling: that question, about our operation `remote`
		bool listed = false;      // active receive, stands in reading_
		std::optional<outcome> result; // telling: that of a read
		std::unique_ptr<reading> read;
	};

	/// A read that has ended, and the passive side may not know how.
	struct untold {
		identity who;
		spi::token token; // the other side's operation
		std::uint64_t key;
		outcome result;
		std::uint64_t length;
	};

	/// Where a message of rpc/chan is being put.
	struct place_slot {
		spi::landing landing;
		spi::peer_number from = spi::no_peer;
		bool bulk = false;
		bool told = false;   // delivered or abandoned; what still comes is dropped
		bool listed = false; // more of it is to come: stands with its buffer's others
		std::uint32_t before = none, after = none; // there
		std::uint32_t receive = 0;                 // at rpc/chan
		std::array<std::uint8_t, text_bytes> text; // bulk
	};

	// machine.cpp
	void begin();
	void make_chan(std::uint64_t now);
	void make_engine(std::uint64_t now);
	void fail_all(int status);
	std::uint64_t now_us();
	std::uint64_t next_time() const;
	void dispatch(const coop::ud::completion &, std::uint64_t now);
	void received(std::uint32_t channel, std::span<const std::byte> datagram,
		      const coop::ud::completion &, std::uint64_t now);
	void settle(std::uint64_t now);
	void drain(std::uint64_t now);
	void drain_chan(std::uint64_t now);
	bool drain_engine(std::uint64_t now);
	void event(const coop_chan_ev &, std::uint64_t now);
	void resolved(const resolver::result &, std::uint64_t now);
	void watch(std::uint64_t now);
	void probe(const peer &, bool whole, std::uint64_t now);
	void follow(std::uint64_t now);
	bool lingering(std::uint64_t now) const;
	int watch_endpoint(bool on);

	// machine_peers.cpp
	peer &at(spi::peer_number n);
	void set_up(peer &, const address &);
	int connect(spi::peer_number, const coop_chan_peer_addr &, std::uint64_t now);
	bool believable(spi::peer_number, identity, const coop_addr &from) const;
	bool is_at(spi::peer_number, std::uint32_t chan) const;
	void adopt(spi::peer_number, std::uint32_t chan, std::uint64_t now);
	void wake_waiting(spi::peer_number, int status, std::uint64_t now);
	void hold(spi::peer_number);
	void unhold(spi::peer_number);
	void died(spi::peer_number, const coop_chan_ev &, std::uint64_t now);
	std::vector<std::uint32_t> bulk_with(spi::peer_number) const;
	void lost(spi::peer_number, int status, std::uint64_t now);
	void restarted(spi::peer_number, std::uint64_t now);
	void gone(spi::peer_number, int status, std::uint64_t now);
	void count_active(spi::peer_number, int by);
	void watch_soon();
	void unwatch(spi::peer_number n)
	{
		watched_.leave(
			n, [this](auto p) -> auto & { return peers_[p].watched_at; });
	}
	bool evict(std::uint64_t now, std::uint32_t spared);

	// machine_message.cpp
	std::uint32_t allocate(spi::token, const spi::transfer &);
	void release(std::uint32_t index);
	void lend(op &);
	void finish(std::uint32_t index, int status, std::size_t length);
	void go(std::uint32_t index, std::uint64_t now);
	void send(std::uint32_t index, std::uint64_t now);
	void sent(const coop_chan_ev &, std::uint64_t now);
	bool loop(std::uint32_t index, std::uint64_t now);
	void place(coop_chan_in &, const coop_addr &from, bool &copy, std::uint64_t now);
	void list(std::uint32_t slot);
	void unlist(std::uint32_t slot);
	void copy_in(const coop_chan_in &, const std::byte *datagram);
	void landed(std::uint32_t slot, bool whole, std::uint64_t now);

	// machine_bulk.cpp
	void begin_reading(std::uint32_t index, std::uint64_t now);
	void read_over(reading &, std::uint64_t now);
	void read(std::uint32_t index, std::uint64_t now);
	void end_bulk(std::uint32_t index, int status, std::size_t length);
	void tell(std::uint32_t index, op_state, const bulk_message &, std::uint64_t now);
	void reply(spi::peer_number, const bulk_message &, std::uint64_t now);
	void told(std::uint32_t index, int err, std::uint64_t now);
	void bulk_text(const std::uint8_t *, spi::peer_number from, std::uint64_t now);
	void asked_to_read(const bulk_message &, spi::peer_number from, std::uint64_t now);
	void other_is_done(const bulk_message &, spi::peer_number from);
	void cancel_bulk(std::uint32_t index, int status, std::uint64_t now);
	int bulk_to_self(std::uint32_t index);
	void begin_bulk(std::uint32_t index);
	void bulk_over(std::uint32_t index);
	std::uint32_t engine_peer(spi::peer_number, bool anew, std::uint64_t now);
	bool open(spi::token, std::uint64_t key, identity asker, const coop_addr &from,
		  source::offer &out) override;
	bool holds(const source::offer &) override;
	void close(const source::offer &) override;

	// machine_readers.cpp
	void begun(std::uint32_t index, identity reader);
	void not_begun(std::uint32_t index);
	void ask_readers(std::uint64_t now);
	void ask_reader(std::uint32_t index, std::uint64_t now);
	void question_over(const op &, int err);
	void reader_says(std::uint32_t index, outcome, spi::peer_number from);
	void asked_what_became(const bulk_message &, spi::peer_number from, std::uint64_t now);
	void list_reading(std::uint32_t index);
	void unlist_reading(std::uint32_t index);
	void remember(const op &, outcome);
	const untold *recall(identity, spi::token, std::uint64_t key) const;

	const options &options_;
	memory_keys &keys_;
	spi::sink &sink_;
	address own_address_;
	std::uint32_t max_length_ = 0; ///< bytes of a message that the MTU and the window allow
	identity own_;

	// In the order of construction by start().
	std::unique_ptr<coop::ud::endpoint> endpoint_;
	std::optional<fetch_host::slab> slab_;
	std::unique_ptr<resolver> resolver_;
	std::optional<channels> channels_;
	std::optional<reader> reader_;
	std::optional<source> source_;
	std::optional<fetch_host::host> host_; // of bulk
	std::size_t text_at_ = 0;              // of bulk messages, by operation
	std::size_t blank_at_ = 0;             // what a probe by data carries: MTU bytes
	std::unique_ptr<void, void (*)(void *)> chan_memory_;
	coop_chan *chan_ = nullptr;
	coop_engine *engine_ = nullptr; // host_'s
	int epoll_ = -1;
	coop_chan_peer_addr self_{};            // as the engines know it
	std::uint32_t instance_ = 0;            // as peers do, once we have begun
	std::uint32_t changes_ = 0, polls_ = 0; // of the network; looks at it

	std::vector<peer> peers_;
	roster<spi::peer_number> watched_; // those with operations
	roster<std::uint32_t> begun_;      // passive operations that somebody has begun to read
	/// Active receives until their end has been told, by the token of the passive side.
	std::unordered_multimap<spi::token, std::uint32_t> reading_;
	std::deque<untold> untold_; // the last `untold_most`
	sessions sessions_;
	std::vector<op> ops_;
	std::vector<std::uint32_t> free_ops_;
	token_map by_token_;
	std::deque<std::uint32_t> line_, loop_;
	std::vector<place_slot> places_;
	std::vector<std::uint32_t> free_places_;
	token_map places_of_; // a receive buffer's, of messages half there: the first
	std::vector<coop::ud::completion> completions_;
	std::vector<channels::over> over_;
	std::vector<coop_chan_piece> pieces_;

	bool owed_ = false;         // bookkeeping of a message that was delivered first
	bool rest_ = false;         // bulk data wait for what arrived while others were sent
	std::uint32_t arrived_ = 0; // meanwhile
	time_point rest_until_{};
	bool dry_ = true; // nothing has arrived that was not looked at
	bool armed_ = false;
	bool stopping_ = false;
	bool watching_ = false;       // the end point's descriptor is in epoll_
	std::uint32_t unarmed_ = 0;   // polls since arm()
	std::uint32_t held_back_ = 0; // messages that wait for others to leave with
	std::uint32_t turns_ = 0;
	std::uint32_t telling_ = 0;      // operations
	std::uint64_t watch_at_ = ~0ull; // no matter while nothing is under way
	std::uint32_t active_ = 0;       // messages at rpc/chan and bulk operations
	std::uint64_t heard_at_ = 0;     // the last datagram
	std::uint64_t starts_at_ = ~0ull, stop_at_ = ~0ull, stop_latest_ = 0;
};

} // namespace coop::net::ud
