/* SPDX-License-Identifier: MIT */
/* names.c - making, moving and removing names. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/fs.h>

#include "posix.h"

static nlink_t links(const char *path)
{
	struct stat st;

	return lstat(path, &st) ? 0 : st.st_nlink;
}

static bool same_file(const char *a, const char *b)
{
	struct stat x, y;

	return !stat(a, &x) && !stat(b, &y) && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

static int renameat2_(const char *from, const char *to, unsigned int flags)
{
	return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
}

void create_area(void)
{
	struct stat st;
	int fd;

	NEED((fd = open("f", O_CREAT | O_EXCL | O_RDWR, 0640)) >= 0);
	CHECK(!fstat(fd, &st) && S_ISREG(st.st_mode) && !st.st_size && st.st_nlink == 1);
	CHECK((st.st_mode & 07777) == 0640 && st.st_uid == 0 && st.st_gid == 0);
	CHECK(!close(fd));
	FAILS(open("f", O_CREAT | O_EXCL | O_RDWR, 0640), EEXIST);
	CHECK((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0 && !close(fd));
	CHECK(mode_of("f") == 0640);
	umask(027);
	CHECK((fd = open("masked", O_CREAT | O_WRONLY, 0777)) >= 0 && !close(fd));
	CHECK(mode_of("masked") == 0750);
	umask(022);

	FAILS(open("none", O_RDONLY), ENOENT);
	FAILS(open("none/f", O_CREAT | O_RDWR, 0600), ENOENT);
	FAILS(open("f/x", O_CREAT | O_RDWR, 0600), ENOTDIR);
	FAILS(open("f", O_RDONLY | O_DIRECTORY), ENOTDIR);
	CHECK(!mkdir("d", 0755));
	FAILS(open("d", O_WRONLY), EISDIR);
	FAILS(open("d", O_CREAT | O_RDWR, 0600), EISDIR);
	FAILS(open("d", O_CREAT | O_EXCL | O_RDWR, 0600), EEXIST);
	FAILS(open("d", O_RDONLY | O_TRUNC), EISDIR);
	FAILS(open("f/", O_RDONLY), ENOTDIR);
	CHECK((fd = open("d", O_RDONLY | O_DIRECTORY)) >= 0);
	FAILS(read(fd, &st, 1), EISDIR);
	CHECK(!close(fd));

	/* The creator's access does not depend on the new file's mode. */
	NEED((fd = open("readonly", O_CREAT | O_EXCL | O_WRONLY, 0400)) >= 0);
	CHECK(write(fd, "x", 1) == 1 && !close(fd));
	CHECK(holds("readonly", "x"));
	/* Created through a symbolic link, the file has the link's target as its name. */
	CHECK(!symlink("target", "link"));
	FAILS(open("link", O_CREAT | O_EXCL | O_WRONLY, 0600), EEXIST);
	CHECK((fd = open("link", O_CREAT | O_WRONLY, 0600)) >= 0 && !close(fd));
	CHECK(size_of("target") == 0);
}

/* ---- files without a name ----------------------------------------------------------- */

static bool gets_name(int fd, const char *name)
{
	char self[64];

	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	return !linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

static void nameless_of_stranger(void)
{
	struct stat st;
	int fd;

	FAILS(open("d", O_TMPFILE | O_RDWR, 0600), EACCES);
	CHECK((fd = open("open", O_TMPFILE | O_RDWR, 0640)) >= 0 && !fstat(fd, &st));
	CHECK(st.st_uid == STRANGER && (st.st_mode & 07777) == 0640);
	CHECK(gets_name(fd, "open/theirs") && !close(fd) && mode_of("open/theirs") == 0640);
}

void tmpfile_area(void)
{
	char text[8] = "";
	struct stat st;
	int fd;

	NEED(!mkdir("d", 0755) && !mkdir("open", 0777) && !chmod("open", 01777));
	FAILS(open("none", O_TMPFILE | O_RDWR, 0600), ENOENT);
	FAILS(open("d", O_TMPFILE | O_RDONLY, 0600), EINVAL);
	NEED((fd = open("d", O_TMPFILE | O_RDWR, 0640)) >= 0);
	CHECK(!fstat(fd, &st) && S_ISREG(st.st_mode) && !st.st_nlink && !st.st_size);
	CHECK((st.st_mode & 07777) == 0640);
	CHECK(write(fd, "text", 4) == 4 && !fsync(fd) && pread(fd, text, 8, 0) == 4);
	CHECK(!strcmp(text, "text") && !ftruncate(fd, 3) && !fchmod(fd, 0600));
	FAILS(rmdir("open/none"), ENOENT);
	CHECK(gets_name(fd, "d/named") && links("d/named") == 1 && links(other("d/named")) == 1);
	CHECK(holds("d/named", "tex") && holds(other("d/named"), "tex"));
	CHECK(mode_of("d/named") == 0600 && gets_name(fd, "d/again") && links("d/again") == 2);
	FAILS(linkat(AT_FDCWD, "d/named", AT_FDCWD, "d/again", 0), EEXIST);
	CHECK(pwrite(fd, "T", 1, 0) == 1 && !close(fd) && holds("d/again", "Tex"));
	CHECK(!unlink("d/again") && !unlink("d/named"));

	/* A file that can never get a name. */
	NEED((fd = open("d", O_TMPFILE | O_EXCL | O_RDWR, 0600)) >= 0);
	CHECK(!gets_name(fd, "d/named") && errno == ENOENT && write(fd, "x", 1) == 1 && !close(fd));
	/* A file that is gone after its close. */
	NEED((fd = open("d", O_TMPFILE | O_WRONLY, 0600)) >= 0);
	CHECK(write(fd, "x", 1) == 1 && !close(fd) && !rmdir("d"));
	/* Its mode need not permit the access that it was opened with. */
	NEED(!mkdir("d", 0755) && (fd = open("d", O_TMPFILE | O_RDWR, 0)) >= 0);
	CHECK(write(fd, "x", 1) == 1 && pread(fd, text, 1, 0) == 1 && !close(fd));
	as_user(STRANGER, STRANGER, nameless_of_stranger);
}

/* A restarted daemon still knows the file, and forgets it after the last close. */
void tmpfile_kept_area(void)
{
	char text[8] = "";
	struct stat st;
	int fd, left;

	NEED((fd = open(".", O_TMPFILE | O_RDWR, 0600)) >= 0 && write(fd, "text", 4) == 4);
	NEED((left = open(".", O_TMPFILE | O_RDWR, 0600)) >= 0 && write(left, "left", 4) == 4);
	NEED(!fsync(fd) && storage_does("restart"));
	CHECK(!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	CHECK(pread(fd, text, 8, 0) == 4 && !strcmp(text, "text"));
	CHECK(pwrite(fd, "T", 1, 0) == 1 && !fstat(fd, &st) && !st.st_nlink);
	CHECK(gets_name(fd, "named") && links("named") == 1 && !close(fd));
	CHECK(holds("named", "Text") && holds(other("named"), "Text"));
	CHECK(pread(left, text, 8, 0) == 4 && !strcmp(text, "left") && !close(left));
}

void long_names_area(void)
{
	char name[300], path[PATH_MAX + 16];
	int fd;

	memset(name, 'n', sizeof(name));
	name[255] = 0;
	NEED((fd = open(name, O_CREAT | O_EXCL | O_RDWR, 0600)) >= 0);
	CHECK(!close(fd) && !access(other(name), F_OK));
	CHECK(!rename(name, "short") && !rename("short", name) && !unlink(name));
	CHECK(!mkdir(name, 0700) && !rmdir(name));
	CHECK(!symlink("x", name) && !unlink(name));
	name[255] = 'n';
	name[256] = 0;
	CHECK(put("f", "x"));
	FAILS(open(name, O_CREAT | O_RDWR, 0600), ENAMETOOLONG);
	FAILS(open(name, O_RDONLY), ENAMETOOLONG);
	FAILS(access(name, F_OK), ENAMETOOLONG);
	FAILS(mkdir(name, 0700), ENAMETOOLONG);
	FAILS(rmdir(name), ENAMETOOLONG);
	FAILS(unlink(name), ENAMETOOLONG);
	FAILS(rename("f", name), ENAMETOOLONG);
	FAILS(link("f", name), ENAMETOOLONG);
	FAILS(symlink("x", name), ENAMETOOLONG);
	memset(path, '/', sizeof(path));
	strcpy(path + PATH_MAX, "x");
	FAILS(open(path, O_RDONLY), ENAMETOOLONG);
	FAILS(open("", O_RDONLY), ENOENT);

	/* A name may contain every byte but two. */
	for (int i = 1; i < 256; i++)
		name[i - 1] = (char)(i == '/' ? 'x' : i);
	name[255] = 0;
	CHECK(put(name, "odd") && holds(other(name), "odd") && !unlink(name));
	CHECK(put("...", "dots") && holds("...", "dots") && !unlink("..."));
}

void mkdir_area(void)
{
	struct stat st;

	NEED(!mkdir("d", 0751));
	CHECK(!stat("d", &st) && S_ISDIR(st.st_mode) && (st.st_mode & 07777) == 0751);
	CHECK(links("d") == 2);
	FAILS(mkdir("d", 0755), EEXIST);
	FAILS(mkdir("none/d", 0755), ENOENT);
	CHECK(put("f", "x"));
	FAILS(mkdir("f", 0755), EEXIST);
	FAILS(mkdir("f/d", 0755), ENOTDIR);
	CHECK(!mkdir("d/e", 0700) && !mkdir("d/g", 0700));
	CHECK(links("d") == 4);
	FAILS(rmdir("d"), ENOTEMPTY);
	CHECK(!rmdir("d/e") && links("d") == 3);
	CHECK(put("d/f", "x") && !rmdir("d/g"));
	FAILS(rmdir("d"), ENOTEMPTY);
	CHECK(!unlink("d/f"));
	FAILS(rmdir("f"), ENOTDIR);
	FAILS(rmdir("none"), ENOENT);
	FAILS(rmdir("d/."), EINVAL);
	FAILS(rmdir("d/.."), ENOTEMPTY);
	CHECK(!rmdir("d") && absent("d"));
	FAILS(rmdir("d"), ENOENT);
	CHECK(!mkdir("d", 0755) && !rmdir("d/"));
	umask(077);
	CHECK(!mkdir("d", 02777) && (mode_of("d") & 0777) == 0700);
	umask(022);
	/* Children inherit the group of a set-group-ID directory, and directories the bit. */
	CHECK(!chown("d", 0, 77) && !chmod("d", 02755) && !mkdir("d/sub", 0755) &&
	      put("d/file", ""));
	CHECK(!stat("d/sub", &st) && st.st_gid == 77 && st.st_mode & S_ISGID);
	CHECK(!stat("d/file", &st) && st.st_gid == 77);

	/* A removed current directory. */
	CHECK(!mkdir("gone", 0755) && !chdir("gone") && !rmdir("../gone"));
	FAILS(open("x", O_CREAT | O_WRONLY, 0600), ENOENT);
	FAILS(mkdir("x", 0700), ENOENT);
	CHECK(!chdir(here));
}

void unlink_area(void)
{
	NEED(put("f", "x"));
	CHECK(!unlink("f") && absent("f") && absent(other("f")));
	FAILS(unlink("f"), ENOENT);
	FAILS(unlink("none/f"), ENOENT);
	CHECK(!mkdir("d", 0755));
	FAILS(unlink("d"), EISDIR);
	CHECK(put("f", "x"));
	FAILS(unlink("f/"), ENOTDIR);
	FAILS(unlink("f/x"), ENOTDIR);
	CHECK(!symlink("f", "l") && !unlink("l") && holds("f", "x"));
	/* The name is free at once for another file. */
	CHECK(!unlink("f") && put("f", "another") && holds(other("f"), "another"));
	CHECK(!unlink("f") && !mkdir("f", 0755) && !rmdir("f"));
}

void rename_area(void)
{
	struct stat st;
	int fd;

	NEED(put("a", "aa") && put("b", "bbb"));
	CHECK(!rename("a", "c") && absent("a") && holds("c", "aa") && absent(other("a")));
	FAILS(rename("a", "x"), ENOENT);
	FAILS(rename("c", "none/x"), ENOENT);
	FAILS(rename("c", "b/x"), ENOTDIR);

	/* Over an existing file, which lives on where it is open. */
	NEED((fd = open("b", O_RDWR)) >= 0);
	CHECK(!rename("c", "b") && holds("b", "aa") && absent("c"));
	CHECK(!fstat(fd, &st) && st.st_nlink == 0 && st.st_size == 3);
	CHECK(pwrite(fd, "B", 1, 0) == 1 && !close(fd) && holds("b", "aa"));

	/* Two names of one file: nothing happens. */
	CHECK(!link("b", "b2") && !rename("b", "b2") && links("b") == 2 && !unlink("b2"));
	CHECK(!rename("b", "b") && holds("b", "aa"));

	CHECK(!mkdir("d", 0755) && !mkdir("e", 0755) && !mkdir("full", 0755) && put("full/x", "x"));
	CHECK(!rename("d", "e") && absent("d") && links("e") == 2);
	FAILS(rename("e", "full"), ENOTEMPTY);
	FAILS(rename("e", "b"), ENOTDIR);
	FAILS(rename("b", "e"), EISDIR);
	FAILS(rename("full", "full/sub"), EINVAL);
	FAILS(rename("full/.", "x"), EBUSY);

	/* From one directory to another, with everything below. */
	CHECK(!rename("full", "e/full") && holds("e/full/x", "x") && links("e") == 3);
	CHECK(!rename("e/full/x", "x") && holds("x", "x") && holds(other("x"), "x"));
	CHECK(!chdir("e/full") && !rename("../../e/full", "../../moved"));
	CHECK(!stat("..", &st) && st.st_nlink && !chdir("..") && same_file(".", here));
	CHECK(!chdir(here));

	FAILS(renameat2_("x", "b", RENAME_NOREPLACE), EEXIST);
	CHECK(holds("x", "x") && holds("b", "aa"));
	CHECK(!renameat2_("x", "y", RENAME_NOREPLACE) && absent("x") && holds("y", "x"));
	CHECK(!renameat2_("y", "b", RENAME_EXCHANGE) && holds("y", "aa") && holds("b", "x"));
	CHECK(holds(other("y"), "aa") && holds(other("b"), "x"));
	CHECK(!renameat2_("y", "e", RENAME_EXCHANGE) && !stat("y", &st) && S_ISDIR(st.st_mode) &&
	      holds("e", "aa"));
	FAILS(renameat2_("y", "none", RENAME_EXCHANGE), ENOENT);
	FAILS(renameat2_("y", "none", RENAME_WHITEOUT), EINVAL);
	FAILS(renameat2_("y", "b", RENAME_NOREPLACE | RENAME_EXCHANGE), EINVAL);
}

void link_area(void)
{
	char to[PATH_MAX];

	NEED(put("a", "one"));
	CHECK(!link("a", "b") && links("a") == 2 && links("b") == 2 && same_file("a", "b"));
	CHECK(put("b", "two") && holds("a", "two"));
	FAILS(link("a", "b"), EEXIST);
	FAILS(link("none", "c"), ENOENT);
	FAILS(link("a", "none/c"), ENOENT);
	CHECK(!mkdir("d", 0755));
	FAILS(link("d", "e"), EPERM);
	CHECK(!link("a", "d/c") && links("a") == 3);
	CHECK(!unlink("a") && links("b") == 2 && holds("d/c", "two"));
	CHECK(!symlink("b", "s") && !link("s", "t") && links("s") == 2 && links("b") == 2);
	snprintf(to, sizeof(to), "%s/x", there);
	FAILS(link("b", to), EXDEV); /* one file system, but another mount */
}

void symlink_area(void)
{
	char text[PATH_MAX + 1], got[PATH_MAX + 1];
	struct stat st;

	NEED(put("f", "x"));
	CHECK(!symlink("f", "l") && holds("l", "x"));
	CHECK(!lstat("l", &st) && S_ISLNK(st.st_mode) && st.st_size == 1);
	CHECK(readlink("l", got, sizeof(got)) == 1 && got[0] == 'f');
	FAILS(symlink("f", "l"), EEXIST);
	FAILS(symlink("", "e"), ENOENT);
	FAILS(symlink("f", "none/l"), ENOENT);
	FAILS(readlink("f", got, sizeof(got)), EINVAL);
	FAILS(readlink("none", got, sizeof(got)), ENOENT);
	FAILS(open("l", O_RDONLY | O_NOFOLLOW), ELOOP);
	CHECK(!symlink("nowhere", "dangling"));
	FAILS(open("dangling", O_RDONLY), ENOENT);
	CHECK(!symlink("loop", "loop"));
	FAILS(open("loop", O_RDONLY), ELOOP);
	CHECK(!mkdir("d", 0755) && put("d/y", "y") && !symlink("d", "dl"));
	CHECK(holds("dl/y", "y"));
	CHECK(!symlink("../f", "d/up") && holds("dl/up", "x"));
	FAILS(rmdir("dl"), ENOTDIR);
	/* Too short a buffer gets the beginning. */
	memset(text, 'a', sizeof(text));
	text[PATH_MAX - 1] = 0;
	CHECK(!symlink(text, "long"));
	CHECK(readlink("long", got, sizeof(got)) == PATH_MAX - 1 &&
	      !memcmp(got, text, PATH_MAX - 1));
	CHECK(readlink(other("long"), got, 10) == 10);
	text[PATH_MAX - 1] = 'a';
	text[PATH_MAX] = 0;
	FAILS(symlink(text, "longer"), ENAMETOOLONG);
	/* A new link of the same name has its own target. */
	CHECK(!unlink("l") && !symlink("d/y", "l") && holds("l", "y"));
	CHECK(!lchown("l", 5, 6) && !lstat("l", &st) && st.st_uid == 5 && st.st_gid == 6);
}
