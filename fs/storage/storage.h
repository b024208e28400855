/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * storage.h - the storage daemon, as the rest of the file system sees it.
 *
 * One TCP connection a mount, many calls in flight, answered in any order. A call
 * is the caller's memory: it fills the request's fields, submits, and gets the
 * reply's fields back, data straight in its pages. A connection that is lost is
 * made again with backoff under the same session, and what had no reply is sent
 * again (rpc/storage/STORAGE.md says what is safe and why); the caller notices only time.
 * 'soft' mounts give up after timeo, 'hard' ones never do, except for a killed
 * process.
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

struct coop_storage;
struct net;

/* Runs in the receiver's work: must not submit and wait. */
struct coop_storage_ops {
	void (*join)(void *host, u32 node_id, const struct coop_addr *addr);
	void (*leave)(void *host, u32 node_id);
	/* The connection is new: members will be pushed again, forget those known. */
	void (*reset)(void *host);
	/*
	 * The daemon forgot the session: submit one OPEN for each open file whose own OPEN or
	 * CREATE had been answered, with 'again', COOP_ST_O_AGAIN and the old open id. Nothing else
	 * is sent until all of them are answered. Those that an earlier reopen() left unanswered
	 * have ended with -ECONNRESET (done() has returned) before the next one is called.
	 */
	void (*reopen)(void *host);
	/* A lock that was queued under that name is held. */
	void (*granted)(void *host, u64 cookie);
	/* A lease is to be given back: waits for nothing. */
	void (*recalled)(void *host, const struct coop_fid *fid);
	/* The connection is not there any more. */
	void (*lost)(void *host);
};

struct coop_storage_cfg {
	struct sockaddr_storage server[COOP_SERVERS_MAX]; /* tried in turn */
	u32 n_servers;
	const char *export_name; /* "/data" */
	const u8 *key;           /* cluster key, NULL: none */
	u32 key_len;
	bool soft;
	u32 timeo_ms; /* soft: a call fails with -ETIMEDOUT after that */
	bool leases;  /* are asked for */
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
/* Says BYE if it can at once; calls in flight end with -ESHUTDOWN. Context: may sleep. */
void coop_storage_close(struct coop_storage *s);

/*
 * The fabric key that both sides derive from the cluster key (zero without one).
 * 16 bytes. Valid after connect.
 */
void coop_storage_fabric_key(const struct coop_storage *s, u8 *key);
/*
 * Registers this node's address, now and after every reconnect; NULL: none any more, which makes
 * the connection anew, so that the others hear of it. Any context that may take a mutex.
 */
void coop_storage_register(struct coop_storage *s, const struct coop_addr *self);
/* Own node id as the daemon gave it; 0: none yet. */
u32 coop_storage_node_id(const struct coop_storage *s);
/* For /proc: "10.0.0.1:17430 connected" or "... reconnecting for 12 s". */
void coop_storage_describe(struct coop_storage *s, char *buf, size_t size);
bool coop_storage_connected(struct coop_storage *s);
/*
 * May leases be relied on? Until COOP_ST_LEASE_TRUST_MS after the latest request was made that has
 * been answered; asks the daemon for a word half-way. Any context.
 */
bool coop_storage_trusted(struct coop_storage *s);
/* A call that is not done: 'id' as on the wire, 0 while it is not there. */
struct coop_call_info {
	u64 id, age_us;
	const char *state; /* "queued", "sent", "receiving", "abandoned" */
	u16 op;
};

/*
 * Calls that wait for their replies now, or for the window or a connection; tells of the first
 * 'room' of them. Return: how many there are.
 */
u32 coop_storage_calls(struct coop_storage *s, struct coop_call_info *out, u32 room);
/* New open ids, never given twice in a mount. */
u64 coop_storage_open_id(struct coop_storage *s);
/* The remount of soft, hard and timeo. */
void coop_storage_tune(struct coop_storage *s, bool soft, u32 timeo_ms);
/*
 * In reopen(): nothing but calls with 'again' is sent until the same is called with false.
 */
void coop_storage_gate(struct coop_storage *s, bool hold);
/* Whatever is in flight ends with -EIO. May sleep. */
void coop_storage_abort(struct coop_storage *s);
/*
 * umount -f: the same, and until the daemon is heard of again nothing waits for it long, on a hard
 * mount neither.
 */
void coop_storage_force(struct coop_storage *s);

/*
 * A call. Reference counted: the submitter holds one, the connection another
 * while it is in flight. arg's byte strings and the data's pages must stay until
 * the call is done, and are not touched after that, however it ended. res's byte
 * strings point into the call and live as long as it.
 *
 * A call that ends before its reply (killed, timed out) may still happen in the
 * daemon. The file that such an OPEN or CREATE opened is closed from here.
 */
struct coop_call {
	u16 op;
	bool again; /* OPEN while re-opening: goes before everything else */
	bool lease; /* leases of what the reply tells are welcome */
	struct coop_st_body arg;
	struct coop_st_body res;
	/* WRITE, SETXATTR: sent. Others with data: received, at most the sum of the bvecs. */
	struct bio_vec *bvec;
	u32 n_bvec;
	u32 data_max; /* bytes of the bvecs that may be used, or that are sent */
	u32 data_len; /* reply: bytes that came */
	int error;    /* 0 or -errno, when done */
	u64 begun_us;
	u64 begun; /* of ktime_get_boottime_ns(), which suspend does not stop */
	/*
	 * Worker context, may sleep, may submit, must not wait for other calls; NULL: somebody
	 * waits. The submitter's reference is still to be put.
	 */
	void (*done)(struct coop_call *call);
	/* done() waits for nothing at all and ends no call: the receiver itself runs it. */
	bool prompt;
	void *owner; /* the submitter's, for done() */
	/* the connection's own, guarded by its lock */
	struct coop_storage *storage;
	refcount_t refs;
	struct completion finished;
	u64 id;
	u32 state;
	u16 wire_op;              /* op, or CHECK after a streamed READ */
	bool repeated;            /* had been sent when a connection was lost */
	bool pooled;              /* goes back to the connection's reserve */
	bool internal;            /* PING, REGISTER: not sent again by a new connection */
	bool gated;               /* the others wait for it */
	void *reply;              /* the bytes of res's string */
	struct coop_call *orphan; /* CLOSE of what an abandoned OPEN may have opened */
	struct list_head link;
	struct work_struct work;
};

/* Zeroed, one reference. NULL: no memory. GFP_NOFS. */
struct coop_call *coop_call_alloc(struct coop_storage *s, u16 op);
/*
 * Never NULL: may wait for another one of these to be put, which must not depend on the caller. For
 * WRITE and COMMIT, by which memory comes back.
 */
struct coop_call *coop_call_alloc_sure(struct coop_storage *s, u16 op);
void coop_call_put(struct coop_call *call);
/*
 * Sends it, now or when the window and the connection allow; done() runs once in any case. Waits
 * for nothing; folio locks may be held.
 */
void coop_call_submit(struct coop_call *call);
/* The same, but it need not leave before coop_storage_push(), which the caller owes it. */
void coop_call_queue(struct coop_call *call);
/*
 * Sends what is queued: by the caller itself unless somebody is sending, which saves a change of
 * thread. Waits for nothing; folio locks may be held.
 */
void coop_storage_push(struct coop_storage *s);
/* Submits and waits: call->error. -ERESTARTSYS: killed; what the daemon did is not known. */
int coop_call_run(struct coop_call *call);
/* Its second half, for who has queued several. One that has a done() is not waited for. */
int coop_call_wait(struct coop_call *call);
/* The caller's credentials into arg.cred. */
void coop_call_cred(struct coop_call *call, const struct cred *cred);

/*
 * READ of one version straight into pages, with the CHECK that a streamed reply
 * needs: coop_call of op READ whose reply was streamed completes only when CHECK
 * said that the version held. -ESTALE: it did not.
 */

#endif /* COOP_FS_STORAGE_H */
