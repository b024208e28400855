/* SPDX-License-Identifier: MIT */
/*
 * signals.c - calls that find a signal waiting.
 *
 * A process with a timer has one all the time: a profiler, or Go, which interrupts its threads to
 * schedule them. Its handlers restart calls (SA_RESTART), and it takes the result 0 of a copy for
 * the end of the file. So a copy does a part, or ends so that the kernel restarts it.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/time.h>
#include <unistd.h>

#include "posix.h"

#define LARGE    (1 << 20)
#define CHUNK    (64 * 1024)
#define EVERY_US 5000

static char text[LARGE], got[LARGE];
static volatile sig_atomic_t handled;

static void count(int number)
{
	handled++;
}

static bool handle(int number)
{
	struct sigaction act = {.sa_handler = count, .sa_flags = SA_RESTART};

	return !sigaction(number, &act, NULL);
}

/* Holds up each access to a marked file; the first one gets a signal before it goes on. */
struct holder {
	int fan;
	pthread_t held;
	volatile bool end;
	unsigned int accesses;
};

static void *hold(void *p)
{
	struct holder *h = p;
	struct pollfd wait = {.fd = h->fan, .events = POLLIN};

	while (!h->end) {
		struct fanotify_event_metadata event;
		struct fanotify_response answer = {.response = FAN_ALLOW};

		if (poll(&wait, 1, 20) <= 0 || read(h->fan, &event, sizeof(event)) <= 0)
			continue;
		if (!h->accesses++)
			pthread_kill(h->held, SIGUSR1);
		answer.fd = event.fd;
		if (write(h->fan, &answer, sizeof(answer)) != sizeof(answer))
			h->accesses = 0;
		close(event.fd);
	}
	return NULL;
}

/* The VFS asks the holder before it calls the file system, so the signal waits when that begins. */
static void copy_signalled_once(int b)
{
	struct holder h = {.held = pthread_self()};
	loff_t from = 0, to = 0;
	pthread_t holder;
	ssize_t n;
	int a;

	NEED((h.fan = fanotify_init(FAN_CLASS_CONTENT, O_RDONLY)) >= 0);
	NEED(!fanotify_mark(h.fan, FAN_MARK_ADD, FAN_ACCESS_PERM, AT_FDCWD, "a"));
	/* Some kernels ask only for files that were opened behind the mark. */
	NEED((a = open("a", O_RDONLY)) >= 0);
	NEED(!pthread_create(&holder, NULL, hold, &h));
	handled = 0;
	n = copy_file_range(a, &from, b, &to, CHUNK, 0);
	CHECK(n > 0 && n <= CHUNK && from == n && to == n);
	h.end = true;
	CHECK(!pthread_join(holder, NULL) && !close(h.fan) && !close(a));
	CHECK(h.accesses && handled == 1);
	CHECK(pread(b, got, LARGE, 0) == n && !memcmp(got, text, (size_t)n));
}

/* As a program copies a file: until the call says that this is its end. */
static void copy_under_timer(int a, int b)
{
	const struct itimerval often = {{0, EVERY_US}, {0, EVERY_US}}, never = {{0, 0}, {0, 0}};
	loff_t from = 0, to = 0;
	ssize_t n;

	CHECK(!ftruncate(b, 0));
	handled = 0;
	NEED(!setitimer(ITIMER_REAL, &often, NULL));
	do {
		from = to = 0;
		while ((n = copy_file_range(a, &from, b, &to, CHUNK, 0)) > 0)
			continue;
		CHECK(!n && from == LARGE && to == LARGE);
	} while (handled < 20 && n >= 0 && from == LARGE);
	CHECK(!setitimer(ITIMER_REAL, &never, NULL));
	CHECK(pread(b, got, LARGE, 0) == LARGE && !memcmp(got, text, LARGE));
}

void copy_signalled_area(void)
{
	int a, b;

	for (size_t i = 0; i < LARGE; i++)
		text[i] = (char)('a' + i % 23);
	NEED(handle(SIGUSR1) && handle(SIGALRM));
	NEED((a = open("a", O_CREAT | O_RDWR, 0600)) >= 0);
	NEED((b = open("b", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(a, text, LARGE) == LARGE && !fsync(a));
	copy_signalled_once(b);
	copy_under_timer(a, b);
	CHECK(!close(a) && !close(b));
}
