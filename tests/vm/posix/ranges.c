/* SPDX-License-Identifier: MIT */
/*
 * ranges.c - fallocate, SEEK_DATA and SEEK_HOLE, copies and clones by storage, and its quota;
 * with bytes that are dirty, cached and mapped here. An operation that the export's file system
 * lacks may fail with EOPNOTSUPP, and then changes nothing.
 */
#define _GNU_SOURCE
#include <linux/falloc.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/quota.h>
#include <unistd.h>

#include "posix.h"

#define PAGES 8
#define LARGE (PAGES * PAGE)

static char text[LARGE], got[2 * LARGE];

static void fill(void)
{
	size_t i;

	for (i = 0; i < sizeof(text); i++)
		text[i] = (char)('a' + i % 23);
}

static bool zero(const char *p, size_t n)
{
	while (n && !*p) {
		p++;
		n--;
	}
	return !n;
}

static bool text_at(const char *p, size_t from, size_t to)
{
	return !memcmp(p + from, text + from, to - from);
}

/* Reads the whole file through the other mount. */
static ssize_t read_other(const char *name)
{
	const int fd = open(other(name), O_RDONLY);
	ssize_t n;

	if (fd < 0)
		return -1;
	memset(got, '?', sizeof(got));
	n = read(fd, got, sizeof(got));
	close(fd);
	return n;
}

/* True: success. False: the file system lacks the operation. */
static bool done(int result)
{
	const int error = errno;

	return !result || (CHECK(error == EOPNOTSUPP) && false);
}

static void allocate_moves(int fd)
{
	const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	struct stat st;

	CHECK(!fallocate(fd, 0, LARGE - PAGE, 3 * PAGE) && size_of("f") == LARGE + 2 * PAGE);
	CHECK(!fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 64 * PAGE));
	CHECK(!fstat(fd, &st) && st.st_size == LARGE + 2 * PAGE && st.st_blocks >= 64 * PAGE / 512);
	CHECK(pread(fd, got, sizeof(got), 0) == LARGE + 2 * PAGE && text_at(got, 0, LARGE) &&
	      zero(got + LARGE, 2 * PAGE));
	/* Dirty bytes are written back first, and the cache drops the punched range. */
	CHECK(pwrite(fd, "dirty", 5, 2 * PAGE) == 5 && pwrite(fd, "dirty", 5, 10) == 5);
	CHECK(!fallocate(fd, punch, 2 * PAGE - 100, PAGE + 200));
	CHECK(pread(fd, got, LARGE, 0) == LARGE && !memcmp(got + 10, "dirty", 5) &&
	      text_at(got, 15, 2 * PAGE - 100) && zero(got + 2 * PAGE - 100, PAGE + 200) &&
	      text_at(got, 3 * PAGE + 100, LARGE));
	CHECK(!fsync(fd) && read_other("f") == LARGE + 2 * PAGE && !memcmp(got + 10, "dirty", 5) &&
	      zero(got + 2 * PAGE - 100, PAGE + 200) && text_at(got, 3 * PAGE + 100, LARGE));
	CHECK(pwrite(fd, text, LARGE, 0) == LARGE && !ftruncate(fd, LARGE));
	if (done(fallocate(fd, FALLOC_FL_ZERO_RANGE, LARGE - 50, 100)))
		CHECK(pread(fd, got, sizeof(got), 0) == LARGE + 50 && text_at(got, 0, LARGE - 50) &&
		      zero(got + LARGE - 50, 100));
	CHECK(pwrite(fd, text, LARGE, 0) == LARGE && !ftruncate(fd, LARGE));
	if (done(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, PAGE, 2 * PAGE)))
		CHECK(pread(fd, got, sizeof(got), 0) == LARGE - 2 * PAGE && text_at(got, 0, PAGE) &&
		      !memcmp(got + PAGE, text + 3 * PAGE, LARGE - 3 * PAGE));
	CHECK(pwrite(fd, text, LARGE, 0) == LARGE && !ftruncate(fd, LARGE));
	if (done(fallocate(fd, FALLOC_FL_INSERT_RANGE, PAGE, PAGE)))
		CHECK(pread(fd, got, sizeof(got), 0) == LARGE + PAGE && text_at(got, 0, PAGE) &&
		      zero(got + PAGE, PAGE) && !memcmp(got + 2 * PAGE, text + PAGE, LARGE - PAGE));
}

static void allocate_mapped(int fd)
{
	const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	char *map;

	CHECK(!ftruncate(fd, 0) && pwrite(fd, text, LARGE, 0) == LARGE);
	map = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(map != MAP_FAILED);
	memcpy(map + PAGE + 8, "stored", 6);
	memcpy(map + 5 * PAGE, "stored", 6);
	CHECK(!fallocate(fd, punch, PAGE, PAGE));
	CHECK(zero(map + PAGE, PAGE) && !memcmp(map + 5 * PAGE, "stored", 6) &&
	      text_at(map, 2 * PAGE, 5 * PAGE));
	memcpy(map + PAGE + 100, "again", 5);
	CHECK(!msync(map, LARGE, MS_SYNC) && read_other("f") == LARGE && zero(got + PAGE, 100) &&
	      !memcmp(got + PAGE + 100, "again", 5) && !memcmp(got + 5 * PAGE, "stored", 6));
	CHECK(!munmap(map, LARGE));
}

void allocate_area(void)
{
	int fd, reader;

	fill();
	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(fd, text, LARGE) == LARGE);
	allocate_moves(fd);
	allocate_mapped(fd);
	FAILS(fallocate(fd, 0, 0, 0), EINVAL);
	FAILS(fallocate(fd, 0, -1, PAGE), EINVAL);
	FAILS(fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, PAGE), EOPNOTSUPP);
	FAILS(fallocate(fd, 0, 0x7fffffffffffff00, PAGE), EFBIG);
	NEED((reader = open("f", O_RDONLY)) >= 0);
	FAILS(fallocate(reader, 0, 0, PAGE), EBADF);
	/* More than the free space or the largest file: it leaves nothing behind. */
	CHECK(fallocate(fd, 0, 0, 1ll << 50) && (errno == ENOSPC || errno == EFBIG));
	CHECK(size_of("f") == LARGE && pread(fd, got, LARGE, 0) == LARGE &&
	      text_at(got, 6 * PAGE, LARGE));
	CHECK(!close(reader) && !close(fd));
}

void seek_area(void)
{
	const off_t at = 64 * PAGE;
	int fd;

	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(!ftruncate(fd, 2 * at) && pwrite(fd, "dirty", 5, at) == 5);
	CHECK(lseek(fd, 0, SEEK_DATA) == at && lseek(fd, 0, SEEK_HOLE) == 0);
	CHECK(lseek(fd, at, SEEK_HOLE) == at + PAGE && lseek(fd, 0, SEEK_CUR) == at + PAGE);
	FAILS(lseek(fd, at + PAGE, SEEK_DATA), ENXIO);
	FAILS(lseek(fd, 2 * at, SEEK_HOLE), ENXIO);
	FAILS(lseek(fd, -1, SEEK_DATA), ENXIO);
	CHECK(!close(fd));
}

void copy_area(void)
{
	struct file_clone_range clone = {0};
	loff_t from = PAGE + 7, to = 9;
	int a, b, append;
	char *map;

	fill();
	NEED((a = open("a", O_CREAT | O_RDWR, 0600)) >= 0);
	NEED((b = open("b", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(a, text, LARGE) == LARGE && write(b, text, LARGE) == LARGE);
	map = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED, b, 0);
	NEED(map != MAP_FAILED);
	memcpy(map + 4 * PAGE, "stored", 6); /* outside the copy's target */
	memcpy(map + 100, "gone", 4);
	CHECK(pwrite(a, "dirty", 5, 2 * PAGE) == 5);
	CHECK(copy_file_range(a, &from, b, &to, 2 * PAGE, 0) == 2 * PAGE && from == 3 * PAGE + 7 &&
	      to == 2 * PAGE + 9);
	CHECK(text_at(map, 0, 9) && !memcmp(map + 9, text + PAGE + 7, PAGE - 7) &&
	      !memcmp(map + 9 + PAGE - 7, "dirty", 5) && !memcmp(map + 4 * PAGE, "stored", 6));
	CHECK(!msync(map, LARGE, MS_SYNC) && read_other("b") == LARGE && !memcmp(got, map, LARGE));
	CHECK(!munmap(map, LARGE));
	from = 0, to = LARGE - 5;
	CHECK(copy_file_range(a, &from, b, &to, LARGE, 0) == LARGE &&
	      size_of("b") == 2 * LARGE - 5);
	from = LARGE;
	CHECK(!copy_file_range(a, &from, b, &to, LARGE, 0));
	from = 0, to = PAGE;
	FAILS(copy_file_range(a, &from, a, &to, 2 * PAGE, 0), EINVAL);
	CHECK(copy_file_range(a, &from, a, &to, PAGE, 0) == PAGE &&
	      pread(a, got, LARGE, 0) == LARGE && text_at(got, 0, PAGE) &&
	      !memcmp(got + PAGE, text, PAGE));
	NEED((append = open("b", O_WRONLY | O_APPEND)) >= 0);
	FAILS(copy_file_range(a, &from, append, NULL, PAGE, 0), EBADF);
	CHECK(!ftruncate(b, 0));
	clone.src_fd = a;
	if (done(ioctl(b, FICLONERANGE, &clone)))
		CHECK(pread(b, got, sizeof(got), 0) == LARGE && text_at(got, 3 * PAGE, LARGE));
	CHECK(!close(a) && !close(b) && !close(append));
}

/* Whether the file shares all its blocks in the exported file system with another. */
static bool shared(const char *name)
{
	struct {
		struct fiemap head;
		struct fiemap_extent extents[PAGES];
	} map = {.head = {.fm_length = ~0ull, .fm_flags = FIEMAP_FLAG_SYNC}};
	char below[PAGE];
	bool all;
	int fd;

	snprintf(below, sizeof(below), "%s/clone/%s", getenv("BELOW"), name);
	map.head.fm_extent_count = PAGES;
	fd = open(below, O_RDONLY);
	all = fd >= 0 && !ioctl(fd, FS_IOC_FIEMAP, &map) && map.head.fm_mapped_extents;
	for (unsigned int i = 0; all && i < map.head.fm_mapped_extents; i++)
		all = map.extents[i].fe_flags & FIEMAP_EXTENT_SHARED;
	if (fd >= 0)
		close(fd);
	return all;
}

static int clone_from, clone_to;

static void clone_open(void)
{
	CHECK(!ioctl(clone_to, FICLONE, clone_from));
}

/* If the exported file system shares blocks, clones succeed and files stay independent. */
void clone_area(void)
{
	struct file_clone_range part = {.src_offset = PAGE, .src_length = 2 * PAGE};
	loff_t from = 0, to = 0;
	int a, b, c, elsewhere;
	char old[LARGE];
	char *map;

	fill();
	memset(old, 'o', sizeof(old));
	NEED(getenv("BELOW"));
	NEED((a = open("a", O_CREAT | O_RDWR, 0600)) >= 0);
	NEED((b = open("b", O_CREAT | O_RDWR, 0600)) >= 0);
	NEED((c = open("c", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(b, old, LARGE) == LARGE && !fsync(b));
	NEED((elsewhere = open(other("b"), O_RDONLY)) >= 0);
	CHECK(pread(elsewhere, got, LARGE, 0) == LARGE && !memcmp(got, old, LARGE));
	map = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED, b, 0);
	NEED(map != MAP_FAILED && *map == 'o');

	/* The clone has the source's dirty bytes; the cache drops those of the target. */
	CHECK(write(a, text, LARGE) == LARGE);
	memcpy(map + 3 * PAGE, "gone", 4);
	NEED(!ioctl(b, FICLONE, a));
	CHECK(!memcmp(map, text, LARGE) && pread(b, got, LARGE, 0) == LARGE);
	CHECK(!memcmp(got, text, LARGE) && shared("a") && shared("b"));
	CHECK(!close(elsewhere) && read_other("b") == LARGE && !memcmp(got, text, LARGE));

	/* A store into one file does not show in the other, on either node. */
	memcpy(map + PAGE, "mine", 4);
	CHECK(!msync(map, LARGE, MS_SYNC) && pread(a, got, LARGE, 0) == LARGE);
	CHECK(!memcmp(got, text, LARGE) && read_other("a") == LARGE && !memcmp(got, text, LARGE));
	CHECK(read_other("b") == LARGE && !memcmp(got + PAGE, "mine", 4) && !shared("b"));

	/* A range, beside dirty bytes that stay. */
	CHECK(pwrite(b, old, LARGE, 0) == LARGE);
	part.src_fd = a;
	part.dest_offset = 4 * PAGE;
	CHECK(!ioctl(b, FICLONERANGE, &part));
	CHECK(!memcmp(map, old, 4 * PAGE) && !memcmp(map + 4 * PAGE, text + PAGE, 2 * PAGE) &&
	      !memcmp(map + 6 * PAGE, old, 2 * PAGE));
	CHECK(!fsync(b) && read_other("b") == LARGE && !memcmp(got, map, LARGE));
	part.dest_offset = 1;
	FAILS(ioctl(b, FICLONERANGE, &part), EINVAL);
	part.dest_offset = 0;
	part.src_offset = LARGE;
	FAILS(ioctl(b, FICLONERANGE, &part), EINVAL);
	CHECK(pread(b, got, LARGE, 0) == LARGE && !memcmp(got, map, LARGE) && !munmap(map, LARGE));

	/* A copy by storage shares blocks too. */
	CHECK(copy_file_range(a, &from, c, &to, LARGE, 0) == LARGE && shared("c"));
	CHECK(pread(c, got, LARGE, 0) == LARGE && !memcmp(got, text, LARGE));
	CHECK(read_other("c") == LARGE && !memcmp(got, text, LARGE));

	/* Another user's clone takes set-id bits, that of user 0, who opened it, does not. */
	clone_from = a;
	clone_to = b;
	NEED(!fchmod(b, 06777));
	clone_open();
	CHECK(mode_of("b") == 06777);
	as_user(STRANGER, STRANGER, clone_open);
	CHECK(mode_of("b") == 0777 && shared("b"));
	CHECK(!close(a) && !close(b) && !close(c));
}

/* ---- quotas --------------------------------------------------------------------------- */

#define QUOTA (1 << 20) /* STRANGER's limit in bytes */

static bool quota_of_stranger(unsigned int bytes)
{
	struct dqblk limit = {.dqb_bhardlimit = bytes / QIF_DQBLKSIZE, .dqb_valid = QIF_BLIMITS};

	return !quotactl(QCMD(Q_SETQUOTA, USRQUOTA), getenv("QUOTA_DEVICE"), STRANGER,
			 (void *)&limit);
}

/* Writes until one fails. Returns the bytes taken; the errno is of a write or the fsync. */
static off_t write_beyond(int fd, int *error)
{
	off_t n = 0;

	*error = 0;
	while (n < 2 * QUOTA && pwrite(fd, text, LARGE, n) == LARGE)
		n += LARGE;
	if (n < 2 * QUOTA)
		*error = errno;
	if (fsync(fd))
		*error = errno;
	return n;
}

static void beyond_quota(void)
{
	struct stat st;
	off_t n;
	int fd, error;

	NEED((fd = open("before", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(write(fd, text, LARGE) == LARGE && !fsync(fd) && !close(fd));
	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	n = write_beyond(fd, &error);
	CHECK(error == EDQUOT);
	CHECK(!fstat(fd, &st) && st.st_blocks <= QUOTA / 512 && n >= QUOTA / 2);
	/* The error comes once; earlier bytes stay, and may be overwritten. */
	CHECK(!fsync(fd) && !close(fd));
	NEED((fd = open("before", O_RDWR)) >= 0);
	CHECK(pread(fd, got, sizeof(got), 0) == LARGE && text_at(got, 0, LARGE));
	CHECK(pwrite(fd, "over", 4, 0) == 4 && !fsync(fd));

	/* A failed allocation leaves nothing behind. */
	FAILS(fallocate(fd, 0, 0, 2 * QUOTA), EDQUOT);
	CHECK(!fstat(fd, &st) && st.st_size == LARGE && !close(fd));

	/* Without the page cache. */
	NEED((fd = open("d", O_CREAT | O_RDWR | O_DIRECT, 0600)) >= 0);
	write_beyond(fd, &error);
	CHECK(error == EDQUOT && !close(fd));

	/* Freed space can be used again. */
	CHECK(!unlink("f") && !unlink("d") && put("g", "room"));
	NEED((fd = open("g", O_RDWR)) >= 0);
	CHECK(pwrite(fd, text, LARGE, 0) == LARGE && !fsync(fd) && !close(fd));
}

/* The quota of the exported file system, on device QUOTA_DEVICE, limits a user's bytes. */
void quota_area(void)
{
	fill();
	NEED(getenv("QUOTA_DEVICE") && !chmod(".", 0777));
	NEED(quota_of_stranger(QUOTA));
	as_user(STRANGER, STRANGER, beyond_quota);
	CHECK(read_other("before") == LARGE && !memcmp(got, "over", 4) && text_at(got, 4, LARGE));
	CHECK(read_other("g") == LARGE && text_at(got, 0, LARGE));
	CHECK(quota_of_stranger(0));
}
