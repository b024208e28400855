// SPDX-License-Identifier: MIT
// machine.hpp - a transfer machine on libfabric.
//
// Small messages are sent unasked into receive buffers that are posted once for all peers, and are
// copied from there: that costs less than asking for a place. Larger messages and bulk data are
// first negotiated, and then moved by RMA from place to place (wire.hpp).
//
// A machine is made of parts that own their state; each uses only those above it:
//
//   environment  the core, the provider, the port, the options; and two parts for all others:
//     endings    links, and a device, whose end has been noticed
//     registrar  memory registered with the domain
//   works        operations and large messages under way
//   sends        control messages, and what libfabric has been given or had no room for
//   receives     receive buffers
//   transfers    bulk data and large messages; its mover moves the bytes
//   messages     small messages, and the window
//   peers        the peers, and the link to send on to each
//   partings     links that end without an error
//   links        all links; the port reports to it
//
// The core holds the one lock of the transfer machine (userland/net/machine.hpp) in every call; no
// part has a lock or a thread. The machine reads the completion queue and passes each completion to
// its part. At the end of every call, never within the handling of a completion, settle() closes
// links that have failed.
#pragma once

#include "links.hpp"
#include "receives.hpp"

namespace coop::net::fabric
{

class machine final : public spi::transport_machine
{
public:
	machine(spi::sink &, const provider &, const options &, local_keys &);
	~machine() override;

	int prepare(const address &own) override;
	int start(const address &own) override;
	void stop() override;
	int submit(spi::token, const spi::transfer &) override;
	void cancel(spi::token) override;
	int describe(spi::token, std::span<std::byte>) override { return 0; }
	void receivable() override;
	int peer_open(spi::peer_number n, const address &a) override
	{
		return links_.peer_open(n, a);
	}
	void peer_close(spi::peer_number n) override { peers_.close(n); }
	unsigned progress(unsigned budget) override;
	bool arm() override;
	int fd() const override { return port_->fd(); }
	time_point deadline() const override;
	void expire(time_point now) override;

private:
	unsigned drain(unsigned budget);
	void drain_all();
	void complete(const fi_cq_data_entry &);
	void complete_error();
	void completed(posted &, int status);
	void arrived(bounce &, std::size_t length, std::uint64_t word);
	void heard(link &, const bounce &, std::size_t length, std::uint64_t word);
	void on_control(link &, const control &);
	void landed(std::uint64_t word);
	void settle();
	void close_dying();
	void close(link &);
	void shut();
	void finish_stop();

	// libfabric may use the memory of works, copies and receives until the port is closed, and
	// regions must be closed before its domain: see ~machine().
	std::unique_ptr<port> port_;
	environment env_;
	works works_;
	sends sends_;
	receives receives_;
	transfers transfers_;
	messages messages_;
	peers peers_;
	partings partings_;
	links links_;

	unsigned to_poll_ = 0; ///< calls of progress() until the port is polled
	bool settling_ = false, stopping_ = false, over_ = false;
	time_point stop_by_ = never;
};

} // namespace coop::net::fabric
