/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * flow.h - flow labels: which of several equal paths the datagrams to a peer take.
 *
 * Switches choose among equal paths by a hash of the headers. The only part that differs between
 * datagrams of two ports is the flow label, and the UDP source port that a RoCE v2 device makes of
 * it. With one label all data of two nodes share one path, however many there are. So a node sends
 * to each peer under COOP_FLOWS labels. Two queue pairs always use the same one, so what they
 * exchange stays in order.
 */
#ifndef COOP_FLOW_H
#define COOP_FLOW_H

#include "bits.h"
#include "types.h"

#define COOP_FLOWS          4 /* each costs an address handle a peer; a power of two */
#define COOP_FLOW_LABEL_MAX 0xfffffu

/* Of the datagrams from one queue pair to another. */
static inline u32 coop_flow_of(u32 own_qpn, u32 peer_qpn)
{
	return (own_qpn + peer_qpn) % COOP_FLOWS;
}

/*
 * Never 0, which means "none" to devices. The labels of a peer differ in their lowest bits, so
 * they become different source ports.
 */
static inline u32 coop_flow_label(const u8 own_gid[16], const u8 peer_gid[16], u32 flow)
{
	u64 part[4], hash = 0;
	u32 i, label;

	memcpy(&part[0], own_gid, 16);
	memcpy(&part[2], peer_gid, 16);
	for (i = 0; i < 4; i++)
		hash = coop_mix(hash ^ part[i]) + i + 1;
	label = ((u32)hash & COOP_FLOW_LABEL_MAX & ~(COOP_FLOWS - 1)) | flow % COOP_FLOWS;
	return label ? label : COOP_FLOWS;
}

#endif /* COOP_FLOW_H */
