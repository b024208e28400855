// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Arrays of small buffers; see buf.h. They are freed after the queue pairs. */
#include "ib/buf.h"

#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/slab.h>

int coop_bufs_create(struct coop_bufs *b, struct ib_device *dev, u32 n, u32 size,
		     enum dma_data_direction dir, gfp_t gfp)
{
	u32 i, pages;

	b->dev = dev;
	b->dir = dir;
	b->size = size;
	b->per_page_shift = PAGE_SHIFT - ilog2(size);
	b->n_pages = 0;
	pages = DIV_ROUND_UP(n, 1u << b->per_page_shift);
	b->page = kvcalloc(pages, sizeof(*b->page), gfp);
	b->dma = kvcalloc(pages, sizeof(*b->dma), gfp);
	if (!b->page || !b->dma)
		goto err;
	for (i = 0; i < pages; i++) {
		struct page *page = alloc_page(gfp | __GFP_ZERO);

		if (!page)
			goto err;
		b->dma[i] = ib_dma_map_page(dev, page, 0, PAGE_SIZE, dir);
		if (ib_dma_mapping_error(dev, b->dma[i])) {
			__free_page(page);
			goto err;
		}
		b->page[i] = page;
		b->n_pages++;
	}
	return 0;

err:
	coop_bufs_destroy(b);
	return -ENOMEM;
}

void coop_bufs_destroy(struct coop_bufs *b)
{
	u32 i;

	for (i = 0; i < b->n_pages; i++) {
		ib_dma_unmap_page(b->dev, b->dma[i], PAGE_SIZE, b->dir);
		__free_page(b->page[i]);
	}
	kvfree(b->page);
	kvfree(b->dma);
	memset(b, 0, sizeof(*b));
}
