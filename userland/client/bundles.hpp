// SPDX-License-Identifier: MIT
// bundles.hpp - what a mount does with bundles: asks for them, checks them, and enters what they
// say into the lease book.
//
// The leases of what is in a bundle come with the reply that opens it, so its ticket is taken
// before that request: a recall that overtakes the reply, or comes while the bundle is read,
// prevails. The reply has the SHA-256 of the bundle, so it does not matter who sent the bytes. A
// bundle that is late, wrong or missing costs a request; then storage is asked as without bundles.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>

#include "userland/client/bundle_policy.hpp"
#include "userland/client/lease_book.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

class bundles
{
public:
	// Peers read a bundle from the nodes that have it open.
	static constexpr std::chrono::seconds stays_open{10};

	bundles(bundle_reader &how, lease_book &book) : how_(how), book_(book) {}
	// A reply has described this file in 'dir'.
	void found(const handle &dir, const entry &);
	// A reply has said that other clients use this directory: asks for the bundle that the
	// policy wants now, if any, and waits for it.
	// False: a reply has given leases of files that it did not come to know.
	[[nodiscard]] bool ask(storage &, const caller &, const handle &dir);
	// A listing of 'dir' has described these. True: others use the directory, call ask().
	[[nodiscard]] bool listed(const handle &dir, const std::vector<dir_entry> &);
	// The directory to call ask() for before storage is asked to open this file.
	std::optional<handle> before_open(const handle &file) { return policy_.opened(file); }
	void close_old(storage &);
	void count(lease_figures &) const;
	// Enters a bundle's statements. False: it is malformed, or none of its directories is
	// believed.
	bool learn(lease_book::ticket asked, const caller &, const open_bundle &,
		   std::string_view bytes);

private:
	struct directory;
	void learn_entry(lease_book::ticket, const caller &, const open_bundle &, directory &,
			 const coop_st_body &, std::string_view content);
	bool learn_directory(lease_book::ticket, const caller &, directory &);

	struct open_file {
		handle dir;
		open_bundle what;
		std::chrono::steady_clock::time_point since;
	};
	bundle_reader &how_;
	lease_book &book_;
	bundle_policy policy_;
	std::mutex asking_; // one at a time: a bundle pins a good part of the page store
	std::mutex mutex_;  // guards the next
	std::deque<open_file> open_;
	std::atomic<std::uint64_t> asked_{0}, used_{0}, files_{0};
};

} // namespace coop::client
