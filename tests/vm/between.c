/* SPDX-License-Identifier: MIT */
/*
 * coop-between - a proxy between a mount and its storage daemon that holds messages back.
 *
 * Requests run concurrently and their replies come in any order (rpc/storage/STORAGE.md). Chance
 * decides which order a mount sees, and most orders never happen; with this program a test
 * chooses. It forwards whole messages, and reads commands from CONTROL, one per line:
 *
 *   hold OP [OFFSET]           replies to such requests wait here
 *   stop OP [OFFSET]           such requests wait here
 *   refuse OP [OFFSET] ERRNO   such requests get this error and go no further
 *   cut OP [OFFSET]            the connection ends instead of the reply to such a request
 *   go [OP [OFFSET]]           ends such rules and forwards what waits by them; without OP all
 *
 * OP is a name of rpc/storage/operation.c, OFFSET that of a READ or WRITE; without OFFSET the rule
 * covers every request of the operation. It prints "ready" when it listens. It writes to LOG, one
 * line per event: "held", "stopped", "refused" or "lost" with OP and offset for a message that it
 * held back, refused or dropped, and "done" with the command after each command.
 *
 *   coop-between LISTEN-ADDRESS DAEMON-ADDRESS CONTROL LOG
 *
 * Both addresses have port 17430. CONTROL is a FIFO. It runs until it is killed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/storage/message.h"

#define PORT    17430
#define RULES   16
#define IDS     512
#define ANY     (~0ull)
#define MESSAGE (COOP_ST_HEADER + COOP_ST_BODY_MAX + COOP_ST_IO_MAX + COOP_ST_TAIL)

enum act { HOLD, STOP, REFUSE, CUT, ACTS };

static const char *const act_name[ACTS] = {"hold", "stop", "refuse", "cut"};
static const char *const act_done[ACTS] = {"held", "stopped", "refused", "lost"};

struct rule {
	enum act act;
	unsigned int op; /* 0: no rule */
	unsigned long long offset;
	unsigned int error;
};

/* A connection from the mount, and the one to the daemon on its behalf. */
struct pair {
	int mount, daemon;
	pthread_mutex_t write_mount, write_daemon;
	/* Requests whose replies to hold or to lose; under 'lock'. */
	struct {
		unsigned long long id, offset;
		unsigned int op;
	} held[IDS];
};

/* A waiting message. */
struct waiting {
	struct waiting *next;
	struct pair *pair;
	enum act act;
	unsigned int op;
	unsigned long long offset;
	size_t len;
	unsigned char bytes[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[RULES]; /* under it */
static struct waiting *waiting;  /* in the order of arrival */
static const char *log_path;
static struct in_addr daemon_address;

static void fail(const char *what)
{
	fprintf(stderr, "coop-between: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void tell(const char *line)
{
	FILE *f = fopen(log_path, "ae");

	if (!f || fprintf(f, "%s\n", line) < 0 || fclose(f))
		fail(log_path);
}

static void tell_kept(enum act act, unsigned int op, unsigned long long offset)
{
	char line[96];

	snprintf(line, sizeof(line), "%s %s %llu", act_done[act], coop_st_op_name((u16)op), offset);
	tell(line);
}

/* ---- bytes ---------------------------------------------------------------------- */

static bool take(int fd, unsigned char *to, size_t n)
{
	while (n) {
		ssize_t got = read(fd, to, n);

		if (got <= 0)
			return false;
		to += got;
		n -= (size_t)got;
	}
	return true;
}

/* Drops the bytes if the receiver is gone. */
static void give(int fd, pthread_mutex_t *order, const unsigned char *from, size_t n)
{
	pthread_mutex_lock(order);
	while (n) {
		ssize_t put = send(fd, from, n, MSG_NOSIGNAL);

		if (put <= 0)
			break;
		from += put;
		n -= (size_t)put;
	}
	pthread_mutex_unlock(order);
}

static void give_on(struct pair *p, bool request, const unsigned char *from, size_t n)
{
	if (request)
		give(p->daemon, &p->write_daemon, from, n);
	else
		give(p->mount, &p->write_mount, from, n);
}

/* Reads one message. Returns its length, 0 at the end of the connection. */
static size_t take_message(int fd, struct coop_st_header *h, unsigned char *to)
{
	size_t n;

	if (!take(fd, to, COOP_ST_HEADER) || coop_st_header_get(h, to))
		return 0;
	n = (size_t)h->body_len + h->data_len;
	if (h->flags & COOP_ST_F_REPLY && h->flags & COOP_ST_F_STREAM)
		n += COOP_ST_TAIL;
	return take(fd, to + COOP_ST_HEADER, n) ? COOP_ST_HEADER + n : 0;
}

/* ---- messages held back ----------------------------------------------------------- */

static bool meant(unsigned int op, unsigned long long offset, unsigned int wanted,
		  unsigned long long wanted_offset)
{
	return op == wanted && (wanted_offset == ANY || offset == wanted_offset);
}

static const struct rule *rule_for(unsigned int op, unsigned long long offset)
{
	for (int i = 0; i < RULES; i++)
		if (meant(op, offset, rules[i].op, rules[i].offset))
			return &rules[i];
	return NULL;
}

static void keep(struct pair *p, enum act act, unsigned int op, unsigned long long offset,
		 const unsigned char *bytes, size_t n)
{
	struct waiting *w = malloc(sizeof(*w) + n), **last = &waiting;

	if (!w)
		fail("memory");
	*w = (struct waiting){.pair = p, .act = act, .op = op, .offset = offset, .len = n};
	memcpy(w->bytes, bytes, n);
	while (*last)
		last = &(*last)->next;
	*last = w;
	tell_kept(act, op, offset);
}

static void refuse(struct pair *p, const struct coop_st_header *h, unsigned int error)
{
	const struct coop_st_header reply = {
		.op = h->op, .flags = COOP_ST_F_REPLY, .status = error, .id = h->id};
	unsigned char bytes[COOP_ST_HEADER];

	coop_st_header_put(&reply, bytes);
	give_on(p, false, bytes, sizeof(bytes));
}

static void expect_reply(struct pair *p, unsigned long long id, unsigned int op,
			 unsigned long long offset)
{
	for (int i = 0; i < IDS; i++) {
		if (p->held[i].id)
			continue;
		p->held[i].id = id;
		p->held[i].op = op;
		p->held[i].offset = offset;
		return;
	}
}

/* True: forward it. */
static bool request_passes(struct pair *p, const struct coop_st_header *h,
			   const unsigned char *bytes, size_t n)
{
	static __thread struct coop_st_body body;
	const struct rule *rule;
	bool passes = true;

	if (coop_st_body_get(&body, coop_st_request_fields(h->op), bytes + COOP_ST_HEADER,
			     h->body_len))
		return true; /* the daemon refuses it */
	pthread_mutex_lock(&lock);
	rule = rule_for(h->op, body.offset);
	if (rule && (rule->act == HOLD || rule->act == CUT)) {
		expect_reply(p, h->id, h->op, body.offset);
	} else if (rule && rule->act == STOP) {
		keep(p, STOP, h->op, body.offset, bytes, n);
		passes = false;
	} else if (rule) {
		refuse(p, h, rule->error);
		tell_kept(REFUSE, h->op, body.offset);
		passes = false;
	}
	pthread_mutex_unlock(&lock);
	return passes;
}

static bool reply_passes(struct pair *p, const struct coop_st_header *h, const unsigned char *bytes,
			 size_t n)
{
	const struct rule *rule;
	bool passes = true;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < IDS && h->id && passes; i++) {
		if (p->held[i].id != h->id)
			continue;
		p->held[i].id = 0;
		rule = rule_for(p->held[i].op, p->held[i].offset);
		if (!rule)
			break; /* it has ended */
		passes = false;
		if (rule->act == CUT) {
			shutdown(p->mount, SHUT_RDWR);
			tell_kept(CUT, p->held[i].op, p->held[i].offset);
			continue;
		}
		keep(p, HOLD, p->held[i].op, p->held[i].offset, bytes, n);
	}
	pthread_mutex_unlock(&lock);
	return passes;
}

/* ---- connections ---------------------------------------------------------------- */

static void pass_on(struct pair *p, bool requests)
{
	unsigned char *bytes = malloc(MESSAGE);
	const int from = requests ? p->mount : p->daemon;
	struct coop_st_header h;
	size_t n;

	if (!bytes)
		fail("memory");
	while ((n = take_message(from, &h, bytes)))
		if (requests ? request_passes(p, &h, bytes, n) : reply_passes(p, &h, bytes, n))
			give_on(p, requests, bytes, n);
	free(bytes);
	/* This ends the other thread too. Keep the pair: waiting messages may refer to it. */
	shutdown(p->mount, SHUT_RDWR);
	shutdown(p->daemon, SHUT_RDWR);
}

static void *pass_requests(void *pair)
{
	pass_on(pair, true);
	return NULL;
}

static void *pass_replies(void *pair)
{
	pass_on(pair, false);
	return NULL;
}

static struct sockaddr_in at(struct in_addr address)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr = address};
}

/* Without a daemon, closes the mount's connection, and the mount tries again. */
static void begin(int mount)
{
	struct sockaddr_in to = at(daemon_address);
	struct pair *p = calloc(1, sizeof(*p));
	pthread_t thread;

	if (!p)
		fail("memory");
	p->mount = mount;
	p->daemon = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (p->daemon < 0)
		fail("socket");
	if (connect(p->daemon, (struct sockaddr *)&to, sizeof(to))) {
		close(p->daemon);
		close(mount);
		free(p);
		return;
	}
	pthread_mutex_init(&p->write_mount, NULL);
	pthread_mutex_init(&p->write_daemon, NULL);
	if (pthread_create(&thread, NULL, pass_requests, p) || pthread_detach(thread) ||
	    pthread_create(&thread, NULL, pass_replies, p) || pthread_detach(thread))
		fail("thread");
}

static void *accept_all(void *listener)
{
	for (;;) {
		int mount = accept4(*(int *)listener, NULL, NULL, SOCK_CLOEXEC);

		if (mount >= 0)
			begin(mount);
		else if (errno != EINTR && errno != ECONNABORTED)
			fail("accept");
	}
	return NULL;
}

/* ---- commands ----------------------------------------------------------------------- */

static unsigned int op_of(const char *name)
{
	for (unsigned int op = 1; op < COOP_ST_OP_END; op++)
		if (coop_st_op_known((u16)op) && !strcmp(coop_st_op_name((u16)op), name))
			return op;
	fprintf(stderr, "coop-between: no operation '%s'\n", name);
	exit(2);
}

static void add_rule(const struct rule *rule)
{
	for (int i = 0; i < RULES; i++) {
		if (rules[i].op)
			continue;
		rules[i] = *rule;
		return;
	}
	fprintf(stderr, "coop-between: too many rules\n");
	exit(2);
}

static void let_go(unsigned int op, unsigned long long offset)
{
	struct waiting **at_w = &waiting, *w;

	for (int i = 0; i < RULES; i++)
		if (!op || (rules[i].op == op && (offset == ANY || rules[i].offset == offset)))
			rules[i].op = 0;
	while ((w = *at_w)) {
		if (op && !meant(w->op, w->offset, op, offset)) {
			at_w = &w->next;
			continue;
		}
		*at_w = w->next;
		give_on(w->pair, w->act == STOP, w->bytes, w->len);
		free(w);
	}
}

static void obey(const char *line)
{
	char what[16] = "", op[32] = "", done[160];
	unsigned long long number[2] = {0};
	struct rule rule = {.act = ACTS};
	int n;

	n = sscanf(line, "%15s %31s %llu %llu", what, op, &number[0], &number[1]);
	for (enum act act = HOLD; act < ACTS; act++)
		if (!strcmp(what, act_name[act]))
			rule.act = act;
	if (n < 1 || (rule.act == ACTS ? strcmp(what, "go") : n < 2 + (rule.act == REFUSE))) {
		fprintf(stderr, "coop-between: unknown command '%s'\n", line);
		exit(2);
	}
	if (rule.act == REFUSE)
		rule.error = (unsigned int)number[--n - 2];
	rule.op = n > 1 ? op_of(op) : 0;
	rule.offset = n > 2 ? number[0] : ANY;
	pthread_mutex_lock(&lock);
	if (rule.act == ACTS)
		let_go(rule.op, rule.offset);
	else
		add_rule(&rule);
	pthread_mutex_unlock(&lock);
	snprintf(done, sizeof(done), "done %.140s", line);
	tell(done);
}

int main(int argc, char **argv)
{
	struct sockaddr_in here = {0};
	char line[128];
	int listener, on = 1;
	pthread_t thread;
	FILE *control;

	if (argc != 5 || !inet_aton(argv[1], &here.sin_addr) ||
	    !inet_aton(argv[2], &daemon_address)) {
		fprintf(stderr, "usage: coop-between LISTEN-ADDRESS DAEMON-ADDRESS CONTROL LOG\n");
		return 2;
	}
	here = at(here.sin_addr);
	log_path = argv[4];
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(listener, (struct sockaddr *)&here, sizeof(here)) || listen(listener, 16))
		fail(argv[1]);
	tell("ready");
	/* Open for writing too, so that it never reaches its end when a writer closes it. */
	control = fopen(argv[3], "r+e");
	if (!control)
		fail(argv[3]);
	if (pthread_create(&thread, NULL, accept_all, &listener))
		fail("thread");
	while (fgets(line, sizeof(line), control)) {
		line[strcspn(line, "\n")] = 0;
		obey(line);
	}
	fail(argv[3]);
}
