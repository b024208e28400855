/* SPDX-License-Identifier: MIT */
/*
 * late.c - replies that come later than others, or not at all.
 *
 * coop-between holds back messages between this mount and its daemon (between.c). BETWEEN in
 * the environment names its FIFO, and its log is BETWEEN.log. INFO and STATS name the mount's
 * files "info" and "stats".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "posix.h"

#define PATIENT   1200 /* times 50 ms */
#define POSITIONS 300

void pause_shortly(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
}

/* How often coop-between has logged this. */
int times_done(const char *what)
{
	char path[PAGE], line[256];
	int n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s.log", getenv("BETWEEN"));
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		n += !strcmp(line, what);
	}
	if (f)
		fclose(f);
	return n;
}

bool is_done(const char *what, int times)
{
	for (unsigned int i = 0; i < PATIENT; i++) {
		if (times_done(what) >= times)
			return true;
		pause_shortly();
	}
	fprintf(stderr, "coop-between has not logged: %s\n", what);
	return false;
}

bool between(const char *order)
{
	FILE *f = fopen(getenv("BETWEEN"), "w");
	char done[256];
	int before;

	snprintf(done, sizeof(done), "done %s", order);
	before = times_done(done);
	return f && fprintf(f, "%s\n", order) > 0 && !fclose(f) && is_done(done, before + 1);
}

long told(const char *file, const char *key)
{
	FILE *f = fopen(getenv(file), "r");
	char line[256];
	long n = -1;

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)) && line[strlen(key)] == ' ')
			n = strtol(line + strlen(key), NULL, 10);
	if (f)
		fclose(f);
	return n;
}

bool calls_are(long wanted)
{
	for (unsigned int i = 0; i < PATIENT; i++) {
		if (told("INFO", "calls") == wanted)
			return true;
		pause_shortly();
	}
	fprintf(stderr, "%ld calls are in flight, not %ld\n", told("INFO", "calls"), wanted);
	return false;
}

/* A page on its way to storage. */
struct on_its_way {
	int fd;
	off_t at;
	volatile bool ended;
};

/* Runs in a thread: a process would wait for all pages when it closes its file. */
static void *wait_for_page(void *p)
{
	struct on_its_way *page = p;

	if (!sync_file_range(page->fd, page->at, PAGE, SYNC_FILE_RANGE_WAIT_BEFORE))
		page->ended = true;
	return NULL;
}

static bool ends(const struct on_its_way *page)
{
	for (unsigned int i = 0; i < PATIENT; i++) {
		if (page->ended)
			return true;
		pause_shortly();
	}
	return false;
}

/* Starts to write a page without waiting. */
static bool write_begins(int fd, const char *page, off_t at)
{
	return pwrite(fd, page, PAGE, at) == PAGE &&
	       !sync_file_range(fd, at, PAGE, SYNC_FILE_RANGE_WRITE);
}

/*
 * Another node writes in the middle of a stream of writes. The reply to a later write then does
 * not follow on from what this node knows. It waits for the writes that were in flight when it was
 * answered, but not for later ones, of which there is always one.
 */
void streamed_area(void)
{
	char page[PAGE], got[PAGE];
	struct on_its_way second = {.at = PAGE};
	pthread_t waiter;
	int fd, elsewhere;

	NEED(getenv("BETWEEN") && getenv("INFO"));
	memset(page, 'b', sizeof(page));
	NEED((elsewhere = open(other("f"), O_CREAT | O_RDWR, 0600)) >= 0);
	for (off_t at = 0; at < 4 * PAGE; at += PAGE)
		NEED(pwrite(elsewhere, page, PAGE, at) == PAGE);
	NEED(!fsync(elsewhere));
	let_clock_tick();
	NEED((fd = open("f", O_RDWR)) >= 0 && pread(fd, got, PAGE, 0) == PAGE);
	NEED(calls_are(0) && between("hold write 0") && between("hold write 8192"));

	memset(page, 'm', sizeof(page));
	CHECK(write_begins(fd, page, 0) && is_done("held write 0", 1));
	CHECK(pwrite(elsewhere, "foreign", 7, 3 * PAGE) == 7 && !fsync(elsewhere));
	CHECK(write_begins(fd, page, PAGE) && calls_are(1));
	CHECK(write_begins(fd, page, 2 * PAGE) && is_done("held write 8192", 1));
	second.fd = fd;
	NEED(!pthread_create(&waiter, NULL, wait_for_page, &second));
	CHECK(between("go write 0"));
	CHECK(ends(&second));
	CHECK(between("go") && !pthread_join(waiter, NULL));
	CHECK(!fsync(fd) && !close(fd) && !close(elsewhere));
	NEED((elsewhere = open(other("f"), O_RDONLY)) >= 0);
	for (off_t at = 0; at < 3 * PAGE; at += PAGE)
		CHECK(pread(elsewhere, got, PAGE, at) == PAGE && !memcmp(got, page, PAGE));
	CHECK(pread(elsewhere, got, PAGE, 3 * PAGE) == PAGE && !memcmp(got, "foreignb", 8));
	CHECK(!close(elsewhere));
}

/* A task that opens or locks the second page of a file and reads it. */
struct late_reader {
	int fd; /* -1: it opens the file; else it locks the page */
	char got[8];
	volatile bool ended, good;
};

static bool lock_second_page(int fd)
{
	return !fcntl(fd, F_SETLK,
		      &(struct flock){.l_type = F_RDLCK, .l_start = PAGE, .l_len = PAGE});
}

static void *open_or_lock_and_read(void *p)
{
	struct late_reader *r = p;
	/* An open for writing always asks storage: there are no leases for it. */
	const int fd = r->fd < 0 ? open("f", O_RDWR) : r->fd;

	r->good = fd >= 0 && (r->fd < 0 || lock_second_page(fd)) && pread(fd, r->got, 7, PAGE) == 7;
	if (r->fd < 0 && fd >= 0)
		close(fd);
	r->ended = true;
	return NULL;
}

/* The file has two pages of 'b', which this node knows at a version that is a proof. */
static int open_two_pages(int *elsewhere)
{
	char page[PAGE], got[PAGE];
	int fd;

	memset(page, 'b', sizeof(page));
	*elsewhere = open(other("f"), O_CREAT | O_RDWR, 0600);
	if (*elsewhere < 0 || pwrite(*elsewhere, page, PAGE, 0) != PAGE ||
	    pwrite(*elsewhere, page, PAGE, PAGE) != PAGE || fsync(*elsewhere))
		return -1;
	let_clock_tick();
	fd = open("f", O_RDWR);
	return fd >= 0 && pread(fd, got, PAGE, 0) == PAGE && pread(fd, got, PAGE, PAGE) == PAGE
		       ? fd
		       : -1;
}

/* Gives a task that does not wait for the held WRITE time to read old bytes. */
static void may_end(const struct late_reader *r)
{
	for (unsigned int i = 0; i < 40 && !r->ended; i++)
		pause_shortly();
}

/* The reply to an open comes while a WRITE is under way, or when it has just ended. */
static void opened_beside(bool write_ends_first)
{
	struct late_reader r = {.fd = -1};
	char page[PAGE];
	pthread_t reader;
	int fd, elsewhere, before[2];

	memset(page, 'm', sizeof(page));
	NEED((fd = open_two_pages(&elsewhere)) >= 0);
	before[0] = times_done("held write 0");
	before[1] = times_done("held open 0");
	NEED(calls_are(0) && between("hold write 0"));
	CHECK(write_begins(fd, page, 0) && is_done("held write 0", before[0] + 1));
	let_clock_tick();
	CHECK(pwrite(elsewhere, "foreign", 7, PAGE) == 7 && !fsync(elsewhere));
	let_clock_tick();
	NEED(!write_ends_first || between("hold open"));
	NEED(!pthread_create(&reader, NULL, open_or_lock_and_read, &r));
	if (write_ends_first)
		CHECK(is_done("held open 0", before[1] + 1) && between("go write 0") &&
		      calls_are(1));
	else
		may_end(&r);
	CHECK(between("go") && !pthread_join(reader, NULL));
	CHECK(r.good && !memcmp(r.got, "foreign", 7));
	CHECK(!close(fd) && !close(elsewhere) && !unlink("f"));
}

/* The reply that follows a grant comes while a WRITE of another range is under way. */
static void locked_beside(void)
{
	struct late_reader r;
	char page[PAGE];
	pthread_t reader;
	int fd, elsewhere, before[2];

	memset(page, 'm', sizeof(page));
	NEED((fd = open_two_pages(&elsewhere)) >= 0);
	CHECK(pwrite(elsewhere, "foreign", 7, PAGE) == 7 && !fsync(elsewhere));
	let_clock_tick();
	before[0] = times_done("held write 0");
	before[1] = times_done("held getattr 0");
	NEED(calls_are(0) && between("hold getattr") && between("hold write 0"));
	r = (struct late_reader){.fd = fd};
	NEED(!pthread_create(&reader, NULL, open_or_lock_and_read, &r));
	CHECK(is_done("held getattr 0", before[1] + 1));
	CHECK(write_begins(fd, page, 0) && is_done("held write 0", before[0] + 1));
	CHECK(between("go getattr"));
	may_end(&r);
	CHECK(between("go") && !pthread_join(reader, NULL));
	CHECK(r.good && !memcmp(r.got, "foreign", 7));
	CHECK(!close(fd) && !close(elsewhere) && !unlink("f"));
}

/*
 * While a WRITE of this node is under way, attributes do not show whether another node has written
 * too. An open and a lock must not return before that is known.
 */
void beside_write_area(void)
{
	NEED(getenv("BETWEEN") && getenv("INFO"));
	opened_beside(false);
	opened_beside(true);
	locked_beside();
}

static bool range_lock(int fd, short type)
{
	return !fcntl(fd, F_SETLK, &(struct flock){.l_type = type, .l_len = PAGE});
}

/* Opens a file under a lease; storage refuses the later report. */
static int open_refused(const char *name)
{
	int fd;

	for (unsigned int i = 0; i < PATIENT; i++) {
		if (!between("refuse open 13"))
			return -1;
		fd = open(name, O_RDONLY);
		if (fd >= 0 || !between("go"))
			return fd;
		pause_shortly();
		fd = open(name, O_RDONLY); /* gets a lease */
		if (fd >= 0)
			close(fd);
	}
	return -1;
}

/* An open file that storage does not know releases a lock. */
void unlock_unknown_area(void)
{
	int fd, unknown, elsewhere, before;

	NEED(getenv("BETWEEN"));
	NEED((elsewhere = open(other("f"), O_CREAT | O_RDWR, 0600)) >= 0);
	NEED(pwrite(elsewhere, "text", 4, 0) == 4 && !close(elsewhere));
	let_clock_tick();
	NEED((fd = open("f", O_RDONLY)) >= 0 && range_lock(fd, F_RDLCK));
	before = times_done("refused open 0");
	NEED((unknown = open_refused("f")) >= 0);
	CHECK(is_done("refused open 0", before + 1));
	CHECK(range_lock(unknown, F_UNLCK));
	CHECK(between("go"));
	NEED((elsewhere = open(other("f"), O_RDWR)) >= 0);
	CHECK(range_lock(elsewhere, F_WRLCK));
	CHECK(!close(elsewhere) && !close(unknown) && !close(fd));
}

/* Reads beyond the end of a directory, from many positions. */
static bool read_behind(int fd)
{
	char buf[PAGE];

	for (long i = 0; i < POSITIONS; i++) {
		const off_t at = 0x7fffffffffff0000 - i * 8;

		if (lseek(fd, at, SEEK_SET) != at || getdents64(fd, buf, sizeof(buf)))
			return false;
	}
	return true;
}

/* The client keeps no parts beyond the end of a directory, where positions are endless. */
void behind_end_area(void)
{
	char buf[PAGE];
	long kept;
	int fd;

	NEED(getenv("STATS"));
	NEED(put("f", "text"));
	NEED((fd = open(".", O_RDONLY | O_DIRECTORY)) >= 0);
	/* Under a lease the client keeps the listing itself. */
	for (unsigned int i = 0; i < PATIENT; i++) {
		kept = told("STATS", "lease listings");
		NEED(!lseek(fd, 0, SEEK_SET) && getdents64(fd, buf, sizeof(buf)) > 0);
		if (told("STATS", "lease listings") > kept)
			break;
		pause_shortly();
	}
	CHECK(told("STATS", "lease listings") > kept);
	NEED(read_behind(fd));
	kept = told("STATS", "lease listings");
	NEED(read_behind(fd));
	CHECK(told("STATS", "lease listings") == kept);
	CHECK(!close(fd));
}
