/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * impl.h - internals of the storage client.
 *
 * A call is on exactly one list: 'first', 'queue', 'later' or 'early' while it waits to be
 * sent, then a bucket of 'wire' until its reply. Three works do everything: the
 * sender, the receiver, and the session's work, which connects. Mutexes exclude
 * them from each other, so a task that holds both mutexes may take a call away
 * from the socket: the submitter then owns the call's memory again.
 *
 * Lock order: rx.mutex, tx.mutex, then 'lock' (a spinlock, any context that may
 * disable bottom halves). Sender and receiver never wait for the network. The
 * session's work does, but holds no mutex when it waits.
 */
#ifndef COOP_FS_STORAGE_IMPL_H
#define COOP_FS_STORAGE_IMPL_H

#include <linux/mempool.h>
#include <linux/mutex.h>
#include <linux/net.h>
#include <linux/spinlock.h>
#include <linux/uio.h>

#include "fs/storage/storage.h"

#define COOP_WIRE_BUCKETS COOP_ST_REQUESTS_MAX /* ids rise: rarely two in a bucket */
#define COOP_TX_BYTES     16384                /* small requests are sent together */
#define COOP_WHY_MAX      160
#define COOP_SURE_CALLS   4

#define COOP_WATCH_MOST HZ        /* longest time between two runs of the watch */
#define COOP_LATER_TIME (HZ / 10) /* delay before a request that got EAGAIN is sent again */

struct crypto_shash;

enum coop_call_state {
	COOP_CALL_IDLE,      /* not submitted */
	COOP_CALL_QUEUED,    /* on 'first', 'queue', 'later' or 'early' */
	COOP_CALL_SENDING,   /* the sender reads arg or data; ends only under tx.mutex */
	COOP_CALL_SENT,      /* waits for its reply */
	COOP_CALL_RECEIVING, /* the reply's data go to its pages; ends only under rx.mutex */
	COOP_CALL_ABANDONED, /* ended for the submitter, but the daemon will answer */
	COOP_CALL_DONE,
};

enum coop_storage_state {
	COOP_STORAGE_DOWN, /* the session's work is connecting */
	COOP_STORAGE_UP,
	COOP_STORAGE_CLOSED, /* for good */
};

/* ---- key.c ---- */

struct coop_key {
	struct crypto_shash *tfm;    /* keyed for storage proofs; NULL: no cluster key */
	struct crypto_shash *fabric; /* keyed with the cluster key, or with zeros */
};

/* The fields that the proofs of both sides cover. */
struct coop_transcript {
	u8 client_nonce[COOP_ST_NONCE], server_nonce[COOP_ST_NONCE];
	u8 session[COOP_ST_SESSION];
	u16 version_min, version_max, version;
	u32 flags;
	const char *export_name;
};

/* cluster_key: NULL for none. */
int coop_key_init(struct coop_key *key, const u8 *cluster_key, u32 len);
void coop_key_free(struct coop_key *key);
/* role: "server" or "client". May sleep. */
int coop_key_proof(const struct coop_key *key, const char *role, const struct coop_transcript *t,
		   u8 proof[COOP_ST_PROOF]);
/* Sets s->fabric_key from version and nonce. May sleep. */
int coop_key_fabric(struct coop_storage *s);

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
	struct iov_iter iter; /* missing bytes of in.part */
	struct kvec vec;
	struct coop_call *call; /* the call that in.head answers; NULL: a push, or no message */
	int error;              /* of the call */
	u8 small[COOP_ST_HEADER];
	u8 *body;
	struct coop_st_body *scratch; /* for pushes and bodies of abandoned calls */
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
	struct coop_fid root;             /* from the first handshake */
	struct workqueue_struct *wq;      /* the three works and the watch */
	mempool_t *sure;                  /* reserve of calls */
	struct workqueue_struct *done_wq; /* done() of calls: may sleep, so not on wq */
	bool leases;                      /* ask for leases */
	bool forest;                      /* ask for roles */
	bool bundles;                     /* ask for bundles */
	bool leaf;                        /* loads nothing for others */
	u16 version;                      /* of the protocol, on the latest connection */
	/*
	 * The daemon's run, of the latest connection; zero before protocol version 10. The
	 * session's work writes them while no socket is attached.
	 */
	u8 run_nonce[COOP_ST_NONCE];
	u64 run_verifier;
	u8 fabric_key[COOP_FABRIC_KEY]; /* of the run; guarded by the lock */
	atomic64_t open_id;

	spinlock_t lock; /* guards the following */
	enum coop_storage_state state;
	bool soft, forced;
	u32 timeo_ms;
	unsigned long forced_at; /* jiffies */
	u64 last_id;
	u32 window, in_flight; /* in_flight: calls on 'wire' */
	u32 gate;              /* holders; 'queue' is sent only when it is 0 */
	u32 kept;              /* LOCKs and UNLOCKs beyond their deadline */
	struct list_head first, queue;
	struct list_head later; /* answered with EAGAIN: go to 'queue' at later_at */
	unsigned long later_at;
	u32 reopens_left;       /* OPENs of a reopen() that are ABANDONED */
	struct list_head early; /* CLOSEs that wait for these: go to 'queue' then */
	struct list_head wire[COOP_WIRE_BUCKETS];
	unsigned long since;      /* jiffies of the last change of state */
	unsigned long busy_since; /* jiffies since when calls are in flight */
	unsigned long heard;      /* jiffies when bytes last arrived */
	unsigned long pinged;     /* jiffies of the last PING */
	u64 vouched;              /* latest coop_call.begun of an answered request; 0: none */
	bool has_self;
	struct coop_addr self;
	u32 self_mbps;
	u32 self_seq;                /* counts changes of self */
	u32 told_seq;                /* of the self that the daemon was told last */
	struct coop_call *enrolling; /* tells it on this connection; not dereferenced */
	u32 node_id;
	u32 current_server;

	struct socket *sock; /* changes under rx.mutex and tx.mutex; NULL while down */
	struct {
		void (*data_ready)(struct sock *sk);
		void (*write_space)(struct sock *sk);
		void (*state_change)(struct sock *sk);
	} born; /* the socket's original callbacks */
	struct coop_storage_rx rx;
	struct coop_storage_tx tx;
	struct work_struct rx_work, tx_work;
	struct delayed_work watch;      /* checks deadlines and silence, while there are calls */
	struct work_struct enroll_work; /* tells the daemon of self */
	struct work_struct vouch_work;  /* sends a PING that keeps leases trusted */
	u64 vouch_asked;                /* ktime_get_boottime_ns() when it was queued last */

	/* the session's work */
	struct delayed_work session_work;
	struct mutex dial_mutex; /* guards 'dialing', so that close can shut the socket down */
	struct socket *dialing;
	u32 attempts; /* since the connection was lost */
	u32 backoff_ms;
	char why[COOP_WHY_MAX];
	u8 *frame; /* one message of the handshake */
	struct coop_st_body *ask, *got;
};

/* calls.c */
void coop_call_submit_first(struct coop_call *call);
/* Removes it from its list. The caller gets the connection's reference. */
void coop_call_unlink_locked(struct coop_call *call);
/* Completes a call that is DONE or ABANDONED, with call->error set. Takes over a reference. */
void coop_call_tell(struct coop_call *call);
/* The same for the receiver, which runs a prompt done() itself. */
void coop_call_tell_here(struct coop_call *call);
void coop_call_abandon(struct coop_call *call, int error);
/*
 * Ends the connection if it is up (false: it was not); the session's work makes a new one. Any
 * context but hard irq.
 */
bool coop_storage_lost(struct coop_storage *s, const char *why);

/* watch.c */
void coop_watch_work(struct work_struct *work);
void coop_vouch_work(struct work_struct *work);
/* Ends all calls that have a submitter, with that error. Takes both mutexes. */
void coop_calls_end_all(struct coop_storage *s, int error);

/* send.c; tx.mutex is held, except for work and here */
void coop_tx_work(struct work_struct *work);
/* Sends in the caller's context, unless another task is sending. May sleep for memory. */
void coop_tx_here(struct coop_storage *s);
void coop_tx_reset(struct coop_storage *s);
void coop_tx_bye(struct coop_storage *s);
static inline void coop_tx_kick(struct coop_storage *s)
{
	queue_work(s->wq, &s->tx_work);
}

/* receive.c; rx.mutex is held, except for work and push */
void coop_rx_work(struct work_struct *work);
void coop_rx_reset(struct coop_storage *s);
/* The call gives up its memory: if it is being received, its remaining data are discarded. */
void coop_rx_forget(struct coop_storage *s, struct coop_call *call);
/* Handles a push. 0 or -EPROTO. */
int coop_rx_push(struct coop_storage *s, const struct coop_st_header *h, const u8 *body,
		 struct coop_st_body *scratch);
/* Converts a status to 0 or a valid -errno. */
int coop_storage_errno(u32 status);

/* enroll.c */
/* Fills in the request that tells the daemon of self now; returns its operation. */
u16 coop_enroll_form_locked(struct coop_storage *s, struct coop_st_body *body);
/* Tells the daemon if self has changed. Any context but hard irq. */
void coop_enroll_kick(struct coop_storage *s);
void coop_enroll_work(struct work_struct *work);

/* socket.c */
int coop_sock_dial(struct coop_storage *s, const struct sockaddr_storage *to, struct socket **out);
void coop_sock_attach(struct coop_storage *s, struct socket *sock);
/* Releases an attached or unattached socket; it calls none of our callbacks after that. */
void coop_sock_release(struct coop_storage *s, struct socket *sock);
/* Returns the bytes; 0: the daemon has closed; -EAGAIN: not now. Advances iter. */
int coop_sock_send(struct coop_storage *s, struct socket *sock, struct iov_iter *iter, int flags);
int coop_sock_recv(struct coop_storage *s, struct socket *sock, struct iov_iter *iter, int flags);

/* session.c */
int coop_session_first(struct coop_storage *s, u8 *root_fh, u32 *root_len,
		       struct coop_st_attr *root);
void coop_session_work(struct work_struct *work);
/* Takes the socket away and requeues the calls. Takes both mutexes. */
void coop_session_teardown(struct coop_storage *s);

#endif /* COOP_FS_STORAGE_IMPL_H */
