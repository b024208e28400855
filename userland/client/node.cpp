// SPDX-License-Identifier: MIT
// node.cpp - the node's public face: node_core does the work, node_driver says on
// which thread.
#include "userland/client/node.hpp"

#include <atomic>
#include <bit>
#include <cerrno>
#include <mutex>

#include "userland/client/node_core.hpp"
#include "userland/client/node_driver.hpp"

namespace coop::client
{

namespace
{

// Beyond peer_timeout: how long an ending node waits for its queue pairs to become quiet.
constexpr std::uint64_t quiesce_us = 1000000;
// Of fetches with more pages the store has made the memory present before.
constexpr int few_pages = 8;

// Has the page there before its datagram comes; what it holds stays as it is, whoever writes.
void touch(std::byte *page)
{
	__atomic_fetch_or(reinterpret_cast<unsigned char *>(page), 0, __ATOMIC_RELAXED);
}

class node_impl final : public node
{
public:
	node_impl(const node_options &o, std::unique_ptr<ud::endpoint> ep, page_store &store) :
		timeout_us_(o.peer_timeout_ms * std::uint64_t{1000}),
		core_(o, std::move(ep), store),
		driver_(std::make_unique<node_driver>(core_, o.poll_us))
	{
	}
	~node_impl() override;

	coop_addr self() const override
	{
		const std::lock_guard lock(driver_->mutex());
		return core_.self();
	}
	int fetch(const content_key &, std::uint64_t file_size, block_ref, std::uint64_t pages,
		  const std::vector<std::uint32_t> &openers,
		  std::function<void(const fetch_outcome &)> done) override;
	std::uint32_t in_flight() const override { return driver_->in_flight(); }
	void drive_until(const std::function<bool()> &ready, std::uint64_t deadline_us) override
	{
		driver_->drive_until(ready, deadline_us);
	}
	void tend() override { driver_->tend(); }
	void wake() override { driver_->wake(); }

	void daemon_join(std::uint32_t node_id, const coop_addr &addr) override
	{
		const std::lock_guard lock(driver_->mutex());
		core_.join(node_id, addr, clock_us());
	}
	void daemon_leave(std::uint32_t node_id) override
	{
		const std::lock_guard lock(driver_->mutex());
		core_.leave(node_id);
	}
	void daemon_forget_all() override
	{
		const std::lock_guard lock(driver_->mutex());
		core_.forget_all();
	}
	int add_by_hand(const coop_addr &addr) override
	{
		const std::lock_guard lock(driver_->mutex());
		return core_.add_by_hand(addr, clock_us());
	}
	std::vector<coop_peer_info> peers() const override;
	std::vector<coop_request_info> requests() const override;
	struct coop_engine_stats stats() const override;
	ud::endpoint_stats endpoint_stats() const override;
	ud::endpoint_state endpoint_state() const override
	{
		const std::lock_guard lock(driver_->mutex());
		return core_.endpoint().state();
	}
	void reset_stats() override;

private:
	const std::uint64_t timeout_us_;
	std::atomic<bool> ending_{false}; // callbacks of what ends now may ask for more
	node_core core_;
	ud::endpoint_stats endpoint_base_{}; // at the last reset; under the engine mutex
	std::unique_ptr<node_driver> driver_;
};

node_impl::~node_impl()
{
	ending_.store(true);
	{
		const std::lock_guard lock(driver_->mutex());
		core_.cancel_all(clock_us());
	}
	driver_->drive_until([this] { return driver_->in_flight() == 0; },
			     clock_us() + timeout_us_ + quiesce_us);
	driver_.reset();
	core_.close();
	for (node_requester::ended &e : core_.take_ended())
		e.done(e.outcome);
}

int node_impl::fetch(const content_key &key, std::uint64_t file_size, block_ref pin,
		     std::uint64_t pages, const std::vector<std::uint32_t> &openers,
		     std::function<void(const fetch_outcome &)> done)
{
	if (key.version == 0 || pages == 0 || !pin || ending_.load())
		return -ENOENT;
	std::vector<node_requester::ended> ended;
	const block_ref held = std::popcount(pages) <= few_pages ? pin.clone() : block_ref();
	int err;
	{
		const std::lock_guard lock(driver_->mutex());
		err = core_.fetch(key, file_size, std::move(pin), pages, openers, std::move(done),
				  clock_us());
		if (err == 0) {
			driver_->note_submitted();
			if (core_.has_ended())
				ended = core_.take_ended();
		}
	}
	// The request is under way: page faults cost nothing now.
	for (std::uint64_t left = held && err == 0 ? pages : 0; left != 0; left &= left - 1)
		touch(held->data(static_cast<std::uint32_t>(std::countr_zero(left))));
	if (!ended.empty())
		driver_->report(std::move(ended));
	return err;
}

std::vector<coop_peer_info> node_impl::peers() const
{
	const std::lock_guard lock(driver_->mutex());
	std::vector<coop_peer_info> out;
	std::uint32_t cursor = 0;
	for (coop_peer_info p; coop_engine_peer_next(core_.engine(), &cursor, &p);)
		out.push_back(p);
	return out;
}

std::vector<coop_request_info> node_impl::requests() const
{
	const std::lock_guard lock(driver_->mutex());
	std::vector<coop_request_info> out;
	std::uint32_t cursor = 0;
	for (coop_request_info r;
	     coop_engine_request_next(core_.engine(), &cursor, clock_us(), &r);)
		out.push_back(r);
	return out;
}

struct coop_engine_stats node_impl::stats() const
{
	const std::lock_guard lock(driver_->mutex());
	struct coop_engine_stats s;
	coop_engine_stats(core_.engine(), &s);
	return s;
}

ud::endpoint_stats node_impl::endpoint_stats() const
{
	const std::lock_guard lock(driver_->mutex());
	ud::endpoint_stats s = core_.endpoint().stats();
	const ud::endpoint_stats &b = endpoint_base_;
	s.tx_packets -= b.tx_packets;
	s.tx_bytes -= b.tx_bytes;
	s.tx_calls -= b.tx_calls;
	s.tx_errors -= b.tx_errors;
	s.rx_packets -= b.rx_packets;
	s.rx_bytes -= b.rx_bytes;
	s.rx_calls -= b.rx_calls;
	s.rx_bad_icrc -= b.rx_bad_icrc;
	s.rx_malformed -= b.rx_malformed;
	s.rx_no_qp -= b.rx_no_qp;
	s.rx_bad_qkey -= b.rx_bad_qkey;
	s.rx_no_wr -= b.rx_no_wr;
	s.rx_too_long -= b.rx_too_long;
	s.rx_copied -= b.rx_copied;
	return s;
}

void node_impl::reset_stats()
{
	const std::lock_guard lock(driver_->mutex());
	coop_engine_stats_reset(core_.engine());
	endpoint_base_ = core_.endpoint().stats();
}

} // namespace

std::unique_ptr<node> node::create(const node_options &o, std::unique_ptr<ud::endpoint> ep,
				   page_store &store)
{
	return std::make_unique<node_impl>(o, std::move(ep), store);
}

} // namespace coop::client
