/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * machine.h - a transfer machine: what one open file of /dev/coop-net is.
 *
 * It is the host of a node with lines (ib/lines.h), and of rpc/chan on those
 * lines; the node runs rpc/fetch. All of it is under the node's lock, except
 * where a field says otherwise. Under that lock nothing touches memory by an
 * address of the process: operations come from the rings, which are the
 * kernel's own pages, and bytes from pinned pages.
 *
 *   rings.c    the rings that both sides see
 *   pinned.c   memory of the process
 *   tasks.c    operations in use, by handle
 *   peers.c    who is admitted
 *   send.c     messages out: operations, datagrams
 *   receive.c  messages in
 *   fetch.c    bulk data in
 *   offer.c    bulk data out
 *   machine.c  start and progress
 *   end.c      the end
 *   device.c   files, ioctls, /proc
 *
 * A machine ends when the rings are unmapped, at the latest with its file: a work
 * sets 'over', destroys the queue pairs, and unpins the pages. When it
 * fails, 'failure' is set: it takes nothing more from its process and from the
 * network, and waits for its end.
 */
#ifndef COOP_MSG_MACHINE_H
#define COOP_MSG_MACHINE_H

#include <linux/completion.h>
#include <linux/hashtable.h>
#include <linux/list.h>
#include <linux/refcount.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "ib/lines.h"
#include "msg/abi.h"
#include "msg/pinned.h"
#include "msg/rings.h"
#include "rpc/chan/chan.h"

#define COOP_NET_RECEIVES 1024 /* messages half received, at most */
#define COOP_NET_BUFFERS  65536
#define COOP_OFFER_BITS   10

/* An operation in use. Its handle is its index. */
struct coop_task {
	u8 code; /* enum coop_net_op_code; 0: none */
	bool ending;
	struct coop_pinned *buffer; /* NULL: none */
	u64 offset, length;         /* in the buffer */
	union {
		struct {
			u32 id; /* of rpc/chan */
			bool text_only, blank;
			u8 text[COOP_NET_TEXT];
		} send;
		struct {
			struct list_head link; /* machine->receivers, while it takes messages */
			bool open;             /* linked */
			u64 min_size, filled;
			u32 places, landings; /* messages it may still take; half received */
			u32 messages;
		} recv;
		struct {
			struct hlist_node hash; /* machine->offers, until it ends */
			struct list_head link;  /* machine->readers, while 'tell' */
			u64 token, key, reader, last_reader;
			struct coop_addr reader_at; /* of reader_peer, if that was named */
			bool ranges, placed;        /* COOP_NET_RANGES; reader_at is set */
			u32 serving;                /* requests */
			bool tell;
		} offer;
		struct coop_reading *reading;
	} u;
};

struct coop_peer {
	u32 id;    /* of rpc/chan; 0: free */
	bool told; /* linked */
	u8 tell;   /* bits by event code, to be told */
	u8 why;
	int err;
	u64 cookie, sender; /* 0: not admitted */
	u64 stranger;       /* tag of a message that was refused */
	u8 refusals;        /* of its messages, before the process can have admitted it */
	bool announced;     /* STRANGER was told, behind told_at events */
	u64 told_at;
	u64 refused_at,
		known_at; /* the last refusal; when the process had taken STRANGER. 0: not yet */
	struct list_head link; /* machine->news; free ones: machine->free_peers */
};

/* A message on its way in. */
struct coop_arrival {
	u32 task; /* COOP_NONE: a text */
	u32 next_free;
	bool used;
	u32 receive; /* of rpc/chan */
	u64 offset;  /* in the task's piece of the buffer */
	u8 text[COOP_NET_TEXT];
};

struct coop_figures {
	u64 ops, events, sent, received, sent_bytes, received_bytes;
	u64 fetched_bytes, served_bytes, refused;
};

struct coop_machine {
	/* Set by SETUP, before 'ready'. */
	struct mutex setup; /* outside of all locks: one SETUP at a time */
	bool ready;         /* release and acquire */
	struct coop_node *node;
	struct coop_stats stats;
	struct mm_struct *mm; /* of the process; never dereferenced */
	struct net *net;
	struct mem_cgroup *memcg; /* of the process, when it called SETUP */
	kuid_t uid;
	u32 queue_pairs;
	struct pid *pid;
	u32 n_tasks, n_peers, max_message;
	struct list_head link; /* the list of machines (device.c) */

	atomic_t maps; /* mappings of the rings */
	bool mapped;   /* there was one; under mmap_lock */
	wait_queue_head_t wait;

	refcount_t refs; /* the file, and the work 'gone': the last one frees it */
	bool unmapped;   /* 'end' is queued, or has run */
	struct work_struct end, gone;
	struct completion ended, freed; /* pages are unpinned; all is freed */

	/* Under the node's lock. */
	bool over;
	int failure;
	bool wake;   /* events were added */
	bool waits;  /* something is to be told, for which the ring has no room */
	u64 busy_at; /* when it had something to do last */
	struct coop_rings rings;
	struct coop_chan *chan;
	struct coop_task *task;
	struct coop_peer *peer;
	struct list_head free_peers, news;
	struct coop_arrival *arrival;
	u32 free_arrival;
	struct list_head receivers, readers;
	DECLARE_HASHTABLE(offers, COOP_OFFER_BITS);
	u32 salt;
	struct xarray buffers; /* by id */
	u32 next_buffer, n_buffers;
	u64 pinned; /* bytes */
	struct coop_net_addr self;
	bool address_changed; /* to be told */
	struct coop_figures figures;
};

/* end.c */

int coop_end_init(void);
/* Waits for the works of all machines; no file is open. Context: may sleep. */
void coop_end_exit(void);
/* Of a zeroed machine; its file has the reference. */
void coop_machine_init(struct coop_machine *m);
void coop_machine_put(struct coop_machine *m);
/* The rings are unmapped: a work ends it, for good. Context: mmap_lock may be held. */
void coop_machine_unmapped(struct coop_machine *m);
/* Waits until its pages are unpinned, or a signal kills this process. It is 'unmapped'. */
void coop_machine_await_end(struct coop_machine *m);
/*
 * The file is closed: a work ends the machine, frees all that start() made, and leaves the list.
 * Drops the file's reference. wait: for the work, or until a signal kills this process.
 */
void coop_machine_close(struct coop_machine *m, bool wait);
/* Frees all that start() made; it has ended. Context: may sleep. */
void coop_machine_free(struct coop_machine *m);

/* device.c */

/* /proc shows it no more, so it may be freed. It still counts as one of its user's. */
void coop_machine_hide(struct coop_machine *m);
/* It counts no more. */
void coop_machine_leave(struct coop_machine *m);

/* machine.c */

/* Sets defaults; 0, or why it cannot be. */
int coop_machine_check(struct coop_net_setup *s);
/* Of a SETUP that was checked. */
u32 coop_machine_queue_pairs(const struct coop_net_setup *s);
/*
 * Serves the operations of a SETUP that was checked; 'why' and the out fields are set. Context: may
 * sleep.
 */
int coop_machine_start(struct coop_machine *m, struct coop_net_setup *s);
/* Takes nothing more. The lock is held. */
void coop_machine_fail(struct coop_machine *m, int err);
/* True: it runs. The lock is held. */
static inline bool coop_machine_runs(const struct coop_machine *m)
{
	return m->chan && !m->over && !m->failure;
}

/* Takes some operations from the ring. True: there are more to take. The lock is held. */
bool coop_machine_take(struct coop_machine *m, u64 now);
/*
 * Takes all that the process had put into the ring before this call. False: the next operation has
 * to wait, because the ring of events has no room for its event. The lock is held.
 */
bool coop_machine_catch_up(struct coop_machine *m, u64 now);
/* Tells the states that waited for room, and wakes the process if there are events. */
void coop_machine_tell(struct coop_machine *m);
/* The own address. The lock is held. */
bool coop_machine_self(struct coop_machine *m, struct coop_net_addr *self);

/* All below: the lock is held. */

/* tasks.c. Reserves the room of the last event; NULL: the process broke the rules. */
struct coop_task *coop_task_begin(struct coop_machine *m, const struct coop_net_op *op);
/* Names the buffer's range [offset, offset + length). 0, -ENOENT, -EFAULT. */
int coop_task_use(struct coop_machine *m, struct coop_task *t, u32 buffer, u64 offset, u64 length);
static inline u32 coop_task_handle(const struct coop_machine *m, const struct coop_task *t)
{
	return (u32)(t - m->task);
}

/* Adds an event, whose room is reserved. */
void coop_event(struct coop_machine *m, struct coop_net_event *ev);
/* The last event of an operation: it is over. */
void coop_task_over(struct coop_machine *m, struct coop_task *t, struct coop_net_event *ev, u8 code,
		    int status);

/* peers.c */
int coop_peers_create(struct coop_machine *m, u32 n);
/* The peer of an id of rpc/chan; created if need be. NULL: stale. */
struct coop_peer *coop_peer_of(struct coop_machine *m, u32 id);
static inline struct coop_peer *coop_peer_at(struct coop_machine *m, u64 chan_cookie)
{
	return chan_cookie ? &m->peer[chan_cookie - 1] : NULL;
}

s64 coop_peer_open(struct coop_machine *m, const struct coop_net_peer *what, u64 now);
int coop_peer_admit(struct coop_machine *m, const struct coop_net_peer *what);
int coop_peer_close(struct coop_machine *m, u32 id, u64 now);
int coop_peer_info(struct coop_machine *m, struct coop_net_peer *what);
/* True if the process has taken a STRANGER event of the peer. */
bool coop_peer_known(const struct coop_machine *m, const struct coop_peer *p);
/* Something is to be told about a peer: PEER_NEW, _DEAD, _RESTARTED, STRANGER. */
void coop_peer_news(struct coop_machine *m, struct coop_peer *p, u8 code);
/* Tells it, as far as there is room. False: some waits. */
bool coop_peers_tell(struct coop_machine *m);
/* Peers of rpc/chan, admitted or not. */
u32 coop_peers_open(const struct coop_machine *m);
/* The command address of a peer. */
int coop_peer_address(struct coop_machine *m, u32 id, struct coop_addr *addr);
/* Whether the peer at this command address is admitted, with this sender. */
bool coop_peer_is(struct coop_machine *m, const struct coop_addr *addr, u64 sender);

/* send.c */
void coop_send_begin(struct coop_machine *m, const struct coop_net_op *op, u64 now);
void coop_send_cancel(struct coop_machine *m, struct coop_task *t, u64 now);
void coop_send_over(struct coop_machine *m, const struct coop_chan_ev *ev);
/* Gives the node the datagrams that rpc/chan has. */
bool coop_send_datagrams(struct coop_machine *m, u64 now);

/* receive.c */
int coop_receive_create(struct coop_machine *m);
void coop_receive_begin(struct coop_machine *m, const struct coop_net_op *op);
void coop_receive_cancel(struct coop_machine *m, struct coop_task *t, u64 now);
void coop_receive_datagram(struct coop_machine *m, const struct coop_chan_dgram *d, u64 now);
void coop_receive_over(struct coop_machine *m, const struct coop_chan_ev *ev);
/* A message to this machine itself. 0 or -errno, as the event of the SEND 'from' has it. */
int coop_receive_here(struct coop_machine *m, const struct coop_task *from,
		      const struct coop_net_op *op);

/* fetch.c */
void coop_fetch_begin(struct coop_machine *m, const struct coop_net_op *op, u64 now);
void coop_fetch_cancel(struct coop_machine *m, struct coop_task *t, u64 now);

/* offer.c */
void coop_offer_begin(struct coop_machine *m, const struct coop_net_op *op);
void coop_offer_cancel(struct coop_machine *m, struct coop_task *t);
void coop_offer_place(struct coop_machine *m, struct coop_task *t, u32 peer);
bool coop_offers_tell(struct coop_machine *m);
void coop_offer_lookup(void *host, const struct coop_ev *ev, struct coop_found *found, u64 now);
u64 coop_offer_recheck(void *host, void *cookie, struct page *const *pages, u64 have);
void coop_offer_release(void *host, void *cookie, struct page **pages, u64 have);

#endif /* COOP_MSG_MACHINE_H */
