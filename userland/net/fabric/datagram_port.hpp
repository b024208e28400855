// SPDX-License-Identifier: MIT
// datagram_port.hpp - links over one reliable-datagram end point (FI_EP_RDM): shm.
//
// libfabric's shm does not report when a peer appears or dies, has no descriptor to wait for
// completions, and makes progress only when polled. So each link has a socket of the host beside
// it. Over it the two sides exchange their names; its hang-up is the end of the link. Along with
// the names each gives the other a bell (an eventfd) and a page with one flag, "asleep". A thread
// that goes to sleep sets the flag and polls once more; a sender looks at the flag after sending,
// and rings. A machine that polls costs its peers a fence and a load.
//
// Data go from memory to memory by a system call, made here and not in libfabric (1.17). libfabric
// makes the same call while it holds a spin lock in the peer's shared memory: a process killed at
// that moment would leave the peer spinning forever. Control words still take that lock, while they
// are copied. The receiver reads the data, so that a stopped process has nothing left to write when
// it continues. If the kernel does not let us read, the peer writes.
//
// The files that shm leaves in /dev/shm when its process is killed have that process in their
// names; the next machine that starts or loses a peer removes them.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <vector>

#include "host_socket.hpp"
#include "neighbours.hpp"
#include "port.hpp"

namespace coop::net::fabric
{

class datagram_port final : public port
{
public:
	using port::port;
	~datagram_port() override;

	int prepare(const address &own, events &) override;
	int start(const address &own) override;
	fid_domain &domain() override { return *own_->base.domain; }
	fid_cq &queue() override { return *own_->base.queue; }
	fid_ep &receiver() override { return *own_->ep; }
	int connect(link &) override;
	void catch_up(link &) override;
	void close(link &) override;
	/// The peer itself writes, through the kernel, so close() does not stop it.
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
	/// Contents of the page that peers share.
	struct page {
		std::atomic<std::uint32_t> asleep;
	};
	struct unmap {
		void operator()(page *p) const noexcept;
	};
	using page_ptr = std::unique_ptr<page, unmap>;

	struct half : link::side {
		fabric::link *link = nullptr; // null: accepted, and no greeting yet
		descriptor socket, bell, end; // end: signals the exit of the peer's process
		page_ptr theirs;
		std::string name;       // of the peer's end point; empty: not in the table
		int pid = 0;            // of the peer; 0: only libfabric accesses its memory
		bool inquiring = false; // the greeting has been sent
		bool readable = false;  // we can read its memory
	};

	int open();
	int make_page();
	static page_ptr map_page(int fd);
	int watch(int fd, void *what);
	void forget(half &);
	int greet(half &);
	void try_again(link &) override;
	void give_up(link &l) override { events_->unlinked(l, -ECONNREFUSED); }
	void accept_all();
	void mind_listener();
	void heard(half &);
	static bool may_read(int pid);
	bool pair(half &, const std::string &text, descriptor bell, descriptor page);
	void drop_stranger(half &);
	bool forget_neighbours();

	descriptor epoll_, listener_, bell_, page_fd_;
	page_ptr page_;
	std::string name_;
	/// Made by open(); may outlive the port.
	std::unique_ptr<neighbours::remains> own_;
	/// Peers' end points in the address table, and the number of links that use each.
	std::map<std::string, std::pair<fi_addr_t, unsigned>> names_;
	std::list<std::unique_ptr<half>> strangers_;
	bool listening_ = false; // the listener may wake us
	time_point sweep_ = never;
	std::set<std::string> gone_; ///< neighbours found done at the last sweep
};

} // namespace coop::net::fabric
