// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * mail.c - see mail.h. Producers are the pumps and readers of other shards, the consumer is the
 * pump of one; all run in process context, so the lock need not keep interrupts off.
 */
#include "ib/mail.h"

#include <linux/mm.h>
#include <linux/slab.h>

int coop_mail_create(struct coop_mail *m)
{
	spin_lock_init(&m->lock);
	m->head = 0;
	m->tail = 0;
	m->letter = kvmalloc_array(COOP_MAIL_MOST, sizeof(*m->letter), GFP_KERNEL);
	return m->letter ? 0 : -ENOMEM;
}

void coop_mail_destroy(struct coop_mail *m)
{
	kvfree(m->letter);
	m->letter = NULL;
}

void coop_mail_clear(struct coop_mail *m)
{
	spin_lock(&m->lock);
	WRITE_ONCE(m->head, m->tail);
	spin_unlock(&m->lock);
}

bool coop_mail_put(struct coop_mail *m, const struct coop_addr *addr, const void *buf, u32 len)
{
	struct coop_letter *l;
	bool room;

	if (len > COOP_CTRL_MAX)
		return false;
	spin_lock(&m->lock);
	room = m->tail - m->head < COOP_MAIL_MOST;
	if (room) {
		l = &m->letter[m->tail % COOP_MAIL_MOST];
		l->addr = *addr;
		l->len = len;
		memcpy(l->buf, buf, len);
		WRITE_ONCE(m->tail, m->tail + 1);
	}
	spin_unlock(&m->lock);
	return room;
}

u32 coop_mail_take(struct coop_mail *m, struct coop_addr *addr, void *buf)
{
	const struct coop_letter *l;
	u32 len = 0;

	if (coop_mail_empty(m))
		return 0;
	spin_lock(&m->lock);
	if (m->head != m->tail) {
		l = &m->letter[m->head % COOP_MAIL_MOST];
		*addr = l->addr;
		len = l->len;
		memcpy(buf, l->buf, len);
		WRITE_ONCE(m->head, m->head + 1);
	}
	spin_unlock(&m->lock);
	return len;
}
