/* SPDX-License-Identifier: MIT */
/*
 * coop-coherence - one file under every kind of access at once: no store may be lost,
 * no word torn, no read older than the writes that ended before it began.
 *
 *   coop-coherence [options] words FILE
 *   coop-coherence [options] blocks FILE
 *
 * A word of 8 bytes names its writer, version and offset, so a wrong word shows where it
 * came from.
 *
 * words: every thread owns one word of each page. Half of the threads store through a
 * shared mapping, half by pwrite(2), each in its own order of pages; meanwhile openers open,
 * stat and close the file. Then all words are read, through the mapping, by read(2) and
 * past the cache, and each must be the last that its owner wrote.
 *
 * blocks: one thread writes each block, every version in another way, and reads it after
 * the write has returned. Meanwhile others read all blocks. A reader notes the last version
 * that was complete before it began and the last that was begun before it ended: every word
 * must be of a version in this range. Truncation also cuts off the last block; only its
 * writer reads that through the mapping.
 *   -m MIB      size of the file (16)       -t N   writers (8; blocks: 4)
 *   -b BYTES    per block (65536)           -r N   readers of blocks, openers of words (2)
 *   -s SEED     (1)                         -d SECONDS  duration of blocks (5)
 *   -n ROUNDS   of words (1)
 *   -w WAY,...  ways to write blocks: pwrite map direct aio uring splice copy punch cut
 *   -R WAY,...  ways to read them: pread map direct splice
 *               (default: all; reports and omits ways that the file system or kernel lacks)
 * Status: 0 success, 1 a violation, 2 usage or an error.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE    4096u
#define THREADS 64
#define SHOWN   20 /* violations to print */

enum way { PWRITE, MAP, DIRECT, AIO, URING, SPLICE, COPY, PUNCH, CUT, WAYS };
static const char *const way_name[WAYS] = {"pwrite", "map",  "direct", "aio", "uring",
					   "splice", "copy", "punch",  "cut"};

/* Holes: bit (version % 64) of the last 64 versions, set before 'begun' names the version. */
struct block {
	_Atomic uint64_t begun, done, holes;
};

static struct {
	const char *path;
	uint64_t size, block_size, blocks, pages, seed;
	unsigned writers, readers, rounds;
	double seconds;
	_Atomic unsigned write_ways, read_ways; /* bits of enum way */
	int fd, direct_fd;
	uint64_t *map;
	struct block *block;
} run = {.size = 16 << 20, .block_size = 65536, .seed = 1, .readers = 2, .rounds = 1, .seconds = 5};

static _Atomic unsigned violations;
static _Atomic bool over;
static unsigned round_now;
static pthread_barrier_t start;
static _Atomic uint64_t written[WAYS], checked[WAYS];
/* Linux may fail a direct read with EIO if it meets a store through a mapping (iomap). */
static _Atomic uint64_t refused_beside_store;

struct self {
	unsigned number;
	uint64_t random;
	char *buffer; /* of a block, aligned for direct I/O */
	int pipe[2], scratch;
	aio_context_t aio;
	struct {
		int fd;
		uint32_t *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail;
		struct io_uring_sqe *sqes;
	} ring;
};

static void __attribute__((noreturn)) fail(const char *what)
{
	fprintf(stderr, "coop-coherence: %s: %s: %s\n", run.path, what, strerror(errno));
	exit(2);
}

static uint64_t next_random(struct self *t)
{
	t->random ^= t->random << 13;
	t->random ^= t->random >> 7;
	t->random ^= t->random << 17;
	return t->random;
}

/* owner + 1: 8 bits, version: 24, offset in words: 32. */
static uint64_t word_of(unsigned owner, uint64_t version, uint64_t at)
{
	return (uint64_t)(owner + 1) << 56 | (version & 0xffffff) << 32 | (at / 8 & 0xffffffff);
}

static void tell(uint64_t at, uint64_t got, const char *how, const char *want)
{
	if (atomic_fetch_add(&violations, 1) >= SHOWN)
		return;
	printf("%s: byte %" PRIu64 " read by %s: ", run.path, at, how);
	if (got)
		printf("of thread %d, version %d, byte %" PRIu64, (int)(got >> 56) - 1,
		       (int)(got >> 32 & 0xffffff), (got & 0xffffffff) * 8);
	printf("%s; wanted: %s\n", got ? "" : "never written, or a hole", want);
	fflush(stdout);
}

static bool read_whole(int fd, void *to, uint64_t length, uint64_t at)
{
	for (uint64_t done = 0; done < length;) {
		ssize_t n = pread(fd, (char *)to + done, length - done, (off_t)(at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EIO && fd == run.direct_fd)
			return false;
		if (n < 0)
			fail("read");
		done += (uint64_t)n;
		if (!n || (n & 511 && fd == run.direct_fd)) { /* the end: the block is cut off */
			memset((char *)to + done, 0, length - done);
			return true;
		}
	}
	return true;
}

static void write_whole(int fd, const void *from, uint64_t length, uint64_t at)
{
	for (uint64_t done = 0; done < length;) {
		ssize_t n =
			pwrite(fd, (const char *)from + done, length - done, (off_t)(at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			fail("write");
		done += (uint64_t)n;
	}
}

/* --- words --- */

static void *own_a_word(void *arg)
{
	struct self *t = arg;
	const uint64_t stride = next_random(t) % run.pages;

	pthread_barrier_wait(&start);
	for (uint64_t i = 0; i < run.pages; i++) {
		/* The thread's own order: steps of an odd prime visit each page once. */
		const uint64_t page = (i * 7919 + stride) % run.pages;
		const uint64_t at = page * PAGE + t->number * 8;
		const uint64_t w = word_of(t->number, round_now, at);

		if (t->number & 1)
			((_Atomic uint64_t *)run.map)[at / 8] = w;
		else
			write_whole(run.fd, &w, sizeof(w), at);
	}
	return NULL;
}

static void *open_and_look(void *arg)
{
	struct self *t = arg;

	pthread_barrier_wait(&start);
	while (!over) {
		int fd = open(run.path, O_RDONLY);
		struct stat st;
		uint64_t w;

		if (fd < 0 || fstat(fd, &st))
			fail("open");
		read_whole(fd, &w, sizeof(w), next_random(t) % run.pages * PAGE);
		close(fd);
		/* Write stores back all the time, not only when memory is short. */
		if (sync_file_range(run.fd, 0, 0, SYNC_FILE_RANGE_WRITE))
			fail("sync_file_range");
	}
	return NULL;
}

static void check_words(const char *how, const uint64_t *words, uint64_t first, uint64_t pages)
{
	for (uint64_t p = 0; p < pages; p++)
		for (unsigned o = 0; o < run.writers; o++) {
			const uint64_t at = (first + p) * PAGE + o * 8;
			const uint64_t got = words[p * (PAGE / 8) + o];
			char want[64];

			if (got == word_of(o, round_now, at))
				continue;
			snprintf(want, sizeof(want), "thread %u (%s), version %u", o,
				 o & 1 ? "map" : "pwrite", round_now);
			tell(at, got, how, want);
		}
}

static void words(struct self *all)
{
	char *buffer = all[0].buffer;

	if (madvise(run.map, run.size, MADV_RANDOM))
		fail("madvise");
	for (round_now = 1; round_now <= run.rounds; round_now++) {
		pthread_t owner[THREADS], opener[THREADS];

		over = false;
		pthread_barrier_init(&start, NULL, run.writers + run.readers);
		for (unsigned i = 0; i < run.writers; i++)
			pthread_create(&owner[i], NULL, own_a_word, &all[i]);
		for (unsigned i = 0; i < run.readers; i++)
			pthread_create(&opener[i], NULL, open_and_look, &all[run.writers + i]);
		for (unsigned i = 0; i < run.writers; i++)
			pthread_join(owner[i], NULL);
		over = true;
		for (unsigned i = 0; i < run.readers; i++)
			pthread_join(opener[i], NULL);
		check_words("the mapping", run.map, 0, run.pages);
		for (uint64_t p = 0; p < run.pages; p++) {
			read_whole(run.fd, buffer, PAGE, p * PAGE);
			check_words("read(2)", (uint64_t *)buffer, p, 1);
		}
		if (fsync(run.fd))
			fail("fsync");
		for (uint64_t p = 0; run.direct_fd >= 0 && p < run.pages; p++) {
			if (!read_whole(run.direct_fd, buffer, PAGE, p * PAGE))
				fail("direct read");
			check_words("a direct read", (uint64_t *)buffer, p, 1);
		}
	}
	printf("%" PRIu64 " words of %u threads, %u rounds: %u wrong\n", run.pages * run.writers,
	       run.writers, run.rounds, violations);
}

/* --- blocks --- */

/* True: written. False: the machine or the file system cannot do it. */
static bool by_aio(struct self *t, uint64_t at)
{
	struct iocb cb = {.aio_lio_opcode = IOCB_CMD_PWRITE,
			  .aio_fildes = (uint32_t)run.direct_fd,
			  .aio_buf = (uintptr_t)t->buffer,
			  .aio_nbytes = run.block_size,
			  .aio_offset = (int64_t)at};
	struct iocb *one = &cb;
	struct io_event done;

	if (!t->aio && syscall(SYS_io_setup, 1, &t->aio))
		return false;
	if (syscall(SYS_io_submit, t->aio, 1, &one) != 1)
		fail("io_submit");
	while (syscall(SYS_io_getevents, t->aio, 1, 1, &done, NULL) != 1)
		if (errno != EINTR)
			fail("io_getevents");
	if (done.res != (int64_t)run.block_size) {
		errno = done.res < 0 ? (int)-done.res : EIO;
		fail("asynchronous write");
	}
	return true;
}

static bool ring_ready(struct self *t)
{
	struct io_uring_params p = {0};

	if (t->ring.fd > 0)
		return true;
	int fd = (int)syscall(SYS_io_uring_setup, 1, &p);

	if (fd < 0)
		return false;
	const size_t sq = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
	const size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	char *rings = mmap(NULL, sq > cq ? sq : cq, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			   IORING_OFF_SQ_RING);

	t->ring.sqes = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe),
			    PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
	if (!(p.features & IORING_FEAT_SINGLE_MMAP) || rings == MAP_FAILED ||
	    t->ring.sqes == MAP_FAILED)
		return false;
	t->ring.fd = fd;
	t->ring.sq_tail = (uint32_t *)(rings + p.sq_off.tail);
	t->ring.sq_mask = (uint32_t *)(rings + p.sq_off.ring_mask);
	t->ring.sq_array = (uint32_t *)(rings + p.sq_off.array);
	t->ring.cq_head = (uint32_t *)(rings + p.cq_off.head);
	t->ring.cq_tail = (uint32_t *)(rings + p.cq_off.tail);
	return true;
}

/* Ignores the result: the contents are checked. */
static bool by_uring(struct self *t, uint64_t at)
{
	if (!ring_ready(t))
		return false;
	const uint32_t tail = *t->ring.sq_tail, slot = tail & *t->ring.sq_mask;

	t->ring.sqes[slot] = (struct io_uring_sqe){.opcode = IORING_OP_WRITE,
						   .fd = run.direct_fd,
						   .off = at,
						   .addr = (uintptr_t)t->buffer,
						   .len = (uint32_t)run.block_size};
	t->ring.sq_array[slot] = slot;
	__atomic_store_n(t->ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
	while (syscall(SYS_io_uring_enter, t->ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		if (errno != EINTR)
			fail("io_uring_enter");
	while (__atomic_load_n(t->ring.cq_tail, __ATOMIC_ACQUIRE) == *t->ring.cq_head)
		if (syscall(SYS_io_uring_enter, t->ring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) <
			    0 &&
		    errno != EINTR)
			fail("io_uring_enter");
	__atomic_store_n(t->ring.cq_head, *t->ring.cq_head + 1, __ATOMIC_RELEASE);
	return true;
}

static void by_splice(struct self *t, uint64_t at)
{
	for (uint64_t done = 0; done < run.block_size;) {
		ssize_t in = write(t->pipe[1], t->buffer + done, PAGE);

		if (in <= 0)
			fail("pipe");
		while (in > 0) {
			loff_t to = (loff_t)(at + done);
			ssize_t n = splice(t->pipe[0], NULL, run.fd, &to, (size_t)in, 0);

			if (n <= 0)
				fail("splice");
			in -= n;
			done += (uint64_t)n;
		}
	}
}

static void by_copy(struct self *t, uint64_t at)
{
	write_whole(t->scratch, t->buffer, run.block_size, 0);
	for (uint64_t done = 0; done < run.block_size;) {
		loff_t from = (loff_t)done, to = (loff_t)(at + done);
		ssize_t n =
			copy_file_range(t->scratch, &from, run.fd, &to, run.block_size - done, 0);

		if (n <= 0)
			fail("copy_file_range");
		done += (uint64_t)n;
	}
}

static bool write_block(struct self *t, uint64_t b, enum way how, uint64_t version)
{
	const uint64_t at = b * run.block_size, n = run.block_size;
	uint64_t *w = (uint64_t *)t->buffer;

	for (uint64_t i = 0; i < n / 8; i++)
		w[i] = word_of(t->number, version, at + i * 8);
	switch (how) {
	case PWRITE:
		write_whole(run.fd, w, n, at);
		return true;
	case MAP:
		for (uint64_t i = 0; i < n / 8; i++)
			((_Atomic uint64_t *)run.map)[at / 8 + i] = w[i];
		return true;
	case DIRECT:
		write_whole(run.direct_fd, w, n, at);
		return true;
	case AIO:
		return by_aio(t, at);
	case URING:
		return by_uring(t, at);
	case SPLICE:
		by_splice(t, at);
		return true;
	case COPY:
		by_copy(t, at);
		return true;
	case PUNCH:
		if (!fallocate(run.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
			       (off_t)n))
			return true;
		if (errno != EOPNOTSUPP && errno != ENOSYS)
			fail("fallocate");
		return false;
	case CUT: /* the last block, so only it is lost */
		if (ftruncate(run.fd, (off_t)at) || ftruncate(run.fd, (off_t)run.size))
			fail("ftruncate");
		return true;
	default:
		return false;
	}
}

static bool read_block(struct self *t, uint64_t b, enum way how)
{
	const uint64_t at = b * run.block_size, n = run.block_size;

	switch (how) {
	case MAP:
		for (uint64_t i = 0; i < n / 8; i++)
			((uint64_t *)t->buffer)[i] = ((_Atomic uint64_t *)run.map)[at / 8 + i];
		return true;
	case DIRECT:
		return read_whole(run.direct_fd, t->buffer, n, at);
	case SPLICE:
		for (uint64_t done = 0; done < n;) {
			loff_t from = (loff_t)(at + done);
			ssize_t got = splice(run.fd, &from, t->pipe[1], NULL, PAGE, 0);

			if (got < 0)
				fail("splice");
			if (!got) {
				memset(t->buffer + done, 0, n - done);
				return true;
			}
			if (read(t->pipe[0], t->buffer + done, (size_t)got) != got)
				fail("pipe");
			done += (uint64_t)got;
		}
		return true;
	default:
		return read_whole(run.fd, t->buffer, n, at);
	}
}

static bool hole_in(uint64_t holes, uint64_t first, uint64_t last)
{
	for (uint64_t v = first; v <= last; v++)
		if (holes >> (v % 64) & 1)
			return true;
	return false;
}

static void check_block(struct self *t, uint64_t b, enum way how)
{
	struct block *k = &run.block[b];
	const uint64_t first = k->done;

	const bool had = read_block(t, b, how);
	const uint64_t last = k->begun, holes = k->holes;

	if (!had) {
		if (last == first)
			fail("direct read of a block that no thread writes");
		refused_beside_store++;
		return;
	}

	if (k->begun - first > 32)
		return; /* the holes may be of later versions */
	for (uint64_t i = 0; i < run.block_size / 8; i++) {
		const uint64_t at = b * run.block_size + i * 8;
		const uint64_t got = ((uint64_t *)t->buffer)[i], version = got >> 32 & 0xffffff;
		char want[80];

		if (!got ? hole_in(holes, first, last)
			 : version >= first && version <= last && !(holes >> (version % 64) & 1) &&
				    got == word_of((unsigned)(b % run.writers), version, at))
			continue;
		snprintf(want, sizeof(want), "thread %u, version %" PRIu64 " to %" PRIu64,
			 (unsigned)(b % run.writers), first, last);
		tell(at, got, way_name[how], want);
		break;
	}
	checked[how]++;
}

static enum way pick(struct self *t, unsigned ways)
{
	unsigned n = (unsigned)(next_random(t) >> 20) % (unsigned)__builtin_popcount(ways);

	while (n--)
		ways &= ways - 1;
	return (enum way)__builtin_ctz(ways);
}

/* Excludes loads from the last block: while it is cut off, they raise SIGBUS. */
static enum way pick_read(struct self *t, uint64_t b)
{
	unsigned ways = run.read_ways;

	if (b == run.blocks - 1 && run.write_ways & 1u << CUT && t->number != b % run.writers)
		ways &= ~(1u << MAP);
	return pick(t, ways ? ways : 1u << PWRITE);
}

static void *write_blocks(void *arg)
{
	struct self *t = arg;

	pthread_barrier_wait(&start);
	while (!over) {
		const uint64_t mine = (run.blocks - t->number + run.writers - 1) / run.writers;
		const uint64_t b = next_random(t) % mine * run.writers + t->number;
		struct block *k = &run.block[b];
		const uint64_t version = k->begun + 1;
		unsigned ways = run.write_ways;

		if (b != run.blocks - 1)
			ways &= ~(1u << CUT);
		if (!ways)
			continue;
		const enum way how = pick(t, ways);
		const uint64_t bit = 1ull << (version % 64);

		k->holes = how == PUNCH || how == CUT ? k->holes | bit : k->holes & ~bit;
		k->begun = version;
		if (!write_block(t, b, how, version)) {
			printf("%s: %s is not supported here: %s\n", run.path, way_name[how],
			       strerror(errno));
			run.write_ways &= ~(1u << how);
			if (!write_block(t, b, PWRITE, version))
				fail("write");
			k->holes &= ~bit;
		}
		k->done = version;
		written[how]++;
		check_block(t, b, pick_read(t, b));
	}
	return NULL;
}

static void *read_blocks(void *arg)
{
	struct self *t = arg;

	pthread_barrier_wait(&start);
	while (!over) {
		const uint64_t b = next_random(t) % run.blocks;

		check_block(t, b, pick_read(t, b));
	}
	return NULL;
}

static void blocks(struct self *all)
{
	pthread_t thread[2 * THREADS];
	const unsigned threads = run.writers + run.readers;

	if (run.direct_fd < 0) {
		printf("%s: no direct I/O here\n", run.path);
		run.write_ways &= ~(1u << DIRECT | 1u << AIO | 1u << URING);
		run.read_ways &= ~(1u << DIRECT);
	}
	for (uint64_t b = 0; b < run.blocks; b++)
		run.block[b].holes = 1; /* version 0 */
	pthread_barrier_init(&start, NULL, threads);
	for (unsigned i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, i < run.writers ? write_blocks : read_blocks,
			       &all[i]);
	struct timespec left = {(time_t)run.seconds,
				(long)((run.seconds - (double)(time_t)run.seconds) * 1e9)};

	while (nanosleep(&left, &left) && errno == EINTR)
		;
	over = true;
	for (unsigned i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	for (uint64_t b = 0; b < run.blocks; b++)
		for (unsigned w = 0; w < WAYS; w++)
			if (run.read_ways & 1u << w)
				check_block(&all[0], b, (enum way)w);
	for (unsigned w = 0; w < WAYS; w++)
		if (written[w] || checked[w])
			printf("%s: %" PRIu64 " blocks written, %" PRIu64 " read\n", way_name[w],
			       written[w], checked[w]);
	printf("%u wrong, %" PRIu64 " direct reads refused beside a store\n", violations,
	       refused_beside_store);
}

static unsigned ways_of(char *list)
{
	unsigned ways = 0;

	for (char *word = strtok(list, ","); word; word = strtok(NULL, ",")) {
		unsigned w = 0;

		if (!strcmp(word, "pread"))
			word = "pwrite";
		while (w < WAYS && strcmp(word, way_name[w]))
			w++;
		if (w == WAYS) {
			fprintf(stderr, "coop-coherence: unknown way '%s'\n", word);
			exit(2);
		}
		ways |= 1u << w;
	}
	return ways;
}

static void prepare(struct self *t, unsigned number)
{
	*t = (struct self){.number = number,
			   .random = (run.seed * 0x9e3779b97f4a7c15u + number * 0x5851f42d) | 1};
	const uint64_t most = run.block_size > PAGE ? run.block_size : PAGE;
	char name[4096];

	if (posix_memalign((void **)&t->buffer, PAGE, most) || pipe(t->pipe))
		fail("memory");
	snprintf(name, sizeof(name), "%s.scratch%u", run.path, number);
	t->scratch = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (t->scratch < 0 || unlink(name))
		fail("scratch file");
}

int main(int argc, char **argv)
{
	const unsigned all_reads = 1u << PWRITE | 1u << MAP | 1u << DIRECT | 1u << SPLICE;
	unsigned *const counts[] = {&run.writers, &run.rounds, &run.readers};
	static struct self all[2 * THREADS];

	run.write_ways = (1u << WAYS) - 1;
	run.read_ways = all_reads;
	for (int c; (c = getopt(argc, argv, "m:t:b:r:s:d:n:w:R:")) != -1;) {
		switch (c) {
		case 'm':
			run.size = strtoull(optarg, NULL, 0) << 20;
			break;
		case 't':
		case 'n':
		case 'r':
			counts[c == 't' ? 0 : c == 'n' ? 1 : 2][0] = (unsigned)atoi(optarg);
			break;
		case 'b':
			run.block_size = strtoull(optarg, NULL, 0);
			break;
		case 's':
			run.seed = strtoull(optarg, NULL, 0);
			break;
		case 'd':
			run.seconds = atof(optarg);
			break;
		case 'w':
			run.write_ways = ways_of(optarg);
			break;
		case 'R':
			run.read_ways = ways_of(optarg) & all_reads;
			break;
		default:
			return 2;
		}
	}
	if (argc - optind != 2 ||
	    (strcmp(argv[optind], "words") && strcmp(argv[optind], "blocks"))) {
		fprintf(stderr, "usage: coop-coherence [options] words|blocks FILE\n");
		return 2;
	}
	const bool is_words = !strcmp(argv[optind], "words");

	run.path = argv[optind + 1];
	if (!run.writers)
		run.writers = is_words ? 8 : 4;
	run.blocks = run.block_size ? run.size / run.block_size : 0;
	if (run.writers > THREADS || run.readers > THREADS || run.block_size % PAGE ||
	    run.blocks < run.writers) {
		fprintf(stderr,
			"coop-coherence: at most %u threads of a kind, whole pages, and a "
			"block for every writer\n",
			THREADS);
		return 2;
	}
	run.size = is_words ? run.size : run.blocks * run.block_size;
	run.pages = run.size / PAGE;
	run.block = calloc(run.blocks, sizeof(*run.block));
	run.fd = open(run.path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	if (run.fd < 0 || !run.block || ftruncate(run.fd, (off_t)run.size))
		fail("file");
	run.direct_fd = open(run.path, O_RDWR | O_DIRECT);
	run.map = mmap(NULL, run.size, PROT_READ | PROT_WRITE, MAP_SHARED, run.fd, 0);
	if (run.map == MAP_FAILED)
		fail("mmap");
	for (unsigned i = 0; i < run.writers + run.readers; i++)
		prepare(&all[i], i);
	printf("seed %" PRIu64 "\n", run.seed);
	(is_words ? words : blocks)(all);
	return violations ? 1 : 0;
}
