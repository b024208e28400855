/* SPDX-License-Identifier: MIT */
/*
 * coop-pattern - files in which every 8 bytes name their place.
 *
 * A word of file number F, version V, at byte B is F << 48 | V << 32 | B / 8. So a wrong
 * page does not only differ: it names the file, version and offset that it came from,
 * which tells a stale page from a page of another file and from one never written.
 *
 *   coop-pattern [options] write DIR FIRST LAST BYTES VERSION
 *   coop-pattern [options] check DIR FIRST LAST BYTES VERSION
 *   coop-pattern [options] rewrite DIR FIRST LAST BYTES STATE
 *   coop-pattern [options] watch DIR FIRST LAST BYTES STATE
 *   coop-pattern [options] pick DIR FIRST LAST BYTES VERSION
 *   coop-pattern [options] hold DIR FIRST LAST BYTES VERSION
 *   coop-pattern settle FILE...
 *
 * Files are DIR/FIRST to DIR/LAST, named by their numbers. rewrite keeps giving them new
 * versions and records these in the file STATE; watch reads meanwhile, on another mount:
 * between an open and its close no page may be older than the version closed before the
 * open, nor newer than the version begun before the close, nor a mix. pick keeps dropping a
 * file from the cache and reading a few of its pages somewhere. hold opens files, overwrites
 * them at the first line of its input, prints "written", and closes them at the second line:
 * the bytes are not stored earlier. settle waits until storage can prove the versions of
 * files (rpc/storage/STORAGE.md).
 *
 *   -m read|mmap|random|direct   way of access (read); random: mmap without readahead
 *   -r N                  rounds (1); of pick: ranges to read
 *   -s N                  seed of pick (1): the same seed picks the same ranges
 *   -d                    drop each file's pages from the cache before each round
 *   -f                    fsync before close
 *   -x                    write removes each file first, and creates it
 *   -e                    exit with status 3 on an error, else with 2
 *
 * Status: 0 success, 1 wrong bytes, 2 usage or an error.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE  4096u
#define CHUNK (256u * 1024)
#define FILES 64 /* at most, of rewrite, watch and hold */
#define PICKS 8  /* per open */
#define MOST  24 /* pages per pick: some picks are one fetch, some span two */

enum status { RIGHT, WRONG, FAILED, IO_ERROR };
enum how { READ, MMAP, RANDOM, DIRECT };

static struct {
	enum how how;
	unsigned int rounds;
	uint64_t seed;
	bool drop, sync, anew;
	int io_error;
} opt = {.rounds = 1, .seed = 1, .io_error = FAILED};

/* The versions that rewrite has begun and closed, of each file. */
struct state {
	_Atomic uint32_t begun[FILES], closed[FILES];
	_Atomic uint32_t over;
};

struct file {
	const char *dir;
	unsigned int number;
	uint64_t bytes;
};

static uint8_t *buffer; /* CHUNK bytes, aligned for O_DIRECT */

static int failed(const struct file *f, const char *what)
{
	fprintf(stderr, "coop-pattern: %s/%u: %s: %s\n", f->dir, f->number, what, strerror(errno));
	return opt.io_error;
}

static uint64_t word(unsigned int file, uint32_t version, uint64_t at)
{
	return (uint64_t)file << 48 | (uint64_t)(version & 0xffff) << 32 | (at / 8 & 0xffffffff);
}

static void fill(uint8_t *to, const struct file *f, uint32_t version, uint64_t at, size_t n)
{
	for (size_t i = 0; i < n; i += 8) {
		const uint64_t w = word(f->number, version, at + i);

		memcpy(to + i, &w, n - i < 8 ? n - i : 8);
	}
}

/* A word that is zero is from a hole, or was never filled. */
static int complain(const struct file *f, uint64_t at, uint64_t got, uint64_t wanted)
{
	fprintf(stderr,
		"coop-pattern: %s/%u at %" PRIu64 ": wanted %016" PRIx64 ", got %016" PRIx64
		" (file %u version %u at %" PRIu64 ")%s\n",
		f->dir, f->number, at, wanted, got, (unsigned int)(got >> 48),
		(unsigned int)(got >> 32 & 0xffff), (got & 0xffffffff) * 8, got ? "" : ": zero");
	return WRONG;
}

/* Checks one page's bytes: all of one version, between oldest and newest. */
static int judge(const uint8_t *p, const struct file *f, uint64_t at, size_t n, uint32_t oldest,
		 uint32_t newest)
{
	uint64_t first = 0;
	uint32_t version;

	memcpy(&first, p, n < 8 ? n : 8);
	version = n < 8 ? oldest : first >> 32 & 0xffff;
	if ((uint16_t)(version - oldest) > (uint16_t)(newest - oldest))
		return complain(f, at, first, word(f->number, oldest, at));
	for (size_t i = 0; i < n; i += 8) {
		const size_t bytes = n - i < 8 ? n - i : 8;
		uint64_t wanted = word(f->number, version, at + i), got = 0;

		if (!memcmp(p + i, &wanted, bytes))
			continue;
		memcpy(&got, p + i, bytes);
		return complain(f, at + i, got, wanted);
	}
	return RIGHT;
}

static int judge_all(const uint8_t *p, const struct file *f, uint64_t at, size_t n, uint32_t oldest,
		     uint32_t newest)
{
	for (size_t i = 0; i < n; i += PAGE) {
		const size_t bytes = n - i < PAGE ? n - i : PAGE;
		const int bad = judge(p + i, f, at + i, bytes, oldest, newest);

		if (bad)
			return bad;
	}
	return RIGHT;
}

static void path_of(char *path, size_t size, const struct file *f)
{
	snprintf(path, size, "%s/%u", f->dir, f->number);
}

static int remove_file(const struct file *f)
{
	char path[4096];

	path_of(path, sizeof(path), f);
	return unlink(path) && errno != ENOENT;
}

static int open_file(const struct file *f, int flags)
{
	char path[4096];
	int fd;

	path_of(path, sizeof(path), f);
	fd = open(path, flags | (opt.how == DIRECT ? O_DIRECT : 0), 0644);
	if (fd < 0)
		return -failed(f, "open");
	return fd;
}

/* ---- writing ------------------------------------------------------------------------ */

static int put_bytes(int fd, const struct file *f, uint32_t version)
{
	if (opt.how == MMAP || opt.how == RANDOM) {
		void *p = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (p == MAP_FAILED)
			return failed(f, "mmap");
		fill(p, f, version, 0, f->bytes);
		munmap(p, f->bytes);
		return RIGHT;
	}
	for (uint64_t at = 0; at < f->bytes; at += CHUNK) {
		const size_t n = f->bytes - at < CHUNK ? f->bytes - at : CHUNK;

		fill(buffer, f, version, at, n);
		if (pwrite(fd, buffer, n, at) != (ssize_t)n)
			return failed(f, "write");
	}
	return RIGHT;
}

/* Waits for a line of the input. */
static bool told(void)
{
	int c;

	do {
		c = getchar();
	} while (c != '\n' && c != EOF);
	return c == '\n';
}

static int hold(struct file *f, unsigned int first, unsigned int last, uint32_t version)
{
	static int fd[FILES];
	int bad = RIGHT;

	for (f->number = first; f->number <= last; f->number++) {
		fd[f->number - first] = open_file(f, O_RDWR);
		if (fd[f->number - first] < 0)
			return -fd[f->number - first];
	}
	if (!told())
		return FAILED;
	for (f->number = first; f->number <= last && !bad; f->number++)
		bad = put_bytes(fd[f->number - first], f, version);
	fprintf(stderr, "%s\n", bad ? "not written" : "written");
	if (!told())
		return FAILED;
	for (f->number = first; f->number <= last; f->number++)
		if (close(fd[f->number - first]) && !bad)
			bad = failed(f, "close");
	return bad;
}

static int write_file(const struct file *f, uint32_t version)
{
	int fd, bad = RIGHT;

	if (opt.anew && remove_file(f))
		return failed(f, "remove");
	fd = open_file(f, O_RDWR | O_CREAT | (opt.anew ? O_EXCL : 0));
	if (fd < 0)
		return -fd;
	if (ftruncate(fd, f->bytes))
		bad = failed(f, "truncate");
	if (!bad)
		bad = put_bytes(fd, f, version);
	if (!bad && opt.sync && fsync(fd))
		bad = failed(f, "fsync");
	if (close(fd) && !bad)
		bad = failed(f, "close");
	return bad;
}

/* ---- reading ------------------------------------------------------------------------- */

static int get_bytes(int fd, const struct file *f, const _Atomic uint32_t *begun, uint32_t oldest,
		     uint32_t newest)
{
	for (uint64_t at = 0; at < f->bytes; at += CHUNK) {
		const size_t n = f->bytes - at < CHUNK ? f->bytes - at : CHUNK;
		const ssize_t got = pread(fd, buffer, CHUNK, at);
		int bad;

		if (got < 0)
			return failed(f, "read");
		if (got != (ssize_t)n) {
			fprintf(stderr, "coop-pattern: %s/%u at %" PRIu64 ": %zd bytes of %zu\n",
				f->dir, f->number, at, got, n);
			return WRONG;
		}
		bad = judge_all(buffer, f, at, n, oldest, begun ? *begun : newest);
		if (bad)
			return bad;
	}
	return RIGHT;
}

static int get_mapped(int fd, const struct file *f, const _Atomic uint32_t *begun, uint32_t oldest,
		      uint32_t newest)
{
	const uint8_t *p = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, fd, 0);
	int bad = RIGHT;

	if (p == MAP_FAILED)
		return failed(f, "mmap");
	if (opt.how == RANDOM)
		madvise((void *)p, f->bytes, MADV_RANDOM);
	for (uint64_t at = 0; at < f->bytes && !bad; at += PAGE) {
		const size_t n = f->bytes - at < PAGE ? f->bytes - at : PAGE;

		memcpy(buffer, p + at, n);
		bad = judge(buffer, f, at, n, oldest, begun ? *begun : newest);
	}
	munmap((void *)p, f->bytes);
	return bad;
}

static int check_file(const struct file *f, const _Atomic uint32_t *begun, uint32_t oldest,
		      uint32_t newest)
{
	struct stat st;
	int fd, bad;

	fd = open_file(f, O_RDONLY);
	if (fd < 0)
		return -fd;
	if (opt.drop)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (fstat(fd, &st)) {
		bad = failed(f, "stat");
	} else if ((uint64_t)st.st_size != f->bytes) {
		fprintf(stderr, "coop-pattern: %s/%u: %jd bytes, not %" PRIu64 "\n", f->dir,
			f->number, (intmax_t)st.st_size, f->bytes);
		bad = WRONG;
	} else if (opt.how == MMAP || opt.how == RANDOM) {
		bad = get_mapped(fd, f, begun, oldest, newest);
	} else {
		bad = get_bytes(fd, f, begun, oldest, newest);
	}
	close(fd);
	return bad;
}

/* ---- short rounds ----------------------------------------------------------------------- */

/* xorshift64*: never 0 unless the seed is. */
static uint64_t below(uint64_t limit)
{
	opt.seed ^= opt.seed >> 12;
	opt.seed ^= opt.seed << 25;
	opt.seed ^= opt.seed >> 27;
	return (opt.seed * 0x2545f4914f6cdd1dull >> 32) % limit;
}

/* Drops all pages, then reads some: alone, or with the kernel's readahead. */
static int pick_range(int fd, const struct file *f, uint32_t version)
{
	const uint64_t pages = (f->bytes + PAGE - 1) / PAGE, at = below(pages) * PAGE;
	const size_t most = (1 + below(MOST)) * PAGE;
	const size_t n = f->bytes - at < most ? f->bytes - at : most;
	ssize_t got;

	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	posix_fadvise(fd, 0, 0, below(2) ? POSIX_FADV_RANDOM : POSIX_FADV_NORMAL);
	got = pread(fd, buffer, most, at);
	if (got < 0)
		return failed(f, "read");
	if (got != (ssize_t)n) {
		fprintf(stderr, "coop-pattern: %s/%u at %" PRIu64 ": %zd bytes of %zu\n", f->dir,
			f->number, at, got, n);
		return WRONG;
	}
	return judge_all(buffer, f, at, n, version, version);
}

static int pick(struct file *f, unsigned int first, unsigned int last, uint32_t version)
{
	unsigned int round = 0;
	int bad = RIGHT, fd;

	while (round < opt.rounds && !bad) {
		f->number = first + below(last - first + 1);
		fd = open_file(f, O_RDONLY);
		if (fd < 0)
			return -fd;
		do {
			bad = pick_range(fd, f, version);
		} while (++round % PICKS && round < opt.rounds && !bad);
		close(fd);
	}
	return bad;
}

/* ---- command line ---------------------------------------------------------------------- */

static struct state *map_state(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0644);
	void *p = MAP_FAILED;

	if (fd >= 0 && !ftruncate(fd, sizeof(struct state)))
		p = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		fprintf(stderr, "coop-pattern: %s: %s\n", path, strerror(errno));
		exit(FAILED);
	}
	close(fd);
	return p;
}

static int rewrite_one(struct state *s, const struct file *f)
{
	const uint32_t version = s->closed[f->number % FILES] + 1;
	int bad;

	s->begun[f->number % FILES] = version;
	bad = write_file(f, version);
	if (!bad)
		s->closed[f->number % FILES] = version;
	return bad;
}

static int watch_one(struct state *s, const struct file *f)
{
	return check_file(f, &s->begun[f->number % FILES], s->closed[f->number % FILES], 0);
}

static int usage(void)
{
	fprintf(stderr,
		"usage: coop-pattern [-m read|mmap|random|direct] [-r ROUNDS] [-s SEED] [-d] [-f] "
		"[-e] write|check|rewrite|watch|pick|hold DIR FIRST LAST BYTES VERSION|STATE\n"
		"       coop-pattern settle FILE...\n");
	return FAILED;
}

static int parse_options(int argc, char **argv)
{
	static const char *const hows[] = {"read", "mmap", "random", "direct"};
	int c, i;

	while ((c = getopt(argc, argv, "m:r:s:dfex")) != -1) {
		switch (c) {
		case 'm':
			for (i = 0; i < 4 && strcmp(optarg, hows[i]); i++)
				;
			if (i == 4)
				return usage();
			opt.how = i;
			break;
		case 'r':
			opt.rounds = strtoul(optarg, NULL, 10);
			break;
		case 's':
			opt.seed = strtoull(optarg, NULL, 10);
			if (!opt.seed)
				return usage();
			break;
		case 'd':
			opt.drop = true;
			break;
		case 'f':
			opt.sync = true;
			break;
		case 'x':
			opt.anew = true;
			break;
		case 'e':
			opt.io_error = IO_ERROR;
			break;
		default:
			return usage();
		}
	}
	return argc - optind == 6 ? 0 : usage();
}

/*
 * Uses the clock that stamps changes, which stops while a tick is late. A time without a
 * fraction may have been cut to seconds; one in 250 files has such a time by chance.
 */
static int settle(char **file)
{
	const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
	struct timespec now;
	struct stat st;
	int64_t ms;

	for (; *file; file++) {
		if (stat(*file, &st)) {
			perror(*file);
			return FAILED;
		}
		for (;;) {
			clock_gettime(CLOCK_REALTIME_COARSE, &now);
			ms = (int64_t)(now.tv_sec - st.st_ctim.tv_sec) * 1000 +
			     (now.tv_nsec - st.st_ctim.tv_nsec) / 1000000;
			if (ms > (st.st_ctim.tv_nsec ? 50 : 1050))
				break;
			nanosleep(&pause, NULL);
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct state *state = NULL;
	unsigned int first, last;
	uint32_t version = 0;
	struct file f;
	char **arg, what;
	int bad;

	if (argc > 2 && !strcmp(argv[1], "settle"))
		return settle(argv + 2);
	bad = parse_options(argc, argv);
	if (bad)
		return bad;
	arg = argv + optind;
	what = !strcmp(arg[0], "watch") ? 's' : arg[0][0];
	f.dir = arg[1];
	first = strtoul(arg[2], NULL, 10);
	last = strtoul(arg[3], NULL, 10);
	f.bytes = strtoull(arg[4], NULL, 10);
	if (!strchr("wcrsph", what) || first > last || last > 0xffff || !f.bytes ||
	    (what == 'h' && last - first >= FILES))
		return usage();
	if (what == 'r' || what == 's')
		state = map_state(arg[5]);
	else
		version = strtoul(arg[5], NULL, 10);
	buffer = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buffer == MAP_FAILED)
		return FAILED;
	if (what == 'p')
		return pick(&f, first, last, version);
	if (what == 'h')
		return hold(&f, first, last, version);
	for (unsigned int round = 0; round < opt.rounds && !bad; round++) {
		for (f.number = first; f.number <= last && !bad; f.number++) {
			if (what == 'w')
				bad = write_file(&f, version);
			else if (what == 'c')
				bad = check_file(&f, NULL, version, version);
			else if (what == 'r')
				bad = rewrite_one(state, &f);
			else
				bad = watch_one(state, &f);
		}
		/* A watcher goes on until rewrite is over. */
		if (what == 's' && !state->over && round + 1 == opt.rounds)
			round--;
	}
	if (what == 'r')
		state->over = 1;
	return bad;
}
