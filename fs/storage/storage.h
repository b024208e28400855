/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * storage.h - the interface to the storage daemon.
 *
 * A mount has one TCP connection with many calls in flight, answered in any order.
 * The caller owns a call's memory: it fills in the request's fields, submits, and
 * gets the reply's fields back, with data directly in its pages. A lost connection
 * is made again with backoff under the same session, and requests without a reply
 * are sent again (rpc/storage/STORAGE.md says what is safe and why); the caller
 * notices only the delay. 'soft' mounts give up after timeo, but their CLOSE and
 * UNLOCK still reach storage later, and a LOCK stays until it is answered; 'hard' mounts
 * never give up, except for a killed process.
 */
#ifndef COOP_FS_STORAGE_H
#define COOP_FS_STORAGE_H

#include <linux/bvec.h>
#include <linux/completion.h>
#include <linux/list.h>
#include <linux/refcount.h>
#include <linux/socket.h>
#include <linux/workqueue.h>

#include "rpc/storage/message.h"
#include "stats/stats.h"

#define COOP_SERVERS_MAX 4
#define COOP_KEY_MAX     4096 /* bytes of a cluster key file */
#define COOP_FABRIC_KEY  16

struct coop_storage;
struct net;

/* Callbacks for pushes and for changes of the connection. They must not submit a call and wait. */
struct coop_storage_ops {
	void (*join)(void *host, u32 node_id, const struct coop_addr *addr);
	void (*leave)(void *host, u32 node_id);
	/*
	 * A new connection: the fabric key may be another, and the daemon will push all members
	 * again; forget the known ones.
	 */
	void (*reset)(void *host);
	/*
	 * The daemon has taken this node off the fabric. It pushes no member until this node is
	 * registered again, and then all: forget the known ones.
	 */
	void (*left)(void *host);
	/*
	 * The daemon forgot the session. Submit one OPEN for each open file whose own OPEN or
	 * CREATE was answered, with 'again', COOP_ST_O_AGAIN and the old open id. No other request
	 * is sent until all of them are answered. Before the next reopen() is called, those of an
	 * earlier one that are not answered end with -ECONNRESET (done() has returned).
	 */
	void (*reopen)(void *host);
	/* The lock that was queued with that cookie is held. */
	void (*granted)(void *host, u64 cookie);
	/* The client's place in the forest of that file version. Must not wait. */
	void (*roles)(void *host, const struct coop_fid *fid, u64 version,
		      const struct coop_st_roles *roles);
	/* The daemon recalls a lease. Must not wait. */
	void (*recalled)(void *host, const struct coop_fid *fid);
	/* A reply that its task no longer waits for has brought leases. Must not wait. */
	void (*leased)(void *host);
	/* The connection is lost. */
	void (*lost)(void *host);
};

struct coop_storage_cfg {
	struct sockaddr_storage server[COOP_SERVERS_MAX]; /* tried in turn */
	u32 n_servers;
	const char *export_name; /* "/data" */
	const u8 *key;           /* cluster key, NULL: none */
	u32 key_len;
	bool soft;
	u32 timeo_ms; /* soft: a call fails with -ETIMEDOUT after this */
	bool leases;  /* ask for leases */
	bool bundles; /* ask for bundles */
	bool forest;  /* ask for roles */
	bool leaf;    /* this node loads nothing for others */
	struct net *net;
};

/**
 * coop_storage_connect - connect, prove the key, learn the root
 * @root_fh: of COOP_ST_FH_MAX bytes; @root_len and @root its length and attributes
 * @why: on failure, what is wrong and what to do; at least 160 bytes
 * Context: may sleep, killable.
 * Return: the connection or ERR_PTR.
 */
struct coop_storage *coop_storage_connect(const struct coop_storage_cfg *cfg,
					  struct coop_stats *stats,
					  const struct coop_storage_ops *ops, void *host,
					  u8 *root_fh, u32 *root_len, struct coop_st_attr *root,
					  char *why, size_t why_size);
/* Sends BYE if the socket takes it at once; calls in flight end with -ESHUTDOWN. Context: may
 * sleep.
 */
void coop_storage_close(struct coop_storage *s);

/* The fabric key of the daemon's present run, which the nodes of the export have. */
void coop_storage_fabric_key(struct coop_storage *s, u8 key[COOP_FABRIC_KEY]);
/*
 * Registers this node's address, and the megabits a second that it can send (0: unknown), now and
 * after every reconnect. NULL: no address any more, which the daemon tells the other nodes. The
 * session goes on. Any context but hard irq.
 */
void coop_storage_register(struct coop_storage *s, const struct coop_addr *self, u32 mbps);
/*
 * Does the daemon take READ_SHARED? The next connection may be to an older one, which answers
 * EOPNOTSUPP.
 */
bool coop_storage_redirects(const struct coop_storage *s);
/* Does the daemon take BUNDLE? As above. */
bool coop_storage_bundles(const struct coop_storage *s);
/* The verifier of names, of the latest connection; 0: the daemon tells none. */
u64 coop_storage_run(const struct coop_storage *s);
/* The own node id from the daemon; 0: none yet. */
u32 coop_storage_node_id(const struct coop_storage *s);
/* For /proc: "10.0.0.1:17430 connected" or "... reconnecting for 12 s". */
void coop_storage_describe(struct coop_storage *s, char *buf, size_t size);
bool coop_storage_connected(struct coop_storage *s);
/*
 * May we rely on leases, and on locks? Yes until COOP_ST_LEASE_TRUST_MS after the start of the
 * latest request that was answered. Half-way this sends a PING to renew the trust. Any context.
 */
bool coop_storage_trusted(struct coop_storage *s);
/* The same for a mount that holds locks: call it each second, and it keeps asking for a word. */
bool coop_storage_keep(struct coop_storage *s);
/* A call that is not done: 'id' as on the wire, 0 if it has none. */
struct coop_call_info {
	u64 id, age_us;
	const char *state; /* "queued", "sent", "receiving", "abandoned" */
	u16 op;
};

/*
 * Describes up to 'room' calls that wait for a reply, the window or a connection. Returns the
 * number of all such calls.
 */
u32 coop_storage_calls(struct coop_storage *s, struct coop_call_info *out, u32 room);
/* A new open id, unique in a mount. */
u64 coop_storage_open_id(struct coop_storage *s);
/* The jiffies that a call may take at present; 0: no limit. *error: how it then ends. */
unsigned long coop_storage_patience(struct coop_storage *s, int *error);
/* Changes soft, hard and timeo at a remount. */
void coop_storage_tune(struct coop_storage *s, bool soft, u32 timeo_ms);
/*
 * In reopen(), hold = true: only calls with 'again' are sent until it is called with false.
 */
void coop_storage_gate(struct coop_storage *s, bool hold);
/* Ends all calls with -EIO. May sleep. */
void coop_storage_abort(struct coop_storage *s);
/*
 * umount -f: the same. Also, until the daemon answers again, calls time out soon, even on a hard
 * mount.
 */
void coop_storage_force(struct coop_storage *s);

/*
 * A call. Reference counted: the submitter holds one, and the connection another
 * while the call is in flight. arg's byte strings and the data's pages must stay
 * until the call is done, and are not touched after that, however it ended. res's
 * byte strings point into the call and live as long as it.
 *
 * The daemon may still execute a call that ends before its reply (killed, timed
 * out). A file that such an OPEN or CREATE opened is then closed by this client.
 */
struct coop_call {
	u16 op;
	bool again; /* part of a reopen(): goes before all other calls */
	bool lease; /* ask for leases of the files in the reply */
	struct coop_st_body arg;
	struct coop_st_body res;
	/* WRITE, SETXATTR: data to send. Others: room for data, at most the sum of the bvecs. */
	struct bio_vec *bvec;
	u32 n_bvec;
	u32 data_max;    /* bytes of the bvecs to send, or to fill at most */
	u32 data_len;    /* reply: bytes received */
	bool shared_dir; /* reply: others use the directory looked in */
	int error;       /* 0 or -errno, when done */
	u64 run;         /* reply: the verifier of names at its connection, 0: not told */
	/*
	 * A CLOSE or UNLOCK whose time is over does not end, as it must reach storage, nor does a
	 * LOCK that storage may have: 'late' gets the error for a task that waits, 'finished' is
	 * completed, and done() runs when the call ends.
	 */
	int late;
	u64 begun_us;
	u64 begun; /* ktime_get_boottime_ns(), which includes suspend */
	/*
	 * Worker context, may sleep, may submit, must not wait for other calls. NULL: a task waits.
	 * The submitter still has to put its reference.
	 */
	void (*done)(struct coop_call *call);
	/* done() never waits and ends no call: the receiver itself runs it. */
	bool prompt;
	void *owner; /* the submitter's, for done() */
	/*
	 * If *fence differs from fence_at when the call's turn to be sent comes, also on a later
	 * connection, it ends with -EIO instead. A change while the gate is held counts for all
	 * calls that wait behind the gate. NULL: no fence.
	 */
	const u32 *fence;
	u32 fence_at;
	/* private to the connection, guarded by its lock */
	struct coop_storage *storage;
	refcount_t refs;
	struct completion finished;
	u64 id;
	u32 state;
	u16 wire_op;              /* op, or CHECK after a streamed READ */
	bool repeated;            /* was sent on a connection that was lost */
	bool pooled;              /* goes back to the connection's reserve */
	bool internal;            /* PING, REGISTER: not repeated on a new connection */
	bool gated;               /* it holds the gate: other calls wait for it */
	bool kept;                /* it counts in coop_storage.kept */
	void *reply;              /* the bytes of res's string */
	struct coop_call *orphan; /* CLOSE of the file that an abandoned OPEN may have opened */
	struct list_head link;
	struct work_struct work;
};

/* Zeroed, one reference. NULL: no memory. GFP_NOFS. */
struct coop_call *coop_call_alloc(struct coop_storage *s, u16 op);
/* The same, but never waits for memory. */
struct coop_call *coop_call_alloc_now(struct coop_storage *s, u16 op);
/*
 * Never NULL: may wait until another call from the reserve is put, which must not depend on the
 * caller. For WRITE and COMMIT, which free memory.
 */
struct coop_call *coop_call_alloc_sure(struct coop_storage *s, u16 op);
void coop_call_put(struct coop_call *call);
/*
 * Sends it, now or when the window and the connection allow. done() runs exactly once. Does not
 * wait; folio locks may be held.
 */
void coop_call_submit(struct coop_call *call);
/* The same, but it may be sent only with coop_storage_push(), which the caller must call. */
void coop_call_queue(struct coop_call *call);
/*
 * Sends queued calls, in the caller's context unless another task is sending, which saves a context
 * switch. Does not wait; folio locks may be held.
 */
void coop_storage_push(struct coop_storage *s);
/* Submits and waits; returns call->error. -ERESTARTSYS: killed, the outcome is unknown. */
int coop_call_run(struct coop_call *call);
/* The second half of run, after several calls were queued. Not for calls with a done(). */
int coop_call_wait(struct coop_call *call);
/* Sets arg.cred from the credential. */
void coop_call_cred(struct coop_call *call, const struct cred *cred);

/*
 * A READ goes straight into pages. If its reply is streamed, the call includes the
 * CHECK that this needs: it completes when CHECK confirms that the version did not
 * change. -ESTALE: it did.
 */

#endif /* COOP_FS_STORAGE_H */
