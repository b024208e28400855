// SPDX-License-Identifier: MIT
// objects.hpp - the objects of the verbs interface, and what each has of the device.
//
// Each begins with the structure that programs see, so that a cast leads from one to the other.
// The structures belong to the programs that created them; the node's lock guards the rest.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <unordered_set>

#include <infiniband/verbs.h>

#include "userland/include/coop/event_count.hpp"
#include "userland/ntrdma/node/node.hpp"

namespace coop::ntrdma::verbs
{

constexpr std::uint16_t own_lid = 1;

struct pair;

struct context {
	verbs_context v; // its `context` is what programs have
	node *device;
	std::deque<ibv_async_event> events; // not yet read from async_fd
	event_count unread;                 // the count of these
	std::unordered_set<pair *> pairs;   // that were created with it
	ibv_context *handle() { return &v.context; }
};

struct domain {
	ibv_pd pd;
	std::uint32_t number;
	std::uint32_t users = 0; // regions, queue pairs, shared receive queues
};

struct channel {
	ibv_comp_channel c;
	std::deque<ibv_cq *> ready;
	event_count unread;
};

struct datagram_pair; // datagrams.hpp

struct queue_of_completions {
	ibv_cq cq;
	std::unique_ptr<completion_queue> core;
	// Those of UD queue pairs, and of which each is.
	std::deque<ibv_wc> datagrams;
	struct origin {
		datagram_pair *pair;
		bool solicited; // or failed
	};
	std::deque<origin> datagram_origins;
	std::uint32_t datagram_users = 0;
	std::uint32_t polled_unseen = 0; // datagrams polled since the sockets were looked at
	std::uint32_t given = 0;         // events that programs got and have to acknowledge
};

struct shared_queue {
	ibv_srq srq;
	std::unique_ptr<shared_receives> core;
	std::uint32_t given = 0;
};

struct pair {
	ibv_qp qp;
	member *core;
	ibv_qp_init_attr made;
	ibv_qp_attr attr; // as last set
	std::uint32_t given = 0;
	// UD: `core` only keeps its number, and stays in reset.
	std::shared_ptr<datagram_pair> ud;
};

context *of(ibv_context *);
inline domain *of(ibv_pd *p)
{
	return reinterpret_cast<domain *>(p);
}
inline queue_of_completions *of(ibv_cq *p)
{
	return reinterpret_cast<queue_of_completions *>(p);
}
inline shared_queue *of(ibv_srq *p)
{
	return reinterpret_cast<shared_queue *>(p);
}
inline pair *of(ibv_qp *p)
{
	return reinterpret_cast<pair *>(p);
}
inline channel *of(ibv_comp_channel *p)
{
	return reinterpret_cast<channel *>(p);
}

/// The events of the core, for programs.
watcher &events();
void push(context *, const ibv_async_event &);
/// From its opening until its closing a context hears of changes of the GIDs. Under the lock.
void begin_news(context *);
void end_news(context *);
/// Before there is a node: what a parent process had open is not this one's.
void forget_all_news();
/// There is no node any more.
void end_all_news();
/// From now on, changes of the GIDs are told. The node hears of them already. Under the lock.
void begin_all_news();
/// An address of this machine may have come or gone. Under the lock.
void addresses_changed(node *);
/// Takes a queue pair off the device: nothing happens to it any more. Under the lock.
void end_pair(pair *);
/// Forgets unread events about an object, and waits until those read are acknowledged.
void settle_events(context *, const void *object, const std::uint32_t &given, node_hold &held);
/// Wakes those who wait in settle_events().
std::condition_variable_any &acknowledged();

// The entries of ibv_context_ops.
int post_send(ibv_qp *, ibv_send_wr *, ibv_send_wr **bad);
int post_recv(ibv_qp *, ibv_recv_wr *, ibv_recv_wr **bad);
int post_srq_recv(ibv_srq *, ibv_recv_wr *, ibv_recv_wr **bad);
int poll_cq(ibv_cq *, int count, ibv_wc *);
int req_notify_cq(ibv_cq *, int solicited_only);

} // namespace coop::ntrdma::verbs

/// A function of libibverbs.so.1, exported under the version that its .map file says.
#define COOP_VERB extern "C" __attribute__((visibility("default")))
