/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * wire.h - the control messages.
 *
 * One datagram each, on the control queue pair:
 *
 *   header (24 bytes) | body by command | MAC (8 bytes, over all before it)
 *
 * Header and trailer keep their places in every later version, so that a node
 * can recognise a genuine message of an unknown kind and name it in a REFUSED.
 * Decoding copies into host structures; lengths must fit exactly, reserved
 * fields must be zero. PROTOCOL.md explains the fields.
 */
#ifndef COOP_WIRE_H
#define COOP_WIRE_H

#include "engine.h"
#include "plan.h"
#include "rpc/base/bits.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_WIRE_MAGIC   0x706f6f63u /* "coop" in memory order */
#define COOP_WIRE_VERSION 1
#define COOP_WIRE_HEADER  24
#define COOP_WIRE_MAC     8
#define COOP_WIRE_HOPS    1    /* hop limit of a FORWARD, and of all messages of older nodes */
#define COOP_WIRE_PASS    2    /* hop limit of all others: a REQUEST may be passed on once */
#define COOP_CMD_ANSWER   0x80 /* bit of answers, which a node never answers */

enum coop_cmd {
	COOP_CMD_REQUEST = 1,    /* send me these pages */
	COOP_CMD_QUERY = 2,      /* what did you commit for this request and generation? */
	COOP_CMD_PING = 3,       /* are you there? */
	COOP_CMD_FORWARD = 4,    /* a REQUEST that its receiver passes on: answer its sender */
	COOP_CMD_OFFER = 5,      /* I am about to drop these pages: fetch them if you have room */
	COOP_CMD_COMMIT = 0x81,  /* these pages were sent and did not change since the lookup */
	COOP_CMD_BUSY = 0x82,    /* nothing will be sent; ask again after value us */
	COOP_CMD_AGAIN = 0x83,   /* still sending, or waiting for the pages; value us more */
	COOP_CMD_REFUSED = 0x84, /* never; see reason */
	COOP_CMD_PONG = 0x85,
	COOP_CMD_PASSED = 0x86, /* I lack the pages and have passed your REQUEST on */
};

enum coop_reason {
	COOP_REASON_NONE,
	COOP_REASON_VERSION,   /* value: the version that I speak */
	COOP_REASON_COMMAND,   /* value: the command that I do not know */
	COOP_REASON_MALFORMED, /* the body breaks a rule */
	COOP_REASON_FLAGS,     /* header flags or options that I do not know */
	COOP_REASON_MTU,       /* value: the largest datagram that I can send */
	COOP_REASON_PAGE_SIZE, /* value: my page shift */
	COOP_REASON_ADDRESS,   /* the reply address is not where the message came from */
	COOP_REASON_NO_RECORD, /* to QUERY: I have no record of this request */
	COOP_REASON_MAX,
};

enum coop_option {
	COOP_OPT_CRC = 1,       /* COMMIT shall carry a CRC32C a page */
	COOP_OPT_PACKED = 2,    /* packed layout */
	COOP_OPT_SELECTIVE = 4, /* a bitmap of the wanted segments follows the extents */
	COOP_OPT_TAG = 8,       /* COMMIT shall carry a keyed tag a page; not with CRC */
	COOP_OPT_WAIT = 16,     /* keep the request for pages that are on their way */
	COOP_OPT_LOAD = 32,     /* and load those that are not; only with WAIT */
	COOP_OPT_KNOWN = 63,
};

struct coop_msg_request {
	struct coop_fid fid;
	u64 version;
	u64 size;               /* bytes of the file, as the requester knows it */
	struct coop_addr data;  /* where the segments go */
	struct coop_addr reply; /* where COMMIT and the other answers go */
	u32 budget_us;          /* the requester waits no longer than this */
	u16 mtu;
	u16 options; /* enum coop_option */
	u8 page_shift;
	u8 attempt; /* counts up within a request id */
	u32 level;  /* WAIT: of the load that this request is for, at least 1; else 0 */
	u32 n_ext;
	struct coop_extent ext[COOP_MAX_EXTENTS];
	u64 want[COOP_SEG_WORDS]; /* SELECTIVE: bit per segment; encode reads the first n_segs */
};

struct coop_msg_commit {
	struct coop_fid fid;
	u64 version;
	u64 size;                /* bytes of the file, as the responder knows it */
	u64 pages;               /* bit per page ordinal: sent, and not changed since the lookup */
	struct coop_addr source; /* data QP that sent: gid, lid, qpn */
	u32 n_sums;              /* 0, or pages of the fetch */
	u8 tags;                 /* 1: sums are tags, not CRCs */
	u64 sum[COOP_MAX_PAGES]; /* undefined for pages that are not listed */
};

struct coop_msg {
	u8 version, command, hops, flags;
	u64 id;     /* request id, chosen by the requester, echoed in answers */
	u32 imm;    /* immediate data of segment 0: generation, segment bits zero; echoed */
	u16 reason; /* REFUSED: enum coop_reason */
	u32 value;  /* BUSY, AGAIN, REFUSED, PING, PONG: see above; PING and PONG: own MTU */
	u32 n_segs; /* REQUEST with SELECTIVE: bits in want (encode: given, decode: derived) */
	union {
		struct coop_msg_request request;
		struct coop_msg_commit commit;
		struct coop_offer offer;
		struct coop_addr passed_to; /* PASSED: control address */
	} u;
};

enum coop_decode {
	COOP_DECODE_OK,
	COOP_DECODE_SHORT,   /* too short for a header, wrong magic, or wrong length field */
	COOP_DECODE_MAC,     /* forged or damaged: do not answer */
	COOP_DECODE_VERSION, /* genuine from here on: the header fields of *m are filled */
	COOP_DECODE_COMMAND,
	COOP_DECODE_FLAGS,
	COOP_DECODE_MALFORMED,
};

/* The command of a message that is not decoded yet, for traces; 0: the message is too short. */
static inline u8 coop_wire_command(const u8 *buf, u32 len)
{
	return len < COOP_WIRE_HEADER ? 0 : buf[5];
}

/* The id of a message that was decoded before. */
static inline u64 coop_wire_id(const u8 *buf)
{
	u64 id = 0;
	u32 i;

	for (i = 16; i > 8; i--)
		id = id << 8 | buf[i - 1];
	return id;
}

/*
 * Which of the n engines that share a control address (engine.h) a message is for. An answer is for
 * the one that asked, which is in the id's top bits. What belongs to one request of another node
 * has one id, so it meets in one engine. The first has everything else. The message is not decoded
 * yet, so the engine may not be the right one; then it drops the message.
 */
#define COOP_SHARD_BITS 3
static inline u32 coop_wire_shard(const u8 *buf, u32 len, u32 n)
{
	const u8 command = coop_wire_command(buf, len);
	u64 id;

	if (n < 2 || !command)
		return 0;
	id = coop_wire_id(buf);
	if (command & COOP_CMD_ANSWER)
		return (id >> (64 - COOP_SHARD_BITS)) % n;
	if (command == COOP_CMD_REQUEST || command == COOP_CMD_FORWARD || command == COOP_CMD_QUERY)
		/* The low bits choose the set of records, see serve.c. */
		return (u32)((coop_mix(id) >> 32) % n);
	return 0;
}

/* Most bytes of a control message on a path of this MTU. */
u32 coop_wire_room(u32 mtu);
/* Most segments and most pages of a fetch whose REQUEST and COMMIT always fit that room. */
u32 coop_wire_max_segs(u32 mtu);
u32 coop_wire_max_pages(u32 mtu, bool tags);
/* Bytes written, or 0 if the message does not fit size. */
u32 coop_wire_encode(const struct coop_msg *m, const u8 key[16], u8 *buf, u32 size);
enum coop_decode coop_wire_decode(struct coop_msg *m, const u8 key[16], const u8 *buf, u32 len);
/* Pages over the extents, 0 if they are not ascending, disjoint and within COOP_MAX_PAGES. */
u32 coop_extents_pages(const struct coop_extent *ext, u32 n_ext);

#ifdef __cplusplus
}
#endif

#endif /* COOP_WIRE_H */
