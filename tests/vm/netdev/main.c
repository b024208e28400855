/* SPDX-License-Identifier: MIT */
/*
 * coop-netdev - /dev/coop-net by its raw interface: what it does, its errors, its end.
 *
 *   coop-netdev AREA [DEVICE DEVICE]
 *   coop-netdev --list
 *
 * --inherited FD and --closed FD are what the area exec executes.
 *
 * The devices (rxe0 and rxe1) reach each other. Needs root. PATIENCE in the environment makes all
 * deadlines so many times as long. Others are described where they are used.
 *
 * Status: 0 success, 1 a check failed, 2 usage.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "netdev.h"

const char *device[2] = {"rxe0", "rxe1"};
unsigned int patience = 1, checks, faults;
char *volatile nowhere = (char *)PAGE;

static const struct {
	const char *name;
	area_fn *run;
} areas[] = {
	{"text", text_area},
	{"messages", messages_area},
	{"here", here_area},
	{"bulk", bulk_area},
	{"refused_bulk", refused_bulk_area},
	{"ranges", ranges_area},
	{"bounds", bounds_area},
	{"revoked", revoked_area},
	{"states", states_area},
	{"setup", setup_area},
	{"buffers", buffers_area},
	{"memlock", memlock_area},
	{"quota", quota_area},
	{"peers", peers_area},
	{"strangers", strangers_area},
	{"late_admission", late_admission_area},
	{"operations", operations_area},
	{"indices", indices_area},
	{"nothing_lost", nothing_lost_area},
	{"waits", waits_area},
	{"polls", polls_area},
	{"awake", awake_area},
	{"mapping", mapping_area},
	{"overtaken", overtaken_area},
	{"close", close_area},
	{"fork", fork_area},
	{"exec", exec_area},
	{"killed", killed_area},
	{"many", many_area},
	{"removal", removal_area},
	{"hold", hold_area},
	{"fuzz", fuzz_area},
	{"scarce", scarce_area},
	{"charged", charged_area},
	{"rdma_charged", rdma_charged_area},
	{"rights", rights_area},
	{"unmapped", unmapped_area},
	{"nobody", nobody_area},
};
#define AREAS (sizeof(areas) / sizeof(areas[0]))

bool expect(bool good, const char *file, int line, const char *what)
{
	__atomic_fetch_add(&checks, 1, __ATOMIC_RELAXED);
	if (good)
		return true;
	__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED);
	fprintf(stderr, "%s:%d: failed: %s (errno: %s)\n", file, line, what, strerror(errno));
	return false;
}

bool expect_error(long result, int error, const char *file, int line, const char *what)
{
	const int got = errno;

	__atomic_fetch_add(&checks, 1, __ATOMIC_RELAXED);
	if (result == -1 && got == error)
		return true;
	__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED);
	fprintf(stderr, "%s:%d: %s: returned %ld, %s; wanted %s\n", file, line, what, result,
		strerrorname_np(got), strerrorname_np(error));
	return false;
}

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t pinned(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	unsigned long long sum = 0, kib;
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmPin: %llu", &kib) == 1 ||
		    sscanf(line, "VmLck: %llu", &kib) == 1)
			sum += kib * 1024;
	if (f)
		fclose(f);
	return sum;
}

bool until(bool (*condition)(void *), void *about, const char *what)
{
	const uint64_t end = now_ms() + 30000ull * patience;

	while (!condition(about)) {
		if (now_ms() > end) {
			fprintf(stderr, "not in time: %s\n", what);
			return CHECK(!"in time");
		}
		usleep(5000);
	}
	return true;
}

int in_child(void (*act)(void *), void *about)
{
	pid_t child;
	int status;

	fflush(stderr);
	child = fork();
	if (!child) {
		faults = 0;
		act(about);
		_exit(faults ? 1 : 0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	if (!WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

static unsigned int number(const char *name, unsigned int otherwise)
{
	const char *text = getenv(name);

	return text ? (unsigned int)strtoul(text, NULL, 0) : otherwise;
}

int main(int argc, char **argv)
{
	size_t i = 0;

	patience = number("PATIENCE", 1);
	setvbuf(stderr, NULL, _IOLBF, 0);
	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (; i < AREAS; i++)
			puts(areas[i].name);
		return 0;
	}
	if (argc == 3 && (!strcmp(argv[1], "--inherited") || !strcmp(argv[1], "--closed")))
		return after_exec(atoi(argv[2]), !strcmp(argv[1], "--inherited"));
	while (i < AREAS && (argc < 2 || strcmp(argv[1], areas[i].name)))
		i++;
	if (i == AREAS || (argc != 2 && argc != 4)) {
		fprintf(stderr, "usage: coop-netdev AREA [DEVICE DEVICE]\n"
				"       coop-netdev --list\n");
		return 2;
	}
	if (argc == 4) {
		device[0] = argv[2];
		device[1] = argv[3];
	}
	areas[i].run();
	fprintf(stderr, "coop-netdev: %s: %u checks, %u failed\n", areas[i].name, checks, faults);
	return faults || !checks ? 1 : 0;
}
