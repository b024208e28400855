/* SPDX-License-Identifier: MIT */
/*
 * locks.c - flock(2), byte ranges of processes and of open files, between two mounts:
 * exclusion, waits and their ends, reads under a lock, locks over a restart of the daemon, and
 * locks whose calls were left (with coop-between, late.c).
 *
 * Another process stands for the other node, so all but the restart also holds on any
 * single file system. crash.c describes the orders to the topic's script that locks_kept
 * and locks_lost give; "restart" starts a daemon with the state that the last one left.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "posix.h"

#define PATIENT_MS 120000
#define ROUNDS     40

enum how { FLOCK, RANGE, OFD, HOWS };

static int lock(int fd, enum how how, int type, bool wait, off_t start, off_t len)
{
	struct flock l = {
		.l_type = (short)type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};

	if (how == FLOCK)
		return flock(fd, (type == F_WRLCK   ? LOCK_EX
				  : type == F_RDLCK ? LOCK_SH
						    : LOCK_UN) |
					 (wait ? 0 : LOCK_NB));
	if (how == OFD)
		return fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &l);
	return fcntl(fd, wait ? F_SETLKW : F_SETLK, &l);
}

static bool busy(int result)
{
	return result == -1 && (errno == EAGAIN || errno == EACCES);
}

/* ---- another process, on the other mount ------------------------------------------------ */

struct node {
	pid_t pid;
	int said; /* an int per call: 0 or its errno */
	int tell; /* closed: it ends */
};

static void on_signal(int number)
{
	(void)number;
}

static void act(enum how how, int type, bool wait, off_t start, off_t len, int said, int told)
{
	struct sigaction interrupt = {.sa_handler = on_signal};
	const int fd = open(other("f"), O_RDWR);
	int error = 0;
	char c;

	sigaction(SIGUSR1, &interrupt, NULL);
	if (fd < 0 || lock(fd, how, type, wait, start, len))
		error = errno;
	if (write(said, &error, sizeof(error)) != sizeof(error))
		_exit(1);
	while (read(told, &c, 1) < 0 && errno == EINTR)
		;
	_exit(0);
}

static struct node node_locks(enum how how, int type, bool wait, off_t start, off_t len)
{
	struct node n = {.pid = -1};
	int said[2], tell[2];

	if (pipe2(said, O_CLOEXEC) || pipe2(tell, O_CLOEXEC))
		return n;
	n.pid = fork();
	if (!n.pid) {
		close(said[0]);
		close(tell[1]);
		act(how, type, wait, start, len, said[1], tell[0]);
	}
	close(said[1]);
	close(tell[0]);
	n.said = said[0];
	n.tell = tell[1];
	return n;
}

/* The node's next result within that time; -1: none. */
static int word(const struct node *n, int ms)
{
	struct pollfd p = {.fd = n->said, .events = POLLIN};
	int error;

	if (poll(&p, 1, ms) != 1 || read(n->said, &error, sizeof(error)) != sizeof(error))
		return -1;
	return error;
}

static void node_ends(struct node *n)
{
	close(n->tell);
	close(n->said);
	waitpid(n->pid, NULL, 0);
}

/* The result for another process that wants this lock now. */
static int wanted(enum how how, int type, off_t start, off_t len)
{
	struct node n = node_locks(how, type, false, start, len);
	const int error = word(&n, PATIENT_MS);

	node_ends(&n);
	return error;
}

/* The node sleeps in the lock's system call. */
static bool sleeps_in_lock(const struct node *n)
{
	const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
	char path[64], text[64];
	int i, seen = 0;
	FILE *f;
	long call;

	snprintf(path, sizeof(path), "/proc/%d/syscall", n->pid);
	for (i = 0; i < PATIENT_MS / 20 && seen < 10; i++) {
		nanosleep(&pause, NULL);
		f = fopen(path, "r");
		if (!f)
			return false;
		call = fgets(text, sizeof(text), f) ? strtol(text, NULL, 10) : -1;
		fclose(f);
		seen = call == SYS_flock || call == SYS_fcntl ? seen + 1 : 0;
	}
	return seen == 10;
}

/* ---- areas ------------------------------------------------------------------------------- */

static void exclusion(enum how how)
{
	int fd;

	NEED((fd = open("f", O_RDWR)) >= 0);
	CHECK(!lock(fd, how, F_WRLCK, false, 0, 0));
	CHECK(wanted(how, F_WRLCK, 0, 0) == EAGAIN && wanted(how, F_RDLCK, 0, 0) == EAGAIN);
	CHECK(!lock(fd, how, F_RDLCK, false, 0, 0));
	CHECK(wanted(how, F_WRLCK, 0, 0) == EAGAIN && !wanted(how, F_RDLCK, 0, 0));
	CHECK(!lock(fd, how, F_UNLCK, false, 0, 0) && !wanted(how, F_WRLCK, 0, 0));
	CHECK(!lock(fd, how, F_WRLCK, false, 0, 0) && !close(fd));
	CHECK(!wanted(how, F_WRLCK, 0, 0));
}

static void ranges(void)
{
	struct flock test = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	struct node n;
	int fd, second;

	NEED((fd = open("f", O_RDWR)) >= 0);
	CHECK(!lock(fd, RANGE, F_WRLCK, false, 50, 100));
	CHECK(!wanted(RANGE, F_WRLCK, 0, 50) && !wanted(RANGE, F_WRLCK, 150, 0));
	CHECK(wanted(RANGE, F_WRLCK, 149, 1) == EAGAIN && wanted(OFD, F_RDLCK, 50, 1) == EAGAIN);
	CHECK(!lock(fd, RANGE, F_UNLCK, false, 80, 20) && !wanted(RANGE, F_WRLCK, 80, 20) &&
	      wanted(RANGE, F_WRLCK, 79, 1) == EAGAIN && wanted(RANGE, F_WRLCK, 100, 1) == EAGAIN);
	/* Closing any descriptor of the file releases the process's ranges. */
	NEED((second = open("f", O_RDONLY)) >= 0);
	CHECK(!close(second) && !wanted(RANGE, F_WRLCK, 0, 0));
	/* F_GETLK names the conflicting lock. */
	n = node_locks(RANGE, F_WRLCK, false, 200, 10);
	CHECK(!word(&n, PATIENT_MS) && !fcntl(fd, F_GETLK, &test) && test.l_type == F_WRLCK &&
	      test.l_start == 200 && test.l_len == 10);
	node_ends(&n);
	test = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
	CHECK(!fcntl(fd, F_GETLK, &test) && test.l_type == F_UNLCK);
	CHECK(!close(fd));
}

void locks_area(void)
{
	int a = -1, b = -1;

	NEED(put("f", "x"));
	for (enum how how = 0; how < HOWS; how++)
		exclusion(how);
	ranges();
	NEED((a = open("f", O_RDWR)) >= 0 && (b = open("f", O_RDONLY)) >= 0);
	/* flock(2) and ranges do not conflict; a range lock needs matching access. */
	CHECK(!lock(a, FLOCK, F_WRLCK, false, 0, 0) && !wanted(RANGE, F_WRLCK, 0, 0));
	CHECK(busy(lock(b, FLOCK, F_RDLCK, false, 0, 0)));
	FAILS(lock(b, RANGE, F_WRLCK, false, 0, 0), EBADF);
	/* An open file description outlives a descriptor. */
	CHECK(!lock(a, OFD, F_WRLCK, false, 0, 0) && !close(dup(a)) &&
	      wanted(OFD, F_WRLCK, 0, 0) == EAGAIN && wanted(FLOCK, F_WRLCK, 0, 0) == EAGAIN);
	/* F_SETLEASE fails: another node's open would not break such a lease. */
	if (strcmp(here, there)) {
		FAILS(fcntl(b, F_SETLEASE, F_RDLCK), EINVAL);
		FAILS(fcntl(a, F_SETLEASE, F_WRLCK), EINVAL);
	}
	CHECK(!close(a) && !close(b));
}

static void waits(enum how how)
{
	struct node n, second;
	int fd;

	NEED((fd = open("f", O_RDWR)) >= 0);
	CHECK(!lock(fd, how, F_WRLCK, false, 0, 0));
	n = node_locks(how, F_WRLCK, true, 0, 0);
	CHECK(sleeps_in_lock(&n));
	CHECK(!lock(fd, how, F_UNLCK, false, 0, 0) && !word(&n, PATIENT_MS));
	CHECK(busy(lock(fd, how, F_WRLCK, false, 0, 0)));
	/* This node waits for the other's lock until its process is killed. */
	CHECK(!kill(n.pid, SIGKILL) && !lock(fd, how, F_WRLCK, true, 0, 0));
	node_ends(&n);
	/* A signal ends a wait, and the ended wait does not block later ones. */
	n = node_locks(how, F_WRLCK, true, 0, 0);
	CHECK(sleeps_in_lock(&n) && !kill(n.pid, SIGUSR1) && word(&n, PATIENT_MS) == EINTR);
	second = node_locks(how, F_WRLCK, true, 0, 0);
	CHECK(sleeps_in_lock(&second) && !kill(second.pid, SIGKILL));
	node_ends(&second);
	CHECK(!lock(fd, how, F_UNLCK, false, 0, 0));
	CHECK(!lock(fd, how, F_WRLCK, true, 0, 0) && !lock(fd, how, F_UNLCK, false, 0, 0));
	node_ends(&n);
	CHECK(!close(fd));
}

/* A signal meets a grant: the lock is held or not, and in the end it is free. */
static void crossings(enum how how)
{
	struct node n;
	int fd, said;

	NEED((fd = open("f", O_RDWR)) >= 0);
	for (int i = 0; i < 8; i++) {
		CHECK(!lock(fd, how, F_WRLCK, true, 0, 0));
		n = node_locks(how, F_WRLCK, true, 0, 0);
		CHECK(sleeps_in_lock(&n));
		CHECK(!kill(n.pid, i & 1 ? SIGKILL : SIGUSR1) &&
		      !lock(fd, how, F_UNLCK, false, 0, 0));
		if (!(i & 1)) {
			said = word(&n, PATIENT_MS);
			CHECK(!said || said == EINTR);
			if (!said)
				CHECK(busy(lock(fd, how, F_WRLCK, false, 0, 0)));
		}
		node_ends(&n);
	}
	CHECK(!lock(fd, how, F_WRLCK, true, 0, 0) && !close(fd));
}

/* Each has one byte and wants the other's: the one that wants it last is refused. */
static void circle(void)
{
	struct node n;
	int fd, tell[2], refused, error = 0;
	pid_t child;

	NEED((fd = open("f", O_RDWR)) >= 0 && !pipe(tell));
	CHECK(!lock(fd, RANGE, F_WRLCK, false, 0, 1));
	child = fork();
	if (!child) {
		fd = open(other("f"), O_RDWR);
		if (lock(fd, RANGE, F_WRLCK, false, 1, 1) || write(tell[1], "x", 1) != 1)
			_exit(1);
		if (!lock(fd, RANGE, F_WRLCK, true, 0, 1))
			_exit(0);
		_exit(errno == EDEADLK ? 2 : 1);
	}
	n.pid = child;
	CHECK(child > 0 && read(tell[0], &error, 1) == 1 && sleeps_in_lock(&n));
	/* On a busy machine the child's request may still be on its way to storage. */
	refused = lock(fd, RANGE, F_WRLCK, true, 1, 1) ? errno : 0;
	CHECK(!refused || refused == EDEADLK);
	CHECK(!lock(fd, RANGE, F_UNLCK, false, 0, 0) && waitpid(child, &error, 0) == child &&
	      WIFEXITED(error) && WEXITSTATUS(error) == (refused ? 0 : 2));
	CHECK(!close(fd) && !close(tell[0]) && !close(tell[1]));
}

/*
 * Of two processes that share an open file description one is killed before its lock is answered.
 * What the other one locks then, or already wants, is not unlocked for the first one. A third
 * process of the node, with an open file of its own, may get the lock in between.
 */
static void killed_sharer(enum how how, bool beside, bool third)
{
	struct node n;
	int fd, before = times_done("held lock 0"), status = 0;
	pid_t killed, waits = 0;

	NEED((fd = open("f", O_RDWR)) >= 0 && between("hold lock"));
	killed = fork();
	if (!killed)
		_exit(!!lock(fd, how, F_WRLCK, true, 0, 0));
	NEED(killed > 0 && is_done("held lock 0", before + 1));
	if (!beside)
		CHECK(!kill(killed, SIGKILL) && waitpid(killed, NULL, 0) == killed);
	n.pid = fork();
	if (!n.pid) {
		alarm(PATIENT_MS / 1000);
		_exit(!!lock(fd, how, F_WRLCK, true, 0, 0));
	}
	CHECK(n.pid > 0 && sleeps_in_lock(&n));
	if (third) {
		waits = fork();
		if (!waits) {
			alarm(PATIENT_MS / 1000);
			_exit(!!lock(open("f", O_RDWR), how, F_WRLCK, true, 0, 0));
		}
		NEED(waits > 0 && is_done("held lock 0", before + 2));
	}
	if (beside)
		CHECK(!kill(killed, SIGKILL) && waitpid(killed, NULL, 0) == killed);
	NEED(between("go"));
	if (third)
		CHECK(waitpid(waits, &status, 0) == waits && !status);
	CHECK(waitpid(n.pid, &status, 0) == n.pid && !status);
	CHECK(calls_are(0) && wanted(how, F_WRLCK, 0, 0) == EAGAIN);
	CHECK(!lock(fd, how, F_UNLCK, false, 0, 0) && !wanted(how, F_WRLCK, 0, 0));
	CHECK(!close(fd));
}

/* One that waits to convert a lock, which is gone then, is killed: the open file lost nothing. */
static void killed_conversion(void)
{
	struct node n = node_locks(FLOCK, F_RDLCK, false, 0, 0), waits;
	char byte;
	int fd;

	NEED(!word(&n, PATIENT_MS));
	NEED((fd = open("f", O_RDWR)) >= 0);
	CHECK(!lock(fd, FLOCK, F_RDLCK, false, 0, 0));
	waits.pid = fork();
	if (!waits.pid)
		_exit(!!lock(fd, FLOCK, F_WRLCK, true, 0, 0));
	CHECK(waits.pid > 0 && sleeps_in_lock(&waits) && !kill(waits.pid, SIGKILL) &&
	      waitpid(waits.pid, NULL, 0) == waits.pid);
	CHECK(calls_are(0) && pread(fd, &byte, 1, 0) == 1);
	CHECK(!lock(fd, FLOCK, F_RDLCK, false, 0, 0));
	node_ends(&n);
	CHECK(!lock(fd, FLOCK, F_WRLCK, true, 0, 0) && !close(fd));
}

/*
 * A process unlocks what it has in common with one that shares the open file description, while the
 * reply to the other's lock is on its way. The lock that the other one gets holds at storage.
 */
static void unlocks_beside(enum how how)
{
	int fd, before = times_done("held lock 0"), status = 0;
	pid_t takes;

	NEED((fd = open("f", O_RDWR)) >= 0 && !lock(fd, how, F_WRLCK, false, 0, 10));
	NEED(between("hold lock"));
	takes = fork();
	if (!takes) {
		alarm(PATIENT_MS / 1000);
		_exit(!!lock(fd, how, F_WRLCK, true, 0, 100));
	}
	NEED(takes > 0 && is_done("held lock 0", before + 1));
	CHECK(!lock(fd, how, F_UNLCK, false, 0, 10));
	NEED(between("go"));
	CHECK(waitpid(takes, &status, 0) == takes && !status);
	CHECK(calls_are(0) && wanted(how, F_WRLCK, 0, 10) == EAGAIN);
	CHECK(!lock(fd, how, F_UNLCK, false, 0, 100) && !wanted(how, F_WRLCK, 0, 100));
	CHECK(!close(fd));
}

void locks_killed_area(void)
{
	NEED(getenv("BETWEEN") && getenv("INFO") && put("f", "x"));
	killed_conversion();
	for (enum how how = FLOCK; how < HOWS; how++) {
		if (how == RANGE)
			continue; /* of a process, which shares it with no other */
		killed_sharer(how, false, false);
		killed_sharer(how, true, false);
		killed_sharer(how, true, true);
		unlocks_beside(how);
	}
}

/* Only storage can answer it: a new daemon, once the node has taken its open files and locks there.
 */
static int ask_storage(void)
{
	return statx(AT_FDCWD, ".", AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &(struct statx){0});
}

/* Without a connection, a call of a mount that was unmounted by force ends after 2 s. */
static bool is_forced_off(void)
{
	const int before = times_done("lost getattr 0");
	char mount[PAGE];
	int status = 0;
	pid_t asks;

	if (!between("cut proof") || !between("cut getattr"))
		return false;
	asks = fork();
	if (!asks)
		_exit(ask_storage() && errno == EIO ? 0 : 1);
	/* Not by "..", which would ask storage. */
	snprintf(mount, sizeof(mount), "%.*s", (int)(strrchr(here, '/') - here), here);
	return asks > 0 && is_done("lost getattr 0", before + 1) && umount2(mount, MNT_FORCE) &&
	       errno == EBUSY && waitpid(asks, &status, 0) == asks && !status;
}

/* An unlock that is under way when the mount is to be unmounted by force, but is busy. */
static void unlocks_when_forced(void)
{
	int fd, before = times_done("stopped unlock 0"), status = -1;
	pid_t child;

	NEED((fd = open("f", O_RDWR)) >= 0 && !lock(fd, FLOCK, F_WRLCK, false, 0, 0));
	NEED(calls_are(0) && between("stop unlock"));
	child = fork();
	if (!child)
		_exit(lock(fd, FLOCK, F_UNLCK, false, 0, 0) && errno == EIO ? 0 : 1);
	NEED(child > 0 && is_done("stopped unlock 0", before + 1) && is_forced_off());
	CHECK(waitpid(child, &status, 0) == child && !status);
	NEED(between("go") && calls_are(0));
	CHECK(!wanted(FLOCK, F_WRLCK, 0, 0) && !close(fd));
}

/*
 * An unlock that storage cannot answer keeps its owner's next lock waiting only as long as a call
 * may take.
 */
static void locks_when_forced(void)
{
	struct node n;
	int fd, status = -1;

	NEED((fd = open("f", O_RDWR)) >= 0 && !lock(fd, FLOCK, F_WRLCK, false, 0, 0));
	NEED(calls_are(0) && is_forced_off());
	FAILS(lock(fd, FLOCK, F_UNLCK, false, 0, 0), EIO);
	n.pid = fork();
	if (!n.pid) {
		alarm(PATIENT_MS / 1000);
		_exit(lock(fd, FLOCK, F_WRLCK, false, 0, 0) && errno == EIO ? 0 : 1);
	}
	CHECK(n.pid > 0 && waitpid(n.pid, &status, 0) == n.pid && !status);
	NEED(between("go") && calls_are(0));
	CHECK(!wanted(FLOCK, F_WRLCK, 0, 0) && !lock(fd, FLOCK, F_WRLCK, false, 0, 0));
	CHECK(wanted(FLOCK, F_WRLCK, 0, 0) == EAGAIN && !close(fd));
}

void locks_forced_area(void)
{
	NEED(getenv("BETWEEN") && getenv("INFO") && put("f", "x"));
	locks_when_forced();
	unlocks_when_forced();
}

void locks_wait_area(void)
{
	NEED(put("f", "x"));
	for (enum how how = 0; how < HOWS; how++) {
		waits(how);
		crossings(how);
	}
	circle();
}

static unsigned int failed(const char *call)
{
	fprintf(stderr, "%s: %s\n", call, strerror(errno));
	return 100;
}

/* A counter in a mapped page and one that is written: both count every turn. */
static unsigned int count(const char *path, enum how how)
{
	const int fd = open(path, O_RDWR);
	uint64_t *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), written;
	unsigned int wrong = 0;

	if (fd < 0 || memory == MAP_FAILED)
		return failed("open");
	for (int i = 0; i < ROUNDS; i++) {
		if (lock(fd, how, F_WRLCK, true, 0, 0))
			return failed("lock");
		if (pread(fd, &written, sizeof(written), PAGE) != sizeof(written))
			return failed("read");
		wrong += *memory != written;
		++*memory;
		written++;
		if (pwrite(fd, &written, sizeof(written), PAGE) != sizeof(written))
			return failed("write");
		if (lock(fd, how, F_UNLCK, false, 0, 0))
			return failed("unlock");
	}
	if (wrong)
		fprintf(stderr, "%s: the counters differ in %u turns\n", path, wrong);
	munmap(memory, PAGE);
	close(fd);
	return wrong;
}

void locks_data_area(void)
{
	uint64_t last[2];
	int fd, status;
	pid_t child;

	for (enum how how = 0; how < HOWS; how++) {
		NEED((fd = open("f", O_CREAT | O_TRUNC | O_RDWR, 0600)) >= 0);
		CHECK(!ftruncate(fd, 2 * PAGE) && !close(fd));
		child = fork();
		if (!child)
			_exit((int)count(other("f"), how));
		CHECK(!count("f", how));
		CHECK(waitpid(child, &status, 0) == child && !status);
		if (WIFSIGNALED(status))
			fprintf(stderr, "the other node's: %s\n", strsignal(WTERMSIG(status)));
		NEED((fd = open("f", O_RDONLY)) >= 0);
		CHECK(pread(fd, &last[0], sizeof(last[0]), 0) == sizeof(last[0]) &&
		      pread(fd, &last[1], sizeof(last[1]), PAGE) == sizeof(last[1]) &&
		      last[0] == 2 * ROUNDS && last[1] == 2 * ROUNDS);
		CHECK(!close(fd));
	}
}

/* A write lock that becomes a read lock: other readers see what was written under it. */
void locks_shared_area(void)
{
	char got[8] = "";
	int fd = -1, second = -1;

	for (enum how how = 0; how < HOWS; how++) {
		NEED(put("f", "before"));
		let_clock_tick(); /* the version is a proof now, and the lock drops no pages */
		NEED((fd = open("f", O_RDWR)) >= 0 && (second = open(other("f"), O_RDWR)) >= 0);
		CHECK(!lock(fd, how, F_WRLCK, false, 0, 0) && pread(fd, got, 6, 0) == 6);
		CHECK(pwrite(fd, "behind", 6, 0) == 6 && !lock(fd, how, F_RDLCK, false, 0, 0));
		CHECK(!lock(second, how, F_RDLCK, false, 0, 0));
		CHECK(pread(second, got, 6, 0) == 6 && !strcmp(got, "behind"));
		CHECK(!close(second) && !close(fd));
	}
}

/* Whether the other mount reads one of these letters at the start of each page. */
static bool pages_start(const char *letters)
{
	const int fd = open(other("f"), O_RDONLY);
	bool good = fd >= 0;
	char c = 0;

	for (off_t i = 0; letters[i]; i++) {
		good = good && pread(fd, &c, 1, i * PAGE) == 1 && c == letters[i];
		if (!good)
			fprintf(stderr, "page %ld starts with '%c'\n", (long)i, c);
	}
	return fd >= 0 && !close(fd) && good;
}

static bool fill(int fd, char letter, off_t page)
{
	char bytes[PAGE];

	memset(bytes, letter, sizeof(bytes));
	return pwrite(fd, bytes, PAGE, page * PAGE) == PAGE;
}

static sigjmp_buf at_bus_error;

static void on_bus_error(int number)
{
	(void)number;
	siglongjmp(at_bus_error, 1);
}

static bool access_fails(volatile char *at, bool store)
{
	struct sigaction now = {.sa_handler = on_bus_error}, before;
	volatile bool failed = true;

	sigaction(SIGBUS, &now, &before);
	if (!sigsetjmp(at_bus_error, 1)) {
		if (store)
			*at = 'm';
		else
			(void)*at;
		failed = false;
	}
	sigaction(SIGBUS, &before, NULL);
	return failed;
}

bool load_fails(volatile char *from)
{
	return access_fails(from, false);
}

/* The page that is mapped goes without anybody's doing. */
static bool loads_end(volatile char *from)
{
	for (unsigned int i = 0; i < PATIENT_MS / 100 && !load_fails(from); i++)
		pause_shortly();
	return load_fails(from);
}

/*
 * What was written under a lock that is lost never gets to storage, where the next holder may have
 * written since: neither a WRITE that was under way nor pages that are dirty in the cache, written
 * or stored. Another open file of this node would permit these WRITEs.
 */
void locks_lost_area(void)
{
	const int start = SYNC_FILE_RANGE_WRITE;
	int fd = -1, second = -1;
	char *map;

	NEED(getenv("WANTED") && (fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(fill(fd, 'o', 0) && fill(fd, 'o', 1) && fill(fd, 'o', 2) && !fsync(fd));
	map = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(map != MAP_FAILED && (second = open("f", O_RDWR)) >= 0);
	CHECK(!lock(fd, FLOCK, F_WRLCK, false, 0, 0));
	/* Storage comes back with what it has now, as if the next holder had written that. */
	NEED(storage_does("save"));
	CHECK(fill(fd, 'm', 0) && fill(fd, 'm', 1) && map[0] == 'm');
	map[2 * PAGE] = 'm';
	NEED(storage_does("stop"));
	CHECK(!sync_file_range(fd, 0, PAGE, start));
	NEED(storage_does("crash"));
	CHECK(!ask_storage()); /* this node knows the new daemon */
	CHECK(loads_end(map));
	FAILS(fsync(fd), EIO);
	FAILS(fsync(second), EIO);
	CHECK(pages_start("ooo") && access_fails(map + 2 * PAGE, true));
	/* The other open file, which has lost nothing, goes on while the first is still open. */
	CHECK(fill(second, 'n', 1) && !fsync(second) && pages_start("ono"));
	FAILS(pwrite(fd, "m", 1, 0), EIO);
	CHECK(!munmap(map, 3 * PAGE));
	close(fd);
	NEED((fd = open("f", O_RDWR)) >= 0 && !lock(fd, FLOCK, F_WRLCK, false, 0, 0));
	CHECK(fill(fd, 'p', 2) && !fsync(fd) && pages_start("onp"));
	CHECK(!close(fd) && !close(second));
}

void locks_kept_area(void)
{
	struct node n;
	int fd, free_fd, unstable;
	char c;

	NEED(getenv("WANTED") && put("f", "x"));
	NEED((fd = open("f", O_RDWR)) >= 0);
	CHECK(!lock(fd, FLOCK, F_WRLCK, false, 0, 0) && !lock(fd, RANGE, F_WRLCK, false, 10, 20) &&
	      !lock(fd, RANGE, F_UNLCK, false, 15, 5));
	n = node_locks(FLOCK, F_WRLCK, true, 0, 0);
	CHECK(sleeps_in_lock(&n));
	NEED(storage_does("restart"));
	CHECK(wanted(FLOCK, F_RDLCK, 0, 0) == EAGAIN && wanted(RANGE, F_RDLCK, 10, 1) == EAGAIN &&
	      wanted(RANGE, F_RDLCK, 29, 1) == EAGAIN && !wanted(RANGE, F_WRLCK, 15, 5));
	CHECK(pwrite(fd, "y", 1, 0) == 1);
	/* An earlier waiter still waits. */
	CHECK(word(&n, 0) == -1 && !lock(fd, FLOCK, F_UNLCK, false, 0, 0) && !word(&n, PATIENT_MS));
	node_ends(&n);
	/* A daemon that does not know the locks: others may have held them meanwhile. */
	NEED((free_fd = open("f", O_RDWR)) >= 0);
	CHECK(!lock(fd, FLOCK, F_WRLCK, true, 0, 0) && !fsync(fd));
	/* Bytes not on storage's disk when its machine fails: the loss must be reported. */
	NEED((unstable = open("g", O_CREAT | O_RDWR, 0600)) >= 0);
	CHECK(!lock(unstable, FLOCK, F_WRLCK, false, 0, 0) && pwrite(unstable, "y", 1, 0) == 1 &&
	      !sync_file_range(unstable, 0, 0, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
	NEED(storage_does("save") && storage_does("crash"));
	CHECK(!wanted(FLOCK, F_WRLCK, 0, 0));
	CHECK(!ask_storage()); /* this node knows the new daemon too */
	FAILS(fsync(unstable), EIO);
	FAILS(fallocate(unstable, 0, 0, PAGE), EIO);
	close(unstable);
	FAILS(pread(fd, &c, 1, 0), EIO);
	FAILS(pwrite(fd, "z", 1, 0), EIO);
	FAILS(lock(fd, FLOCK, F_WRLCK, false, 0, 0), EIO);
	CHECK(pread(free_fd, &c, 1, 0) == 1 && c == 'y');
	CHECK(!lock(fd, FLOCK, F_UNLCK, false, 0, 0));
	close(fd);
	CHECK(!close(free_fd) && (fd = open("f", O_RDWR)) >= 0 &&
	      !lock(fd, FLOCK, F_WRLCK, false, 0, 0) && pwrite(fd, "z", 1, 0) == 1 && !close(fd));
}
