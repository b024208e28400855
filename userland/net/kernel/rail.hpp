// SPDX-License-Identifier: MIT
// rail.hpp - a further rail of a machine of the kernel transport: another open file of
// /dev/coop-net, on another device, for bulk data alone.
//
// The first rail is the machine's own file (machine.hpp), by which its messages go. Requests of
// this one are operations in its own ring, and the operations that peers may read are offered in it
// as well. At the IP address of its device a resolver tells peers its queue pairs, as every rail of
// ud does, and peers' rails are known by the same exchange (peer_rails.hpp of ud).
//
// The module asks and answers sessions of rpc/chan only, so there is one with each peer's rail that
// has proven its address; it carries nothing. Others' sessions are closed. If there are too many,
// one makes room: a request and an offer keep the address that it had.
//
// Used under the lock of the machine, except prepare().
#pragma once

#include <optional>
#include <vector>

#include "device.hpp"
#include "handles.hpp"
#include "offers.hpp"
#include "userland/net/ud/fetch_engine.hpp"

namespace coop::net::kernel
{

class rail final : public ud::fetch_engine, public further_offers
{
public:
	/// `number`: from 1 on.
	rail(const options &, unsigned number, buffers &);
	~rail() { close(); }
	rail(const rail &) = delete;
	rail &operator=(const rail &) = delete;

	/// Opens the file, and pins the domain's buffers for it. @return 0 or -errno.
	int prepare();
	/// The resolver's socket. @throw std::system_error.
	void claim(ud::identity own);
	void unclaim() { resolver_.reset(); }
	void make(const ud::operations &, const ud::peers &, const ud::peer_rails &);
	/// From here on the network writes to no buffer.
	void close();

	unsigned number() const { return number_; }
	const std::string &name() const { return options_.device.device; }
	std::uint32_t ip() const { return ip_; }
	ud::resolver &resolver() { return *resolver_; }
	/// Null: the device was removed.
	kernel::device *device() { return device_ ? &*device_ : nullptr; }
	kernel::handles &uses() { return *handles_; }
	/// Ends the session that this stranger has begun.
	void refuse(std::uint32_t session);
	/// What is known of this peer is over, or its number is about to be reused.
	void forget(spi::peer_number);

	// The receiving side.
	std::uint32_t max_pages() const override { return fetch_pages_; }
	std::uint32_t run() const override { return COOP_NET_RUN; }
	std::uint32_t peer(spi::peer_number, bool renew, std::uint64_t now) override;
	int submit(const ud::reading &, const coop_fetch_req &, const fetch_host::page_list &,
		   std::uint64_t now) override;
	void cancel_fetch(std::uint32_t number, std::uint64_t now) override;
	/// The pages of a request by ordinal, from those of its event.
	std::uint64_t ordinals(std::uint32_t number, std::uint64_t pages) const;

	// The sending side.
	bool knows(spi::peer_number n) const override { return device_ && rails_->at(n, number_); }
	/// For its peer alone, if it has one, which must be known.
	bool begin(std::uint32_t index) override;
	void end(std::uint32_t index) override;

private:
	struct session {
		std::uint32_t id = 0;
		coop_chan_peer_addr where{};
	};
	struct request {
		std::uint32_t handle = handles::none;
		std::uint64_t want = 0;
	};

	bool find(const spi::memory &, std::uint32_t &buffer);
	void drop(session &);
	bool make_room(spi::peer_number for_this);

	options options_; // with the device of this rail
	const unsigned number_;
	buffers &buffers_;
	std::optional<kernel::device> device_;
	std::optional<ud::resolver> resolver_;
	std::optional<kernel::handles> handles_;
	const ud::operations *operations_ = nullptr;
	const ud::peers *peers_ = nullptr;
	const ud::peer_rails *rails_ = nullptr;
	std::uint32_t ip_ = 0, fetch_pages_ = 0;
	std::vector<session> sessions_;      // by peer number
	std::size_t next_victim_ = 0;        // in sessions_
	std::vector<request> requests_;      // by number, of all rails
	std::vector<std::uint32_t> offered_; // handles, by operation
};

} // namespace coop::net::kernel
