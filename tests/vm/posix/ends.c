/* SPDX-License-Identifier: MIT */
/*
 * ends.c - bytes that another node writes into pages that are cached or mapped here, above all at
 * the end of the file.
 *
 * Four areas hold messages between this mount and its daemon back, as late.c describes. They and
 * those named "foreign" need a mount with the options strict and nolease. Tasks that may wait in a
 * fault are processes: a thread would keep the test itself from mapping memory.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/aio_abi.h>

#include "posix.h"

/* Asks storage for the size, and so learns of another node's change. */
static bool learns(int fd, unsigned long long size)
{
	struct statx st;

	return !statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE, &st) &&
	       st.stx_size == size;
}

static bool write_there(const char *text, off_t at)
{
	const ssize_t n = (ssize_t)strlen(text);
	const int fd = open(other("f"), O_WRONLY);
	bool good;

	let_clock_tick();
	good = fd >= 0 && pwrite(fd, text, (size_t)n, at) == n;
	return !close(fd) && good;
}

/* Pages that are cached, and known to be older than storage's, are not mapped. */
void mapped_elsewhere_area(void)
{
	int fd = -1, again = -1;
	char got[2], *p, *q;

	NEED(put(other("f"), "first") && (fd = open("f", O_RDWR)) >= 0);
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	q = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED && q != MAP_FAILED);
	/* A store makes the whole page dirty, also bytes that another node has changed. */
	CHECK(p[0] == 'f');
	CHECK(write_there("R", 2) && learns(fd, 5));
	p[0] = 'F';
	CHECK(!msync(p, PAGE, MS_SYNC) && holds(other("f"), "FiRst"));
	/* The page is mapped for loads only, and the other node appends to it. */
	CHECK(write_there(" more", 5) && learns(fd, 10));
	p[1] = 'I';
	CHECK(!msync(p, PAGE, MS_SYNC) && holds(other("f"), "FIRst more"));
	/* It is cached in the version that the file has, but not mapped at that place. */
	let_clock_tick();
	NEED((again = open("f", O_RDONLY)) >= 0 && pread(again, got, 2, 8) == 2 && got[1] == 'e');
	CHECK(write_there("x", 9) && learns(fd, 10));
	CHECK(q[9] == 'x' && p[9] == 'x');
	CHECK(!munmap(p, PAGE) && !munmap(q, PAGE) && !close(again) && !close(fd));
}

/* Waits until the process has ended, is in that function of the module, or the line is logged. */
static bool comes_to(pid_t child, const char *function, const char *line, int times)
{
	char path[64], stack[PAGE];
	siginfo_t how;
	size_t n;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stack", child);
	for (unsigned int i = 0; i < 1200; i++) {
		how.si_pid = 0;
		if (waitid(P_PID, (id_t)child, &how, WEXITED | WNOHANG | WNOWAIT) || how.si_pid)
			return true;
		f = fopen(path, "r");
		n = f ? fread(stack, 1, sizeof(stack) - 1, f) : 0;
		stack[n] = 0;
		if (f)
			fclose(f);
		if (strstr(stack, function) || (line && times_done(line) >= times))
			return true;
		pause_shortly();
	}
	fprintf(stderr, "process %d is not in %s\n", child, function);
	return false;
}

/*
 * Two WRITEs of this node. The first one leaves a version that proves nothing (provisional), so the
 * second one does not follow on, and the pages have no version any more.
 */
static bool writes_twice(int fd)
{
	return pwrite(fd, "m", 1, 0) == 1 && !fsync(fd) && pwrite(fd, "m", 1, 0) == 1 && !fsync(fd);
}

static int grow_by_allocation(int fd, off_t size)
{
	return fallocate(fd, 0, 0, size);
}

static void grown_foreign(int (*grow)(int fd, off_t size))
{
	char got[100] = "";
	int fd = -1, elsewhere;
	char *p;

	NEED(put(other("f"), "first"));
	let_clock_tick();
	NEED((fd = open("f", O_RDWR)) >= 0);
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED && p[0] == 'f' && writes_twice(fd));
	CHECK(write_there(" more", 5) && !grow(fd, 100));
	CHECK(pread(fd, got, 100, 0) == 100 && !strcmp(got, "mirst more"));
	p[1] = 'M';
	CHECK(!msync(p, PAGE, MS_SYNC) && !munmap(p, PAGE) && !close(fd));
	NEED((elsewhere = open(other("f"), O_RDONLY)) >= 0);
	CHECK(pread(elsewhere, got, 100, 0) == 100 && !strcmp(got, "mMrst more"));
	CHECK(!close(elsewhere) && !unlink("f"));
}

/*
 * This node makes a file longer that another one has just appended to. The cached page of the end
 * has zeros in place of the appended bytes: they are neither read nor stored.
 */
void grown_foreign_area(void)
{
	grown_foreign(ftruncate);
	grown_foreign(grow_by_allocation);
}

/*
 * Pages without a version, and the last reply had one that is a proof. The next WRITE follows
 * another one: its reply shows that another node has written.
 */
void write_foreign_area(void)
{
	char text[2 * PAGE + 1], got[7];
	int fd;

	memset(text, 'o', 2 * PAGE);
	text[2 * PAGE] = 0;
	NEED(put(other("f"), text));
	let_clock_tick();
	NEED((fd = open("f", O_RDWR)) >= 0 && pread(fd, got, 7, 0) == 7);
	NEED(pread(fd, got, 7, PAGE) == 7 && writes_twice(fd));
	let_clock_tick();
	CHECK(learns(fd, 2 * PAGE));
	CHECK(write_there("foreign", PAGE));
	let_clock_tick();
	CHECK(pwrite(fd, "n", 1, 0) == 1 && !fsync(fd));
	CHECK(pread(fd, got, 7, PAGE) == 7 && !memcmp(got, "foreign", 7));
	CHECK(!close(fd));
}

static bool ends_well(pid_t child)
{
	int status = -1;

	return child > 0 && waitpid(child, &status, 0) == child && !status;
}

/*
 * A file is cut while another task stores below its new end, in the page of that end. The page must
 * not reach storage as it was before: the file would be longer again, with old bytes.
 */
void cut_mapped_area(void)
{
	char page[PAGE], got[2 * PAGE], *p;
	const int held_writes = times_done("held write 0");
	const int held_cuts = times_done("held setattr 0");
	int fd, elsewhere, ready[2];
	pid_t storer, cutter;

	NEED(getenv("BETWEEN"));
	memset(page, 'o', PAGE);
	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0 && !pipe(ready));
	NEED(pwrite(fd, page, PAGE, 0) == PAGE && pwrite(fd, page, PAGE, PAGE) == PAGE);
	NEED(!fsync(fd));
	p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	NEED(between("hold setattr") && between("hold write"));
	storer = fork();
	if (!storer) {
		/* Has the page mapped before the cut. */
		if (p[0] != 'o' || write(ready[1], "", 1) != 1 ||
		    !is_done("held setattr 0", held_cuts + 1))
			_exit(1);
		p[10] = 's';
		_exit(msync(p, PAGE, MS_SYNC) != 0);
	}
	CHECK(read(ready[0], got, 1) == 1);
	cutter = fork();
	if (!cutter)
		_exit(ftruncate(fd, 1000) != 0);
	CHECK(is_done("held setattr 0", held_cuts + 1));
	CHECK(comes_to(storer, "coop_fault", "held write 0", held_writes + 1));
	CHECK(between("go"));
	CHECK(ends_well(storer) && ends_well(cutter));
	CHECK(size_of("f") == 1000 && p[10] == 's' && p[999] == 'o' && !p[1000]);
	CHECK(!munmap(p, 2 * PAGE) && !fsync(fd) && !close(fd));
	NEED((elsewhere = open(other("f"), O_RDONLY)) >= 0);
	CHECK(pread(elsewhere, got, sizeof(got), 0) == 1000 && got[10] == 's' && got[999] == 'o');
	CHECK(!close(elsewhere) && !close(ready[0]) && !close(ready[1]));
}

/*
 * Bytes are being appended when another task stores into the last page through a mapping, and a
 * third one asks for the size. The page, which has zeros behind the old end, must not reach storage
 * with the new size.
 */
void append_mapped_area(void)
{
	const int held_pages = times_done("held write 0"), held_ends = times_done("held write 5");
	int fd = -1, append = -1;
	struct stat st;
	pid_t appender;
	char *p;

	NEED(getenv("BETWEEN") && put("f", "first"));
	NEED((fd = open("f", O_RDWR)) >= 0 && (append = open("f", O_WRONLY | O_APPEND)) >= 0);
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED && p[0] == 'f');
	NEED(between("hold write 0") && between("hold write 5"));
	appender = fork();
	if (!appender)
		_exit(write(append, " more", 5) != 5);
	CHECK(is_done("held write 5", held_ends + 1));
	p[0] = 'F';
	CHECK(!fstat(fd, &st) && (st.st_size == 5 || st.st_size == 10));
	CHECK(!sync_file_range(fd, 0, PAGE, SYNC_FILE_RANGE_WRITE));
	CHECK(is_done("held write 0", held_pages + 1));
	CHECK(between("go") && ends_well(appender));
	CHECK(!fstat(fd, &st) && st.st_size == 10 && !memcmp(p, "First more", 10));
	CHECK(!munmap(p, PAGE) && !close(append) && !close(fd));
	CHECK(holds(other("f"), "First more"));
}

/* No zero is among the bytes that read(2) returns. */
static int reads_no_zeros(int fd, ssize_t least)
{
	static char got[4 * PAGE];
	const ssize_t n = pread(fd, got, sizeof(got), 0);

	if (n < least || memchr(got, 0, (size_t)n)) {
		fprintf(stderr, "read %zd bytes, or zeros\n", n);
		return 1;
	}
	return 0;
}

/*
 * Another node appends while a read is under way, and a third task asks for the size. The read must
 * not return, from the cached last page, zeros between the old end and the new one.
 */
void read_grown_area(void)
{
	const int held_reads = times_done("held read 0");
	const ssize_t old = 2 * PAGE + 100;
	char text[2 * PAGE + 101], got[200];
	pid_t reader, asker;
	struct stat st;
	int fd;

	NEED(getenv("BETWEEN"));
	memset(text, 'o', (size_t)old);
	text[old] = 0;
	NEED(put(other("f"), text));
	/* A writer's open brings no bytes with it. */
	NEED((fd = open("f", O_RDWR)) >= 0 && !posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM));
	NEED(pread(fd, got, sizeof(got), 2 * PAGE) == 100);
	NEED(between("hold read 0"));
	reader = fork();
	if (!reader)
		_exit(reads_no_zeros(fd, old));
	CHECK(is_done("held read 0", held_reads + 1));
	CHECK(write_there("more", old));
	asker = fork();
	if (!asker)
		_exit(fstat(fd, &st) || (st.st_size != old && st.st_size != old + 4));
	CHECK(comes_to(asker, "coop_content_settle", NULL, 0));
	CHECK(between("go") && ends_well(asker) && ends_well(reader));
	CHECK(!fstat(fd, &st) && st.st_size == old + 4);
	CHECK(pread(fd, got, sizeof(got), 2 * PAGE) == 104 && !memcmp(got + 99, "omore", 5));
	CHECK(!close(fd));
}

/*
 * Another node writes between two direct writes of this node that are under way together. An open
 * file reads its bytes afterwards.
 */
void direct_foreign_area(void)
{
	const int stopped = times_done("stopped write 0");
	struct iocb cb = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_nbytes = PAGE}, *list = &cb;
	aio_context_t context = 0;
	struct io_event event;
	char *page = NULL, got[8], text[3 * PAGE + 1];
	int fd = -1, direct = -1;

	NEED(getenv("BETWEEN") && !posix_memalign((void **)&page, PAGE, PAGE));
	memset(text, 'o', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	memset(page, 'd', PAGE);
	NEED(put(other("f"), text));
	let_clock_tick();
	NEED((fd = open("f", O_RDWR)) >= 0 && (direct = open("f", O_RDWR | O_DIRECT)) >= 0);
	NEED(pread(fd, got, 7, 2 * PAGE) == 7 && got[0] == 'o');
	NEED(!syscall(SYS_io_setup, 1, &context) && between("stop write 0"));
	cb.aio_fildes = (unsigned int)direct;
	cb.aio_buf = (unsigned long)page;
	CHECK(syscall(SYS_io_submit, context, 1, &list) == 1);
	CHECK(is_done("stopped write 0", stopped + 1));
	CHECK(write_there("foreign", 2 * PAGE));
	let_clock_tick();
	CHECK(pwrite(direct, page, PAGE, PAGE) == PAGE);
	let_clock_tick();
	CHECK(between("go"));
	CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1 && event.res == PAGE);
	CHECK(pread(fd, got, 7, 2 * PAGE) == 7 && !memcmp(got, "foreign", 7));
	CHECK(!syscall(SYS_io_destroy, context) && !close(direct) && !close(fd));
	free(page);
}
