/* SPDX-License-Identifier: MIT */
/*
 * lost.c - open files whose locks a daemon has forgotten.
 *
 * Calls that change a file are under way when their open file loses its lock: coop-between keeps
 * their requests from the daemon (late.c), which "crash" then replaces by one that knows no locks
 * (crash.c). The mount sends the requests again, or asks for more, through open files of which
 * another node may now hold the lock.
 *
 * Or the mount takes its locks back from the new daemon, and loses a reply on the way.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "posix.h"

#define TEXT "0123456789"
#define SIZE 10

static int source = -1; /* of copies */

static long cut(int fd)
{
	return ftruncate(fd, 5);
}

static long grow(int fd)
{
	return ftruncate(fd, PAGE);
}

static long write_here(int fd)
{
	return pwrite(fd, "mine", 4, 0);
}

static long allocate(int fd)
{
	return fallocate(fd, 0, 0, PAGE);
}

static long copy(int fd)
{
	off_t from = 0, to = 0;

	return copy_file_range(source, &from, fd, &to, SIZE, 0);
}

/* Each call has a file of its own, so that none waits for another one. */
static struct call {
	const char *name;
	const char *request; /* the call waits for it; its offset is 0 */
	int flags;
	long (*act)(int fd);
	int fd;
	long result;
	int error;
	pthread_t task;
} calls[] = {
	{.name = "cut", .request = "setattr", .act = cut},
	{.name = "grown", .request = "setattr", .act = grow},
	{.name = "direct", .request = "write", .flags = O_DIRECT, .act = write_here},
	/* The rest of its page is read first. */
	{.name = "cached", .request = "read", .act = write_here},
	{.name = "allocated", .request = "fallocate", .act = allocate},
	{.name = "copied", .request = "copy", .act = copy},
};

#define CALLS (sizeof(calls) / sizeof(calls[0]))

static bool stops(const char *request)
{
	char order[32];

	snprintf(order, sizeof(order), "stop %s", request);
	return between(order);
}

static void *call_begins(void *p)
{
	struct call *c = p;

	c->result = c->act(c->fd);
	c->error = errno;
	return NULL;
}

/* Starts it, and returns when its request is under way. */
static bool starts(struct call *c)
{
	char stopped[32];
	int before;

	snprintf(stopped, sizeof(stopped), "stopped %s 0", c->request);
	before = times_done(stopped);
	return !pthread_create(&c->task, NULL, call_begins, c) && is_done(stopped, before + 1);
}

static bool ended_void(struct call *c)
{
	if (pthread_join(c->task, NULL))
		return false;
	if (c->result != -1 || c->error != EIO)
		fprintf(stderr, "%s: returned %ld, %s\n", c->name, c->result,
			strerrorname_np(c->error));
	return c->result == -1 && c->error == EIO;
}

void locks_fenced_area(void)
{
	int fd;

	NEED(getenv("WANTED") && getenv("BETWEEN"));
	NEED(put(other("f"), "mine again") && (source = open("f", O_RDONLY)) >= 0);
	for (size_t i = 0; i < CALLS; i++)
		NEED(put(other(calls[i].name), TEXT));
	let_clock_tick();
	for (struct call *c = calls; c < calls + CALLS; c++)
		NEED((c->fd = open(c->name, O_RDWR | c->flags)) >= 0 && !flock(c->fd, LOCK_EX));
	NEED(storage_does("save"));
	NEED(stops("setattr") && stops("write") && stops("read") && stops("fallocate") &&
	     stops("copy"));
	for (struct call *c = calls; c < calls + CALLS; c++)
		NEED(starts(c));
	NEED(storage_does("crash"));
	CHECK(between("go"));
	for (struct call *c = calls; c < calls + CALLS; c++)
		CHECK(ended_void(c));
	/* Calls that begin now. */
	for (struct call *c = calls; c < calls + CALLS; c++)
		FAILS(c->act(c->fd), EIO);
	for (struct call *c = calls; c < calls + CALLS; c++)
		CHECK(holds(other(c->name), TEXT));
	/* Another open file of this node has lost nothing, nor has one who names the file. */
	NEED((fd = open("cut", O_RDWR)) >= 0);
	CHECK(!ftruncate(fd, 9) && !close(fd) && holds(other("cut"), "012345678"));
	CHECK(!truncate("grown", 3) && holds(other("grown"), "012"));
	for (struct call *c = calls; c < calls + CALLS; c++)
		close(c->fd);
	CHECK(!close(source));
}

void locks_told_area(void)
{
	static const char *const lost[] = {"proof", "open", "lock", "reclaimed"};
	char order[32], cut_off[32], letter = 'a';
	int fd, rival, before;

	NEED(getenv("WANTED") && getenv("BETWEEN"));
	NEED(put("f", TEXT));
	NEED((fd = open("f", O_RDWR)) >= 0 && !flock(fd, LOCK_EX));
	for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++, letter++) {
		snprintf(order, sizeof(order), "cut %s", lost[i]);
		snprintf(cut_off, sizeof(cut_off), "lost %s 0", lost[i]);
		before = times_done(cut_off);
		NEED(between(order) && storage_does("restart") && is_done(cut_off, before + 1));
		NEED(between("go"));
		/* This needs the open file, so it is restored now, or never. */
		CHECK(pwrite(fd, &letter, 1, 0) == 1 && !fsync(fd));
		NEED((rival = open(other("f"), O_RDWR)) >= 0);
		FAILS(flock(rival, LOCK_EX | LOCK_NB), EWOULDBLOCK);
		CHECK(!close(rival));
	}
	CHECK(!close(fd) && holds(other("f"), "d123456789"));
}
