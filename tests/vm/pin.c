/* SPDX-License-Identifier: MIT */
/*
 * coop-pin - pins cached pages of a file by coop_lab.ko, as for a device, until told to
 * release them.
 *
 *   coop-pin FILE PAGES
 *
 * It pins the first pages of FILE, prints "pinned" on standard error, waits for a line of
 * input, releases them and prints "released". Status: 0 success, 2 usage or an error.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul

static int failed(const char *what)
{
	fprintf(stderr, "coop-pin: %s: %s\n", what, strerror(errno));
	return 2;
}

static int tell_module(const void *address, unsigned long pages)
{
	int fd = open("/sys/module/coop_lab/parameters/pin", O_WRONLY | O_CLOEXEC);
	char text[64];
	int len = snprintf(text, sizeof(text), "%lu %lu", (unsigned long)address, pages);
	int bad = fd < 0 || write(fd, text, (size_t)len) != len;

	if (fd >= 0)
		close(fd);
	return bad;
}

int main(int argc, char **argv)
{
	unsigned long pages = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
	void *map;
	int fd;

	if (!pages) {
		fprintf(stderr, "usage: coop-pin FILE PAGES\n");
		return 2;
	}
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return failed(argv[1]);
	map = mmap(NULL, pages * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return failed("mapping");
	if (tell_module(map, pages))
		return failed("pinning");
	fprintf(stderr, "pinned\n");
	while (getchar() != '\n')
		if (feof(stdin))
			return failed("no input");
	if (tell_module(NULL, 0))
		return failed("releasing");
	fprintf(stderr, "released\n");
	return 0;
}
