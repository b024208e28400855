/* SPDX-License-Identifier: MIT */
/*
 * charged.c - the memory that the module has for a machine counts for the memory cgroup of its
 * process: what SETUP allocates, and what a worker of the module allocates for its operations. If
 * a limit is in the way of a reader, nobody is killed for it. Queue pairs and the like count for
 * its rdma cgroup.
 *
 * GROUP in the environment is the directory of a cgroup of version 2, with the controller and no
 * other member, below the one of this process.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "netdev.h"

#define MIB (1ull << 20)

static int file_of_group(const char *name, int flags)
{
	const char *group = getenv("GROUP");
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", group ? group : "/no/group", name);
	return open(path, flags | O_CLOEXEC);
}

/* Bytes that count for the group. */
static uint64_t charged(void)
{
	const int fd = file_of_group("memory.current", O_RDONLY);
	char text[32] = "";

	CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	return strtoull(text, NULL, 10);
}

static bool write_group(const char *name, const char *text)
{
	const int fd = file_of_group(name, O_WRONLY);
	const bool good = CHECK(fd >= 0 && write(fd, text, strlen(text)) > 0);

	close(fd);
	return good;
}

static bool enter_group(void)
{
	return write_group("cgroup.procs", "0");
}

static bool leave_group(void)
{
	return write_group("../cgroup.procs", "0");
}

/* How often that happened in the group. */
static unsigned long events(const char *what)
{
	const int fd = file_of_group("memory.events", O_RDONLY);
	char text[512] = "\n", line[32];
	const char *at;

	CHECK(fd >= 0 && read(fd, text + 1, sizeof(text) - 2) > 0);
	close(fd);
	snprintf(line, sizeof(line), "\n%s ", what);
	at = strstr(text, line);
	return CHECK(at) ? strtoul(at + strlen(line), NULL, 10) : 0;
}

/* What a machine with so many queue pairs costs, at least. */
static uint64_t cost_of(uint32_t queue_pairs)
{
	struct coop_net_setup s = setup_for(device[0]);
	const uint64_t before = charged();
	struct machine m;
	uint64_t after;

	s.fetches = s.serves = queue_pairs;
	if (!CHECK(machine_setup(&m, &s)))
		return 0;
	after = charged();
	machine_close(&m);
	return after > before ? after - before : 0;
}

static void setup_is_charged(void)
{
	/* The large one first: what the kernel gives back late may hide a part of the second. */
	const uint64_t many = cost_of(256), few = cost_of(1);

	fprintf(stderr, "a machine with 1 queue pair to fetch with: %llu KiB, with 256: %llu KiB\n",
		(unsigned long long)few >> 10, (unsigned long long)many >> 10);
	/* Only the module's objects on the device are more. */
	CHECK(many > few + 2 * MIB);
}

static bool all_taken(void *about)
{
	const struct machine *m = about;

	return __atomic_load_n(&m->rings->op_head, __ATOMIC_ACQUIRE) == m->rings->op_tail;
}

#define FETCHES 64
#define LONG_US 1000000000 /* longer than any test */

/* Stores a fetch of the first pages without telling the module. Its handle. */
static uint32_t store_fetch(struct machine *m, uint32_t peer, const struct memory *b)
{
	const uint32_t pages = m->setup.fetch_pages;
	struct coop_net_op *op = op_next(m);

	op->code = COOP_NET_FETCH;
	op->peer = peer;
	op->buffer = b->buffer;
	op->length = pages * PAGE;
	op->u.fetch.fid[1] = m->self;
	op->u.fetch.version = 1;
	op->u.fetch.size = pages * PAGE;
	op->u.fetch.want = ~0ull >> (64 - pages);
	op->u.fetch.budget_us = LONG_US;
	__atomic_store_n(&m->rings->op_tail, m->rings->op_tail + 1, __ATOMIC_RELEASE);
	return op->handle;
}

/*
 * Fetches to where nothing listens, into memory that is no whole pages: each has pages of the
 * module until it ends. A worker performs them, because only poll() tells the module.
 */
static void workers_are_charged(void)
{
	struct coop_net_setup s = setup_for(device[0]);
	struct machine m, other;
	struct memory b;
	struct pollfd at = {.events = POLLIN};
	uint64_t before, after;
	uint32_t peer;

	s.fetches = FETCHES;
	s.fetch_timeout_us = 60000000;
	s.silence_us = 600000000;
	NEED(machine_setup(&m, &s) && machine_map(&m) && machine_open(&other, 1));
	m.self = 0x77;
	other.setup.self.qpn ^= 0x10000;
	other.setup.self.data_qpn ^= 0x10000;
	peer = peer_open(&m, &other, COOKIE_B);
	NEED(peer && memory_make(&b, ODD, m.setup.fetch_pages * PAGE, 1) && memory_add(&m, &b));
	before = charged();
	for (int i = 0; i < FETCHES; i++)
		store_fetch(&m, peer, &b);
	at.fd = m.fd;
	CHECK(poll(&at, 1, 0) == 0);
	CHECK(until(all_taken, &m, "the operations are taken"));
	after = charged();
	fprintf(stderr, "%d fetches of %u pages: %lld KiB\n", FETCHES, m.setup.fetch_pages,
		(long long)(after - before) >> 10);
	CHECK(after > before + FETCHES * m.setup.fetch_pages * PAGE / 2);
	CHECK(m.rings->event_tail == m.rings->event_head); /* all are under way */
	machine_close(&m);
	machine_close(&other);
	memory_free(&b);
}

/* Another process of the group, which the OOM killer would choose. */
static pid_t bystander(void)
{
	const pid_t child = fork();

	if (!child) {
		if (!enter_group())
			_exit(1);
		for (;;)
			pause();
	}
	return child;
}

/* Reads n times, all at a time, what needs copies. Whether all of it arrived. */
static bool all_read(struct pair *p, const struct memory *to, unsigned int n)
{
	uint32_t handle[FETCHES];
	bool good = true;

	for (unsigned int i = 0; i < n; i++)
		handle[i] = store_fetch(&p->b, p->at_b, to);
	for (unsigned int i = 0; i < n; i++) /* the first wait performs them */
		good &= !await(&p->b, COOP_NET_FETCHED, handle[i], NULL);
	return good;
}

static bool readers_open(struct pair *p)
{
	struct coop_net_setup s = setup_for(device[0]), t = setup_for(device[1]);

	s.serves = t.fetches = FETCHES;
	/* What a machine needs counts for the group that its process is in at SETUP. */
	if (!enter_group() || !CHECK(machine_setup(&p->a, &s)) || !leave_group() ||
	    !CHECK(machine_setup(&p->b, &t)) || !CHECK(machine_map(&p->a)) ||
	    !CHECK(machine_map(&p->b)))
		return false;
	p->a.self = 0x1111;
	p->b.self = 0x2222;
	p->at_a = peer_open(&p->a, &p->b, COOKIE_B);
	p->at_b = peer_open(&p->b, &p->a, COOKIE_A);
	return CHECK(p->at_a && p->at_b) && pair_works(p);
}

/* Readers ask for more copies than the group may have. */
static void readers_at_limit(void *unused)
{
	struct pair p = {.a.fd = -1, .b.fd = -1};
	struct memory from, to;
	char limit[32];
	size_t bytes;
	pid_t other;

	NEED(readers_open(&p));
	bytes = p.b.setup.fetch_pages * PAGE;
	NEED(memory_make(&from, ODD, bytes, 1) && memory_make(&to, ALIGNED, bytes, 2));
	NEED(memory_add(&p.a, &from) && memory_add(&p.b, &to));
	offer(&p.a, &from, 0, bytes, (struct lending){0, 1, 0, 0});
	other = bystander();
	CHECK(all_read(&p, &to, 1));
	snprintf(limit, sizeof(limit), "%llu", (unsigned long long)charged() + (64 << 10));
	CHECK(write_group("memory.max", limit));
	CHECK(!all_read(&p, &to, FETCHES));
	CHECK(events("max") > 0 && events("oom_kill") == 0);
	CHECK(write_group("memory.max", "max"));
	CHECK(all_read(&p, &to, 1));
	copy_wanted(&from, 0, &to, 0, bytes);
	CHECK(memory_right(&to) && memory_right(&from));
	CHECK(other > 0 && !kill(other, SIGKILL) && waitpid(other, NULL, 0) == other);
	pair_close(&p);
}

static void inside(void *unused)
{
	if (!enter_group())
		return;
	setup_is_charged();
	workers_are_charged();
}

/* The group's share of the first device: "rxe0 hca_handle=N hca_object=N"; 0: not mentioned. */
static unsigned long in_use(const char *what)
{
	const int fd = file_of_group("rdma.current", O_RDONLY);
	char text[1024] = "", name[64];
	const char *at;

	CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) >= 0);
	close(fd);
	snprintf(name, sizeof(name), "%s ", device[0]);
	at = strstr(text, name);
	at = at ? strstr(at, what) : NULL;
	return at ? strtoul(at + strlen(what) + 1, NULL, 10) : 0;
}

static bool write_rdma_max(const char *most)
{
	char text[96];

	snprintf(text, sizeof(text), "%s hca_object=%s", device[0], most);
	return write_group("rdma.max", text);
}

static bool limit_objects(unsigned int most)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", most);
	return write_rdma_max(text);
}

#define FETCHES_OF 10
#define OBJECTS    (3 + 2 + FETCHES_OF + 1) /* domain, completion queues; queue pairs */

static void setup_within_rdma_group(void *unused)
{
	struct coop_net_setup s = setup_for(device[0]);
	struct machine m, other;

	s.fetches = FETCHES_OF;
	s.serves = 4;
	NEED(enter_group() && limit_objects(OBJECTS - 1));
	FAILS(machine_setup(&m, &s) ? 0 : -1, EAGAIN);
	CHECK(strstr((const char *)m.setup.why, "rdma.max"));
	machine_close(&m);
	CHECK(in_use("hca_object") == 0 && in_use("hca_handle") == 0);
	NEED(limit_objects(OBJECTS) && machine_setup(&m, &s));
	CHECK(in_use("hca_object") == OBJECTS && in_use("hca_handle") == 1);
	FAILS(machine_setup(&other, &s) ? 0 : -1, EAGAIN);
	machine_close(&other);
	/* What it costs stays with the group in which it began. */
	NEED(leave_group());
	CHECK(machine_setup(&other, &s));
	machine_close(&other);
	CHECK(in_use("hca_object") == OBJECTS);
	machine_close(&m);
	CHECK(in_use("hca_object") == 0 && in_use("hca_handle") == 0);
	/* The kernel frees a group that ends with a limit, but not its record of the device. */
	CHECK(write_rdma_max("max"));
}

void rdma_charged_area(void)
{
	CHECK(!in_child(setup_within_rdma_group, NULL));
}

void charged_area(void)
{
	CHECK(!in_child(inside, NULL));
	CHECK(!in_child(readers_at_limit, NULL));
}
