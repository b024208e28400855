/* SPDX-License-Identifier: MIT */
/*
 * coop-fail-nth - repeats an operation of the file system, each time with another of its
 * allocations failing.
 *
 * A kernel built with fault injection fails the Nth allocation that a task makes from
 * now on (/proc/PID/fail-nth). This program does the operation with N = 1, 2, 3 ... until
 * it makes fewer than N allocations. The caller chooses slab objects or pages in debugfs.
 * After each failure the program repeats the operation without a failure. It must succeed,
 * so the failed one has left nothing in its way.
 *
 *   coop-fail-nth [-w] [-s STEP] mount|umount SOURCE DIR OPTIONS
 *   coop-fail-nth [-w] [-s STEP] read|write FILE STORED
 *   coop-fail-nth [-s STEP] create FILE
 *   coop-fail-nth [-s STEP] load|unload MODULE.ko
 *
 * FILE is on a mount, STORED is the same file at the daemon. create makes FILE.1, FILE.2
 * and so on, and removes them. With -w the allocations of the kernel's unbound workers
 * fail instead of this task's: they serve pages, receive them, and send them to storage.
 * With -s N grows by STEP percent, for operations with very many allocations.
 *
 * Only the task that made the allocation may get an error, and only that memory is short.
 * A worker's failed allocation must cause no error: the page arrives in another way.
 *
 * Status: 0 success, 1 another error or wrong bytes, 2 usage.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TASKS   256
#define MOST    100000 /* allocations of one operation */
#define BYTES   (40 * 4096)
#define WRITTEN 20000 /* bytes of a file: partial pages at both ends */
#define AT      1000

static struct {
	bool workers;
	unsigned int step;
	char **arg;
} opt;

static int armed[TASKS], n_armed; /* fail-nth of tasks */
static char wanted[BYTES], got[BYTES];

/* ---- the injection ------------------------------------------------------------- */

static bool is_worker(const char *pid)
{
	char path[64], comm[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
	f = fopen(path, "r");
	if (!f)
		return false;
	if (!fgets(comm, sizeof(comm), f))
		comm[0] = 0;
	fclose(f);
	return !strncmp(comm, "kworker/u", 9);
}

static void add_task(const char *pid)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%.20s/fail-nth", pid);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && n_armed < TASKS)
		armed[n_armed++] = fd;
}

static void find_tasks(void)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;

	while (proc && (entry = readdir(proc)))
		if (isdigit((unsigned char)entry->d_name[0]) && is_worker(entry->d_name))
			add_task(entry->d_name);
	if (proc)
		closedir(proc);
}

static void arm(unsigned int n)
{
	char text[16];
	const int len = snprintf(text, sizeof(text), "%u", n);

	if (opt.workers)
		find_tasks();
	else
		add_task("thread-self");
	for (int i = n_armed; i--;) /* arm this task last: it must not allocate afterwards */
		if (pwrite(armed[i], text, len, 0) != len && errno != ESRCH)
			exit(2);
}

/* True: an allocation failed. */
static bool disarm(void)
{
	bool failed = false;

	for (int i = 0; i < n_armed; i++) {
		char text[16] = "";

		if (pread(armed[i], text, sizeof(text) - 1, 0) > 0 && atoi(text) == 0)
			failed = true;
		if (pwrite(armed[i], "0", 1, 0) != 1 && errno != ESRCH)
			exit(2);
	}
	for (int i = 0; i < n_armed; i++)
		close(armed[i]);
	n_armed = 0;
	return failed;
}

/* ---- operations: 0 or errno ------------------------------------------------------- */

static int outcome(int result)
{
	return result < 0 ? errno : 0;
}

static int do_mount(void)
{
	return outcome(mount(opt.arg[0], opt.arg[1], "coopfs", 0, opt.arg[2]));
}

static int do_umount(void)
{
	return outcome(umount2(opt.arg[1], 0));
}

static int read_stored(void)
{
	int fd = open(opt.arg[1], O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, wanted, BYTES);

	close(fd);
	return n == BYTES ? 0 : EIO;
}

static int drop(void)
{
	int fd = open(opt.arg[0], O_RDONLY), err;

	if (fd < 0)
		return errno;
	err = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	return err;
}

static int do_read(void)
{
	int fd = open(opt.arg[0], O_RDONLY), err = 0;
	ssize_t n;

	if (fd < 0)
		return errno;
	memset(got, 0, sizeof(got));
	for (size_t at = 0; at < BYTES && !err; at += n) {
		n = pread(fd, got + at, BYTES - at, at);
		if (n <= 0)
			err = n ? errno : ENODATA;
		else if (memcmp(got + at, wanted + at, n))
			err = EBADMSG;
	}
	close(fd);
	return err;
}

static int do_write(void)
{
	static char byte;
	int fd, err = 0;

	memset(wanted + AT, ++byte, WRITTEN);
	fd = open(opt.arg[0], O_RDWR);
	if (fd < 0)
		return errno;
	for (ssize_t at = 0, n; at < WRITTEN && !err; at += n) {
		n = pwrite(fd, wanted + AT + at, WRITTEN - at, AT + at);
		err = outcome(n);
	}
	if (!err)
		err = outcome(fsync(fd));
	if (close(fd) && !err)
		err = errno;
	return err;
}

static int check_written(void)
{
	int fd = open(opt.arg[1], O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, got, BYTES);

	close(fd);
	return n == BYTES && !memcmp(got, wanted, BYTES) ? 0 : EBADMSG;
}

static unsigned int made, removed; /* FILE.1 to FILE.made */

/* Use another name each time: a failed creation may have made it. */
static const char *nth_name(unsigned int n)
{
	static char name[4096];

	snprintf(name, sizeof(name), "%s.%u", opt.arg[0], n);
	return name;
}

static int made_fd = -1;

static int do_create(void)
{
	made_fd = open(nth_name(++made), O_RDWR | O_CREAT | O_EXCL, 0600);
	return outcome(made_fd);
}

static int remove_made(void)
{
	int err = outcome(close(made_fd));

	while (removed < made && !err)
		if (unlink(nth_name(++removed)) && errno != ENOENT)
			err = errno;
	return err;
}

static int module; /* descriptor of its file */

static int open_module(void)
{
	module = open(opt.arg[0], O_RDONLY | O_CLOEXEC);
	return outcome(module);
}

static int do_load(void)
{
	return outcome(syscall(SYS_finit_module, module, "", 0));
}

static int do_unload(void)
{
	return outcome(syscall(SYS_delete_module, "coopfs", O_NONBLOCK));
}

static int nothing(void)
{
	return 0;
}

static const struct operation {
	const char *name;
	int (*first)(void); /* once */
	int (*before)(void);
	int (*run)(void);    /* with the failure */
	int (*undo)(void);   /* after a success */
	int (*verify)(void); /* after the success without a failure */
	int args;
} operations[] = {
	{"mount", nothing, nothing, do_mount, do_umount, nothing, 3},
	{"umount", nothing, do_mount, do_umount, nothing, nothing, 3},
	{"read", read_stored, drop, do_read, nothing, nothing, 2},
	{"write", read_stored, drop, do_write, check_written, check_written, 2},
	{"create", nothing, nothing, do_create, remove_made, nothing, 1},
	{"load", open_module, nothing, do_load, do_unload, nothing, 1},
	{"unload", open_module, do_load, do_unload, nothing, nothing, 1},
};

/* ---- the loop ------------------------------------------------------------------------ */

static bool may_be_told(int err)
{
	/* Sockets report it as ENFILE or ENOBUFS. */
	return !err || (!opt.workers && (err == ENOMEM || err == ENOBUFS || err == ENFILE));
}

static int complain(const struct operation *op, unsigned int n, const char *what, int err)
{
	fprintf(stderr, "coop-fail-nth: %s, allocation %u of %s: %s: %s\n", op->name, n,
		opt.workers ? "workers" : "its own", what, strerror(err));
	return 1;
}

/* Runs with the Nth allocation failing. Returns the status, and whether one failed. */
static int once(const struct operation *op, unsigned int n, bool *failed, unsigned int *told)
{
	int err = op->before();

	if (err)
		return complain(op, n, "preparing", err);
	arm(n);
	err = op->run();
	*failed = disarm();
	if (!may_be_told(err))
		return complain(op, n, "it ended with", err);
	if (err) {
		++*told;
		/* The next writer may get the error of this one too. */
		err = op->run();
		if (err && op->run == do_write)
			err = op->run();
		if (err)
			return complain(op, n, "repeated, it ended with", err);
	}
	err = op->undo();
	return err ? complain(op, n, "afterwards", err) : 0;
}

static int all(const struct operation *op)
{
	unsigned int n = 1, tries = 0, told = 0;
	bool failed = true;
	int bad = op->first();

	if (bad)
		return complain(op, 0, opt.arg[1], bad);
	for (; failed && n < MOST && !bad; n += 1 + n * opt.step / 100, tries++)
		bad = once(op, n, &failed, &told);
	if (!bad && op->verify())
		bad = complain(op, n, "in the end", EBADMSG);
	fprintf(stderr, "coop-fail-nth: %s: %u failures%s, up to the %uth, %u reported\n", op->name,
		tries - 1, opt.workers ? " of workers" : "", n - 1, told);
	return bad;
}

int main(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "ws:")) != -1) {
		if (c == 'w')
			opt.workers = true;
		else if (c == 's')
			opt.step = strtoul(optarg, NULL, 10);
		else
			argc = 0;
	}
	opt.arg = argv + optind + 1;
	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
		if (argc - optind > 1 && !strcmp(argv[optind], operations[i].name) &&
		    argc - optind == 1 + operations[i].args)
			return all(&operations[i]);
	fprintf(stderr, "usage: coop-fail-nth [-w] [-s STEP] mount|umount SOURCE DIR OPTIONS\n"
			"       coop-fail-nth [-w] [-s STEP] read|write FILE STORED\n"
			"       coop-fail-nth [-s STEP] create FILE\n"
			"       coop-fail-nth [-s STEP] load|unload MODULE.ko\n");
	return 2;
}
