// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Maps pages to datagrams and scatter/gather entries; see plan.h. u32 is enough: a fetch has at
 * most 4 MiB. */
#include "plan.h"

#include "rpc/base/bits.h"

int coop_plan_init(struct coop_plan *p, u32 page_shift, u32 mtu, u32 wr_bytes, u32 n_pages,
		   bool packed)
{
	u32 page, n_segs;

	if (page_shift < COOP_PAGE_MIN_SHIFT || page_shift > COOP_PAGE_MAX_SHIFT)
		return -EINVAL;
	if (mtu < COOP_MTU_MIN || mtu > COOP_MTU_MAX || mtu % 4)
		return -EINVAL;
	if (wr_bytes < mtu || wr_bytes > COOP_MTU_MAX)
		return -EINVAL;
	if (!n_pages || n_pages > COOP_MAX_PAGES)
		return -EINVAL;

	page = 1u << page_shift;
	if (page % mtu == 0)
		packed = false;
	if (packed && wr_bytes != mtu)
		return -EINVAL;

	p->per_page = (page + mtu - 1) / mtu;
	if (packed)
		n_segs = ((n_pages << page_shift) + mtu - 1) / mtu;
	else
		n_segs = n_pages * p->per_page;
	if (n_segs > COOP_MAX_SEGS)
		return -EINVAL;

	p->page_shift = page_shift;
	p->mtu = mtu;
	p->wr_bytes = wr_bytes;
	p->n_pages = n_pages;
	p->n_segs = n_segs;
	p->seg_bits = n_segs > 1 ? coop_ilog2(n_segs - 1) + 1 : 1;
	p->packed = packed;
	return 0;
}

u32 coop_plan_len(const struct coop_plan *p, u32 seg)
{
	u32 page = 1u << p->page_shift;

	if (p->packed)
		return coop_min_u32(p->mtu, (p->n_pages << p->page_shift) - seg * p->mtu);
	if (p->per_page == 1)
		return page;
	return coop_min_u32(p->mtu, page - seg % p->per_page * p->mtu);
}

void coop_plan_seg(const struct coop_plan *p, u32 seg, struct coop_seg *out)
{
	u32 page = 1u << p->page_shift;
	u32 len = coop_plan_len(p, seg), at, first;

	memset(out, 0, sizeof(*out));
	out->seg = (u16)seg;
	out->len = len;
	out->spill = p->wr_bytes - len;
	if (p->packed) {
		at = seg * p->mtu;
		out->frag[0].page = (u16)(at >> p->page_shift);
		out->frag[0].off = at & (page - 1);
	} else {
		out->frag[0].page = (u16)(seg / p->per_page);
		out->frag[0].off = seg % p->per_page * p->mtu;
	}
	first = coop_min_u32(len, page - out->frag[0].off);
	out->frag[0].len = first;
	out->n_frag = 1;
	if (first < len) {
		out->frag[1].page = (u16)(out->frag[0].page + 1);
		out->frag[1].len = len - first;
		out->n_frag = 2;
	}
}

u64 coop_plan_pages(const struct coop_plan *p, u32 seg)
{
	u32 first, last;

	if (!p->packed)
		return 1ull << (seg / p->per_page);
	first = seg * p->mtu >> p->page_shift;
	last = (seg * p->mtu + coop_plan_len(p, seg) - 1) >> p->page_shift;
	return 1ull << first | 1ull << last;
}

void coop_plan_range(const struct coop_plan *p, u32 page, u32 *first, u32 *last)
{
	if (p->packed) {
		*first = (page << p->page_shift) / p->mtu;
		*last = (((page + 1) << p->page_shift) - 1) / p->mtu;
	} else {
		*first = page * p->per_page;
		*last = *first + p->per_page - 1;
	}
}
