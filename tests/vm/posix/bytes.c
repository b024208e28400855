/* SPDX-License-Identifier: MIT */
/* bytes.c - reads return the written bytes: read(2), write(2), and the end of a file. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#include "posix.h"

#define LARGE (300 * 1024)

static char *letters(size_t n)
{
	char *p = malloc(n + 1);

	for (size_t i = 0; i < n; i++)
		p[i] = (char)('a' + i % 23);
	p[n] = 0;
	return p;
}

static bool zero(const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (p[i])
			return false;
	}
	return true;
}

void read_write_area(void)
{
	char *text = letters(LARGE), *got = malloc(LARGE), small[8];
	struct iovec v[3] = {{text, 5}, {text + 5, 0}, {text + 5, 7000}};
	const struct rlimit least = {1000, RLIM_INFINITY};
	struct rlimit had;
	int fd;

	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(fd, text, LARGE) == LARGE && lseek(fd, 0, SEEK_CUR) == LARGE);
	CHECK(pread(fd, got, LARGE, 0) == LARGE && !memcmp(got, text, LARGE));
	CHECK(pread(fd, got, 100, LARGE - 10) == 10 && !memcmp(got, text + LARGE - 10, 10));
	CHECK(pread(fd, got, 100, LARGE) == 0 && pread(fd, got, 100, LARGE + PAGE) == 0);
	CHECK(pread(fd, got, 0, 0) == 0 && pwrite(fd, got, 0, 2 * LARGE) == 0);
	CHECK(size_of("f") == LARGE);
	/* Across pages, in the middle. */
	CHECK(pwrite(fd, "MIDDLE", 6, 2 * PAGE - 3) == 6);
	memcpy(text + 2 * PAGE - 3, "MIDDLE", 6);
	CHECK(pread(fd, got, LARGE, 0) == LARGE && !memcmp(got, text, LARGE));
	CHECK(pwritev(fd, v, 3, 10000) == 7005);
	memmove(text + 10000, text, 7005);
	CHECK(preadv(fd, v, 3, 0) == 7005);
	CHECK(!close(fd));
	CHECK((fd = open(other("f"), O_RDONLY)) >= 0 && pread(fd, got, LARGE, 0) == LARGE &&
	      !memcmp(got, text, LARGE) && !close(fd));

	CHECK((fd = open("f", O_RDONLY)) >= 0);
	FAILS(write(fd, "x", 1), EBADF);
	FAILS(pread(fd, small, 1, -1), EINVAL);
	FAILS(lseek(fd, -1, SEEK_SET), EINVAL);
	CHECK(lseek(fd, 7, SEEK_SET) == 7 && lseek(fd, -3, SEEK_CUR) == 4 &&
	      lseek(fd, -10, SEEK_END) == LARGE - 10);
	FAILS(pread(fd, nowhere, 100, 0), EFAULT);
	CHECK(!close(fd));
	CHECK((fd = open("f", O_WRONLY)) >= 0);
	FAILS(read(fd, small, 1), EBADF);
	FAILS(pwrite(fd, nowhere, 100, 0), EFAULT);
	FAILS(pwrite(fd, "x", 1, -1), EINVAL);
	/* A write stops at the limit; the next one fails. */
	signal(SIGXFSZ, SIG_IGN);
	CHECK(!getrlimit(RLIMIT_FSIZE, &had) && !setrlimit(RLIMIT_FSIZE, &least));
	CHECK(pwrite(fd, text, 100, 950) == 50);
	FAILS(pwrite(fd, "x", 1, 1000), EFBIG);
	FAILS(ftruncate(fd, 2000 + LARGE), EFBIG);
	CHECK(!setrlimit(RLIMIT_FSIZE, &had));
	FAILS(pwrite(fd, "x", 1, INT64_MAX - PAGE), EFBIG);
	CHECK(!close(fd));
	free(text);
	free(got);
}

void append_area(void)
{
	int fd, plain = -1;

	NEED(put("f", "0123456789"));
	NEED((fd = open("f", O_WRONLY | O_APPEND)) >= 0 && (plain = open("f", O_RDWR)) >= 0);
	CHECK(write(fd, "AB", 2) == 2 && lseek(fd, 0, SEEK_CUR) == 12);
	CHECK(pwrite(plain, "x", 1, 0) == 1); /* through the cache, before the end moves again */
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && write(fd, "C", 1) == 1);
	CHECK(pwrite(fd, "D", 1, 0) == 1); /* Linux ignores the offset */
	CHECK(pwrite(plain, "more", 4, 14) == 4 && write(fd, "E", 1) == 1);
	CHECK(holds("f", "x123456789ABCDmoreE"));
	CHECK(!fcntl(fd, F_SETFL, 0) && pwrite(fd, "y", 1, 1) == 1);
	CHECK(!fcntl(fd, F_SETFL, O_APPEND) && write(fd, "F", 1) == 1);
	CHECK(!fcntl(plain, F_SETFL, O_APPEND) && write(plain, "G", 1) == 1);
	CHECK(!close(fd) && !close(plain));
	CHECK(holds("f", "xy23456789ABCDmoreEFG") && holds(other("f"), "xy23456789ABCDmoreEFG"));
	NEED((fd = open("f", O_RDWR | O_APPEND | O_TRUNC)) >= 0);
	CHECK(write(fd, "new", 3) == 3 && !close(fd) && holds("f", "new"));
}

void truncate_area(void)
{
	char *text = letters(LARGE), *got = malloc(LARGE);
	int fd, r;

	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(fd, text, LARGE) == LARGE);
	/* Truncate to the middle of a page and extend again: zeros, not the old bytes. */
	CHECK(!ftruncate(fd, 5000) && size_of("f") == 5000);
	CHECK(pread(fd, got, LARGE, 0) == 5000 && !memcmp(got, text, 5000));
	CHECK(!ftruncate(fd, 20000) && size_of("f") == 20000);
	CHECK(pread(fd, got, LARGE, 0) == 20000 && !memcmp(got, text, 5000) &&
	      zero(got + 5000, 15000));
	CHECK(!fsync(fd) && !truncate("f", 3) && !truncate("f", 10));
	CHECK(pread(fd, got, LARGE, 0) == 10 && !memcmp(got, "abc\0\0\0\0\0\0\0", 10));
	CHECK(!truncate("f", 0) && size_of("f") == 0 && pread(fd, got, 10, 0) == 0);
	/* Dirty pages beyond the new end do not come back. */
	CHECK(pwrite(fd, text, LARGE, 0) == LARGE && !ftruncate(fd, 1) && !fsync(fd));
	CHECK(holds(other("f"), "a"));
	FAILS(ftruncate(fd, -1), EINVAL);
	CHECK(!close(fd));

	NEED(put("f", "contents"));
	NEED((fd = open("f", O_RDWR)) >= 0);
	CHECK((r = open("f", O_WRONLY | O_TRUNC)) >= 0 && size_of("f") == 0);
	CHECK(pread(fd, got, 10, 0) == 0);
	CHECK(write(r, "ab", 2) == 2 && !close(r) && pread(fd, got, 10, 0) == 2 && !close(fd));
	NEED((fd = open("f", O_RDONLY)) >= 0);
	FAILS(ftruncate(fd, 0), EINVAL);
	CHECK(!close(fd) && !mkdir("d", 0755));
	FAILS(truncate("d", 0), EISDIR);
	FAILS(truncate("none", 0), ENOENT);
	FAILS(truncate("f", -1), EINVAL);
	free(text);
	free(got);
}

void holes_area(void)
{
	const off_t far = (off_t)5 << 30;
	char got[3 * PAGE];
	struct stat st;
	int fd;

	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(pwrite(fd, "end", 3, far) == 3 && !fsync(fd));
	CHECK(!fstat(fd, &st) && st.st_size == far + 3 && st.st_blocks < 1024);
	CHECK(pread(fd, got, sizeof(got), far / 2 + 1) == sizeof(got) && zero(got, sizeof(got)));
	CHECK(pread(fd, got, sizeof(got), far - 5) == 8 && !memcmp(got, "\0\0\0\0\0end", 8));
	CHECK(lseek(fd, 100, SEEK_HOLE) == 100 && lseek(fd, far, SEEK_HOLE) == far + 3);
	FAILS(lseek(fd, far + 3, SEEK_DATA), ENXIO);
	FAILS(lseek(fd, far + 4, SEEK_HOLE), ENXIO);
	CHECK(!ftruncate(fd, PAGE) && pwrite(fd, "x", 1, 2 * PAGE) == 1);
	CHECK(pread(fd, got, sizeof(got), 0) == 2 * PAGE + 1 && zero(got, 2 * PAGE) &&
	      got[2 * PAGE] == 'x');
	CHECK(!close(fd));
	CHECK((fd = open(other("f"), O_RDONLY)) >= 0 &&
	      pread(fd, got, sizeof(got), 0) == 2 * PAGE + 1 && zero(got, 2 * PAGE) && !close(fd));
}

void sync_area(void)
{
	int fd, d = -1;

	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(fd, "x", 1) == 1 && !fsync(fd) && !fdatasync(fd) && !fsync(fd));
	CHECK(!sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE) && !syncfs(fd) && !close(fd));
	CHECK((fd = open("f", O_RDONLY)) >= 0 && !fsync(fd) && !close(fd));
	CHECK((fd = open("f", O_RDWR | O_SYNC)) >= 0 && write(fd, "s", 1) == 1);
	CHECK(holds(other("f"), "s") && !close(fd)); /* before its close */
	CHECK((fd = open("f", O_RDWR | O_DSYNC | O_APPEND)) >= 0 && write(fd, "t", 1) == 1 &&
	      !close(fd) && holds(other("f"), "st"));
	/* fsync of a directory. */
	NEED(!mkdir("d", 0755) && (d = open("d", O_RDONLY | O_DIRECTORY)) >= 0);
	CHECK(!fsync(d) && put("d/f", "x") && !fsync(d) && !fdatasync(d));
	CHECK(!unlink("d/f") && !rmdir("d") && !fsync(d) && !close(d));
}

/* Bytes move from file to file inside the kernel. */
void copies_area(void)
{
	char *text = letters(LARGE), *got = malloc(LARGE);
	off_t at = 0, to = 0;
	int in, out, p[2];
	ssize_t n;

	NEED((in = open("in", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(in, text, LARGE) == LARGE);
	NEED((out = open("out", O_CREAT | O_RDWR, 0600)) >= 0);
	while ((n = sendfile(out, in, &at, LARGE)) > 0)
		;
	CHECK(!n && at == LARGE && pread(out, got, LARGE, 0) == LARGE && !memcmp(got, text, LARGE));
	CHECK(!ftruncate(out, 0) && !pipe(p));
	for (at = 0; (n = splice(in, &at, p[1], NULL, 16 * PAGE, 0)) > 0;) {
		while (n > 0) {
			const ssize_t m = splice(p[0], NULL, out, &to, (size_t)n, 0);

			NEED(m > 0);
			n -= m;
		}
	}
	CHECK(!n && at == LARGE && to == LARGE && pread(out, got, LARGE, 0) == LARGE &&
	      !memcmp(got, text, LARGE));
	CHECK(!close(p[0]) && !close(p[1]) && !ftruncate(out, 0));
	at = to = 0;
	while ((n = copy_file_range(in, &at, out, &to, LARGE, 0)) > 0)
		;
	CHECK(!n && pread(out, got, LARGE, 0) == LARGE && !memcmp(got, text, LARGE));
	CHECK(!close(in) && !close(out));
	free(text);
	free(got);
}
