// SPDX-License-Identifier: MIT
// connected_port.hpp - links over end points that connect (FI_EP_MSG): tcp, verbs.
//
// A passive end point listens on the first free port of the address. To connect is to try the
// peer's ports in turn: a refused one is out, and leads to the next at once; those that say
// nothing get their share of five seconds one after the other, and the last that is left the rest.
// So a foreign service on a port costs time and nothing else, a peer that was silent at first is
// asked again, and where nobody is, that is known within five seconds whatever the provider thinks.
#pragma once

#include <vector>

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
	void catch_up(link &) override { (void)poll(); }
	void close(link &) override;
	bool close_is_quiet() const override { return true; }
	unsigned poll() override;
	bool arm() override;
	int fd() const override { return fd_; }
	time_point deadline() const override;
	void expire(time_point now) override;

private:
	struct half : link::side {
		handle<fid_ep> ep;
		port_list ports;
		unsigned at = 0;   // the port that is being tried
		unsigned left = 0; // bits: ports that have not refused
		time_point next = never, give_up = never;
	};

	int open(const address &own);
	int listen(const address &own, std::uint16_t);
	int make(link &, fi_info &, handle<fid_ep> &);
	int attempt(link &);
	void try_next(link &);
	void refused(link &);
	void forget(link &);
	void on_request(fi_eq_cm_entry &, std::size_t size);
	void on_connected(const fi_eq_cm_entry &, std::size_t size);
	void on_error();

	const provider &provider_;
	events &events_;
	address own_;
	int fd_ = -1;
	info_ptr info_; // ours, without a port
	objects base_;
	handle<fid_eq> eq_;
	handle<fid_ep> srx_;
	handle<fid_pep> pep_;
	std::vector<link *> connecting_;
	std::vector<fid_t> unanswered_; // requests, while we are mute
};

} // namespace coop::net::fabric
