// SPDX-License-Identifier: GPL-2.0 OR MIT
/* pinned.c - see pinned.h. */
#include "msg/pinned.h"

#include <linux/capability.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define PIN_BATCH 512 /* pages a call */

/* One segment, behind those that the buffer has. */
static int add_segment(struct coop_pinned *p, const struct coop_net_segment *s, u64 *pages)
{
	struct coop_segment *to = &p->segment[p->n_segments];

	if (!s->length || s->length > SZ_1T || s->at + s->length < s->at)
		return -EINVAL;
	to->start = p->length;
	to->length = s->length;
	to->page = (u32)*pages;
	to->offset = offset_in_page(s->at);
	p->length += s->length;
	*pages += (to->offset + s->length + PAGE_SIZE - 1) >> PAGE_SHIFT;
	p->n_segments++;
	return *pages > INT_MAX ? -ENOMEM : 0;
}

/* Their addresses go to at[]. */
static struct coop_pinned *copy_segments(const struct coop_net_buffer *what, u64 *at, u64 *pages)
{
	const struct coop_net_segment __user *from = u64_to_user_ptr(what->segments);
	struct coop_net_segment s;
	struct coop_pinned *p;
	int err = 0;
	u32 i;

	p = kvzalloc(struct_size(p, segment, what->n), GFP_KERNEL_ACCOUNT);
	if (!p)
		return ERR_PTR(-ENOMEM);
	for (i = 0; i < what->n && !err; i++) {
		err = -EFAULT;
		if (copy_from_user(&s, &from[i], sizeof(s)))
			break;
		at[i] = s.at;
		err = add_segment(p, &s, pages);
		if (!err && !access_ok(u64_to_user_ptr(s.at), s.length))
			err = -EFAULT;
	}
	if (!err)
		return p;
	kvfree(p);
	return ERR_PTR(err);
}

static int charge(struct mm_struct *mm, unsigned long pages)
{
	const unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (atomic64_add_return(pages, &mm->pinned_vm) <= limit || capable(CAP_IPC_LOCK))
		return 0;
	atomic64_sub(pages, &mm->pinned_vm);
	return -ENOMEM;
}

/* Pins all pages of a segment, which follow each other in page[]; *done counts those pinned. */
static int pin(struct coop_pinned *p, const struct coop_segment *s, u64 address,
	       unsigned long *done)
{
	unsigned long left = (s->offset + s->length + PAGE_SIZE - 1) >> PAGE_SHIFT;
	unsigned long at = address & PAGE_MASK;
	int n;

	while (left) {
		if (fatal_signal_pending(current))
			return -EINTR;
		n = pin_user_pages_fast(at, min_t(unsigned long, left, PIN_BATCH),
					FOLL_WRITE | FOLL_LONGTERM, &p->page[*done]);
		if (n <= 0)
			return n ? n : -EFAULT;
		*done += n;
		left -= n;
		at += (unsigned long)n << PAGE_SHIFT;
		cond_resched();
	}
	return 0;
}

struct coop_pinned *coop_pinned_create(const struct coop_net_buffer *what)
{
	unsigned long done = 0;
	struct coop_pinned *p;
	u64 *addresses, wanted = 0;
	int err;
	u32 i;

	if (!what->n || what->n > COOP_SEGMENTS_MAX)
		return ERR_PTR(-EINVAL);
	addresses = kvmalloc_array(what->n, sizeof(*addresses), GFP_KERNEL_ACCOUNT);
	if (!addresses)
		return ERR_PTR(-ENOMEM);
	p = copy_segments(what, addresses, &wanted);
	if (IS_ERR(p))
		goto out;
	err = charge(current->mm, wanted);
	if (err)
		goto err_free;
	err = -ENOMEM;
	p->page = kvmalloc_array(wanted, sizeof(*p->page), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!p->page)
		goto err_charge;
	for (i = 0, err = 0; i < p->n_segments && !err; i++)
		err = pin(p, &p->segment[i], addresses[i], &done);
	if (err)
		goto err_unpin;
	p->n_pages = wanted;
	p->mm = current->mm;
	mmgrab(p->mm);
	goto out;

err_unpin:
	unpin_user_pages(p->page, done);
	kvfree(p->page);
err_charge:
	atomic64_sub(wanted, &current->mm->pinned_vm);
err_free:
	kvfree(p);
	p = ERR_PTR(err);
out:
	kvfree(addresses);
	return p;
}

void coop_pinned_release(struct coop_pinned *p)
{
	if (!p->n_pages)
		return;
	unpin_user_pages_dirty_lock(p->page, p->n_pages, true);
	atomic64_sub(p->n_pages, &p->mm->pinned_vm);
	mmdrop(p->mm);
	p->n_pages = 0;
	kvfree(p->page);
	p->page = NULL;
}

void coop_pinned_free(struct coop_pinned *p)
{
	if (!p)
		return;
	coop_pinned_release(p);
	kvfree(p);
}

/* The segment with that byte. */
static const struct coop_segment *segment_at(const struct coop_pinned *p, u64 offset)
{
	u32 low = 0, high = p->n_segments;

	while (high - low > 1) {
		const u32 mid = low + (high - low) / 2;

		if (p->segment[mid].start <= offset)
			low = mid;
		else
			high = mid;
	}
	return &p->segment[low];
}

static void copy(const struct coop_pinned *p, u64 offset, void *kernel, size_t length, bool out)
{
	const struct coop_segment *s;

	if (!length || WARN_ON_ONCE(!p->n_pages || !coop_pinned_holds(p, offset, length)))
		return;
	for (s = segment_at(p, offset); length; s++) {
		u64 in = offset - s->start;
		size_t left = min_t(u64, length, s->length - in);

		offset += left;
		length -= left;
		in += s->offset;
		while (left) {
			struct page *page = p->page[s->page + (in >> PAGE_SHIFT)];
			const size_t at = offset_in_page(in);
			const size_t n = min_t(size_t, left, PAGE_SIZE - at);

			if (out)
				memcpy_from_page(kernel, page, at, n);
			else
				memcpy_to_page(page, at, kernel, n);
			kernel += n;
			in += n;
			left -= n;
		}
	}
}

void coop_pinned_read(const struct coop_pinned *p, u64 offset, void *to, size_t length)
{
	copy(p, offset, to, length, true);
}

void coop_pinned_write(const struct coop_pinned *p, u64 offset, const void *from, size_t length)
{
	copy(p, offset, (void *)from, length, false);
}

/* In pieces that fit the stack. */
void coop_pinned_copy(const struct coop_pinned *from, u64 at, const struct coop_pinned *to,
		      u64 there, size_t length)
{
	u8 piece[512];

	while (length) {
		const size_t n = min(length, sizeof(piece));

		coop_pinned_read(from, at, piece, n);
		coop_pinned_write(to, there, piece, n);
		at += n;
		there += n;
		length -= n;
	}
}

struct page *coop_pinned_page(const struct coop_pinned *p, u64 offset)
{
	const struct coop_segment *s = segment_at(p, offset);
	const u64 in = offset - s->start;

	if (in >= s->length || s->length - in < PAGE_SIZE || offset_in_page(s->offset + in))
		return NULL;
	return p->page[s->page + ((s->offset + in) >> PAGE_SHIFT)];
}
