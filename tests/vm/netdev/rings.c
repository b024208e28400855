/* SPDX-License-Identifier: MIT */
/*
 * rings.c - the two rings: indices that lie, a ring of events that is full for long, requests of a
 * peer that overtake what is in a ring, waits and wake-ups, operations without a system call,
 * memory of the rings that is taken away.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "netdev.h"

/* ---- indices ---- */

static void store(uint32_t *index, uint32_t value)
{
	__atomic_store_n(index, value, __ATOMIC_SEQ_CST);
}

static bool has_failed(void *m)
{
	return machine_failed(m);
}

/* A machine whose process lies: it fails, tells so, and the other one goes on. */
static void lies(const char *what, uint32_t op_tail, uint32_t event_head)
{
	struct pollfd at = {.events = POLLIN};
	struct pair p;

	if (pair_open(&p) && CHECK(pair_works(&p))) {
		store(&p.a.rings->op_tail, p.a.rings->op_tail + op_tail);
		store(&p.a.rings->event_head, p.a.rings->event_head + event_head);
		CHECK(enter(&p.a, 1, 1000000000) == -EBADR);
		CHECK(until(has_failed, &p.a, "it fails"));
		CHECK(p.a.rings->failure < 0);
		at.fd = p.a.fd;
		CHECK(poll(&at, 1, 10000) == 1 && at.revents & (POLLERR | POLLHUP));
		all_calls_fail(p.a.fd, EBADR);
		machine_close(&p.a);
		if (machine_open(&p.a, 0)) {
			p.at_a = peer_open(&p.a, &p.b, COOKIE_B);
			p.at_b = peer_open(&p.b, &p.a, COOKIE_A);
			CHECK(pair_works(&p));
		}
	}
	pair_close(&p);
	if (faults)
		fprintf(stderr, "  %s\n", what);
}

void indices_area(void)
{
	struct pair p;

	lies("op_tail is one too far", 1025, 0);
	lies("op_tail is far ahead", 0x7fffffff, 0);
	lies("op_tail goes back", ~0u, 0);
	lies("event_head is one too far", 0, 1);
	lies("event_head is far ahead", 0, 0x80000000);
	lies("event_head goes back", 0, ~4096u);
	/* What only the module writes, it does not read. */
	if (pair_open(&p)) {
		store(&p.a.rings->op_head, 12345);
		store(&p.a.rings->event_tail, 54321);
		p.a.rings->failure = -1;
		store(&p.a.rings->state, COOP_NET_FAILED);
		CHECK(!enter(&p.a, 0, 0));
		CHECK(!ioctl(p.a.fd, COOP_NET_SELF, &(struct coop_net_addr){0}));
	}
	pair_close(&p);
}

/* ---- nothing is lost ---- */

#define DEEP 64 /* of both rings */

static bool small_pair(struct pair *p)
{
	struct coop_net_setup setup[2] = {setup_for(device[0]), setup_for(device[1])};

	memset(p, 0, sizeof(*p));
	p->a.fd = p->b.fd = -1;
	for (int i = 0; i < 2; i++) {
		setup[i].ops = setup[i].events = DEEP;
		setup[i].handles = 1024;
		setup[i].silence_us = REQUEST_US * patience; /* only the time of a fetch ends it */
	}
	if (!CHECK(machine_setup(&p->a, &setup[0])) || !CHECK(machine_map(&p->a)) ||
	    !CHECK(machine_setup(&p->b, &setup[1])) || !CHECK(machine_map(&p->b)))
		return false;
	p->a.self = 0x1111;
	p->b.self = 0x2222;
	p->at_a = peer_open(&p->a, &p->b, COOKIE_B);
	p->at_b = peer_open(&p->b, &p->a, COOKIE_A);
	return CHECK(p->at_a && p->at_b);
}

struct count {
	uint64_t random, posted, ended, sent, texts, canceled;
	uint32_t receives[DEEP]; /* handles */
	unsigned int n_receives;
	const struct memory *b;
};

/* One operation of any kind, if there is room. */
static bool post_some(struct pair *p, struct count *n)
{
	static const uint8_t text[COOP_NET_TEXT] = "counted";
	const unsigned int kind = random_next(&n->random) % 16;
	struct machine *m = &p->a;

	if (m->rings->op_tail - __atomic_load_n(&m->rings->op_head, __ATOMIC_ACQUIRE) >= DEEP ||
	    n->posted - n->ended > m->setup.handles - 8)
		return false;
	if (kind < 3) {
		send_text(m, p->at_a, text);
	} else if (kind == 3 && n->n_receives < DEEP) {
		n->receives[n->n_receives++] = receive(m, n->b, 0, 100, 10, 5);
	} else if (kind < 6 && n->n_receives) {
		n->n_receives--;
		cancel(m, n->receives[n->n_receives]);
		n->posted--; /* has no event */
	} else {
		send_bytes(m, 0x654321, n->b, 0, 10); /* no such peer: over at once */
	}
	n->posted++;
	return true;
}

static void take_some(struct pair *p, struct count *n, unsigned int most)
{
	struct coop_net_event ev;

	/* post_some() leaves room, but a cancel waits for it, and that keeps what has come. */
	for (unsigned int i = 0; i < most && event_next(&p->a, &ev); i++) {
		n->ended += ev.flags & COOP_NET_FINAL;
		n->sent += ev.code == COOP_NET_SENT && !ev.status;
		n->canceled += ev.status == -ECANCELED;
	}
	for (unsigned int i = 0; i < most && event_take(&p->b, &ev); i++)
		n->texts += ev.code == COOP_NET_TEXT_IN;
}

/* Offers have reserved all room for events, so nothing but their end makes some. */
static bool no_room(struct pair *p, const struct memory *b)
{
	const uint64_t end = now_ms() + 30000ull * patience;
	uint32_t offers[DEEP];

	for (uint32_t i = 0; i < DEEP; i++)
		offers[i] = offer(&p->a, b, 0, 10, (struct lending){i, 1, 0, 0});
	while (__atomic_load_n(&p->a.rings->op_head, __ATOMIC_ACQUIRE) != p->a.rings->op_tail &&
	       now_ms() < end)
		enter(&p->a, 0, 0);
	for (uint32_t i = 0; i < DEEP; i++)
		cancel(&p->a, offers[i]);
	for (uint32_t i = 0; i < DEEP; i++)
		if (await(&p->a, COOP_NET_OFFER_OVER, offers[i], NULL) != -ECANCELED)
			return CHECK(!"an offer ends");
	return true;
}

/* Many operations, and a process that takes events late and few at a time. */
void nothing_lost_area(void)
{
	const char *rounds = getenv("ROUNDS");
	const uint64_t all = rounds ? strtoull(rounds, NULL, 0) : 20000;
	uint64_t end = now_ms() + (50000 + 5 * all) * patience;
	struct count n = {.random = 1};
	struct memory b;
	struct pair p;

	NEED(memory_make(&b, ODD, 1000, 4) && small_pair(&p) && memory_add(&p.a, &b));
	NEED(no_room(&p, &b));
	n.b = &b;
	while (n.posted < all && now_ms() < end && !machine_failed(&p.a)) {
		while (random_next(&n.random) % 100 && post_some(&p, &n))
			;
		take_some(&p, &n, random_next(&n.random) % 24);
		if (random_next(&n.random) % 4 == 0)
			enter(&p.a, 0, 0);
	}
	CHECK(n.posted >= all);
	while (n.n_receives)
		cancel(&p.a, n.receives[--n.n_receives]);
	end = now_ms() + 50000ull * patience;
	while ((n.ended < n.posted || n.texts < n.sent) && now_ms() < end) {
		take_some(&p, &n, DEEP);
		enter(&p.a, 0, 0);
		enter(&p.b, 1, 1000000);
	}
	fprintf(stderr, "%llu operations ended of %llu, %llu texts sent, %llu arrived\n",
		(unsigned long long)n.ended, (unsigned long long)n.posted,
		(unsigned long long)n.sent, (unsigned long long)n.texts);
	CHECK(n.ended == n.posted && n.texts == n.sent && n.sent && n.canceled);
	for (uint32_t i = 0; i < p.a.setup.handles; i++)
		if (!CHECK(!p.a.used[i]))
			break;
	CHECK(pair_works(&p) && memory_right(&b));
	pair_close(&p);
	memory_free(&b);
}

/* ---- a request that overtakes its offer ---- */

#define LENT  (4 * PAGE)
#define TOKEN 0x5500000000000031ull

/* Into the ring, and no word to the module. */
static void put(struct machine *m, struct coop_net_op op)
{
	m->ops[m->rings->op_tail & (m->setup.ops - 1)] = op;
	store(&m->rings->op_tail, m->rings->op_tail + 1);
}

static uint32_t put_offer(struct carriage *c, uint64_t key)
{
	struct coop_net_op op = {.code = COOP_NET_OFFER,
				 .handle = handle_new(&c->p.a),
				 .buffer = c->from.buffer,
				 .length = LENT};

	op.u.offer.token = TOKEN;
	op.u.offer.key = key;
	op.u.offer.reader = c->p.b.self;
	put(&c->p.a, op);
	return op.handle;
}

static uint32_t read_all(struct carriage *c, uint64_t key)
{
	return fetch(&c->p.b, c->p.at_b, &c->to, 0, (struct asking){TOKEN, key, LENT, 0, 15});
}

static bool came(struct carriage *c, uint32_t reading)
{
	struct coop_net_event ev;

	copy_wanted(&c->from, 0, &c->to, 0, LENT);
	return CHECK(!await(&c->p.b, COOP_NET_FETCHED, reading, &ev)) && CHECK(ev.pages == 15) &&
	       all_right(c);
}

/* The pump takes 64 operations, then looks at what has come, and the offer is behind more. */
static void behind_many(void)
{
	struct carriage c;

	if (CHECK(carriage_open(&c, ALIGNED, ALIGNED, LENT))) {
		put_offer(&c, 4);
		came(&c, read_all(&c, 4));         /* now the machines know each other */
		for (uint32_t i = 0; i < 500; i++) /* of nothing: the handle is not in use */
			put(&c.p.a, (struct coop_net_op){.code = COOP_NET_CANCEL, .handle = 1000});
		put_offer(&c, 1);
		came(&c, read_all(&c, 1));
	}
	carriage_close(&c);
}

static uint32_t ready(const struct machine *m)
{
	return __atomic_load_n(&m->rings->event_tail, __ATOMIC_ACQUIRE) - m->rings->event_head;
}

/* The offer has to wait for room in the ring of events, so its reader has to wait too. */
static void behind_events(void)
{
	struct coop_net_event ev;
	struct carriage c = {0};
	uint32_t reading;

	NEED(memory_make(&c.from, ALIGNED, LENT, 5) && memory_make(&c.to, ALIGNED, LENT, 6) &&
	     small_pair(&c.p) && memory_add(&c.p.a, &c.from) && memory_add(&c.p.b, &c.to));
	while (ready(&c.p.a) < DEEP) { /* no such peer: over at once */
		send_bytes(&c.p.a, 0x654321, &c.from, 0, 10);
		enter(&c.p.a, 0, 0);
	}
	put_offer(&c, 2);
	reading = read_all(&c, 2);
	CHECK(!event_wait(&c.p.b, COOP_NET_FETCHED, reading, &ev, 300));
	CHECK(events_drop(&c.p.a) == DEEP);
	came(&c, reading);
	/* What nobody offers is not there. */
	CHECK(await(&c.p.b, COOP_NET_FETCHED, read_all(&c, 3), NULL) == -ENOENT);
	carriage_close(&c);
}

void overtaken_area(void)
{
	behind_many();
	behind_events();
}

/* ---- waits ---- */

static void *sends_soon(void *about)
{
	static const uint8_t text[COOP_NET_TEXT] = "soon";
	struct pair *p = about;

	usleep(200000);
	send_text(&p->b, p->at_b, text);
	return NULL;
}

static void *signals_soon(void *about)
{
	usleep(200000);
	pthread_kill(*(pthread_t *)about, SIGUSR1);
	return NULL;
}

static void ignored(int number) {}

static void interrupted(struct pair *p)
{
	const struct sigaction act = {.sa_handler = ignored};
	pthread_t own = pthread_self(), other;

	CHECK(!sigaction(SIGUSR1, &act, NULL));
	NEED(!pthread_create(&other, NULL, signals_soon, &own));
	CHECK(enter(&p->a, 1, 60000000000ull * patience) == -EINTR);
	pthread_join(other, NULL);
}

/* A wait that a text of the peer ends; by ENTER or by poll. */
static void woken(struct pair *p, bool by_poll)
{
	struct pollfd at = {.fd = p->a.fd, .events = POLLIN};
	pthread_t other;

	NEED(!pthread_create(&other, NULL, sends_soon, p));
	if (by_poll)
		CHECK(poll(&at, 1, (int)(30000 * patience)) == 1 && at.revents == POLLIN);
	else
		CHECK(!enter(&p->a, 1, 30000000000ull * patience));
	pthread_join(other, NULL);
	CHECK(!await(&p->a, COOP_NET_TEXT_IN, ANY, NULL));
	CHECK(!await(&p->b, COOP_NET_SENT, ANY, NULL));
}

void waits_area(void)
{
	static const uint8_t text[COOP_NET_TEXT] = "two events";
	struct pollfd at = {.events = POLLIN};
	struct pair p;

	NEED(pair_open(&p) && pair_works(&p));
	events_drop(&p.a);
	at.fd = p.a.fd;
	CHECK(poll(&at, 1, 0) == 0 && poll(&at, 1, 20) == 0);
	CHECK(enter(&p.a, 1, 0) == -ETIME);
	CHECK(enter(&p.a, 1, 20000000) == -ETIME);
	CHECK(enter(&p.a, 0, ~0ull) == 0);
	interrupted(&p);
	woken(&p, false);
	woken(&p, true);
	send_text(&p.b, p.at_b, text);
	send_text(&p.b, p.at_b, text);
	CHECK(!enter(&p.a, 2, 30000000000ull * patience));
	CHECK(!enter(&p.a, 2, ~0ull)); /* at once: they are there */
	CHECK(enter(&p.a, 3, 20000000) == -ETIME);
	CHECK(enter(&p.a, p.a.setup.events + 1, 20000000) < 0);
	CHECK(enter(&p.a, ~0u, 20000000) < 0);
	CHECK(poll(&at, 1, 0) == 1 && at.revents == POLLIN);
	CHECK(events_drop(&p.a) == 2);
	CHECK(poll(&at, 1, 0) == 0);
	CHECK(pair_works(&p));
	pair_close(&p);
}

/* ---- no system call while the module is awake ---- */

#define AWAKE_OPS 4000

void awake_area(void)
{
	const uint64_t end = now_ms() + 60000ull * patience;
	struct coop_net_event ev;
	uint64_t ended = 0, posted = 0, good = 0;
	uint8_t text[COOP_NET_TEXT] = "awake";
	struct pair p;

	NEED(pair_open(&p) && pair_works(&p));
	p.a.rings->polls = p.b.rings->polls = 1;
	p.a.entered = p.a.waited = 0;
	/* Only post() enters, when the module sleeps: all events must come without another call. */
	while (ended < AWAKE_OPS && now_ms() < end && !machine_failed(&p.a)) {
		while (posted < AWAKE_OPS && posted - ended < 16) {
			send_text(&p.a, p.at_a, text);
			posted++;
		}
		while (event_take(&p.a, &ev)) {
			ended += ev.code == COOP_NET_SENT;
			good += ev.code == COOP_NET_SENT && !ev.status;
		}
		while (event_take(&p.b, &ev))
			;
	}
	fprintf(stderr, "%llu of %d operations ended, with %llu system calls\n",
		(unsigned long long)ended, AWAKE_OPS, (unsigned long long)p.a.entered);
	CHECK(ended == AWAKE_OPS && good == ended);
	CHECK(!p.a.waited && p.a.entered < AWAKE_OPS);
	pair_close(&p);
}

/* ---- the mapping ---- */

static void unmapped(size_t from, size_t to)
{
	struct pair p;
	char *map;

	if (!pair_open(&p) || !pair_works(&p))
		return;
	map = (char *)p.a.rings;
	to = to ? to : p.a.setup.map_bytes;
	if (to - from < p.a.setup.map_bytes) {
		FAILS(munmap(map + from, to - from), EINVAL);
		CHECK(pair_works(&p));
	} else {
		CHECK(!munmap(map, to));
		CHECK(enter(&p.a, 0, 0) == -EBADR);
		all_calls_fail(p.a.fd, EBADR);
		p.a.rings = NULL;
	}
	pair_close(&p);
}

void mapping_area(void)
{
	struct pair p;
	void *again;

	unmapped(0, 0);
	unmapped(0, PAGE);
	unmapped(PAGE, 2 * PAGE);
	unmapped(PAGE, 0);
	NEED(pair_open(&p) && pair_works(&p));
	again = mremap(p.a.rings, p.a.setup.map_bytes, p.a.setup.map_bytes + PAGE, MREMAP_MAYMOVE);
	CHECK(again == MAP_FAILED);
	CHECK(madvise(p.a.rings, p.a.setup.map_bytes, MADV_DOFORK) == -1);
	CHECK(!mprotect(p.a.rings, p.a.setup.map_bytes, PROT_READ));
	CHECK(!enter(&p.a, 0, 0)); /* the module writes by its own mapping */
	CHECK(!mprotect(p.a.rings, p.a.setup.map_bytes, PROT_READ | PROT_WRITE));
	again = mremap(p.a.rings, p.a.setup.map_bytes, p.a.setup.map_bytes, MREMAP_MAYMOVE);
	CHECK(again == p.a.rings && pair_works(&p));
	again = mmap(NULL, p.a.setup.map_bytes, PROT_READ, MAP_SHARED, p.a.fd, 0);
	CHECK(again == MAP_FAILED || !munmap(again, p.a.setup.map_bytes));
	pair_close(&p);
}
