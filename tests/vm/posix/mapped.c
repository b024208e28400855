/* SPDX-License-Identifier: MIT */
/* mapped.c - bytes by other ways than cached read(2) and write(2): mmap(2), O_DIRECT. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "posix.h"

#define LARGE (3 << 20)

static sigjmp_buf fault;

static void on_fault(int number)
{
	siglongjmp(fault, number);
}

/* Whether a load from the page faults. */
static bool faults(const volatile char *p)
{
	void (*const had)(int) = signal(SIGBUS, on_fault);
	bool faulted = true;

	if (!sigsetjmp(fault, 1)) {
		(void)*p;
		faulted = false;
	}
	signal(SIGBUS, had);
	return faulted;
}

void mmap_area(void)
{
	char *p, *q, got[16];
	int fd, r;

	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0 && !ftruncate(fd, 3 * PAGE - 100));
	p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	CHECK(!p[0] && !p[3 * PAGE - 101]);
	memcpy(p + PAGE - 2, "mapped", 6);
	CHECK(pread(fd, got, 6, PAGE - 2) == 6 && !memcmp(got, "mapped", 6));
	CHECK(pwrite(fd, "written", 7, 100) == 7 && !memcmp(p + 100, "written", 7));
	CHECK(!msync(p, 3 * PAGE, MS_SYNC));
	CHECK((r = open(other("f"), O_RDONLY)) >= 0 && pread(r, got, 6, PAGE - 2) == 6 &&
	      !memcmp(got, "mapped", 6) && !close(r));
	/* Stores beyond the end never become part of the file. */
	p[3 * PAGE - 50] = 'x';
	CHECK(faults(p + 3 * PAGE));
	CHECK(!ftruncate(fd, 4 * PAGE) && !faults(p + 3 * PAGE) && !p[3 * PAGE - 50]);
	/* Truncated pages vanish from the mapping. */
	p[2 * PAGE] = 'x';
	CHECK(!ftruncate(fd, PAGE) && faults(p + 2 * PAGE) && !faults(p));
	CHECK(!ftruncate(fd, 3 * PAGE) && !p[2 * PAGE]);

	/* A private mapping keeps its stores to itself. */
	q = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	NEED(q != MAP_FAILED);
	q[0] = 'q';
	CHECK(!p[0] && pread(fd, got, 1, 0) == 1 && !got[0]);
	p[1] = 'p';
	CHECK(!munmap(q, PAGE));
	/* Stores after the close are written back too. */
	CHECK(!close(fd));
	memcpy(p + 50, "late", 4);
	CHECK(!munmap(p, 4 * PAGE));
	CHECK((fd = open(other("f"), O_RDONLY)) >= 0 && pread(fd, got, 4, 50) == 4 &&
	      !memcmp(got, "late", 4) && !close(fd));

	NEED((fd = open("f", O_RDONLY)) >= 0);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED &&
	      errno == EACCES);
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	CHECK(p != MAP_FAILED && !memcmp(p + 50, "late", 4));
	p[50] = 'x';
	CHECK(!munmap(p, PAGE) && !close(fd));
	NEED((fd = open("f", O_WRONLY)) >= 0);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
	CHECK(!close(fd));
}

void direct_area(void)
{
	char *text = NULL, *got = NULL, *map;
	struct stat st;
	int fd;

	NEED(!posix_memalign((void **)&text, PAGE, LARGE + PAGE) &&
	     !posix_memalign((void **)&got, PAGE, LARGE + PAGE));
	for (size_t i = 0; i < LARGE; i++)
		text[i] = (char)('a' + i % 23);
	NEED((fd = open("f", O_CREAT | O_RDWR | O_DIRECT, 0600)) >= 0);
	CHECK(pwrite(fd, text, LARGE, 0) == LARGE && !fstat(fd, &st) && st.st_size == LARGE);
	CHECK(pread(fd, got, LARGE, 0) == LARGE && !memcmp(got, text, LARGE));
	CHECK(pread(fd, got, LARGE, LARGE - PAGE) == PAGE &&
	      !memcmp(got, text + LARGE - PAGE, PAGE));
	CHECK(pread(fd, got, PAGE, LARGE) == 0 && pread(fd, got, PAGE, 2 * LARGE) == 0);
	/* Memory, offset and length need no alignment. */
	CHECK(pwrite(fd, "odd", 3, 12345) == 3);
	memcpy(text + 12345, "odd", 3);
	CHECK(pread(fd, got + 13, 2 * PAGE, 12000) == 2 * PAGE &&
	      !memcmp(got + 13, text + 12000, 2 * PAGE));
	CHECK(pread(fd, got + 1, LARGE, 7) == LARGE - 7 && !memcmp(got + 1, text + 7, LARGE - 7));
	CHECK(pwrite(fd, text + 3, LARGE - 3, 3) == LARGE - 3);
	CHECK(pread(fd, got, LARGE, 0) == LARGE && !memcmp(got, text, LARGE));
	FAILS(pread(fd, nowhere, PAGE, 0), EFAULT);
	FAILS(pwrite(fd, nowhere, PAGE, 0), EFAULT);
	/* Memory that ends too early: a short read. */
	map = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(map != MAP_FAILED && !munmap(map + 2 * PAGE, PAGE));
	CHECK(pread(fd, map, 3 * PAGE, 0) == 2 * PAGE && !memcmp(map, text, 2 * PAGE));
	CHECK(!munmap(map, 2 * PAGE));
	/* Across the end of the file. */
	CHECK(!ftruncate(fd, LARGE / 2) && size_of("f") == LARGE / 2);
	CHECK(pread(fd, got, LARGE, 0) == LARGE / 2);
	CHECK(pwrite(fd, text, PAGE, LARGE) == PAGE && size_of("f") == LARGE + PAGE);
	memset(got, 1, PAGE);
	CHECK(pread(fd, got, PAGE, LARGE / 2 + PAGE) == PAGE && !got[0] && !got[PAGE - 1]);
	CHECK(!close(fd));
	CHECK((fd = open(other("f"), O_RDONLY | O_DIRECT)) >= 0 &&
	      pread(fd, got, LARGE, 0) == LARGE && !memcmp(got, text, LARGE / 2) && !close(fd));
	free(text);
	free(got);
}

/* Direct, buffered and mapped access to one file in turn: each sees the others' bytes. */
void mixed_area(void)
{
	int buffered, direct;
	char *p = NULL, *map;

	NEED(!posix_memalign((void **)&p, PAGE, 4 * PAGE));
	NEED((buffered = open("f", O_CREAT | O_RDWR, 0600)) >= 0 && !ftruncate(buffered, 4 * PAGE));
	NEED((direct = open("f", O_RDWR | O_DIRECT)) >= 0);
	map = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, buffered, 0);
	NEED(map != MAP_FAILED);
	for (unsigned int i = 0; i < 8; i++) {
		const off_t at = i % 4 * PAGE;

		memset(p, 'A' + (int)i, PAGE);
		CHECK(pwrite(direct, p, PAGE, at) == PAGE);
		CHECK(map[at] == 'A' + (char)i && map[at + PAGE - 1] == 'A' + (char)i);
		CHECK(pread(buffered, p, 1, at + 9) == 1 && p[0] == 'A' + (char)i);
		p[0] = (char)('a' + i);
		CHECK(pwrite(buffered, p, 1, at + 7) == 1);
		CHECK(pread(direct, p, PAGE, at) == PAGE && p[7] == 'a' + (char)i && p[6] != p[7]);
		map[at + 11] = (char)('0' + i);
		CHECK(pread(direct, p, PAGE, at) == PAGE && p[11] == '0' + (char)i &&
		      p[7] == 'a' + (char)i);
	}
	/* Dirty bytes beyond storage's end count, also for direct reads before them. */
	CHECK(pwrite(buffered, "far", 3, 40 * PAGE) == 3);
	CHECK(pread(direct, p, 4 * PAGE, 8 * PAGE) == 4 * PAGE && !p[0] && !p[4 * PAGE - 1]);
	CHECK(!ftruncate(buffered, 4 * PAGE));
	CHECK(pwrite(buffered, "tail", 4, 5 * PAGE) == 4);
	CHECK(pread(direct, p, PAGE, 5 * PAGE) == 4 && !memcmp(p, "tail", 4));
	CHECK(pwrite(direct, p, 4, 5 * PAGE + 4) == 4 && pread(buffered, p, 16, 5 * PAGE) == 8);
	CHECK(!munmap(map, 4 * PAGE) && !close(buffered) && !close(direct));
	CHECK((buffered = open(other("f"), O_RDONLY)) >= 0 &&
	      pread(buffered, p, PAGE, 3 * PAGE) == PAGE && p[0] == 'A' + 7 && p[7] == 'a' + 7 &&
	      p[11] == '0' + 7 && !close(buffered));
	free(p);
}

/* Touches a page of a mapping without a pause: stores count up in its middle, or only loads. */
static pid_t touch(volatile unsigned int *word, bool store)
{
	const pid_t child = fork();

	if (child)
		return child;
	for (unsigned int sum = 0;;) {
		sum += *word;
		if (store)
			(*word)++;
	}
}

/*
 * A direct write keeps dropping the dirty page that others store to and load from: no store is
 * lost, and no page leaves the cache while it is mapped (the kernel's log would report that).
 */
void dropped_mapped_area(void)
{
	volatile unsigned int *word;
	unsigned int stored, got = 0;
	char *p = NULL, *map;
	int fd, direct;
	pid_t child[3];

	NEED(!posix_memalign((void **)&p, PAGE, PAGE));
	NEED((fd = open("f", O_CREAT | O_RDWR, 0600)) >= 0 && !ftruncate(fd, PAGE));
	NEED((direct = open("f", O_RDWR | O_DIRECT)) >= 0);
	map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(map != MAP_FAILED);
	word = (volatile unsigned int *)(map + PAGE / 2);
	for (int i = 0; i < 3; i++)
		child[i] = touch(word, i == 0);
	memset(p, 'd', PAGE);
	for (unsigned int i = 0; i < 300; i++)
		CHECK(pwrite(direct, p, PAGE / 4, 0) == PAGE / 4);
	for (int i = 0; i < 3; i++)
		CHECK(child[i] > 0 && !kill(child[i], SIGKILL) &&
		      waitpid(child[i], NULL, 0) == child[i]);
	stored = *word;
	CHECK(stored && !msync(map, PAGE, MS_SYNC) && !munmap(map, PAGE));
	CHECK(!close(direct) && !close(fd));
	CHECK((fd = open(other("f"), O_RDONLY)) >= 0 &&
	      pread(fd, &got, sizeof(got), PAGE / 2) == sizeof(got) && !close(fd));
	CHECK(got == stored);
	free(p);
}
