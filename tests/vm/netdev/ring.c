/* SPDX-License-Identifier: MIT */
/* ring.c - a machine of /dev/coop-net by its raw interface: setup, rings, waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "netdev.h"

#define WAIT_MS 30000u

struct coop_net_setup setup_for(const char *name)
{
	struct coop_net_setup s = {.size = sizeof(s), .abi = COOP_NET_ABI, .gid_index = -1};

	snprintf((char *)s.device, sizeof(s.device), "%s", name);
	return s;
}

struct coop_net_setup small_setup(int i)
{
	struct coop_net_setup s = setup_for(device[i]);

	s.ops = s.events = s.handles = 64;
	s.peers = 4;
	s.fetches = s.serves = 1;
	s.window = 64;
	return s;
}

bool machine_setup(struct machine *m, const struct coop_net_setup *setup)
{
	int err;

	memset(m, 0, sizeof(*m));
	m->setup = *setup;
	m->fd = open(COOP_NET_DEVICE, O_RDWR | O_CLOEXEC);
	if (m->fd < 0)
		return false;
	if (!ioctl(m->fd, COOP_NET_SETUP, &m->setup)) {
		m->used = calloc(m->setup.handles, sizeof(*m->used));
		return m->used;
	}
	err = errno;
	close(m->fd);
	m->fd = -1;
	errno = err;
	return false;
}

bool machine_map(struct machine *m)
{
	void *map = mmap(NULL, m->setup.map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);

	if (map == MAP_FAILED)
		return false;
	m->rings = map;
	m->ops = (void *)((char *)map + m->setup.ops_at);
	m->events = (void *)((char *)map + m->setup.events_at);
	return true;
}

bool machine_open(struct machine *m, int i)
{
	struct coop_net_setup setup = setup_for(device[i]);
	static uint64_t next = 0x77;

	setup.silence_us = REQUEST_US * patience; /* only the time of a fetch ends it */
	if (!machine_setup(m, &setup)) {
		fprintf(stderr, "setup on %s: %s: %.128s\n", device[i], strerror(errno),
			(const char *)m->setup.why);
		return CHECK(!"machine_setup");
	}
	m->self = ((next += 0x101) << 32 | (unsigned int)getpid()) & IDENTITY;
	return CHECK(machine_map(m));
}

void machine_close(struct machine *m)
{
	if (m->rings)
		munmap(m->rings, m->setup.map_bytes);
	if (m->fd >= 0)
		close(m->fd);
	free(m->used);
	free(m->kept);
	memset(m, 0, sizeof(*m));
	m->fd = -1;
}

uint32_t peer_open(struct machine *m, const struct machine *other, uint64_t cookie)
{
	struct coop_net_peer p = {
		.cookie = cookie, .sender = other->self, .addr = other->setup.self};

	return ioctl(m->fd, COOP_NET_PEER_OPEN, &p) ? 0 : p.peer;
}

bool machine_failed(const struct machine *m)
{
	return __atomic_load_n(&m->rings->state, __ATOMIC_ACQUIRE) & COOP_NET_FAILED;
}

/* ---- operations ---- */

uint32_t handle_new(struct machine *m)
{
	for (uint32_t i = 0; i < m->setup.handles; i++) {
		m->handle = (m->handle + 1) % m->setup.handles;
		if (!m->used[m->handle]) {
			m->used[m->handle] = true;
			return m->handle;
		}
	}
	fprintf(stderr, "no handle is free\n");
	abort();
}

int enter(struct machine *m, uint32_t events, uint64_t timeout_ns)
{
	struct coop_net_enter e = {.events = events, .timeout_ns = timeout_ns};

	return ioctl(m->fd, COOP_NET_ENTER, &e) ? -errno : 0;
}

static bool ops_full(const struct machine *m)
{
	return m->rings->op_tail - __atomic_load_n(&m->rings->op_head, __ATOMIC_ACQUIRE) >=
	       m->setup.ops;
}

static bool failed_or_late(const struct machine *m, uint64_t end, const char *what)
{
	if (!machine_failed(m) && now_ms() < end)
		return false;
	fprintf(stderr, "%s: %s\n", what,
		machine_failed(m) ? strerror(-m->rings->failure) : "not in time");
	return true;
}

struct coop_net_op *op_next(struct machine *m)
{
	struct coop_net_op *op = &m->ops[m->rings->op_tail & (m->setup.ops - 1)];
	const uint64_t end = now_ms() + (uint64_t)WAIT_MS * patience;

	/* The module takes nothing while the ring of events has no room: keep what is there. */
	while (ops_full(m) && !failed_or_late(m, end, "room for an operation")) {
		struct coop_net_event ev;

		m->entered++;
		enter(m, 0, 0);
		event_wait(m, NO_EVENT, ANY, &ev, 1);
	}
	memset(op, 0, sizeof(*op));
	op->handle = handle_new(m);
	return op;
}

uint32_t post(struct machine *m)
{
	const uint32_t tail = m->rings->op_tail;
	const uint32_t handle = m->ops[tail & (m->setup.ops - 1)].handle;

	__atomic_store_n(&m->rings->op_tail, tail + 1, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!(__atomic_load_n(&m->rings->state, __ATOMIC_RELAXED) & COOP_NET_AWAKE)) {
		m->entered++;
		enter(m, 0, 0);
	}
	return handle;
}

/* ---- events ---- */

bool event_take(struct machine *m, struct coop_net_event *out)
{
	const uint32_t head = m->rings->event_head;

	if (head == __atomic_load_n(&m->rings->event_tail, __ATOMIC_ACQUIRE))
		return false;
	*out = m->events[head & (m->setup.events - 1)];
	__atomic_store_n(&m->rings->event_head, head + 1, __ATOMIC_RELEASE);
	if (out->flags & COOP_NET_FINAL) {
		if (out->handle >= m->setup.handles || !m->used[out->handle]) {
			fprintf(stderr, "the event %u ends handle %u, which is not in use\n",
				out->code, out->handle);
			faults++;
		} else {
			m->used[out->handle] = false;
		}
	}
	return true;
}

static bool matches(const struct coop_net_event *ev, uint32_t code, uint32_t handle)
{
	return (code == ANY || ev->code == code) && (handle == ANY || ev->handle == handle);
}

static bool take_kept(struct machine *m, uint32_t code, uint32_t handle, struct coop_net_event *out)
{
	for (size_t i = 0; i < m->n_kept; i++) {
		if (!matches(&m->kept[i], code, handle))
			continue;
		*out = m->kept[i];
		memmove(m->kept + i, m->kept + i + 1, (--m->n_kept - i) * sizeof(*m->kept));
		return true;
	}
	return false;
}

bool event_next(struct machine *m, struct coop_net_event *out)
{
	return take_kept(m, ANY, ANY, out) || event_take(m, out);
}

static void keep(struct machine *m, const struct coop_net_event *ev)
{
	if (m->n_kept == m->room_kept) {
		m->room_kept = m->room_kept * 2 + 64;
		m->kept = realloc(m->kept, m->room_kept * sizeof(*m->kept));
		if (!m->kept)
			abort();
	}
	m->kept[m->n_kept++] = *ev;
}

bool event_wait(struct machine *m, uint32_t code, uint32_t handle, struct coop_net_event *out,
		unsigned int ms)
{
	const uint64_t end = now_ms() + ms;

	if (take_kept(m, code, handle, out))
		return true;
	for (;;) {
		uint64_t now;

		while (event_take(m, out)) {
			if (matches(out, code, handle))
				return true;
			keep(m, out);
		}
		now = now_ms();
		if (now >= end || machine_failed(m))
			return false;
		m->waited++;
		enter(m, 1, (end - now) * 1000000);
	}
}

int await(struct machine *m, uint32_t code, uint32_t handle, struct coop_net_event *out)
{
	struct coop_net_event mine;

	if (!out)
		out = &mine;
	if (event_wait(m, code, handle, out, WAIT_MS * patience))
		return out->status;
	fprintf(stderr, "no event %d for handle %d in time%s; kept:", (int)code, (int)handle,
		machine_failed(m) ? ", the machine has failed" : "");
	for (size_t i = 0; i < m->n_kept && i < 20; i++)
		fprintf(stderr, " %u/%u(%d)", m->kept[i].code, m->kept[i].handle,
			m->kept[i].status);
	fprintf(stderr, "\n");
	CHECK(!"the event arrives");
	return -ETIME;
}

unsigned int events_drop(struct machine *m)
{
	struct coop_net_event ev;
	unsigned int n = (unsigned int)m->n_kept;

	m->n_kept = 0;
	while (event_take(m, &ev))
		n++;
	return n;
}

/* ---- one operation each ---- */

uint32_t send_text(struct machine *m, uint32_t peer, const void *text)
{
	struct coop_net_op *op = op_next(m);

	op->code = COOP_NET_SEND;
	op->flags = COOP_NET_IN_TEXT;
	op->peer = peer;
	op->length = COOP_NET_TEXT;
	op->u.send.tag = TEXT | m->self;
	memcpy(op->u.send.text, text, COOP_NET_TEXT);
	return post(m);
}

uint32_t send_bytes(struct machine *m, uint32_t peer, const struct memory *b, size_t at, size_t n)
{
	struct coop_net_op *op = op_next(m);

	op->code = COOP_NET_SEND;
	op->peer = peer;
	op->buffer = b->buffer;
	op->offset = at;
	op->length = n;
	op->u.send.tag = MESSAGE | m->self;
	return post(m);
}

uint32_t receive(struct machine *m, const struct memory *b, size_t at, size_t n, uint64_t min_size,
		 uint32_t messages)
{
	struct coop_net_op *op = op_next(m);

	op->code = COOP_NET_RECV;
	op->buffer = b->buffer;
	op->offset = at;
	op->length = n;
	op->u.recv.min_size = min_size;
	op->u.recv.max_messages = messages;
	return post(m);
}

uint32_t offer(struct machine *m, const struct memory *b, size_t at, size_t n, struct lending l)
{
	struct coop_net_op *op = op_next(m);

	op->code = COOP_NET_OFFER;
	op->buffer = b->buffer;
	op->offset = at;
	op->length = n;
	op->u.offer.token = l.token;
	op->u.offer.key = l.key;
	op->u.offer.reader = l.reader;
	op->u.offer.reader_peer = l.reader_peer;
	return post(m);
}

uint32_t fetch(struct machine *m, uint32_t peer, const struct memory *b, size_t at, struct asking q)
{
	struct coop_net_op *op = op_next(m);

	op->code = COOP_NET_FETCH;
	op->peer = peer;
	op->buffer = b->buffer;
	op->offset = at;
	op->length = q.size - q.index * PAGE;
	op->u.fetch.fid[0] = q.token;
	op->u.fetch.fid[1] = m->self;
	op->u.fetch.version = q.key;
	op->u.fetch.size = q.size;
	op->u.fetch.index = q.index;
	op->u.fetch.want = q.want;
	op->u.fetch.budget_us = REQUEST_US * patience;
	return post(m);
}

void cancel(struct machine *m, uint32_t handle)
{
	struct coop_net_op *op = op_next(m);

	m->used[op->handle] = false;
	op->code = COOP_NET_CANCEL;
	op->handle = handle;
	post(m);
}

/* ---- two machines ---- */

bool pair_open(struct pair *p)
{
	memset(p, 0, sizeof(*p));
	p->a.fd = p->b.fd = -1;
	if (!machine_open(&p->a, 0) || !machine_open(&p->b, 1))
		return false;
	p->at_a = peer_open(&p->a, &p->b, COOKIE_B);
	p->at_b = peer_open(&p->b, &p->a, COOKIE_A);
	return CHECK(p->at_a) && CHECK(p->at_b);
}

void pair_close(struct pair *p)
{
	machine_close(&p->a);
	machine_close(&p->b);
}

static bool text_goes(struct machine *from, struct machine *to, uint32_t peer, uint64_t cookie)
{
	static uint64_t seed;
	uint8_t text[COOP_NET_TEXT];
	struct coop_net_event ev;
	uint32_t handle;
	bool good;

	fill(text, sizeof(text), ++seed);
	handle = send_text(from, peer, text);
	if (!CHECK(!await(to, COOP_NET_TEXT_IN, ANY, &ev)))
		return false;
	good = CHECK(!memcmp(ev.text, text, sizeof(text)));
	good &= CHECK(ev.cookie == cookie);
	good &= CHECK(ev.tag == (TEXT | from->self));
	good &= CHECK(ev.length == COOP_NET_TEXT);
	good &= CHECK(!await(from, COOP_NET_SENT, handle, &ev));
	return good & CHECK(ev.flags & COOP_NET_FINAL);
}

bool pair_works(struct pair *p)
{
	return text_goes(&p->a, &p->b, p->at_a, COOKIE_A) &&
	       text_goes(&p->b, &p->a, p->at_b, COOKIE_B);
}
