// SPDX-License-Identifier: MIT
// datagrams.hpp - UD queue pairs: RoCE v2 in plain UDP, on every address of this machine.
//
// A process binds the same UDP port on each address: it follows from the process's slot, which is
// part of its queue-pair numbers. So an address and a queue-pair number say where a datagram goes,
// on this machine and on others. LID 1 and GID 0 are this machine, by 127.0.0.1; the other GIDs
// are its addresses. The sockets follow these: one that has come is served as soon as the kernel
// says so.
//
// A datagram that finds no queue pair, the wrong Q_Key or no receive vanishes, as on a fabric. All
// of it is under the node's lock, but for the thread that waits for datagrams while a completion
// queue that uses them is armed.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>
#include <unordered_map>
#include <vector>

#include <netinet/in.h>

#include "userland/ntrdma/verbs/addresses.hpp"
#include "userland/ntrdma/verbs/objects.hpp"
#include "userland/ud/icrc.hpp"

namespace coop::ntrdma::verbs
{

constexpr std::uint32_t datagram_most = 4096; ///< bytes of payload
constexpr std::size_t grh_bytes = 40;

/// What a UD queue pair has beside its number.
struct datagram_pair {
	verbs::pair *of;
	ibv_qp_state state = IBV_QPS_RESET;
	std::uint32_t qkey = 0, psn = 0;
	std::deque<recv_request> receives;
	std::uint32_t unpolled_sends = 0, unpolled_receives = 0;
	datagram_figures figures;
	void enter(ibv_qp_state);
};

struct address_handle {
	ibv_ah ah;
	gid_bytes from, to; ///< `from` had a number when this was created, and may have gone since
};

class datagrams
{
public:
	/// Throws as claim_port().
	datagrams(node &, std::uint32_t slot);
	~datagrams();

	/// Sees to it that each address has its socket. Throws std::system_error if another program
	/// has the port of one: what is sent there would not arrive.
	void claim_port();
	/// Opens and closes sockets so that each address has its own, where it can.
	void addresses_changed() { follow_addresses(); }

	void add(datagram_pair &p);
	void remove(datagram_pair &p);
	/// 0 or an error number.
	int send(datagram_pair &, const ibv_send_wr &);
	int set_state(datagram_pair &, ibv_qp_state);
	/// Takes what has come.
	bool receive();
	/// A completion queue that uses datagrams is armed, or the thread is to look for another
	/// reason.
	void wake();

private:
	struct source {
		unique_fd socket;
		gid_bytes ip;
	};
	bool take(const source &, const sockaddr_in6 &from, std::uint8_t *bytes,
		  std::size_t length);
	struct shortage {
		int error; ///< 0: there is none
		gid_bytes ip;
	};
	shortage follow_addresses();
	const source *find_source(const gid_bytes &);
	ibv_wc_status send_from(datagram_pair &, const ibv_send_wr &, std::uint8_t *bytes,
				std::size_t payload);
	void fail(datagram_pair &);
	void complete(datagram_pair &, const ibv_wc &, bool receive, bool solicited);
	bool awaited() const;
	void run();

	node &node_;
	std::uint16_t port_base_;
	std::vector<source> sources_; // that of 127.0.0.1 is the first
	std::uint64_t changes_ = 0;   // of sources_
	std::unordered_map<std::uint32_t, datagram_pair *> pairs_;
	unique_fd wake_;
	bool stop_ = false;
	std::thread thread_;
};

/// Those of a node, for another UD queue pair. Throws as claim_port().
datagrams &datagrams_of(node *, std::uint32_t slot);
/// Null if there are none. Both under the lock.
datagrams *find_datagrams(node *);
/// Before the node ends. Without the lock.
void end_datagrams(node *);
/// Completions that were not polled.
void forget_datagrams(datagram_pair &);
int poll_datagrams(queue_of_completions &, int count, ibv_wc *out);
/// As post_recv() of the device's operations, for one request; 0 or an error number.
int post_datagram_recv(datagram_pair &, const recv_request &);

} // namespace coop::ntrdma::verbs
