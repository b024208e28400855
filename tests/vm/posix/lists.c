/* SPDX-License-Identifier: MIT */
/* lists.c - reading directories, at rest and while they change. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "posix.h"

#define NAMES 500

static void name_of(char *to, unsigned int i)
{
	sprintf(to, "a-name-of-some-length-%u", i);
}

static bool make(unsigned int first, unsigned int last)
{
	char name[64];

	for (unsigned int i = first; i < last; i++) {
		name_of(name, i);
		if (!put(name, ""))
			return false;
	}
	return true;
}

/* How often each of our names was seen; 'odd' counts other names. */
struct seen {
	unsigned int times[2 * NAMES], dots, odd;
};

static void see(struct seen *s, const struct dirent *e)
{
	unsigned int i;

	if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
		s->dots++;
	else if (sscanf(e->d_name, "a-name-of-some-length-%u", &i) == 1 && i < 2 * NAMES)
		s->times[i]++;
	else
		s->odd++;
}

/* Each of these names was seen 'least' to 'most' times. */
static bool seen_times(const struct seen *s, unsigned int first, unsigned int last,
		       unsigned int least, unsigned int most)
{
	for (unsigned int i = first; i < last; i++) {
		if (s->times[i] < least || s->times[i] > most) {
			fprintf(stderr, "name %u was seen %u times\n", i, s->times[i]);
			return false;
		}
	}
	return true;
}

static void list(const char *path, struct seen *s)
{
	DIR *d = opendir(path);
	struct dirent *e;

	memset(s, 0, sizeof(*s));
	NEED(d);
	while (errno = 0, (e = readdir(d)))
		see(s, e);
	CHECK(!errno);
	CHECK(!closedir(d));
}

void readdir_area(void)
{
	static struct seen s;
	struct dirent *e;
	struct stat st;
	char buf[PAGE];
	int fd, types = 0;
	DIR *d = NULL;

	list(".", &s);
	CHECK(s.dots == 2 && !s.odd && seen_times(&s, 0, NAMES, 0, 0));
	NEED(make(0, NAMES));
	list(".", &s);
	CHECK(s.dots == 2 && !s.odd && seen_times(&s, 0, NAMES, 1, 1));
	list(there, &s);
	CHECK(s.dots == 2 && !s.odd && seen_times(&s, 0, NAMES, 1, 1));

	/* Types and numbers are those of stat(2). */
	CHECK(!mkdir("sub", 0755) && !mkdir("sub/d", 0755) && put("sub/f", "x") &&
	      !symlink("f", "sub/l"));
	NEED((d = opendir("sub")) && !chdir("sub"));
	while ((e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		CHECK(!lstat(e->d_name, &st) && st.st_ino == e->d_ino &&
		      (unsigned int)e->d_type << 12 == (st.st_mode & S_IFMT));
		types |= 1 << e->d_type;
	}
	CHECK(!closedir(d) && !chdir(here));
	CHECK(types == (1 << DT_DIR | 1 << DT_REG | 1 << DT_LNK));

	/* A buffer too small for one entry. */
	NEED((fd = open(".", O_RDONLY | O_DIRECTORY)) >= 0);
	FAILS(syscall(SYS_getdents64, fd, buf, 8), EINVAL);
	CHECK(syscall(SYS_getdents64, fd, buf, 64) > 0);
	CHECK(!close(fd));
	FAILS(open("sub/f", O_RDONLY | O_DIRECTORY), ENOTDIR);

	/* A removed directory. */
	NEED(!mkdir("gone", 0755) && (d = opendir("gone")) && !rmdir("gone"));
	while ((e = readdir(d)))
		CHECK(e->d_name[0] == '.');
	CHECK(!closedir(d));
	CHECK(!opendir("gone") && errno == ENOENT);
}

/* A name that stays is listed once, whatever other names come and go. */
void readdir_changes_area(void)
{
	static struct seen s;
	unsigned int n = 0, gone = NAMES / 2;
	struct dirent *e;
	char name[64];
	DIR *d = NULL;

	NEED(make(0, NAMES) && (d = opendir(".")));
	memset(&s, 0, sizeof(s));
	while ((e = readdir(d))) {
		see(&s, e);
		if (++n % 7)
			continue;
		if (gone < NAMES) {
			name_of(name, gone++);
			CHECK(!unlink(name));
			name_of(name, NAMES + n);
			CHECK(put(name, ""));
		}
	}
	CHECK(s.dots == 2 && !s.odd && seen_times(&s, 0, NAMES / 2, 1, 1) &&
	      seen_times(&s, gone, NAMES, 1, 1) && seen_times(&s, NAMES / 2, 2 * NAMES, 0, 1));
	/* From the beginning, the listing shows the present. */
	rewinddir(d);
	memset(&s, 0, sizeof(s));
	while ((e = readdir(d)))
		see(&s, e);
	CHECK(seen_times(&s, 0, NAMES / 2, 1, 1) && seen_times(&s, NAMES / 2, gone, 0, 0) &&
	      seen_times(&s, gone, NAMES, 1, 1));

	/* As rm -r does it. */
	rewinddir(d);
	while ((e = readdir(d))) {
		if (e->d_name[0] != '.')
			CHECK(!unlink(e->d_name));
	}
	CHECK(!closedir(d));
	list(there, &s);
	CHECK(s.dots == 2 && !s.odd && seen_times(&s, 0, 2 * NAMES, 0, 0));
}

void seekdir_area(void)
{
	static char names[NAMES + 2][64];
	static long at[NAMES + 2];
	unsigned int n = 0, wrong = 0;
	struct dirent *e;
	DIR *d = NULL;

	NEED(make(0, NAMES) && (d = opendir(".")));
	for (;;) {
		const long where = telldir(d);

		e = readdir(d);
		if (!e)
			break;
		NEED(n < NAMES + 2);
		at[n] = where;
		strcpy(names[n++], e->d_name);
	}
	CHECK(n == NAMES + 2);
	/* Seek to many positions, out of order, and read on from each. */
	for (unsigned int i = 0; i < n; i += i < 4 ? 1 : 13) {
		const unsigned int k = i < 4 ? i : i * 37 % n;

		seekdir(d, at[k]);
		for (unsigned int j = k; j < n && j < k + 3; j++) {
			e = readdir(d);
			wrong += !e || strcmp(e->d_name, names[j]) != 0;
		}
	}
	CHECK(!wrong);
	/* Read on to the end. */
	seekdir(d, at[n / 2]);
	for (unsigned int i = n / 2; i < n; i++) {
		e = readdir(d);
		wrong += !e || strcmp(e->d_name, names[i]) != 0;
	}
	CHECK(!wrong && !readdir(d));
	CHECK(!closedir(d));
}
