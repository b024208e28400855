/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * uncommitted.h - directories whose changes of names no COMMIT has covered yet.
 *
 * A reply to MKDIR, RENAME and the like has no verifier. The client knows the verifier of
 * names instead, from the reply to RUN on the connection on which the reply came. A
 * directory whose own fsync failed has another verifier, which a COMMIT of it tells; it
 * holds as long as the verifier of names stays the same. If a COMMIT returns another
 * verifier than that of the oldest change that it should have covered, changes may be
 * lost (STORAGE.md, "Stable storage").
 *
 * The table is bounded. When it must forget a directory with uncommitted changes, all
 * directories that are not in it are in doubt: they count as changed at that time. So a
 * loss is never hidden, but after a crash of storage the next fsync of such a directory
 * fails, once, even if nothing of it was lost.
 */
#ifndef COOP_STORAGE_UNCOMMITTED_H
#define COOP_STORAGE_UNCOMMITTED_H

#include "rpc/storage/message.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_UNCOMMITTED_DIRS 4096 /* what a client keeps */

struct coop_uncommitted_dir {
	struct coop_fid dir;
	u64 oldest;       /* verifier of the oldest uncommitted change */
	u64 changed;      /* number of the latest one; 0: all are committed */
	u64 own, run;     /* its verifier while that of names is 'run'; own 0: not known */
	u32 next;         /* in its bucket, or in the list of free ones */
	u32 older, newer; /* in the order of changes, if it has any, else of commits */
	bool told;        /* a sync of everything has reported its loss */
};

struct coop_uncommitted {
	struct coop_uncommitted_dir *dirs;
	u32 *buckets; /* as many as directories, a power of two */
	u32 n, free;
	struct {
		u32 oldest, newest;
	} order[2];  /* 0: directories without uncommitted changes, 1: with */
	u64 changes; /* so far */
	bool doubt, doubt_told;
	u64 doubted;  /* verifier of the oldest forgotten change */
	u64 doubt_at; /* number of the latest one */
};

/* n: a power of two. memory: of coop_uncommitted_size(n) bytes, aligned for u64. */
size_t coop_uncommitted_size(u32 n);
void coop_uncommitted_init(struct coop_uncommitted *t, void *memory, u32 n);
/*
 * Names or attributes of the directory were changed. run: the verifier of names, of the connection
 * on which the reply came, 0: the daemon tells none. own: the reply's own verifier, 0: it has none.
 */
void coop_uncommitted_add(struct coop_uncommitted *t, const struct coop_fid *dir, u64 run, u64 own);
/* The directory is gone. */
void coop_uncommitted_remove(struct coop_uncommitted *t, const struct coop_fid *dir);
/* Is there anything that a sync of everything has to commit? */
bool coop_uncommitted_any(const struct coop_uncommitted *t);
/* What a COMMIT that is sent from now on covers. */
u64 coop_uncommitted_now(const struct coop_uncommitted *t);
/*
 * A COMMIT of the directory, sent at 'covers', returned this verifier. True: changes may be lost,
 * and the caller reports it.
 */
bool coop_uncommitted_done(struct coop_uncommitted *t, const struct coop_fid *dir, u64 covers,
			   u64 run, u64 verifier);
/* It failed at storage, and the caller reports that. */
void coop_uncommitted_failed(struct coop_uncommitted *t, const struct coop_fid *dir, u64 covers);
/* The same for all directories; what is lost is reported by their own COMMITs as well. */
bool coop_uncommitted_done_all(struct coop_uncommitted *t, u64 covers, u64 run);

#ifdef __cplusplus
}
#endif

#endif /* COOP_STORAGE_UNCOMMITTED_H */
