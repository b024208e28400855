/* SPDX-License-Identifier: MIT */
/*
 * ranges.c - parts of an offer that begin and end anywhere: the right bytes, no other ones, and
 * none that anybody believes once the offer has ended.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "netdev.h"

#define TOKEN 0x7700000000000012ull
#define KEY   0xa110cafe0ddba11ull

static uint32_t offer_ranges(struct machine *m, const struct memory *b, size_t at, size_t n,
			     uint64_t reader, uint32_t reader_peer)
{
	struct coop_net_op *op = op_next(m);
	uint32_t handle;

	op->code = COOP_NET_OFFER;
	op->flags = COOP_NET_RANGES;
	op->buffer = b->buffer;
	op->offset = at;
	op->length = n;
	op->u.offer.token = TOKEN;
	op->u.offer.key = KEY;
	op->u.offer.reader = reader;
	op->u.offer.reader_peer = reader_peer;
	handle = post(m);
	enter(m, 0, 0); /* from now on it can be read */
	return handle;
}

/* Pages `index` to `index` + n - 1 of an offer that has `size` bytes, or of which b says so. */
struct question {
	uint64_t shift, size, index;
	uint32_t n;
	uint64_t length; /* bytes at the reader */
};

static uint32_t ask(struct carriage *c, size_t to, struct question q, uint32_t ms)
{
	struct coop_net_op *op = op_next(&c->p.b);

	op->code = COOP_NET_FETCH;
	op->peer = c->p.at_b;
	op->buffer = c->to.buffer;
	op->offset = to;
	op->length = q.length;
	op->u.fetch.fid[0] = TOKEN;
	op->u.fetch.fid[1] = q.shift << COOP_NET_SHIFT_AT | c->p.b.self;
	op->u.fetch.version = KEY;
	op->u.fetch.size = q.size;
	op->u.fetch.index = q.index;
	op->u.fetch.want = q.n == 64 ? ~0ull : (1ull << q.n) - 1;
	op->u.fetch.budget_us = 1000 * ms * patience;
	return post(&c->p.b);
}

/* Operations without an event of their own name the handle of another. */
static void place(struct machine *m, uint32_t handle, uint32_t peer)
{
	struct coop_net_op *op = op_next(m);

	m->used[op->handle] = false;
	op->code = COOP_NET_PLACE;
	op->handle = handle;
	op->peer = peer;
	post(m);
	enter(m, 0, 0);
}

static bool offer_ends(struct carriage *c, uint32_t lent)
{
	struct coop_net_event ev;

	cancel(&c->p.a, lent);
	return CHECK(await(&c->p.a, COOP_NET_OFFER_OVER, lent, &ev) == -ECANCELED) &&
	       CHECK(ev.flags & COOP_NET_FINAL) &&
	       CHECK(!event_wait(&c->p.a, COOP_NET_READER, ANY, &ev, 0));
}

/* ---- bytes ---- */

#define LONG (REQUEST_US / 1000) /* ms: of a request that is answered */

struct range {
	size_t offset, length;
};

/* The next request for a range of which `done` bytes have come. */
static struct question next_part(const struct carriage *c, size_t size, struct range r, size_t done)
{
	const uint64_t most = c->p.b.setup.fetch_pages;
	struct question q = {.shift = r.offset % PAGE, .size = size, .length = r.length - done};
	uint64_t pages = (q.length + PAGE - 1) / PAGE;

	q.index = (r.offset + done) / PAGE;
	pages = pages < most ? pages : most;
	q.n = (uint32_t)(COOP_NET_RUN - q.index % COOP_NET_RUN);
	q.n = q.n < pages ? q.n : (uint32_t)pages;
	return q;
}

/* b reads a range of the offer that is at `at` of a's buffer, to its own `to`. */
static bool one_range(struct carriage *c, size_t at, size_t size, struct range r, size_t to)
{
	struct coop_net_event ev;
	size_t done = 0, some;
	bool good = true;

	for (; done < r.length && good; done += some) {
		const struct question q = next_part(c, size, r, done);

		some = q.n * PAGE < q.length ? q.n * PAGE : q.length;
		good = CHECK(!await(&c->p.b, COOP_NET_FETCHED, ask(c, to + done, q, LONG), &ev)) &&
		       CHECK(ev.length == some);
	}
	copy_wanted(&c->from, at + r.offset, &c->to, to, r.length);
	good = good && all_right(c);
	if (!good)
		fprintf(stderr, "  %zu bytes from %zu of %zu at %zu to %zu\n", r.length, r.offset,
			size, at, to);
	return good;
}

/* The same offer serves all of them, again and again. */
void ranges_area(void)
{
	static const struct range ranges[] = {
		{0, 1},       {0, 50001},   {4096, 4096},  {4095, 2},      {1, 4096},
		{4097, 8190}, {50000, 1},   {49000, 1001}, {12345, 30000}, {8191, 4097},
		{3083, 4096}, {3096, 9000}, {4083, 20000}};
	static const size_t places[] = {0, 13, 4096, 1000};
	struct carriage c;

	for (enum layout from = ALIGNED; from < LAYOUTS; from++)
		for (enum layout to = ALIGNED; to < LAYOUTS; to++) {
			bool good = carriage_open(&c, from, to, 60000);

			for (size_t i = 0; good && i < sizeof(places) / sizeof(places[0]); i++) {
				const uint32_t lent =
					offer_ranges(&c.p.a, &c.from, places[i], 50001,
						     i % 2 ? c.p.b.self : 0, i % 2 ? c.p.at_a : 0);

				for (size_t k = 0; good && k < sizeof(ranges) / sizeof(ranges[0]);
				     k++)
					good = one_range(&c, places[i], 50001, ranges[k],
							 places[(i + k) % 4]);
				good &= offer_ends(&c, lent);
			}
			carriage_close(&c);
			if (!good) {
				fprintf(stderr, "  from layout %u to %u\n", from, to);
				return;
			}
		}
}

/* ---- bounds ---- */

#define OFFERED 9000ul
#define AT      2000ul /* in a's buffer */

/*
 * What is in b's memory after a request that b does not believe: bytes of the offer of n bytes, or
 * nothing, but none of those that a has behind it. Then b's memory is as before.
 */
static bool nothing_else_came(struct carriage *c, struct question q, size_t n)
{
	const size_t first = q.shift + q.index * PAGE, end = first + q.length;
	/* ALIGNED: one segment. */
	uint8_t *const came = c->to.base + PAGE, *const before = c->to.wanted + PAGE;
	size_t same = 0, all = 0;
	uint8_t behind;

	for (size_t at = n; at < end; at++, all++) {
		memory_get(&c->from, AT + at, &behind, 1);
		same += came[at - first] == behind && before[at - first] != behind;
	}
	memcpy(c->to.base, c->to.wanted, c->to.span);
	return CHECK(same <= all / 64); /* zeros are among random bytes */
}

static bool refused(struct carriage *c, const char *what, struct question q)
{
	struct coop_net_event ev;
	const int status = await(&c->p.b, COOP_NET_FETCHED, ask(c, 0, q, LONG), &ev);
	const bool good =
		CHECK(status == -ENOENT) & CHECK(!ev.pages) & CHECK(!ev.length) & all_right(c);

	if (!good)
		fprintf(stderr, "  %s: %d, pages %llx\n", what, status,
			(unsigned long long)ev.pages);
	return good;
}

/* Its answer has another size than the reader believes, so it takes no page. */
static void unbelieved(struct carriage *c, const char *what, struct question q, size_t n)
{
	struct coop_net_event ev;
	const int status = await(&c->p.b, COOP_NET_FETCHED, ask(c, 0, q, 500), &ev);

	if (!CHECK(status < 0) | !CHECK(!ev.pages) | !nothing_else_came(c, q, n) | !all_right(c))
		fprintf(stderr, "  %s: %d, pages %llx\n", what, status,
			(unsigned long long)ev.pages);
}

#define LAST_RUN ((1ull << 52) - 2 * COOP_NET_RUN)

static void all_bounds(struct carriage *c)
{
	static const struct {
		const char *what;
		struct question q;
	} behind[] = {
		{"a page behind the end", {0, 20000, 3, 1, 100}},
		{"one page of several", {0, 20000, 2, 2, PAGE + 1}},
		{"the shift makes it behind the end", {809, 20000, 2, 1, 100}},
		{"the last byte's page and the next", {808, 20000, 1, 2, 2 * PAGE}},
		{"far behind", {0, 1ull << 40, 1 << 20, 1, 1}},
		{"the last page that there is", {4095, ~0ull, LAST_RUN, 1, PAGE}},
		{"several of the last ones", {1, ~0ull, LAST_RUN, 14, 14 * PAGE}},
		{"a shift of a page", {4096, 20000, 0, 1, 100}},
		{"a shift of more than the offer", {9000, 20000, 0, 1, 100}},
		{"the largest shift", {0x3fff, 20000, 0, 1, 100}},
	};
	uint32_t lent = offer_ranges(&c->p.a, &c->from, AT, OFFERED, c->p.b.self, c->p.at_a);

	for (size_t i = 0; i < sizeof(behind) / sizeof(behind[0]); i++)
		refused(c, behind[i].what, behind[i].q);
	unbelieved(c, "the last page, longer", (struct question){0, 20000, 2, 1, PAGE}, OFFERED);
	unbelieved(c, "the last bytes, longer", (struct question){807, 20000, 2, 1, PAGE}, OFFERED);
	unbelieved(c, "all and more", (struct question){1, 20000, 0, 3, 3 * PAGE}, OFFERED);
	unbelieved(c, "less than there is", (struct question){0, 5000, 0, 1, PAGE}, OFFERED);
	one_range(c, AT, OFFERED, (struct range){807, 8193}, 0); /* the offer itself is good */
	offer_ends(c, lent);
	refused(c, "the offer is over", (struct question){1, OFFERED, 0, 1, 100});

	lent = offer_ranges(&c->p.a, &c->from, AT, 100, 0, 0); /* less than a page */
	refused(c, "a shift to its end", (struct question){100, 20000, 0, 1, 100});
	unbelieved(c, "its last byte, longer", (struct question){99, 20000, 0, 1, PAGE}, 100);
	one_range(c, AT, 100, (struct range){99, 1}, 0);
	offer_ends(c, lent);
}

/* The port of a reader becomes known later. A peer is at its address whoever it is. */
static void readers_place(struct carriage *c, uint32_t other, struct coop_net_peer *b)
{
	const struct question some = {1, OFFERED, 0, 1, 100};
	uint32_t lent = offer_ranges(&c->p.a, &c->from, AT, OFFERED, c->p.b.self, 0);

	CHECK(!ioctl(c->p.a.fd, COOP_NET_PEER_ADMIT, b)); /* as another one */
	one_range(c, AT, OFFERED, (struct range){77, 5000}, 0);
	place(&c->p.a, lent, 0x123456); /* of no effect */
	place(&c->p.a, 77, other);
	place(&c->p.a, lent, c->p.at_a);
	one_range(c, AT, OFFERED, (struct range){78, 5000}, 0);
	place(&c->p.a, lent, other);
	refused(c, "placed at another port", some);
	b->sender = c->p.b.self;
	CHECK(!ioctl(c->p.a.fd, COOP_NET_PEER_ADMIT, b));
	one_range(c, AT, OFFERED, (struct range){79, 5000}, 0);
	offer_ends(c, lent);
}

/* Who reads, and from where. */
static void readers(struct carriage *c)
{
	struct coop_net_peer not_b = {.peer = c->p.at_a, .cookie = COOKIE_B, .sender = 0x97};
	const struct question some = {1, OFFERED, 0, 1, 100};
	struct coop_net_peer other = {.cookie = 0x99, .sender = 0x98, .addr = c->p.b.setup.self};
	uint32_t lent = offer(&c->p.a, &c->from, AT, OFFERED, (struct lending){TOKEN, KEY, 0, 0});

	refused(c, "no ranges", some); /* only whole pages, from its start on */
	cancel(&c->p.a, lent);
	await(&c->p.a, COOP_NET_OFFER_OVER, lent, NULL);

	lent = offer_ranges(&c->p.a, &c->from, AT, OFFERED, c->p.b.self + 1, 0);
	refused(c, "another reader", some);
	offer_ends(c, lent);

	other.addr.gid[15] ^= 0x40;
	CHECK(!ioctl(c->p.a.fd, COOP_NET_PEER_OPEN, &other));
	readers_place(c, other.peer, &not_b);
	lent = offer_ranges(&c->p.a, &c->from, AT, OFFERED, c->p.b.self, other.peer);
	one_range(c, AT, OFFERED, (struct range){77, 5000}, 0); /* b is admitted as the reader */
	CHECK(!ioctl(c->p.a.fd, COOP_NET_PEER_CLOSE, &c->p.at_a));
	refused(c, "another port", some);
	offer_ends(c, lent);
}

void bounds_area(void)
{
	struct carriage c;

	for (enum layout from = ALIGNED; from < LAYOUTS; from++) {
		if (carriage_open(&c, from, ALIGNED, 60000)) {
			all_bounds(&c);
			if (from == PARTS)
				readers(&c);
		}
		carriage_close(&c);
	}
}

/* ---- revocation ---- */

/*
 * The pages of a request that is being served are bytes of before the offer's end, or no reader
 * believes them. Two means see to that. Pages that the network does not read in place, and all
 * of a request for four pages or less, are copied when the request arrives: their bytes are old
 * whatever comes later, and a module without the second means would pass as well. Other pages
 * the device reads in the owner's memory, when it gets to it: only that the module looks once
 * more, behind the sends, whether the offer has ended keeps new bytes from being believed.
 * coop_lab.ko keeps such sends back until the owner has changed its memory.
 */

#define ALL   (4ul << 20)
#define LENT  (1ul << 20)
#define READS 12
#define WAIT  20000 /* ms: of a read; await() waits longer */

static uint8_t new_byte = 0x80; /* what an owner writes to memory of which the offer has ended */

/* A read: pages of the offer, to a place of its own. */
struct read {
	uint32_t handle;
	size_t from, to;
	bool over;
	struct coop_net_event end;
};

static void begin(struct carriage *c, struct read *read, struct question q, size_t to)
{
	read->over = false;
	read->from = q.index * PAGE + q.shift;
	read->to = to;
	read->handle = ask(c, to, q, WAIT);
}

/* The i-th one of a round: pages of one of three runs. Each second one is read in place. */
static void begin_one(struct carriage *c, struct read *read, uint32_t i, size_t shift)
{
	const uint32_t n = c->p.b.setup.fetch_pages;
	const struct question q = {.shift = i % 2 ? shift : 0,
				   .size = LENT,
				   .index = i * COOP_NET_RUN % (3 * COOP_NET_RUN),
				   .n = n,
				   .length = n * PAGE};

	begin(c, read, q, i * COOP_NET_RUN * PAGE);
}

static bool next_end(struct carriage *c, struct read *all)
{
	struct coop_net_event ev;

	await(&c->p.b, COOP_NET_FETCHED, ANY, &ev);
	for (uint32_t i = 0; i < READS; i++)
		if (all[i].handle == ev.handle && !all[i].over) {
			all[i].over = true;
			all[i].end = ev;
			return true;
		}
	return CHECK(!"an event of each read");
}

/* What b believes is what the offer had, whatever a's memory has become. */
static bool as_it_was(const struct carriage *c, const struct read *r)
{
	const uint8_t *came = c->to.base + PAGE + r->to; /* ALIGNED */
	const uint8_t *lent = c->from.wanted + PAGE + r->from;

	for (unsigned int i = 0; i < COOP_NET_RUN; i++)
		if (r->end.pages >> i & 1 &&
		    !CHECK(!memcmp(came + i * PAGE, lent + i * PAGE, PAGE)))
			return false;
	return true;
}

/* Withdraws the offer, and changes its memory at once. */
static void take_back(struct carriage *c, uint32_t lent)
{
	cancel(&c->p.a, lent);
	enter(&c->p.a, 0, 0); /* from now on it has ended */
	memset(c->from.base, ++new_byte | 0x80, c->from.span);
}

/* Withdraws it when `ends` of its reads are over. */
static bool revoke(struct carriage *c, uint64_t *random, uint32_t ends, unsigned int *cut)
{
	const uint32_t lent = offer_ranges(&c->p.a, &c->from, 0, LENT, 0, 0);
	struct coop_net_event ev;
	struct read all[READS];
	bool good = true;

	for (uint32_t i = 0; i < READS; i++)
		begin_one(c, &all[i], i, random_next(random) % PAGE);
	for (uint32_t i = 0; i < ends && good; i++)
		good = next_end(c, all);
	take_back(c, lent);
	good &= CHECK(await(&c->p.a, COOP_NET_OFFER_OVER, lent, &ev) == -ECANCELED);
	for (uint32_t i = ends; i < READS && good; i++)
		good = next_end(c, all);
	for (uint32_t i = 0; i < READS && good; i++) {
		good = as_it_was(c, &all[i]);
		*cut += all[i].end.status != 0;
	}
	memcpy(c->from.base, c->from.wanted, c->from.span);
	return good;
}

/* ---- sends that the device gets late ---- */

#define LAB "/sys/module/coop_lab/parameters/"

static bool hold_sends(bool yes)
{
	FILE *f = fopen(LAB "hold_sends", "w");
	const bool good = f && fputs(yes ? "1" : "0", f) >= 0;

	return CHECK((!f || !fclose(f)) && good);
}

/* Chains that are kept back now. */
static int held(void)
{
	FILE *f = fopen(LAB "held", "r");
	int n = -1;

	if (!f || fscanf(f, "%d", &n) != 1)
		CHECK(!"coop_lab.ko is loaded");
	if (f)
		fclose(f);
	return n;
}

static bool one_is_held(void *about)
{
	(void)about;
	return held() > 0;
}

/* Whether new bytes have come to where the read has its page i, believed or not. */
static bool is_new(const struct carriage *c, const struct read *r, uint32_t i)
{
	const uint8_t *came = c->to.base + PAGE + r->to + i * PAGE; /* ALIGNED */

	for (size_t k = 0; k < PAGE; k++)
		if (came[k] != (new_byte | 0x80))
			return false;
	return true;
}

/*
 * The offer ends, and its memory changes, after a has begun to serve the read and before its
 * device has read a byte. An end of the read with an error is as good as the old bytes.
 */
static bool revoke_held(struct carriage *c, struct question q, unsigned int *sent)
{
	const uint32_t lent = offer_ranges(&c->p.a, &c->from, 0, LENT, 0, 0);
	struct coop_net_event ev;
	struct read read;
	bool good, over;

	good = hold_sends(true);
	begin(c, &read, q, 0);
	good = good && until(one_is_held, NULL, "a chain of sends is kept back");
	take_back(c, lent);
	/* The device may still read it, unless the module has destroyed the queue pair. */
	over = event_wait(&c->p.a, COOP_NET_OFFER_OVER, lent, &ev, 0);
	good &= CHECK(!over || !held());
	good &= hold_sends(false);
	await(&c->p.b, COOP_NET_FETCHED, read.handle, &read.end);
	good &= as_it_was(c, &read);
	for (uint32_t i = 0; i < q.n; i++)
		*sent += is_new(c, &read, i);
	if (!over)
		good &= CHECK(await(&c->p.a, COOP_NET_OFFER_OVER, lent, &ev) == -ECANCELED);
	memcpy(c->from.base, c->from.wanted, c->from.span);
	memcpy(c->to.base, c->to.wanted, c->to.span);
	return good;
}

static bool all_held(struct carriage *c)
{
	const uint32_t n = c->p.b.setup.fetch_pages;
	const struct question in_place = {0, LENT, 0, n, n * PAGE},
			      copied[] = {{0, LENT, 0, 4, 4 * PAGE},
					  {100, LENT, 64, n, n * PAGE},
					  {100, LENT, 64, 3, 3 * PAGE}};
	unsigned int sent = 0, copies = 0;

	/* A machine that stands still for ten seconds loses the sends: once more. */
	for (int i = 0; i < 10 && (i < 3 || !sent); i++)
		if (!revoke_held(c, in_place, &sent))
			return false;
	for (int i = 0; i < 6; i++)
		if (!revoke_held(c, copied[i % 3], &copies))
			return false;
	return CHECK(sent); /* else it proves nothing */
}

/* ROUNDS and SEED in the environment. */
void revoked_area(void)
{
	const char *text = getenv("ROUNDS"), *seed = getenv("SEED");
	const unsigned int rounds = text ? (unsigned int)strtoul(text, NULL, 0) : 20;
	uint64_t random = seed ? strtoull(seed, NULL, 0) : 1;
	unsigned int cut = 0, i = 0;
	struct carriage c;

	if (carriage_open(&c, ALIGNED, ALIGNED, ALL) && all_held(&c))
		for (; i < rounds && revoke(&c, &random, i % READS, &cut);)
			i++;
	CHECK(i == rounds);
	CHECK(cut && cut < rounds * READS); /* else it proves nothing */
	carriage_close(&c);
}
