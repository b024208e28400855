// SPDX-License-Identifier: MIT
// datagram_port.hpp - links over one reliable-datagram end point (FI_EP_RDM): shm.
//
// libfabric's shm does not say when a peer appears or dies, gives its completion queue no
// descriptor to wait for, and makes progress only when it is polled. So each link has a socket
// of the host beside it: over it the two agree on their names, its hang-up is the end of the
// link, and along with the names each gives the other a bell (an eventfd) and a page with one
// flag, "asleep". Whoever goes to sleep sets the flag and polls once more; whoever has
// sent something looks at the flag and rings. A machine that is polled costs its peers a
// fence and a load.
//
// Data goes from memory to memory by a call of the kernel's, here and not in libfabric (1.17),
// which makes the same call, but while it holds a spin lock in the peer's shared memory: a process
// killed then would leave the peer to turn for ever. Words still take that lock, for the time that
// it takes to copy them. Who wants the data reads it, so that a process that is stopped has
// nothing left to write when it goes on. Where the kernel does not let us read, the peer writes.
//
// The files that shm leaves in /dev/shm when its process is killed carry that process in
// their names and are swept by the next machine that starts or loses a peer.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <vector>

#include "agenda.hpp"
#include "host_socket.hpp"
#include "neighbours.hpp"
#include "port.hpp"

namespace coop::net::fabric
{

class datagram_port final : public port
{
public:
	datagram_port(const provider &, events &);
	~datagram_port() override;

	int start(const address &own) override;
	fid_domain &domain() override { return *own_->base.domain; }
	fid_cq &queue() override { return *own_->base.queue; }
	fid_ep &receiver() override { return *own_->ep; }
	int connect(link &) override;
	void catch_up(link &) override;
	void close(link &) override;
	/// The peer writes by itself, through the kernel.
	bool close_is_quiet() const override { return false; }
	unsigned poll() override;
	void sent(link &) override;
	int write(link &, std::span<iovec>, std::uint64_t) override;
	bool lends() const override { return provider_.virtual_addresses(); }
	bool reads(const link &) const override;
	int read(link &, std::span<iovec>, std::uint64_t) override;
	bool arm() override;
	int fd() const override { return epoll_.get(); }
	time_point deadline() const override;
	void expire(time_point now) override;

private:
	/// What is in the page that peers share.
	struct page {
		std::atomic<std::uint32_t> asleep;
	};
	struct unmap {
		void operator()(page *p) const noexcept;
	};
	using page_ptr = std::unique_ptr<page, unmap>;

	struct half : link::side {
		fabric::link *link = nullptr; // null: accepted, and has not said hello
		descriptor socket, bell, end; // end: of the peer's process
		page_ptr theirs;
		std::string name; // of the peer's end point; empty: none in the table
		int pid = 0;      // of the peer; 0: its memory is libfabric's business
		time_point give_up = never;
		agenda<half>::place turn; // while it connects
		bool inquiring = false;   // the greeting is out
		bool readable = false;    // its memory, by us
	};

	int open();
	int make_page();
	static page_ptr map_page(int fd);
	int watch(int fd, void *what);
	void forget(half &);
	int greet(half &);
	void attempt(half &);
	void accept_all();
	void mind_listener();
	void heard(half &);
	static bool may_read(int pid);
	bool pair(half &, const std::string &text, descriptor bell, descriptor page);
	void drop_stranger(half &);
	bool forget_neighbours();

	const provider &provider_;
	events &events_;
	descriptor epoll_, listener_, bell_, page_fd_;
	page_ptr page_;
	std::string name_;
	/// Made by open(); outlives the port where it has to.
	std::unique_ptr<neighbours::remains> own_;
	/// Peers' end points in the table of addresses, and how many links use each.
	std::map<std::string, std::pair<fi_addr_t, unsigned>> names_;
	std::list<std::unique_ptr<half>> strangers_;
	bool listening_ = false; // the listener may wake us
	agenda<half> connecting_;
	time_point sweep_ = never;
	std::set<std::string> gone_; ///< neighbours that were at the last sweep
};

} // namespace coop::net::fabric
