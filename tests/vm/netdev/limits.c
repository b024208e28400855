/* SPDX-License-Identifier: MIT */
/*
 * limits.c - who may open the device, and how much a user may have there: pinned memory, machines,
 * queue pairs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "netdev.h"

#define PATH  "/dev/coop-net"
#define GROUP 4711 /* may open the device while open_to_group() says so */

static bool open_to_group(bool open)
{
	return CHECK(!chown(PATH, 0, open ? GROUP : 0));
}

static int add_one(struct machine *m, uint64_t at, uint64_t length, uint32_t *id)
{
	const struct coop_net_segment s = {at, length};
	struct coop_net_buffer b = {.segments = (uintptr_t)&s, .n = 1};
	const int result = ioctl(m->fd, COOP_NET_BUFFER_ADD, &b);

	*id = b.buffer;
	return result;
}

#define LIMIT (256 * 1024)

static bool become(uid_t user, bool in_group)
{
	const gid_t group = GROUP;

	return CHECK(!setgroups(in_group, &group) && !setgid(user) && !setuid(user));
}

/* ---- rights ---- */

static void opens(void *about)
{
	const int *wanted = about; /* 0: it may, as a member; else the error */
	int fd, err;

	NEED(become(1000, !*wanted));
	fd = open(PATH, O_RDWR | O_CLOEXEC);
	err = fd < 0 ? errno : 0;
	CHECK(err == *wanted);
}

void rights_area(void)
{
	int denied = EACCES, allowed = 0;
	struct machine m;
	struct stat st;

	NEED(!stat(PATH, &st));
	CHECK((st.st_mode & 07777) == 0660 && !st.st_uid && !st.st_gid);
	CHECK(!in_child(opens, &denied));
	NEED(open_to_group(true));
	CHECK(!in_child(opens, &denied));
	CHECK(!in_child(opens, &allowed));
	open_to_group(false);
	NEED(machine_open(&m, 0));
	machine_close(&m);
}

/* ---- limits ---- */

static void within_memlock(void *unused)
{
	const struct rlimit limit = {LIMIT, LIMIT};
	uint8_t *at =
		mmap(NULL, 2 * LIMIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct machine m;
	uint32_t id, other;
	uint64_t mapped;

	NEED(at != MAP_FAILED && !setrlimit(RLIMIT_MEMLOCK, &limit) && become(1000, true));
	NEED(machine_open(&m, 0));
	mapped = pinned();
	FAILS(add_one(&m, (uintptr_t)at, LIMIT + PAGE, &id), ENOMEM);
	CHECK(pinned() == mapped);
	CHECK(!add_one(&m, (uintptr_t)at, LIMIT / 2, &id));
	FAILS(add_one(&m, (uintptr_t)at, LIMIT / 2 + PAGE, &other), ENOMEM);
	/* The same pages again count again. */
	for (int i = 0; i < 3; i++) {
		if (add_one(&m, (uintptr_t)at, LIMIT / 4, &other))
			break;
		CHECK(i < 2);
	}
	CHECK(!ioctl(m.fd, COOP_NET_BUFFER_DEL, &id));
	CHECK(!add_one(&m, (uintptr_t)at, LIMIT / 4, &id));
	machine_close(&m);
	CHECK(pinned() == 0);
	NEED(machine_open(&m, 0));
	CHECK(!add_one(&m, (uintptr_t)at, LIMIT / 2, &id));
	machine_close(&m);
	CHECK(pinned() == 0);
}

static void beyond_memlock(void *unused)
{
	const struct rlimit limit = {LIMIT, LIMIT};
	uint8_t *at =
		mmap(NULL, 2 * LIMIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct machine m;
	uint32_t id;

	NEED(at != MAP_FAILED && !setrlimit(RLIMIT_MEMLOCK, &limit) && machine_open(&m, 0));
	CHECK(!add_one(&m, (uintptr_t)at, 2 * LIMIT, &id)); /* CAP_IPC_LOCK */
	machine_close(&m);
}

void memlock_area(void)
{
	NEED(open_to_group(true));
	CHECK(!in_child(within_memlock, NULL));
	CHECK(!in_child(beyond_memlock, NULL));
	open_to_group(false);
}

#define MOST 200 /* more than a user may have */

static void one_of_another_user(void *unused)
{
	const struct coop_net_setup setup = small_setup(0);
	struct machine m;

	NEED(become(1001, true));
	CHECK(machine_setup(&m, &setup));
	machine_close(&m);
}

static void many_of_a_user(void *unused)
{
	const struct coop_net_setup setup = small_setup(0);
	const int allowed = *(const int *)unused;
	static struct machine m[MOST];
	int n = 0, err;

	NEED(become(1000, true));
	while (n < MOST && machine_setup(&m[n], &setup))
		n++;
	err = errno;
	if (!CHECK(n == allowed) | !CHECK(err == EMFILE))
		fprintf(stderr, "  %d machines, then %s: %.128s\n", n, strerror(err),
			(const char *)m[n].setup.why);
	CHECK(m[n].setup.why[0]);
	machine_close(&m[0]);
	CHECK(machine_setup(&m[0], &setup));
	for (int i = 0; i < n; i++)
		machine_close(&m[i]);
	CHECK(machine_setup(&m[0], &setup));
	machine_close(&m[0]);
}

/* MACHINES in the environment: as many may a user have. */
void quota_area(void)
{
	const char *text = getenv("MACHINES");
	int allowed = text ? atoi(text) : 32;

	NEED(open_to_group(true));
	CHECK(!in_child(many_of_a_user, &allowed));
	CHECK(!in_child(one_of_another_user, NULL));
	open_to_group(false);
}
