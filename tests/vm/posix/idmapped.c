/* SPDX-License-Identifier: MIT */
/*
 * idmapped.c - the mount in two more places, with its users mapped (mount_setattr(2)).
 *
 * Storage's users 0 to 999 are 100000 and up through 'one', and its users 10 to 909 through 'two'.
 * So the caller HIM is 5 through 'one', 15 through 'two', and himself through the plain mount. Each
 * of the three has a directory closed to all others, so access to the wrong one shows a wrong
 * identity.
 *
 * Only unmapped() checks where the file system differs from one on a disk, as the manual says.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "posix.h"

#define ACCESS_ACL  "system.posix_acl_access"
#define DEFAULT_ACL "system.posix_acl_default"

#define BASE      100000     /* the first id of the maps here */
#define HIM       (BASE + 5) /* a user, in group HIM + 1 */
#define NAMED     (BASE + 8) /* a user that an ACL names */
#define FAR       5000       /* a user of storage that no mount maps */
#define OVERFLOW_ 65534      /* how such a user appears */
#define ROUNDS    60

static char one[64], two[64], base[64];
static int users_of_one;
static bool coopfs;

/* ---- mounts ------------------------------------------------------------------------- */

static bool tell(pid_t who, const char *what, const char *map)
{
	const ssize_t len = (ssize_t)strlen(map);
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)who, what);
	fd = open(path, O_WRONLY);
	return fd >= 0 && write(fd, map, (size_t)len) == len && !close(fd);
}

/* A user namespace with that map, in the form of uid_map. -1: failed. */
static int make_users(const char *map)
{
	int ready[2], fd = -1;
	char path[64], byte;
	pid_t child;

	if (pipe(ready))
		return -1;
	child = fork();
	if (!child) {
		if (unshare(CLONE_NEWUSER) || write(ready[1], "", 1) != 1)
			_exit(1);
		pause();
		_exit(0);
	}
	close(ready[1]);
	if (child > 0 && read(ready[0], &byte, 1) == 1 && tell(child, "uid_map", map) &&
	    tell(child, "gid_map", map)) {
		snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)child);
		fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	close(ready[0]);
	if (child > 0) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	return fd;
}

/* Mounts the directory at another place, with its users mapped. */
static bool mount_at(const char *dir, const char *at, int users)
{
	struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)users};
	const int fd = open_tree(AT_FDCWD, dir, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);

	return fd >= 0 && !mount_setattr(fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)) &&
	       !move_mount(fd, "", AT_FDCWD, at, MOVE_MOUNT_F_EMPTY_PATH) && !close(fd);
}

int mount_mapped(const char *map, const char *dir, const char *at)
{
	const int users = make_users(map);

	if (users < 0 || !mount_at(dir, at, users)) {
		fprintf(stderr, "coop-posix: %s at %s: %s\n", dir, at, strerror(errno));
		return 1;
	}
	return 0;
}

/* ---- names and owners --------------------------------------------------------------- */

static const char *in(const char *mount, const char *name)
{
	static _Thread_local char path[8][PAGE];
	static _Thread_local unsigned int next;

	next = (next + 1) % 8;
	snprintf(path[next], sizeof(path[0]), "%s/%s", mount, name);
	return path[next];
}

static bool owned(const char *path, uid_t user, gid_t group)
{
	struct stat st;

	if (lstat(path, &st))
		return false;
	if (st.st_uid != user || st.st_gid != group)
		fprintf(stderr, "%s: of %u:%u\n", path, st.st_uid, st.st_gid);
	return st.st_uid == user && st.st_gid == group;
}

static unsigned int entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned int n = 0;

	while (dir && readdir(dir))
		n++;
	return dir && !closedir(dir) ? n : 0;
}

static bool nameless(const char *dir, const char *name)
{
	const int fd = open(dir, O_TMPFILE | O_RDWR, 0600);
	char link[64];
	bool good;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	good = fd >= 0 && write(fd, "nameless", 8) == 8 &&
	       !linkat(AT_FDCWD, link, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
	return fd >= 0 && !close(fd) && good;
}

static const char *const made[] = {"file", "d", "p", "s", "node", "moved", "named"};

static bool all_owned(const char *dir, uid_t user, gid_t group)
{
	bool good = true;

	for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++)
		good &= owned(in(dir, made[i]), user, group);
	return good;
}

/* Every way to make, change and remove names, in the caller's own directory. */
static void use(const char *mount, const char *name)
{
	const uid_t user = geteuid();
	const gid_t group = getegid();
	char target[8], buf[8];
	struct statfs space;
	char dir[256];
	int fd;

	snprintf(dir, sizeof(dir), "%s/%s", mount, name);
	CHECK(put(in(dir, "file"), "text") && holds(in(dir, "file"), "text"));
	CHECK(!mkdir(in(dir, "d"), 0755) && !mkfifo(in(dir, "p"), 0600));
	CHECK(!symlink("file", in(dir, "s")) && !mknod(in(dir, "node"), S_IFREG | 0600, 0));
	CHECK(!link(in(dir, "file"), in(dir, "hard")));
	CHECK(!rename(in(dir, "hard"), in(dir, "moved")) && absent(in(dir, "hard")));
	CHECK(nameless(dir, in(dir, "named")) && holds(in(dir, "named"), "nameless"));
	CHECK(all_owned(dir, user, group));
	CHECK(entries(dir) >= 2 + sizeof(made) / sizeof(made[0]));

	CHECK(holds(in(dir, "s"), "text") && readlink(in(dir, "s"), target, sizeof(target)) == 4);
	fd = open(in(dir, "s"), O_PATH | O_NOFOLLOW);
	CHECK(fd >= 0 && readlinkat(fd, "", target, sizeof(target)) == 4 && !close(fd));
	CHECK(!access(in(dir, "file"), R_OK | W_OK) && !statfs(dir, &space));
	FAILS(access(in(dir, "file"), X_OK), EACCES);
	CHECK(!chmod(in(dir, "file"), 0640) && mode_of(in(dir, "file")) == 0640);
	CHECK(!chown(in(dir, "file"), user, group));
	FAILS(chown(in(dir, "file"), user + 1, (gid_t)-1), EPERM);
	FAILS(chown(in(dir, "file"), 5, (gid_t)-1), mount == here ? EPERM : EOVERFLOW);
	CHECK(!utimensat(AT_FDCWD, in(dir, "file"), NULL, 0));
	CHECK(!truncate(in(dir, "file"), 2) && holds(in(dir, "file"), "te"));
	fd = open(in(dir, "file"), O_WRONLY | O_APPEND);
	CHECK(fd >= 0 && write(fd, "n", 1) == 1 && !fsync(fd) && !close(fd));
	CHECK(holds(in(dir, "moved"), "ten"));
	CHECK(!chmod(in(dir, "node"), 06755) && put(in(dir, "node"), "x"));
	CHECK(mode_of(in(dir, "node")) == 0755);

	CHECK(!setxattr(in(dir, "file"), "user.a", "b", 1, 0) && lists(in(dir, "file"), "user.a"));
	CHECK(getxattr(in(dir, "file"), "user.a", buf, sizeof(buf)) == 1 && *buf == 'b');
	fd = open(in(dir, "file"), O_RDONLY);
	CHECK(fd >= 0 && fgetxattr(fd, "user.a", buf, sizeof(buf)) == 1 && !close(fd));
	CHECK(!removexattr(in(dir, "file"), "user.a") && !lists(in(dir, "file"), "user.a"));

	CHECK(!mkdir(in(dir, "d/e"), 0700) && !rmdir(in(dir, "d/e")) && absent(in(dir, "d/e")));
	CHECK(put(in(dir, "gone"), "") && !unlink(in(dir, "gone")) && absent(in(dir, "gone")));
	CHECK(!chdir(dir) && holds("file", "ten") && !chdir("/"));
}

/* Another user's directory, with a file that the caller may not even see. */
static void no_way_in(const char *mount, const char *name)
{
	char dir[256];
	struct stat st;

	snprintf(dir, sizeof(dir), "%s/%s", mount, name);
	FAILS(stat(in(dir, "own"), &st), EACCES);
	FAILS(open(in(dir, "own"), O_RDONLY), EACCES);
	FAILS(open(in(dir, "new"), O_CREAT | O_WRONLY, 0600), EACCES);
	FAILS(open(dir, O_TMPFILE | O_RDWR, 0600), EACCES);
	FAILS(open(dir, O_RDONLY), EACCES);
	FAILS(access(dir, X_OK), EACCES);
	FAILS(mkdir(in(dir, "new"), 0700), EACCES);
	FAILS(symlink("x", in(dir, "new")), EACCES);
	FAILS(unlink(in(dir, "own")), EACCES);
	FAILS(rmdir(in(dir, "own")), EACCES);
	FAILS(chmod(in(dir, "own"), 0666), EACCES);
	FAILS(chdir(dir), EACCES);
	CHECK(!lstat(dir, &st));
	FAILS(chmod(dir, 0777), st.st_uid == OVERFLOW_ ? EOVERFLOW : EPERM);
	FAILS(setxattr(dir, "user.a", "b", 1, 0), st.st_uid == OVERFLOW_ ? EPERM : EACCES);
}

/* A file that FAR owns, in a directory where the caller may do anything. */
static void out_of_reach(const char *path)
{
	FAILS(open(path, O_RDONLY), EACCES);
	FAILS(open(path, O_WRONLY), EACCES);
	FAILS(chmod(path, 0666), EOVERFLOW);
	FAILS(truncate(path, 0), EACCES);
	FAILS(setxattr(path, "user.a", "b", 1, 0), EPERM);
	FAILS(unlink(path), EOVERFLOW);
	CHECK(owned(path, OVERFLOW_, OVERFLOW_));
}

/* ---- callers ------------------------------------------------------------------------ */

static void him(void)
{
	use(one, "five");
	CHECK(owned(in(one, "five/own"), HIM, HIM + 1) && holds(in(one, "five/own"), "5"));
	no_way_in(one, "fifteen");
	no_way_in(one, "plain");
	FAILS(link(in(one, "five/own"), in(one, "plain/new")), EACCES);
	FAILS(rename(in(one, "five/own"), in(one, "plain/own")), EACCES);
	out_of_reach(in(one, "five/far"));
	use(two, "fifteen");
	CHECK(holds(in(two, "fifteen/own"), "15"));
	no_way_in(two, "five");
	no_way_in(two, "plain");
	use(here, "plain");
	no_way_in(here, "five");
	no_way_in(here, "fifteen");
	FAILS(link(in(one, "five/own"), in(two, "fifteen/new")), EXDEV);
}

/* The kernel looks up the old name after the walk to the new one through other mounts. */
static void detours(void)
{
	static const char *const out = "../../../../../../../../..";
	char path[2 * PAGE];

	CHECK(put(in(one, "five/a"), "a"));
	snprintf(path, sizeof(path), "%s/plain/%s%s/five/b", here, out, one);
	CHECK(!rename(in(one, "five/a"), path) && absent(in(one, "five/a")));
	snprintf(path, sizeof(path), "%s/fifteen/%s%s/five/c", two, out, one);
	CHECK(!link(in(one, "five/b"), path) && owned(path, HIM, HIM + 1));
	CHECK(!unlink(path) && !unlink(in(one, "five/b")));
	CHECK(put(in(here, "plain/a"), "a"));
	snprintf(path, sizeof(path), "%s/five/%s%s/plain/b", one, out, here);
	CHECK(!rename(in(here, "plain/a"), path) && !unlink(in(here, "plain/b")));
}

static void member(void)
{
	const gid_t groups[] = {BASE + 7, 300};

	NEED(!setgroups(2, groups) && !setgid(HIM + 1) && !setuid(HIM));
	CHECK(holds(in(one, "by-seven"), "text") && put(in(one, "five/grouped"), ""));
	FAILS(open(in(one, "by-300"), O_RDONLY), EACCES);
	CHECK(!chown(in(one, "five/grouped"), (uid_t)-1, BASE + 7));
	CHECK(owned(in(one, "five/grouped"), HIM, BASE + 7));
	FAILS(chown(in(one, "five/grouped"), (uid_t)-1, 300), EOVERFLOW);
	FAILS(chown(in(one, "five/grouped"), (uid_t)-1, BASE + 300), EPERM);
}

static bool enters_one(void)
{
	return !setns(users_of_one, CLONE_NEWUSER) && !setgroups(0, NULL) && !setgid(0) &&
	       !setuid(0);
}

/* User 0 of a namespace acts as user 0 of storage, but only on files of mapped users. */
static void root_of_one(void)
{
	struct stat st;

	NEED(enters_one());
	CHECK(put(in(one, "root/made"), "made") && owned(in(one, "root/made"), 0, 0));
	CHECK(!mkdir(in(one, "root/d"), 0700) && !chown(in(one, "root/d"), 5, 6));
	CHECK(owned(in(one, "root/d"), 5, 6) && put(in(one, "root/d/f"), "f"));
	CHECK(holds(in(one, "five/own"), "5") && !chmod(in(one, "five/own"), 0600));
	CHECK(!lstat(in(one, "plain"), &st) && st.st_uid == OVERFLOW_);
	out_of_reach(in(one, "root/far"));
	FAILS(chown(in(one, "root/far"), 0, 0), EPERM);
	FAILS(stat(in(one, "plain/own"), &st), EACCES);
	FAILS(unlink(in(one, "plain/own")), EACCES);
	FAILS(mknod(in(one, "root/disk"), S_IFBLK | 0600, makedev(7, 0)), EPERM);
	FAILS(setxattr(in(one, "root/own"), "trusted.t", "x", 1, 0), EPERM);
	CHECK(lists(in(one, "root/own"), "user.u") && !lists(in(one, "root/own"), "trusted.t"));
}

static int cuts_name(int fd, const char *path)
{
	(void)fd;
	return truncate(path, 2);
}

static int cuts(int fd, const char *path)
{
	(void)path;
	return ftruncate(fd, 2);
}

static int empties(int fd, const char *path)
{
	(void)fd;
	return close(open(path, O_WRONLY | O_TRUNC));
}

static int writes(int fd, const char *path)
{
	(void)path;
	return write(fd, "x", 1) == 1 ? fsync(fd) : -1;
}

static int allocates(int fd, const char *path)
{
	(void)path;
	return fallocate(fd, 0, 0, PAGE);
}

static int digs(int fd, const char *path)
{
	(void)path;
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2);
}

static int copies(int fd, const char *path)
{
	const int from = open(in(one, "root/own"), O_RDONLY);
	const ssize_t n = copy_file_range(from, NULL, fd, NULL, 1, 0);

	(void)path;
	close(from);
	return n == 1 ? 0 : -1;
}

/* User 0 of storage may change a file and keep its set-id bits; a mapped user 0 may not. */
static void keeps_no_bits(void)
{
	static int (*const change[])(int fd, const char *path) = {cuts_name, cuts, empties, writes,
								  allocates, digs, copies};

	NEED(enters_one());
	for (size_t i = 0; i < sizeof(change) / sizeof(change[0]); i++) {
		const int fd = open(in(one, "root/bits"), O_CREAT | O_RDWR, 0755);

		NEED(fd >= 0 && write(fd, "bits", 4) == 4 && !fsync(fd) && !lseek(fd, 0, SEEK_SET));
		NEED(!fchmod(fd, 06755) && mode_of(in(one, "root/bits")) == 06755);
		CHECK(!change[i](fd, in(one, "root/bits")));
		if (!CHECK(mode_of(in(one, "root/bits")) == 0755))
			fprintf(stderr, "change %zu\n", i);
		CHECK(!close(fd) && !unlink(in(one, "root/bits")));
	}
}

/* Gives two files away through the other mount when told to. */
static bool gives_away(int told, int tells)
{
	char byte;

	return read(told, &byte, 1) == 1 && !chown(other("root/opened"), FAR, FAR) &&
	       !chown(other("root/opened-up"), FAR, FAR) && write(tells, "", 1) == 1;
}

/* A user loses access at once to files given away, whatever this node has cached. */
static void loses(void)
{
	const char *const opened = in(one, "root/opened"), *const up = in(one, "root/opened-up");
	int go[2], done[2];
	pid_t giver;
	char byte;

	NEED(!pipe(go) && !pipe(done));
	giver = fork();
	NEED(giver >= 0);
	if (!giver) {
		close(go[1]);
		_exit(!gives_away(go[0], done[1]));
	}
	close(done[1]);
	CHECK(enters_one() && put(opened, "o") && put(up, "u") && !chmod(opened, 0600) &&
	      !chmod(up, 0600) && holds(opened, "o"));
	CHECK(write(go[1], "", 1) == 1 && read(done[0], &byte, 1) == 1);
	FAILS(open(opened, O_RDONLY), EACCES);
	/* The error depends on the owner that the VFS knows. */
	CHECK(chmod(up, 0666) == -1 && (errno == EPERM || errno == EOVERFLOW));
	close(go[1]);
	close(done[0]);
	CHECK(waitpid(giver, NULL, 0) == giver);
}

static void makes_nothing(void)
{
	FAILS(open(in(one, "open/new"), O_CREAT | O_WRONLY, 0600), EOVERFLOW);
	FAILS(open(in(one, "open"), O_TMPFILE | O_RDWR, 0600), EOVERFLOW);
	FAILS(mkdir(in(one, "open/new"), 0700), EOVERFLOW);
	FAILS(mkfifo(in(one, "open/new"), 0700), EOVERFLOW);
	FAILS(symlink("x", in(one, "open/new")), EOVERFLOW);
	FAILS(link(in(one, "open/own"), in(one, "open/new")), EOVERFLOW);
	FAILS(rename(in(one, "open/own"), in(one, "open/new")), EOVERFLOW);
}

/* On a disk, unmapped callers may do as others, or by capability, what takes no owner. */
static void unmapped(void)
{
	struct statfs space;
	struct stat st;

	makes_nothing();
	CHECK(!stat(one, &st) && st.st_uid == BASE && !statfs(one, &space));
	if (!coopfs)
		return;
	FAILS(stat(in(one, "open/own"), &st), EOVERFLOW);
	FAILS(open(in(one, "open/own"), O_RDONLY), EOVERFLOW);
	FAILS(access(in(one, "open/own"), R_OK), EOVERFLOW);
	FAILS(unlink(in(one, "open/own")), EOVERFLOW);
	FAILS(rmdir(in(one, "open/d")), EOVERFLOW);
	FAILS(chmod(in(one, "open/own"), 0600), EOVERFLOW);
	FAILS(chown(in(one, "open/own"), BASE, BASE), EOVERFLOW);
	FAILS(open(one, O_RDONLY), EOVERFLOW);
}

/* An open file acts for its opener, in any process. */
static void passes_it_on(void)
{
	int fd;

	setfsgid(HIM + 1);
	setfsuid(HIM);
	fd = open(in(one, "five/passed"), O_CREAT | O_RDWR, 04700);
	setfsuid(0);
	setfsgid(0);
	NEED(fd >= 0);
	CHECK(write(fd, "passed", 6) == 6 && !fsync(fd) && !ftruncate(fd, 4));
	CHECK(pwrite(fd, "P", 1, 0) == 1 && !close(fd));
}

/* ---- ACLs --------------------------------------------------------------------------- */

struct ace {
	uint16_t tag, perm;
	uint32_t id;
};

struct acl {
	uint32_t version;
	struct ace e[5];
};

static struct acl acl_for(uint32_t user)
{
	const uint32_t none = (uint32_t)-1;

	return (struct acl){
		2, {{1, 7, none}, {2, 5, user}, {4, 0, none}, {16, 5, none}, {32, 0, none}}};
}

static bool names(const char *path, const char *which, uint32_t user)
{
	const struct acl wanted = acl_for(user);
	struct acl got;

	return getxattr(path, which, &got, sizeof(got)) == sizeof(got) &&
	       !memcmp(&got, &wanted, sizeof(got));
}

static void sets_acls(void)
{
	const struct acl acl = acl_for(NAMED);

	CHECK(put(in(one, "open/listed"), "text") && !mkdir(in(one, "open/heirs"), 0700));
	CHECK(!setxattr(in(one, "open/listed"), ACCESS_ACL, &acl, sizeof(acl), 0));
	CHECK(!setxattr(in(one, "open/heirs"), ACCESS_ACL, &acl, sizeof(acl), 0));
	CHECK(!setxattr(in(one, "open/heirs"), DEFAULT_ACL, &acl, sizeof(acl), 0));
	CHECK(names(in(one, "open/listed"), ACCESS_ACL, NAMED));
	CHECK(names(in(one, "open/heirs"), DEFAULT_ACL, NAMED));
	CHECK(put(in(one, "open/heirs/f"), "heir"));
}

static void is_named(void)
{
	const struct acl acl = acl_for(NAMED);

	CHECK(holds(in(one, "open/listed"), "text") && holds(in(one, "open/heirs/f"), "heir"));
	CHECK(entries(in(one, "open/heirs")) == 3);
	FAILS(unlink(in(one, "open/heirs/f")), EACCES);
	FAILS(setxattr(in(one, "open/listed"), ACCESS_ACL, &acl, sizeof(acl), 0), EPERM);
}

static void is_not(void)
{
	FAILS(open(in(one, "open/listed"), O_RDONLY), EACCES);
	FAILS(open(in(one, "open/heirs/f"), O_RDONLY), EACCES);
}

static void acls(void)
{
	as_user(HIM, HIM + 1, sets_acls);
	CHECK(names("open/listed", ACCESS_ACL, 8) && names(other("open/heirs"), DEFAULT_ACL, 8));
	as_user(NAMED, NAMED, is_named);
	as_user(NAMED + 1, NAMED + 1, is_not);
}

/* ---- all at once -------------------------------------------------------------------- */

/* Returns what was wrong, or null. */
static const char *turn(const char *dir, const char *foreign, unsigned int n)
{
	char a[PAGE], b[PAGE];
	struct stat st;

	snprintf(a, sizeof(a), "%s/turn-%u", dir, n);
	snprintf(b, sizeof(b), "%s/turned-%u", dir, n);
	if (!put(a, "turn") || !owned(a, HIM, HIM + 1))
		return "made";
	if (!stat(foreign, &st) || errno != EACCES)
		return "kept out";
	if (link(a, b) || unlink(a) || rename(b, a) || !holds(a, "turn"))
		return "linked and moved";
	if (unlink(a) || mkdir(a, 0700) || rmdir(a) || stat(a, &st) != -1 || errno != ENOENT)
		return "removed";
	if (!entries(dir))
		return "listed";
	return NULL;
}

static const char *view(unsigned int which)
{
	return which == 0 ? in(one, "five") : which == 1 ? in(two, "fifteen") : in(here, "plain");
}

static const char *foreign_of(unsigned int which)
{
	return which == 0   ? in(one, "fifteen/own")
	       : which == 1 ? in(two, "plain/own")
			    : in(here, "five/own");
}

/* The fourth thread uses all ways in turn. */
static void *turns(void *which)
{
	const unsigned int me = (unsigned int)(uintptr_t)which;
	const char *wrong = NULL;

	for (unsigned int i = 0; i < ROUNDS && !wrong; i++) {
		const unsigned int way = me == 3 ? i % 3 : me;

		wrong = turn(view(way), foreign_of(way), me);
	}
	return (void *)wrong;
}

static void all_at_once(void)
{
	pthread_t thread[4];
	void *wrong;

	for (uintptr_t i = 0; i < 4; i++)
		NEED(!pthread_create(&thread[i], NULL, turns, (void *)i));
	for (unsigned int i = 0; i < 4; i++) {
		CHECK(!pthread_join(thread[i], &wrong));
		if (!CHECK(!wrong))
			fprintf(stderr, "thread %u, not %s\n", i, (const char *)wrong);
	}
}

/* ---- the area ----------------------------------------------------------------------- */

static bool own_directory(const char *name, uid_t user, gid_t group, const char *text)
{
	char own[64];

	snprintf(own, sizeof(own), "%s/own", name);
	return !mkdir(name, 0700) && put(own, text) && !chmod(own, 0600) &&
	       !chown(own, user, group) && !chown(name, user, group);
}

static bool far_file(const char *path)
{
	return put(path, "far") && !chown(path, FAR, FAR) && !chmod(path, 0600);
}

static void files(void)
{
	NEED(own_directory("five", 5, 6, "5") && own_directory("fifteen", 15, 16, "15"));
	NEED(own_directory("plain", HIM, HIM + 1, "plain") && own_directory("root", 0, 0, "0"));
	NEED(own_directory("open", 5, 6, "open") && !chmod("open", 0777));
	NEED(!chmod("open/own", 0666) && !mkdir("open/d", 0777));
	NEED(far_file("five/far") && far_file("root/far"));
	NEED(put("by-seven", "text") && !chown("by-seven", 9, 7) && !chmod("by-seven", 0040));
	NEED(put("by-300", "text") && !chown("by-300", 9, 300) && !chmod("by-300", 0040));
	NEED(!setxattr("root/own", "trusted.t", "t", 1, 0));
	NEED(!setxattr("root/own", "user.u", "u", 1, 0));
}

static void callers(void)
{
	as_user(HIM, HIM + 1, him);
	CHECK(all_owned("five", 5, 6) && all_owned(other("five"), 5, 6));
	CHECK(all_owned("fifteen", 15, 16) && all_owned(other("fifteen"), 15, 16));
	CHECK(all_owned("plain", HIM, HIM + 1));
	CHECK(owned("five/own", 5, 6) && owned("plain/own", HIM, HIM + 1));
	as_user(HIM, HIM + 1, detours);
	as_user(0, 0, member);
	CHECK(owned("five/grouped", 5, 7));
	as_user(0, 0, root_of_one);
	as_user(0, 0, keeps_no_bits);
	as_user(0, 0, loses);
	CHECK(mode_of("root/opened-up") == 0600);
	CHECK(owned("root/made", 0, 0) && owned("root/d", 5, 6) && owned("root/d/f", 0, 0));
	CHECK(owned("root/far", FAR, FAR) && mode_of("root/far") == 0600);
	as_user(STRANGER, STRANGER, unmapped);
	as_user(0, 0, unmapped);
	as_user(0, 0, passes_it_on);
	CHECK(owned("five/passed", 5, 6) && holds("five/passed", "Pass"));
	acls();
	as_user(HIM, HIM + 1, all_at_once);
}

void idmapped_area(void)
{
	struct statfs fs;
	int users_of_two;

	strcpy(base, "/tmp/coop-idmapped.XXXXXX");
	NEED(!statfs(here, &fs) && mkdtemp(base) && !chmod(base, 0755));
	coopfs = fs.f_type == COOPFS_MAGIC;
	strcpy(one, in(base, "one"));
	strcpy(two, in(base, "two"));
	users_of_one = make_users("0 100000 1000");
	users_of_two = make_users("10 100000 900");
	NEED(users_of_one >= 0 && users_of_two >= 0 && !mkdir(one, 0755) && !mkdir(two, 0755));
	if (CHECK(mount_at(here, one, users_of_one) && mount_at(here, two, users_of_two))) {
		files();
		callers();
	}
	umount2(one, MNT_DETACH);
	umount2(two, MNT_DETACH);
	CHECK(!rmdir(one) && !rmdir(two) && !rmdir(base));
	close(users_of_one);
	close(users_of_two);
}
