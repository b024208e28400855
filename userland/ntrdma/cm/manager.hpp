// SPDX-License-Identifier: MIT
// manager.hpp - connections by address for the stand-in librdmacm.
//
// Listeners and connections are UNIX sockets in the abstract name space, one name for an address
// and port, so that they need no privilege and leave nothing behind; between hosts they are TCP
// sockets (far.cpp). A message of a kind of the InfiniBand connection manager goes over them: REQ,
// REP, RTU, REJ, DREQ; for datagrams FIND and FOUND, and the connection means nothing afterwards.
// A thread reads them and makes events, which programs take from their channels.
//
// One lock guards it all. Queue pairs are changed only by programs' threads, in the call that
// takes an event, as the library does that this one stands in for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <rdma/rdma_cma.h>

#include "userland/include/coop/event_count.hpp"
#include "userland/ntrdma/cm/far_address.hpp"
#include "userland/ntrdma/cm/message.hpp"

namespace coop::ntrdma::cm
{

struct identifier;

struct event {
	rdma_cm_event e; // what programs see
	std::uint8_t data[private_most];
	identifier *about; // whose acknowledgement it counts for: of a request, the listener
	bool replies;      // a REP: the queue pair has to follow before programs learn of it
};

struct channel {
	rdma_event_channel c;
	std::deque<event *> ready;
	event_count unread;
};

enum class stage {
	idle,
	bound,
	resolved,
	listening,
	connecting,
	requested,
	accepted,
	established,
	ended
};

struct identifier {
	rdma_cm_id id; // what programs see
	stage at = stage::idle;
	unique_fd socket{};          // the listener's, or the connection's
	unique_fd far_listener{};    // for other hosts
	std::optional<route> by_tcp; // of a connection to another host
	message_text text;
	std::uint32_t peer_qpn = 0;
	std::uint8_t responder_resources = 1, initiator_depth = 1;
	std::uint32_t unacknowledged = 0;
	bool synchronous = false; // made without a channel: calls wait for their event
	bool own_cqs = false;
	bool told_end = false;
	/// The peer has disconnected, and the program has completions to poll: until when it is not
	/// told at the latest. 0: there is nothing to tell.
	std::chrono::steady_clock::time_point untold{};
	bool replied = false; // a REP has come
	message request{};    // of a client
	/// While nobody listens yet, or a caller from another host is silent: when to give up.
	std::chrono::steady_clock::time_point patience{};
	/// Of a call to another host; deaf: of listening.
	std::chrono::steady_clock::time_point again{};
	int why = 0; // the last call has failed, -errno; 0 on one host: nobody listens
	bool calling = false;
	bool deaf = false;       // a listener: it is out of the set, for the lack of a descriptor
	ibv_qp_init_attr wish{}; // of rdma_create_ep, for requests
	bool wishes = false;
	identifier *listener = nullptr; // of a connection whose REQ has not arrived
	ibv_pd *wish_pd = nullptr;
};

class manager
{
public:
	static manager &instance();

	std::mutex lock;
	std::condition_variable acknowledged;
	/// The device; opened once. Null and errno if that fails.
	ibv_context *device();
	/// Gives it the device, and the one protection domain that all identifiers have by default:
	/// what programs register there serves each of them. False and errno if there is no device.
	bool give_device(identifier *);
	/// As the environment says.
	backend reaches();

	/// Under the lock, like all that follows.
	void add(identifier *);
	void remove(identifier *);
	void watch(identifier *);
	/// The connections to a listener of which its program does not know yet: their REQ has not
	/// arrived, or waits in the channel. They end with the listener.
	std::vector<identifier *> unknown_of(const identifier *listener) const;
	/// Takes the unread events about some out of a channel.
	static std::vector<event *> take_unread(rdma_event_channel *,
						const std::vector<identifier *> &about);
	event *make(identifier *, rdma_cm_event_type, int status = 0);
	void push(event *);
	void push(identifier *i, rdma_cm_event_type t, int status = 0) { push(make(i, t, status)); }
	static bool send(identifier *, kind, const rdma_conn_param *, std::uint32_t reason = 0);
	static message compose(identifier *, kind, const rdma_conn_param *, std::uint32_t reason);
	/// Sends the request of a client to whom listens, now or soon.
	void connect(identifier *);

private:
	manager();
	void run();
	void readable(identifier *);
	void accept(identifier *);
	identifier *take_caller(identifier *listener, unique_fd);
	int accept_far(identifier *);
	void unwatch(const identifier *);
	void listen_again();
	void take(identifier *, const message &);
	void hung_up(identifier *);
	bool try_to_call(identifier *);
	bool try_to_call_far(identifier *);
	void call_again();
	void tend_silent();
	void tell_ends();
	int patience_left() const;

	ibv_context *device_ = nullptr;
	ibv_pd *domain_ = nullptr; // as long as the device
	std::optional<backend> reaches_;
	std::vector<identifier *> all_;
	unique_fd epoll_, wake_;
	std::thread thread_;
};

inline identifier *of(rdma_cm_id *id)
{
	return reinterpret_cast<identifier *>(id);
}
inline channel *of(rdma_event_channel *c)
{
	return reinterpret_cast<channel *>(c);
}

// address.cpp
/// The name of a listener; `any`: of one for every address. Each port space has its own.
std::string listener_name(rdma_port_space, const sockaddr *, bool any);
std::uint16_t port_of(const sockaddr *); // host byte order
void set_port(sockaddr *, std::uint16_t);
bool is_any(const sockaddr *);
socklen_t length_of(const sockaddr *);
/// The address from which this host sends to another, port 0. 0 or -errno.
int source_of(const sockaddr *to, sockaddr_storage *own);
/// The device's GID that is this address; -1 if it has none.
int gid_index(ibv_context *, const ip_address &);
void copy_address(sockaddr_storage *to, const sockaddr *from);
/// True if the address is one of this machine.
bool is_own(const sockaddr *);

/// Waits for the event of a synchronous call; 0 if it is `wanted`.
int complete(identifier *, rdma_cm_event_type wanted);
/// True if its queue pair sends datagrams.
inline bool is_unconnected(const identifier *i)
{
	return i->id.ps == RDMA_PS_UDP;
}
/// Where its peer is, for a queue pair or an address handle. 0, or -1 and errno.
int address_peer(identifier *, ibv_ah_attr *);
/// Moves the queue pair to `to`. 0, or -1 and errno.
int move_pair(identifier *, ibv_qp_state to);
int fail_with(int error);

} // namespace coop::ntrdma::cm

#define COOP_CM extern "C" __attribute__((visibility("default")))
