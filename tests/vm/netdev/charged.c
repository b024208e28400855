/* SPDX-License-Identifier: MIT */
/*
 * charged.c - the memory that the module has for a machine counts for the memory cgroup of its
 * process: what SETUP allocates, and what a worker of the module allocates for its operations.
 *
 * GROUP in the environment is the directory of a cgroup of version 2, with the memory controller
 * and no other member.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
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

static bool enter_group(void)
{
	const int fd = file_of_group("cgroup.procs", O_WRONLY);
	const bool good = CHECK(fd >= 0 && write(fd, "0", 1) == 1);

	close(fd);
	return good;
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

/* Stores operations without telling the module. */
static void store_fetches(struct machine *m, uint32_t peer, const struct memory *b)
{
	const uint32_t pages = m->setup.fetch_pages;

	for (int i = 0; i < FETCHES; i++) {
		struct coop_net_op *op = op_next(m);

		op->code = COOP_NET_FETCH;
		op->peer = peer;
		op->buffer = b->buffer;
		op->length = pages * PAGE;
		op->u.fetch.fid[1] = m->self;
		op->u.fetch.version = 1;
		op->u.fetch.size = pages * PAGE;
		op->u.fetch.want = ~0ull >> (64 - pages);
		op->u.fetch.budget_us = 1000000000;
		__atomic_store_n(&m->rings->op_tail, m->rings->op_tail + 1, __ATOMIC_RELEASE);
	}
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
	store_fetches(&m, peer, &b);
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

static void inside(void *unused)
{
	if (!enter_group())
		return;
	setup_is_charged();
	workers_are_charged();
}

void charged_area(void)
{
	CHECK(!in_child(inside, NULL));
}
