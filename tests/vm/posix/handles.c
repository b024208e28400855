/* SPDX-License-Identifier: MIT */
/* handles.c - files by handle (name_to_handle_at(2), open_by_handle_at(2)), as NFS servers do. */
#define _GNU_SOURCE
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "posix.h"

#define COOPFS_MAGIC 0x636f6f70 /* of the module */

struct handle {
	struct file_handle head;
	char room[MAX_HANDLE_SZ];
};

static int mount_fd;

static bool handle_of(const char *path, struct handle *h)
{
	int mount;

	memset(h, 0, sizeof(*h));
	h->head.handle_bytes = MAX_HANDLE_SZ;
	return !name_to_handle_at(AT_FDCWD, path, &h->head, &mount, 0);
}

static int by_handle(struct handle *h, int flags)
{
	return open_by_handle_at(mount_fd, &h->head, flags);
}

static bool reads(struct handle *h, const char *text)
{
	const int fd = by_handle(h, O_RDONLY);
	char buf[64] = "";
	const ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);

	if (fd >= 0)
		close(fd);
	return n == (ssize_t)strlen(text) && !memcmp(buf, text, (size_t)n);
}

/*
 * Makes the kernel forget unused names and inodes. On FUSE a remount does it for this mount alone:
 * the area runs beside tests that count on the kernel's caches. What is left is the module, which
 * has a machine of its own here, and the exported file system, which is not under test.
 */
static bool forget(void)
{
	struct statfs fs;
	bool done;
	int fd;

	if (fstatfs(mount_fd, &fs))
		return false;
	if (fs.f_type == FUSE_SUPER_MAGIC)
		return !mount(NULL, "..", NULL, MS_REMOUNT, NULL);
	if (fs.f_type != COOPFS_MAGIC)
		return true;
	fd = open("/proc/sys/vm/drop_caches", O_WRONLY);
	done = fd >= 0 && write(fd, "2", 1) == 1;
	close(fd);
	return done;
}

static struct handle shared;

static void stranger(void)
{
	FAILS(by_handle(&shared, O_RDONLY), EPERM);
}

void handles_area(void)
{
	struct handle file, deep, dir, link, forged;
	char path[4096], buf[4096];
	ssize_t n;
	int fd, mount;

	mount_fd = open(".", O_RDONLY | O_DIRECTORY);
	NEED(mount_fd >= 0);
	NEED(put("f", "text") && !mkdir("d", 0755) && !mkdir("d/sub", 0755));
	NEED(put("d/sub/deep", "deep") && !symlink("f", "link"));

	memset(&file, 0, sizeof(file));
	FAILS(name_to_handle_at(AT_FDCWD, "f", &file.head, &mount, 0), EOVERFLOW);
	CHECK(file.head.handle_bytes > 0 && file.head.handle_bytes <= MAX_HANDLE_SZ);
	NEED(handle_of("f", &file) && handle_of("d/sub/deep", &deep) && handle_of("d/sub", &dir) &&
	     handle_of("link", &link));
	CHECK(reads(&file, "text") && reads(&deep, "deep"));

	/* A handle finds the file by any name, and whether or not the kernel knows it. */
	CHECK(!rename(other("f"), other("g")) && reads(&file, "text"));
	CHECK(forget() && reads(&file, "text"));
	CHECK(forget() && reads(&deep, "deep"));
	fd = by_handle(&file, O_RDWR);
	CHECK(fd >= 0 && pwrite(fd, "TE", 2, 0) == 2 && !close(fd) && holds("g", "TExt"));

	/* The kernel puts a directory into its place in the tree. */
	CHECK(forget());
	fd = by_handle(&dir, O_RDONLY | O_DIRECTORY);
	NEED(fd >= 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, buf, sizeof(buf) - 1);
	NEED(n > 0);
	buf[n] = 0;
	CHECK(strlen(buf) > 6 && !strcmp(buf + strlen(buf) - 6, "/d/sub"));
	CHECK(!faccessat(fd, "deep", F_OK, 0) && !faccessat(fd, "../../g", F_OK, 0));
	close(fd);

	fd = by_handle(&link, O_PATH | O_NOFOLLOW);
	CHECK(fd >= 0 && readlinkat(fd, "", buf, sizeof(buf)) == 1 && buf[0] == 'f');
	close(fd);

	/* A made-up handle is refused. */
	forged = file;
	forged.room[7] ^= 1;
	FAILS(by_handle(&forged, O_RDONLY), ESTALE);
	forged = file;
	forged.head.handle_bytes = 4;
	FAILS(by_handle(&forged, O_RDONLY), ESTALE);
	forged = file;
	forged.head.handle_type = 0x7f;
	FAILS(by_handle(&forged, O_RDONLY), ESTALE);
	shared = file;
	as_user(STRANGER, STRANGER, stranger);

	CHECK(!unlink(other("g")) && forget());
	FAILS(by_handle(&file, O_RDONLY), ESTALE);
	CHECK(!close(mount_fd));
}
