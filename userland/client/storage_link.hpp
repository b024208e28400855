// SPDX-License-Identifier: MIT
// storage_link.hpp - the TCP connection to the storage daemon: calls, replies, and recovery from a
// lost connection.
//
// One thread owns the connection: it connects, receives, completes calls, times them out, and
// reconnects. Callers send from their own threads. A call stays in the table until its reply or its
// deadline. After a loss all calls that were sent are sent again, under their old ids; the daemon
// remembers the replies to changes. A change whose caller gave up, and that may still be executed,
// stays as long as the daemon knows the session; a CLOSE or UNLOCK stays in any case. Bytes of a
// READ go from the socket into the caller's memory; only the owning thread writes that memory, so
// it is free as soon as the call has completed, also by timeout.
//
// A caller that waits, and whose reply is the next thing to come, takes it from the socket itself:
// the reply then wakes one thread in place of two. See storage_listen.cpp.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "coop/boot_clock.hpp"
#include "coop/cluster_key.hpp"
#include "coop/unique_fd.hpp"
#include "rpc/storage/message.h"
#include "userland/client/lock_book.hpp"
#include "userland/client/storage.hpp"
#include "userland/client/uncommitted_names.hpp"

namespace coop::client
{

class storage_link
{
public:
	using clock = std::chrono::steady_clock;
	struct outcome {
		int err = 0;                        // 0 or -errno
		const coop_st_body *body = nullptr; // of a good reply
		std::string data;                   // of a reply to a call without 'dest'
		std::uint64_t bytes = 0;            // received into 'dest'
		bool streamed = false;              // the bytes need a CHECK
		bool repeated = false;              // was also sent on an earlier connection
		bool shared_dir = false;            // others use the directory looked in
		std::uint64_t run = 0; // verifier of names at this connection; 0: not told
	};
	struct call {
		std::uint16_t op;
		std::string frame;         // header and body
		std::vector<iovec> source; // data to send; the caller's until the call ends
		std::vector<iovec> dest;   // destination of the reply's data
		// On the connection's thread, or as storage_listen.cpp says.
		std::function<void(outcome &)> done;
		// Takes over a call that has been sent and given up: receives its reply. Such a
		// call must have no 'dest'; its 'source' is copied.
		std::function<void(outcome &)> orphan;
		std::string kept; // that copy
		// The sending thread no longer uses it, complete or not.
		std::atomic<bool> handed{false};
		clock::time_point begun, deadline;
		boot_clock::time_point asked; // as begun: how old the reply is
		std::uint64_t id = 0;
		std::uint64_t epoch = 0; // connection on which it was sent; 0: not yet
		bool repeated = false;
		bool abandoned = false; // to its orphan
		bool urgent = false;    // the daemon, or another client, waits for it
		bool anywhere = false;  // 'done' does nothing that needs a thread of its own
		// Storage keeps an open file or a lock until it has executed it: only its caller
		// may give up.
		bool kept_on = false;
		// The directories whose names it changes, or the file whose attributes.
		std::array<handle, 2> changes;
	};
	struct open_record { // for opening it again
		handle fh;
		caller who;
		std::uint32_t flags;
		std::uint64_t with = 0; // see storage::goes_with()
	};

	explicit storage_link(const storage_options &); // connects; throws
	~storage_link();

	void submit(std::shared_ptr<call>);
	// Sends it together with the next call, or within expiry_interval, so it costs no packet.
	void submit_later(std::shared_ptr<call>);
	// Submits and waits. data: of the reply. -EINTR: the asker has gone; the request may have
	// been executed. When this returns, it is decided whether the orphan will be called. heard:
	// sees the reply on the thread that took it, before the connection can be lost.
	int ask(std::uint16_t op, const coop_st_body &request, coop_st_body &reply,
		std::string &text, std::string *data = nullptr, std::span<const iovec> source = {},
		std::function<void(outcome &)> orphan = {},
		std::function<void(const outcome &)> heard = {});
	std::shared_ptr<call> make(std::uint16_t op, const coop_st_body &) const;

	void opened(std::uint64_t id, open_record);
	bool goes_with(std::uint64_t id, std::uint64_t other);
	void closed(std::uint64_t id);
	// An open id of this file with write access by this user, 0: none. anyone: or by another
	// user.
	std::uint64_t writable_open(const handle &, uid_t, bool anyone);
	// The node's address, and what it can do, unless that has not changed. Returns the latter.
	node_ability registered(const coop_addr &, const node_ability *can = nullptr);
	void unregistered();
	// The body that registers the node with its latest address, if it has one.
	std::optional<coop_st_body> self() const;
	// A node that has left the fabric is told of all others when it comes back. For the
	// connection's thread.
	void forget_nodes();
	bool leaves() const { return version_ >= coop_st_op_since(COOP_ST_LEAVE); }
	// The operation that registers a node, and its body.
	std::uint16_t join_op() const
	{
		return version_ >= coop_st_op_since(COOP_ST_JOIN) ? COOP_ST_JOIN : COOP_ST_REGISTER;
	}
	static coop_st_body join_body(const coop_addr &, const node_ability &);
	lock_book &locks() { return locks_; }
	// The daemon has answered that it queued the wait. True: and then granted it.
	[[nodiscard]] bool lock_queued(std::uint64_t cookie, const lock_book::lock &,
				       const outcome &);
	// How many daemons have forgotten this session: changes before the first reply of another
	// daemon. For the connection's thread.
	std::uint64_t restores() const { return restores_; }
	const entry &root() const { return root_; }
	uncommitted_names &names() { return names_; }
	// Send time of the latest call that has been answered.
	boot_clock::time_point heard() const
	{
		return boot_clock::time_point(boot_clock::duration(heard_));
	}
	// Whether it is late enough to rely on what the daemon promised.
	bool trusted() const;
	std::chrono::milliseconds trust() const { return options_.trust; }
	std::array<std::uint8_t, 16> fabric_key() const
	{
		std::lock_guard lock(mutex_);
		return fabric_key_;
	}
	// The operation of a read that may be redirected.
	std::uint16_t shared_read() const
	{
		return version_ >= coop_st_op_since(COOP_ST_READ_CHAINED) ? COOP_ST_READ_CHAINED
									  : COOP_ST_READ_SHARED;
	}
	// Whether the daemon may answer a read with the names of other nodes.
	bool redirects() const { return options_.on_roles && version_ >= COOP_ST_VERSION_ROLES; }
	bool knows_named() const { return version_ >= COOP_ST_VERSION_NAMED; }
	bool bundles() const { return version_ >= coop_st_op_since(COOP_ST_BUNDLE); }
	storage::traffic stats() const;
	std::vector<storage::waiting> waiting() const;
	std::chrono::milliseconds patience() const
	{
		return std::chrono::milliseconds(options_.timeout_ms);
	}

private:
	// In storage_connect.cpp; return 0 or -errno, why: text of the error.
	int dial(std::string &why);
	int greet(std::string &why);
	int shake_hands(std::uint16_t newest, std::string &why);
	int learn_run(std::string &why);
	void make_fabric_key();
	int restore(std::string &why);
	int reclaim(std::string &why);
	void ask_for_locks();
	void ask_for_lock(std::uint64_t cookie, const lock_book::lock &);
	void hang_up();
	int exchange(std::uint16_t op, const coop_st_body &request, coop_st_header &,
		     coop_st_body &reply);
	void lost();
	void reconnect();

	// In storage_receive.cpp:
	bool receive();
	bool deliver(const coop_st_header &, const std::uint8_t *body);
	bool receive_into(std::vector<iovec>);
	bool patient(clock::time_point &began);
	bool attend();
	bool fill(std::size_t want, bool idle_ok);

	// In storage_listen.cpp:
	bool is_next(const call &) const;
	void listen(const call &, const std::function<bool()> &done);
	bool take_replies(const call &);
	bool take_reply(const call &);
	void wait_for_input();
	void hand_over();
	void stop_listening();

	// In storage_push.cpp:
	void take_push(const coop_st_header &, const std::uint8_t *body);
	void tell(const node_event &);
	void lock_granted(std::uint64_t cookie);

	// In storage_ask.cpp:
	void give_up(call &);
	void disown(call &);
	void drop_abandoned();
	static std::function<void(outcome &)> abandon(call &);

	void run();
	bool postpone(const coop_st_header &);
	void complete(const std::shared_ptr<call> &, outcome &);
	void note_changes(const call &, const outcome &);
	void pump();
	using calls = std::vector<std::shared_ptr<call>>;
	std::uint64_t enter_locked(const std::shared_ptr<call> &);
	std::uint64_t enter_deferred_locked(calls &out);
	void transmit(std::span<const std::shared_ptr<call>>, std::uint64_t epoch);
	bool send_all(std::vector<iovec>);
	void expire(bool all);

	const storage_options options_;
	lock_book locks_;         // has its own lock
	uncommitted_names names_; // the same
	secret key_;
	std::string session_;
	entry root_;

	mutable std::mutex mutex_; // guards the table
	std::condition_variable wake_;
	std::map<std::uint64_t, std::shared_ptr<call>> calls_;
	calls deferred_;  // without an id yet
	calls postponed_; // the daemon could not serve them yet: sent again under new ids
	std::map<std::uint64_t, open_record> opens_;
	std::uint64_t last_id_ = 0;
	std::uint64_t epoch_ = 0; // of the connection; 0: none
	unsigned in_flight_ = 0;  // sent on this connection
	std::atomic<boot_clock::rep> heard_{0};
	std::uint32_t window_ = COOP_ST_REQUESTS_MAX;
	bool full_locked(const call &) const;
	clock::time_point deadline_of(const call &) const;
	bool stop_ = false, has_addr_ = false;
	std::array<std::uint8_t, 16> fabric_key_{};
	coop_addr addr_{};
	node_ability ability_;

	std::mutex send_mutex_; // the socket's sending side; taken after mutex_, never before
	std::uint64_t send_epoch_ = 0;
	std::atomic<int> fd_{-1};

	// The socket's receiving side: the connection's thread holds it except while it waits for
	// input. Taken before mutex_; a caller only tries to take it.
	std::mutex receive_mutex_;
	// Each has the socket. Bytes wake who waits at the first, else who waits at the second.
	unique_fd callers_input_, input_;
	unique_fd stop_listening_, handed_over_; // eventfd(2), one in each
	std::atomic<bool> listening_{false};     // a caller listens, or is about to

	// Owned by who holds receive_mutex_; handed to the connection's thread:
	bool handshaking_ = true; // no call is under way
	bool drained_ = false;    // the socket had no more bytes
	std::array<std::uint8_t, 8192 + COOP_ST_HEADER + COOP_ST_BODY_MAX> in_;
	std::size_t have_ = 0, used_ = 0;
	bool holding_ = false; // pushes are held until the caller knows of the new connection
	std::vector<node_event> held_;
	std::vector<file_roles> held_roles_;
	std::set<std::uint32_t> nodes_;
	std::uint64_t epochs_ = 0, restores_ = 0;
	clock::time_point next_expiry_{};
	std::thread thread_;

	std::atomic<std::uint64_t> tx_bytes_{0}, rx_bytes_{0}, rx_data_{0}, done_calls_{0},
		reconnects_{0}, taken_{0};
	std::atomic<bool> connected_{false};
	std::atomic<std::uint16_t> version_{0}; // of the protocol, on this connection
	// The daemon's run, of this connection; zero before protocol version 10. Written by the
	// connection's thread while no call is under way.
	struct {
		std::array<std::uint8_t, COOP_ST_NONCE> nonce{};
		std::uint64_t verifier = 0;
	} run_;
};

} // namespace coop::client
