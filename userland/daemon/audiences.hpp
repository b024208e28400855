// SPDX-License-Identifier: MIT
// audiences.hpp - the members of each file version, and the role of each member in the forest of
// its file (rpc/storage/forest.h).
//
// A client is a member while a session of it has the version open and its node is registered, and
// for a moment after that: see below. An
// open of another version moves it to that version's audience. Members are numbered without holes:
// the last one takes the number of one that leaves. So a change affects a few blocks of the forest
// and not all members.
//
// A member that does not forward, or that is slow beside the others, is a leaf: it has a number of
// its own below the forest.
//
// A member learns its roles when it opens, and again when they change. A client that is alone is
// told nothing.
//
// A member, unless it is a leaf, that closes the file shortly after its latest open lingers: it
// keeps its number for a while, so that clients that open and close a file all the time change
// nobody's roles. Like any node it sends the pages that it has, but it loads none for others, which
// costs these a question for each such parent and unit. So few linger beside few: of the members
// that are no leaves at least one in four has the file open, and at least two members have.
//
// Soft state: wrong or missing roles cost requests to peers, never data. A restarted
// daemon learns the members from the opens that clients repeat.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rpc/storage/message.h"
#include "userland/daemon/members.hpp"

namespace coop::daemon
{

// Known rates from which on the share of slow members moves a little before it counts.
constexpr std::uint32_t rates_steady = 16;
// A member that closes the file so soon after its latest open lingers that long, up to half as long
// again: until the next expire().
constexpr std::chrono::milliseconds linger_time{250};
constexpr std::size_t lingering_max = 1u << 14; // of all files

// What a node can do for others.
struct node_ability {
	bool forwards = true;
	std::uint32_t mbps = 0; // megabits a second; 0: unknown
	bool operator==(const node_ability &) const = default;
};

// A client, as its audiences see it.
class audience_client
{
public:
	// The id of its node; 0: it takes no roles, or is not on the fabric.
	virtual std::uint32_t role_node() const = 0;
	// A node that registers again, with another ability, has another id.
	virtual node_ability ability() const { return {}; }
	// Must not block: called with the table locked, so that a client gets its roles in order.
	// The next reply, or flush(), sends it. False: it was dropped.
	virtual bool push(std::uint16_t op, const coop_st_body &) = 0;
	virtual void flush() {} // called without the lock

protected:
	audience_client() = default;
	~audience_client() = default;
};

// The known rates of an audience's members, by powers of two.
class rate_classes
{
public:
	void add(std::uint32_t mbps) { count(mbps, 1); }
	void remove(std::uint32_t mbps) { count(mbps, ~0u); }
	// A rate below it is slow: a quarter of the median, rounded down to a power of two. With
	// rates_steady or more it stays where it is while between three and five eighths are below.
	std::uint32_t slow_below();

private:
	void count(std::uint32_t mbps, std::uint32_t by);
	std::uint32_t at(std::uint32_t rank) const; // the class of that rank

	std::array<std::uint32_t, 33> known_{}; // by std::bit_width of the rate
	std::uint32_t all_ = 0, median_ = 0;
};

class audience_table
{
	struct place;

public:
	using clock = std::chrono::steady_clock;

	// Keeps the client a member until it is destroyed. The table outlives all seats.
	class seat
	{
	public:
		seat() = default;
		seat(seat &&o) noexcept : table_(std::exchange(o.table_, nullptr)), place_(o.place_)
		{
		}
		seat &operator=(seat &&o) noexcept
		{
			std::swap(table_, o.table_);
			std::swap(place_, o.place_);
			return *this;
		}
		~seat();

	private:
		friend audience_table;
		seat(audience_table *table, place *p) : table_(table), place_(p) {}
		audience_table *table_ = nullptr;
		place *place_ = nullptr;
	};

	// changed: called when roles wait to be pushed, with the table locked; flush() should be
	// called soon. Empty: roles are told only to those who open.
	void on_change(std::function<void()> changed);
	// lingers: called when a member begins to linger and expire() is not due already, with the
	// table locked; expire() should be called after linger_time, and while it says so every
	// half of that. Empty: members that begin to linger from now on leave at once.
	void on_linger(std::function<void()> lingers,
		       std::function<clock::time_point()> now = clock::now);
	// Ends the membership of those that have lingered long enough. True: others linger.
	[[nodiscard]] bool expire();
	// The client has opened this version. Pushes its roles, unless it is alone; the reply sends
	// them.
	[[nodiscard]] seat join(const std::shared_ptr<audience_client> &, const file_version &);
	// The client has opened the file and found this version, of which that open makes it no
	// member. It leaves the audience of another version.
	void depart(const audience_client &, const file_version &found);
	// The client's node has registered, left, or has another id.
	void moved(const audience_client &);
	// Pushes roles that have changed. True: more are waiting, and on_change is not called for
	// them.
	[[nodiscard]] bool flush();

	std::size_t size() const;   // file versions with a member
	std::size_t leaves() const; // of all file versions
	std::size_t lingering() const;
	std::atomic<std::uint64_t> pushed{0};

private:
	// What one client has open of one file, or had. It is a member while 'node' is not 0.
	struct place {
		const audience_client *client;
		std::weak_ptr<audience_client> who;
		file_version file; // version 0: none that it could be a member of
		unsigned opens = 0;
		std::uint32_t node = 0;
		node_ability can{};
		bool leaf = false;
		std::uint32_t number = 0;  // among the leaves, or among the others
		std::uint64_t told = 0;    // a digest of the roles that it was told; 0: none
		clock::time_point since{}; // the first of its opens, or the last close
		bool lingers = false;      // a member that has the file no longer open
		std::list<place *>::iterator turn{}; // in lingering_, while it lingers
	};
	struct audience {
		std::vector<place *> members; // but for the leaves
		std::vector<place *> leaves;
		rate_classes rates;
		std::uint32_t slow_below = 0;
		std::size_t lingering = 0;
		bool for_leaves(const node_ability &can) const
		{
			return !can.forwards || (can.mbps && can.mbps < slow_below);
		}
		bool lone() const { return members.size() + leaves.size() < 2; }
		bool empty() const { return members.empty() && leaves.empty(); }
		// More linger than those that have the file open should ask in vain.
		bool crowded() const
		{
			return lingering && (open() < 2 || 4 * lingering > 3 * members.size());
		}
		std::size_t open() const { return members.size() + leaves.size() - lingering; }
	};
	using key = std::tuple<const audience_client *, std::uint64_t, std::uint64_t>;
	static key key_of(const audience_client *, const coop_fid &);

	void leave(place &);
	void settle_locked(place &, const file_version &, std::uint32_t node,
			   const node_ability &can = {});
	void enter_locked(place &, std::uint32_t node, const node_ability &);
	void drop_locked(place &);
	bool may_linger_locked(const place &) const;
	void linger_locked(place &);
	void rouse_locked(place &);
	void end_locked(place &);
	void thin_out_locked(const file_version &);
	void insert_locked(audience &, place &);
	void remove_locked(audience &, place &);
	void sort_out_locked(audience &);
	void mark_locked(audience &, std::uint32_t block);
	void mark_lone_locked(audience &);
	void mark_around_locked(audience &, std::uint32_t block);
	bool tell_locked(place &, audience_client *); // true: pushed
	static coop_st_roles roles_of(const audience &, const place &);
	void wake_locked();

	mutable std::mutex mutex_; // guards all below
	std::function<void()> changed_;
	bool awake_ = false; // changed_ was called, and flush() has not yet pushed all
	std::function<void()> lingers_;
	std::function<clock::time_point()> now_;
	bool expires_ = false; // lingers_ was called, and expire() has not yet said that none does
	std::map<key, place> places_;
	std::unordered_map<file_version, audience, file_version_hash> audiences_;
	std::unordered_set<place *> stale_; // members whose roles may have changed
	std::list<place *> lingering_;      // the longest first
};

} // namespace coop::daemon
