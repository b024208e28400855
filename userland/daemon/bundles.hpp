// SPDX-License-Identifier: MIT
// bundles.hpp - bundles of directories: made once for a user, sent about once, and never used when
// something in them has changed.
//
// A bundle (rpc/storage/bundle.h) holds what one user may see. So it needs no proof of rights when
// another client of the same user asks for it, and no user gets bytes of a file through it that
// storage has not let that user read.
//
// A bundle holds leases of all files that it describes, as a session of its own does. A recall
// voids it at once. To use a bundle is to copy its leases to the client's session, in one step that
// fails if any of them is being recalled. So what a standing bundle says is what the client would
// have been told at that moment.
//
// Its bytes are a file in memory with a version of its own, which clients open, read and pass on as
// any other. A void bundle's bytes stay good for clients that got its leases before: only the
// leases of what has changed were recalled from them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "coop/cluster_key.hpp"
#include "rpc/storage/bundle.h"
#include "userland/daemon/leases.hpp"

namespace coop::daemon
{

constexpr std::size_t bundle_bytes_max = 64u << 20; // of all bundles that may be used again
// Bundles that clients still read count too, up to this.
constexpr std::size_t bundle_bytes_most = 2 * bundle_bytes_max;
constexpr std::size_t bundles_max = 256;        // each has two descriptors
constexpr std::size_t bundles_made_at_once = 4; // the other worker threads serve clients
constexpr std::size_t bundle_slots_max = 4096;  // bundles, and those that may not be made now
// A bundle whose contents are at nodes is for a few clients: all would ask the same nodes. When so
// many requests of one user have come within this time, the next ones get one with contents, which
// they pass on.
constexpr std::size_t bundle_few = 4;
constexpr std::chrono::seconds bundle_few_within{10};
constexpr std::size_t bundle_nodes_max = 64; // different ones in a bundle
// After a bundle could not be made, or was voided young, it is not made for this time. The time
// doubles each time, up to a minute: a directory that keeps changing has no bundle.
constexpr std::chrono::milliseconds bundle_pause{250}, bundle_pause_max{60000};

class bundle
{
public:
	explicit bundle(lease_table &);
	~bundle();
	bundle(const bundle &) = delete;
	bundle &operator=(const bundle &) = delete;
	static std::shared_ptr<bundle> create(lease_table &);

	const std::shared_ptr<session> holder; // of its leases
	lease_table::fids covered;             // the files of these leases
	inode_ref file;                        // its bytes
	std::uint64_t size = 0;
	digest proof{};                       // SHA-256 of them
	std::vector<std::uint32_t> nodes;     // that have contents of it: clients have to know them
	std::uint64_t left = 0, contents = 0; // bytes of these contents, and of those in it
	// SUBTREE: the handles of directories that did not fit, for the next part.
	std::vector<std::string> rest;

	bool stands() const { return !voided_; }

private:
	void on_recall();
	lease_table &leases_;
	std::atomic<bool> voided_{false};
};

// What it is a bundle of, and for whom. As one string: it is a key.
std::string bundle_key(const coop_st_body &request);

class bundle_table
{
public:
	using clock = std::chrono::steady_clock;

	explicit bundle_table(std::size_t bytes_max = bundle_bytes_max) : bytes_max_(bytes_max) {}

	// False: another thread makes this bundle; go() is called when it has ended. True: makes
	// says whether the caller has to make it and to call made(), whatever happens.
	[[nodiscard]] bool begin(const std::string &key, bool &makes, std::function<void()> go,
				 clock::time_point now = clock::now());
	// Notes that a client asks for this bundle. no: enough have done so lately, and more than
	// half of it is at nodes. later: that is not known until it has been made.
	enum class few { yes, no, later };
	[[nodiscard]] few for_few(const std::string &key, clock::time_point now = clock::now());
	// Of a bundle that stands: the nodes that have more than half of its contents.
	std::vector<std::uint32_t> nodes_of(const std::string &key) const;
	// null: it could not be made.
	void made(const std::string &key, std::shared_ptr<bundle>,
		  clock::time_point now = clock::now());
	// A bundle that stands, or null.
	std::shared_ptr<bundle> find(const std::string &key);
	// The directories that the part of this key left for the next one.
	std::vector<std::string> rest_of(const std::string &key) const;

	std::size_t bytes() const;
	struct counters {
		std::atomic<std::uint64_t> made{0}, used{0}, refused{0}, voided{0};
	};
	counters count;
	// Bytes of all bundles in memory.
	const std::shared_ptr<std::atomic<std::size_t>> alive =
		std::make_shared<std::atomic<std::size_t>>(0);

private:
	struct slot {
		std::shared_ptr<bundle> made;
		std::vector<std::string> rest; // outlives the bundle
		bool making = false;
		std::vector<std::function<void()>> waiting;
		clock::time_point since{}, barred{};
		std::array<clock::time_point, bundle_few> asked{}; // see for_few()
		std::size_t oldest = 0;                            // of these
		clock::duration pause{};
		std::list<std::string>::iterator use{}; // while 'made'
	};
	void drop_locked(slot &, std::vector<std::shared_ptr<bundle>> &gone);
	void bar_locked(slot &, clock::time_point now);
	void trim_locked(std::vector<std::shared_ptr<bundle>> &gone, clock::time_point now);

	const std::size_t bytes_max_;
	mutable std::mutex mutex_; // guards all below
	std::unordered_map<std::string, slot> slots_;
	std::size_t making_ = 0;
	std::list<std::string> uses_; // keys of made bundles, the longest unused first
	std::size_t bytes_ = 0;       // of these
};

} // namespace coop::daemon
