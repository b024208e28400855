/* SPDX-License-Identifier: MIT */
/* attributes.c - modes, owners, times, the additions of statx(2), and permissions. */
#define _GNU_SOURCE
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "posix.h"

void modes_area(void)
{
	static const mode_t modes[] = {0, 0400, 0777, 01755, 02755, 04755, 07777, 0644};
	struct stat st;
	int fd;

	NEED(put("f", "x") && !mkdir("d", 0755));
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		CHECK(!chmod("f", modes[i]) && mode_of("f") == modes[i]);
		CHECK(!chmod("d", modes[i]) && mode_of("d") == modes[i]);
	}
	NEED((fd = open("f", O_RDONLY)) >= 0);
	CHECK(!fchmod(fd, 0604) && !fstat(fd, &st) && (st.st_mode & 07777) == 0604);
	CHECK(!close(fd) && S_ISREG(st.st_mode));
	let_clock_tick();
	CHECK(mode_of(other("f")) == 0604);
	FAILS(chmod("none", 0644), ENOENT);
}

void owners_area(void)
{
	struct stat st;
	int fd;

	NEED(put("f", "x"));
	CHECK(!chown("f", 5, 6) && !stat("f", &st) && st.st_uid == 5 && st.st_gid == 6);
	CHECK(!chown("f", (uid_t)-1, 7) && !stat("f", &st) && st.st_uid == 5 && st.st_gid == 7);
	CHECK(!chown("f", 8, (gid_t)-1) && !stat("f", &st) && st.st_uid == 8 && st.st_gid == 7);
	NEED((fd = open("f", O_RDONLY)) >= 0);
	CHECK(!fchown(fd, 0, 0) && !fstat(fd, &st) && !st.st_uid && !st.st_gid);
	CHECK(!fchown(fd, (uid_t)-1, (gid_t)-1) && !close(fd));
	CHECK(!symlink("f", "l") && !lchown("l", 9, 9) && !stat("f", &st) && !st.st_uid);
	CHECK(!lstat("l", &st) && st.st_uid == 9);
	FAILS(chown("none", 1, 1), ENOENT);
}

static bool later(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec > b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec > b->tv_nsec);
}

void times_area(void)
{
	const struct timespec set[2] = {{1000, 5}, {2000, 7}};
	struct timespec some[2] = {{.tv_nsec = UTIME_OMIT}, {3000, 9}};
	struct stat st, before;
	int fd;

	NEED(put("f", "x"));
	CHECK(!utimensat(AT_FDCWD, "f", set, 0) && !stat("f", &st));
	CHECK(st.st_atim.tv_sec == 1000 && st.st_atim.tv_nsec == 5);
	CHECK(st.st_mtim.tv_sec == 2000 && st.st_mtim.tv_nsec == 7);
	CHECK(!utimensat(AT_FDCWD, "f", some, 0) && !stat("f", &st));
	CHECK(st.st_atim.tv_sec == 1000 && st.st_mtim.tv_sec == 3000);
	some[1].tv_nsec = UTIME_NOW;
	CHECK(!utimensat(AT_FDCWD, "f", some, 0) && !stat("f", &st));
	CHECK(st.st_atim.tv_sec == 1000 && st.st_mtim.tv_sec > 3000);
	FAILS(utimensat(AT_FDCWD, "none", set, 0), ENOENT);

	/* A write after the times were set has its own time. */
	NEED((fd = open("f", O_RDWR)) >= 0);
	CHECK(pwrite(fd, "y", 1, 0) == 1 && !futimens(fd, set) && !close(fd));
	CHECK(!stat("f", &st) && st.st_mtim.tv_sec == 2000 && holds("f", "y"));
	let_clock_tick();
	CHECK(!stat("f", &before) && put("f", "z") && !stat("f", &st));
	CHECK(later(&st.st_mtim, &before.st_mtim) && later(&st.st_ctim, &before.st_ctim));

	/* A new name changes its directory's times; a new mode changes no modification time. */
	CHECK(!mkdir("d", 0755) && !stat("d", &before));
	let_clock_tick();
	CHECK(put("d/f", "x") && !stat("d", &st) && later(&st.st_mtim, &before.st_mtim));
	CHECK(!stat("f", &before));
	let_clock_tick();
	CHECK(!chmod("f", 0600) && !stat("f", &st) && later(&st.st_ctim, &before.st_ctim));
	CHECK(!later(&st.st_mtim, &before.st_mtim));
}

static struct statx now_of(const char *path)
{
	struct statx sx = {0};

	CHECK(!statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC | AT_SYMLINK_NOFOLLOW,
		     STATX_BASIC_STATS | STATX_BTIME | STATX_DIOALIGN, &sx));
	return sx;
}

static bool same_birth(const struct statx *a, const struct statx *b)
{
	return a->stx_mask & b->stx_mask & STATX_BTIME &&
	       a->stx_btime.tv_sec == b->stx_btime.tv_sec &&
	       a->stx_btime.tv_nsec == b->stx_btime.tv_nsec;
}

/* A direct write works with the alignments of memory and offset that statx(2) reports. */
static void direct_aligned(const char *path)
{
	static _Alignas(PAGE) char buf[2 * PAGE];
	const struct statx sx = now_of(path);
	const size_t n = sx.stx_dio_offset_align;
	int fd;

	NEED(sx.stx_mask & STATX_DIOALIGN && n && n <= PAGE && sx.stx_dio_mem_align <= PAGE);
	NEED((fd = open(path, O_WRONLY | O_DIRECT)) >= 0);
	CHECK(pwrite(fd, buf + sx.stx_dio_mem_align, n, (off_t)n) == (ssize_t)n);
	CHECK(!close(fd) && size_of(path) == 2 * (off_t)n);
}

void statx_area(void)
{
	struct statx born, now;
	char below[PAGE];
	int fd, flags, none;

	NEED(getenv("BELOW"));
	snprintf(below, sizeof(below), "%s/statx/f", getenv("BELOW"));
	NEED(put("f", "x") && !mkdir("d", 0755) && !symlink("f", "l"));
	born = now_of("f");
	NEED(born.stx_mask & STATX_BTIME);
	CHECK(born.stx_btime.tv_sec >= now_of(".").stx_btime.tv_sec);

	/* The birth time never changes. */
	let_clock_tick();
	NEED((fd = open("f", O_WRONLY)) >= 0);
	CHECK(write(fd, "yy", 2) == 2 && !fchmod(fd, 0640) && !close(fd) && !rename("f", "g"));
	now = now_of("g");
	CHECK(same_birth(&born, &now));
	CHECK(put("f", "x"));
	now = now_of("f");
	CHECK(now.stx_mask & STATX_BTIME && !same_birth(&born, &now));
	born = now;
	now = now_of(other("f"));
	CHECK(same_birth(&born, &now));
	now = now_of(below);
	CHECK(same_birth(&born, &now));
	CHECK(now_of("d").stx_mask & STATX_BTIME && now_of("l").stx_mask & STATX_BTIME);

	/* Attributes of the exported file system. */
	NEED((fd = open(below, O_RDONLY)) >= 0);
	CHECK(!ioctl(fd, FS_IOC_GETFLAGS, &none));
	flags = none | FS_IMMUTABLE_FL | FS_NODUMP_FL;
	NEED(!ioctl(fd, FS_IOC_SETFLAGS, &flags));
	for (int i = 0; i < 2; i++) {
		now = now_of(i ? other("f") : "f");
		CHECK(now.stx_attributes_mask & STATX_ATTR_IMMUTABLE);
		CHECK(now.stx_attributes & STATX_ATTR_IMMUTABLE);
		CHECK(now.stx_attributes & STATX_ATTR_NODUMP);
		CHECK(!(now.stx_attributes & STATX_ATTR_APPEND));
	}
	FAILS(open("f", O_WRONLY), EPERM);
	FAILS(unlink("f"), EPERM);
	FAILS(chmod("f", 0600), EPERM);
	CHECK(!ioctl(fd, FS_IOC_SETFLAGS, &none) && !close(fd));
	CHECK(!(now_of("f").stx_attributes & (STATX_ATTR_IMMUTABLE | STATX_ATTR_NODUMP)));

	direct_aligned("f");
	CHECK(!(now_of("d").stx_mask & STATX_DIOALIGN));
}

static void stranger(void)
{
	const struct timespec set[2] = {{1000, 5}, {2000, 7}};
	struct stat st;
	int fd;

	CHECK(holds("public", "x"));
	FAILS(open("public", O_WRONLY), EACCES);
	FAILS(open("public", O_RDONLY | O_TRUNC), EACCES);
	FAILS(open("secret", O_RDONLY), EACCES);
	FAILS(access("secret", R_OK), EACCES);
	CHECK(!access("public", R_OK));
	FAILS(access("public", W_OK), EACCES);
	FAILS(truncate("public", 0), EACCES);
	FAILS(chmod("public", 0777), EPERM);
	FAILS(chown("public", STRANGER, STRANGER), EPERM);
	FAILS(utimensat(AT_FDCWD, "public", set, 0), EPERM);
	FAILS(utimensat(AT_FDCWD, "public", NULL, 0), EACCES);
	FAILS(open("new", O_CREAT | O_WRONLY, 0644), EACCES);
	FAILS(mkdir("new", 0755), EACCES);
	FAILS(symlink("x", "new"), EACCES);
	FAILS(unlink("public"), EACCES);
	FAILS(rename("public", "sticky/x"), EACCES);
	FAILS(rmdir("empty"), EACCES);
	FAILS(stat("closed/f", &st), EACCES);
	FAILS(open("closed", O_RDONLY | O_DIRECTORY), EACCES);
	CHECK(!stat("blind/f", &st)); /* it permits search, but no listing */
	FAILS(open("blind", O_RDONLY | O_DIRECTORY), EACCES);
	/* Names of other users in a sticky directory. */
	FAILS(unlink("sticky/root"), EPERM);
	FAILS(rename("sticky/root", "sticky/mine"), EPERM);
	CHECK(put("sticky/own", "own") && !unlink("sticky/own"));

	/* The user's own file. */
	NEED((fd = open("sticky/mine", O_CREAT | O_EXCL | O_WRONLY, 0200)) >= 0);
	CHECK(write(fd, "abc", 3) == 3 && !close(fd));
	CHECK(!stat("sticky/mine", &st) && st.st_uid == STRANGER && st.st_gid == STRANGER);
	FAILS(open("sticky/mine", O_RDONLY), EACCES);
	NEED((fd = open("sticky/mine", O_WRONLY)) >= 0);
	CHECK(pwrite(fd, "X", 1, 1) == 1 && pwrite(fd, "long", 4, 5000) == 4 && !close(fd));
	CHECK(!chmod("sticky/mine", 0600) && size_of("sticky/mine") == 5004);
	NEED((fd = open("sticky/mine", O_RDWR)) >= 0);
	CHECK(!fchmod(fd, 0)); /* an open file stays open */
	CHECK(pwrite(fd, "Y", 1, 2) == 1 && !ftruncate(fd, 3) && !close(fd));
	CHECK(!chmod("sticky/mine", 0600) && holds("sticky/mine", "aXY"));
	FAILS(chown("sticky/mine", 0, (gid_t)-1), EPERM);
}

static void member(void)
{
	int fd;

	CHECK((fd = open("group", O_RDWR)) >= 0 && !close(fd));
}

/* Executing takes execute permission only. */
static void run_unread(void)
{
	const pid_t child = fork();
	int status = -1;

	if (!child) {
		execl("tool", "tool", "--list", NULL);
		_exit(99);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	FAILS(open("tool", O_RDONLY), EACCES);
	FAILS(execl("public", "public", NULL), EACCES);
}

/* Copies this program; its --list goes to standard output. */
static bool copy_of_us(const char *to)
{
	const int in = open("/proc/self/exe", O_RDONLY), out = open(to, O_CREAT | O_WRONLY, 0700);
	char buf[PAGE];
	ssize_t n = -1;

	while (in >= 0 && out >= 0 && (n = read(in, buf, sizeof(buf))) > 0)
		if (write(out, buf, (size_t)n) != n)
			return false;
	return !n && !close(in) && !close(out);
}

void permission_area(void)
{
	NEED(copy_of_us("tool") && !chmod("tool", 0711));
	NEED(put("public", "x") && put("secret", "s") && !chmod("secret", 0600));
	NEED(put("group", "g") && !chown("group", 0, 500) && !chmod("group", 0660));
	NEED(!mkdir("empty", 0755) && !mkdir("closed", 0700) && put("closed/f", "x"));
	NEED(!mkdir("blind", 0711) && put("blind/f", "x"));
	NEED(!mkdir("sticky", 0755) && !chmod("sticky", 01777) && put("sticky/root", "x"));
	as_user(STRANGER, STRANGER, stranger);
	as_user(STRANGER, 500, member);
	as_user(STRANGER, STRANGER, run_unread);
	CHECK(holds("sticky/mine", "aXY") && holds(other("sticky/mine"), "aXY"));
}

void statfs_area(void)
{
	struct statvfs v;
	struct statfs a, b;
	int fd;

	NEED(!statfs(".", &a) && !statfs(there, &b));
	CHECK(a.f_type == COOPFS_MAGIC && a.f_namelen == 255);
	CHECK(a.f_bsize > 0 && a.f_blocks > 0 && a.f_bfree <= a.f_blocks &&
	      a.f_bavail <= a.f_bfree);
	CHECK(a.f_blocks == b.f_blocks && a.f_files == b.f_files);
	CHECK(memcmp(&a.f_fsid, &b.f_fsid, sizeof(a.f_fsid)));
	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(!fstatfs(fd, &b) && b.f_blocks == a.f_blocks);
	CHECK(!fstatvfs(fd, &v) && v.f_namemax == 255 && !close(fd));
	FAILS(statfs("none", &a), ENOENT);
}

static void write_one(void)
{
	const int fd = open("program", O_WRONLY);

	CHECK(fd >= 0 && pwrite(fd, "x", 1, 0) == 1 && !close(fd));
}

static int program;

static void write_open(void)
{
	CHECK(pwrite(program, "x", 1, 0) == 1);
}

static void allocate_open(void)
{
	CHECK(!fallocate(program, 0, 0, 2 * PAGE));
}

static void reserve_open(void)
{
	CHECK(!fallocate(program, FALLOC_FL_KEEP_SIZE, 0, 4 * PAGE));
}

static void punch_open(void)
{
	CHECK(!fallocate(program, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2));
}

static int source;

static void copy_open(void)
{
	CHECK(copy_file_range(source, NULL, program, NULL, 1, 0) == 1);
}

/* Of storage: an open asks it, whatever is known on the node. */
static mode_t mode_opened(const char *path)
{
	const int fd = open(path, O_RDONLY);
	struct stat st;

	return CHECK(fd >= 0 && !fstat(fd, &st) && !close(fd)) ? st.st_mode & 07777 : ~0u;
}

/* User 0 opens the program. Its own changes keep the bits, those of another user do not. */
static void others_change(int flags)
{
	static void (*const change[])(void) = {write_open, allocate_open, reserve_open, punch_open,
					       copy_open};
	static const mode_t modes[] = {06777, 02751, 04706};

	for (size_t i = 0; i < sizeof(change) / sizeof(change[0]); i++) {
		for (size_t m = 0; m < 2 * sizeof(modes) / sizeof(modes[0]); m++) {
			const mode_t mode = modes[m / 2];
			const bool known = m % 2; /* to the node that changes the file */
			bool good = true;

			NEED(!chmod("program", 0700) && mode_of("program") == 0700);
			NEED((source = open("source", O_RDONLY)) >= 0);
			NEED((program = open("program", flags)) >= 0 &&
			     !chmod(known ? "program" : other("program"), mode));
			if (known) {
				change[i]();
				good = CHECK(mode_of("program") == mode);
				NEED(!lseek(program, 0, SEEK_SET) && !lseek(source, 0, SEEK_SET));
			}
			as_user(STRANGER, STRANGER, change[i]);
			good = CHECK(mode_of("program") == (mode & 0777)) && good;
			good = CHECK(!fsync(program) && !close(program) && !close(source)) && good;
			good = CHECK(mode_opened(other("program")) == (mode & 0777)) && good;
			if (!good)
				fprintf(stderr, "change %zu, mode %zu, flags %d\n", i, m, flags);
		}
	}
}

/* A change by another user clears set-id bits, and so does a change of owner. */
void set_id_area(void)
{
	NEED(put("program", "text") && !chmod("program", 06777));
	as_user(STRANGER, STRANGER, write_one);
	CHECK(mode_of("program") == 0777 && mode_of(other("program")) == 0777);
	CHECK(!chmod("program", 06777) && mode_of("program") == 06777);
	CHECK(!chown("program", STRANGER, STRANGER) && mode_of("program") == 0777);
	/* A mode that another node has set meanwhile stays: a write clears bits and sets none. */
	NEED(!chmod("program", 06777) && mode_of("program") == 06777);
	NEED((program = open("program", O_WRONLY)) >= 0 && !chmod(other("program"), 0700));
	as_user(STRANGER, STRANGER, write_open);
	CHECK(!close(program) && mode_of("program") == 0700);
	/* Storage acts as the user who opened the file, but the one who changes it counts. */
	NEED(put("source", "text") && !chown("program", 0, 0));
	others_change(O_WRONLY);
	others_change(O_RDWR);
}
