/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * mail.h - a mailbox: control messages on their way from one shard's pump to another's.
 *
 * Whoever puts one in kicks the pump that takes it out. A full mailbox refuses; the protocol
 * repeats what is lost.
 */
#ifndef COOP_IB_MAIL_H
#define COOP_IB_MAIL_H

#include <linux/spinlock.h>

#include "rpc/fetch/engine.h"

#define COOP_MAIL_MOST 256 /* a power of two */

struct coop_letter {
	struct coop_addr addr; /* whom it came from, or whom it goes to */
	u32 len;
	u8 buf[COOP_CTRL_MAX];
};

struct coop_mail {
	spinlock_t lock;
	u32 head, tail; /* free running */
	struct coop_letter *letter;
};

/* 0 or -ENOMEM. Context: may sleep. */
int coop_mail_create(struct coop_mail *m);
void coop_mail_destroy(struct coop_mail *m);
/* False: no room. Process context, as the next. */
bool coop_mail_put(struct coop_mail *m, const struct coop_addr *addr, const void *buf, u32 len);
/* Copies the oldest message out, up to COOP_CTRL_MAX bytes; returns its length, or 0: none. */
u32 coop_mail_take(struct coop_mail *m, struct coop_addr *addr, void *buf);

/* What it holds was for another time: the node was without a device. */
void coop_mail_clear(struct coop_mail *m);

static inline bool coop_mail_empty(const struct coop_mail *m)
{
	return READ_ONCE(m->head) == READ_ONCE(m->tail);
}

#endif /* COOP_IB_MAIL_H */
