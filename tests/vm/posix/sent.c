/* SPDX-License-Identifier: MIT */
/* sent.c - bytes of a mapping that a program sends over TCP: both ends see those of the file. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "posix.h"

#define BYTES (1 << 20)
#define WORDS (BYTES / sizeof(uint64_t))
#define FILES 4

static uint64_t written[WORDS], arrived[WORDS];

/* Each word names its file and its place. */
static uint64_t word(unsigned int file, size_t at)
{
	return 0xc001000000000000u | (uint64_t)file << 32 | at;
}

/* The first word that is wrong; WORDS: none. */
static size_t wrong(const uint64_t *p, unsigned int file)
{
	size_t at = 0;

	while (at < WORDS && p[at] == word(file, at))
		at++;
	return at;
}

/* Makes the file on the other node, so that no page of it is cached here. */
static bool make(const char *name, unsigned int file)
{
	const int fd = open(other(name), O_CREAT | O_WRONLY, 0600);
	bool good;

	for (size_t at = 0; at < WORDS; at++)
		written[at] = word(file, at);
	good = fd >= 0 && write(fd, written, BYTES) == BYTES;
	return good && !close(fd);
}

static bool connected(int ends[2])
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const int listener = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(to);

	if (listener < 0 || bind(listener, (struct sockaddr *)&to, len) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&to, &len))
		return false;
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (ends[0] < 0 || connect(ends[0], (struct sockaddr *)&to, len))
		return false;
	ends[1] = accept(listener, NULL, NULL);
	return ends[1] >= 0 && !close(listener);
}

static void *receive(void *socket)
{
	const ssize_t n = recv(*(int *)socket, arrived, BYTES, MSG_WAITALL);

	return n == BYTES ? arrived : NULL;
}

/* Each page faults while the kernel is copying it to the socket. */
static void send_cold(unsigned int file)
{
	void *all = NULL;
	int fd, ends[2];
	pthread_t peer;
	char name[16];
	uint64_t *map;
	size_t at;

	snprintf(name, sizeof(name), "f%u", file);
	NEED(make(name, file) && (fd = open(name, O_RDONLY)) >= 0 && connected(ends));
	map = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
	NEED(map != MAP_FAILED && !madvise(map, BYTES, MADV_RANDOM));
	NEED(!pthread_create(&peer, NULL, receive, &ends[1]));
	CHECK(send(ends[0], map, BYTES, 0) == BYTES);
	CHECK(!shutdown(ends[0], SHUT_WR) && !pthread_join(peer, &all) && all);
	at = wrong(arrived, file);
	if (!CHECK(at == WORDS))
		fprintf(stderr, "file %u, byte %zu: %llx arrived\n", file, at * sizeof(uint64_t),
			(unsigned long long)arrived[at]);
	at = wrong(map, file);
	if (!CHECK(at == WORDS))
		fprintf(stderr, "file %u, byte %zu: %llx is mapped\n", file, at * sizeof(uint64_t),
			(unsigned long long)map[at]);
	CHECK(!munmap(map, BYTES) && !close(fd) && !close(ends[0]) && !close(ends[1]));
}

void sent_cold_area(void)
{
	for (unsigned int file = 0; file < FILES; file++)
		send_cold(file);
}
