/* SPDX-License-Identifier: MIT */
/* memory.c - buffers of several layouts, and the bytes that they must have. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "netdev.h"

uint64_t random_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

void fill(void *at, size_t n, uint64_t seed)
{
	uint64_t state = seed * 0x2545f4914f6cdd1dull + 1;
	uint8_t *to = at;

	while (n) {
		const uint64_t word = random_next(&state);
		const size_t some = n < sizeof(word) ? n : sizeof(word);

		memcpy(to, &word, some);
		to += some;
		n -= some;
	}
}

/* Lengths of segments and of the gaps behind them, in turn. */
static const struct {
	size_t length, gap;
} parts[] = {{1, 3}, {4095, 1}, {4097, 7}, {100, 4096}, {8197, 11}, {511, 2}, {12288, 5}, {63, 1}};
#define N_PARTS (sizeof(parts) / sizeof(parts[0]))

/* The segments as offsets; the span behind the last one. */
static size_t cut(struct memory *b, enum layout l)
{
	size_t at = l == ALIGNED ? PAGE : PAGE + 13, left = b->bytes;

	b->n = 0;
	do {
		const size_t part = l == PARTS ? parts[b->n % N_PARTS].length : left;
		const size_t some = part < left ? part : left;

		b->segment[b->n].at = at;
		b->segment[b->n].length = some;
		at += some + (l == PARTS ? parts[b->n % N_PARTS].gap : 0);
		left -= some;
		b->n++;
	} while (left);
	return at;
}

bool memory_make(struct memory *b, enum layout l, size_t bytes, uint64_t seed)
{
	memset(b, 0, sizeof(*b));
	b->bytes = bytes;
	b->segment = calloc(bytes / 64 + N_PARTS, sizeof(*b->segment));
	if (!b->segment)
		return false;
	b->span = (cut(b, l) + 2 * PAGE - 1) / PAGE * PAGE;
	b->base = mmap(NULL, b->span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	b->wanted = malloc(b->span);
	if (b->base == MAP_FAILED || !b->wanted)
		return false;
	fill(b->base, b->span, seed);
	memcpy(b->wanted, b->base, b->span);
	for (uint32_t i = 0; i < b->n; i++)
		b->segment[i].at += (uintptr_t)b->base;
	return true;
}

bool memory_add(struct machine *m, struct memory *b)
{
	struct coop_net_buffer add = {.segments = (uintptr_t)b->segment, .n = b->n};

	if (!CHECK(!ioctl(m->fd, COOP_NET_BUFFER_ADD, &add)))
		return false;
	b->buffer = add.buffer;
	return true;
}

void memory_want(struct memory *b, size_t at, const void *from, size_t n)
{
	const uint8_t *bytes = from;

	for (uint32_t i = 0; i < b->n && n; i++) {
		const size_t length = b->segment[i].length;
		size_t some;

		if (at >= length) {
			at -= length;
			continue;
		}
		some = length - at < n ? length - at : n;
		memcpy(b->wanted + (b->segment[i].at - (uintptr_t)b->base) + at, bytes, some);
		bytes += some;
		n -= some;
		at = 0;
	}
}

void memory_get(const struct memory *b, size_t at, void *to, size_t n)
{
	uint8_t *bytes = to;

	for (uint32_t i = 0; i < b->n && n; i++) {
		const size_t length = b->segment[i].length;
		size_t some;

		if (at >= length) {
			at -= length;
			continue;
		}
		some = length - at < n ? length - at : n;
		memcpy(bytes, b->wanted + (b->segment[i].at - (uintptr_t)b->base) + at, some);
		bytes += some;
		n -= some;
		at = 0;
	}
}

void memory_put(struct memory *b, size_t at, const void *from, size_t n)
{
	memory_want(b, at, from, n);
	memcpy(b->base, b->wanted, b->span);
}

bool memory_right(const struct memory *b)
{
	for (size_t i = 0; i < b->span; i++)
		if (b->base[i] != b->wanted[i]) {
			fprintf(stderr, "byte %zu of %zu is %02x, not %02x\n", i, b->span,
				b->base[i], b->wanted[i]);
			return false;
		}
	return true;
}

void memory_free(struct memory *b)
{
	if (b->base && b->base != MAP_FAILED)
		munmap(b->base, b->span);
	free(b->wanted);
	free(b->segment);
	memset(b, 0, sizeof(*b));
}
