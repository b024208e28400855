/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * impl.h - the inside of the storage client.
 *
 * A call is on exactly one list: 'first', 'queue' or 'later' while it waits to be
 * sent, a bucket of 'wire' from then until its reply. Three works do everything: the
 * sender, the receiver, and the session's, which makes the connection. They
 * exclude each other by mutexes, so whoever holds both may take a call away from
 * the socket: its memory is then the submitter's again.
 *
 * Lock order: rx.mutex, tx.mutex, then 'lock' (a spinlock, any context that may
 * disable bottom halves). The works never wait for the network while they hold
 * a mutex, except for the session's, which holds none when it waits.
 */
#ifndef COOP_FS_STORAGE_IMPL_H
#define COOP_FS_STORAGE_IMPL_H

#include <linux/mempool.h>
#include <linux/mutex.h>
#include <linux/net.h>
#include <linux/spinlock.h>
#include <linux/uio.h>

#include "fs/storage/storage.h"

#define COOP_WIRE_BUCKETS COOP_ST_REQUESTS_MAX /* ids rise: hardly two in one */
#define COOP_TX_BYTES     16384                /* small requests are sent together */
#define COOP_WHY_MAX      160
#define COOP_SURE_CALLS   4

#define COOP_LATER_TIME (HZ / 10) /* until a request that met a lease is sent again */

struct crypto_shash;

enum coop_call_state {
	COOP_CALL_IDLE,      /* not submitted */
	COOP_CALL_QUEUED,    /* on 'first', 'queue' or 'later' */
	COOP_CALL_SENDING,   /* the sender reads arg or data; ends only under tx.mutex */
	COOP_CALL_SENT,      /* waits for its reply */
	COOP_CALL_RECEIVING, /* the reply goes to its pages; ends only under rx.mutex */
	COOP_CALL_ABANDONED, /* ended for the submitter, but the daemon will answer */
	COOP_CALL_DONE,
};

enum coop_storage_state {
	COOP_STORAGE_DOWN, /* the session's work makes the connection */
	COOP_STORAGE_UP,
	COOP_STORAGE_CLOSED, /* for good */
};

/* ---- key.c ---- */

/* A client without a cluster key has no tfm and a fabric key of zeros. */
struct coop_key {
	struct crypto_shash *tfm; /* keyed for storage proofs */
	u8 fabric[16];
};

/* What both sides prove that they know, over everything said so far. */
struct coop_transcript {
	u8 client_nonce[COOP_ST_NONCE], server_nonce[COOP_ST_NONCE];
	u8 session[COOP_ST_SESSION];
	u16 version_min, version_max, version;
	u32 flags;
	const char *export_name;
};

int coop_key_init(struct coop_key *key, const u8 *cluster_key, u32 len);
void coop_key_free(struct coop_key *key);
/* role: "server" or "client". May sleep. */
int coop_key_proof(const struct coop_key *key, const char *role, const struct coop_transcript *t,
		   u8 proof[COOP_ST_PROOF]);

/* ---- the connection ---- */

struct coop_storage_tx {
	struct mutex mutex;
	u8 *buf; /* requests without their data */
	u32 len, sent;
	struct coop_call *data; /* WRITE whose data follow the buffer; it is SENDING */
	struct iov_iter iter;
};

struct coop_storage_rx {
	struct mutex mutex;
	struct coop_st_incoming in;
	struct iov_iter iter; /* what is missing of in.part */
	struct kvec vec;
	struct coop_call *call; /* that in.head answers; NULL: a push, or between messages */
	int error;              /* of the call */
	u8 small[COOP_ST_HEADER];
	u8 *body;
	struct coop_st_body *scratch; /* bodies that are nobody's */
};

struct coop_storage {
	/* never change */
	struct sockaddr_storage server[COOP_SERVERS_MAX];
	u32 n_servers;
	char *export_name;
	struct net *net;
	struct coop_stats *stats;
	const struct coop_storage_ops *ops;
	void *host;
	struct coop_key key;
	u8 session[COOP_ST_SESSION];
	struct coop_fid root;             /* as the first handshake said */
	struct workqueue_struct *wq;      /* the three works and the watch */
	mempool_t *sure;                  /* reserve of calls */
	struct workqueue_struct *done_wq; /* done() of calls: may sleep, so not on wq */
	bool leases;                      /* are asked for */
	atomic64_t open_id;

	spinlock_t lock; /* guards the following */
	enum coop_storage_state state;
	bool soft, forced;
	u32 timeo_ms;
	unsigned long forced_at; /* jiffies */
	u64 last_id;
	u32 window, in_flight; /* in_flight: on 'wire' */
	u32 gate;              /* calls that must be done before 'queue' is sent from */
	struct list_head first, queue;
	struct list_head later; /* answered with EAGAIN: to 'queue' at later_at */
	unsigned long later_at;
	struct list_head wire[COOP_WIRE_BUCKETS];
	unsigned long since;      /* jiffies of the last change of state */
	unsigned long busy_since; /* jiffies since which something is in flight */
	unsigned long heard;      /* jiffies when bytes came last */
	unsigned long pinged;     /* jiffies of the last PING */
	u64 vouched; /* coop_call.begun of the latest request that was answered; 0: none */
	bool has_self;
	struct coop_addr self;
	u32 self_seq; /* changes of self */
	u32 node_id;
	u32 current_server;

	struct socket *sock; /* changes under rx.mutex and tx.mutex; NULL while down */
	struct {
		void (*data_ready)(struct sock *sk);
		void (*write_space)(struct sock *sk);
		void (*state_change)(struct sock *sk);
	} born; /* the socket's own callbacks */
	struct coop_storage_rx rx;
	struct coop_storage_tx tx;
	struct work_struct rx_work, tx_work;
	struct delayed_work watch;     /* deadlines and silence, while there are calls */
	struct work_struct vouch_work; /* leases are relied on, and nothing was asked lately */
	u64 vouch_asked;               /* of ktime_get_boottime_ns(), the last one */

	/* the session's work */
	struct delayed_work session_work;
	struct mutex dial_mutex; /* guards the pointer only, so that close can shut it down */
	struct socket *dialing;
	u32 attempts; /* since the connection was lost */
	u32 backoff_ms;
	char why[COOP_WHY_MAX];
	u8 *frame; /* one message of the handshake */
	struct coop_st_body *ask, *got;
};

/* calls.c */
void coop_call_submit_first(struct coop_call *call);
/* Off its list. The connection's reference goes to the caller, who tells the submitter or not. */
void coop_call_unlink_locked(struct coop_call *call);
/* Takes over a reference. The call is DONE or ABANDONED, call->error is set. */
void coop_call_tell(struct coop_call *call);
/* The same by the receiver, which has work to save if done() is prompt. */
void coop_call_tell_here(struct coop_call *call);
void coop_call_abandon(struct coop_call *call, int error);
/*
 * Ends the connection, if it stands (false: it did not); the session's work makes a new one. Any
 * context but hard irq.
 */
bool coop_storage_lost(struct coop_storage *s, const char *why);

/* send.c; tx.mutex is held but for the work */
void coop_tx_work(struct work_struct *work);
/* By the caller itself, unless somebody is sending. May sleep for memory. */
void coop_tx_here(struct coop_storage *s);
void coop_tx_reset(struct coop_storage *s);
void coop_tx_bye(struct coop_storage *s);
static inline void coop_tx_kick(struct coop_storage *s)
{
	queue_work(s->wq, &s->tx_work);
}

/* receive.c; rx.mutex is held but for the work and the push */
void coop_rx_work(struct work_struct *work);
void coop_rx_reset(struct coop_storage *s);
/* The call that is being received has no memory any more. */
void coop_rx_forget(struct coop_storage *s, struct coop_call *call);
/* A message that answers nothing. 0 or -EPROTO. */
int coop_rx_push(struct coop_storage *s, const struct coop_st_header *h, const u8 *body,
		 struct coop_st_body *scratch);
/* -errno that the rest of the kernel can live with. */
int coop_storage_errno(u32 status);

/* socket.c */
int coop_sock_dial(struct coop_storage *s, const struct sockaddr_storage *to, struct socket **out);
void coop_sock_attach(struct coop_storage *s, struct socket *sock);
/* Attached or not. Nothing of ours is called by it any more. */
void coop_sock_release(struct coop_storage *s, struct socket *sock);
/* Bytes, 0: the other side has ended, -EAGAIN: not now. Advances iter. */
int coop_sock_send(struct coop_storage *s, struct socket *sock, struct iov_iter *iter, int flags);
int coop_sock_recv(struct coop_storage *s, struct socket *sock, struct iov_iter *iter, int flags);

/* session.c */
int coop_session_first(struct coop_storage *s, u8 *root_fh, u32 *root_len,
		       struct coop_st_attr *root);
void coop_session_work(struct work_struct *work);
/* Both mutexes for a short while: no socket after it. */
void coop_session_teardown(struct coop_storage *s);

#endif /* COOP_FS_STORAGE_IMPL_H */
