/* SPDX-License-Identifier: MIT */
/*
 * fuzz.c - a hostile process: operations, calls and mappings at random, from several threads that
 * change the rings while the module reads them.
 *
 * Each round has two hostile machines that know each other and a sane pair. They may write to the
 * memory that they registered, and to nothing else: the pages behind it keep their bytes, and so
 * do the buffers of the sane pair, which works after every round. SEED and ROUNDS in the
 * environment choose the numbers; the schedule of threads is not reproducible. With SCARCE
 * allocations fail at random: the sane pair may fail too, but no byte may be wrong.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "netdev.h"

#define POOL     64  /* pages that may be registered */
#define GUARD    64  /* pages behind them that may not */
#define TURNS    400 /* of each thread */
#define REMEMBER 16

struct hostile {
	struct machine m;
	uint8_t *pool;
	uint32_t buffers[REMEMBER], peers[REMEMBER];
	struct coop_net_addr known[4]; /* addresses of others */
	uint64_t senders[4];
	uint64_t seed;
	bool gentle;    /* indices and handles are right, so that it goes on for long */
	uint8_t *guard; /* what the pages behind the pool must have */
};

static bool scarce(void)
{
	return getenv("SCARCE");
}

static uint64_t pick(uint64_t *r, uint64_t below)
{
	return random_next(r) % below;
}

/* A number of any size, often at the border of something. */
static uint64_t any_number(uint64_t *r)
{
	static const uint64_t borders[] = {0,          1,          63,    64,           65,
					   4095,       4096,       4097,  65536,        1 << 18,
					   1ull << 31, 1ull << 32, ~0ull, ~0ull - 4095, 1ull << 63};

	switch (pick(r, 4)) {
	case 0:
		return borders[pick(r, sizeof(borders) / sizeof(borders[0]))] + pick(r, 3) - 1;
	case 1:
		return pick(r, POOL) * PAGE;
	case 2:
		return random_next(r) >> pick(r, 64);
	default:
		return pick(r, POOL * PAGE);
	}
}

static uint32_t any_of(uint64_t *r, const uint32_t *ids)
{
	return pick(r, 16) ? ids[pick(r, REMEMBER)] : (uint32_t)any_number(r);
}

/* ---- operations ---- */

static void any_operation(struct hostile *h, uint64_t *r, struct coop_net_op *op)
{
	struct coop_net_op o = {
		.code = (uint8_t)(1 + pick(r, 6)),
		.flags = (uint8_t)(1u << pick(r, 6)),
		.handle = h->gentle || pick(r, 50)
				  ? (h->m.handle = (h->m.handle + 1) % h->m.setup.handles)
				  : (uint32_t)any_number(r),
		.peer = any_of(r, h->peers),
		.buffer = any_of(r, h->buffers),
		.offset = any_number(r),
		.length = any_number(r),
	};

	if (pick(r, 2))
		o.flags = 0;
	switch (o.code) {
	case COOP_NET_SEND:
		o.u.send.tag = (pick(r, 2) ? TEXT : MESSAGE) | h->m.self;
		if (o.flags & COOP_NET_IN_TEXT)
			o.length = pick(r, 66);
		if (o.flags & COOP_NET_HERE && pick(r, 8)) {
			o.peer = 0;
			o.flags |= pick(r, 2) ? COOP_NET_IN_TEXT : 0;
			o.length = pick(r, 2) ? pick(r, 66) : any_number(r);
		}
		break;
	case COOP_NET_RECV:
		o.u.recv.min_size = any_number(r);
		o.u.recv.max_messages = (uint32_t)pick(r, 10);
		break;
	case COOP_NET_OFFER:
		o.u.offer.token = pick(r, 8);
		o.u.offer.key = pick(r, 2);
		o.u.offer.reader = pick(r, 2) ? h->senders[0] : 0;
		o.u.offer.reader_peer = pick(r, 2) ? any_of(r, h->peers) : 0;
		break;
	case COOP_NET_FETCH:
		o.u.fetch.fid[0] = pick(r, 8);
		o.u.fetch.fid[1] =
			h->m.self | (pick(r, 2) ? any_number(r) << COOP_NET_SHIFT_AT : 0);
		o.u.fetch.version = pick(r, 2);
		o.u.fetch.size = any_number(r);
		o.u.fetch.index = pick(r, 8) ? pick(r, POOL) : any_number(r);
		o.u.fetch.want = pick(r, 2) ? 1 : random_next(r) >> pick(r, 64);
		o.u.fetch.budget_us = (uint32_t)pick(r, 300000);
		break;
	default:
		break;
	}
	if (!pick(r, 20)) /* or nonsense */
		fill((uint8_t *)&o + pick(r, 64), 64, random_next(r));
	if (h->gentle)
		o.handle = h->m.handle;
	*op = o;
}

static void lie_about_indices(struct hostile *h, uint64_t *r)
{
	uint32_t *const index[] = {&h->m.rings->op_tail, &h->m.rings->event_head,
				   &h->m.rings->op_head, &h->m.rings->event_tail,
				   &h->m.rings->state,   &h->m.rings->polls};

	__atomic_store_n(index[pick(r, 6)], (uint32_t)any_number(r), __ATOMIC_RELEASE);
}

static void *operate(void *about)
{
	struct hostile *h = about;
	struct coop_net_rings *rings = h->m.rings;
	uint64_t r = h->seed + 1;
	uint32_t in_use = 0;

	for (int i = 0; i < TURNS; i++) {
		const uint32_t tail = rings->op_tail;

		/* A gentle one uses a handle again only when no operation can have it. */
		if (tail - rings->op_head < h->m.setup.ops &&
		    (!h->gentle || in_use < h->m.setup.handles)) {
			any_operation(h, &r, &h->m.ops[tail & (h->m.setup.ops - 1)]);
			__atomic_store_n(&rings->op_tail, tail + 1, __ATOMIC_RELEASE);
			in_use++;
		}
		if (!h->gentle && !pick(&r, 300))
			lie_about_indices(h, &r);
		if (!pick(&r, 4))
			enter(&h->m, (uint32_t)pick(&r, 3), pick(&r, 1000000));
		if (pick(&r, 3))
			__atomic_store_n(&rings->event_head, rings->event_tail, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Changes operations and events while the module reads and writes them. */
static void *change(void *about)
{
	struct hostile *h = about;
	uint64_t r = h->seed + 2;
	uint8_t *map = (uint8_t *)h->m.rings;

	for (int i = 0; i < TURNS * 20; i++) {
		const uint64_t first = h->m.setup.ops_at;
		const uint64_t at = first + pick(&r, h->m.setup.map_bytes - first);
		/* The next operation, mostly. */
		const uint64_t op = first +
				    (h->m.rings->op_tail - pick(&r, 2)) % h->m.setup.ops *
					    sizeof(struct coop_net_op) +
				    pick(&r, sizeof(struct coop_net_op));
		const uint64_t where = pick(&r, 4) ? op : at;

		/* A wrong handle would end it. */
		if (!h->gentle || where % sizeof(struct coop_net_op) / 4 != 1)
			map[where] ^= (uint8_t)random_next(&r);
		if (!pick(&r, 8))
			h->m.rings->polls = (uint32_t)pick(&r, 2);
	}
	return NULL;
}

/* ---- calls ---- */

static uint64_t any_address(struct hostile *h, uint64_t *r)
{
	static const uint64_t bad[] = {
		0, PAGE, 0xffff888000000000ull, 0xffffffff81000000ull, ~0ull - 100, 1ull << 62};

	if (!pick(r, 8))
		return bad[pick(r, sizeof(bad) / sizeof(bad[0]))];
	return (uintptr_t)h->pool + (pick(r, 3) ? pick(r, POOL) * PAGE : pick(r, POOL * PAGE));
}

static void add_any(struct hostile *h, uint64_t *r)
{
	const uint64_t end = (uintptr_t)h->pool + POOL * PAGE;
	struct coop_net_segment s[20];
	struct coop_net_buffer b = {.segments = (uintptr_t)s, .n = (uint32_t)pick(r, 20) + 1};

	for (size_t i = 0; i < 20; i++) {
		s[i].at = any_address(h, r);
		s[i].length = pick(r, 3) ? pick(r, 3 * PAGE) : any_number(r);
		/* Never a byte behind the pool, except where there is no memory at all. */
		if (s[i].at >= (uintptr_t)h->pool && s[i].at < end && s[i].length > end - s[i].at)
			s[i].length = end - s[i].at;
		if (s[i].at < (uintptr_t)h->pool)
			s[i].length %= PAGE;
	}
	if (!pick(r, 16))
		b.segments = (uintptr_t)nowhere;
	if (!pick(r, 16))
		b.n = (uint32_t)any_number(r);
	if (b.n > 20)
		b.segments = (uintptr_t)nowhere;
	if (!ioctl(h->m.fd, COOP_NET_BUFFER_ADD, &b))
		h->buffers[pick(r, REMEMBER)] = b.buffer;
}

static void peer_any(struct hostile *h, uint64_t *r)
{
	const uint64_t other = pick(r, 4);
	struct coop_net_peer p = {.peer = any_of(r, h->peers),
				  .cookie = pick(r, 10),
				  .sender = pick(r, 8) ? h->senders[other] : random_next(r),
				  .addr = h->known[other]};

	if (!pick(r, 6))
		fill((uint8_t *)&p.addr + pick(r, 16), 8, random_next(r));
	switch (pick(r, 5)) {
	case 0:
		ioctl(h->m.fd, COOP_NET_PEER_ADMIT, &p);
		break;
	case 1:
		ioctl(h->m.fd, COOP_NET_PEER_INFO, &p);
		break;
	case 2:
		if (!pick(r, 4))
			ioctl(h->m.fd, COOP_NET_PEER_CLOSE, &p.peer);
		break;
	default:
		if (!ioctl(h->m.fd, COOP_NET_PEER_OPEN, &p))
			h->peers[pick(r, REMEMBER)] = p.peer;
	}
}

static void call_any(struct hostile *h, uint64_t *r)
{
	const unsigned int dir = (unsigned int)pick(r, 4);
	uint64_t bytes[128];

	fill(bytes, sizeof(bytes), random_next(r));
	switch (pick(r, 8)) {
	case 0:
		bytes[0] = any_of(r, h->buffers);
		ioctl(h->m.fd, COOP_NET_BUFFER_DEL, bytes);
		break;
	case 1:
		ioctl(h->m.fd, COOP_NET_SETUP, bytes);
		break;
	case 2: /* a call that there is not, of any size */
		ioctl(h->m.fd, _IOC(dir, COOP_NET_IOCTL, pick(r, 12) + 10, pick(r, 900)), bytes);
		break;
	case 3:
		ioctl(h->m.fd, COOP_NET_SELF, pick(r, 2) ? (void *)bytes : (void *)nowhere);
		break;
	case 4:
		enter(&h->m, (uint32_t)any_number(r), pick(r, 1000000));
		break;
	default:
		peer_any(h, r);
	}
}

static void *call(void *about)
{
	struct hostile *h = about;
	uint64_t r = h->seed + 3;

	for (int i = 0; i < TURNS; i++) {
		if (!pick(&r, 3))
			add_any(h, &r);
		else
			call_any(h, &r);
		if (!pick(&r, 150)) {
			const pid_t child = fork();

			if (!child)
				_exit(0);
			if (child > 0)
				waitpid(child, NULL, 0);
		}
	}
	return NULL;
}

/* ---- mappings: the last that a machine sees ---- */

static void map_any(struct hostile *h)
{
	const uint64_t pages = h->m.setup.map_bytes / PAGE;
	uint64_t r = h->seed + 4;

	for (int i = 0; i < 30; i++) {
		const uint64_t first = pick(&r, pages);
		const uint64_t size = (1 + pick(&r, pages - first)) * PAGE;
		uint8_t *at = (uint8_t *)h->m.rings + first * PAGE;
		void *more;

		switch (pick(&r, 7)) {
		case 0:
			mprotect(at, size, (int)pick(&r, 8));
			break;
		case 1:
			madvise(at, size, (int)pick(&r, 26));
			break;
		case 2:
			msync(at, size, MS_SYNC);
			break;
		case 3:
			more = mmap(NULL, size, (int)pick(&r, 8),
				    pick(&r, 2) ? MAP_SHARED : MAP_PRIVATE, h->m.fd,
				    (off_t)(pick(&r, 3) * PAGE));
			if (more != MAP_FAILED)
				munmap(more, size);
			break;
		case 4:
			more = mremap(at, PAGE, pick(&r, 3) * PAGE,
				      pick(&r, 2) ? MREMAP_MAYMOVE : 0);
			if (more != MAP_FAILED && more != at)
				munmap(more, PAGE);
			break;
		case 5:
			mlock(at, size);
			break;
		default:
			if (!pick(&r, 3))
				munmap(at, size);
		}
		enter(&h->m, 0, 0);
	}
}

/* ---- rounds ---- */

static bool hostile_open(struct hostile *h, int i, uint64_t seed)
{
	struct coop_net_setup s = setup_for(device[i]);
	uint64_t r = seed;

	memset(h, 0, sizeof(*h));
	h->m.fd = -1;
	h->seed = seed;
	h->pool = mmap(NULL, (POOL + GUARD) * PAGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	h->guard = malloc(GUARD * PAGE);
	if (!CHECK(h->pool != MAP_FAILED && h->guard))
		return false;
	fill(h->guard, GUARD * PAGE, seed);
	memcpy(h->pool + POOL * PAGE, h->guard, GUARD * PAGE);
	s.ops = 64u << pick(&r, 3);
	s.events = 64u << pick(&r, 3);
	h->gentle = pick(&r, 2);
	s.handles = h->gentle ? 1024 : 1 + (uint32_t)pick(&r, 100);
	s.peers = 1 + (uint32_t)pick(&r, 6);
	s.fetches = 1 + (uint32_t)pick(&r, 4);
	s.serves = 1 + (uint32_t)pick(&r, 4);
	s.tries = 3;
	s.fetch_timeout_us = 50000;
	if (!machine_setup(&h->m, &s)) {
		if (scarce())
			return false;
		CHECK(!"machine_setup");
		fprintf(stderr, "  %.128s\n", (const char *)h->m.setup.why);
		return false;
	}
	h->m.self = seed & (MESSAGE - 1);
	return CHECK(machine_map(&h->m));
}

static void hostile_knows(struct hostile *h, unsigned int i, const struct machine *m)
{
	struct coop_net_peer p = {.cookie = 1 + i, .sender = m->self, .addr = m->setup.self};

	h->known[i] = m->setup.self;
	h->senders[i] = m->self;
	if (!ioctl(h->m.fd, COOP_NET_PEER_OPEN, &p))
		for (unsigned int k = i; k < REMEMBER; k += 4)
			h->peers[k] = p.peer;
}

static void hostile_close(struct hostile *h, bool by_fd)
{
	if (h->m.rings && by_fd)
		map_any(h);
	machine_close(&h->m);
	if (h->guard)
		CHECK(!memcmp(h->pool + POOL * PAGE, h->guard, GUARD * PAGE));
	free(h->guard);
	munmap(h->pool, (POOL + GUARD) * PAGE);
}

static void one_round(struct pair *sane, uint64_t seed)
{
	void *(*const act[])(void *) = {operate, change, call};
	struct hostile h[2];
	pthread_t thread[6];
	int n = 0;

	memset(h, 0, sizeof(h));
	if (hostile_open(&h[0], 0, seed * 16) && hostile_open(&h[1], 1, seed * 16 + 8)) {
		for (int i = 0; i < 2; i++) {
			hostile_knows(&h[i], 0, &h[!i].m);
			hostile_knows(&h[i], 1, &sane->a);
			hostile_knows(&h[i], 2, &sane->b);
			hostile_knows(&h[i], 3, &h[i].m);
		}
		for (int i = 0; i < 6; i++)
			n += !pthread_create(&thread[n], NULL, act[i / 2], &h[i % 2]);
		while (n)
			pthread_join(thread[--n], NULL);
	}
	hostile_close(&h[0], seed & 1);
	hostile_close(&h[1], seed & 2);
}

void fuzz_area(void)
{
	const char *seed = getenv("SEED"), *rounds = getenv("ROUNDS");
	const uint64_t first = seed ? strtoull(seed, NULL, 0) : 1;
	const uint64_t last = first + (rounds ? strtoull(rounds, NULL, 0) : 20);
	struct memory a, b;
	struct pair p;

	NEED(memory_make(&a, PARTS, 100000, 1) && memory_make(&b, ODD, 100000, 2));
	NEED(pair_open(&p) && memory_add(&p.a, &a) && memory_add(&p.b, &b));
	receive(&p.a, &a, 0, 100000, 0, 1000);
	offer(&p.b, &b, 0, 100000, (struct lending){1, 1, 0, 0});
	for (uint64_t i = first; i < last; i++) {
		one_round(&p, i);
		events_drop(&p.a);
		events_drop(&p.b);
		if (!(scarce() || CHECK(pair_works(&p))) | !CHECK(memory_right(&a)) |
		    !CHECK(memory_right(&b))) {
			fprintf(stderr, "  SEED=%llu\n", (unsigned long long)i);
			break;
		}
	}
	pair_close(&p);
	CHECK(pinned() == 0);
	memory_free(&a);
	memory_free(&b);
}
