/* SPDX-License-Identifier: MIT */
/*
 * coop-sniff - the traffic classes and UDP source ports of RoCE v2 packets on an interface.
 *
 *   coop-sniff INTERFACE
 *
 * It prints "listening" on standard error, counts the IPv4 packets to UDP port 4791 that come or go
 * until its input ends, and prints "SOURCE TCLASS PORT COUNT", a line for each combination. Status:
 * 0 success, 2 usage or an error.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROCE_PORT 4791
#define KINDS     4096

static struct kind {
	uint32_t source;
	uint16_t port;
	uint8_t tclass;
	unsigned long count;
} kinds[KINDS];

static void count(uint32_t source, uint8_t tclass, uint16_t port)
{
	struct kind *k = kinds;

	while (k < kinds + KINDS && k->count &&
	       (k->source != source || k->tclass != tclass || k->port != port))
		k++;
	if (k == kinds + KINDS)
		return;
	*k = (struct kind){source, port, tclass, k->count + 1};
}

static void look(const uint8_t *p, ssize_t n)
{
	const ssize_t header = n > 0 ? (p[0] & 0xf) * 4 : 0;
	uint32_t source;

	if (n < 20 || p[0] >> 4 != 4 || p[9] != IPPROTO_UDP || n < header + 8)
		return;
	if ((p[header + 2] << 8 | p[header + 3]) != ROCE_PORT)
		return;
	memcpy(&source, p + 12, sizeof(source));
	count(source, p[1], (uint16_t)(p[header] << 8 | p[header + 1]));
}

static int failed(const char *what)
{
	fprintf(stderr, "coop-sniff: %s: %s\n", what, strerror(errno));
	return 2;
}

int main(int argc, char **argv)
{
	struct sockaddr_ll where = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	struct pollfd ready[2];
	uint8_t packet[128];
	char text[INET_ADDRSTRLEN];
	int fd;

	if (argc != 2) {
		fprintf(stderr, "usage: coop-sniff INTERFACE\n");
		return 2;
	}
	where.sll_ifindex = (int)if_nametoindex(argv[1]);
	fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ALL));
	if (!where.sll_ifindex || fd < 0 || bind(fd, (struct sockaddr *)&where, sizeof(where)))
		return failed(argv[1]);
	fprintf(stderr, "listening\n");
	ready[0] = (struct pollfd){.fd = fd, .events = POLLIN};
	ready[1] = (struct pollfd){.fd = 0, .events = POLLIN};
	for (;;) {
		if (poll(ready, 2, -1) < 0)
			return failed("poll");
		if (ready[0].revents)
			look(packet, recv(fd, packet, sizeof(packet), 0));
		else if (ready[1].revents && read(0, text, sizeof(text)) <= 0)
			break;
	}
	for (struct kind *k = kinds; k < kinds + KINDS && k->count; k++)
		printf("%s %u %u %lu\n", inet_ntop(AF_INET, &k->source, text, sizeof(text)),
		       k->tclass, k->port, k->count);
	return 0;
}
