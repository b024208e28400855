// SPDX-License-Identifier: MIT
// endpoint.hpp - unreliable-datagram queue pairs, whatever carries them.
//
// Two implementations stand behind this interface: verbs.cpp (rdma-core, a real
// or Soft-RoCE device) and soft_roce.cpp (RoCE v2 packets in plain UDP, no
// device at all). Both behave as hardware does: receive work requests complete
// in posting order, a datagram that finds no WR vanishes, one that is longer
// than its WR kills the queue pair, a send over the MTU vanishes with a success
// completion, and the first 40 bytes of every receive are the GRH area.
//
// One owner at a time calls an endpoint; it takes no lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rpc/base/types.h"

namespace coop::ud
{

using address = ::coop_addr;

struct sge {
	void *addr;
	std::uint32_t length;
	std::uint32_t key = 0; // of lent memory; 0: register_memory() has had it
};

struct recv_wr {
	std::uint64_t wr_id;
	const sge *list; // list[0] takes the GRH: at least COOP_GRH bytes
	std::uint32_t n_sge;
};

struct send_wr {
	std::uint64_t wr_id;
	const sge *list;
	std::uint32_t n_sge; // 0: zero-length datagram
	std::uint32_t imm;   // host byte order
	bool has_imm;
	bool signaled; // a completion is wanted even on success
	// Others follow at once: this one may be copied and leave with them, at the next send
	// without this flag, at flush() or at a poll() that has nothing else to do.
	bool more = false;
};

enum class wc_status : std::uint8_t {
	success,
	flushed,      // the queue pair was stopped before this WR was used
	length_error, // the datagram was longer than the WR: the queue pair is in error
	other_error,
};

struct completion {
	std::uint64_t wr_id;
	std::uint32_t qp; // index as create_qp() gave it
	wc_status status;
	bool is_recv;
	bool has_imm;
	bool has_gid;           // src_gid is valid (always on RoCE)
	std::uint32_t byte_len; // receives: 40 + payload
	std::uint32_t imm;
	std::uint32_t src_qp;
	std::uint16_t src_lid;
	std::uint8_t sl;
	std::array<std::uint8_t, 16> src_gid;
};

enum class qp_state : std::uint8_t {
	reset,
	ready, // RESET, INIT, RTR, RTS in one step
	error, // every WR posted completes with wc_status::flushed
};

struct qp_attr {
	std::uint32_t max_send_wr;
	std::uint32_t max_recv_wr;
	std::uint32_t max_sge;
	std::uint32_t qkey;
	bool renumber = false; // another QPN after a reset does no harm
	// Its completions have a queue of their own, which is looked at before those of queue pairs
	// without this.
	bool preferred = false;
	// Sends of so many bytes shall go out with the work request itself, without a look of the
	// device at their memory. It gives that or less. Who owns the memory does not change.
	std::uint32_t inline_bytes = 0;
};

struct endpoint_info {
	std::array<std::uint8_t, 16> gid;
	std::uint16_t lid; // soft RoCE: its UDP port if that is not 4791
	std::uint8_t sl;
	bool sends_copy;   // memory of a send is not read any more when post_send() returns
	std::uint32_t mtu; // payload bytes a datagram
	std::uint32_t max_qps;
	std::uint32_t max_recv_wr;  // a queue pair
	std::size_t receive_window; // bytes that may be under way to this endpoint before it drops
	std::string name;           // "soft-roce 127.0.0.2" or "verbs rxe0/1 gid 1"
	// register_memory() holds the physical pages: memory that is given back to the system (by a
	// punched hole, for one) and used again is other memory than the device's.
	bool pins_memory = false;
};

struct endpoint_stats {
	std::uint64_t tx_packets, tx_bytes, tx_calls, tx_errors;
	std::uint64_t rx_packets, rx_bytes, rx_calls;
	std::uint64_t rx_bad_icrc, rx_malformed, rx_no_qp, rx_bad_qkey, rx_no_wr, rx_too_long;
	std::uint64_t rx_copied; // payload bytes that took one copy more than the least
};

// How it is with the network under an endpoint.
struct endpoint_state {
	std::uint32_t changes = 0; // of what follows, and of the addresses in info()
	bool port_up = true;
	// For good: all WRs have come back flushed, their memory is free, no more can be posted.
	bool lost = false;
};

// Memory that is lent to an endpoint until this goes, on any thread. No work request names it
// then.
class lent_memory
{
public:
	virtual ~lent_memory() = default;
};

class endpoint
{
public:
	virtual ~endpoint() = default;
	endpoint() = default;
	endpoint(const endpoint &) = delete;
	endpoint &operator=(const endpoint &) = delete;

	virtual const endpoint_info &info() const = 0;
	// Changes are noticed in arm(), which says then that there is something.
	virtual endpoint_state state() const { return {}; }
	// Memory that work requests may name; [base, base + length) stays mapped until the
	// endpoint goes. 0 or -errno. A WR that names other memory is refused with -EFAULT.
	virtual int register_memory(void *base, std::size_t length) = 0;
	// Memory of others, which comes and goes while the endpoint works: entries of work
	// requests that name it carry the key. 0 or -errno. Null: no key is needed here.
	virtual int lend_memory(void *, std::size_t, std::unique_ptr<lent_memory> &out,
				std::uint32_t &key)
	{
		out.reset();
		key = 0;
		return 0;
	}
	// A queue pair in state ready. Index >= 0 or -errno.
	virtual int create_qp(const qp_attr &attr) = 0;
	// What the device could not give to the last create_qp() that failed; may be empty.
	virtual std::string refusal() const { return {}; }
	virtual std::uint32_t qpn(std::uint32_t qp) const = 0;
	virtual std::uint32_t qkey(std::uint32_t qp) const = 0;
	// 0 or -errno. error: completions of the flushed WRs follow in poll().
	// reset drops nothing silently here: it is -EBUSY until the completion of every WR posted
	// has been polled; so is ready, which passes through reset. qpn() may be another one then,
	// where qp_attr::renumber allows that.
	virtual int modify_qp(std::uint32_t qp, qp_state state) = 0;
	// All or a prefix: the number posted, or -errno if none could be.
	virtual int post_recv(std::uint32_t qp, std::span<const recv_wr> wrs) = 0;
	// To dst (gid or lid, qpn, qkey, sl). May batch into one system call. As post_recv.
	virtual int post_send(std::uint32_t qp, const address &dst,
			      std::span<const send_wr> wrs) = 0;
	// Rings the doorbell for what was posted with send_wr::more.
	virtual void flush() {}
	// Moves packets and returns up to out.size() completions; never blocks. Fewer than asked
	// for does not mean that nothing is left: poll until 0, then arm().
	virtual std::size_t poll(std::span<completion> out) = 0;
	// Readable once there may be completions, after arm().
	virtual int fd() const = 0;
	// Asks for a wake-up. False: there is something already, poll again.
	virtual bool arm() = 0;
	virtual endpoint_stats stats() const = 0;
};

// Tests only: what the simulated wire of soft RoCE does to packets on the way out,
// in parts per million. Deterministic for a seed.
struct wire_faults {
	std::uint32_t drop_ppm = 0, duplicate_ppm = 0, reorder_ppm = 0, corrupt_ppm = 0;
	std::uint64_t seed = 1;
	std::uint32_t slow_us = 0; // that the sender is busy with each packet
	std::uint32_t longest = 0; // bytes of a UDP datagram that the path takes; 0: any
};

struct soft_roce_options {
	std::string ip; // own address, numeric; every node of a machine has its own (127.0.0.2 ...)
	std::uint32_t mtu = COOP_MTU_MAX;
	std::size_t socket_buffer = 8u << 20; // bytes asked of the kernel for each direction
	// Nodes that share an IP take UDP ports of their own (0: any), which addresses then carry
	// as LID; RoCE's own is for those who speak to devices.
	std::uint16_t port = 4791;
	std::uint32_t first_qpn = 0; // the others follow it; 0: chosen at random
	bool any_memory = false;     // registering is for devices: take any address
	wire_faults faults;
};

struct verbs_options {
	std::string device; // empty: the first with an active port
	std::uint8_t port = 1;
	int gid_index = -1; // -1: the first RoCE v2 IPv4 one, or 0 on InfiniBand
	std::uint8_t sl = 0;
	std::uint32_t mtu = 0;            // 0: the port's active MTU
	std::uint32_t cq_entries = 32767; // of one completion queue; there are as many as needed
};

// Both throw std::system_error whose text says what is missing and what to do.
std::unique_ptr<endpoint> make_soft_roce(const soft_roce_options &);
std::unique_ptr<endpoint> make_verbs(const verbs_options &);
// Throws as make_verbs() would if the device cannot be used now. The MTU of its port.
std::uint32_t find_verbs(const verbs_options &);

} // namespace coop::ud
