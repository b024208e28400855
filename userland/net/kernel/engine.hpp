// SPDX-License-Identifier: MIT
// engine.hpp - the engines in the kernel, as the parts of the ud transport call for them.
//
// What they ask for becomes operations in the ring, each with a handle; the machine passes events
// back by the handles' records. Owns the texts of bulk messages, and the list of
// sessions. Used under the lock of the machine.
#pragma once

#include <array>
#include <unordered_set>
#include <vector>

#include "device.hpp"
#include "handles.hpp"
#include "userland/net/ud/bulk.hpp"
#include "userland/net/ud/fetch_engine.hpp"
#include "userland/net/ud/message_engine.hpp"
#include "userland/net/ud/operations.hpp"

namespace coop::net::kernel
{

/// A request for these pages, with this handle, into this buffer. `want` gets them as bits from the
/// first on.
coop_net_op fetch_op(const ud::reading &, const coop_fetch_req &, const fetch_host::page_list &,
		     std::uint32_t handle, std::uint32_t buffer, std::uint64_t &want);
/// Of the pages that a request wanted, those that its event names, by ordinal.
std::uint64_t ordinals_of(std::uint64_t want, std::uint64_t pages);
/// Shows this operation to any reader.
coop_net_op offer_op(const ud::op &, std::uint32_t handle, std::uint32_t buffer);

class engine final : public ud::message_engine, public ud::fetch_engine, public ud::offers
{
public:
	engine(const options &, device &, handles &);
	/// Before any other call.
	void serve(ud::operations &o, const ud::peers &p)
	{
		operations_ = &o;
		peers_ = &p;
	}

	// Messages.
	std::int64_t open(const coop_chan_peer_addr &, spi::peer_number, ud::identity,
			  std::uint64_t now) override;
	void admit(std::uint32_t session, spi::peer_number, ud::identity) override;
	void close(std::uint32_t session, std::uint64_t now) override;
	bool info(std::uint32_t session, coop_chan_peer_info &) const override;
	std::uint32_t sessions() const override
	{
		return static_cast<std::uint32_t>(sessions_.size());
	}
	/// A stranger has begun one, which may be over.
	void appeared(std::uint32_t session)
	{
		if (coop_chan_peer_info i; info(session, i))
			sessions_.insert(session);
	}
	int send(const coop_chan_msg &, std::uint64_t now, std::uint32_t &id) override;
	void cancel(std::uint32_t id, std::uint64_t now) override;
	std::uint32_t unit() const override;
	std::byte *text(std::uint32_t index) override { return texts_[index].data(); }
	int deliver_here(std::uint32_t index, ud::op &) override;

	// Bulk, the receiving side.
	std::uint32_t max_pages() const override { return fetch_pages_; }
	std::uint32_t run() const override { return COOP_NET_RUN; }
	std::uint32_t peer(spi::peer_number, bool renew, std::uint64_t now) override;
	int submit(const ud::reading &, const coop_fetch_req &, const fetch_host::page_list &,
		   std::uint64_t now) override;
	void cancel_fetch(std::uint32_t number, std::uint64_t now) override;
	/// The pages of a request by ordinal, from those of its event.
	std::uint64_t ordinals(std::uint32_t number, std::uint64_t pages) const;

	// Bulk, the sending side.
	void begin(std::uint32_t index) override;
	void end(std::uint32_t index) override;
	/// The module has ended it.
	void over(std::uint32_t index) { placeless_.erase(index); }
	/// The address of a peer has become known: offers for it alone are for that address.
	void place(spi::peer_number);

private:
	struct request {
		std::uint32_t handle = handles::none;
		std::uint64_t want = 0;
	};

	device &device_;
	handles &handles_;
	ud::operations *operations_ = nullptr;
	const ud::peers *peers_ = nullptr;
	const std::uint32_t fetch_pages_;
	std::vector<std::array<std::byte, ud::bulk_message::bytes>> texts_; // by operation
	std::vector<request> requests_;                                     // by number
	std::vector<std::uint32_t> offered_;                                // handles, by operation
	std::unordered_set<std::uint32_t> sessions_;
	std::unordered_set<std::uint32_t> placeless_; // offers to a peer of unknown address
};

} // namespace coop::net::kernel
