/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * policy.h - how a requester treats its peers, in numbers.
 *
 * A file system has several sources of a page: other peers, and storage in the
 * end. It gives a peer up soon and goes elsewhere. The messaging library reads
 * memory that one machine has: giving that peer up ends the transfer, so it asks
 * sooner what became of a request, and more often.
 */
#ifndef COOP_POLICY_H
#define COOP_POLICY_H

#include "rpc/base/host.h"

#define COOP_MAX_ATTEMPTS 12 /* of a fetch, over all peers */

struct coop_fetch_policy {
	/* Most attempts that a fetch makes with one peer. */
	u32 rounds;
	/* Data may trail the COMMIT by this share of the budget: budget / grace_share. */
	u32 grace_share;
	/* Data in the last budget / late_share shrink the window; 0: they do not. */
	u32 late_share;
	/* What a failed attempt counts towards the opening of the peer's circuit: 0 or 1. */
	u32 failure_weight;
	/* Send a QUERY as soon as the peer's RTT says that the answer is late. */
	bool early_queries;
};

static inline struct coop_fetch_policy coop_policy_many_sources(void)
{
	const struct coop_fetch_policy p = {6, 4, 4, 1, false};

	return p;
}

static inline struct coop_fetch_policy coop_policy_sole_source(void)
{
	const struct coop_fetch_policy p = {COOP_MAX_ATTEMPTS, 8, 0, 0, true};

	return p;
}

#endif /* COOP_POLICY_H */
