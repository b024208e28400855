/* SPDX-License-Identifier: MIT */
/* nodes.c - what one mount sees of another's changes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "posix.h"

/* An open elsewhere follows a close, again and again, without a pause. */
void close_to_open_area(void)
{
	char text[32], *large = malloc(20 * PAGE), *got = malloc(20 * PAGE);
	struct stat st;
	int fd, r;

	for (unsigned int i = 0; i < 40; i++) {
		const char *from = i % 2 ? other("f") : "f", *to = i % 2 ? "f" : other("f");

		sprintf(text, "round %02u%.*s", i, (int)(i % 5), "xxxxx");
		CHECK(put(from, text) && holds(to, text));
		CHECK((r = open(to, O_RDONLY)) >= 0 && !fstat(r, &st) &&
		      st.st_size == (off_t)strlen(text) && !close(r));
	}
	/* Parts of pages, written from both sides: none is lost. */
	memset(large, 'o', 20 * PAGE);
	NEED((fd = open("g", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(fd, large, 20 * PAGE) == 20 * PAGE && !close(fd));
	for (unsigned int i = 0; i < 20; i++) {
		const off_t at = i * 4001;

		memset(large + at, 'a' + (int)i, 100);
		CHECK((fd = open(i % 2 ? other("g") : "g", O_RDWR)) >= 0);
		CHECK(pwrite(fd, large + at, 100, at) == 100 && !close(fd));
		CHECK((r = open(i % 2 ? "g" : other("g"), O_RDONLY)) >= 0);
		CHECK(pread(r, got, 20 * PAGE, 0) == 20 * PAGE && !memcmp(got, large, 20 * PAGE) &&
		      !close(r));
	}
	CHECK(!truncate(other("g"), 100) && (r = open("g", O_RDONLY)) >= 0);
	CHECK(pread(r, got, PAGE, 0) == 100 && !close(r));
	free(large);
	free(got);
}

/* Two nodes write different parts of a page at once: the page has both. */
void page_parts_area(void)
{
	char wanted[PAGE], got[PAGE];
	int a = -1, b = -1, fd;

	memset(wanted, 'o', PAGE);
	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	NEED(pwrite(fd, wanted, PAGE, 0) == PAGE && !close(fd));
	for (unsigned int i = 0; i < 8; i++) {
		const off_t at = i * 500;

		NEED((a = open("f", O_RDWR)) >= 0 && (b = open(other("f"), O_RDWR)) >= 0);
		memset(wanted + at, 'A' + (int)i, 200);
		memset(wanted + at + 80, 'a' + (int)i, 40);
		/* Before and after b's part, in either order, without writeback in between. */
		CHECK(pwrite(a, wanted + at, 80, at) == 80);
		if (i % 2)
			CHECK(pread(a, got, PAGE, 0) == PAGE);
		CHECK(pwrite(a, wanted + at + 120, 80, at + 120) == 80);
		CHECK(pwrite(b, wanted + at + 80, 40, at + 80) == 40);
		CHECK(!close(b) && !close(a));
		for (int there = 0; there < 2; there++)
			CHECK((fd = open(there ? other("f") : "f", O_RDONLY)) >= 0 &&
			      pread(fd, got, PAGE, 0) == PAGE && !memcmp(got, wanted, PAGE) &&
			      !close(fd));
	}
}

/* A file without a name lives until its last close. */
void unlinked_area(void)
{
	struct stat st;
	char got[16];
	int fd;

	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(fd, "gone", 4) == 4 && !unlink("f"));
	CHECK(!fstat(fd, &st) && st.st_nlink == 0 && st.st_size == 4);
	CHECK(pread(fd, got, 10, 0) == 4 && !memcmp(got, "gone", 4));
	CHECK(put("f", "another"));
	CHECK(pwrite(fd, "more", 4, 4) == 4 && !fsync(fd));
	CHECK(!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	CHECK(pread(fd, got, 10, 0) == 8 && !memcmp(got, "gonemore", 8));
	CHECK(!ftruncate(fd, 2) && !fstat(fd, &st) && st.st_size == 2);
	CHECK(!fchmod(fd, 0400) && !fstat(fd, &st) && (st.st_mode & 0777) == 0400);
	CHECK(!close(fd) && holds("f", "another"));

	/* The other mount removes its name. */
	NEED((fd = open("f", O_RDWR)) >= 0 && !unlink(other("f")));
	CHECK(pread(fd, got, 10, 0) == 7 && pwrite(fd, "X", 1, 0) == 1 && !fsync(fd));
	CHECK(!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	CHECK(pread(fd, got, 10, 0) == 7 && !memcmp(got, "Xnother", 7));
	CHECK(!close(fd));
	FAILS(open("f", O_RDONLY), ENOENT);
}

void removed_elsewhere_area(void)
{
	struct dirent *e;
	struct stat st;
	DIR *d = NULL;
	int fd;

	/* A path that this node has just used. */
	NEED(put("f", "x") && holds("f", "x") && !unlink(other("f")));
	FAILS(open("f", O_RDONLY), ENOENT);
	CHECK(put("f", "new") && holds(other("f"), "new"));
	/* Another file of the same name. */
	CHECK(!unlink(other("f")) && put(other("f"), "third") && holds("f", "third"));
	CHECK(!unlink(other("f")) && !mkdir(other("f"), 0755));
	FAILS(open("f", O_WRONLY), EISDIR);
	CHECK(put("f/below", "x") && !unlink(other("f/below")) && !rmdir(other("f")));
	FAILS(open("f/below", O_CREAT | O_WRONLY, 0600), ENOENT);

	/* A name removed there can be made here, although it was here a moment ago. */
	NEED(put("lock", "x") && holds("lock", "x") && !unlink(other("lock")));
	CHECK((fd = open("lock", O_CREAT | O_EXCL | O_WRONLY, 0600)) >= 0 && !close(fd));

	/* The current directory, removed there, is empty and stale. */
	NEED(!mkdir("d", 0755) && put("d/f", "x") && !chdir("d") && (d = opendir(".")));
	CHECK(!unlink(other("d/f")) && !rmdir(other("d")));
	FAILS(open("g", O_CREAT | O_WRONLY, 0600), ESTALE);
	FAILS(mkdir("g", 0700), ESTALE);
	FAILS(open("f", O_RDONLY), ESTALE);
	while ((e = readdir(d)))
		CHECK(e->d_name[0] == '.');
	CHECK(!closedir(d) && !chdir(here));
	FAILS(stat("d/f", &st), ENOENT);
	/* The client trusts the middle of a path for a second. */
	CHECK(!mkdir("d", 0755) && put("d/f", "y") && sleep(2) == 0 && holds(other("d/f"), "y"));
}

void renamed_elsewhere_area(void)
{
	char got[8];
	int fd;

	NEED(put("a", "first") && put("b", "second"));
	NEED((fd = open("a", O_RDWR)) >= 0);
	CHECK(!rename(other("a"), other("c")));
	FAILS(open("a", O_RDONLY), ENOENT);
	CHECK(holds("c", "first"));
	CHECK(pwrite(fd, "F", 1, 0) == 1 && !close(fd) && holds(other("c"), "First"));
	/* A rename over a file that is open here. */
	NEED((fd = open("b", O_RDONLY)) >= 0);
	CHECK(!rename(other("c"), other("b")) && holds("b", "First"));
	CHECK(pread(fd, got, 6, 0) == 6 && !memcmp(got, "second", 6) && !close(fd));
	/*
	 * A rename to the name of a file that was just made here and lives on under another name:
	 * the creator must not trust its own mark at the old name.
	 */
	CHECK(put(other("n"), "new"));
	NEED((fd = open("k", O_CREAT | O_RDWR, 0600)) >= 0 && !close(fd));
	CHECK(!rename(other("k"), other("l")) && !rename(other("n"), other("k")));
	CHECK(holds("k", "new") && holds("l", ""));
	/* A directory with everything below it, while it is current here. */
	NEED(!mkdir("d", 0755) && !mkdir("d/e", 0755) && put("d/e/f", "x") && !chdir("d/e"));
	CHECK(!rename(other("d"), other("m")));
	CHECK(holds("f", "x") && put("g", "y") && holds(other("m/e/g"), "y"));
	CHECK(!chdir(here) && holds("m/e/g", "y"));
	FAILS(open("d/e/f", O_RDONLY), ENOENT);
	/* Renames to and fro: each lookup finds the present file. */
	for (unsigned int i = 0; i < 10; i++) {
		CHECK(!rename(i % 2 ? "q" : "b", i % 2 ? "b" : "q"));
		CHECK(holds(other(i % 2 ? "b" : "q"), "First"));
		FAILS(open(other(i % 2 ? "q" : "b"), O_RDONLY), ENOENT);
	}
}

/* Storage chooses where an append goes, so two nodes lose no appended bytes. */
void both_append_area(void)
{
	unsigned int count[2] = {0, 0}, odd = 0;
	int a = -1, b = -1, fd, n;
	char line[16];

	NEED((a = open("f", O_CREAT | O_WRONLY | O_APPEND, 0600)) >= 0);
	NEED((b = open(other("f"), O_WRONLY | O_APPEND)) >= 0);
	for (int i = 0; i < 60; i++) {
		n = sprintf(line, "a%06d\n", i);
		CHECK(write(a, line, (size_t)n) == n);
		line[0] = 'b';
		CHECK(write(b, line, (size_t)n) == n);
	}
	CHECK(!close(a) && !close(b));
	CHECK(size_of("f") == 120 * 8);
	NEED((fd = open("f", O_RDONLY)) >= 0);
	while (read(fd, line, 8) == 8) {
		line[8] = 0;
		if ((line[0] == 'a' || line[0] == 'b') && atoi(line + 1) >= 0 && line[7] == '\n' &&
		    (unsigned int)atoi(line + 1) == count[line[0] - 'a'])
			count[line[0] - 'a']++;
		else
			odd++;
	}
	CHECK(count[0] == 60 && count[1] == 60 && !odd && !close(fd));
}
