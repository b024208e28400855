/* SPDX-License-Identifier: MIT */
/*
 * life.c - the end of a machine in the middle of its work: close, exit, exec, kill -9, a device
 * that goes; and what a child of fork sees. Whatever happens, all is released within a bound, and
 * others go on.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "netdev.h"

#define BIG (4u << 20)

/* Machines that the module lists. -1: no list. */
static int listed(void)
{
	FILE *f = fopen("/proc/fs/coopfs/net", "r");
	char line[512];
	int n = 0;

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		n += !strncmp(line, "pid ", 4);
	fclose(f);
	return n;
}

static bool lists(void *number)
{
	return listed() == *(int *)number;
}

/* ---- what goes on when the end comes ---- */

enum work {
	SENDS,   /* of many long messages to the peer */
	FETCHES, /* from the peer, which does not answer */
	SERVES,  /* pages that the peer reads */
	RECEIVES /* long messages of the peer */
};

struct job {
	enum work work;
	struct pair p;
	struct memory at_a, at_b;
	int hello; /* a pipe: the child tells that it is at work, and its own address */
	int from_parent;
};

static const struct lending any = {0x51, 0x52, 0, 0};

/* a's process: works until it is killed. */
static void work_at_a(struct job *j)
{
	struct machine *m = &j->p.a;
	struct coop_net_event ev;
	int more = 16;

	if (j->work == SERVES)
		offer(m, &j->at_a, 0, BIG, any);
	for (;;) {
		while (more && !machine_failed(m)) {
			if (j->work == SENDS)
				send_bytes(m, j->p.at_a, &j->at_a, 0, m->setup.max_message / 16);
			else if (j->work == FETCHES)
				fetch(m, j->p.at_a, &j->at_a, 0,
				      (struct asking){0x51, 0x52, BIG, 0,
						      ~0ull >> (64 - m->setup.fetch_pages)});
			else if (j->work == RECEIVES)
				receive(m, &j->at_a, (size_t)more % 4 << 20, 1 << 20, 1 << 19, 1);
			more--;
		}
		if (machine_failed(m) || !event_wait(m, ANY, ANY, &ev, 600000))
			_exit(3);
		more += ev.flags & COOP_NET_FINAL;
	}
}

static void child_at_a(struct job *j)
{
	if (!machine_open(&j->p.a, 0) || !memory_make(&j->at_a, ALIGNED, BIG, 1) ||
	    !memory_add(&j->p.a, &j->at_a))
		_exit(4);
	if (write(j->hello, &j->p.a, sizeof(j->p.a)) != sizeof(j->p.a) ||
	    read(j->from_parent, &j->p.b, sizeof(j->p.b)) != sizeof(j->p.b))
		_exit(5);
	j->p.at_a = peer_open(&j->p.a, &j->p.b, COOKIE_B);
	if (!j->p.at_a || write(j->hello, "r", 1) != 1)
		_exit(6);
	work_at_a(j);
}

/* b's side of it, in this process: one step. */
static void work_at_b(struct job *j)
{
	struct machine *m = &j->p.b;
	struct coop_net_event ev;

	if (j->work == SENDS) {
		receive(m, &j->at_b, 0, BIG, m->setup.max_message / 16, 1);
	} else if (j->work == SERVES) {
		fetch(m, j->p.at_b, &j->at_b, 0,
		      (struct asking){any.token, any.key, BIG, 0,
				      ~0ull >> (64 - m->setup.fetch_pages)});
	} else if (j->work == RECEIVES) {
		send_bytes(m, j->p.at_b, &j->at_b, 0, 1 << 19);
	} else {
		return;
	}
	event_wait(m, ANY, ANY, &ev, 5000 * patience);
}

static bool started(struct job *j, pid_t *child)
{
	int up[2], down[2];
	char ready;

	if (!CHECK(!pipe2(up, 0) && !pipe2(down, 0)))
		return false;
	j->hello = up[1];
	j->from_parent = down[0];
	*child = fork();
	if (!*child) {
		j->p.b.fd = -1;
		child_at_a(j);
	}
	close(up[1]);
	close(down[0]);
	if (!CHECK(machine_open(&j->p.b, 1)) || !CHECK(memory_make(&j->at_b, ALIGNED, BIG, 2)) ||
	    !memory_add(&j->p.b, &j->at_b) ||
	    !CHECK(read(up[0], &j->p.a, sizeof(j->p.a)) == sizeof(j->p.a)))
		return false;
	j->p.at_b = peer_open(&j->p.b, &j->p.a, COOKIE_A);
	if (j->work == FETCHES) { /* it asks where nothing listens */
		struct machine nothing = j->p.b;

		nothing.setup.self.qpn ^= 0x10000;
		nothing.setup.self.data_qpn ^= 0x10000;
		CHECK(write(down[1], &nothing, sizeof(nothing)) == sizeof(nothing));
	} else {
		CHECK(write(down[1], &j->p.b, sizeof(j->p.b)) == sizeof(j->p.b));
	}
	close(down[1]);
	if (!CHECK(j->p.at_b) || !CHECK(read(up[0], &ready, 1) == 1))
		return false;
	close(up[0]);
	return true;
}

static bool has_ended(void *pid)
{
	int status;

	return waitpid(*(pid_t *)pid, &status, WNOHANG) == *(pid_t *)pid;
}

/* a is killed after a few steps; b sees it, and serves another a. */
static void killed(enum work work, unsigned int steps)
{
	static struct job j;
	int before = listed();
	pid_t child;

	memset(&j, 0, sizeof(j));
	j.work = work;
	j.p.a.fd = j.p.b.fd = -1;
	if (started(&j, &child)) {
		for (unsigned int i = 0; i < steps; i++)
			work_at_b(&j);
		if (work == FETCHES)
			usleep(100000);
		CHECK(!kill(child, SIGKILL));
		until(has_ended, &child, "the process ends");
		before++; /* b */
		until(lists, &before, "its machine ends");
		before--;
		j.p.a.rings = NULL;
		j.p.a.fd = -1;
		j.p.a.used = NULL;
		j.p.a.kept = NULL;
		if (machine_open(&j.p.a, 0)) {
			events_drop(&j.p.b);
			j.p.at_a = peer_open(&j.p.a, &j.p.b, COOKIE_B);
			j.p.at_b = peer_open(&j.p.b, &j.p.a, COOKIE_A);
			CHECK(pair_works(&j.p));
		}
	}
	pair_close(&j.p);
	memory_free(&j.at_b);
	CHECK(lists(&before));
	CHECK(pinned() == 0);
}

void killed_area(void)
{
	for (unsigned int steps = 1; steps < 12 && !faults; steps += 5) {
		killed(SENDS, steps);
		killed(RECEIVES, steps);
		killed(SERVES, steps);
		killed(FETCHES, steps);
	}
}

/* ---- close ---- */

/* The file is closed with everything under way; its memory is the process's own again. */
static void closed(struct pair *p, struct memory *a, struct memory *b, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		send_bytes(&p->a, p->at_a, a, 0, 100000);
		receive(&p->a, a, 200000, 100000, 1, 10);
		fetch(&p->a, p->at_a, a, 409600, (struct asking){1, 2, 65536, 0, 0xffff});
		receive(&p->b, b, i % 2 * 100000, 100000, 100000, 1);
		send_bytes(&p->b, p->at_b, b, 0, 90000);
	}
	offer(&p->a, a, 0, a->bytes, any);
	fetch(&p->b, p->at_b, b, 0,
	      (struct asking){any.token, any.key, a->bytes, 0,
			      ~0ull >> (64 - p->b.setup.fetch_pages)});
	if (n % 2) {
		close(p->a.fd); /* the mapping stays */
		p->a.fd = -1;
		munmap(p->a.rings, p->a.setup.map_bytes);
	} else {
		munmap(p->a.rings, p->a.setup.map_bytes);
		CHECK(!close(p->a.fd));
		p->a.fd = -1;
	}
	p->a.rings = NULL;
	machine_close(&p->a);
	/* No byte is written after that. */
	fill(a->base, a->span, n);
	memcpy(a->wanted, a->base, a->span);
}

void close_area(void)
{
	int before = listed();
	struct memory a, b;
	struct pair p;

	CHECK(before >= 0);
	NEED(memory_make(&a, ODD, 500000, 1) && memory_make(&b, ODD, 500000, 2));
	for (unsigned int n = 0; n < 8; n++) {
		NEED(pair_open(&p));
		if (n)
			CHECK(pair_works(&p));
		NEED(memory_add(&p.a, &a) && memory_add(&p.b, &b));
		closed(&p, &a, &b, n);
		if (machine_open(&p.a, 0)) {
			p.at_a = peer_open(&p.a, &p.b, COOKIE_B);
			p.at_b = peer_open(&p.b, &p.a, COOKIE_A);
			CHECK(pair_works(&p));
		}
		CHECK(memory_right(&a));
		pair_close(&p);
		CHECK(memory_right(&a) && pinned() == 0);
	}
	until(lists, &before, "no machine is left");
	memory_free(&a);
	memory_free(&b);
}

/* ---- fork ---- */

static void child_of_fork(void *about)
{
	struct pair *p = about;
	unsigned char resident[64];

	all_calls_fail(p->a.fd, EBADR);
	CHECK(mmap(NULL, p->a.setup.map_bytes, PROT_READ, MAP_SHARED, p->a.fd, 0) == MAP_FAILED);
	FAILS(mincore(p->a.rings, PAGE, resident), ENOMEM); /* the rings are not there */
}

void fork_area(void)
{
	static uint8_t bytes[30000];
	struct memory a, b;
	struct pair p;
	int pipes[2];
	pid_t child;

	NEED(memory_make(&a, PARTS, 50000, 1) && memory_make(&b, PARTS, 50000, 2));
	NEED(pair_open(&p) && memory_add(&p.a, &a) && memory_add(&p.b, &b));
	CHECK(!in_child(child_of_fork, &p));
	CHECK(pair_works(&p));
	/* A child that lives on: writes to the buffers reach the pages that the module has. */
	NEED(!pipe(pipes));
	child = fork();
	if (!child) {
		close(pipes[1]);
		_exit(read(pipes[0], bytes, 1) ? 1 : 0);
	}
	close(pipes[0]);
	for (unsigned int i = 0; i < 5; i++) {
		const uint32_t in = receive(&p.b, &b, 77 * i, sizeof(bytes), 1, 1);

		fill(bytes, sizeof(bytes), 100 + i);
		memory_put(&a, i, bytes, sizeof(bytes));
		CHECK(!await(&p.a, COOP_NET_SENT, send_bytes(&p.a, p.at_a, &a, i, sizeof(bytes)),
			     NULL));
		CHECK(!await(&p.b, COOP_NET_RECEIVED, in, NULL));
		memory_want(&b, 77 * i, bytes, sizeof(bytes));
		CHECK(memory_right(&b) && memory_right(&a));
	}
	CHECK(pair_works(&p));
	close(pipes[1]);
	CHECK(waitpid(child, NULL, 0) == child);
	CHECK(pair_works(&p));
	pair_close(&p);
	CHECK(pinned() == 0);
	memory_free(&a);
	memory_free(&b);
}

/* ---- exec and exit ---- */

/* After exec: the file is here, the machine is not. */
int after_exec(int fd, bool inherited)
{
	if (!inherited) {
		FAILS(fcntl(fd, F_GETFD), EBADF);
	} else {
		all_calls_fail(fd, EBADR);
		CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	}
	CHECK(pinned() == 0);
	return faults ? 1 : 0;
}

static void execs(void *inherited)
{
	struct memory b;
	struct pair p;
	char fd[16];

	if (!pair_open(&p) || !memory_make(&b, ODD, 100000, 1) || !memory_add(&p.a, &b))
		return;
	CHECK(pair_works(&p));
	receive(&p.a, &b, 0, 100000, 1, 1);
	send_bytes(&p.a, p.at_a, &b, 0, 100000);
	if (inherited)
		fcntl(p.a.fd, F_SETFD, 0);
	snprintf(fd, sizeof(fd), "%d", p.a.fd);
	execl("/proc/self/exe", "coop-netdev", inherited ? "--inherited" : "--closed", fd, NULL);
	CHECK(!"exec");
}

static void leaves(void *unused)
{
	struct memory b;
	struct pair p;

	if (!pair_open(&p) || !memory_make(&b, ODD, 100000, 1) || !memory_add(&p.a, &b) ||
	    !memory_add(&p.b, &b))
		return;
	CHECK(pair_works(&p));
	receive(&p.b, &b, 0, 100000, 1, 1);
	send_bytes(&p.a, p.at_a, &b, 0, 100000);
}

void exec_area(void)
{
	int before = listed();

	CHECK(!in_child(leaves, NULL));
	until(lists, &before, "the machines of a process that left end");
	CHECK(!in_child(execs, NULL));
	until(lists, &before, "the machines of a process that executed another program end");
	CHECK(!in_child(execs, &before));
	until(lists, &before, "no machine is left");
}

/* ---- the device goes ---- */

/* Works on both devices until the first one goes, which the topic's script does after "ready". */
void removal_area(void)
{
	static const uint8_t text[COOP_NET_TEXT] = "it goes";
	struct pollfd at = {.events = POLLIN};
	struct coop_net_event ev;
	uint64_t end = now_ms() + 60000ull * patience;
	struct memory a, b;
	struct pair p;
	uint32_t handle;

	NEED(memory_make(&a, ODD, 500000, 1) && memory_make(&b, ALIGNED, 500000, 2));
	NEED(pair_open(&p) && memory_add(&p.a, &a) && memory_add(&p.b, &b) && pair_works(&p));
	offer(&p.a, &a, 0, a.bytes, any);
	receive(&p.a, &a, 0, 100000, 1, 100);
	puts("ready");
	fflush(stdout);
	while (!machine_failed(&p.a) && now_ms() < end) {
		handle = fetch(&p.b, p.at_b, &b, 0,
			       (struct asking){any.token, any.key, a.bytes, 0, 0xff});
		event_wait(&p.b, COOP_NET_FETCHED, handle, &ev, 1000);
		events_drop(&p.b);
		if (!machine_failed(&p.a))
			send_text(&p.a, p.at_a, text);
		events_drop(&p.a);
	}
	NEED(machine_failed(&p.a));
	CHECK(p.a.rings->failure == -ENODEV);
	at.fd = p.a.fd;
	CHECK(poll(&at, 1, 0) == 1 && at.revents & (POLLERR | POLLHUP));
	CHECK(enter(&p.a, 1, ~0ull) == -EBADR);
	all_calls_fail(p.a.fd, EBADR);
	/* The other one finds out. */
	CHECK(await(&p.b, COOP_NET_SENT, send_text(&p.b, p.at_b, text), &ev) < 0);
	CHECK(!machine_failed(&p.b));
	puts("gone");
	fflush(stdout);
	CHECK(getchar() == '\n');
	machine_close(&p.a);
	if (machine_open(&p.a, 0)) {
		p.at_a = peer_open(&p.a, &p.b, COOKIE_B);
		p.at_b = peer_open(&p.b, &p.a, COOKIE_A);
		CHECK(pair_works(&p));
	}
	pair_close(&p);
	memory_free(&a);
	memory_free(&b);
}

/* ---- many ---- */

static void one_of_many(void *about)
{
	static uint8_t bytes[20000];
	const unsigned int n = *(unsigned int *)about;
	struct memory a, b;
	struct pair p;

	NEED(memory_make(&a, PARTS, 50000, n) && memory_make(&b, ODD, 50000, n + 1));
	NEED(pair_open(&p) && memory_add(&p.a, &a) && memory_add(&p.b, &b));
	for (unsigned int i = 0; i < 10; i++) {
		const uint32_t in = receive(&p.b, &b, 13 * i, sizeof(bytes), 1, 1);

		memory_get(&a, 100 * i, bytes, sizeof(bytes));
		CHECK(!await(&p.a, COOP_NET_SENT,
			     send_bytes(&p.a, p.at_a, &a, 100 * i, sizeof(bytes)), NULL));
		CHECK(!await(&p.b, COOP_NET_RECEIVED, in, NULL));
		memory_want(&b, 13 * i, bytes, sizeof(bytes));
		NEED(memory_right(&b) && memory_right(&a));
	}
	CHECK(pair_works(&p));
	pair_close(&p);
}

#define PROCESSES 16 /* with two machines each */

void many_area(void)
{
	int before = listed(), status;
	pid_t child[PROCESSES];

	for (unsigned int i = 0; i < PROCESSES; i++) {
		child[i] = fork();
		if (!child[i]) {
			faults = 0;
			one_of_many(&i);
			_exit(faults ? 1 : 0);
		}
	}
	for (unsigned int i = 0; i < PROCESSES; i++)
		CHECK(waitpid(child[i], &status, 0) == child[i] && !status);
	CHECK(lists(&before));
}

/* ---- peers that do not exist ---- */

/* Texts to n addresses of the devices' network that no host has, by several paths each. */
static unsigned int texts_to_nobody(struct machine *m, unsigned int n)
{
	static const uint8_t text[COOP_NET_TEXT] = "nobody";
	struct machine nobody = *m;
	unsigned int sent = 0;

	for (unsigned int i = 0; i < n; i++) {
		uint32_t peer;

		nobody.setup.self.gid[15] = (uint8_t)(10 + i % 240);
		nobody.setup.self.sl = (uint8_t)(i / 240);
		nobody.setup.self.qpn = 0x100000 + i;
		peer = peer_open(m, &nobody, COOKIE_B);
		if (!CHECK(peer))
			break;
		send_text(m, peer, text);
		sent++;
	}
	return sent;
}

/* Its workers look for their link addresses; other machines look for others, and it can end. */
void nobody_area(void)
{
	struct coop_net_setup s = setup_for(device[0]);
	int before = listed();
	struct machine m;
	struct pair p;
	uint64_t began;

	s.handles = s.peers = 2048;
	NEED(machine_setup(&m, &s) && machine_map(&m));
	m.self = 0x77;
	CHECK(texts_to_nobody(&m, 960) == 960);
	began = now_ms();
	if (pair_open(&p))
		CHECK(pair_works(&p));
	fprintf(stderr, "two machines found each other after %llu ms\n",
		(unsigned long long)(now_ms() - began));
	pair_close(&p);
	CHECK(!machine_failed(&m));
	machine_close(&m);
	CHECK(lists(&before));
}

/*
 * A fetch is under way when the rings are unmapped, and then the file is closed; a line of input
 * before each step. The device keeps the fetch's pages until the close.
 */
void unmapped_area(void)
{
	struct memory a, b;
	struct pair p;
	uint64_t both;

	NEED(memory_make(&a, ODD, 500000, 1) && memory_make(&b, ALIGNED, 500000, 2));
	NEED(pair_open(&p) && memory_add(&p.a, &a) && memory_add(&p.b, &b) && pair_works(&p));
	offer(&p.a, &a, 0, a.bytes, any);
	puts("ready");
	fflush(stdout);
	CHECK(getchar() == '\n');
	fetch(&p.b, p.at_b, &b, 0, (struct asking){any.token, any.key, a.bytes, 0, 0xff});
	puts("asks");
	fflush(stdout);
	CHECK(getchar() == '\n');
	both = pinned();
	CHECK(!munmap(p.b.rings, p.b.setup.map_bytes));
	p.b.rings = NULL;
	CHECK(pinned() == both);
	puts("unmapped");
	fflush(stdout);
	CHECK(getchar() == '\n');
	CHECK(!close(p.b.fd));
	p.b.fd = -1;
	puts("closed");
	fflush(stdout);
	CHECK(pinned() < both);
	fill(b.base, b.span, 3);
	memcpy(b.wanted, b.base, b.span);
	CHECK(getchar() == '\n');
	CHECK(memory_right(&b));
	pair_close(&p);
	memory_free(&a);
	memory_free(&b);
}

/* Holds two machines until input ends. */
void hold_area(void)
{
	struct pair p;

	NEED(pair_open(&p) && pair_works(&p));
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	CHECK(pair_works(&p));
	pair_close(&p);
}
