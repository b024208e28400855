/* SPDX-License-Identifier: MIT */
/* extended.c - extended attributes and ACLs: by type of file, name space and caller. */
#define _GNU_SOURCE
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "posix.h"

#define ACCESS_ACL  "system.posix_acl_access"
#define DEFAULT_ACL "system.posix_acl_default"
#define CAPABILITY  "security.capability"
#define MEMBER      1001 /* a user that an ACL names */
#define GROUP       500  /* a group that an ACL names */

static bool has(const char *path, const char *name, const char *value)
{
	char buf[64];
	const ssize_t n = lgetxattr(path, name, buf, sizeof(buf));

	return n == (ssize_t)strlen(value) && !memcmp(buf, value, (size_t)n);
}

bool lists(const char *path, const char *name)
{
	char names[4096];
	ssize_t n = llistxattr(path, names, sizeof(names));

	for (const char *at = names; n > 0; n -= (ssize_t)strlen(at) + 1, at += strlen(at) + 1) {
		if (!strcmp(at, name))
			return true;
	}
	return false;
}

static bool set(const char *path, const char *name, const char *value)
{
	return !lsetxattr(path, name, value, strlen(value), 0);
}

static void stranger(void)
{
	char buf[16];

	CHECK(has("f", "user.one", "1"));
	FAILS(setxattr("f", "user.one", "x", 1, 0), EACCES);
	FAILS(removexattr("f", "user.one"), EACCES);
	FAILS(getxattr("secret", "user.s", buf, sizeof(buf)), EACCES);
	FAILS(getxattr("f", "trusted.t", buf, sizeof(buf)), ENODATA);
	FAILS(setxattr("f", "trusted.t", "x", 1, 0), EPERM);
	FAILS(removexattr("f", "trusted.t"), EPERM);
	CHECK(!lists("f", "trusted.t") && lists("f", "user.one"));
	CHECK(put("own/f", "x") && set("own/f", "user.mine", "m") &&
	      has("own/f", "user.mine", "m"));
	FAILS(setxattr("own/f", "trusted.t", "x", 1, 0), EPERM);
	FAILS(setxattr("own/f", CAPABILITY, "x", 1, 0), EINVAL);
}

static void sizes(void)
{
	static const size_t sizes[] = {1, 100, 1000, 3000};
	static char value[65536 + 1], got[65536];
	int fd, full;

	NEED((fd = open("f", O_RDWR)) >= 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const ssize_t n = (ssize_t)sizes[i];

		memset(value, 'a' + (int)i, sizes[i]);
		CHECK(!fsetxattr(fd, "user.big", value, sizes[i], 0));
		CHECK(fgetxattr(fd, "user.big", NULL, 0) == n);
		CHECK(fgetxattr(fd, "user.big", got, sizeof(got)) == n &&
		      !memcmp(got, value, sizes[i]));
		CHECK(fgetxattr(fd, "user.big", got, sizes[i]) == n);
		if (n > 1)
			FAILS(fgetxattr(fd, "user.big", got, sizes[i] - 1), ERANGE);
	}
	FAILS(fsetxattr(fd, "user.big", value, sizeof(value), 0), E2BIG);
	/* The largest value, if the file system has room for it. */
	memset(value, 'z', sizeof(value));
	full = fsetxattr(fd, "user.big", value, sizeof(got), 0) ? errno : 0;
	CHECK(!full || full == ENOSPC);
	if (!full)
		CHECK(fgetxattr(fd, "user.big", got, sizeof(got)) == sizeof(got) &&
		      !memcmp(got, value, sizeof(got)));
	CHECK(!fremovexattr(fd, "user.big") && !close(fd));
}

void xattrs_area(void)
{
	static const char *const other_types[] = {"p", "l"};
	char buf[64], name[300];
	int fd;

	NEED(put("f", "text") && put("secret", "s") && !chmod("secret", 0600) && !mkdir("d", 0755));
	CHECK(listxattr("f", NULL, 0) == 0);
	FAILS(getxattr("f", "user.one", buf, sizeof(buf)), ENODATA);
	FAILS(removexattr("f", "user.one"), ENODATA);
	FAILS(setxattr("f", "user.one", "x", 1, XATTR_REPLACE), ENODATA);
	CHECK(!setxattr("f", "user.one", "1", 1, XATTR_CREATE) && has("f", "user.one", "1"));
	FAILS(setxattr("f", "user.one", "2", 1, XATTR_CREATE), EEXIST);
	CHECK(!setxattr("f", "user.one", "12", 2, XATTR_REPLACE) && has("f", "user.one", "12"));
	CHECK(set("f", "user.one", "") && has("f", "user.one", "") && set("f", "user.one", "1"));
	CHECK(has(other("f"), "user.one", "1") && holds("f", "text") && holds(other("f"), "text"));
	FAILS(setxattr("f", "nowhere.x", "1", 1, 0), EOPNOTSUPP);
	FAILS(setxattr("f", "user.", "1", 1, 0), EINVAL);
	memset(name, 'n', sizeof(name));
	memcpy(name, "user.", 5);
	name[255] = 0;
	CHECK(set("f", name, "long") && has("f", name, "long") && !removexattr("f", name));
	name[255] = 'n';
	name[256] = 0;
	FAILS(setxattr("f", name, "x", 1, 0), ERANGE);
	sizes();

	CHECK(set("f", "trusted.t", "t") && has("f", "trusted.t", "t") && lists("f", "trusted.t"));
	CHECK(set("d", "user.d", "d") && has("d", "user.d", "d") &&
	      set("d", "trusted.overlay.opaque", "y"));
	CHECK(has("d", "trusted.overlay.opaque", "y") &&
	      !removexattr("d", "trusted.overlay.opaque"));
	CHECK(!lists("d", "trusted.overlay.opaque"));
	CHECK(set("secret", "user.s", "s"));
	/* Only regular files and directories have user attributes. */
	NEED(!mkfifo("p", 0666) && !symlink("f", "l"));
	for (size_t i = 0; i < 2; i++) {
		FAILS(lsetxattr(other_types[i], "user.x", "x", 1, 0), EPERM);
		FAILS(lgetxattr(other_types[i], "user.x", buf, sizeof(buf)), ENODATA);
		CHECK(set(other_types[i], "trusted.x", "x") &&
		      has(other_types[i], "trusted.x", "x"));
		CHECK(lists(other_types[i], "trusted.x") &&
		      !lremovexattr(other_types[i], "trusted.x"));
	}
	CHECK(has("l", "trusted.x", "") == false && getxattr("l", "user.one", buf, 8) == 1);
	FAILS(listxattr("f", buf, 1), ERANGE);
	NEED(!mkdir("own", 0755) && !chown("own", STRANGER, STRANGER));
	as_user(STRANGER, STRANGER, stranger);

	/* Attributes stay with an open file without a name, and a rename keeps them. */
	NEED((fd = open("f", O_RDWR)) >= 0);
	CHECK(!rename("f", "g") && has("g", "user.one", "1") && !unlink("g"));
	CHECK(fgetxattr(fd, "user.one", buf, sizeof(buf)) == 1 && !close(fd));
}

/* Any write clears a file's capability, and so does a change of owner. */
static void write_one(void)
{
	const int fd = open("program", O_WRONLY);

	CHECK(fd >= 0 && pwrite(fd, "x", 1, 0) == 1 && !close(fd));
}

static bool capable(const char *path)
{
	struct vfs_cap_data caps;

	return getxattr(path, CAPABILITY, &caps, sizeof(caps)) == XATTR_CAPS_SZ_2;
}

static bool make_capable(const char *path)
{
	const struct vfs_cap_data caps = {
		.magic_etc = VFS_CAP_REVISION_2,
		.data[0].permitted = 1 << CAP_NET_RAW,
	};

	return !setxattr(path, CAPABILITY, &caps, XATTR_CAPS_SZ_2, 0) && capable(path);
}

static void chown_one(void)
{
	FAILS(chown("program", STRANGER, (gid_t)-1), EPERM);
}

void capability_area(void)
{
	int fd;

	NEED(put("program", "text") && !chmod("program", 0777));
	CHECK(make_capable("program") && capable(other("program")));
	as_user(STRANGER, STRANGER, write_one);
	CHECK(!capable("program") && holds("program", "xext"));
	CHECK(make_capable("program"));
	write_one();
	CHECK(!capable("program") && make_capable("program"));
	CHECK(!truncate("program", 2) && !capable("program") && make_capable("program"));
	as_user(STRANGER, STRANGER, chown_one);
	CHECK(capable("program") && !removexattr("program", CAPABILITY));
	CHECK(!capable("program") && !capable(other("program")) && make_capable("program"));
	CHECK(!chown("program", STRANGER, (gid_t)-1) && !capable("program"));
	/* Set while the file is open, after a write. */
	NEED((fd = open("program", O_RDWR)) >= 0);
	CHECK(pwrite(fd, "y", 1, 0) == 1 && make_capable("program") && pwrite(fd, "z", 1, 0) == 1);
	CHECK(!capable("program") && !close(fd));
}

/* Linux 6.1 with the BPF LSM lets any user remove a capability. */
static bool stranger_removes(const char *path)
{
	const pid_t child = fork();
	int status = 0;

	if (!child)
		_exit(setgid(STRANGER) || setuid(STRANGER) || removexattr(path, CAPABILITY));
	return child > 0 && waitpid(child, &status, 0) == child && !status;
}

/*
 * Storage maps root to another user, who may not remove a capability: root learns that. A write
 * still clears it, and a program does not start with it before the written bytes are at storage.
 * BELOW is the exported directory.
 */
void capability_squashed_area(void)
{
	char below[4096];
	int fd;

	NEED(getenv("BELOW"));
	snprintf(below, sizeof(below), "%s/capability_squashed/program", getenv("BELOW"));
	NEED(put(below, "text") && !chmod(below, 0777) && make_capable(below));
	CHECK(capable("program"));
	CHECK(capable("program") && capable(below));
	FAILS(chown("program", STRANGER, (gid_t)-1), EPERM);
	CHECK(capable("program") && capable(below));
	NEED((fd = open("program", O_RDWR)) >= 0);
	CHECK(pwrite(fd, "x", 1, 0) == 1 && !capable("program") && !capable(below));
	CHECK(pwrite(fd, "y", 1, 1) == 1 && !close(fd) && holds(below, "xyxt"));
	CHECK(make_capable(below));
	as_user(STRANGER, STRANGER, write_one);
	CHECK(!capable("program") && !capable(below) && make_capable(below));
	CHECK(!truncate("program", 2) && !capable("program") && !capable(below));

	snprintf(below, sizeof(below), "%s/capability_squashed/other", getenv("BELOW"));
	NEED(put(below, "text") && make_capable(below));
	if (stranger_removes(below)) {
		NEED(make_capable(below));
		CHECK(!removexattr("other", CAPABILITY) && !capable("other") && !capable(below));
	} else {
		FAILS(removexattr("other", CAPABILITY), EPERM);
		CHECK(capable("other") && capable(below));
	}
}

/* ---- ACLs, in the form of their attributes --------------------------------------------- */

struct ace {
	uint16_t tag, perm;
	uint32_t id;
};

struct acl {
	uint32_t version;
	struct ace e[6];
};

enum { USER_OBJ = 1, USER = 2, GROUP_OBJ = 4, GROUP_ = 8, MASK = 16, OTHER = 32 };

static struct acl acl_of(uint16_t user, uint16_t member, uint16_t group, uint16_t members,
			 uint16_t mask, uint16_t others)
{
	const uint32_t none = (uint32_t)-1;

	return (struct acl){2,
			    {{USER_OBJ, user, none},
			     {USER, member, MEMBER},
			     {GROUP_OBJ, group, none},
			     {GROUP_, members, GROUP},
			     {MASK, mask, none},
			     {OTHER, others, none}}};
}

static bool set_acl(const char *path, const char *name, const struct acl *acl)
{
	return !setxattr(path, name, acl, sizeof(*acl), 0);
}

static bool same_acl(const char *path, const char *name, const struct acl *acl)
{
	struct acl got;

	return getxattr(path, name, &got, sizeof(got)) == sizeof(got) &&
	       !memcmp(&got, acl, sizeof(got));
}

static void named_user(void)
{
	int fd;

	CHECK(holds("f", "text") && (fd = open("f", O_WRONLY)) >= 0 && !close(fd));
	FAILS(open("ro", O_WRONLY), EACCES);
	CHECK(holds("ro", "text"));
	FAILS(open("masked", O_WRONLY), EACCES);
	CHECK(holds("masked", "text") && put("d/by-member", "x") && holds("d/by-member", "x"));
	FAILS(removexattr("f", ACCESS_ACL), EPERM);
}

static void named_group(void)
{
	CHECK(holds("f", "text"));
	FAILS(open("f", O_WRONLY), EACCES);
}

static void nobody_named(void)
{
	FAILS(open("f", O_RDONLY), EACCES);
	FAILS(open("d/x", O_CREAT | O_WRONLY, 0600), EACCES);
	FAILS(access("f", R_OK), EACCES);
}

static void inheritance(void)
{
	const struct acl inherited = acl_of(7, 6, 5, 4, 7, 0);
	struct acl got;
	mode_t before = umask(077);
	int fd;

	NEED(!mkdir("in", 0755) && set_acl("in", DEFAULT_ACL, &inherited));
	CHECK(same_acl("in", DEFAULT_ACL, &inherited) && lists("in", DEFAULT_ACL));
	/* The umask has no effect: the requested mode limits the inherited ACL. */
	NEED((fd = open("in/f", O_CREAT | O_EXCL | O_WRONLY, 0664)) >= 0 && !close(fd));
	CHECK(mode_of("in/f") == 0660);
	CHECK(getxattr("in/f", ACCESS_ACL, &got, sizeof(got)) == sizeof(got));
	CHECK(got.e[1].perm == 6 && got.e[4].perm == 6 && got.e[0].perm == 6);
	CHECK(!mkdir("in/d", 0777) && mode_of("in/d") == 0770);
	CHECK(same_acl("in/d", DEFAULT_ACL, &inherited));
	CHECK(!mkfifo("in/p", 0666) && mode_of("in/p") == 0660);
	CHECK(put("out", "x") && mode_of("out") == 0600);
	FAILS(setxattr("in/f", DEFAULT_ACL, &inherited, sizeof(inherited), 0), EACCES);
	CHECK(!removexattr("in", DEFAULT_ACL) && !lists("in", DEFAULT_ACL));
	CHECK(put("in/g", "x") && mode_of("in/g") == 0600);
	umask(before);
}

/* An ACL change applies to names that this node has already cached. */
static void reads_it(void)
{
	CHECK(holds("walk/f", "text") && !access("walk/f", R_OK));
}

static void does_not(void)
{
	FAILS(open("walk/f", O_RDONLY), EACCES);
	FAILS(access("walk/f", F_OK), EACCES);
}

static void cached_names(void)
{
	const struct acl closed = acl_of(7, 0, 5, 5, 7, 5), opened = acl_of(7, 5, 0, 0, 7, 0);

	NEED(!mkdir("walk", 0755) && put("walk/f", "text"));
	as_user(MEMBER, MEMBER, reads_it);
	CHECK(set_acl("walk", ACCESS_ACL, &closed));
	as_user(MEMBER, MEMBER, does_not);
	as_user(STRANGER, STRANGER, reads_it);
	CHECK(set_acl("walk", ACCESS_ACL, &opened) && mode_of("walk") == 0770);
	as_user(MEMBER, MEMBER, reads_it);
	as_user(STRANGER, STRANGER, does_not);
	CHECK(!removexattr("walk", ACCESS_ACL));
}

/* Set-ID bits together with ACLs. */
static void writes_it(void)
{
	const int fd = open("set", O_WRONLY);

	CHECK(fd >= 0 && pwrite(fd, "x", 1, 0) == 1 && !close(fd));
}

static void sets_an_acl(void)
{
	const struct acl acl = acl_of(7, 7, 7, 5, 7, 5);

	CHECK(set_acl("own", ACCESS_ACL, &acl));
}

static void set_id_bits(void)
{
	const struct acl acl = acl_of(7, 6, 5, 5, 7, 5), inherited = acl_of(7, 6, 5, 4, 7, 0);
	struct stat st;

	NEED(put("set", "text") && !chmod("set", 06755) && set_acl("set", ACCESS_ACL, &acl));
	CHECK(mode_of("set") == 06775);
	as_user(MEMBER, MEMBER, writes_it);
	CHECK(mode_of("set") == 0775 && same_acl("set", ACCESS_ACL, &acl));
	/* An ACL set by an owner outside the file's group clears its set-group-ID bit. */
	NEED(put("own", "x") && !chown("own", STRANGER, GROUP) && !chmod("own", 02755));
	as_user(STRANGER, STRANGER, sets_an_acl);
	CHECK(mode_of("own") == 0775);
	NEED(!mkdir("group", 0755) && !chown("group", 0, GROUP) && !chmod("group", 02775));
	CHECK(set_acl("group", DEFAULT_ACL, &inherited) && !mkdir("group/d", 0777));
	CHECK(!stat("group/d", &st) && st.st_gid == GROUP && (st.st_mode & 07777) == 02770);
	CHECK(put("group/f", "x") && !stat("group/f", &st) && st.st_gid == GROUP);
	CHECK(same_acl("group/d", DEFAULT_ACL, &inherited) && lists("group/f", ACCESS_ACL));
}

void acls_area(void)
{
	struct acl acl = acl_of(6, 6, 4, 4, 6, 0);
	struct acl got;

	NEED(put("f", "text") && put("ro", "text") && put("masked", "text") && !mkdir("d", 0755));
	FAILS(getxattr("f", ACCESS_ACL, &got, sizeof(got)), ENODATA);
	CHECK(set_acl("f", ACCESS_ACL, &acl) && same_acl("f", ACCESS_ACL, &acl));
	CHECK(same_acl(other("f"), ACCESS_ACL, &acl));
	CHECK(lists("f", ACCESS_ACL) && mode_of("f") == 0660);
	acl = acl_of(6, 4, 4, 4, 6, 0);
	CHECK(set_acl("ro", ACCESS_ACL, &acl));
	acl = acl_of(6, 6, 4, 4, 4, 0);
	CHECK(set_acl("masked", ACCESS_ACL, &acl) && mode_of("masked") == 0640);
	acl = acl_of(7, 7, 5, 5, 7, 0);
	CHECK(set_acl("d", ACCESS_ACL, &acl));
	as_user(MEMBER, MEMBER, named_user);
	as_user(STRANGER, GROUP, named_group);
	as_user(STRANGER, STRANGER, nobody_named);

	/* A chmod sets the mask, which limits the ACL's users and groups at once. */
	CHECK(!chmod("f", 0640));
	CHECK(getxattr("f", ACCESS_ACL, &got, sizeof(got)) == sizeof(got) && got.e[4].perm == 4);
	CHECK(!chmod("f", 0660) && set_acl("masked", ACCESS_ACL, &acl));
	as_user(STRANGER, GROUP, named_group);
	CHECK(!removexattr("f", ACCESS_ACL) && !lists("f", ACCESS_ACL));
	FAILS(getxattr("f", ACCESS_ACL, &got, sizeof(got)), ENODATA);
	/* An ACL equal to a mode is not kept. */
	got = (struct acl){2, {{USER_OBJ, 6, ~0u}, {GROUP_OBJ, 4, ~0u}, {OTHER, 4, ~0u}}};
	CHECK(!setxattr("f", ACCESS_ACL, &got, 4 + 3 * sizeof(struct ace), 0));
	CHECK(mode_of("f") == 0644 && !lists("f", ACCESS_ACL));
	got.e[1].perm = 99;
	FAILS(setxattr("f", ACCESS_ACL, &got, 4 + 3 * sizeof(struct ace), 0), EINVAL);
	inheritance();
	cached_names();
	set_id_bits();
}
