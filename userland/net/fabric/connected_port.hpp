// SPDX-License-Identifier: MIT
// connected_port.hpp - links over end points that connect (FI_EP_MSG): tcp, verbs.
//
// If a thread may wait for the completion queue's descriptor, the kernel makes a callback for
// everything that arrives, which slows down the sender. libfabric's tcp can do without such a
// descriptor: it polls its sockets one by one and lists them. This suits a program that polls and
// has few connections (sockets=1). The sockets are watched only while a thread sleeps, and listed
// when it goes to sleep, by arm() alone: until libfabric is asked for completions its list is
// outdated.
//
// If the passive end point reports that the device was removed, we believe it. From an end point to
// a peer the same error may mean only that the device does not reach the peer, so we list the
// devices again (device_gone()).
#pragma once

#include <vector>

#include <poll.h>

#include "objects.hpp"
#include "port.hpp"

namespace coop::net::fabric
{

class connected_port final : public port
{
public:
	using port::port;
	~connected_port() override;

	int prepare(const address &own, events &e) override
	{
		events_ = &e;
		own_ = own;
		return open(own);
	}
	int start(const address &own) override;
	fid_domain &domain() override { return *base_.domain; }
	fid_cq &queue() override { return *base_.queue; }
	fid_ep &receiver() override { return *srx_; }
	void catch_up(link &) override { (void)look(); }
	void close(link &) override;
	unsigned poll() override;
	bool arm() override;
	int fd() const override { return fd_; }
	time_point deadline() const override { return std::min(attempts_deadline(), stale_); }
	void expire(time_point now) override { expire_attempts(now); }

private:
	struct half : search {
		handle<fid_ep> ep;
	};

	int open(const address &own);
	unsigned look();
	void drop(handle<fid_ep> &);
	int list_sockets(std::vector<pollfd> &) const;
	int watch_sockets();
	void forget_sockets();
	int listen(const address &own, std::uint16_t);
	int make(link &, fi_info &, handle<fid_ep> &);
	int attempt(link &) override;
	void abandon(link &) override;
	std::unique_ptr<search> make_search() const override { return std::make_unique<half>(); }
	void on_request(fi_eq_cm_entry &, std::size_t size);
	void on_connected(const fi_eq_cm_entry &, std::size_t size);
	void on_error();
	bool device_gone() const override { return !provider_.at(own_); }

	address own_;
	int fd_ = -1;
	info_ptr info_; // for our address, without a port
	objects base_;
	handle<fid_eq> eq_;
	handle<fid_ep> srx_;
	handle<fid_pep> pep_;
	bool sockets_ = false;          ///< the queue has no descriptor of its own
	std::vector<pollfd> watched_;   ///< by fd_, sorted by descriptor
	unsigned unarmed_ = 0;          ///< calls of poll() since arm()
	time_point stale_ = never;      ///< past: a sleeping thread has to list the sockets again
	std::vector<fid_t> unanswered_; // requests held without an answer while we are mute
};

} // namespace coop::net::fabric
