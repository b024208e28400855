/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * mac.h - SipHash-2-4, the keyed checksum of control messages.
 *
 * We use it because it is a proven PRF for short messages, costs about a cycle
 * a byte and needs no table, no context and no library. With the all-zero key
 * it is only a checksum.
 */
#ifndef COOP_MAC_H
#define COOP_MAC_H

#include "host.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_MAC_KEY 16

u64 coop_mac(const u8 key[COOP_MAC_KEY], const void *data, size_t len);

/* The same over bytes in several places: begin, add each piece in order, end. */
struct coop_mac_state {
	u64 a, b, c, d;
	u64 tail;   /* bytes that do not fill a word yet, the first in the lowest bits */
	u32 n_tail; /* bytes in tail, 0..7 */
	u32 total;
};
void coop_mac_begin(struct coop_mac_state *s, const u8 key[COOP_MAC_KEY]);
void coop_mac_add(struct coop_mac_state *s, const void *data, size_t len);
u64 coop_mac_end(struct coop_mac_state *s);

#ifdef __cplusplus
}
#endif

#endif /* COOP_MAC_H */
