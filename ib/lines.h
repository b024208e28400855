/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * lines.h - a node whose host speaks a protocol of its own beside the page fetch.
 *
 * Such a node has two lines for its host's datagrams: the control queue pair,
 * where datagrams of other protocols than rpc/fetch go to the host, and a second
 * queue pair for datagrams of a full MTU. The node copies what it sends, and the
 * host copies what it receives, during the call. Datagrams are lost as on any
 * fabric, and without a report.
 *
 * The node belongs to one attachment: if its device is removed or fails, it does
 * not look for another one; lost() says so. Its Q_Key has not bit 31, because
 * peers in user space could not use such a key. Its engine has one source for
 * each fetch (coop_node_fetch.from), no placement, and no storage to fall back to.
 *
 * Memory that the node allocates counts for the memory cgroup of its host's process, also
 * when a worker allocates it; so does what the host allocates under the lock with
 * __GFP_ACCOUNT.
 *
 * Locks: all callbacks, and all functions here but coop_lines_begin() and those
 * marked, run under the node's lock. Under it the host may sleep for memory
 * (GFP_KERNEL then means GFP_NOIO), but not touch user memory that could fault,
 * nor wait for the network.
 */
#ifndef COOP_IB_LINES_H
#define COOP_IB_LINES_H

#include "ib/ib.h"

enum coop_line {
	COOP_LINE_COMMAND, /* datagrams of at most COOP_LINE_COMMAND_MAX bytes */
	COOP_LINE_DATA,
	COOP_LINES
};

#define COOP_LINE_COMMAND_MAX 768

struct coop_lines_ops {
	/* A datagram; buf is valid during the call. */
	void (*rx)(void *host, enum coop_line line, const void *buf, u32 len,
		   const struct coop_addr *from, u64 now);
	/* Sends what there is to send, and reports results. True: it may have made work for the
	 * engine. */
	bool (*drain)(void *host, u64 now);
	/* As of an engine: when expire() has work; ~0: never. */
	u64 (*deadline)(void *host);
	void (*expire)(void *host, u64 now);
	/* The pump is about to receive: takes some of the host's work. True: there is more. */
	bool (*awake)(void *host, u64 now);
	/* The pump is about to sleep. False: there is work after all. */
	bool (*asleep)(void *host);
	/* The pump has nothing to do. True: it shall look for completions still, for a short time.
	 */
	bool (*spin)(void *host, u64 now);
	/* Wakes the process that called coop_lines_sleep(). Any context. */
	void (*rouse)(void *host);
	/* The port may have another address, or a queue pair another number. */
	void (*moved)(void *host, u64 now);
	/* The node is without a device, for ever; a device that refuses keeps its queue pairs. */
	void (*lost)(void *host);
};

/*
 * Takes the node's lock. Returns the time for the calls until coop_lines_end(). Context: may
 * sleep; no lock of the node is held.
 */
u64 coop_lines_begin(struct coop_node *node);
/* Performs what the engine and the host's drain() have to do, and drops the lock. */
void coop_lines_end(struct coop_node *node, u64 now);
/* Drops the lock only. */
void coop_lines_leave(struct coop_node *node);
/* Queues the pump. Any context. */
void coop_lines_kick(struct coop_node *node);

/*
 * A process that is about to sleep for what its host tells it offers to do the pump's work when a
 * completion wakes it. Then it calls look(), or sleep() again; when it returns to its program,
 * wake(). All of them may do a turn of the pump. Context: may sleep; the lock is not held.
 */
void coop_lines_sleep(struct coop_node *node);
void coop_lines_look(struct coop_node *node);
void coop_lines_wake(struct coop_node *node);
/* There is something for look(). */
bool coop_lines_due(struct coop_node *node);

/* False: there is no device any more. */
bool coop_lines_self(struct coop_node *node, struct coop_addr *command, u32 *data_qpn,
		     u32 *data_qkey);
/* Payload bytes of a datagram. */
u32 coop_lines_mtu(struct coop_node *node, enum coop_line line);

/* Can each line take a datagram? If not, drain() is called again when one can. */
bool coop_lines_room(struct coop_node *node);
/* Memory for a datagram, of coop_lines_mtu() bytes. NULL: there is no room. */
void *coop_lines_claim(struct coop_node *node, enum coop_line line, u32 *slot);
/* Sends the datagram in a slot that was claimed. */
void coop_lines_send(struct coop_node *node, enum coop_line line, u32 slot, u32 len,
		     const struct coop_addr *to, u64 now);

/* As coop_node_fetch(), under the lock; f->from is set. */
int coop_lines_fetch(struct coop_node *node, struct coop_node_fetch *f, u64 now);
/* Ends a fetch early; done() follows, if it did not run before. */
void coop_lines_cancel(struct coop_node *node, struct coop_node_fetch *f, u64 now);

/*
 * Ends all traffic for good: destroys the queue pairs, so that the device touches no memory
 * any more, and ends the fetches and the serves. done() of fetches may still have to run; it
 * does before coop_node_destroy() returns. Context: may sleep; the lock is not held.
 */
void coop_lines_stop(struct coop_node *node);

#endif /* COOP_IB_LINES_H */
