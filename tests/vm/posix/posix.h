/* SPDX-License-Identifier: MIT */
/*
 * posix.h - declarations that the areas of coop-posix share.
 *
 * An area is a function that works in its own directory, which is the current one.
 * 'here' is its path, 'there' the path of the same directory through another mount.
 * CHECK and FAILS count faults and print their places; the area then goes on, so that
 * one run shows all faults.
 */
#ifndef COOP_TESTS_POSIX_H
#define COOP_TESTS_POSIX_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#define COOPFS_MAGIC 0x636f6f70
#define PAGE         4096
#define STRANGER     1000 /* a user that owns nothing */

extern const char *here, *there;

extern char *volatile nowhere; /* an address without memory */

bool expect(bool good, const char *file, int line, const char *what);
bool expect_error(long result, int error, const char *file, int line, const char *what);

#define CHECK(condition)   (errno = 0, expect((condition), __FILE__, __LINE__, #condition))
#define FAILS(call, error) (errno = 0, expect_error((call), (error), __FILE__, __LINE__, #call))
/* A CHECK that ends the area if it fails. */
#define NEED(condition)                \
	do {                           \
		if (!CHECK(condition)) \
			return;        \
	} while (0)

/* Runs act() in a process of that user and group, without other groups. */
void as_user(uid_t user, gid_t group, void (*act)(void));
/* The path of a name in the other mount's directory; the last four results stay valid. */
const char *other(const char *name);
/* Whether the file has exactly these bytes. Opens and closes it. */
bool holds(const char *path, const char *text);
/* Makes or overwrites a file. */
bool put(const char *path, const char *text);
off_t size_of(const char *path);
mode_t mode_of(const char *path);
bool absent(const char *path);
/* Whether listxattr(2) lists the name. */
bool lists(const char *path, const char *name);
/* Waits until the clock of storage's time stamps has advanced. */
void let_clock_tick(void);
/* late.c: how often coop-between has logged this; waits until it has; gives it an order. */
int times_done(const char *what);
bool is_done(const char *what, int times);
bool between(const char *order);
/* late.c: the number after this key in a file of the mount, which that variable of the environment
 * names; -1: none. */
long told(const char *file, const char *key);
/* late.c: waits until the mount has so many calls to storage. */
bool calls_are(long wanted);
void pause_shortly(void);
/* locks.c: whether a load there raises SIGBUS. */
bool load_fails(volatile char *from);
/* Gives an order to the topic's script, see crash.c. */
bool storage_does(const char *what);

/*
 * Mounts the directory at another place, with its users mapped by 'map' in the form of
 * /proc/PID/uid_map. Returns an exit status.
 */
int mount_mapped(const char *map, const char *dir, const char *at);

typedef void area_fn(void);
area_fn create_area, tmpfile_area, tmpfile_kept_area, long_names_area, mkdir_area, unlink_area,
	rename_area, link_area, symlink_area, special_area, types_area, handles_area;
area_fn readdir_area, readdir_changes_area, seekdir_area;
area_fn modes_area, owners_area, times_area, statx_area, permission_area, statfs_area, set_id_area,
	xattrs_area, capability_area, capability_squashed_area, acls_area, idmapped_area;
area_fn read_write_area, append_area, truncate_area, holes_area, sync_area, copies_area, locks_area;
area_fn locks_wait_area, locks_data_area, locks_shared_area, locks_lost_area, locks_kept_area,
	locks_fenced_area, locks_told_area, locks_silent_area, locks_heard_area, locks_killed_area,
	locks_forced_area;
area_fn allocate_area, seek_area, copy_area, copy_signalled_area, clone_area, quota_area;
area_fn mmap_area, sent_cold_area, direct_area, mixed_area, in_flight_area, dropped_mapped_area;
area_fn written_again_area, handed_over_area, lost_for_all_area, closed_area, names_lost_area;
area_fn mapped_elsewhere_area, cut_mapped_area, append_mapped_area, read_grown_area,
	direct_foreign_area, grown_foreign_area, write_foreign_area;
area_fn soft_kept_area, soft_reopened_area, open_memory_area;
area_fn streamed_area, beside_write_area, unlock_unknown_area, behind_end_area;
area_fn close_to_open_area, unlinked_area, removed_elsewhere_area, renamed_elsewhere_area,
	both_append_area, whole_appends_area, page_parts_area;

#endif /* COOP_TESTS_POSIX_H */
