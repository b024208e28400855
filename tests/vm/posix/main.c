/* SPDX-License-Identifier: MIT */
/*
 * coop-posix - the operations of a file system, with their results and errors.
 *
 *   coop-posix AREA DIRECTORY OTHER
 *   coop-posix --list
 *   coop-posix --mapped MAP DIRECTORY PLACE
 *
 * DIRECTORY and OTHER are one directory seen through two mounts. The area makes the
 * directory DIRECTORY/AREA, works there, and removes it at the end. Needs root.
 *
 * Where this file system has its own semantics the areas check them as documented
 * (coopfs(5)): O_DIRECT of any alignment, and callers that an id-mapped mount refuses.
 *
 * --mapped serves other topics: it mounts DIRECTORY at PLACE too, with its users mapped by MAP in
 * the form of /proc/PID/uid_map.
 *
 * Variables in the environment: the areas statx, clone and capability_squashed look into the
 * exported file system, where BELOW names the directory of the areas; quota sets a limit on its
 * device QUOTA_DEVICE; in_flight stops the storage daemon, process DAEMON, for a moment, and reads
 * the mount's file "info" at INFO. crash.c describes those of written_again, handed_over,
 * lost_for_all, names_lost, closed, locks_lost, locks_kept, locks_silent and locks_fenced, late.c
 * those of streamed, beside_write, unlock_unknown, behind_end, and of cut_mapped, append_mapped,
 * read_grown, direct_foreign, locks_fenced, locks_silent, locks_heard, locks_killed and
 * locks_forced, soft.c those of soft_kept and soft_reopened, and memory.c that of open_memory.
 *
 * Status: 0 success, 1 a check failed, 2 usage or nothing could be checked.
 */
#define _GNU_SOURCE
#include <ftw.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "posix.h"

const char *here, *there;
char *volatile nowhere = (char *)PAGE;
static unsigned int checks, faults;

static const struct {
	const char *name;
	area_fn *run;
} areas[] = {
	{"create", create_area},
	{"tmpfile", tmpfile_area},
	{"tmpfile_kept", tmpfile_kept_area},
	{"long_names", long_names_area},
	{"mkdir", mkdir_area},
	{"unlink", unlink_area},
	{"rename", rename_area},
	{"link", link_area},
	{"symlink", symlink_area},
	{"special", special_area},
	{"types", types_area},
	{"handles", handles_area},
	{"readdir", readdir_area},
	{"readdir_changes", readdir_changes_area},
	{"seekdir", seekdir_area},
	{"modes", modes_area},
	{"owners", owners_area},
	{"times", times_area},
	{"statx", statx_area},
	{"permission", permission_area},
	{"statfs", statfs_area},
	{"set_id", set_id_area},
	{"xattrs", xattrs_area},
	{"capability", capability_area},
	{"capability_squashed", capability_squashed_area},
	{"acls", acls_area},
	{"idmapped", idmapped_area},
	{"read_write", read_write_area},
	{"append", append_area},
	{"truncate", truncate_area},
	{"holes", holes_area},
	{"sync", sync_area},
	{"copies", copies_area},
	{"locks", locks_area},
	{"locks_wait", locks_wait_area},
	{"locks_data", locks_data_area},
	{"locks_shared", locks_shared_area},
	{"locks_lost", locks_lost_area},
	{"locks_kept", locks_kept_area},
	{"locks_fenced", locks_fenced_area},
	{"locks_told", locks_told_area},
	{"locks_silent", locks_silent_area},
	{"locks_heard", locks_heard_area},
	{"locks_killed", locks_killed_area},
	{"locks_forced", locks_forced_area},
	{"allocate", allocate_area},
	{"seek", seek_area},
	{"copy", copy_area},
	{"copy_signalled", copy_signalled_area},
	{"clone", clone_area},
	{"quota", quota_area},
	{"mmap", mmap_area},
	{"sent_cold", sent_cold_area},
	{"direct", direct_area},
	{"mixed", mixed_area},
	{"in_flight", in_flight_area},
	{"written_again", written_again_area},
	{"handed_over", handed_over_area},
	{"lost_for_all", lost_for_all_area},
	{"names_lost", names_lost_area},
	{"closed", closed_area},
	{"streamed", streamed_area},
	{"beside_write", beside_write_area},
	{"unlock_unknown", unlock_unknown_area},
	{"behind_end", behind_end_area},
	{"soft_kept", soft_kept_area},
	{"soft_reopened", soft_reopened_area},
	{"open_memory", open_memory_area},
	{"dropped_mapped", dropped_mapped_area},
	{"mapped_elsewhere", mapped_elsewhere_area},
	{"cut_mapped", cut_mapped_area},
	{"append_mapped", append_mapped_area},
	{"read_grown", read_grown_area},
	{"direct_foreign", direct_foreign_area},
	{"grown_foreign", grown_foreign_area},
	{"write_foreign", write_foreign_area},
	{"close_to_open", close_to_open_area},
	{"unlinked", unlinked_area},
	{"removed_elsewhere", removed_elsewhere_area},
	{"renamed_elsewhere", renamed_elsewhere_area},
	{"both_append", both_append_area},
	{"whole_appends", whole_appends_area},
	{"page_parts", page_parts_area},
};

bool expect(bool good, const char *file, int line, const char *what)
{
	checks++;
	if (good)
		return true;
	faults++;
	fprintf(stderr, "%s:%d: failed: %s (errno: %s)\n", file, line, what, strerror(errno));
	return false;
}

bool expect_error(long result, int error, const char *file, int line, const char *what)
{
	const int got = errno;

	checks++;
	if (result == -1 && got == error)
		return true;
	faults++;
	fprintf(stderr, "%s:%d: %s: returned %ld, %s; wanted %s\n", file, line, what, result,
		strerrorname_np(got), strerrorname_np(error));
	return false;
}

void as_user(uid_t user, gid_t group, void (*act)(void))
{
	const pid_t child = fork();
	int status = 0;

	if (!child) {
		checks = faults = 0;
		if (setgroups(0, NULL) || setgid(group) || setuid(user))
			_exit(99);
		act();
		_exit(faults < 98 ? (int)faults : 98);
	}
	if (!CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
		   WEXITSTATUS(status) != 99))
		return;
	faults += (unsigned int)WEXITSTATUS(status);
}

const char *other(const char *name)
{
	static char path[4][PAGE];
	static unsigned int next;

	next = (next + 1) % 4;
	snprintf(path[next], sizeof(path[0]), "%s/%s", there, name);
	return path[next];
}

bool holds(const char *path, const char *text)
{
	const size_t wanted = strlen(text);
	char buf[PAGE];
	ssize_t n;
	int fd;

	fd = open(path, O_RDONLY);
	if (fd < 0)
		return false;
	n = read(fd, buf, sizeof(buf));
	if (n != (ssize_t)wanted || memcmp(buf, text, wanted))
		fprintf(stderr, "%s holds %zd bytes \"%.*s\", not \"%s\"\n", path, n,
			n > 0 ? (int)n : 0, buf, text);
	return !close(fd) && n == (ssize_t)wanted && !memcmp(buf, text, wanted);
}

bool put(const char *path, const char *text)
{
	const ssize_t wanted = (ssize_t)strlen(text);
	const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	bool good;

	if (fd < 0)
		return false;
	good = write(fd, text, (size_t)wanted) == wanted;
	return !close(fd) && good;
}

off_t size_of(const char *path)
{
	struct stat st;

	return stat(path, &st) ? -1 : st.st_size;
}

mode_t mode_of(const char *path)
{
	struct stat st;

	return stat(path, &st) ? (mode_t)-1 : st.st_mode & 07777;
}

bool absent(const char *path)
{
	struct stat st;

	return lstat(path, &st) && errno == ENOENT;
}

/* Uses the clock that stamps changes, which stops while a tick is late. */
void let_clock_tick(void)
{
	const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
	struct timespec from, now;

	clock_gettime(CLOCK_REALTIME_COARSE, &from);
	do {
		nanosleep(&pause, NULL);
		clock_gettime(CLOCK_REALTIME_COARSE, &now);
	} while ((now.tv_sec - from.tv_sec) * 1000 + (now.tv_nsec - from.tv_nsec) / 1000000 < 30);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	return remove(path);
}

static int run(const char *name, area_fn *area, const char *dir, const char *elsewhere)
{
	static char own[PAGE], theirs[PAGE];

	snprintf(own, sizeof(own), "%s/%s", dir, name);
	snprintf(theirs, sizeof(theirs), "%s/%s", elsewhere, name);
	here = own;
	there = theirs;
	umask(022);
	if (mkdir(here, 0755) || chdir(here) || access(there, F_OK)) {
		fprintf(stderr, "coop-posix: %s and %s: %s\n", here, there, strerror(errno));
		return 2;
	}
	area();
	CHECK(!chdir("/"));
	CHECK(!nftw(here, remove_one, 16, FTW_DEPTH | FTW_PHYS));
	printf("%s: %u checks, %u faults\n", name, checks, faults);
	return faults || !checks;
}

int main(int argc, char **argv)
{
	const size_t n = sizeof(areas) / sizeof(areas[0]);

	setbuf(stdout, NULL);
	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (size_t i = 0; i < n; i++)
			puts(areas[i].name);
		return 0;
	}
	for (size_t i = 0; argc == 4 && i < n; i++) {
		if (!strcmp(argv[1], areas[i].name))
			return run(areas[i].name, areas[i].run, argv[2], argv[3]);
	}
	if (argc == 5 && !strcmp(argv[1], "--mapped"))
		return mount_mapped(argv[2], argv[3], argv[4]);
	fprintf(stderr,
		"usage: coop-posix AREA DIRECTORY OTHER | --list | --mapped MAP DIRECTORY PLACE\n");
	return 2;
}
