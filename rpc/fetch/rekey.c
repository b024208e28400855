// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * rekey.c - a new fabric key for a living engine.
 *
 * Storage begins a new run, and every node gets another key (rpc/storage/STORAGE.md). From then on
 * messages under the old key fail their MAC, in both directions. So what is under way ends at
 * once instead of waiting for answers that nobody can read: a fetch with the pages that it has, a
 * serve without a COMMIT. A fetch that has its COMMIT may still be judged; its tags were made with
 * the old key, so a page that fails its tag is dropped without blaming the peer.
 *
 * Failures and silence of the old run say nothing about the peers' health in the new one.
 */
#include "core.h"

static bool under_way(const struct coop_fetch *f)
{
	return f->slot != COOP_NONE && f->state != COOP_FETCH_FREE && f->state != COOP_FETCH_DONE;
}

static void end_fetches(struct coop_engine *e, u64 now)
{
	u32 i;

	/* Each that ends may admit another, whose REQUEST will have the new key. */
	for (i = 0; i < e->n_fetch; i++)
		e->fetch[i].old_key = under_way(&e->fetch[i]);
	for (i = 0; i < e->n_fetch; i++)
		if (e->fetch[i].old_key)
			(void)coop_engine_cancel(e, e->fetch[i].id, now);
}

static void end_serves(struct coop_engine *e)
{
	u32 i;

	for (i = 0; i < e->cfg.max_serves; i++)
		if (e->serve[i].state != COOP_SERVE_FREE)
			coop_serve_abandon(e, &e->serve[i]);
	/* A record that is being served becomes DROPPED with the end of its serve. */
	for (i = 0; i < e->n_sets * COOP_RECORD_WAYS; i++)
		if (e->record[i].state != COOP_RECORD_SERVING)
			e->record[i].state = COOP_RECORD_NONE;
}

static void trust_peers(struct coop_engine *e, u64 now)
{
	u32 i;

	for (i = 0; i < e->cfg.max_peers; i++) {
		struct coop_peer *p = &e->peers.v[i];

		if (coop_idtab_id(&e->peers.ids, i) != COOP_NONE)
			coop_peer_report(e, p, coop_peer_fresh(p, now), now);
	}
}

void coop_engine_rekey(struct coop_engine *e, const u8 key[COOP_MAC_KEY], u64 now)
{
	if (!memcmp(e->cfg.key, key, sizeof(e->cfg.key)))
		return;
	memcpy(e->cfg.key, key, sizeof(e->cfg.key));
	coop_tag_derive(&e->tag_key, key);
	end_serves(e);
	end_fetches(e, now);
	trust_peers(e, now);
}
