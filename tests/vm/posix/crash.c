/* SPDX-License-Identifier: MIT */
/*
 * crash.c - storage's machine fails and loses what it had acknowledged but not on its disk.
 *
 * The topic's script plays that machine: it obeys orders in the file that WANTED in the
 * environment names, and removes the file afterwards. "save" saves what storage has now,
 * "crash" kills the daemon, restores what was saved, and starts another daemon with other
 * verifiers. "power" does the same after an ioctl(2) here has shut down the export's file
 * system as it is, which loses what is not on its disk. "cut_off" stops coop-between, so that the
 * mount and the daemon hear nothing of each other, and "back" lets it go on.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "posix.h"

#define PATIENT 1200 /* times 50 ms */

/* No header that programs may use has these of ext4, f2fs and XFS. */
#define SHUT_DOWN          _IOR('X', 125, unsigned int)
#define SHUT_DOWN_AS_IT_IS 2u /* without writing what is in memory */

bool storage_does(const char *what)
{
	const char *path = getenv("WANTED");
	char made[PAGE];
	FILE *f;

	snprintf(made, sizeof(made), "%s.new", path);
	f = fopen(made, "w");
	if (!f || fputs(what, f) < 0 || fclose(f) || rename(made, path))
		return false;
	for (unsigned int i = 0; i < PATIENT; i++) {
		if (access(path, F_OK))
			return true;
		pause_shortly();
	}
	return false;
}

/* Parts of two folios and a whole one between them are written again, and nothing else. */
void written_again_area(void)
{
	char wanted[3 * PAGE], got[3 * PAGE];
	int fd, r;

	NEED(getenv("WANTED"));
	memset(wanted, 'o', sizeof(wanted));
	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	NEED(pwrite(fd, wanted, sizeof(wanted), 0) == sizeof(wanted) && !fsync(fd));
	NEED(storage_does("save"));
	for (char round = 0; round < 2; round++) {
		memset(wanted + 10, 'A' + round, 100);
		memset(wanted + PAGE, 'B' + round, PAGE);
		memset(wanted + 2 * PAGE + 200, 'C' + round, 300);
		CHECK(pwrite(fd, wanted + 10, 100, 10) == 100);
		CHECK(pwrite(fd, wanted + PAGE, PAGE, PAGE) == PAGE);
		CHECK(pwrite(fd, wanted + 2 * PAGE + 200, 300, 2 * PAGE + 200) == 300);
		/* Storage has all bytes, but got no COMMIT. */
		CHECK(!sync_file_range(fd, 0, 0,
				       SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
		NEED(storage_does("crash"));
		CHECK(!fsync(fd));
		CHECK((r = open(other("f"), O_RDONLY)) >= 0 &&
		      pread(r, got, sizeof(got), 0) == sizeof(got) &&
		      !memcmp(got, wanted, sizeof(got)) && !close(r));
		NEED(storage_does("save"));
	}
	CHECK(!close(fd));
}

static bool range_lock(int fd, short type)
{
	return !fcntl(fd, F_SETLKW, &(struct flock){.l_type = type, .l_len = PAGE});
}

/* Bytes written under a lock are not written again over those of its next holder. */
void handed_over_area(void)
{
	char got[7] = "";
	int fd, there;

	NEED(getenv("WANTED"));
	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	NEED(pwrite(fd, "begin_", 6, 0) == 6 && !fsync(fd));
	NEED((there = open(other("f"), O_RDWR)) >= 0);
	CHECK(range_lock(fd, F_WRLCK) && pwrite(fd, "before", 6, 0) == 6 &&
	      range_lock(fd, F_UNLCK));
	CHECK(range_lock(there, F_WRLCK) && pwrite(there, "behind", 6, 0) == 6 && !fsync(there));
	CHECK(range_lock(there, F_UNLCK));
	NEED(storage_does("save") && storage_does("crash"));
	CHECK(!fsync(fd));
	CHECK(pread(there, got, 6, 0) == 6 && !strcmp(got, "behind"));
	CHECK(range_lock(fd, F_RDLCK) && pread(fd, got, 6, 0) == 6 && !strcmp(got, "behind"));
	CHECK(!close(fd) && !close(there));
}

struct ending {
	int fd, error;
	bool close;
	volatile long task;
};

static void *end_it(void *p)
{
	struct ending *e = p;

	e->task = syscall(SYS_gettid);
	e->error = (e->close ? close(e->fd) : fsync(e->fd)) ? errno : 0;
	return NULL;
}

static bool waits(const struct ending *e)
{
	char path[64], line[PAGE] = "";
	const char *state;
	FILE *f;

	for (unsigned int i = 0; i < PATIENT; i++) {
		snprintf(path, sizeof(path), "/proc/self/task/%ld/stat", e->task);
		f = e->task ? fopen(path, "r") : NULL;
		state = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
		if (f)
			fclose(f);
		if (state && state[1] == ' ' && state[2] == 'D')
			return true;
		pause_shortly();
	}
	return false;
}

/* Two descriptors wrote bytes that cannot be written again: both get the error of the loss. */
void lost_for_all_area(void)
{
	struct ending end[2] = {{.fd = -1}, {.fd = -1, .close = true}};
	pthread_t thread[2];

	NEED(getenv("WANTED"));
	NEED((end[0].fd = open("f", O_CREAT | O_WRONLY | O_APPEND, 0600)) >= 0);
	NEED((end[1].fd = open("f", O_WRONLY | O_APPEND)) >= 0 && !fsync(end[0].fd));
	NEED(storage_does("save"));
	CHECK(write(end[0].fd, "first", 5) == 5 && write(end[1].fd, "second", 6) == 6);
	NEED(storage_does("stop"));
	for (int i = 0; i < 2; i++) {
		NEED(!pthread_create(&thread[i], NULL, end_it, &end[i]));
		CHECK(waits(&end[i]));
	}
	NEED(storage_does("crash"));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(thread[i], NULL));
	CHECK(end[0].error == EIO && end[1].error == EIO);
	CHECK(!close(end[0].fd));
}

/* fsync of a directory reports lost names, once for each descriptor; so does syncfs(2). */
void names_lost_area(void)
{
	const char *dirs[] = {"from", "from", "to", "other"};
	int fd[4], f;

	NEED(getenv("WANTED"));
	for (int i = 1; i < 4; i++)
		NEED(!mkdir(dirs[i], 0700));
	for (int i = 0; i < 4; i++)
		NEED((fd[i] = open(dirs[i], O_RDONLY | O_DIRECTORY)) >= 0);
	NEED((f = open("f", O_CREAT | O_WRONLY, 0600)) >= 0 && !fsync(f) && !close(f));
	NEED(!mkdir("from/sub", 0700));
	NEED(!syncfs(fd[3]));
	NEED(storage_does("save"));
	NEED(storage_does("crash"));
	for (int i = 0; i < 4; i++)
		CHECK(!fsync(fd[i])); /* syncfs has committed all names */
	CHECK(!rename("from/sub", "to/sub"));
	NEED(storage_does("crash"));
	CHECK(syncfs(fd[3]) && errno == EIO);
	for (int i = 0; i < 3; i++)
		CHECK(fsync(fd[i]) && errno == EIO);
	for (int i = 0; i < 4; i++)
		CHECK(!fsync(fd[i]));
	CHECK(!mkdir("from/sub", 0700) && !fsync(fd[0]));
	CHECK(!syncfs(fd[2]) || errno == EIO); /* fd[2] has not been told */
	CHECK(!syncfs(fd[2]));
	CHECK(!chmod("other", 0711));
	NEED(storage_does("crash"));
	CHECK(fsync(fd[3]) && errno == EIO);
	for (int i = 0; i < 4; i++)
		CHECK(!close(fd[i]));
}

#define CLOSED 40

static const char *name_of(unsigned int i)
{
	static char name[16];

	snprintf(name, sizeof(name), "%u", i);
	return name;
}

static int write_new(const char *name, int flags, const char *text)
{
	const int fd = open(name, O_WRONLY | flags, 0600);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	return fd;
}

/* As tar(1) does before its close. */
static bool set_times_and_mode(int fd)
{
	const struct timespec then[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};

	return !futimens(fd, then) && !fchmod(fd, 0640);
}

static bool make_closed(const char *name, int flags, const char *text, bool times)
{
	const int fd = write_new(name, flags, text);

	return fd >= 0 && (!times || set_times_and_mode(fd)) && !close(fd);
}

/* Storage loses its power. */
static bool power_fails(void)
{
	const unsigned int how = SHUT_DOWN_AS_IT_IS;
	const int fd = open(getenv("BELOW"), O_RDONLY | O_DIRECTORY);

	return fd >= 0 && !ioctl(fd, SHUT_DOWN, &how) && !close(fd) && storage_does("power");
}

/* Syncs on a descriptor that changed nothing. */
static bool synced_later(void)
{
	const int fd = open("synced", O_RDONLY);

	return fd >= 0 && !fsync(fd) && !close(fd) && power_fails();
}

/* A change by name, or on a descriptor that is closed, survives. */
static bool cut_is_kept(void)
{
	return !truncate("synced", 2) && synced_later() && holds(other("synced"), "by");
}

static bool mode_is_kept(void)
{
	int fd;

	return !chmod("synced", 0604) && synced_later() && mode_of(other("synced")) == 0604 &&
	       (fd = open("synced", O_WRONLY)) >= 0 && !fchmod(fd, 0640) && !close(fd) &&
	       synced_later() && mode_of(other("synced")) == 0640;
}

/* Many WRITEs are in flight when the sync reaches the inode. */
static bool sync_is_kept(void)
{
	static char big[4 << 20];
	const int fd = open("big", O_CREAT | O_EXCL | O_WRONLY, 0600);
	struct stat st;

	return fd >= 0 && write(fd, big, sizeof(big)) == (ssize_t)sizeof(big) && !syncfs(fd) &&
	       power_fails() && !stat(other("big"), &st) && st.st_size == (off_t)sizeof(big) &&
	       st.st_blocks * 512 >= st.st_size && !close(fd);
}

/* When close(2) has returned, new files and files written in place are on the disk. */
void closed_area(void)
{
	int fd;

	NEED(getenv("WANTED") && getenv("BELOW"));
	for (unsigned int i = 0; i < CLOSED; i++)
		CHECK(make_closed(name_of(i), O_CREAT | O_EXCL, "first", i % 2));
	NEED(power_fails());
	for (unsigned int i = 0; i < CLOSED; i++)
		CHECK(holds(other(name_of(i)), "first"));
	for (unsigned int i = 0; i < CLOSED; i++)
		CHECK(make_closed(name_of(i), i % 4 < 2 ? 0 : O_TRUNC, "again", i % 2));
	/* Last, because any fsync also stores earlier changes of other files. */
	CHECK((fd = write_new("synced", O_CREAT | O_EXCL, "bytes")) >= 0);
	CHECK(set_times_and_mode(fd) && !fsync(fd));
	/* Nothing is left to commit, so the close does not wait for storage. */
	NEED(storage_does("stop"));
	CHECK(!close(fd));
	NEED(power_fails());
	CHECK(holds(other("synced"), "bytes") && mode_of(other("synced")) == 0640);
	for (unsigned int i = 0; i < CLOSED; i++)
		CHECK(holds(other(name_of(i)), "again"));
	CHECK(cut_is_kept());
	CHECK(mode_is_kept());
	CHECK(sync_is_kept());
}
