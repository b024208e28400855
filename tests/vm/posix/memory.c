/* SPDX-License-Identifier: MIT */
/*
 * memory.c - the kernel's memory for what a process has open: little, and of its memory cgroup.
 *
 * CGROUP in the environment names a directory of the cgroup file system, with the controller
 * "memory", below which nothing else runs.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "posix.h"

#define FILES 300
#define LIST  (8 * PAGE) /* of a directory that is being read */
#define SLACK (2 << 20)  /* the kernel counts charges in steps */

static int fds[FILES];

static long long charged(void)
{
	char path[PAGE], line[64] = "-1";
	FILE *f;

	snprintf(path, sizeof(path), "%s/memory.current", getenv("CGROUP"));
	f = fopen(path, "r");
	if (f && !fgets(line, sizeof(line), f))
		line[0] = '-';
	if (f)
		fclose(f);
	return strtoll(line, NULL, 10);
}

/* Objects of the size of a page, of all caches, also outside of a cgroup. */
static long pages_of_slabs(void)
{
	char line[512], name[64];
	long n = 0, active;
	FILE *f = fopen("/proc/slabinfo", "r");

	while (f && fgets(line, sizeof(line), f)) {
		const bool is = sscanf(line, "%63s %ld", name, &active) == 2;
		const size_t len = is ? strlen(name) : 0;

		if (len > 3 && !strncmp(name, "kmalloc-", 8) && !strcmp(name + len - 3, "-4k"))
			n += active;
	}
	if (f)
		fclose(f);
	return n;
}

static bool enter(void)
{
	char path[PAGE];
	FILE *f;

	snprintf(path, sizeof(path), "%s/cgroup.procs", getenv("CGROUP"));
	f = fopen(path, "w");
	return f && fprintf(f, "0\n") > 0 && !fclose(f);
}

static void close_all(void)
{
	for (unsigned int i = 0; i < FILES; i++)
		CHECK(!close(fds[i]));
}

/* Directories that are only open cost little; one that is being read has a buffer. */
static void directories(void)
{
	const long long before = charged();
	char entries[PAGE];
	long long opened;

	for (unsigned int i = 0; i < FILES; i++)
		NEED((fds[i] = open("d", O_RDONLY | O_DIRECTORY)) >= 0);
	opened = charged();
	CHECK(opened - before < FILES * LIST / 2);
	for (unsigned int i = 0; i < FILES; i++)
		CHECK(getdents64(fds[i], entries, sizeof(entries)) > 0);
	if (!CHECK(charged() - opened > FILES * LIST - SLACK))
		fprintf(stderr, "%lld, then %lld, then %lld bytes\n", before, opened, charged());
	close_all();
}

/* An open file costs less than a page. */
static void files(void)
{
	long long before;
	long slabs;

	/* What the first open needs is not counted. */
	NEED((fds[0] = open("f", O_RDWR)) >= 0 && !close(fds[0]));
	before = charged();
	slabs = pages_of_slabs();
	CHECK(slabs > 0);
	for (unsigned int i = 0; i < FILES; i++)
		NEED((fds[i] = open("f", O_RDWR)) >= 0);
	if (!CHECK(charged() - before < FILES * PAGE / 2 + SLACK / 4))
		fprintf(stderr, "%lld, then %lld bytes\n", before, charged());
	if (!CHECK(pages_of_slabs() - slabs < FILES / 2))
		fprintf(stderr, "%ld, then %ld objects\n", slabs, pages_of_slabs());
	close_all();
}

void open_memory_area(void)
{
	const struct rlimit many = {FILES + 64, FILES + 64};

	NEED(getenv("CGROUP") && !setrlimit(RLIMIT_NOFILE, &many));
	NEED(put("f", "text") && !mkdir("d", 0755) && put("d/e", "text"));
	NEED(enter());
	directories();
	files();
}
