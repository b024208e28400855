/* SPDX-License-Identifier: MIT */
/*
 * types.c - every operation on each of the seven types of file, by root and by a user
 * that owns nothing; and the uses of FIFOs, sockets and devices.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "posix.h"

#define NULL_DEVICE makedev(1, 3)
#define NO_DEVICE   makedev(0xabc, 0x12345) /* a number of more than 16 bits */

static const struct type {
	const char *name;
	mode_t mode;
	unsigned char dirent;
	int truncate; /* errno of truncate(2) */
} types[] = {
	{"regular", S_IFREG, DT_REG, 0},       {"directory", S_IFDIR, DT_DIR, EISDIR},
	{"symlink", S_IFLNK, DT_LNK, 0},       {"fifo", S_IFIFO, DT_FIFO, EINVAL},
	{"socket", S_IFSOCK, DT_SOCK, EINVAL}, {"character", S_IFCHR, DT_CHR, EINVAL},
	{"block", S_IFBLK, DT_BLK, EINVAL},
};
#define TYPES (sizeof(types) / sizeof(types[0]))

static bool is_link(const struct type *t)
{
	return t->mode == S_IFLNK;
}

static int make(const struct type *t, const char *name)
{
	switch (t->mode) {
	case S_IFDIR:
		return mkdir(name, 0750);
	case S_IFLNK:
		return symlink("target", name);
	case S_IFCHR:
	case S_IFBLK:
		return mknod(name, t->mode | 0640, NO_DEVICE);
	default:
		return mknod(name, t->mode | 0640, 0);
	}
}

static int take_away(const struct type *t, const char *name)
{
	return t->mode == S_IFDIR ? rmdir(name) : unlink(name);
}

static bool is(const struct type *t, const char *name)
{
	struct stat st;

	if (lstat(name, &st) || (st.st_mode & S_IFMT) != t->mode)
		return false;
	return (t->mode != S_IFCHR && t->mode != S_IFBLK) || st.st_rdev == NO_DEVICE;
}

static void listed(const struct type *t, const char *name)
{
	const struct dirent *e;
	DIR *d = opendir(".");
	bool found = false;

	NEED(d);
	while ((e = readdir(d))) {
		if (strcmp(e->d_name, name))
			continue;
		found = true;
		CHECK(e->d_type == t->dirent);
	}
	CHECK(found && !closedir(d));
}

static void attributes_of(const struct type *t, const char *name)
{
	const struct timespec set[2] = {{1000, 5}, {2000, 7}};
	struct stat st;

	if (is_link(t)) {
		FAILS(fchmodat(AT_FDCWD, name, 0600, AT_SYMLINK_NOFOLLOW), EOPNOTSUPP);
	} else {
		CHECK(!lstat(name, &st) &&
		      (st.st_mode & 07777) == (S_ISDIR(st.st_mode) ? 0750 : 0640));
		CHECK(!chmod(name, 0604) && !lstat(name, &st) && (st.st_mode & 07777) == 0604);
	}
	CHECK(!lchown(name, 5, 6) && !lstat(name, &st) && st.st_uid == 5 && st.st_gid == 6);
	CHECK(!utimensat(AT_FDCWD, name, set, AT_SYMLINK_NOFOLLOW) && !lstat(name, &st));
	CHECK(st.st_atim.tv_sec == 1000 && st.st_mtim.tv_sec == 2000 && st.st_mtim.tv_nsec == 7);
	CHECK(is(t, name) && is(t, other(name)));
}

/* Another mount may trust a name for a second, so these names never meant another file. */
static void names_of(const struct type *t, const char *name)
{
	char moved[32], file[32];
	struct stat st;

	snprintf(moved, sizeof(moved), "moved-%s", name);
	snprintf(file, sizeof(file), "file-%s", name);

	if (t->mode == S_IFDIR) {
		FAILS(link(name, "second"), EPERM);
	} else {
		CHECK(!linkat(AT_FDCWD, name, AT_FDCWD, "second", 0) && is(t, "second"));
		CHECK(!lstat(name, &st) && st.st_nlink == 2);
		CHECK(!unlink("second") && !lstat(name, &st) && st.st_nlink == 1);
	}
	CHECK(!rename(name, moved) && absent(name) && is(t, moved) && is(t, other(moved)));
	CHECK(!renameat2(AT_FDCWD, moved, AT_FDCWD, name, RENAME_NOREPLACE) && is(t, name));
	NEED(put(file, "text"));
	FAILS(renameat2(AT_FDCWD, file, AT_FDCWD, name, RENAME_NOREPLACE), EEXIST);
	CHECK(!renameat2(AT_FDCWD, file, AT_FDCWD, name, RENAME_EXCHANGE) && is(t, file));
	CHECK(holds(name, "text"));
	CHECK(!renameat2(AT_FDCWD, file, AT_FDCWD, name, RENAME_EXCHANGE) && is(t, name));
	if (t->mode == S_IFDIR) {
		FAILS(rename(file, name), EISDIR);
		FAILS(rename(name, file), ENOTDIR);
	} else { /* over each other */
		CHECK(!rename(name, file) && is(t, file) && absent(name));
		CHECK(put("file2", "text") && !rename("file2", file) && holds(file, "text"));
		CHECK(!make(t, name));
	}
	CHECK(!unlink(file));
}

static void opened(const struct type *t, const char *name)
{
	struct stat st;
	int fd;

	FAILS(open(name, O_CREAT | O_EXCL | O_RDWR, 0600), EEXIST);
	FAILS(mkdir(name, 0700), EEXIST);
	FAILS(symlink("x", name), EEXIST);
	for (size_t i = 0; i < TYPES; i++)
		FAILS(make(&types[i], name), EEXIST);
	CHECK((fd = open(name, O_PATH | O_NOFOLLOW)) >= 0 && !fstat(fd, &st));
	CHECK((st.st_mode & S_IFMT) == t->mode && !close(fd));
	if (t->truncate)
		FAILS(truncate(name, 0), t->truncate);
	if (t->mode == S_IFSOCK)
		FAILS(open(name, O_RDWR), ENXIO);
	if (t->mode == S_IFIFO)
		FAILS(open(name, O_WRONLY | O_NONBLOCK), ENXIO);
	if (is_link(t))
		FAILS(open(name, O_RDONLY | O_NOFOLLOW), ELOOP);
	else
		FAILS(readlink(name, (char[8]){0}, 8), EINVAL);
	if (t->mode == S_IFDIR)
		FAILS(unlink(name), EISDIR);
	else
		FAILS(rmdir(name), ENOTDIR);
	if (t->mode != S_IFDIR && !is_link(t))
		FAILS(open("regular/x", O_RDONLY), ENOTDIR);
}

static void as_stranger(void)
{
	const struct timespec set[2] = {{1000, 5}, {2000, 7}};

	for (size_t i = 0; i < TYPES; i++) {
		const struct type *t = &types[i];

		if (!is_link(t))
			FAILS(chmod(t->name, 0777), EPERM);
		FAILS(lchown(t->name, STRANGER, STRANGER), EPERM);
		FAILS(utimensat(AT_FDCWD, t->name, set, AT_SYMLINK_NOFOLLOW), EPERM);
		FAILS(take_away(t, t->name), EACCES);
		FAILS(rename(t->name, "own/x"), EACCES);
		if (t->mode == S_IFCHR || t->mode == S_IFBLK) {
			FAILS(make(t, "own/x"), EPERM);
			continue;
		}
		FAILS(make(t, "x"), EACCES);
		CHECK(!make(t, "own/x") && is(t, "own/x") && !take_away(t, "own/x"));
	}
	/* Any user may make a whiteout, the device number that stands for no device. */
	CHECK(!mknod("own/w", S_IFCHR | 0600, 0) && !unlink("own/w"));
	FAILS(mknod("own/w", S_IFBLK | 0600, 0), EPERM);
}

void types_area(void)
{
	for (size_t i = 0; i < TYPES; i++) {
		const struct type *t = &types[i];

		NEED(!make(t, t->name));
		CHECK(is(t, t->name) && is(t, other(t->name)));
		listed(t, t->name);
		attributes_of(t, t->name);
		CHECK(is_link(t) || !chmod(t->name, t->mode == S_IFDIR ? 0750 : 0640));
		names_of(t, t->name);
	}
	for (size_t i = 0; i < TYPES; i++)
		opened(&types[i], types[i].name);
	NEED(!mkdir("own", 0755) && !chown("own", STRANGER, STRANGER));
	as_user(STRANGER, STRANGER, as_stranger);
	for (size_t i = 0; i < TYPES; i++)
		CHECK(!take_away(&types[i], types[i].name) && absent(types[i].name));
}

/* Bytes of a writer in another process come through the FIFO, and go nowhere else. */
static void fifo(void)
{
	char buf[8] = "";
	pid_t child;
	int fd, status = -1;

	NEED(!mkfifo("fifo", 0600));
	child = fork();
	if (!child) {
		fd = open("fifo", O_WRONLY);
		_exit(fd < 0 || write(fd, "through", 7) != 7);
	}
	NEED(child > 0);
	NEED((fd = open("fifo", O_RDONLY)) >= 0);
	CHECK(read(fd, buf, sizeof(buf)) == 7 && !memcmp(buf, "through", 7));
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(read(fd, buf, sizeof(buf)) == 0 && !close(fd) && size_of("fifo") == 0);
	CHECK((fd = open("fifo", O_RDWR | O_NONBLOCK)) >= 0);
	FAILS(read(fd, buf, 1), EAGAIN);
	FAILS(lseek(fd, 0, SEEK_SET), ESPIPE);
	CHECK(!fchmod(fd, 0620) && mode_of("fifo") == 0620);
	CHECK(!unlink("fifo") && write(fd, "x", 1) == 1 && read(fd, buf, 1) == 1 && !close(fd));
}

static void connect_to(const struct sockaddr_un *address)
{
	const int s = socket(AF_UNIX, SOCK_STREAM, 0);

	_exit(s < 0 || connect(s, (const struct sockaddr *)address, sizeof(*address)) ||
	      write(s, "hello", 5) != 5);
}

static void sockets(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "sock"};
	const int s = socket(AF_UNIX, SOCK_STREAM, 0);
	char buf[8] = "";
	int c, status = -1;
	pid_t child;

	NEED(s >= 0 && !bind(s, (struct sockaddr *)&address, sizeof(address)));
	CHECK(is(&types[4], "sock") && is(&types[4], other("sock")) && !listen(s, 1));
	child = fork();
	if (!child)
		connect_to(&address);
	NEED(child > 0);
	NEED((c = accept(s, NULL, NULL)) >= 0);
	CHECK(read(c, buf, sizeof(buf)) == 5 && !memcmp(buf, "hello", 5) && !close(c));
	CHECK(waitpid(child, &status, 0) == child && !status);
	c = socket(AF_UNIX, SOCK_STREAM, 0);
	FAILS(bind(c, (struct sockaddr *)&address, sizeof(address)), EADDRINUSE);
	/* The listener is gone, but the name is still there. */
	CHECK(!close(s));
	FAILS(connect(c, (struct sockaddr *)&address, sizeof(address)), ECONNREFUSED);
	CHECK(!close(c) && !unlink("sock"));
}

/* A nodev mount shows device nodes but does not open them. */
static void devices(void)
{
	struct statvfs v;
	struct stat st;
	int fd;

	NEED(!mknod("null", S_IFCHR | 0666, NULL_DEVICE) && !statvfs(".", &v));
	CHECK(!stat("null", &st) && S_ISCHR(st.st_mode) && st.st_rdev == NULL_DEVICE);
	if (v.f_flag & ST_NODEV) {
		FAILS(open("null", O_RDWR), EACCES);
		return;
	}
	CHECK((fd = open("null", O_RDWR)) >= 0 && write(fd, "gone", 4) == 4);
	CHECK(read(fd, &st, 1) == 0 && !close(fd) && size_of("null") == 0);
}

void special_area(void)
{
	mode_t before;

	NEED(!mknod("f", S_IFREG | 0640, 0));
	CHECK(mode_of("f") == 0640 && size_of("f") == 0 && put("f", "x") && holds(other("f"), "x"));
	FAILS(mknod("f", S_IFREG | 0640, 0), EEXIST);
	FAILS(mknod("d", S_IFDIR | 0700, 0), EPERM);
	FAILS(mknod("l", S_IFLNK | 0700, 0), EINVAL);
	before = umask(027);
	CHECK(!mkfifo("p", 0666) && mode_of("p") == 0640 && !mkdir("d", 0777) &&
	      mode_of("d") == 0750);
	umask(before);
	fifo();
	sockets();
	devices();
}
