/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * wire.h - the datagrams of rpc/chan.
 *
 *   header (56 bytes) | OPEN block (32, with F_OPEN) | body by type | MAC (8) | payload
 *
 * The MAC covers all before it, and with W_SEALED the payload. Magic, version,
 * type, sessions and header length keep their places in later versions. Every
 * part except the payload is a multiple of 8 bytes. CHAN.md explains the
 * fields.
 */
#ifndef COOP_CHAN_WIRE_H
#define COOP_CHAN_WIRE_H

#include "rpc/base/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_CHAN_MAGIC     0x6e616863u /* "chan" in memory order */
#define COOP_CHAN_VERSION   1
#define COOP_CHAN_HEADER    56
#define COOP_CHAN_MAC       8
#define COOP_CHAN_MAP_WORDS 64 /* 64-bit words of a window's bitmap */

enum coop_chan_type {
	COOP_CHAN_T_MESSAGE = 1,      /* a whole message */
	COOP_CHAN_T_CHUNK = 2,        /* a part of a message */
	COOP_CHAN_T_VOID = 3,         /* a sequence number that carries nothing (any more) */
	COOP_CHAN_T_PROBE = 4,        /* a payload that the receiver drops */
	COOP_CHAN_T_ACK = 0x81,       /* this and the following types have no sequence number */
	COOP_CHAN_T_RNR = 0x82,       /* receiver not ready: the segment was not accepted */
	COOP_CHAN_T_CHALLENGE = 0x83, /* prove that you are alive: answer to this session id */
	COOP_CHAN_T_RESET = 0x84,     /* the session in your datagram does not exist */
	COOP_CHAN_T_VERSION = 0x85,   /* I speak this version of the protocol only */
};

enum coop_chan_wire_flag {
	COOP_CHAN_W_OPEN = 1,    /* an OPEN block follows the header */
	COOP_CHAN_W_ACK = 2,     /* ack, held and sack are valid: I know your sequence */
	COOP_CHAN_W_ACK_NOW = 4, /* acknowledge at once */
	COOP_CHAN_W_SEALED = 8,  /* the MAC covers the payload */
	COOP_CHAN_W_KNOWN = 15,
};

/* What a peer must know about us before it can process our datagrams. */
struct coop_chan_hello {
	u32 id;        /* what to write into dst_id */
	u32 first_seq; /* of the session */
	u32 command_qpn, command_qkey, data_qpn, data_qkey;
	u16 mtu[2];
	u16 window;
	u8 sl;
};

struct coop_chan_packet {
	u8 version, type, flags;
	u64 src_session; /* the sender's session id */
	u64 dst_session; /* the receiver's session id; 0: not known yet */
	u32 dst_id;      /* the receiver's id of the sender; 0: not known yet */
	u32 seq;
	u32 ack;   /* all segments before it have arrived */
	u32 stamp; /* sender's clock when it made this datagram */
	u32 echo;  /* stamp of the last segment that arrived */
	u16 held;  /* microseconds since that arrived; all ones: too long ago */
	u64 sack;  /* bit i: ack + 1 + i has arrived */
	struct coop_chan_hello hello;
	/* MESSAGE, CHUNK */
	u64 tag;
	/* CHUNK: offset, length, first, unit; VOID: first; RNR: first, reason */
	u32 first; /* sequence number of the message's first segment; names the message */
	u32 offset, length;
	u16 unit; /* payload bytes of every chunk but the last */
	u16 size; /* payload bytes of this chunk */
	u16 reason;
	u64 session; /* RESET: the session that does not exist */
	/* ACK: further words of the bitmap; word i: ack + 1 + 64 * (i + 1) ... */
	u32 n_map;
	u64 map[COOP_CHAN_MAP_WORDS - 1];
	/* Set by decode, given by length to encode. */
	u32 header_len; /* up to the payload, MAC included */
	u32 payload_len;
};

enum coop_chan_decode {
	COOP_CHAN_D_OK,
	COOP_CHAN_D_SHORT,   /* wrong magic, or impossible lengths */
	COOP_CHAN_D_MAC,     /* forged or damaged: do not answer */
	COOP_CHAN_D_VERSION, /* genuine from here on: sessions and type are filled */
	COOP_CHAN_D_MALFORMED,
};

/*
 * Returns the header bytes written. The length field includes payload_len. The
 * MAC does not cover the payload; coop_chan_seal() replaces it if it must.
 */
u32 coop_chan_encode(struct coop_chan_packet *m, const u8 key[16], u8 *buf);
enum coop_chan_decode coop_chan_decode(struct coop_chan_packet *m, const u8 key[16],
				       const void *buf, u32 len, bool any_mac);
/* Header bytes of a datagram of this shape, MAC included. */
u32 coop_chan_header_len(u8 type, bool open, u32 n_map);

#ifdef __cplusplus
}
#endif

#endif /* COOP_CHAN_WIRE_H */
