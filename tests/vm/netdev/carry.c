/* SPDX-License-Identifier: MIT */
/*
 * carry.c - bytes from one machine to another: texts, messages, bulk data. Whatever a case does,
 * all bytes around the buffers are compared too.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "netdev.h"

#define ALL (~0ull)

void text_area(void)
{
	struct pair p;

	if (pair_open(&p)) {
		CHECK(p.a.setup.command_mtu >= COOP_NET_TEXT);
		CHECK(p.a.setup.data_mtu >= 256);
		CHECK(p.a.setup.max_message >= 64 * 1024);
		CHECK(p.a.setup.fetch_pages >= 1 && p.a.setup.fetch_pages <= COOP_NET_RUN);
		for (int i = 0; i < 100 && pair_works(&p);)
			i++;
	}
	pair_close(&p);
}

bool carriage_open(struct carriage *c, enum layout from, enum layout to, size_t bytes)
{
	memset(c, 0, sizeof(*c));
	c->p.a.fd = c->p.b.fd = -1;
	return CHECK(memory_make(&c->from, from, bytes, 11)) &&
	       CHECK(memory_make(&c->to, to, bytes, 22)) && pair_open(&c->p) &&
	       memory_add(&c->p.a, &c->from) && memory_add(&c->p.b, &c->to);
}

void carriage_close(struct carriage *c)
{
	pair_close(&c->p);
	memory_free(&c->from);
	memory_free(&c->to);
}

void copy_wanted(const struct memory *from, size_t at, struct memory *to, size_t there, size_t n)
{
	uint8_t *bytes = malloc(n + 1);

	if (CHECK(bytes)) {
		memory_get(from, at, bytes, n);
		memory_want(to, there, bytes, n);
	}
	free(bytes);
}

bool all_right(const struct carriage *c)
{
	return CHECK(memory_right(&c->to)) & CHECK(memory_right(&c->from));
}

/* ---- messages ---- */

static bool received(struct carriage *c, uint32_t in, size_t n, struct coop_net_event *ev)
{
	bool good = CHECK(!await(&c->p.b, COOP_NET_RECEIVED, in, ev));

	good = good && CHECK(ev->tag == (MESSAGE | c->p.a.self)) && CHECK(ev->cookie == COOKIE_A) &&
	       CHECK(ev->peer == c->p.at_b);
	return good && (!n || CHECK(ev->length == n));
}

static bool receive_over(struct carriage *c, uint32_t in, const struct coop_net_event *last)
{
	struct coop_net_event ev;

	if (last->flags & COOP_NET_FINAL)
		return true;
	return CHECK(!await(&c->p.b, COOP_NET_RECV_OVER, in, &ev)) &&
	       CHECK(ev.flags & COOP_NET_FINAL);
}

/* One message of n bytes into a receive of its own, with other bytes of both buffers around it. */
static bool one_message(struct carriage *c, size_t at, size_t to, size_t n)
{
	const uint32_t in = receive(&c->p.b, &c->to, to, n, n, 1);
	const uint32_t out = send_bytes(&c->p.a, c->p.at_a, &c->from, at, n);
	struct coop_net_event ev;
	const bool good = received(c, in, n, &ev) && CHECK(ev.offset == 0) &&
			  receive_over(c, in, &ev) &&
			  CHECK(!await(&c->p.a, COOP_NET_SENT, out, NULL));

	copy_wanted(&c->from, at, &c->to, to, n);
	if (good && all_right(c))
		return true;
	fprintf(stderr, "  %zu bytes from %zu to %zu\n", n, at, to);
	return false;
}

/* Messages of n, n + 1 ... bytes in one receive; their lengths name them. */
static bool several(struct carriage *c, size_t n, unsigned int count)
{
	const size_t room = (n + count) * (count + 1);
	const uint32_t in = receive(&c->p.b, &c->to, 5, room, n + count, count);
	struct coop_net_event ev = {0};
	bool good = true;

	for (unsigned int i = 0; i < count; i++)
		send_bytes(&c->p.a, c->p.at_a, &c->from, 9 + i * 3, n + i);
	for (unsigned int i = 0; i < count && good; i++) {
		good = received(c, in, 0, &ev) && CHECK(ev.length >= n && ev.length < n + count) &&
		       CHECK(ev.offset + ev.length <= room);
		if (good)
			copy_wanted(&c->from, 9 + (ev.length - n) * 3, &c->to, 5 + ev.offset,
				    ev.length);
	}
	good = good && receive_over(c, in, &ev);
	for (unsigned int i = 0; i < count && good; i++)
		good = CHECK(!await(&c->p.a, COOP_NET_SENT, ANY, NULL));
	return good && all_right(c);
}

/* A receive takes messages while min_size is free, then ends; the next one takes the rest. */
static bool until_full(struct carriage *c, size_t n)
{
	const uint32_t first = receive(&c->p.b, &c->to, 0, 3 * n - 1, n, 100);
	const uint32_t second = receive(&c->p.b, &c->to, 4 * n, n, n, 1);
	struct coop_net_event ev;
	unsigned int got[2] = {0};

	for (int i = 0; i < 3; i++) {
		const uint32_t out = send_bytes(&c->p.a, c->p.at_a, &c->from, n, n);
		bool in_first;

		if (!CHECK(!await(&c->p.b, COOP_NET_RECEIVED, ANY, &ev)) ||
		    !CHECK(!await(&c->p.a, COOP_NET_SENT, out, NULL)))
			return false;
		in_first = ev.handle == first;
		got[!in_first]++;
		CHECK(in_first || ev.handle == second);
		copy_wanted(&c->from, n, &c->to, (in_first ? 0 : 4 * n) + ev.offset, n);
	}
	return CHECK(got[0] == 2 && got[1] == 1) && receive_over(c, second, &ev) && all_right(c);
}

void messages_area(void)
{
	static const size_t sizes[] = {1, 8, 64, 65, 700, 4096, 4097, 40000};
	struct carriage c;

	for (enum layout from = ALIGNED; from < LAYOUTS; from++)
		for (enum layout to = ALIGNED; to < LAYOUTS; to++) {
			bool good = carriage_open(&c, from, to, 70000);

			good = good && one_message(&c, 0, 0, 0) && one_message(&c, 70000, 70000, 0);
			for (size_t i = 0; good && i < sizeof(sizes) / sizeof(sizes[0]); i++)
				good = one_message(&c, 0, 0, sizes[i]) &&
				       one_message(&c, 70000 - sizes[i], 1, sizes[i]) &&
				       one_message(&c, 777, 70000 - sizes[i], sizes[i]);
			good = good && several(&c, 1, 20) && several(&c, 1000, 20) &&
			       until_full(&c, 500);
			carriage_close(&c);
			if (!good) {
				fprintf(stderr, "  from layout %u to %u\n", from, to);
				return;
			}
		}
	if (carriage_open(&c, PARTS, ODD, 10)) {
		const size_t most = c.p.a.setup.max_message;

		carriage_close(&c);
		if (carriage_open(&c, PARTS, ODD, most + 9))
			CHECK(one_message(&c, 9, 0, most));
	}
	carriage_close(&c);
}

/* ---- messages of a machine to itself ---- */

static uint32_t send_here(struct machine *m, const struct memory *b, size_t at, size_t n)
{
	struct coop_net_op *op = op_next(m);

	op->code = COOP_NET_SEND;
	op->flags = COOP_NET_HERE;
	op->buffer = b->buffer;
	op->offset = at;
	op->length = n;
	op->u.send.tag = MESSAGE | m->self;
	return post(m);
}

/* One of n bytes, which comes at this offset of the receive `in`, whose piece begins at `to`. */
static bool here_at(struct carriage *c, uint32_t in, size_t to, size_t n, uint64_t offset)
{
	const uint32_t out = send_here(&c->p.b, &c->to, 9000, n);
	struct coop_net_event ev;
	const bool good = CHECK(!await(&c->p.b, COOP_NET_RECEIVED, in, &ev)) &&
			  CHECK(ev.length == n) && CHECK(ev.offset == offset) &&
			  CHECK(!ev.peer && !ev.cookie) &&
			  CHECK(ev.tag == (MESSAGE | c->p.b.self)) &&
			  CHECK(!await(&c->p.b, COOP_NET_SENT, out, &ev)) &&
			  CHECK(ev.flags & COOP_NET_FINAL) && CHECK(ev.length == n);

	copy_wanted(&c->to, 9000, &c->to, to + offset, n);
	return good && all_right(c);
}

/* The first receive is left for the second as by the messages of a peer. */
static bool here_and_a_peer(struct carriage *c)
{
	const uint32_t first = receive(&c->p.b, &c->to, 5, 1000, 100, 9);
	const uint32_t second = receive(&c->p.b, &c->to, 2000, 900, 100, 9);
	struct coop_net_event ev;
	uint32_t out;

	if (!here_at(c, first, 5, 600, 0) || !here_at(c, first, 5, 0, 600) ||
	    !here_at(c, first, 5, 64, 600))
		return false;
	out = send_bytes(&c->p.a, c->p.at_a, &c->from, 0, 700);
	if (!received(c, second, 700, &ev) || !CHECK(!await(&c->p.a, COOP_NET_SENT, out, NULL)) ||
	    !CHECK(!await(&c->p.b, COOP_NET_RECV_OVER, first, &ev)) || !CHECK(ev.length == 664))
		return false;
	copy_wanted(&c->from, 0, &c->to, 2000, 700);
	if (!here_at(c, second, 2000, 150, 700)) /* 50 are left */
		return false;
	CHECK(!await(&c->p.b, COOP_NET_RECV_OVER, second, &ev) && ev.length == 850);
	out = send_here(&c->p.b, &c->to, 0, 10);
	CHECK(await(&c->p.b, COOP_NET_SENT, out, NULL) == -ENOBUFS);
	receive(&c->p.b, &c->to, 0, 9, 1, 1);
	out = send_here(&c->p.b, &c->to, 0, 10);
	return CHECK(await(&c->p.b, COOP_NET_SENT, out, NULL) == -EMSGSIZE) && all_right(c);
}

/* Both events of each have room, or it waits. */
static bool here_while_full(struct machine *m)
{
	enum { COUNT = 300 };
	struct memory b = {0};
	unsigned int arrived = 0, sent = 0;
	struct coop_net_event ev;

	if (!CHECK(memory_make(&b, PARTS, 2 * COUNT, 33)) || !memory_add(m, &b))
		return false;
	receive(m, &b, COUNT, COUNT, 1, COUNT);
	for (unsigned int i = 0; i < COUNT; i++)
		send_here(m, &b, i, 1);
	enter(m, 0, 0);
	while (sent < COUNT && event_wait(m, ANY, ANY, &ev, 10000 * patience)) {
		if (ev.code == COOP_NET_RECEIVED) {
			CHECK(arrived == sent && ev.offset == arrived);
			copy_wanted(&b, arrived++, &b, COUNT + ev.offset, 1);
		} else if (ev.code == COOP_NET_SENT) {
			CHECK(!ev.status);
			sent++;
		}
	}
	CHECK(arrived == COUNT && sent == COUNT && memory_right(&b));
	memory_free(&b);
	return true;
}

void here_area(void)
{
	struct coop_net_setup setup = setup_for(device[0]);
	struct machine m;
	struct carriage c;

	for (enum layout to = ALIGNED; to < LAYOUTS; to++) {
		bool good = carriage_open(&c, ODD, to, 30000);

		good = good && here_and_a_peer(&c) && pair_works(&c.p);
		carriage_close(&c);
		if (!good)
			return;
	}
	setup.ops = 1024;
	setup.events = 64;
	if (CHECK(machine_setup(&m, &setup)) && CHECK(machine_map(&m)))
		here_while_full(&m);
	machine_close(&m);
}

/* ---- bulk ---- */

#define TOKEN 0x1234500000000077ull
#define KEY   0xfeedfacecafef00dull

/* Wants what a fetch of these pages leaves in b's buffer, page `index` at `to`. */
static void want_pages(struct carriage *c, size_t at, size_t to, size_t size, uint64_t index,
		       uint64_t pages)
{
	for (unsigned int i = 0; i < 64; i++) {
		const size_t from = (index + i) * PAGE;

		if (pages >> i & 1 && from < size)
			copy_wanted(&c->from, at + from, &c->to, to + i * PAGE,
				    size - from < PAGE ? size - from : PAGE);
	}
}

/* b reads all of a's n bytes at `at`, in runs, to its own `to`. */
static bool one_bulk(struct carriage *c, size_t at, size_t to, size_t n)
{
	const uint64_t most = c->p.b.setup.fetch_pages;
	const uint32_t lent = offer(&c->p.a, &c->from, at, n, (struct lending){TOKEN, KEY, 0, 0});
	const uint64_t end = (n + PAGE - 1) / PAGE;
	struct coop_net_event ev;
	bool good = true;

	for (uint64_t i = 0, some; i < end && good; i += some) {
		uint64_t want;
		uint32_t handle;

		some = COOP_NET_RUN - i % COOP_NET_RUN;
		some = some < most ? some : most;
		some = some < end - i ? some : end - i;
		want = some == 64 ? ALL : (1ull << some) - 1;
		handle = fetch(&c->p.b, c->p.at_b, &c->to, to + i * PAGE,
			       (struct asking){TOKEN, KEY, n, i, want});
		good = CHECK(!await(&c->p.b, COOP_NET_FETCHED, handle, &ev)) &&
		       CHECK(ev.pages == want) && CHECK(ev.flags & COOP_NET_FINAL);
		want_pages(c, at, to + i * PAGE, n, i, want);
	}
	good = good && all_right(c);
	cancel(&c->p.a, lent);
	await(&c->p.a, COOP_NET_OFFER_OVER, lent, &ev);
	if (!good || !CHECK(ev.flags & COOP_NET_FINAL))
		fprintf(stderr, "  bulk of %zu bytes from %zu to %zu\n", n, at, to);
	return good;
}

/* Some pages of a run: the others keep their bytes. */
static bool some_pages(struct carriage *c, size_t n, uint64_t index, uint64_t want)
{
	const uint32_t lent = offer(&c->p.a, &c->from, 0, n, (struct lending){TOKEN, KEY, 0, 0});
	const uint32_t handle =
		fetch(&c->p.b, c->p.at_b, &c->to, 0, (struct asking){TOKEN, KEY, n, index, want});
	struct coop_net_event ev;
	const bool good =
		CHECK(!await(&c->p.b, COOP_NET_FETCHED, handle, &ev)) && CHECK(ev.pages == want);

	want_pages(c, 0, 0, n, index, want);
	cancel(&c->p.a, lent);
	await(&c->p.a, COOP_NET_OFFER_OVER, lent, &ev);
	return good && all_right(c);
}

void bulk_area(void)
{
	static const size_t sizes[] = {1, 4095, 4096, 4097, 12345, 65536, 300001};
	struct carriage c;

	for (enum layout from = ALIGNED; from < LAYOUTS; from++)
		for (enum layout to = ALIGNED; to < LAYOUTS; to++) {
			bool good = carriage_open(&c, from, to, 310000);

			for (size_t i = 0; good && i < sizeof(sizes) / sizeof(sizes[0]); i++)
				good = one_bulk(&c, 0, 0, sizes[i]) &&
				       one_bulk(&c, 1000, 4096, sizes[i]) &&
				       one_bulk(&c, 4096, 3, sizes[i]);
			good = good && some_pages(&c, 300001, 0, 1) &&
			       some_pages(&c, 300001, 0, 0x15) && some_pages(&c, 300001, 3, 0x5) &&
			       some_pages(&c, 300001, 70, 0x9);
			carriage_close(&c);
			if (!good) {
				fprintf(stderr, "  from layout %u to %u\n", from, to);
				return;
			}
		}
}

/* A fetch that the peer must refuse with this status, and no byte of the buffer is another. */
static void refused_as(struct carriage *c, int error, const char *what, struct asking q)
{
	const uint32_t handle = fetch(&c->p.b, c->p.at_b, &c->to, 0, q);
	struct coop_net_event ev;
	const int status = await(&c->p.b, COOP_NET_FETCHED, handle, &ev);

	if (!CHECK(status == error) | !CHECK(ev.pages == 0) | !all_right(c))
		fprintf(stderr, "  %s: %d, pages %llx\n", what, status,
			(unsigned long long)ev.pages);
}

static void refused(struct carriage *c, const char *what, struct asking q)
{
	refused_as(c, -ENOENT, what, q);
}

/* The offer's reader is another, or at another address. */
static void refused_reader(struct carriage *c, int error, const char *what, uint64_t reader,
			   uint32_t peer)
{
	const uint32_t lent =
		offer(&c->p.a, &c->from, 0, 20000, (struct lending){TOKEN, KEY, reader, peer});

	refused_as(c, error, what, (struct asking){TOKEN, KEY, 20000, 0, 0x1f});
	cancel(&c->p.a, lent);
	await(&c->p.a, COOP_NET_OFFER_OVER, lent, NULL);
}

void refused_bulk_area(void)
{
	struct coop_net_peer other = {.cookie = 0x99, .sender = 0x98}, not_b = {.cookie = COOKIE_B};
	struct carriage c;
	uint32_t lent;

	if (!carriage_open(&c, PARTS, ALIGNED, 40000))
		goto out;
	lent = offer(&c.p.a, &c.from, 0, 20000, (struct lending){TOKEN, KEY, c.p.b.self, c.p.at_a});
	refused(&c, "another token", (struct asking){TOKEN + 1, KEY, 20000, 0, 0x1f});
	refused(&c, "another key", (struct asking){TOKEN, KEY ^ 1, 20000, 0, 0x1f});
	/* The offer itself is good. */
	CHECK(!await(&c.p.b, COOP_NET_FETCHED,
		     fetch(&c.p.b, c.p.at_b, &c.to, 0, (struct asking){TOKEN, KEY, 20000, 0, 0x1f}),
		     NULL));
	want_pages(&c, 0, 0, 20000, 0, 0x1f);
	all_right(&c);
	cancel(&c.p.a, lent);
	await(&c.p.a, COOP_NET_OFFER_OVER, lent, NULL);
	refused(&c, "the offer is over", (struct asking){TOKEN, KEY, 20000, 0, 0x1f});
	refused_reader(&c, -ENOENT, "another reader", c.p.b.self + 1, c.p.at_a);
	other.addr = c.p.b.setup.self;
	other.addr.gid[15] ^= 0x40;
	not_b.peer = c.p.at_a;
	not_b.sender = 0x97;
	if (CHECK(!ioctl(c.p.a.fd, COOP_NET_PEER_OPEN, &other)) &&
	    CHECK(!ioctl(c.p.a.fd, COOP_NET_PEER_ADMIT, &not_b)))
		/* Its port may have moved, so it shall ask again. */
		refused_reader(&c, -EBUSY, "another port", c.p.b.self, other.peer);
	/* A reader that is back with other queue pairs. */
	other.addr = c.p.b.setup.self;
	other.addr.qpn ^= 0x1000;
	if (!CHECK(!ioctl(c.p.a.fd, COOP_NET_PEER_OPEN, &other)))
		goto out;
	lent = offer(&c.p.a, &c.from, 0, 20000,
		     (struct lending){TOKEN, KEY, c.p.b.self, other.peer});
	CHECK(!await(&c.p.b, COOP_NET_FETCHED,
		     fetch(&c.p.b, c.p.at_b, &c.to, 0, (struct asking){TOKEN, KEY, 20000, 0, 0x1f}),
		     NULL));
	all_right(&c);
	cancel(&c.p.a, lent);
	await(&c.p.a, COOP_NET_OFFER_OVER, lent, NULL);
out:
	carriage_close(&c);
}
