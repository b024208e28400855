/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * buf.h - arrays of small buffers, mapped for a device while they exist.
 *
 * For everything but the page cache: GRH areas, control messages, scrap, zeros,
 * private receive pages. The buffers lie in single pages, so no high-order
 * allocation is needed, and never cross a page boundary.
 */
#ifndef COOP_IB_BUF_H
#define COOP_IB_BUF_H

#include <rdma/ib_verbs.h>

struct coop_bufs {
	struct ib_device *dev;
	enum dma_data_direction dir;
	u32 size; /* of a buffer: a power of two, at most PAGE_SIZE */
	u32 per_page_shift;
	u32 n_pages;
	struct page **page;
	u64 *dma;
};

/* Zeroed. Context: may sleep. 0 or -ENOMEM. */
int coop_bufs_create(struct coop_bufs *b, struct ib_device *dev, u32 n, u32 size,
		     enum dma_data_direction dir, gfp_t gfp);
/* A zeroed struct is valid too. */
void coop_bufs_destroy(struct coop_bufs *b);

static inline struct page *coop_bufs_page(const struct coop_bufs *b, u32 i)
{
	return b->page[i >> b->per_page_shift];
}

static inline u32 coop_bufs_offset(const struct coop_bufs *b, u32 i)
{
	return (i & ((1u << b->per_page_shift) - 1)) * b->size;
}

static inline void *coop_bufs_at(const struct coop_bufs *b, u32 i)
{
	return (u8 *)page_address(coop_bufs_page(b, i)) + coop_bufs_offset(b, i);
}

static inline u64 coop_bufs_dma(const struct coop_bufs *b, u32 i)
{
	return b->dma[i >> b->per_page_shift] + coop_bufs_offset(b, i);
}

/* Call before the CPU reads received bytes, and before the device gets the buffer again. */
static inline void coop_bufs_to_cpu(const struct coop_bufs *b, u32 i)
{
	ib_dma_sync_single_for_cpu(b->dev, coop_bufs_dma(b, i), b->size, b->dir);
}

static inline void coop_bufs_to_device(const struct coop_bufs *b, u32 i)
{
	ib_dma_sync_single_for_device(b->dev, coop_bufs_dma(b, i), b->size, b->dir);
}

#endif /* COOP_IB_BUF_H */
