/* SPDX-License-Identifier: MIT */
/*
 * coop-fsx - random operations on a file against a copy in memory.
 *
 *   coop-fsx [options] FILE [FILE2]
 *
 * It reads and writes, also through mappings and with O_DIRECT, truncates, extends,
 * appends, syncs, drops caches and reopens. With FILE2, the same file through another
 * mount, it also changes sides: it closes here and opens there, where everything must be
 * as it was. After each read, every byte and the size must match the copy.
 *
 *   -s SEED    replays a run (default: from the clock); the seed is printed first
 *   -n COUNT   operations (1000)
 *   -l BYTES   most bytes of the file (262144)
 *
 * SIGTERM ends the run after the current operation, with the final check.
 *
 * Status: 0 success, 1 wrong bytes, a wrong size or a failed operation (prints the last
 * operations), 2 usage.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE     4096u
#define TOLD     40
#define LONGEST  65536u /* bytes of one operation */
#define LEAST(a) ((a) < LONGEST ? (a) : LONGEST)

static struct {
	uint64_t seed;
	unsigned int count;
	uint32_t longest;
} opt = {.count = 1000, .longest = 262144};

static const char *path[2];
static unsigned int sides, side;
static int fd = -1;
static uint8_t *good, *buffer; /* the copy; bytes of one operation */
static uint32_t size;
static uint64_t state;
static unsigned int op;

/* The last operations, for the report. */
static char told[TOLD][96];

static uint64_t draw(void)
{
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static uint32_t below(uint32_t n)
{
	return n ? (uint32_t)(draw() % n) : 0;
}

static void tell(const char *what, uint32_t at, uint32_t bytes)
{
	snprintf(told[op % TOLD], sizeof(told[0]), "%u: %s %u+%u of %u on %u", op, what, at, bytes,
		 size, side);
}

static _Noreturn void fault(const char *what)
{
	fprintf(stderr, "coop-fsx: seed %" PRIu64 ": %s (%s)\n", opt.seed, what, strerror(errno));
	for (unsigned int i = op < TOLD ? 0 : op - TOLD + 1; i <= op; i++)
		fprintf(stderr, "  %s\n", told[i % TOLD]);
	exit(1);
}

static void check(bool fine, const char *what)
{
	if (!fine)
		fault(what);
}

static void compare(const uint8_t *got, uint32_t at, uint32_t bytes)
{
	uint32_t i, n;

	for (i = 0; i < bytes && got[i] == good[at + i]; i++)
		;
	if (i == bytes)
		return;
	for (n = i; n < bytes && got[n] != good[at + n]; n++)
		;
	fprintf(stderr, "coop-fsx: at %u: %02x, not %02x; %u bytes differ\n", at + i, got[i],
		good[at + i], n - i);
	errno = 0;
	fault("wrong bytes");
}

static void check_size(int of)
{
	struct stat st;

	check(!fstat(of, &st), "fstat");
	if (st.st_size != size) {
		fprintf(stderr, "coop-fsx: size %jd, not %u\n", (intmax_t)st.st_size, size);
		fault("wrong size");
	}
}

static void open_file(int flags)
{
	fd = open(path[side], O_RDWR | flags, 0644);
	check(fd >= 0, "open");
	check_size(fd);
}

static void close_file(void)
{
	check(!close(fd), "close");
	fd = -1;
}

/* Puts new bytes into the buffer and the copy, which grows if necessary. */
static void change(uint32_t at, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i += 8) {
		const uint64_t word = draw();

		memcpy(buffer + i, &word, 8);
	}
	memcpy(good + at, buffer, bytes);
	if (at + bytes > size)
		size = at + bytes;
}

/* ---- operations ---------------------------------------------------------------- */

static void read_some(int from, uint32_t at, uint32_t bytes)
{
	const uint32_t left = at < size ? size - at : 0;
	const uint32_t wanted = bytes < left ? bytes : left;
	const ssize_t n = pread(from, buffer, bytes, at);

	if (n != (ssize_t)wanted) {
		fprintf(stderr, "coop-fsx: read %zd bytes, not %u\n", n, wanted);
		fault("read");
	}
	compare(buffer, at, wanted);
}

static void op_read(void)
{
	const uint32_t at = below(size + PAGE), bytes = 1 + below(LONGEST);

	tell("read", at, bytes);
	read_some(fd, at, bytes);
}

static void op_write(void)
{
	const uint32_t at = below(opt.longest - 1), bytes = 1 + below(LEAST(opt.longest - at));

	tell("write", at, bytes);
	change(at, bytes);
	check(pwrite(fd, buffer, bytes, at) == (ssize_t)bytes, "write");
}

/* Picks a random range inside the file; false: the file is empty. */
static bool within(uint32_t *at, uint32_t *bytes)
{
	*at = below(size);
	*bytes = 1 + below(LEAST(size - *at));
	return size;
}

static void mapped(bool write)
{
	uint32_t at, bytes, lead;
	uint8_t *p;

	if (!within(&at, &bytes))
		return;
	lead = at % PAGE;
	tell(write ? "store" : "load", at, bytes);
	p = mmap(NULL, lead + bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
		 at - lead);
	check(p != MAP_FAILED, "mmap");
	if (write) {
		change(at, bytes);
		memcpy(p + lead, buffer, bytes);
		if (!below(4))
			check(!msync(p, lead + bytes, MS_SYNC), "msync");
	} else {
		compare(p + lead, at, bytes);
	}
	check(!munmap(p, lead + bytes), "munmap");
}

static void op_load(void)
{
	mapped(false);
}

static void op_store(void)
{
	mapped(true);
}

/* Mostly whole pages. */
static void direct(bool write)
{
	uint32_t at = below(opt.longest - PAGE), bytes = PAGE + below(LONGEST - PAGE);
	int direct_fd;

	if (below(4)) {
		at -= at % PAGE;
		bytes -= bytes % PAGE;
	}
	if (bytes > opt.longest - at)
		bytes = opt.longest - at;
	tell(write ? "write directly" : "read directly", at, bytes);
	direct_fd = open(path[side], O_RDWR | O_DIRECT);
	check(direct_fd >= 0, "open O_DIRECT");
	if (write) {
		change(at, bytes);
		check(pwrite(direct_fd, buffer, bytes, at) == (ssize_t)bytes, "write directly");
	} else {
		read_some(direct_fd, at, bytes);
	}
	check(!close(direct_fd), "close O_DIRECT");
}

static void op_direct_read(void)
{
	direct(false);
}

static void op_direct_write(void)
{
	direct(true);
}

static void op_cut(void)
{
	const uint32_t to = below(opt.longest);

	tell("truncate to", to, 0);
	check(!ftruncate(fd, to), "truncate");
	if (to > size)
		memset(good + size, 0, to - size);
	else
		memset(good + to, 0, size - to);
	size = to;
	check_size(fd);
}

static void op_append(void)
{
	const uint32_t bytes = below(LEAST(opt.longest - size) + 1), at = size;
	int append;

	if (!bytes)
		return;
	tell("append", at, bytes);
	append = open(path[side], O_WRONLY | O_APPEND);
	check(append >= 0, "open O_APPEND");
	change(at, bytes);
	check(write(append, buffer, bytes) == (ssize_t)bytes, "append");
	check(!close(append), "close O_APPEND");
}

static void op_empty(void)
{
	if (below(4))
		return;
	tell("open O_TRUNC", 0, 0);
	close_file();
	memset(good, 0, size);
	size = 0;
	open_file(O_TRUNC);
}

static void op_fsync(void)
{
	tell("fsync", 0, 0);
	check(!fsync(fd), "fsync");
}

static void op_drop(void)
{
	tell("drop", 0, 0);
	check(!fsync(fd) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), "drop");
}

static void op_size(void)
{
	tell("size", 0, 0);
	check_size(fd);
}

static void op_reopen(void)
{
	tell("reopen", 0, 0);
	close_file();
	open_file(0);
}

static void read_all(void)
{
	for (uint32_t at = 0; at < size; at += LONGEST)
		read_some(fd, at, LONGEST);
}

/* Closes here before it opens there. */
static void change_sides(void)
{
	close_file();
	side = !side;
	open_file(0);
}

static void op_hand_over(void)
{
	if (sides < 2)
		return;
	tell("hand over", 0, 0);
	change_sides();
	if (below(2))
		read_all();
}

/*
 * Changes nothing until storage can prove the version of the file. Then each side has pages for
 * which the other may ask.
 */
static void op_share(void)
{
	if (sides < 2)
		return;
	tell("share", 0, 0);
	close_file();
	nanosleep(&(struct timespec){.tv_nsec = 40 * 1000 * 1000}, NULL);
	open_file(0);
	read_all();
	change_sides();
	read_all();
}

static const struct {
	void (*run)(void);
	unsigned int weight;
} operations[] = {
	{op_read, 20},       {op_write, 20},       {op_load, 10}, {op_store, 10},
	{op_direct_read, 5}, {op_direct_write, 5}, {op_cut, 6},   {op_append, 3},
	{op_empty, 2},       {op_fsync, 3},        {op_drop, 3},  {op_size, 3},
	{op_reopen, 4},      {op_hand_over, 8},    {op_share, 4},
};

static void step(void)
{
	const unsigned int n = sizeof(operations) / sizeof(operations[0]);
	unsigned int all = 0, i, draw_of;

	for (i = 0; i < n; i++)
		all += operations[i].weight;
	draw_of = below(all);
	for (i = 0; draw_of >= operations[i].weight; i++)
		draw_of -= operations[i].weight;
	tell("nothing", 0, 0);
	operations[i].run();
}

static volatile sig_atomic_t enough;

static void on_term(int signal)
{
	(void)signal;
	enough = 1;
}

static int usage(void)
{
	fprintf(stderr, "usage: coop-fsx [-s SEED] [-n COUNT] [-l BYTES] FILE [FILE2]\n");
	return 2;
}

int main(int argc, char **argv)
{
	const struct sigaction term = {.sa_handler = on_term, .sa_flags = SA_RESTART};
	struct timespec now;
	int c;

	sigaction(SIGTERM, &term, NULL);
	clock_gettime(CLOCK_REALTIME, &now);
	opt.seed = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
	while ((c = getopt(argc, argv, "s:n:l:")) != -1) {
		switch (c) {
		case 's':
			opt.seed = strtoull(optarg, NULL, 0);
			break;
		case 'n':
			opt.count = (unsigned int)strtoul(optarg, NULL, 0);
			break;
		case 'l':
			opt.longest = (uint32_t)strtoul(optarg, NULL, 0);
			break;
		default:
			return usage();
		}
	}
	sides = (unsigned int)(argc - optind);
	if (sides < 1 || sides > 2 || opt.longest < 2 * PAGE || opt.longest > 1u << 30)
		return usage();
	path[0] = argv[optind];
	path[1] = argv[argc - 1];
	good = calloc(1, opt.longest + 8);
	if (!good || posix_memalign((void **)&buffer, PAGE, 2 * LONGEST))
		return usage();
	printf("coop-fsx: seed %" PRIu64 "\n", opt.seed);
	fflush(stdout);
	state = opt.seed;
	tell("create", 0, 0);
	unlink(path[0]);
	open_file(O_CREAT | O_EXCL);
	for (op = 1; op <= opt.count && !enough; op++)
		step();
	tell("the end", 0, 0);
	close_file();
	side = 0;
	open_file(0);
	read_all();
	close_file();
	return 0;
}
