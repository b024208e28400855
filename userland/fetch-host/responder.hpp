// SPDX-License-Identifier: MIT
// responder.hpp - the queue pairs that serves send from, and the records of serves.
//
// The memory of a page is read until the serve has ended, which is after the last send of it has
// completed. If a queue pair fails, what was under way on it counts as lost, and peers ask for
// it again. The queue pair takes no more sends until those under way have completed and it was
// recycled: with new ones it would never become empty.
//
// A device takes turns between queue pairs. If all were posted at once, each of many children would
// have its pages as late as the last one. So a user with shape::bounded posts sending_max bytes at
// a time, over all queue pairs.
#pragma once

#include <deque>
#include <vector>

#include "userland/fetch-host/page_memory.hpp"
#include "userland/fetch-host/shape.hpp"
#include "userland/fetch-host/slab.hpp"

namespace coop::fetch_host
{

/// The pages that serves send, by the cookie of the serve: less than shape::serves.
class served_pages : public page_memory
{
public:
	struct found {
		std::uint64_t have = 0; // by ordinal; of the others only those coming are asked for
		std::uint64_t coming = 0; // on their way: see lookup_wait
		std::uint64_t size = 0;   // of the file
		bool passed = false;      // the request went on to a peer: see lookup_pass
		bool kept = false;        // they do not change until end(): see lookup_kept
		bool later = false;       // not known yet: the user calls looked_up() when it is
		bool busy = false;        // cannot say now
	};
	/// Finds pages for EV_LOOKUP and holds them until end(). False: nothing is held, and with
	/// `busy` the requester shall ask again.
	virtual bool lookup(std::uint64_t cookie, const coop_ev &, found &) = 0;
	/// Of those that lookup() found: which have not changed since?
	virtual std::uint64_t unchanged(std::uint64_t cookie) = 0;
	/// sent: the pages that the requester has probably got.
	virtual void end(std::uint64_t cookie, std::uint64_t sent) = 0;

protected:
	~served_pages() = default;
};

class responder
{
public:
	/// Most bytes posted and not sent, and sends of a batch of the engine.
	static constexpr std::uint32_t sending_max = 512u << 10, batch_max = 64;

	responder(ud::endpoint &, const slab &, served_pages &, const shape &);
	/// Creates the queue pairs and tells the engine. @throw std::system_error.
	void make(coop_engine *);
	std::uint32_t n_qps() const { return static_cast<std::uint32_t>(qps_.size()); }
	std::uint32_t qp(std::uint32_t i) const { return qps_[i].qp; }
	/// Sends of one serve that a queue pair has room for.
	std::uint32_t depth() const;
	/// Is there room for another batch?
	bool has_room() const
	{
		return n_sending_ == 0 ||
		       (sending_ + batch_max * endpoint_.info().mtu <= sending_max &&
			n_sending_ + batch_max <= most_at_once());
	}

	void lookup(const coop_ev &, std::uint64_t now);
	/// What a lookup of this cookie that was left for later has found. Not within lookup().
	void looked_up(const coop_ev &, std::uint64_t cookie, const served_pages::found &,
		       std::uint64_t now);
	void recheck(const coop_ev &, std::uint64_t now);
	void end(const coop_ev &);
	void send(const coop_tx &, std::uint64_t now);
	void completed(std::uint32_t i, const ud::completion &, std::uint64_t now);

private:
	struct batch {
		std::uint32_t sends, bytes;
	};
	struct queue_pair {
		std::uint32_t qp = 0;
		std::deque<batch> unfinished; // each with a signalled send at its end
		bool dead = false;
		// A batch of which the device took a part, without the signalled send. Nothing
		// reports the end of that part but the reset of the queue pair. 0: none.
		std::uint32_t cut = 0, cut_id = 0;
	};
	struct page_sums {
		std::uint64_t of[COOP_MAX_PAGES] = {};
	};

	std::uint32_t most_at_once() const
	{
		return sending_max / endpoint_.info().mtu + batch_max;
	}
	std::uint32_t serves_a_qp() const { return (shape_.serves + n_qps() - 1) / n_qps(); }
	const std::uint64_t *sums(const coop_ev &, std::uint64_t cookie, std::uint64_t pages,
				  page_sums &) const;
	std::uint32_t fill(const coop_tx &, const coop_seg &, ud::sge *list);
	void stop(queue_pair &);
	void recycle(queue_pair &, std::uint64_t now);

	ud::endpoint &endpoint_;
	const slab &slab_;
	served_pages &pages_;
	const shape shape_;
	coop_engine *engine_ = nullptr;
	std::vector<queue_pair> qps_;
	std::vector<std::uint32_t> free_; // cookies
	std::uint32_t n_sending_ = 0;     // sends in the batches of all queue pairs
	std::uint64_t sending_ = 0;       // their bytes
	std::vector<ud::sge> sges_;
	std::vector<ud::send_wr> wrs_;
};

} // namespace coop::fetch_host
