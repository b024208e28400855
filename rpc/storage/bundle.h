/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * bundle.h - the format of a bundle: directories with all their names, and of
 * each file what clients ask for first.
 *
 * The daemon makes a bundle, clients pass it on to each other. So the bytes may
 * come from anywhere: the decoder reads forward only, through the codec of
 * message.h, and checks each record before it returns it.
 *
 * A bundle is a header and directories. A directory is a record of its own and
 * one for each of its entries. A record is two 32-bit lengths (body, content), a
 * body with the fields of its kind, and the content:
 *
 *   directory  FH, COUNT (entries), FLAGS, ATTR
 *   entry      FH, NAME, TEXT (of a symbolic link), FLAGS, ATTR, COOKIE; content
 *
 * The content is the file's, or 32-bit ids of nodes that were sent it.
 *
 * Attributes with COOP_ST_HAS_LEASE hold as those of a reply that reports a
 * lease. Without it only the file's type, number and handle are said, and an
 * entry that may be listed but not looked up has no handle. STORAGE.md has the
 * meaning.
 */
#ifndef COOP_BUNDLE_H
#define COOP_BUNDLE_H

#include "rpc/storage/message.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_BUNDLE_MAGIC   0x42504f43u /* "COPB" */
#define COOP_BUNDLE_FORMAT  1
#define COOP_BUNDLE_HEADER  16u         /* bytes: magic, format, directories, entries */
#define COOP_BUNDLE_RECORD  8u          /* bytes of a record's lengths */
#define COOP_BUNDLE_BYTES   (8u << 20)  /* most bytes of a bundle */
#define COOP_BUNDLE_RECORDS 4096u       /* most directories and entries together */
#define COOP_BUNDLE_CONTENT (32u << 10) /* bytes of the largest file whose content is in it */
#define COOP_BUNDLE_NODES   4u          /* of a file, at most */

enum coop_bundle_flag {                         /* what storage has permitted the user to do */
			COOP_BUNDLE_SEARCH = 1, /* directory: to look names up */
			COOP_BUNDLE_LIST = 2,   /* directory: to list it */
			/* regular file: to open it for reading; has content, or nodes */
			COOP_BUNDLE_READ = 4,
			COOP_BUNDLE_AT_NODES = 8,
			COOP_BUNDLE_DIR_FLAGS = 3,
			COOP_BUNDLE_FILE_FLAGS = 12,
};

enum coop_bundle_found {
	COOP_BUNDLE_END,
	COOP_BUNDLE_DIRECTORY, /* its entries follow */
	COOP_BUNDLE_ENTRY,     /* of the last directory */
};

/* The decoder's place. */
struct coop_bundle {
	const u8 *p;
	u32 left;    /* bytes */
	u32 dirs;    /* to come */
	u32 entries; /* to come, of all directories */
	u32 here;    /* to come, of this directory */
};

/* 0; -EPROTO: no bundle, or one over a limit. The bytes stay the caller's. */
int coop_bundle_begin(struct coop_bundle *b, const u8 *buf, u32 len);
/*
 * enum coop_bundle_found, or -EPROTO: nothing that follows can be trusted.
 * Strings of 'out' and 'content' point into the bundle. content: of an entry; its
 * length is the file's size if the entry has COOP_BUNDLE_READ, else 0. nodes of
 * 'out': of an entry with COOP_BUNDLE_AT_NODES, which then has one at least.
 */
int coop_bundle_next(struct coop_bundle *b, struct coop_st_body *out,
		     struct coop_st_bytes *content);

/* Writes COOP_BUNDLE_HEADER bytes. */
void coop_bundle_put_header(u32 dirs, u32 entries, u8 *buf);
/*
 * Bytes written; -EMSGSIZE: no room. content: null for a directory; not used for
 * an entry with COOP_BUNDLE_AT_NODES, whose nodes are in 'b'.
 */
int coop_bundle_put(const struct coop_st_body *b, const struct coop_st_bytes *content, u8 *buf,
		    u32 cap);

#ifdef __cplusplus
}
#endif

#endif /* COOP_BUNDLE_H */
