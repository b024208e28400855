// SPDX-License-Identifier: MIT
/*
 * appends.c - one write(2) with O_APPEND is one piece of the file, up to the size that
 * coopfs(5) promises, while other processes and the other mount append to it, too.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "posix.h"

#define WRITERS 4
#define PIECES  12
#define WHOLE   ((1 << 20) - PAGE)
#define PARTS   128

/*
 * Appends pieces of one letter after a byte came from 'go'. The memory begins with the last
 * byte of a page, where it is in the most pages. Returns an exit status.
 */
static int append_pieces(const char *path, char letter, size_t part, int parts, int go)
{
	struct iovec v[PARTS];
	char *memory, byte;
	int fd = open(path, O_WRONLY | O_APPEND);

	if (fd < 0 || posix_memalign((void **)&memory, PAGE, WHOLE + 2 * PAGE))
		return 2;
	memset(memory, letter, WHOLE + 2 * PAGE);
	for (int i = 0; i < parts; i++) {
		v[i].iov_base = memory + PAGE - 1 + (size_t)i * part;
		v[i].iov_len = part;
	}
	if (read(go, &byte, 1))
		return 3;
	for (int i = 0; i < PIECES; i++)
		if (writev(fd, v, parts) != (ssize_t)(part * (size_t)parts))
			return 4;
	return close(fd) ? 5 : 0;
}

/* Whether the file is, after its first bytes, whole pieces only, and all of them. */
static bool is_whole(size_t first, size_t size)
{
	size_t run = 0, sum = 0;
	char *content = malloc(WHOLE), last = 0;
	ssize_t n = 0;
	off_t at = (off_t)first;
	bool good = true;
	int fd = open("f", O_RDONLY);

	while (content && good && (n = pread(fd, content, WHOLE, at)) > 0) {
		for (ssize_t i = 0; i < n && good; i++) {
			if (content[i] != last) {
				good = run % size == 0;
				run = 0;
				last = content[i];
			}
			run++;
		}
		at += n;
		sum += (size_t)n;
	}
	if (good)
		good = run % size == 0;
	if (!good)
		fprintf(stderr, "torn: a piece of %zu bytes ends before %lld, of %zu\n", run % size,
			(long long)at, size);
	free(content);
	return !close(fd) && good && !n && sum == WRITERS * PIECES * size;
}

static void several_append(size_t part, int parts)
{
	char first[PAGE - 1]; /* the first piece begins with the last byte of a page */
	pid_t child[WRITERS];
	int go[2], fd, status;

	memset(first, '-', sizeof(first));
	NEED((fd = open("f", O_CREAT | O_TRUNC | O_WRONLY, 0600)) >= 0);
	CHECK(write(fd, first, sizeof(first)) == (ssize_t)sizeof(first) && !close(fd));
	NEED(!pipe(go));
	for (int i = 0; i < WRITERS; i++) {
		child[i] = fork();
		if (!child[i]) {
			close(go[1]);
			_exit(append_pieces(i % 2 ? other("f") : "f", (char)('a' + i), part, parts,
					    go[0]));
		}
	}
	close(go[0]);
	close(go[1]); /* all begin */
	for (int i = 0; i < WRITERS; i++)
		CHECK(child[i] > 0 && waitpid(child[i], &status, 0) == child[i] && !status);
	CHECK(is_whole(sizeof(first), part * (size_t)parts));
	CHECK(!unlink("f"));
}

void whole_appends_area(void)
{
	several_append(WHOLE, 1);
	several_append(70001, 2); /* as of a library that writes its buffer and more at once */
	several_append(999, PARTS);
	several_append(100, 1);
}
