/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * abi.h - what a process and the module say to each other by /dev/coop-net.
 *
 * One open file is one transfer machine: two queue pairs, an engine for messages (rpc/chan), one
 * for bulk data (rpc/fetch), and the memory that the process has registered. The process decides
 * who its peers are and what they may read; the module moves bytes, whether the process runs or
 * not.
 *
 * Operations go to the module in one ring, events come back in another, both in memory that the
 * process maps. Indices are free-running; entry i is at i modulo the ring's length. A side stores
 * an entry first, then its index (release). The module reads each operation once, keeps its own
 * copy of all indices, and ends the machine (COOP_NET_FAILED, calls give -EBADR) if those of the
 * process are impossible.
 *
 * An operation that cannot be done ends with its event: -EINVAL, -ENOENT (no such buffer or peer),
 * -EFAULT (outside of the buffer), -EMSGSIZE, -EEXIST (an offer with this token and key). To a
 * FETCH -ENOENT also says that the peer has no such offer, and -EHOSTUNREACH that there is no such
 * peer. What no event can tell fails the machine: an unknown code, a handle that is in use or that
 * there is not.
 *
 * An operation has a handle, a number below coop_net_setup.handles that the process chooses; it is
 * in use until the process has taken the event with COOP_NET_FINAL. Room for that event is
 * reserved before the module takes the operation from the ring, and room for any other event
 * before what it reports is accepted from the network; so no event is ever dropped. Events about
 * peers and readers are states rather than a history: two of a kind become one.
 *
 * After it has stored op_tail, with a full fence behind, the process looks at `state`: with
 * COOP_NET_AWAKE the module looks at the ring again before it sleeps, else COOP_NET_ENTER tells it.
 * If there was no room for their events, operations stay in the ring, and events about peers and
 * readers wait; a process that has made room calls COOP_NET_ENTER, or poll(), for them to go on.
 * COOP_NET_CANCEL and COOP_NET_PLACE need no room, but wait for operations before them.
 *
 * Peers read an offer by requests of rpc/fetch, as many as they like, until COOP_NET_CANCEL. Of
 * those that are served then, readers believe no page, or bytes of before it, and
 * COOP_NET_OFFER_OVER follows them. A request names the offer by token and key, its reader by the
 * lower COOP_NET_SHIFT_AT bits of fid[1], and pages. Page i is the COOP_NET_PAGE bytes of the offer
 * from shift + i * COOP_NET_PAGE on, with zeros behind the end. The shift is the rest of fid[1]: 0
 * except for offers with COOP_NET_RANGES, and always less than COOP_NET_PAGE and than the length of
 * the offer. A request that breaks these rules, or that names a page which begins behind the end,
 * gets the answer of an offer that there is not.
 *
 * Only the address space that has called COOP_NET_SETUP may use the file: in a child of fork all
 * calls give -EBADR, and the rings are not there. Unmapping the rings, exec, exit and the last
 * close end the machine, and none of them but close(2) waits for the device. When the process has
 * unmapped the rings and closed the file, in any order, no memory of it is read or written any
 * more.
 */
#ifndef COOP_NET_ABI_H
#define COOP_NET_ABI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define COOP_NET_DEVICE   "/dev/coop-net"
#define COOP_NET_ABI      3
#define COOP_NET_PAGE     4096 /* unit of bulk data, as in rpc/fetch */
#define COOP_NET_RUN      64   /* pages of one fetch, at most; an aligned run */
#define COOP_NET_TEXT     64   /* bytes of a message that travels within an operation or event */
#define COOP_NET_SHIFT_AT 50   /* bit of fid[1] */
#define COOP_NET_KIND_TEXT                                                      \
	2 /* upper 8 bits of a tag: such messages have COOP_NET_TEXT bytes, and \
	   * need no receive buffer */

struct coop_net_addr {
	__u8 gid[16];
	__u32 qpn, qkey;
	__u16 lid;
	__u8 sl, zero;
	__u32 data_qpn, data_qkey; /* of the data channel, same GID and LID */
};

enum coop_net_setup_flag {
	COOP_NET_SEAL = 1,      /* as COOP_CHAN_F_SEAL */
	COOP_NET_FIRST_SEQ = 2, /* as COOP_CHAN_F_FIRST_SEQ */
	COOP_NET_PAGE_CRC = 4,  /* as COOP_F_PAGE_CRC */
};

/*
 * COOP_NET_SETUP, once a file. 0 in a field with a default: the default, which is stored there.
 * -EMFILE: the user has too many machines or queue pairs; -EAGAIN: the rdma cgroup's limit;
 * -EADDRNOTAVAIL, -ENODEV, -ENETDOWN: see `why`.
 * -EPROTO: the versions differ; a structure of another length than the module's gets `abi` alone.
 * -E2BIG: it is longer than 4096 bytes, or has other bytes than 0 behind the module's.
 */
struct coop_net_setup {
	__u32 size;      /* in: of this structure */
	__u32 abi;       /* in: COOP_NET_ABI; out, also with -EPROTO: the module's */
	__u8 device[64]; /* name, zero-terminated; empty: the first with an active port */
	__u32 port;      /* 0: the first active one */
	__s32 gid_index; /* -1: by addr, or a usable one */
	__u8 addr[16];   /* not all zero: the GID of this address (IPv4: mapped) */
	__u8 key[16];    /* of the fabric; all zero: none */
	__u32 qkey;      /* bit 31 is cleared: peers in user space could not use it */
	__u32 flags;     /* enum coop_net_setup_flag */
	__u32 ops;       /* entries, powers of two, 64 to 16384 [1024] */
	__u32 events;    /* [4096] */
	__u32 handles;   /* 1 to 65536 [4096] */
	__u32 peers;     /* as coop_chan_cfg.max_peers, 1 to 65536 [1024] */
	__u32 fetches;   /* fetch queue pairs, 1 to 256 [16] */
	__u32 serves;    /* requests served at once, 1 to 256 [16] */
	__u32 window;    /* as coop_chan_cfg.window */
	__u32 tries;     /* as coop_chan_cfg.max_tries */
	__u32 first_seq;
	__u32 fetch_timeout_us, silence_us; /* as in coop_engine_cfg */
	__u32 zero;
	/* out */
	struct coop_net_addr self;
	__u32 command_mtu, data_mtu; /* payload bytes of a datagram */
	__u32 max_message;           /* bytes */
	__u32 fetch_pages;           /* pages a fetch asks for, at most */
	__u32 pad;
	__u64 map_bytes;         /* to map at offset 0, MAP_SHARED */
	__u64 ops_at, events_at; /* from the start of the mapping, where coop_net_rings is */
	__u8 why[128];           /* after an error: what is wrong and what to do */
};

enum coop_net_state {
	COOP_NET_AWAKE = 1, /* the module looks at the ring of operations before it sleeps */
	COOP_NET_FAILED =
		2, /* the device is gone, or the process broke the rules: no event follows */
};

/* The start of the mapping. Each index has a cache line of its own, with what its writer adds. */
struct coop_net_rings {
	__u32 op_tail; /* process */
	__u32 pad0[15];
	__u32 op_head; /* module: taken */
	__u32 pad1[15];
	__u32 event_tail; /* module */
	__u32 state;      /* module: enum coop_net_state */
	__s32 failure;    /* module: with COOP_NET_FAILED, a negative errno value */
	__u32 pad2[13];
	__u32 event_head; /* process: taken */
	__u32 polls;      /* process: not 0: it polls, so the module stays awake for a moment */
	__u32 pad3[14];
};

enum coop_net_op_code {
	COOP_NET_SEND = 1, /* a message to `peer`; COOP_NET_SENT */
	COOP_NET_RECV,     /* a buffer for messages; COOP_NET_RECEIVED each, COOP_NET_RECV_OVER */
	COOP_NET_OFFER,    /* peers may read; COOP_NET_READER, COOP_NET_OFFER_OVER */
	COOP_NET_FETCH,    /* reads what a peer offers; COOP_NET_FETCHED */
	/* The rest is about the operation with this handle, and has no event of its own. */
	COOP_NET_CANCEL, /* ends it early */
	COOP_NET_PLACE   /* an OFFER with a reader: as if `peer` had been its reader_peer */
};

enum coop_net_op_flag {
	COOP_NET_IN_TEXT = 1, /* SEND: the bytes are in u.send.text, at most COOP_NET_TEXT */
	COOP_NET_PROBE = 2,   /* SEND: as COOP_CHAN_PROBE; length counts, no bytes are read */
	COOP_NET_BY_DATA = 4, /* SEND: as COOP_CHAN_BY_DATA */
	COOP_NET_URGENT = 8,  /* SEND: as COOP_CHAN_URGENT */
	COOP_NET_RANGES = 16, /* OFFER: for ranges that begin anywhere, without COOP_NET_READER */
	COOP_NET_HERE = 32,   /* SEND: to this machine itself, `peer` is 0. COOP_NET_RECEIVED and
			       * COOP_NET_SENT follow at once, and room for both is needed. -ENOBUFS:
			       * there is no buffer; -EMSGSIZE: the next one is too small */
};

struct coop_net_op {
	__u8 code;  /* enum coop_net_op_code */
	__u8 flags; /* enum coop_net_op_flag */
	__u16 zero;
	__u32 handle;
	__u32 peer;   /* SEND, FETCH: from COOP_NET_PEER_OPEN or an event */
	__u32 buffer; /* from COOP_NET_BUFFER_ADD */
	__u64 offset; /* in the buffer, over all its segments */
	__u64 length; /* FETCH: of the memory from `offset` on; no byte behind it is written */
	union {
		struct {
			__u64 tag; /* as coop_chan_msg.tag; low 56 bits: the sender */
			__u8 text[COOP_NET_TEXT];
		} send;
		struct {
			__u64 min_size;     /* it takes another message while so much is free */
			__u32 max_messages; /* at least 1 */
			__u32 zero;
		} recv;
		struct {
			__u64 token, key;  /* what a request names: fid[0] and version; key
					    * not 0 */
			__u64 reader;      /* the only one that may read; 0: any */
			__u32 reader_peer; /* with reader: requests come from the port where this
					    * peer is now, or from the address of another peer
					    * that is admitted with the reader as its sender;
					    * from elsewhere it has to ask again (-EBUSY);
					    * 0: from any */
			__u32 zero;
		} offer;
		struct {
			__u64 fid[2];  /* the peer's token; the own identity and the shift */
			__u64 version; /* its key */
			__u64 size;    /* bytes that the peer offers, as the descriptor says */
			__u64 index;   /* first page, see want */
			__u64 want; /* bit i: page index + i; all in one aligned run of COOP_NET_RUN
				     */
			__u32 budget_us;
			__u32 zero;
			/* coop_net_op.offset: where page `index` goes, and the others as far
			 * from there as they are apart. All begin within coop_net_op.length, which
			 * may cut the last one */
		} fetch;
		__u64 room[12];
	} u;
};

enum coop_net_event_code {
	COOP_NET_SENT = 1,
	COOP_NET_RECEIVED,
	COOP_NET_RECV_OVER,
	COOP_NET_TEXT_IN, /* a message of COOP_NET_KIND_TEXT */
	COOP_NET_READER,
	COOP_NET_OFFER_OVER,
	COOP_NET_FETCHED,
	COOP_NET_STRANGER, /* a message of a peer that is not admitted: it tries again for a while
			    */
	COOP_NET_PEER_NEW,
	COOP_NET_PEER_DEAD,
	COOP_NET_PEER_RESTARTED,
	COOP_NET_ADDRESS, /* the own address is another: COOP_NET_SELF tells it */
};

enum coop_net_event_flag {
	COOP_NET_FINAL = 1,   /* the handle is free */
	COOP_NET_READING = 2, /* READER: a request is being served; else the last one is over */
};

struct coop_net_event {
	__u8 code;  /* enum coop_net_event_code */
	__u8 flags; /* enum coop_net_event_flag */
	__u16 zero;
	__s32 status; /* 0 or a negative errno value */
	__u32 handle;
	__u32 peer;   /* RECEIVED: 0 if it is from this machine itself */
	__u64 cookie; /* of the peer; 0: none */
	__u64 offset; /* RECEIVED: in the RECV's piece of the buffer */
	__u64 length;
	__u64 tag;   /* messages; READER: fid[1] of the request; PEER_DEAD, _RESTARTED: the reason,
		      * as coop_chan_ev.why */
	__u64 pages; /* FETCHED: those that arrived, as in want */
	__u8 text[COOP_NET_TEXT];
	__u64 pad;
};

struct coop_net_segment {
	__u64 at;
	__u64 length;
};

/* Pins memory, within RLIMIT_MEMLOCK. -EFAULT, -ENOMEM, -EINVAL, -ENOSPC (too many). */
struct coop_net_buffer {
	__u64 segments; /* in: address of coop_net_segment[n] */
	__u32 n;        /* in: 1 to 4096 */
	__u32 buffer;   /* out */
};

struct coop_net_peer {
	__u32 peer; /* OPEN: out */
	__u32 zero;
	__u64 cookie;              /* OPEN, ADMIT: in; not 0 */
	__u64 sender;              /* OPEN, ADMIT: in; low 56 bits of the tags of its messages */
	struct coop_net_addr addr; /* OPEN: in; INFO: out */
	__u32 srtt_us, in_flight, queued, carried, sessions; /* INFO: as in coop_chan_peer_info */
	__u32 pad[2];
};

/* What went over it: bytes of messages and of bulk data, without headers. */
struct coop_net_count {
	__u64 sent, received;
};

struct coop_net_enter {
	__u32 events; /* in: wait until so many are in the ring; 0: do not wait */
	__u32 zero;
	__u64 timeout_ns; /* in: of the wait; ~0: none */
};

#define COOP_NET_IOCTL 0xce
#define COOP_NET_SETUP _IOWR(COOP_NET_IOCTL, 0, struct coop_net_setup)
/* Performs what is in the ring; then waits, if asked to. -EBADR, -EINTR, -ETIME. */
#define COOP_NET_ENTER      _IOW(COOP_NET_IOCTL, 1, struct coop_net_enter)
#define COOP_NET_BUFFER_ADD _IOWR(COOP_NET_IOCTL, 2, struct coop_net_buffer)
/* -EBUSY: an operation uses it. -ENOENT. */
#define COOP_NET_BUFFER_DEL _IOW(COOP_NET_IOCTL, 3, __u32)
/* -ENOSPC, -EINVAL (own or impossible address). The id of a known address, admitted again. */
#define COOP_NET_PEER_OPEN _IOWR(COOP_NET_IOCTL, 4, struct coop_net_peer)
/* -ENOENT: stale, in these three. */
#define COOP_NET_PEER_ADMIT _IOW(COOP_NET_IOCTL, 5, struct coop_net_peer)
/* Behind the operations that are in the ring. */
#define COOP_NET_PEER_CLOSE _IOW(COOP_NET_IOCTL, 6, __u32)
#define COOP_NET_PEER_INFO  _IOWR(COOP_NET_IOCTL, 7, struct coop_net_peer)
#define COOP_NET_SELF       _IOR(COOP_NET_IOCTL, 8, struct coop_net_addr)
#define COOP_NET_COUNT      _IOR(COOP_NET_IOCTL, 9, struct coop_net_count)

#endif /* COOP_NET_ABI_H */
