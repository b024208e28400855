/* SPDX-License-Identifier: MIT */
/*
 * soft.c - what a mount that gives up its calls still owes to storage.
 *
 * The mount is soft, so each call fails after its timeo. coop-between (late.c) keeps requests from
 * the daemon, or ends each connection in its handshake; the daemon and its session live on.
 * REQUESTS names the mount's file "requests", BELOW the exported directory of the areas; crash.c
 * obeys orders of soft_reopened.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "posix.h"

#define PATIENT 1200 /* times 50 ms */

/* Whether the file has no name, but is open at storage. Files of earlier areas may be there too. */
static bool is_nameless(ino_t file)
{
	char path[PAGE];
	struct dirent *e;
	bool found = false;
	DIR *d;

	snprintf(path, sizeof(path), "%s/.coopfs-orphans", getenv("BELOW"));
	d = opendir(path);
	while (d && !found && (e = readdir(d)))
		found = e->d_ino == file;
	if (d)
		closedir(d);
	return found;
}

static bool is_closed_there(ino_t file)
{
	for (unsigned int i = 0; i < PATIENT; i++) {
		if (!is_nameless(file))
			return true;
		pause_shortly();
	}
	return false;
}

static bool is_unlocked(int fd)
{
	for (unsigned int i = 0; i < PATIENT; i++) {
		if (!flock(fd, LOCK_EX | LOCK_NB))
			return true;
		pause_shortly();
	}
	return false;
}

static int range(int fd, int cmd, short type)
{
	return fcntl(fd, cmd, &(struct flock){.l_type = type, .l_len = PAGE});
}

static bool range_is_unlocked(int fd)
{
	for (unsigned int i = 0; i < PATIENT; i++) {
		if (!range(fd, F_SETLK, F_WRLCK))
			return true;
		pause_shortly();
	}
	return false;
}

/* Only storage can answer it: nobody has looked for that name before. */
static int ask_storage(void)
{
	static unsigned int asked;
	char name[32];

	snprintf(name, sizeof(name), "none%u", asked++);
	return access(name, F_OK);
}

/* The connection ends, and so does each later one before it can be used. */
static bool is_cut_off(void)
{
	int before = times_done("lost lookup 0");

	return between("cut proof") && between("cut lookup") && ask_storage() &&
	       errno == ETIMEDOUT && is_done("lost lookup 0", before + 1);
}

/* The deadline comes while the requests wait to be sent, or to be answered on a connection that is
 * then lost. */
static void kept(bool sent)
{
	int held, open_too, rival;
	char path[PAGE];
	struct stat st;

	NEED(put("held", "text") && put("open", "text"));
	NEED((held = open("held", O_RDWR)) >= 0 && !flock(held, LOCK_EX));
	NEED((open_too = open("open", O_RDONLY)) >= 0);
	NEED((rival = open(other("held"), O_RDWR)) >= 0);
	snprintf(path, sizeof(path), "%s/soft_kept/open", getenv("BELOW"));
	NEED(!stat(path, &st) && calls_are(0));
	if (sent)
		NEED(between("stop close") && between("stop unlock"));
	else
		NEED(is_cut_off());
	CHECK(!close(open_too));
	FAILS(flock(held, LOCK_UN), ETIMEDOUT); /* and the CLOSE began before */
	if (sent)
		NEED(is_cut_off());
	CHECK(!unlink(other("open")) && is_nameless(st.st_ino));
	FAILS(flock(rival, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	NEED(between("go"));
	CHECK(is_unlocked(rival));
	CHECK(is_closed_there(st.st_ino));
	CHECK(!close(rival) && !close(held) && !unlink("held"));
}

/* Storage runs requests concurrently: an unlock that comes late must not end a later lock. */
static void in_turn(void)
{
	int fd, rival;

	NEED(put("f", "text"));
	NEED((fd = open("f", O_RDWR)) >= 0 && !flock(fd, LOCK_EX));
	NEED((rival = open(other("f"), O_RDWR)) >= 0);
	NEED(between("stop unlock"));
	FAILS(flock(fd, LOCK_UN), ETIMEDOUT);
	FAILS(flock(fd, LOCK_EX | LOCK_NB), ETIMEDOUT);
	FAILS(flock(fd, LOCK_EX), ETIMEDOUT);
	NEED(between("go"));
	CHECK(is_unlocked(rival) && !flock(rival, LOCK_UN));
	CHECK(!flock(fd, LOCK_EX));
	FAILS(flock(rival, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	CHECK(!close(fd) && !close(rival) && !unlink("f"));
}

/* The open file that an unlock names is closed after it. */
static void before_close(void)
{
	int fd, second, rival;

	NEED(put("f", "text"));
	NEED((fd = open("f", O_RDWR)) >= 0 && !range(fd, F_SETLK, F_WRLCK));
	NEED((second = open("f", O_RDWR)) >= 0);
	NEED((rival = open(other("f"), O_RDWR)) >= 0);
	NEED(calls_are(0) && between("stop unlock"));
	CHECK(!close(second)); /* which ends all locks of this process */
	CHECK(calls_are(1));
	NEED(between("go"));
	CHECK(range_is_unlocked(rival));
	CHECK(!close(fd) && !close(rival) && !unlink("f"));
}

/* So is the open file of a lock that was given up, whose unlock names all that its owner held. */
static void given_up_before_close(void)
{
	int holds_on, gives_up, rival, before;

	NEED(put("f", "text"));
	NEED((holds_on = open("f", O_RDWR)) >= 0 && !range(holds_on, F_SETLK, F_RDLCK));
	NEED((gives_up = open("f", O_RDWR)) >= 0);
	NEED((rival = open(other("f"), O_RDWR)) >= 0 && !range(rival, F_SETLK, F_RDLCK));
	before = times_done("stopped unlock 0");
	NEED(calls_are(0) && between("stop lock") && between("stop unlock"));
	FAILS(range(gives_up, F_SETLK, F_WRLCK), ETIMEDOUT);
	NEED(between("go lock") && is_done("stopped unlock 0", before + 1));
	CHECK(!close(gives_up));
	NEED(calls_are(1) && between("go"));
	CHECK(range_is_unlocked(rival));
	CHECK(!close(holds_on) && !close(rival) && !unlink("f"));
}

/* A lock that storage gives after the deadline is given back. */
static void given_late(void)
{
	int fd, rival;

	NEED(put("f", "text"));
	NEED((fd = open("f", O_RDWR)) >= 0);
	NEED((rival = open(other("f"), O_RDWR)) >= 0);
	NEED(calls_are(0) && between("stop lock"));
	FAILS(flock(fd, LOCK_EX), ETIMEDOUT);
	FAILS(flock(fd, LOCK_EX | LOCK_NB), ETIMEDOUT);
	NEED(between("go") && calls_are(0));
	CHECK(is_unlocked(rival) && !flock(rival, LOCK_UN));
	CHECK(!flock(fd, LOCK_EX));
	FAILS(flock(rival, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	CHECK(!close(fd) && !close(rival) && !unlink("f"));
}

/* A lock that is given up takes an older one with it, and nobody writes under that. */
static void older_is_lost(void)
{
	const int before = times_done("stopped lock 0");
	int fd, rival;

	NEED(put("f", "text"));
	NEED((fd = open("f", O_RDWR)) >= 0 && !range(fd, F_SETLK, F_WRLCK));
	NEED((rival = open(other("f"), O_RDWR)) >= 0);
	NEED(calls_are(0) && between("stop lock"));
	FAILS(fcntl(fd, F_SETLK, &(struct flock){.l_type = F_WRLCK, .l_len = 2 * PAGE}), ETIMEDOUT);
	NEED(is_done("stopped lock 0", before + 1));
	FAILS(pwrite(fd, "late", 4, 0), EIO);
	NEED(between("go"));
	CHECK(range_is_unlocked(rival));
	CHECK(!close(rival) && !close(fd) && !unlink("f"));
}

void soft_kept_area(void)
{
	NEED(getenv("BETWEEN") && getenv("INFO") && getenv("BELOW"));
	kept(false);
	kept(true);
	in_turn();
	before_close();
	given_up_before_close();
	given_late();
	older_is_lost();
}

/* An OPEN that its caller has given up waits for its reply. */
static bool open_is_abandoned(void)
{
	char line[256];
	bool found = false;
	FILE *f;

	for (unsigned int i = 0; i < PATIENT && !found; i++) {
		f = fopen(getenv("REQUESTS"), "r");
		while (f && fgets(line, sizeof(line), f))
			found |= strstr(line, "op=open state=abandoned") != NULL;
		if (f)
			fclose(f);
		pause_shortly();
	}
	return found;
}

/*
 * Opening a file again, for a daemon that was restarted, takes too long. The next daemon opens it
 * in time, and nothing closes it there.
 */
static void opened_by_next(void)
{
	int fd, before;

	NEED(put("f", "0123"));
	NEED((fd = open("f", O_RDWR)) >= 0);
	before = times_done("stopped open 0");
	NEED(between("stop open") && storage_does("restart"));
	NEED(is_done("stopped open 0", before + 1) && open_is_abandoned());
	NEED(storage_does("restart") && is_done("stopped open 0", before + 2) && between("go"));
	CHECK(pwrite(fd, "a", 1, 0) == 1 && !fsync(fd));
	NEED(calls_are(0));
	CHECK(pwrite(fd, "b", 1, 1) == 1 && !fsync(fd));
	CHECK(!close(fd) && holds(other("f"), "ab23"));
}

/* It takes too long, and the file is closed meanwhile. */
static void closed_meanwhile(void)
{
	char path[PAGE];
	struct stat below;
	int fd, before;

	NEED(put("g", "text"));
	NEED((fd = open("g", O_RDONLY)) >= 0 && calls_are(0));
	snprintf(path, sizeof(path), "%s/soft_reopened/g", getenv("BELOW"));
	NEED(!stat(path, &below));
	before = times_done("stopped open 0");
	NEED(between("stop open") && storage_does("restart"));
	NEED(is_done("stopped open 0", before + 1) && open_is_abandoned());
	CHECK(!close(fd));
	FAILS(ask_storage(), ENOENT); /* whatever was sent before has run */
	NEED(between("go") && calls_are(0));
	CHECK(!unlink(other("g")) && is_closed_there(below.st_ino));
}

void soft_reopened_area(void)
{
	NEED(getenv("WANTED") && getenv("BETWEEN") && getenv("INFO") && getenv("REQUESTS"));
	NEED(getenv("BELOW"));
	opened_by_next();
	closed_meanwhile();
}
