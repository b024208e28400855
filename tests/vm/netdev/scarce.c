/* SPDX-License-Identifier: MIT */
/*
 * scarce.c - every allocation of every call fails once (/proc/PID/fail-nth; the caller chooses
 * slab objects or pages in debugfs). The call says so, or does without; the same machine then
 * works, and what has failed can be repeated.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "netdev.h"

#define MOST 3000 /* allocations of one call */

static int fail_nth = -1;

static void arm(unsigned int n)
{
	char text[16];
	const int len = snprintf(text, sizeof(text), "%u", n);

	if (pwrite(fail_nth, text, (size_t)len, 0) != len)
		abort();
}

/* Whether an allocation has failed. */
static bool disarm(void)
{
	char text[16] = "";

	if (pread(fail_nth, text, sizeof(text) - 1, 0) <= 0 || pwrite(fail_nth, "0", 1, 0) != 1)
		abort();
	return !atoi(text);
}

static bool may_be_told(int err)
{
	return err == 0 || err == ENOMEM || err == ENOBUFS;
}

/* Opens and maps a machine, failing its Nth allocation. */
static bool opening(unsigned int n)
{
	const struct coop_net_setup setup = setup_for(device[0]);
	struct coop_net_setup s = setup;
	void *map = MAP_FAILED;
	int fd, err = 0;
	bool failed;

	arm(n);
	fd = open(COOP_NET_DEVICE, O_RDWR | O_CLOEXEC);
	if (fd < 0 || ioctl(fd, COOP_NET_SETUP, &s)) {
		err = errno;
	} else {
		map = mmap(NULL, s.map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		err = map == MAP_FAILED ? errno : 0;
	}
	failed = disarm();
	/* Soft-RoCE and the ib core have errors of their own for a lack of memory. */
	if (!may_be_told(err) && !CHECK(failed && (err == EINVAL || err == EIO || err == ENFILE)))
		fprintf(stderr, "  opening, allocation %u: %s\n", n, strerror(err));
	if (fd >= 0 && err && map == MAP_FAILED) { /* the file is as before */
		s = setup;
		if (ioctl(fd, COOP_NET_SETUP, &s) && errno != EBADR)
			CHECK(!"SETUP again");
	}
	if (map != MAP_FAILED)
		munmap(map, s.map_bytes);
	if (fd >= 0)
		close(fd);
	return failed;
}

static struct pair p;
static struct memory a, b;

static bool adding(unsigned int n)
{
	struct coop_net_buffer add = {.segments = (uintptr_t)a.segment, .n = a.n};
	const uint64_t before = pinned();
	int err;
	bool failed;

	arm(n);
	err = ioctl(p.a.fd, COOP_NET_BUFFER_ADD, &add) ? errno : 0;
	failed = disarm();
	if (!CHECK(may_be_told(err)))
		fprintf(stderr, "  BUFFER_ADD, allocation %u: %s\n", n, strerror(err));
	if (!err)
		CHECK(!ioctl(p.a.fd, COOP_NET_BUFFER_DEL, &add.buffer));
	CHECK(pinned() == before);
	return failed;
}

static bool peering(unsigned int n)
{
	struct coop_net_peer o = {.cookie = 5, .sender = 9, .addr = p.b.setup.self};
	int err;
	bool failed;

	o.addr.qpn ^= 0x800;
	arm(n);
	err = ioctl(p.a.fd, COOP_NET_PEER_OPEN, &o) ? errno : 0;
	failed = disarm();
	if (!CHECK(may_be_told(err)))
		fprintf(stderr, "  PEER_OPEN, allocation %u: %s\n", n, strerror(err));
	if (!err)
		CHECK(!ioctl(p.a.fd, COOP_NET_PEER_CLOSE, &o.peer));
	return failed;
}

/* Puts operations into the ring, then performs them with an allocation that fails. */
static bool performing(unsigned int n)
{
	static const uint8_t text[COOP_NET_TEXT] = "scarce";
	struct coop_net_event ev;
	uint32_t handle[3], in, lent;
	bool failed;
	int err;

	in = receive(&p.b, &b, 0, 40000, 40000, 1);
	lent = offer(&p.b, &b, 50000, 8192, (struct lending){6, 7, 0, 0});
	arm(n);
	handle[0] = send_text(&p.a, p.at_a, text);
	handle[1] = send_bytes(&p.a, p.at_a, &a, 0, 40000);
	handle[2] = fetch(&p.a, p.at_a, &a, 50000, (struct asking){6, 7, 8192, 0, 3});
	err = -enter(&p.a, 0, 0);
	failed = disarm();
	if (!CHECK(may_be_told(err)))
		fprintf(stderr, "  ENTER, allocation %u: %s\n", n, strerror(err));
	for (int i = 0; i < 3; i++) {
		err = -await(&p.a, ANY, handle[i], &ev);
		/* A fetch that lacks memory may find no page; a message is sent again. */
		if (!CHECK(may_be_told(err) || (i == 2 && failed)))
			fprintf(stderr, "  operation %d, allocation %u: %s\n", i, n, strerror(err));
	}
	cancel(&p.b, in);
	cancel(&p.b, lent);
	await(&p.b, COOP_NET_RECV_OVER, in, NULL);
	await(&p.b, COOP_NET_OFFER_OVER, lent, NULL);
	events_drop(&p.b);
	return failed;
}

static void every(const char *what, bool (*step)(unsigned int))
{
	unsigned int n = 1, failures = 0;

	/* The first ones one by one, then ever sparser. */
	for (; n < MOST && !faults && step(n); n += 1 + n / 20)
		failures++;
	fprintf(stderr, "%s: %u failures, up to the %uth\n", what, failures, n);
	CHECK(n < MOST);
}

void scarce_area(void)
{
	fail_nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	NEED(fail_nth >= 0);
	every("opening", opening);
	NEED(memory_make(&a, PARTS, 100000, 1) && memory_make(&b, ODD, 100000, 2));
	NEED(pair_open(&p) && memory_add(&p.a, &a) && memory_add(&p.b, &b) && pair_works(&p));
	every("BUFFER_ADD", adding);
	every("PEER_OPEN", peering);
	every("ENTER", performing);
	CHECK(pair_works(&p));
	pair_close(&p);
	CHECK(pinned() == 0);
}
