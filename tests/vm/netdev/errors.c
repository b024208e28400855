/* SPDX-License-Identifier: MIT */
/*
 * errors.c - calls in a wrong state, with a wrong address, out of range, beyond a limit; operations
 * that are refused. After each of them the machine works, or says that it has failed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "netdev.h"

/* All calls, with an argument that is all zero. */
static const struct {
	const char *name;
	unsigned long number;
	size_t bytes;
} calls[] = {
	{"ENTER", COOP_NET_ENTER, sizeof(struct coop_net_enter)},
	{"BUFFER_ADD", COOP_NET_BUFFER_ADD, sizeof(struct coop_net_buffer)},
	{"BUFFER_DEL", COOP_NET_BUFFER_DEL, sizeof(uint32_t)},
	{"PEER_OPEN", COOP_NET_PEER_OPEN, sizeof(struct coop_net_peer)},
	{"PEER_ADMIT", COOP_NET_PEER_ADMIT, sizeof(struct coop_net_peer)},
	{"PEER_CLOSE", COOP_NET_PEER_CLOSE, sizeof(uint32_t)},
	{"PEER_INFO", COOP_NET_PEER_INFO, sizeof(struct coop_net_peer)},
	{"SELF", COOP_NET_SELF, sizeof(struct coop_net_addr)},
	{"COUNT", COOP_NET_COUNT, sizeof(struct coop_net_count)},
};
#define CALLS (sizeof(calls) / sizeof(calls[0]))

void all_calls_fail(int fd, int error)
{
	static uint8_t zero[1024];

	for (size_t i = 0; i < CALLS; i++) {
		memset(zero, 0, sizeof(zero));
		if (!FAILS(ioctl(fd, calls[i].number, zero), error))
			fprintf(stderr, "  %s\n", calls[i].name);
	}
}

static void unknown_calls(int fd)
{
	uint8_t bytes[1024] = {0};

	FAILS(ioctl(fd, _IO(COOP_NET_IOCTL, 99), bytes), ENOTTY);
	FAILS(ioctl(fd, _IO('x', 1), bytes), ENOTTY);
	FAILS(ioctl(fd, _IO(COOP_NET_IOCTL, 1), bytes), ENOTTY); /* ENTER of another size */
	FAILS(ioctl(fd, _IOWR(COOP_NET_IOCTL, 8, struct coop_net_addr), bytes), ENOTTY);
}

static bool maps(int fd, size_t bytes, int flags, off_t offset)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);

	if (map == MAP_FAILED)
		return false;
	munmap(map, bytes);
	errno = 0;
	return true;
}

void states_area(void)
{
	struct coop_net_setup setup = setup_for(device[0]);
	const int fd = open(COOP_NET_DEVICE, O_RDWR | O_CLOEXEC);
	struct machine m;

	NEED(fd >= 0);
	all_calls_fail(fd, EBADR);
	unknown_calls(fd);
	CHECK(!maps(fd, PAGE, MAP_SHARED, 0) && errno == EBADR);
	FAILS(ioctl(fd, COOP_NET_SETUP, nowhere), EFAULT);
	FAILS(ioctl(fd, COOP_NET_SETUP, NULL), EFAULT);
	NEED(!ioctl(fd, COOP_NET_SETUP, &setup));
	FAILS(ioctl(fd, COOP_NET_SETUP, &setup), EBADR);
	unknown_calls(fd);
	CHECK(!maps(fd, setup.map_bytes, MAP_PRIVATE, 0) && errno == EINVAL);
	CHECK(!maps(fd, setup.map_bytes, MAP_SHARED, (off_t)PAGE) && errno == EINVAL);
	CHECK(!maps(fd, setup.map_bytes + PAGE, MAP_SHARED, 0) && errno == EINVAL);
	CHECK(!close(fd));

	if (machine_open(&m, 0))
		for (size_t i = 0; i < CALLS; i++)
			if (!FAILS(ioctl(m.fd, calls[i].number, nowhere), EFAULT) ||
			    !FAILS(ioctl(m.fd, calls[i].number, NULL), EFAULT))
				fprintf(stderr, "  %s\n", calls[i].name);
	machine_close(&m);

	if (machine_open(&m, 0)) { /* a machine that has failed */
		__atomic_store_n(&m.rings->op_tail, m.rings->op_tail + m.setup.ops + 1,
				 __ATOMIC_RELEASE);
		enter(&m, 0, 0); /* finds out, and may say so at once */
		CHECK(machine_failed(&m) && m.rings->failure < 0);
		all_calls_fail(m.fd, EBADR);
		FAILS(ioctl(m.fd, COOP_NET_SETUP, &setup), EBADR);
		unknown_calls(m.fd);
	}
	machine_close(&m);
}

/* ---- SETUP ---- */

/* A setup that is refused, for a reason that it tells; the file can still be used. */
static void refused(int fd, struct coop_net_setup s, int error, const char *what)
{
	memset(s.why, 0, sizeof(s.why));
	if (!FAILS(ioctl(fd, COOP_NET_SETUP, &s), error) | !CHECK(s.why[0]) |
	    !CHECK(memchr(s.why, 0, sizeof(s.why))))
		fprintf(stderr, "  %s: %.128s\n", what, (const char *)s.why);
}

/* SET(ops, 63): a setup with this value */
#define REFUSED(field, value, error)                                  \
	do {                                                          \
		struct coop_net_setup changed = setup_for(device[0]); \
                                                                      \
		changed.field = (value);                              \
		refused(fd, changed, (error), #field " = " #value);   \
	} while (0)

static void setup_ranges(int fd)
{
	struct coop_net_setup s = setup_for(device[0]);

	REFUSED(abi, COOP_NET_ABI + 1, EPROTO);
	REFUSED(abi, 0, EPROTO);
	s.abi = 0x10000;
	CHECK(ioctl(fd, COOP_NET_SETUP, &s) == -1 && s.abi == COOP_NET_ABI);
	REFUSED(ops, 32, EINVAL);
	REFUSED(ops, 65, EINVAL);
	REFUSED(ops, 32768, EINVAL);
	REFUSED(ops, 0x80000000, EINVAL);
	REFUSED(events, 32, EINVAL);
	REFUSED(events, 100, EINVAL);
	REFUSED(events, 32768, EINVAL);
	REFUSED(handles, 65537, EINVAL);
	REFUSED(handles, ~0u, EINVAL);
	REFUSED(peers, 65537, EINVAL);
	REFUSED(fetches, 257, EINVAL);
	REFUSED(serves, 257, EINVAL);
	REFUSED(window, 63, EINVAL);
	REFUSED(window, 8192, EINVAL);
	REFUSED(window, 100, EINVAL);
	REFUSED(tries, 1, EINVAL);
	REFUSED(tries, 251, EINVAL);
	REFUSED(flags, 0x80000000, EINVAL);
	REFUSED(zero, 1, EINVAL);
	REFUSED(port, 77, ENODEV);
	REFUSED(gid_index, 5000, EADDRNOTAVAIL);
	REFUSED(device[0], '?', ENODEV);
	s = setup_for(device[0]);
	memset(s.device, 'x', sizeof(s.device)); /* does not end */
	refused(fd, s, EINVAL, "an endless name");
	s = setup_for(device[0]);
	memset(s.addr, 0x11, sizeof(s.addr));
	refused(fd, s, EADDRNOTAVAIL, "an address that is not here");
}

/* Structures of other versions, of other sizes. */
static void setup_sizes(int fd)
{
	struct coop_net_setup s = setup_for(device[0]);
	static uint8_t longer[3 * PAGE];

	s.size = 100;
	s.abi = COOP_NET_ABI + 1;
	memset(s.why, 'w', sizeof(s.why));
	FAILS(ioctl(fd, COOP_NET_SETUP, &s), EPROTO);
	CHECK(s.abi == COOP_NET_ABI && s.size == 100 && s.why[0] == 'w');
	FAILS(ioctl(fd, COOP_NET_SETUP, &s), EINVAL); /* of this version, but too short */
	s = setup_for(device[0]);
	s.size = PAGE;
	s.port = 77; /* refused, but not for its size */
	memcpy(longer, &s, sizeof(s));
	FAILS(ioctl(fd, COOP_NET_SETUP, longer), ENODEV);
	longer[PAGE - 1] = 1;
	FAILS(ioctl(fd, COOP_NET_SETUP, longer), E2BIG);
	s.size = PAGE + 8;
	memset(longer, 0, sizeof(longer));
	memcpy(longer, &s, sizeof(s));
	FAILS(ioctl(fd, COOP_NET_SETUP, longer), E2BIG);
	s.abi = COOP_NET_ABI + 1; /* a later program hears of the version first */
	memcpy(longer, &s, sizeof(s));
	FAILS(ioctl(fd, COOP_NET_SETUP, longer), EPROTO);
	memcpy(&s, longer, sizeof(s));
	CHECK(s.abi == COOP_NET_ABI);
}

void setup_area(void)
{
	const int fd = open(COOP_NET_DEVICE, O_RDWR | O_CLOEXEC);
	struct coop_net_setup s = setup_for(device[0]);

	NEED(fd >= 0);
	s.size = 8;
	FAILS(ioctl(fd, COOP_NET_SETUP, &s), EINVAL);
	s.size = 0;
	FAILS(ioctl(fd, COOP_NET_SETUP, &s), EINVAL);
	setup_sizes(fd);
	setup_ranges(fd);
	s = setup_for(device[0]);
	NEED(!ioctl(fd, COOP_NET_SETUP, &s));
	CHECK(s.abi == COOP_NET_ABI && s.ops == 1024 && s.events == 4096 && s.handles == 4096);
	CHECK(s.peers == 1024 && s.fetches == 16 && s.serves == 16);
	CHECK(s.self.qpn && s.self.data_qpn && s.self.qpn != s.self.data_qpn);
	CHECK(!(s.self.qkey >> 31) && !(s.self.data_qkey >> 31));
	CHECK(s.map_bytes % PAGE == 0 && s.ops_at >= sizeof(struct coop_net_rings));
	CHECK(s.ops_at + s.ops * sizeof(struct coop_net_op) <= s.map_bytes);
	CHECK(s.events_at + s.events * sizeof(struct coop_net_event) <= s.map_bytes);
	CHECK(s.map_bytes <= (1 << 20) + s.ops * 128 + s.events * 128);
	CHECK(!s.why[0]);
	CHECK(!close(fd));
}

/* ---- buffers ---- */

static int add(struct machine *m, const struct coop_net_segment *segment, uint32_t n, uint32_t *id)
{
	struct coop_net_buffer b = {.segments = (uintptr_t)segment, .n = n};
	const int result = ioctl(m->fd, COOP_NET_BUFFER_ADD, &b);

	*id = b.buffer;
	return result;
}

static int add_one(struct machine *m, uint64_t at, uint64_t length, uint32_t *id)
{
	const struct coop_net_segment s = {at, length};

	return add(m, &s, 1, id);
}

static int add_bad(struct machine *m, uint64_t at, uint64_t length)
{
	uint32_t id;
	const int result = add_one(m, at, length, &id);

	/* The first reason that the module finds. */
	if (result < 0 && (errno == EINVAL || errno == ENOMEM))
		errno = EFAULT;
	return result;
}

static void buffer_in_use(struct machine *m, struct memory *b)
{
	struct coop_net_event ev;
	const uint32_t in = receive(m, b, 0, 100, 10, 1);

	enter(m, 0, 0);
	FAILS(ioctl(m->fd, COOP_NET_BUFFER_DEL, &b->buffer), EBUSY);
	cancel(m, in);
	CHECK(await(m, COOP_NET_RECV_OVER, in, &ev) == -ECANCELED && ev.flags & COOP_NET_FINAL);
	CHECK(!ioctl(m->fd, COOP_NET_BUFFER_DEL, &b->buffer));
	FAILS(ioctl(m->fd, COOP_NET_BUFFER_DEL, &b->buffer), ENOENT);
}

static void bad_segments(struct machine *m, struct memory *b)
{
	struct coop_net_segment *many = calloc(4097, sizeof(*many));
	const uint64_t at = (uintptr_t)b->base;
	void *read_only = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint32_t id;

	NEED(many && read_only != MAP_FAILED);
	for (int i = 0; i < 4097; i++)
		many[i] = (struct coop_net_segment){at, 1};
	FAILS(add(m, many, 0, &id), EINVAL);
	FAILS(add(m, many, 4097, &id), EINVAL);
	FAILS(add(m, many, ~0u, &id), EINVAL);
	FAILS(add(m, (void *)nowhere, 1, &id), EFAULT);
	FAILS(add_bad(m, PAGE, 100), EFAULT);
	FAILS(add_bad(m, 0, 100), EFAULT);
	FAILS(add_bad(m, at, ~0ull), EFAULT);
	FAILS(add_bad(m, ~0ull - 10, 100), EFAULT);
	FAILS(add_bad(m, 0xffff888000000000ull, 100), EFAULT);
	FAILS(add_bad(m, at + b->span - 10, 1ull << 40), EFAULT);
	FAILS(add_bad(m, (uintptr_t)read_only, PAGE), EFAULT);
	many[7].at = PAGE; /* after seven good ones */
	FAILS(add(m, many, 100, &id), EFAULT);
	many[7].at = at;
	CHECK(!add(m, many, 4096, &id));
	CHECK(!ioctl(m->fd, COOP_NET_BUFFER_DEL, &id));
	munmap(read_only, PAGE);
	free(many);
}

void buffers_area(void)
{
	const uint64_t before = pinned();
	uint32_t none = 12345;
	struct memory b;
	struct machine m;
	uint64_t mapped;

	NEED(memory_make(&b, PARTS, 50000, 5));
	if (machine_open(&m, 0)) {
		mapped = pinned();
		FAILS(ioctl(m.fd, COOP_NET_BUFFER_DEL, &none), ENOENT);
		none = ~0u;
		FAILS(ioctl(m.fd, COOP_NET_BUFFER_DEL, &none), ENOENT);
		bad_segments(&m, &b);
		CHECK(pinned() == mapped);
		for (int i = 0; i < 100; i++)
			if (!memory_add(&m, &b) ||
			    !CHECK(!ioctl(m.fd, COOP_NET_BUFFER_DEL, &b.buffer)))
				break;
		CHECK(pinned() == mapped);
		if (memory_add(&m, &b)) {
			CHECK(pinned() >= mapped + b.bytes);
			buffer_in_use(&m, &b);
		}
		CHECK(pinned() == mapped);
		memory_add(&m, &b);
		CHECK(memory_right(&b));
	}
	machine_close(&m);
	CHECK(pinned() == before);
	memory_free(&b);
}

/* ---- peers ---- */

void peers_area(void)
{
	struct coop_net_setup setup = small_setup(0);
	struct coop_net_peer p, info = {.peer = 0};
	struct coop_net_addr self = {.qpn = 0};
	static const uint8_t text[COOP_NET_TEXT];
	struct machine a, b;
	uint32_t stale, id;

	NEED(machine_setup(&a, &setup) && machine_map(&a));
	NEED(machine_open(&b, 1));
	a.self = 0x4711;
	CHECK(!ioctl(a.fd, COOP_NET_SELF, &self));
	CHECK(!memcmp(&self, &a.setup.self, sizeof(self)));
	p = (struct coop_net_peer){.cookie = 1, .sender = b.self, .addr = a.setup.self};
	FAILS(ioctl(a.fd, COOP_NET_PEER_OPEN, &p), EINVAL); /* itself */
	p.addr = b.setup.self;
	p.cookie = 0;
	FAILS(ioctl(a.fd, COOP_NET_PEER_OPEN, &p), EINVAL);
	p.cookie = 7;
	p.addr.qpn = 0;
	FAILS(ioctl(a.fd, COOP_NET_PEER_OPEN, &p), EINVAL);
	p.addr.qpn = 1 << 24;
	FAILS(ioctl(a.fd, COOP_NET_PEER_OPEN, &p), EINVAL);
	p.addr = b.setup.self;
	CHECK(!ioctl(a.fd, COOP_NET_PEER_OPEN, &p) && p.peer);
	id = p.peer;
	p.cookie = 8;
	CHECK(!ioctl(a.fd, COOP_NET_PEER_OPEN, &p) && p.peer == id);
	info.peer = id;
	CHECK(!ioctl(a.fd, COOP_NET_PEER_INFO, &info));
	CHECK(info.addr.qpn == b.setup.self.qpn && info.addr.data_qpn == b.setup.self.data_qpn);
	CHECK(!memcmp(info.addr.gid, b.setup.self.gid, 16));
	for (uint32_t i = 1; i < 4; i++) {
		p.addr.qpn = b.setup.self.qpn + 0x1000 * i;
		CHECK(!ioctl(a.fd, COOP_NET_PEER_OPEN, &p));
	}
	p.addr.qpn += 0x1000;
	FAILS(ioctl(a.fd, COOP_NET_PEER_OPEN, &p), ENOSPC);
	CHECK(!ioctl(a.fd, COOP_NET_PEER_CLOSE, &id));
	stale = id;
	FAILS(ioctl(a.fd, COOP_NET_PEER_CLOSE, &stale), ENOENT);
	info.peer = stale;
	FAILS(ioctl(a.fd, COOP_NET_PEER_INFO, &info), ENOENT);
	p.peer = stale;
	FAILS(ioctl(a.fd, COOP_NET_PEER_ADMIT, &p), ENOENT);
	p.peer = ~0u;
	FAILS(ioctl(a.fd, COOP_NET_PEER_ADMIT, &p), ENOENT);
	CHECK(await(&a, COOP_NET_SENT, send_text(&a, stale, text), NULL) == -ENOENT);
	CHECK(!ioctl(a.fd, COOP_NET_PEER_OPEN, &p) && p.peer != stale);
	machine_close(&a);
	machine_close(&b);
}

/* b does not know a until it has sent something. */
void strangers_area(void)
{
	struct coop_net_peer p = {.cookie = COOKIE_A};
	struct coop_net_event ev;
	uint8_t text[COOP_NET_TEXT];
	struct machine a, b;
	uint32_t at_a, out;

	fill(text, sizeof(text), 3);
	NEED(machine_open(&a, 0) && machine_open(&b, 1));
	at_a = peer_open(&a, &b, COOKIE_B);
	out = send_text(&a, at_a, text);
	CHECK(!await(&b, COOP_NET_STRANGER, ANY, &ev));
	CHECK(ev.peer && (ev.tag & (MESSAGE - 1)) == a.self);
	CHECK(!event_wait(&b, COOP_NET_TEXT_IN, ANY, &(struct coop_net_event){0}, 0));
	p.peer = ev.peer;
	p.sender = a.self;
	CHECK(!ioctl(b.fd, COOP_NET_PEER_ADMIT, &p));
	CHECK(!await(&b, COOP_NET_TEXT_IN, ANY, &ev));
	CHECK(ev.cookie == COOKIE_A && ev.peer == p.peer && !memcmp(ev.text, text, sizeof(text)));
	CHECK(!await(&a, COOP_NET_SENT, out, NULL));
	machine_close(&a);
	machine_close(&b);
}

/* As strangers_area, but b's process has something else to do for longer than refusals last. */
void late_admission_area(void)
{
	struct coop_net_peer p = {.cookie = COOKIE_A};
	struct coop_net_event ev;
	uint8_t text[COOP_NET_TEXT];
	struct machine a, b;
	uint32_t at_a, out;

	fill(text, sizeof(text), 4);
	NEED(machine_open(&a, 0) && machine_open(&b, 1));
	at_a = peer_open(&a, &b, COOKIE_B);
	out = send_text(&a, at_a, text);
	CHECK(!event_wait(&a, COOP_NET_SENT, ANY, &ev, 1000));
	CHECK(!await(&b, COOP_NET_STRANGER, ANY, &ev));
	p.peer = ev.peer;
	p.sender = a.self;
	CHECK(!event_wait(&a, COOP_NET_SENT, ANY, &ev, 3000));
	CHECK(!ioctl(b.fd, COOP_NET_PEER_ADMIT, &p));
	CHECK(!await(&b, COOP_NET_TEXT_IN, ANY, &ev));
	CHECK(!memcmp(ev.text, text, sizeof(text)));
	CHECK(!await(&a, COOP_NET_SENT, out, NULL));
	machine_close(&a);
	machine_close(&b);
}

/* ---- operations ---- */

struct refusal {
	const char *what;
	int status;
	struct coop_net_op op; /* buffer 1 and peer 1 stand for good ones */
};

#define SEND_OP .code = COOP_NET_SEND, .peer = 1, .buffer = 1, .length = 10, .u.send.tag = MESSAGE
#define RECV_OP                                                                   \
	.code = COOP_NET_RECV, .buffer = 1, .length = 100, .u.recv.min_size = 10, \
	.u.recv.max_messages = 1
#define OFFER_OP \
	.code = COOP_NET_OFFER, .buffer = 1, .length = 100, .u.offer.token = 1, .u.offer.key = 1
#define SHIFT(n) ((uint64_t)(n) << COOP_NET_SHIFT_AT)
#define FETCH_OP                                                                                 \
	.code = COOP_NET_FETCH, .peer = 1, .buffer = 1, .length = PAGE, .u.fetch.size = 1 << 20, \
	.u.fetch.version = 1, .u.fetch.want = 1

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
static const struct refusal refusals[] = {
	{"SEND, flags", -EINVAL, {SEND_OP, .flags = 0x80}},
	{"SEND, peer", -ENOENT, {SEND_OP, .peer = 0x123456}},
	{"SEND, buffer", -ENOENT, {SEND_OP, .buffer = 0x123456}},
	{"SEND, behind the end", -EFAULT, {SEND_OP, .offset = 50000 - 9}},
	{"SEND, far behind the end", -EFAULT, {SEND_OP, .offset = ~0ull - 4}},
	{"SEND, too long", -EMSGSIZE, {SEND_OP, .length = 1ull << 31}},
	{"SEND, long text", -EINVAL, {SEND_OP, .flags = COOP_NET_IN_TEXT, .length = 65}},
	{"SEND, long probe", -EMSGSIZE, {SEND_OP, .flags = COOP_NET_PROBE, .length = 1 << 16}},
	{"SEND, here and to a peer", -EINVAL, {SEND_OP, .flags = COOP_NET_HERE}},
	{"SEND, a probe here",
	 -EINVAL,
	 {SEND_OP, .peer = 0, .flags = COOP_NET_HERE | COOP_NET_PROBE}},
	{"RECV, buffer", -ENOENT, {RECV_OP, .buffer = 0x123456}},
	{"RECV, behind the end", -EFAULT, {RECV_OP, .offset = 50000 - 99}},
	{"RECV, overflow", -EFAULT, {RECV_OP, .offset = 100, .length = ~0ull}},
	{"RECV, no message", -EINVAL, {RECV_OP, .u.recv.max_messages = 0}},
	{"SEND, zero", -EINVAL, {SEND_OP, .zero = 1}},
	{"RECV, flags", -EINVAL, {RECV_OP, .flags = 1}},
	{"OFFER, nothing", -EINVAL, {OFFER_OP, .length = 0}},
	{"FETCH, flags", -EINVAL, {FETCH_OP, .flags = 2}},
	{"FETCH, no size", -EINVAL, {FETCH_OP, .u.fetch.size = 0}},
	{"OFFER, buffer", -ENOENT, {OFFER_OP, .buffer = 0x123456}},
	{"OFFER, behind the end", -EFAULT, {OFFER_OP, .offset = 50001}},
	{"OFFER, overflow", -EFAULT, {OFFER_OP, .offset = 1, .length = ~0ull}},
	{"OFFER, reader's peer",
	 -ENOENT,
	 {OFFER_OP, .u.offer.reader = 5, .u.offer.reader_peer = 0x123456}},
	{"FETCH, peer", -EHOSTUNREACH, {FETCH_OP, .peer = 0x123456}},
	{"FETCH, buffer", -ENOENT, {FETCH_OP, .buffer = 0x123456}},
	{"FETCH, nothing", -EINVAL, {FETCH_OP, .u.fetch.want = 0}},
	{"FETCH, over a run", -EINVAL, {FETCH_OP, .u.fetch.index = 63, .u.fetch.want = 2}},
	{"FETCH, behind the end", -EINVAL, {FETCH_OP, .u.fetch.index = 256}},
	{"FETCH, huge index", -EINVAL, {FETCH_OP, .u.fetch.index = ~0ull, .u.fetch.size = ~0ull}},
	{"FETCH, no room", -EFAULT, {FETCH_OP, .offset = 50000 - PAGE + 1}},
	{"FETCH, no room for the last",
	 -EFAULT,
	 {FETCH_OP, .length = 13 * PAGE, .u.fetch.want = 1ull << 12}},
	{"FETCH, no byte", -EINVAL, {FETCH_OP, .length = 0}},
	{"FETCH, a page behind its length", -EINVAL, {FETCH_OP, .u.fetch.want = 2}},
	{"FETCH, longer than what is there", -EINVAL, {FETCH_OP, .u.fetch.size = PAGE - 1}},
	{"FETCH, longer than the rest",
	 -EINVAL,
	 {FETCH_OP, .u.fetch.size = 2 * PAGE, .u.fetch.index = 1, .u.fetch.fid[1] = SHIFT(1)}},
	{"FETCH, shifted behind the end",
	 -EINVAL,
	 {FETCH_OP, .length = 1, .u.fetch.size = 9, .u.fetch.fid[1] = SHIFT(9)}},
	{"OFFER, flags", -EINVAL, {OFFER_OP, .flags = COOP_NET_URGENT}},
	{"OFFER, ranges and flags", -EINVAL, {OFFER_OP, .flags = COOP_NET_RANGES | 1}},
	{"OFFER, reader with a shift", -EINVAL, {OFFER_OP, .u.offer.reader = SHIFT(1) | 5}},
	{"FETCH, overflow", -EFAULT, {FETCH_OP, .offset = ~0ull - 100}},
};
#pragma GCC diagnostic pop

static void refused_operation(struct pair *p, const struct memory *b, const struct refusal *r)
{
	struct coop_net_op *op = op_next(&p->a);
	const uint32_t handle = op->handle;
	struct coop_net_event ev;
	int status;

	*op = r->op;
	op->handle = handle;
	op->peer = r->op.peer == 1 ? p->at_a : r->op.peer;
	op->buffer = r->op.buffer == 1 ? b->buffer : r->op.buffer;
	if (op->code == COOP_NET_SEND)
		op->u.send.tag |= p->a.self;
	post(&p->a);
	status = await(&p->a, ANY, handle, &ev);
	if (!CHECK(status == r->status) | !CHECK(ev.flags & COOP_NET_FINAL) |
	    !CHECK(memory_right(b)))
		fprintf(stderr, "  %s: %s\n", r->what, strerror(-status));
}

/* What no event can tell ends the machine, and only this one. */
static void rules_broken(struct memory *b, int how)
{
	struct coop_net_op *op;
	struct pair p;

	if (pair_open(&p) && memory_add(&p.a, b)) {
		const uint32_t in = receive(&p.a, b, 0, 100, 10, 1);
		const uint32_t bad[] = {in, p.a.setup.handles, ~0u, p.a.setup.handles, 500, 501};

		op = op_next(&p.a);
		op->code = (uint8_t[]){COOP_NET_RECV, COOP_NET_SEND, COOP_NET_OFFER,
				       COOP_NET_CANCEL}[how];
		op->handle = bad[how];
		op->buffer = b->buffer;
		op->length = 10;
		op->u.recv.max_messages = 1;
		post(&p.a);
		enter(&p.a, 0, 0);
		if (!CHECK(machine_failed(&p.a)) | !CHECK(p.a.rings->failure < 0))
			fprintf(stderr, "  case %d\n", how);
		FAILS(ioctl(p.a.fd, COOP_NET_ENTER, &(struct coop_net_enter){0}), EBADR);
	}
	pair_close(&p);
}

void operations_area(void)
{
	struct coop_net_op *op;
	struct memory b;
	struct pair p;

	NEED(memory_make(&b, PARTS, 50000, 9));
	NEED(pair_open(&p) && memory_add(&p.a, &b));
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
		refused_operation(&p, &b, &refusals[i]);
	cancel(&p.a, 77); /* of what is not there */
	CHECK(pair_works(&p));
	op = op_next(&p.a); /* a probe arrives, and its receiver sees nothing */
	op->code = COOP_NET_SEND;
	op->flags = COOP_NET_PROBE;
	op->peer = p.at_a;
	op->length = 200;
	CHECK(!await(&p.a, COOP_NET_SENT, post(&p.a), NULL));
	CHECK(pair_works(&p) && !p.b.n_kept);
	/* A message for which there is no buffer, and one that no buffer here can hold. */
	CHECK(await(&p.a, COOP_NET_SENT, send_bytes(&p.a, p.at_a, &b, 0, 100), NULL) == -ENOBUFS);
	CHECK(pair_works(&p));
	pair_close(&p);
	for (int i = 0; i < 6; i++)
		rules_broken(&b, i);
	CHECK(memory_right(&b));
	memory_free(&b);
}
