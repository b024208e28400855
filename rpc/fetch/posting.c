// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Records what receive work requests hold, and judges it; see posting.h. */
#include "posting.h"

#include "rpc/base/bits.h"

#define AT_UNWANTED 0xfffeu /* at[]: the attempt did not ask for this segment */

void coop_posting_init(struct coop_posting *p, struct coop_wr *wr, u16 *at, u32 random)
{
	memset(p, 0, sizeof(*p));
	p->wr = wr;
	p->at = at;
	p->imm_next = random;
}

static void next_generation(struct coop_posting *p)
{
	u32 run = 1u << p->plan.seg_bits;

	p->imm = (p->imm_next + run - 1) & ~(run - 1); /* may wrap: the counter is a ring */
	p->imm_next = p->imm + run;
	p->n_source = 0;
}

void coop_posting_start(struct coop_posting *p, const struct coop_plan *plan, const u64 *want)
{
	u32 seg;

	p->plan = *plan;
	memcpy(p->want, want, sizeof(p->want));
	p->n_wr = 0;
	p->n_done = 0;
	p->n_rx = 0;
	p->n_stale = 0;
	for (seg = 0; seg < plan->n_segs; seg++) {
		struct coop_wr *wr = &p->wr[p->n_wr];

		if (!coop_bit(want, seg)) {
			p->at[seg] = AT_UNWANTED;
			continue;
		}
		p->at[seg] = COOP_SEG_NONE;
		wr->seg = (u16)seg;
		wr->got = COOP_SEG_NONE;
		wr->source = 0;
		wr->posted = true;
		wr->pad = false;
		p->n_wr++;
	}
	next_generation(p);
}

void coop_posting_renew(struct coop_posting *p)
{
	next_generation(p);
}

bool coop_posting_reusable(const struct coop_posting *p, const struct coop_plan *plan,
			   const u64 *want)
{
	return p->n_wr && !p->n_done && p->plan.mtu == plan->mtu &&
	       p->plan.packed == plan->packed && !memcmp(p->want, want, sizeof(p->want));
}

/* Index of the sender in this attempt's list, COOP_SOURCES if the list is full. */
static u32 source_of(struct coop_posting *p, const struct coop_rx *rx)
{
	struct coop_source *s;
	u32 i;

	for (i = 0; i < p->n_source; i++) {
		s = &p->source[i];
		if (s->qpn == rx->src_qp && s->has_gid == rx->has_gid &&
		    (!rx->has_gid || !memcmp(s->gid, rx->src_gid, 16)))
			return i;
	}
	if (i == COOP_SOURCES)
		return i;
	s = &p->source[i];
	s->qpn = rx->src_qp;
	s->has_gid = rx->has_gid;
	memcpy(s->gid, rx->src_gid, 16);
	p->n_source++;
	return i;
}

enum coop_rx_verdict coop_posting_rx(struct coop_posting *p, const struct coop_rx *rx, u32 flags)
{
	u32 mask = (1u << p->plan.seg_bits) - 1, seg = rx->imm & mask, source;
	struct coop_wr *wr;

	if (rx->wr >= p->n_wr || !p->wr[rx->wr].posted)
		return COOP_RX_IGNORED;
	wr = &p->wr[rx->wr];
	wr->posted = false;
	p->n_done++;
	p->n_rx++;
	if (!rx->has_imm)
		return COOP_RX_BAD;
	if (((rx->imm ^ p->imm) & ~mask) && !(flags & COOP_F_TEST_NO_GENERATION)) {
		p->n_stale++;
		return COOP_RX_STALE;
	}
	if (flags & COOP_F_TEST_TRUST_ORDER)
		seg = wr->seg;
	if (seg >= p->plan.n_segs || p->at[seg] == AT_UNWANTED)
		return COOP_RX_BAD;
	wr->pad = rx->byte_len == COOP_GRH;
	if (!wr->pad && rx->byte_len != COOP_GRH + coop_plan_len(&p->plan, seg))
		return COOP_RX_BAD;
	if (p->at[seg] != COOP_SEG_NONE)
		return COOP_RX_DUP;
	source = source_of(p, rx);
	if (source == COOP_SOURCES)
		return COOP_RX_FOREIGN;
	wr->source = (u8)source;
	wr->got = (u16)seg;
	p->at[seg] = (u16)rx->wr;
	return wr->pad ? COOP_RX_PAD : COOP_RX_KEPT;
}

void coop_posting_flush(struct coop_posting *p, u32 n)
{
	p->n_done += coop_min_u32(n, p->n_wr - p->n_done);
}

static bool source_matches(const struct coop_source *s, const struct coop_addr *named)
{
	static const u8 zero[16];

	if (s->qpn != named->qpn)
		return false;
	return !s->has_gid || !memcmp(named->gid, zero, 16) || !memcmp(s->gid, named->gid, 16);
}

u32 coop_posting_judge(const struct coop_posting *p, const struct coop_addr *source, u64 *got,
		       struct coop_move *moves, u64 *foreign, u64 *displaced)
{
	bool genuine[COOP_SOURCES];
	u32 i, n = 0;

	for (i = 0; i < p->n_source; i++)
		genuine[i] = source_matches(&p->source[i], source);
	for (i = 0; i < p->n_wr; i++) {
		const struct coop_wr *wr = &p->wr[i];

		if (wr->got == COOP_SEG_NONE || wr->pad)
			continue;
		if (!genuine[wr->source]) {
			*foreign += 1;
			continue;
		}
		if (wr->got != wr->seg) {
			*displaced += 1;
			/* The end of a longer segment fell into spill memory. */
			if (coop_plan_len(&p->plan, wr->got) > coop_plan_len(&p->plan, wr->seg))
				continue;
			moves[n].seg = wr->got;
			moves[n].into = wr->seg;
			n++;
		}
		coop_bit_set(got, wr->got);
	}
	return n;
}
