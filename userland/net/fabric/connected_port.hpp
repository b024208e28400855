// SPDX-License-Identifier: MIT
// connected_port.hpp - links over end points that connect (FI_EP_MSG): tcp, verbs.
//
// A passive end point listens on the first free port of the address. To connect is to try the
// peer's ports in turn: a refused one is out, and leads to the next at once; those that say
// nothing get their share of five seconds one after the other, and the last that is left the rest.
// So a foreign service on a port costs time and nothing else, a peer that was silent at first is
// asked again, and where nobody is, that is known within five seconds whatever the provider thinks.
//
// A descriptor that somebody may wait for has the kernel call back with everything that arrives,
// at the expense of whoever sends. libfabric's tcp can do without one, polls its sockets one by
// one, and tells which they are: for a program that polls and has few of them (sockets=1). They
// are watched only while somebody sleeps, and looked up when he falls asleep, by arm() alone:
// until libfabric is asked for completions its list is that of before.
//
// That the device has gone is believed of whoever listens. Of an end point to a peer the same
// error may only say that the peer cannot be reached by way of the device, so it is asked for anew.
#pragma once

#include <vector>

#include <poll.h>

#include "agenda.hpp"
#include "objects.hpp"
#include "port.hpp"
#include "ports.hpp"

namespace coop::net::fabric
{

class connected_port final : public port
{
public:
	connected_port(const provider &, events &);
	~connected_port() override;

	int start(const address &own) override;
	fid_domain &domain() override { return *base_.domain; }
	fid_cq &queue() override { return *base_.queue; }
	fid_ep &receiver() override { return *srx_; }
	int connect(link &) override;
	void catch_up(link &) override { (void)look(); }
	void close(link &) override;
	bool close_is_quiet() const override { return true; }
	unsigned poll() override;
	bool arm() override;
	int fd() const override { return fd_; }
	time_point deadline() const override { return std::min(connecting_.earliest(), stale_); }
	void expire(time_point now) override;

private:
	struct half : link::side {
		handle<fid_ep> ep;
		port_list ports;
		unsigned at = 0;          // the port that is being tried
		unsigned left = 0;        // bits: ports that have not refused
		bool unreachable = false; // the host is, for one of them at least
		time_point give_up = never;
		agenda<link>::place turn; // while it connects
	};

	int open(const address &own);
	unsigned look();
	void drop(handle<fid_ep> &);
	int list_sockets(std::vector<pollfd> &) const;
	int watch_sockets();
	void forget_sockets();
	int listen(const address &own, std::uint16_t);
	int make(link &, fi_info &, handle<fid_ep> &);
	int attempt(link &);
	void try_next(link &);
	void refused(link &, int error);
	void give_up(link &);
	void forget(link &);
	void on_request(fi_eq_cm_entry &, std::size_t size);
	void on_connected(const fi_eq_cm_entry &, std::size_t size);
	void on_error();
	bool device_gone() const { return !provider_.at(own_); }

	const provider &provider_;
	events &events_;
	address own_;
	int fd_ = -1;
	info_ptr info_; // ours, without a port
	objects base_;
	handle<fid_eq> eq_;
	handle<fid_ep> srx_;
	handle<fid_pep> pep_;
	bool sockets_ = false;        ///< the queue has no descriptor of its own
	std::vector<pollfd> watched_; ///< by fd_, in the order of their numbers
	unsigned unarmed_ = 0;        ///< calls of poll() since
	time_point stale_ = never;    ///< past: whoever is asleep is to look them up again
	agenda<link> connecting_;
	std::vector<fid_t> unanswered_; // requests, while we are mute
};

} // namespace coop::net::fabric
