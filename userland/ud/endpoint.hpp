// SPDX-License-Identifier: MIT
// endpoint.hpp - the interface to unreliable-datagram queue pairs.
//
// It has two implementations: verbs.cpp (rdma-core, a real or Soft-RoCE device)
// and soft_roce.cpp (RoCE v2 packets in plain UDP, without a device). Both behave
// like hardware: receive work requests complete in posting order, a datagram that
// finds no WR vanishes, one longer than its WR kills the queue pair, a send over
// the MTU vanishes with a success completion, and the first 40 bytes of every
// receive are the GRH area.
//
// An endpoint takes no lock: one owner at a time calls it.
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
	std::uint32_t key = 0; // of lent memory; 0: memory of register_memory()
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
	bool signaled; // request a completion also on success
	// Other sends follow at once: this one may be copied and leave with them, at the next send
	// without this flag, at flush() or at a poll() that has nothing else to do.
	bool more = false;
};

enum class wc_status : std::uint8_t {
	success,
	flushed,      // the queue pair stopped before it used this WR
	length_error, // the datagram was longer than the WR: the queue pair is in error
	other_error,
};

struct completion {
	std::uint64_t wr_id;
	std::uint32_t qp; // index from create_qp()
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
	error, // every posted WR completes with wc_status::flushed
};

struct qp_attr {
	std::uint32_t max_send_wr;
	std::uint32_t max_recv_wr;
	std::uint32_t max_sge;
	std::uint32_t qkey;
	bool renumber = false; // the QPN may change at a reset
	// Its completions have their own queue, polled before those of queue pairs without this.
	bool preferred = false;
	// The work request of a send of up to so many bytes shall carry them itself, so that the
	// device does not read their memory. The device grants this or less. Ownership of the
	// memory does not change.
	std::uint32_t inline_bytes = 0;
};

struct endpoint_info {
	std::array<std::uint8_t, 16> gid;
	std::uint16_t lid; // soft RoCE: its UDP port if that is not 4791
	std::uint8_t sl;
	bool sends_copy;   // no memory of a send is read after post_send() returns
	std::uint32_t mtu; // payload bytes per datagram
	std::uint32_t max_qps;
	std::uint32_t max_recv_wr;  // per queue pair
	std::uint32_t max_sge;      // entries of a work request
	std::size_t receive_window; // bytes that may be in flight to this endpoint before it drops
	std::uint32_t mbps = 0;     // of the link at the start, megabits a second; 0: unknown
	std::string name;           // "soft-roce 127.0.0.2" or "verbs rxe0/1 gid 1"
	// register_memory() pins the physical pages: if memory is returned to the system (by a
	// punched hole, for example) and used again, the device still has the old pages.
	bool pins_memory = false;
};

struct endpoint_stats {
	std::uint64_t tx_packets, tx_bytes, tx_calls, tx_errors;
	std::uint64_t rx_packets, rx_bytes, rx_calls;
	std::uint64_t rx_bad_icrc, rx_malformed, rx_no_qp, rx_bad_qkey, rx_no_wr, rx_too_long;
	std::uint64_t rx_copied; // payload bytes that took one extra copy
};

// The state of the network under an endpoint.
struct endpoint_state {
	std::uint32_t changes = 0; // of the members below, and of the addresses in info()
	bool port_up = true;
	// Permanent: all WRs have come back flushed, their memory is free, no more can be posted.
	bool lost = false;
};

// Memory lent to an endpoint until the destruction of this, on any thread. No work request may
// name it at that time.
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
	// arm() notices changes, and then returns false.
	virtual endpoint_state state() const { return {}; }
	// Memory that work requests may name; [base, base + length) must stay mapped while the
	// endpoint exists. 0 or -errno. A WR that names other memory is refused with -EFAULT.
	virtual int register_memory(void *base, std::size_t length) = 0;
	// Memory of other owners, which comes and goes while the endpoint works: entries of work
	// requests that name it carry the key. 0 or -errno. Null: no key is necessary here.
	virtual int lend_memory(void *, std::size_t, std::unique_ptr<lent_memory> &out,
				std::uint32_t &key)
	{
		out.reset();
		key = 0;
		return 0;
	}
	// Makes a queue pair in state ready. Index >= 0 or -errno.
	virtual int create_qp(const qp_attr &attr) = 0;
	// Why the device refused the last create_qp() that failed; may be empty.
	virtual std::string refusal() const { return {}; }
	virtual std::uint32_t qpn(std::uint32_t qp) const = 0;
	virtual std::uint32_t qkey(std::uint32_t qp) const = 0;
	// 0 or -errno. error: completions of the flushed WRs follow in poll().
	// reset drops nothing silently: it is -EBUSY until the completion of every posted WR has
	// been polled; so is ready, which passes through reset. Then qpn() may change, if
	// qp_attr::renumber permits it.
	virtual int modify_qp(std::uint32_t qp, qp_state state) = 0;
	// Posts all or a prefix: the number posted, or -errno if none could be.
	virtual int post_recv(std::uint32_t qp, std::span<const recv_wr> wrs) = 0;
	// Sends to dst (gid or lid, qpn, qkey, sl), may batch into one system call. As post_recv.
	virtual int post_send(std::uint32_t qp, const address &dst,
			      std::span<const send_wr> wrs) = 0;
	// Sends out what was posted with send_wr::more.
	virtual void flush() {}
	// Moves packets and returns up to out.size() completions; never blocks. After fewer there
	// may still be more: poll until 0, then arm().
	virtual std::size_t poll(std::span<completion> out) = 0;
	// After arm(): readable when there may be completions.
	virtual int fd() const = 0;
	// Requests a wake-up. False: something is already there, poll again.
	virtual bool arm() = 0;
	virtual endpoint_stats stats() const = 0;
	virtual void reset_stats() = 0;
};

// Tests only: faults of the simulated wire of soft RoCE for outgoing packets, in parts
// per million. Deterministic for a seed.
struct wire_faults {
	std::uint32_t drop_ppm = 0, duplicate_ppm = 0, reorder_ppm = 0, corrupt_ppm = 0;
	std::uint64_t seed = 1;
	std::uint32_t slow_us = 0;   // processor time of the sender per packet
	std::uint32_t longest = 0;   // most bytes of a UDP datagram on the path; 0: any
	std::uint32_t cut_after = 0; // so many pass, then none does; 0: the wire stays whole
};

struct soft_roce_options {
	std::uint8_t traffic_class = 0; // TOS of IPv4: DSCP and ECN bits
	std::string ip; // own address, numeric; each node of a machine has its own (127.0.0.2 ...)
	std::uint32_t mtu = COOP_MTU_MAX;
	std::size_t socket_buffer = 8u << 20; // bytes requested from the kernel per direction
	// Nodes that share an IP have their own UDP ports (0: any), which addresses then carry as
	// LID; communication with devices needs RoCE's port.
	std::uint16_t port = 4791;
	std::uint32_t first_qpn = 0; // the others follow it; 0: random
	bool any_memory = false;     // no memory need be registered, unlike for devices
	wire_faults faults;
};

struct verbs_options {
	std::string device; // empty: the first device with an active port
	std::uint8_t port = 1;
	int gid_index = -1; // -1: the first of RoCE v2 and IPv4, or 0 on InfiniBand
	std::uint8_t sl = 0;
	std::uint8_t traffic_class = 0;   // DSCP and ECN bits of RoCE v2, as far as there is a GRH
	std::uint32_t mtu = 0;            // 0: the port's active MTU
	std::uint32_t cq_entries = 32767; // per completion queue; made as necessary
};

// Both throw std::system_error; its text says what is missing and what to do.
std::unique_ptr<endpoint> make_soft_roce(const soft_roce_options &);
std::unique_ptr<endpoint> make_verbs(const verbs_options &);
// The MTU of the device's port. Throws like make_verbs() if the device cannot be used now.
std::uint32_t find_verbs(const verbs_options &);

} // namespace coop::ud
