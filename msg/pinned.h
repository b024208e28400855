/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * pinned.h - memory of a process that a machine may read and write: a buffer.
 *
 * A buffer is a list of segments of any alignment. Its pages are pinned from
 * BUFFER_ADD on, so the network can use them whether the process runs or not, and
 * count against the RLIMIT_MEMLOCK of the process. They are unpinned by
 * BUFFER_DEL, which an operation in use forbids, or when the machine ends.
 *
 * The bytes outside of the segments are not the buffer's, even where they are in
 * a pinned page: nothing here reads or writes them.
 */
#ifndef COOP_MSG_PINNED_H
#define COOP_MSG_PINNED_H

#include <linux/mm_types.h>

#include "msg/abi.h"

#define COOP_SEGMENTS_MAX 4096

struct coop_segment {
	u64 start;  /* in the buffer */
	u64 length; /* bytes */
	u32 page;   /* the first one, in page[] */
	u32 offset; /* of its first byte in that page */
};

struct coop_pinned {
	u32 users; /* operations in use that name it; under the node's lock */
	u32 id;
	u64 length; /* of all segments */
	struct mm_struct *mm;
	unsigned long n_pages; /* pinned; 0: no more */
	struct page **page;
	u32 n_segments;
	struct coop_segment segment[];
};

/*
 * Pins memory of the calling process. ERR_PTR: -EFAULT, -ENOMEM (also: more than RLIMIT_MEMLOCK),
 * -EINVAL, -EINTR. Context: may sleep, no lock.
 */
struct coop_pinned *coop_pinned_create(const struct coop_net_buffer *what);
/* Unpins the pages; the network does not use them any more. Context: may sleep. */
void coop_pinned_release(struct coop_pinned *p);
/* Releases and frees. NULL: nothing. */
void coop_pinned_free(struct coop_pinned *p);

static inline bool coop_pinned_holds(const struct coop_pinned *p, u64 offset, u64 length)
{
	return offset <= p->length && length <= p->length - offset;
}

/* Copy between kernel memory and a range that the buffer holds. */
void coop_pinned_read(const struct coop_pinned *p, u64 offset, void *to, size_t length);
void coop_pinned_write(const struct coop_pinned *p, u64 offset, const void *from, size_t length);
/* Copies between ranges that the two buffers hold; they may overlap. */
void coop_pinned_copy(const struct coop_pinned *from, u64 at, const struct coop_pinned *to,
		      u64 there, size_t length);
/* The page that is exactly these PAGE_SIZE bytes of the buffer, or NULL. */
struct page *coop_pinned_page(const struct coop_pinned *p, u64 offset);

#endif /* COOP_MSG_PINNED_H */
