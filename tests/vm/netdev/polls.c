/* SPDX-License-Identifier: MIT */
/*
 * polls.c - polls of the device by io_uring and by aio, which go on while the process does other
 * things: they end with an event, and with the machine, and a process that exits leaves none.
 */
#define _GNU_SOURCE
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/time_types.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "netdev.h"

#define ENDS (POLLERR | POLLHUP)

/* One way to poll. The kernel's queues end with the process, or with end(). */
struct way {
	const char *name;
	bool (*begin)(void);
	/* Asks once whether the file has input; a later found() tells. */
	bool (*ask)(int fd);
	/* What an earlier ask() has found; 0: nothing within ms. */
	int (*found)(unsigned int ms);
	void (*end)(void);
};

/* ---- io_uring ---- */

static struct {
	struct io_uring_params p;
	int fd;
	uint8_t *rings;
	size_t bytes;
	struct io_uring_sqe *sqes;
} uring;

static uint32_t *word(uint32_t at)
{
	return (uint32_t *)(uring.rings + at);
}

static bool uring_begin(void)
{
	size_t sent, done;

	memset(&uring.p, 0, sizeof(uring.p));
	uring.fd = (int)syscall(__NR_io_uring_setup, 4, &uring.p);
	if (uring.fd < 0 || !(uring.p.features & IORING_FEAT_SINGLE_MMAP) ||
	    !(uring.p.features & IORING_FEAT_EXT_ARG))
		return false;
	sent = uring.p.sq_off.array + uring.p.sq_entries * sizeof(uint32_t);
	done = uring.p.cq_off.cqes + uring.p.cq_entries * sizeof(struct io_uring_cqe);
	uring.bytes = sent > done ? sent : done;
	uring.rings = mmap(NULL, uring.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, uring.fd,
			   IORING_OFF_SQ_RING);
	uring.sqes = mmap(NULL, uring.p.sq_entries * sizeof(*uring.sqes), PROT_READ | PROT_WRITE,
			  MAP_SHARED, uring.fd, IORING_OFF_SQES);
	return uring.rings != MAP_FAILED && uring.sqes != MAP_FAILED;
}

static bool uring_ask(int fd)
{
	uint32_t *tail = word(uring.p.sq_off.tail);
	const uint32_t i = *tail & *word(uring.p.sq_off.ring_mask);

	memset(&uring.sqes[i], 0, sizeof(uring.sqes[i]));
	uring.sqes[i].opcode = IORING_OP_POLL_ADD;
	uring.sqes[i].fd = fd;
	uring.sqes[i].poll32_events = POLLIN;
	word(uring.p.sq_off.array)[i] = i;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	return syscall(__NR_io_uring_enter, uring.fd, 1, 0, 0, NULL, 0) == 1;
}

static int uring_found(unsigned int ms)
{
	const struct __kernel_timespec t = {ms / 1000, ms % 1000 * 1000000};
	const struct io_uring_getevents_arg arg = {.ts = (uintptr_t)&t};
	const struct io_uring_cqe *cqes = (void *)(uring.rings + uring.p.cq_off.cqes);
	uint32_t *head = word(uring.p.cq_off.head);
	int found;

	(void)syscall(__NR_io_uring_enter, uring.fd, 0, 1,
		      IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &arg, sizeof(arg));
	if (*head == __atomic_load_n(word(uring.p.cq_off.tail), __ATOMIC_ACQUIRE))
		return 0;
	found = cqes[*head & *word(uring.p.cq_off.ring_mask)].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return found;
}

static void uring_end(void)
{
	munmap(uring.sqes, uring.p.sq_entries * sizeof(*uring.sqes));
	munmap(uring.rings, uring.bytes);
	close(uring.fd);
}

static const struct way by_uring = {"io_uring", uring_begin, uring_ask, uring_found, uring_end};

/* ---- aio ---- */

static aio_context_t aio;
static struct iocb asked;

static bool aio_begin(void)
{
	aio = 0;
	return !syscall(__NR_io_setup, 4, &aio);
}

static bool aio_ask(int fd)
{
	struct iocb *one = &asked;

	memset(&asked, 0, sizeof(asked));
	asked.aio_lio_opcode = IOCB_CMD_POLL;
	asked.aio_fildes = (uint32_t)fd;
	asked.aio_buf = POLLIN;
	return syscall(__NR_io_submit, aio, 1, &one) == 1;
}

static int aio_found(unsigned int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};
	struct io_event ev;

	return syscall(__NR_io_getevents, aio, 1, 1, &ev, &t) == 1 ? (int)ev.res : 0;
}

static void aio_end(void)
{
	(void)syscall(__NR_io_destroy, aio);
}

static const struct way by_aio = {"aio", aio_begin, aio_ask, aio_found, aio_end};

/* ---- what they find ---- */

static void *sends_soon(void *about)
{
	static const uint8_t text[COOP_NET_TEXT] = "for one that polls";
	struct pair *p = about;

	usleep(100000);
	send_text(&p->b, p->at_b, text);
	return NULL;
}

static bool finds_input(const struct way *w)
{
	const uint64_t begun = now_ms();
	const int found = w->found(30000 * patience);

	fprintf(stderr, "%s found 0x%x after %llu ms\n", w->name, (unsigned int)found,
		(unsigned long long)(now_ms() - begun));
	return (found & ~POLLRDNORM) == POLLIN;
}

static void found_by(const struct way *w)
{
	static const uint8_t text[COOP_NET_TEXT] = "it is there";
	pthread_t other;
	struct pair p;

	NEED(pair_open(&p) && pair_works(&p));
	NEED(w->begin());
	events_drop(&p.a);
	/* It waits for what has yet to come. */
	CHECK(w->ask(p.a.fd));
	CHECK(!w->found(20));
	NEED(!pthread_create(&other, NULL, sends_soon, &p));
	CHECK(finds_input(w));
	pthread_join(other, NULL);
	CHECK(!await(&p.a, COOP_NET_TEXT_IN, ANY, NULL));
	CHECK(!await(&p.b, COOP_NET_SENT, ANY, NULL));
	/* It finds what has come before. */
	CHECK(!await(&p.b, COOP_NET_SENT, send_text(&p.b, p.at_b, text), NULL));
	CHECK(w->ask(p.a.fd));
	CHECK(finds_input(w));
	CHECK(!await(&p.a, COOP_NET_TEXT_IN, ANY, NULL));
	/* It holds the file, and ends with the machine nevertheless. */
	events_drop(&p.a);
	CHECK(w->ask(p.a.fd));
	CHECK(!w->found(20));
	machine_close(&p.a);
	CHECK(w->found(30000 * patience) & ENDS);
	machine_close(&p.b);
	w->end();
}

static void leaves(void *about)
{
	const struct way *w = about;
	struct pair p;

	NEED(pair_open(&p) && pair_works(&p));
	events_drop(&p.a);
	CHECK(w->begin() && w->ask(p.a.fd) && !w->found(20));
}

void polls_area(void)
{
	static const struct way *const ways[] = {&by_uring, &by_aio};

	for (unsigned int i = 0; i < 2; i++) {
		found_by(ways[i]);
		CHECK(!in_child(leaves, (void *)ways[i]));
	}
}
