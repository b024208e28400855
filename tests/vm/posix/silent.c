/* SPDX-License-Identifier: MIT */
/*
 * silent.c - locks of a mount that hears nothing of its daemon, or has nothing to ask of it.
 *
 * Others get the locks of a mount that storage does not hear. "cut_off" stops coop-between, so that
 * neither side hears the other while the connection stands, and "back" lets it go on (crash.c).
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "posix.h"

enum { SHORT_MS = 500, ENOUGH_MS = 60000 };

/* A process that reads the first byte of the file when it is told. */
struct reader {
	int tell, said;
};

/* Through the open file, or from the mapping, which then has the page in that process. */
static bool reader_starts(struct reader *r, int fd, char *map)
{
	int tell[2], said[2];
	char c;

	if (pipe(tell) || pipe(said))
		return false;
	if (fork()) {
		close(tell[0]);
		close(said[1]);
		*r = (struct reader){tell[1], said[0]};
		return read(r->said, &c, 1) == 1 && c == '0';
	}
	close(tell[1]);
	do {
		if (map)
			c = load_fails(map) ? '!' : *(volatile char *)map;
		else
			c = pread(fd, &c, 1, 0) == 1 ? c : errno == EIO ? '!' : '?';
	} while (write(said[1], &c, 1) == 1 && read(tell[0], &c, 1) == 1);
	_exit(0);
}

static bool reader_begins(const struct reader *r)
{
	return write(r->tell, "r", 1) == 1;
}

/* 0: it has not read the byte in that time; '!': it could not. */
static char reader_says(const struct reader *r, int ms)
{
	struct pollfd p = {r->said, POLLIN, 0};
	char c;

	return poll(&p, 1, ms) == 1 && read(r->said, &c, 1) == 1 ? c : 0;
}

static bool reader_ends(const struct reader *r)
{
	return !close(r->tell) && !close(r->said) && wait(NULL) > 0;
}

static bool calls_pass(long number)
{
	for (int ms = 0; ms < ENOUGH_MS; ms += 50) {
		if (told("STATS", "storage calls") >= number)
			return true;
		pause_shortly();
	}
	return false;
}

/*
 * Another node gets the lock. This one does not read what it has cached under it, not even when
 * storage answers again, until it knows that the lock is lost. What it wrote does not reach
 * storage.
 */
void locks_silent_area(void)
{
	int fd, second, rival, held;
	struct reader file, mapped, late;
	char c, *map;

	NEED(getenv("WANTED") && getenv("BETWEEN"));
	NEED(put("f", "0123456789"));
	NEED((fd = open("f", O_RDWR)) >= 0 && (second = open("f", O_RDWR)) >= 0);
	NEED(!flock(fd, LOCK_EX));
	map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(map != MAP_FAILED);
	map[9] = 'm';
	NEED(reader_starts(&file, fd, NULL) && reader_starts(&mapped, fd, map) &&
	     reader_starts(&late, fd, map));
	NEED((rival = open(other("f"), O_RDWR)) >= 0);
	FAILS(flock(rival, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	held = times_done("held lock 0");
	NEED(between("hold lock") && storage_does("cut_off"));
	CHECK(!flock(rival, LOCK_EX) && pwrite(rival, "n", 1, 0) == 1 && !fsync(rival));
	NEED(reader_begins(&file) && reader_begins(&mapped));
	CHECK(!reader_says(&file, SHORT_MS) && !reader_says(&mapped, SHORT_MS));
	NEED(storage_does("back"));
	/* It asks for its lock. Meanwhile its PINGs are answered. */
	NEED(is_done("held lock 0", held + 1) && calls_pass(told("STATS", "storage calls") + 1));
	NEED(reader_begins(&late));
	CHECK(!reader_says(&late, SHORT_MS));
	CHECK(between("go"));
	CHECK(reader_says(&file, ENOUGH_MS) == '!');
	CHECK(reader_says(&mapped, ENOUGH_MS) == '!');
	CHECK(reader_says(&late, ENOUGH_MS) == '!');
	FAILS(pwrite(fd, "late", 4, 0), EIO);
	FAILS(fsync(second), EIO);
	CHECK(pread(second, &c, 1, 0) == 1 && c == 'n');
	CHECK(pread(rival, &c, 1, 9) == 1 && c == '9');
	CHECK(!munmap(map, PAGE));
	/* The later ones have the earlier ones' pipes. */
	CHECK(reader_ends(&late) && reader_ends(&mapped) && reader_ends(&file));
	close(fd);
	CHECK(!close(second) && !close(rival) && holds(other("f"), "n123456789"));
}

static void *wait_for_lock(void *p)
{
	return flock(*(int *)p, LOCK_EX) ? NULL : p;
}

/*
 * A mount that has nothing to ask says something while it waits for a lock, and while it has it:
 * else it would lose the lock when it gets it.
 */
void locks_heard_area(void)
{
	int fd, rival, held;
	pthread_t task;
	void *got;

	NEED(getenv("BETWEEN") && put("f", "x"));
	NEED((fd = open("f", O_RDWR)) >= 0 && (rival = open(other("f"), O_RDWR)) >= 0);
	NEED(!flock(rival, LOCK_EX));
	held = times_done("held lock 0");
	NEED(between("hold lock") && !pthread_create(&task, NULL, wait_for_lock, &fd));
	NEED(is_done("held lock 0", held + 1) && between("go"));
	/* The LOCK, and two PINGs. */
	CHECK(calls_pass(told("STATS", "storage calls") + 3));
	NEED(!flock(rival, LOCK_UN) && !pthread_join(task, &got));
	CHECK(got == &fd);
	/* What follows the grant, and two PINGs. */
	CHECK(calls_pass(told("STATS", "storage calls") + 3));
	FAILS(flock(rival, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	CHECK(!close(fd) && !close(rival));
}
