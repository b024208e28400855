// SPDX-License-Identifier: MIT
// session.hpp - the state of a client that survives a lost connection: its open files and the
// replies to its changes.
//
// A request that changes something is executed once per session, however often it arrives: the
// reply is kept under the request's id. A repeat that arrives while the first is still running
// takes over its reply. The client has at most COOP_ST_REQUESTS_MAX requests in flight and replies
// are sent in order of completion, so twice as many kept replies are enough.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "coop/boot_clock.hpp"
#include "userland/daemon/audiences.hpp"
#include "userland/daemon/done_names.hpp"
#include "userland/daemon/inodes.hpp"
#include "userland/daemon/payload.hpp"

namespace coop::daemon
{

constexpr std::size_t sessions_max = 1u << 14;
constexpr std::size_t opens_max = 65536; // per session
constexpr std::size_t replies_kept = 2 * COOP_ST_REQUESTS_MAX;
constexpr std::chrono::seconds session_grace{90}; // how long a session outlives its connection

// The user that opened a file: later file-system calls on it run with these ids.
struct opener {
	std::uint32_t uid, gid;
	std::vector<std::uint32_t> groups;
	void fill(coop_st_cred &) const;
	static opener of(const coop_st_cred &);
};

struct open_file {
	inode_ref node;
	std::uint32_t flags; // enum coop_st_open_flag
	opener who;
	audience_table::seat seat; // used by the OPEN that added it and by the destructor only
	bool opening = true; // that OPEN may still fail and take it back; guarded by the session
	~open_file();
};

struct reply {
	std::uint32_t status = 0;
	bool shared_dir = false; // other clients use the directory that was looked in
	coop_st_body body{};
	std::string text;                   // storage for body's byte strings
	std::vector<std::uint32_t> known{}; // nodes that the client has to know besides body's
	payload data;
	// A streamed READ: 'count' bytes of the file from 'offset' instead of data.
	std::shared_ptr<unique_fd> file;
	inode_ref node;
	std::uint64_t offset = 0, version = 0;
	std::uint32_t count = 0;
};

class session final : public audience_client, public std::enable_shared_from_this<session>
{
public:
	// A bundle's session is no client's: it only holds leases.
	explicit session(std::string id, const exported *in = nullptr, bool of_bundle = false) :
		id(std::move(id)),
		in(in),
		of_bundle(of_bundle)
	{
	}
	const std::string id;
	// Its open files passed the checks of this export, whose options hold for all requests on
	// them. So no connection through another export may use the session.
	const exported *const in;
	const bool of_bundle;

	[[nodiscard]] std::shared_ptr<open_file> find(std::uint64_t open_id);
	// 0, -EMFILE: 'most' are open, -EEXIST, -EAGAIN: the request that added what is there has
	// not called stays() yet, or -EBADF: its CLOSE came first. restored: the client opens it
	// again under the id that it had.
	[[nodiscard]] int add(std::uint64_t open_id, std::shared_ptr<open_file>, std::size_t most,
			      bool restored = false);
	void stays(open_file &);
	std::shared_ptr<open_file> take(std::uint64_t open_id);
	// For CLOSE. If there is no such open file, an OPEN that runs later makes none: the client
	// has given it up, and no client uses an id for another file.
	std::shared_ptr<open_file> close(std::uint64_t open_id);
	// False: it is no longer this file that is open under the id.
	bool take_back(std::uint64_t open_id, const open_file &);
	std::size_t opens() const;

	// What its changes of names came to; null: nothing is kept.
	done_names *names(done_files &);
	// Its locks go to others; they, and what is open, are lost to the client until it opens it
	// again: see silence.cpp. No request of it runs. Returns what ends with that.
	[[nodiscard]] std::vector<std::shared_ptr<open_file>> lapse();
	// For an OPEN with AGAIN: what is open under this id already. Null: another file, or flags.
	std::shared_ptr<open_file> opened_again(std::uint64_t open_id, const inode_ref &,
						std::uint32_t flags);
	// The client learns only now that it has this open.
	void opened_late(std::uint64_t open_id);

	enum class verdict {
		run,      // first time: execute, then call done()
		answered, // 'out' is the encoded reply
		running,  // the first execution's reply goes to the latest request
		late,     // came on a connection that a newer one replaced: do nothing
	};
	using deliver = std::function<void(const std::string &)>;
	verdict admit(std::uint64_t epoch, std::uint64_t request, deliver to, std::string &out);
	// Keeps the reply; returns the function that sends it.
	deliver done(std::uint64_t request, const std::string &encoded);

	// A new connection takes over. Requests that still arrive on older ones were sent before,
	// and sent again on this one: executed after its repeat, such a request would undo changes
	// made in between. push: sends a message to this client unasked, on that connection.
	// takes_roles: it knows the push ROLES.
	using pusher = std::function<bool(std::uint16_t, const coop_st_body &)>;
	std::uint64_t renew(pusher push, std::function<void()> flush, bool takes_roles);
	// The client of the connection of 'epoch' said that it has no use for them. Bundles are of
	// no use without.
	void wants_no_roles(std::uint64_t epoch);
	// Sends to the client (ROLES: with the next reply, or at flush()); dropped if it is not
	// connected.
	bool push(std::uint16_t op, const coop_st_body &) override;
	void flush() override;
	std::uint32_t role_node() const override { return takes_roles ? node.load() : 0; }
	node_ability ability() const override { return {forwards, mbps}; }
	// Records the node that the connection of 'epoch' registered, unless a newer connection has
	// taken over.
	void is_node(std::uint64_t epoch, std::uint32_t node, const node_ability &);

	std::atomic<std::uint32_t> node{0}; // registered node id
	std::atomic<bool> takes_roles{false};
	std::atomic<bool> forwards{true}; // of the node, as 'mbps'; set before it
	std::atomic<std::uint32_t> mbps{0};
	std::atomic<bool> takes_bundles{false}; // it knows BUNDLE and what leads to it
	std::atomic<bool> over{false};          // forgotten: its files and locks are gone
	// The client relies on this session: a request came that restores nothing. Until then it
	// may not know that the session is new, because that reply may have been lost.
	std::atomic<bool> relied_on{false};
	// The client said that it stops relying on its locks when it is not answered.
	std::atomic<bool> lapses{false};
	// Input of the client has come. All that it sent later comes later, too.
	void hears(boot_clock::time_point when = boot_clock::now())
	{
		heard_.store(when.time_since_epoch().count(), std::memory_order_relaxed);
	}
	boot_clock::time_point heard() const
	{
		return boot_clock::time_point(
			boot_clock::duration(heard_.load(std::memory_order_relaxed)));
	}
	// Guarded by the server's table of sessions:
	unsigned attached = 0;
	std::chrono::steady_clock::time_point detached_at;

private:
	struct kept {
		bool finished = false;
		std::string encoded;
		deliver to;
	};
	std::atomic<boot_clock::rep> heard_{boot_clock::now().time_since_epoch().count()};
	mutable std::mutex mutex_;
	std::uint64_t epoch_ = 0;
	pusher push_;
	std::function<void()> flush_;
	using open_files = std::unordered_map<std::uint64_t, std::shared_ptr<open_file>>;
	open_files opens_;
	open_files lost_; // of no use until opened again; no id is in both
	// Ids that were closed but not open: the latest replies_kept, oldest first. Far fewer
	// requests of a client can still run.
	std::deque<std::uint64_t> given_up_;
	std::unordered_map<std::uint64_t, kept> replies_;
	std::deque<std::uint64_t> order_; // finished ones, oldest first
	std::once_flag names_asked_;
	std::shared_ptr<done_names> names_;
};

} // namespace coop::daemon
