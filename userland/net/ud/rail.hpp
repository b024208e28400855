// SPDX-License-Identifier: MIT
// rail.hpp - one way of a machine into the network, and what runs on it alone.
//
// A machine has a rail at the IP address in its own address, and one for each in rails=. Each is an
// end point of userland/ud, at whose IP address a resolver tells peers the queue pairs, with its
// own engine of rpc/fetch: so requests for bulk data go by all rails at once, and each is answered
// by the rail that it came to. Messages go by the first, or by another if that fails
// (peer_rails.hpp).
//
//   claim()                    the resolver's socket
//   begin()                    the end point and its queue pairs, and memory is set apart
//   fetch_by(), serve()        the receiving and the sending side of bulk
//   make()                     all of it works
//
// Used under the lock of the machine, except prepare().
#pragma once

#include <memory>
#include <optional>

#include "device_memory.hpp"
#include "fetcher.hpp"
#include "resolver.hpp"
#include "source.hpp"
#include "userland/fetch-host/host.hpp"

namespace coop::net::ud
{

class rail
{
public:
	/// `number`: 0 for the one of the machine's address.
	rail(const options &, unsigned number, memory_keys &);
	~rail() { close(); }
	rail(const rail &) = delete;
	rail &operator=(const rail &) = delete;

	/// Opens the device, if there is one, and registers the domain's buffers with it. @return 0
	/// or -errno.
	int prepare();
	/// @throw std::system_error, as the next ones. EADDRINUSE: then the device stays.
	void claim(identity own);
	void unclaim() { resolver_.reset(); }
	void begin(identity own);
	void fetch_by(const peers &, const peer_rails &);
	void serve(bulk &);
	void make(reader &, std::uint64_t now);
	/// From here on the network writes to no buffer.
	void close();
	/// The device was removed: all that was under way on it ends, and is closed. Not of the
	/// last rail, whose machine fails.
	void lose(reader &, std::uint64_t now);
	/// Its end point is there.
	bool open() const { return endpoint_ != nullptr; }
	/// After close(): ends the registrations with the device, which no operation uses any more.
	void forget() { keys_.forget(this); }

	unsigned number() const { return number_; }
	std::uint32_t ip() const { return ip_; }
	ud::resolver &resolver() { return *resolver_; }
	coop::ud::endpoint &endpoint() { return *endpoint_; }
	fetch_host::slab &slab() { return *slab_; }
	ud::channels &channels() { return *channels_; }
	device_memory &memory() { return *memory_; }
	ud::fetcher &fetcher() { return *fetcher_; }
	fetch_host::host &host() { return *host_; }
	coop_engine *engine() const { return host_->engine(); }

	/// The network has changed since the last call.
	bool changed();
	/// Its device was removed.
	bool lost() const { return lost_; }
	/// Own addresses that are other ones than at the last call: peers learn them from now on.
	bool moved();

private:
	std::unique_ptr<coop::ud::endpoint> make_soft_roce(identity own) const;

	const options &options_;
	const unsigned number_;
	memory_keys &keys_;
	std::uint32_t ip_ = 0; // host byte order

	// In the order of construction; close() destroys the end point before the memory that it
	// uses.
	std::optional<ud::resolver> resolver_;
	std::unique_ptr<coop::ud::endpoint> endpoint_;
	std::optional<fetch_host::slab> slab_;
	std::optional<ud::channels> channels_;
	std::optional<device_memory> memory_;
	std::optional<ud::fetcher> fetcher_;
	std::optional<source> source_;
	std::optional<fetch_host::host> host_;
	coop_chan_peer_addr self_{}; // as peers know it
	std::uint32_t changes_ = 0;  // of the network
	bool lost_ = false;
};

} // namespace coop::net::ud
