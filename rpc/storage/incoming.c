// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * incoming.c - the order of a message's parts on the wire, for receivers.
 *
 * It tells a receiver how many bytes of which part come next, so the receiver reads neither ahead
 * nor twice. A header that no daemon may send ends the connection.
 */
#include "message.h"

void coop_st_incoming_init(struct coop_st_incoming *in)
{
	memset(in, 0, sizeof(*in));
	in->part = COOP_ST_PART_HEADER;
	in->want = COOP_ST_HEADER;
}

/* May a daemon send this? A push without data, or a reply. */
static bool sendable(const struct coop_st_header *h)
{
	const bool stream = h->flags & COOP_ST_F_STREAM;

	if (!h->id)
		return !(h->flags & (COOP_ST_F_REPLY | COOP_ST_F_STREAM)) && !h->data_len;
	if (!(h->flags & COOP_ST_F_REPLY) ||
	    (stream && h->op != COOP_ST_READ && h->op != COOP_ST_READ_SHARED &&
	     h->op != COOP_ST_READ_CHAINED))
		return false;
	return !h->status || (!h->data_len && !stream);
}

int coop_st_incoming_next(struct coop_st_incoming *in, const u8 *header)
{
	const struct coop_st_header *h = &in->head;
	int err;

	if (in->part == COOP_ST_PART_HEADER) {
		err = coop_st_header_get(&in->head, header);
		if (err)
			return err;
		if (!sendable(h))
			return -EPROTO;
	}
	while (in->part != COOP_ST_PART_TAIL) {
		in->part++;
		switch (in->part) {
		case COOP_ST_PART_BODY:
			in->want = h->body_len;
			break;
		case COOP_ST_PART_DATA:
			in->want = h->data_len;
			break;
		default:
			in->want = h->flags & COOP_ST_F_STREAM ? COOP_ST_TAIL : 0;
		}
		if (in->want)
			return 0;
	}
	in->part = COOP_ST_PART_HEADER;
	in->want = COOP_ST_HEADER;
	return 1;
}
