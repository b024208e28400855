/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * types.h - the types that the protocols share: a file's identity, a queue
 * pair's address, and the limits of UD that hold for all.
 *
 * Page fetch, messaging and storage protocol use these types and do not include
 * each other.
 */
#ifndef COOP_TYPES_H
#define COOP_TYPES_H

#include "host.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_GRH       40  /* bytes at the head of every UD receive */
#define COOP_MTU_MIN   256 /* payload bytes of a datagram */
#define COOP_MTU_MAX   4096
#define COOP_MAX_HINTS 16          /* peers that storage names for a file */
#define COOP_NONE      0xffffffffu /* no slot, no index */

/* Identity of a file, independent of its name: storage never reuses the 128 bits. */
struct coop_fid {
	u64 hi, lo;
};

/* Where a UD queue pair is reached. gid all zero: address by lid (native IB). */
struct coop_addr {
	u8 gid[16];
	u32 qpn; /* 24 bits */
	u32 qkey;
	u16 lid;
	u8 sl; /* 4 bits */
	u8 reserved;
};

#ifdef __cplusplus
}
#endif

#endif /* COOP_TYPES_H */
