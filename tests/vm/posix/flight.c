/* SPDX-License-Identifier: MIT */
/*
 * flight.c - O_DIRECT requests of one thread that are in flight at the same time.
 *
 * The daemon is stopped and cannot answer, and the mount's "info" shows how many calls wait.
 * An alarm continues the daemon if the thread blocks.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/aio_abi.h>

#include "posix.h"

#define LARGE   (4 << 20)
#define BLOCK   8192
#define BLOCKS  12
#define PATIENT 400 /* times 50 ms */

static pid_t daemon_pid;

static volatile sig_atomic_t released;

static void go_on(int number)
{
	released = 1;
	kill(daemon_pid, SIGCONT);
}

static int calls(void)
{
	FILE *f = fopen(getenv("INFO"), "r");
	char line[256];
	int n = -1;

	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "calls %d", &n);
	if (f)
		fclose(f);
	return n;
}

static bool come_to(int wanted)
{
	int most = 0;

	for (unsigned int i = 0; i < PATIENT; i++) {
		const int n = calls();

		if (n >= wanted)
			return true;
		most = n > most ? n : most;
		nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
	}
	fprintf(stderr, "%d calls were in flight, not %d\n", most, wanted);
	return false;
}

static bool thread_stopped(const char *task)
{
	char path[PAGE], line[PAGE] = "";
	const char *state;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", daemon_pid, task);
	f = fopen(path, "r");
	if (!f)
		return errno == ENOENT; /* the thread has ended */
	state = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
	fclose(f);
	return state && state[1] == ' ' && state[2] == 'T';
}

static bool threads_stopped(void)
{
	const struct dirent *task;
	char path[PAGE];
	bool all = true;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", daemon_pid);
	dir = opendir(path);
	if (!dir)
		return false;
	while (all && (task = readdir(dir)))
		all = task->d_name[0] == '.' || thread_stopped(task->d_name);
	closedir(dir);
	return all;
}

/* When kill() returns the signal is only sent: threads may still answer for a while. */
static bool daemon_stops(void)
{
	if (kill(daemon_pid, SIGSTOP))
		return false;
	for (unsigned int i = 0; i < PATIENT; i++) {
		if (threads_stopped())
			return true;
		nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
	}
	fprintf(stderr, "the daemon does not stop\n");
	return false;
}

/* One read of many parts, by a child process that may block. */
static void one_large(int fd, char *p, int wanted)
{
	int status = 0;
	pid_t child;

	CHECK(daemon_stops());
	child = fork();
	if (!child)
		_exit(pread(fd, p, LARGE, 0) != LARGE || p[LARGE - 1] != 'x');
	CHECK(come_to(wanted));
	CHECK(!kill(daemon_pid, SIGCONT));
	CHECK(waitpid(child, &status, 0) == child && !status);
}

static void submitted(int fd, char *p, int op)
{
	struct iocb cb[BLOCKS], *list[BLOCKS];
	struct io_event events[BLOCKS];
	aio_context_t context = 0;
	int good = 0;

	NEED(!syscall(SYS_io_setup, BLOCKS, &context));
	memset(cb, 0, sizeof(cb));
	for (int i = 0; i < BLOCKS; i++) {
		cb[i].aio_fildes = (unsigned int)fd;
		cb[i].aio_lio_opcode = (unsigned short)op;
		cb[i].aio_buf = (unsigned long)(p + i * BLOCK);
		cb[i].aio_nbytes = BLOCK;
		cb[i].aio_offset = i * BLOCK;
		list[i] = &cb[i];
	}
	CHECK(daemon_stops());
	alarm(20);
	CHECK(syscall(SYS_io_submit, context, BLOCKS, list) == BLOCKS);
	CHECK(!released);
	CHECK(come_to(BLOCKS));
	CHECK(!kill(daemon_pid, SIGCONT) && alarm(0) > 0);
	CHECK(syscall(SYS_io_getevents, context, BLOCKS, BLOCKS, events, NULL) == BLOCKS);
	for (int i = 0; i < BLOCKS; i++)
		good += events[i].res == BLOCK;
	CHECK(good == BLOCKS);
	CHECK(!syscall(SYS_io_destroy, context));
}

void in_flight_area(void)
{
	char *p = NULL, *q = NULL;
	int fd;

	NEED(getenv("DAEMON") && getenv("INFO") && calls() >= 0);
	daemon_pid = atoi(getenv("DAEMON"));
	signal(SIGALRM, go_on);
	NEED(!posix_memalign((void **)&p, PAGE, LARGE) &&
	     !posix_memalign((void **)&q, PAGE, LARGE));
	memset(p, 'x', LARGE);
	NEED((fd = open("f", O_CREAT | O_RDWR | O_DIRECT, 0600)) >= 0);
	CHECK(pwrite(fd, p, LARGE, 0) == LARGE);
	memset(p, 0, LARGE);
	one_large(fd, p, 8);

	submitted(fd, p, IOCB_CMD_PREAD);
	CHECK(p[0] == 'x' && p[BLOCKS * BLOCK - 1] == 'x' && !p[BLOCKS * BLOCK]);
	for (int i = 0; i < BLOCKS * BLOCK; i++)
		q[i] = (char)('a' + i / BLOCK);
	submitted(fd, q, IOCB_CMD_PWRITE);
	CHECK(pread(fd, p, BLOCKS * BLOCK, 0) == BLOCKS * BLOCK && !memcmp(p, q, BLOCKS * BLOCK));
	CHECK(!close(fd));
	NEED((fd = open(other("f"), O_RDONLY)) >= 0);
	CHECK(pread(fd, p, BLOCKS * BLOCK, 0) == BLOCKS * BLOCK && !memcmp(p, q, BLOCKS * BLOCK));
	CHECK(!close(fd));
	free(p);
	free(q);
}
