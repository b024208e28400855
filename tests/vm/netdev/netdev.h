/* SPDX-License-Identifier: MIT */
/*
 * netdev.h - what the areas of coop-netdev share: checks, machines of /dev/coop-net by its raw
 * interface (msg/abi.h), and memory that knows which bytes it must have.
 *
 * CHECK and FAILS count faults and print their places; the area then goes on, so that one run
 * shows all faults. Every wait has a deadline.
 */
#ifndef COOP_TESTS_NETDEV_H
#define COOP_TESTS_NETDEV_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#include "msg/abi.h"

#define PAGE     4096ul
#define KINDS    56              /* the kind of a message is above its sender */
#define MESSAGE  (1ull << KINDS) /* a tag of a message that needs a buffer */
#define TEXT     ((unsigned long long)COOP_NET_KIND_TEXT << KINDS)
#define IDENTITY ((1ull << COOP_NET_SHIFT_AT) - 1) /* a sender that may also read */
#define NO_EVENT 0xff

/* How long the answer to a fetch may take, times patience. */
#define REQUEST_US 20000000u

bool expect(bool good, const char *file, int line, const char *what);
bool expect_error(long result, int error, const char *file, int line, const char *what);

#define CHECK(condition)   (errno = 0, expect((condition), __FILE__, __LINE__, #condition))
#define FAILS(call, error) (errno = 0, expect_error((call), (error), __FILE__, __LINE__, #call))
/* A CHECK that ends the function if it fails. */
#define NEED(condition)                \
	do {                           \
		if (!CHECK(condition)) \
			return;        \
	} while (0)

extern unsigned int checks, faults;
extern const char *device[2];  /* RDMA devices that reach each other */
extern unsigned int patience;  /* all deadlines are so many times as long */
extern char *volatile nowhere; /* an address without memory */

uint64_t now_ms(void);
/* Reproducible numbers. */
uint64_t random_next(uint64_t *state);
void fill(void *at, size_t n, uint64_t seed);

/* ---- machines (ring.c) ---- */

struct machine {
	int fd;
	struct coop_net_setup setup;
	struct coop_net_rings *rings; /* NULL: not mapped */
	struct coop_net_op *ops;
	struct coop_net_event *events;
	uint64_t self;               /* its sender, low 56 bits of its tags */
	uint32_t handle;             /* the last one that was used */
	bool *used;                  /* handles */
	uint64_t entered;            /* system calls for operations */
	uint64_t waited;             /* system calls for events */
	struct coop_net_event *kept; /* taken from the ring, not yet asked for */
	size_t n_kept, room_kept;
};

/* Setup with defaults for the device. */
struct coop_net_setup setup_for(const char *name);
struct coop_net_setup small_setup(int i); /* for device[i]: of many machines, or few queue pairs */
/* open and SETUP, as setup says; false with errno. No rings yet. */
bool machine_setup(struct machine *m, const struct coop_net_setup *setup);
/* mmap of the rings. */
bool machine_map(struct machine *m);
/* All of that on device i, with defaults; complains. */
bool machine_open(struct machine *m, int i);
void machine_close(struct machine *m);
/* The peer of this address, admitted; COOP_NET_* flags none. 0: failed, errno. */
uint32_t peer_open(struct machine *m, const struct machine *other, uint64_t cookie);
bool machine_failed(const struct machine *m);

/* A free handle, now in use. */
uint32_t handle_new(struct machine *m);
/* The next operation, zeroed, with a new handle; post() makes it known. Waits for room. */
struct coop_net_op *op_next(struct machine *m);
/* Publishes it, and enters only if the module sleeps. Returns its handle. */
uint32_t post(struct machine *m);
int enter(struct machine *m, uint32_t events, uint64_t timeout_ns);

/* Takes the oldest event from the ring; false: empty. */
bool event_take(struct machine *m, struct coop_net_event *out);
/* The same, those first that were kept. */
bool event_next(struct machine *m, struct coop_net_event *out);
/* The first event with this code and handle (ANY: every one) within ms; others are kept. */
#define ANY (~0u)
bool event_wait(struct machine *m, uint32_t code, uint32_t handle, struct coop_net_event *out,
		unsigned int ms);
/* The same within the usual deadline; complains. The status, or -ETIME. */
int await(struct machine *m, uint32_t code, uint32_t handle, struct coop_net_event *out);
/* Drops what has arrived; the number of events. */
unsigned int events_drop(struct machine *m);

/* ---- memory (memory.c) ---- */

enum layout {
	ALIGNED, /* one segment of whole pages, except at its end */
	ODD,     /* one segment that begins 13 bytes after a page */
	PARTS,   /* many segments of odd sizes with bytes between them */
	LAYOUTS
};

/*
 * A buffer: segments within a span of memory. `wanted` has the bytes that the whole span must
 * have, those between and around the segments too.
 */
struct memory {
	uint8_t *base, *wanted;
	size_t span, bytes;
	struct coop_net_segment *segment;
	uint32_t n, buffer; /* of BUFFER_ADD */
};

bool memory_make(struct memory *b, enum layout l, size_t bytes, uint64_t seed);
/* BUFFER_ADD; complains. */
bool memory_add(struct machine *m, struct memory *b);
/* Stores bytes both in the memory and in what is wanted. */
void memory_put(struct memory *b, size_t at, const void *from, size_t n);
/* Wants these bytes there. */
void memory_want(struct memory *b, size_t at, const void *from, size_t n);
/* Copies what is wanted there. */
void memory_get(const struct memory *b, size_t at, void *to, size_t n);
/* Whether all bytes are as wanted; prints the first wrong one. */
bool memory_right(const struct memory *b);
void memory_free(struct memory *b);

/* ---- operations ---- */

uint32_t send_text(struct machine *m, uint32_t peer, const void *text);
uint32_t send_bytes(struct machine *m, uint32_t peer, const struct memory *b, size_t at, size_t n);
uint32_t receive(struct machine *m, const struct memory *b, size_t at, size_t n, uint64_t min_size,
		 uint32_t messages);
struct lending {
	uint64_t token, key, reader;
	uint32_t reader_peer;
};
uint32_t offer(struct machine *m, const struct memory *b, size_t at, size_t n, struct lending l);
struct asking {
	uint64_t token, key, size, index, want;
};
uint32_t fetch(struct machine *m, uint32_t peer, const struct memory *b, size_t at,
	       struct asking q);
void cancel(struct machine *m, uint32_t handle);

/* Two machines that have each other as peers. */
struct pair {
	struct machine a, b;
	uint32_t at_a, at_b; /* at_a: the peer b of a */
};

#define COOKIE_A 0xa000000000000001ull /* what b calls a */
#define COOKIE_B 0xb000000000000002ull

bool pair_open(struct pair *p);
void pair_close(struct pair *p);
/* Whether a text goes from each to the other: a machine that works. */
bool pair_works(struct pair *p);

/* ---- from a to b (carry.c) ---- */

/* Buffers of a and of b, and copies from one to the other. */
struct carriage {
	struct pair p;
	struct memory from, to;
};

bool carriage_open(struct carriage *c, enum layout from, enum layout to, size_t bytes);
void carriage_close(struct carriage *c);
/* Wants the bytes that are wanted in `from`. */
void copy_wanted(const struct memory *from, size_t at, struct memory *to, size_t there, size_t n);
/* Whether all bytes of both buffers, and around them, are as wanted; complains. */
bool all_right(const struct carriage *c);

/* ---- the system ---- */

/* Bytes that this process has pinned, or locked, as /proc/self/status says. */
uint64_t pinned(void);
/* Waits until the condition holds, within the usual deadline; complains. */
bool until(bool (*condition)(void *), void *about, const char *what);

/* Runs act(about) in a child: its exit status, or -1. The child's faults count here. */
int in_child(void (*act)(void *), void *about);

/* Every call but SETUP fails so. */
void all_calls_fail(int fd, int error);
/* What an executed program checks; the status of the process. */
int after_exec(int fd, bool inherited);

typedef void area_fn(void);
area_fn text_area, messages_area, here_area, bulk_area, refused_bulk_area;
area_fn ranges_area, bounds_area, revoked_area;
area_fn states_area, setup_area, buffers_area, memlock_area, quota_area, peers_area, strangers_area,
	late_admission_area, operations_area;
area_fn indices_area, nothing_lost_area, waits_area, polls_area, awake_area, mapping_area,
	overtaken_area;
area_fn close_area, fork_area, exec_area, killed_area, many_area, removal_area, unmapped_area,
	hold_area, nobody_area;
area_fn fuzz_area, scarce_area, charged_area, rights_area, rdma_charged_area;

#endif /* COOP_TESTS_NETDEV_H */
