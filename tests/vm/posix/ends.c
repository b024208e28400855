/* SPDX-License-Identifier: MIT */
/*
 * ends.c - bytes that another node writes into pages that are cached or mapped here, above all at
 * the end of the file.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
