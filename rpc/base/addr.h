/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * addr.h - the address of a UD queue pair: its text and its identity.
 *
 * The text is what an administrator writes to register a peer and reads back:
 *
 *   gid=::ffff:192.0.2.7 lid=0x0000 qpn=0x000011 qkey=0x8001c00b sl=0
 *
 * Keys come in any order, each at most once; qpn, qkey and one of gid and lid
 * are required. One bad key makes the whole line invalid.
 */
#ifndef COOP_ADDR_H
#define COOP_ADDR_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_ADDR_TEXT 128 /* bytes that hold any formatted address and its terminator */
#define COOP_QPN_MAX   0xffffffu
#define COOP_SL_MAX    15

/* One line, with or without its newline. 0 or -EINVAL; *out is untouched on error. */
int coop_addr_parse(const char *text, size_t len, struct coop_addr *out);
/* Characters written before the terminating NUL, or -ENOSPC. */
int coop_addr_format(const struct coop_addr *a, char *buf, size_t size);
/* Can datagrams be sent to it? Unicast, QPN and SL in range. */
bool coop_addr_valid(const struct coop_addr *a);
/* The same queue pair: GID (or LID where there is no GID) and QPN. */
bool coop_addr_same(const struct coop_addr *a, const struct coop_addr *b);
/* The same port: GID, or LID where there is no GID. */
bool coop_addr_same_port(const struct coop_addr *a, const struct coop_addr *b);
bool coop_addr_has_gid(const struct coop_addr *a);
/* The same value on every node, and for all addresses that coop_addr_same() calls the same. */
u64 coop_addr_hash(const struct coop_addr *a);

#ifdef __cplusplus
}
#endif

#endif /* COOP_ADDR_H */
