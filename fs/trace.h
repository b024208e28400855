/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * trace.h - tracepoints of the data path: perf trace -e 'coopfs:*'.
 *
 * A read is a window (coopfs_read), the pages that peers delivered for it
 * (coopfs_fetch_done), and those from storage (coopfs_storage_read). coopfs_serve
 * is the other side: the pages that a peer asked for, those that this node held, and
 * those on their way that the request waits for. coopfs_relay shows which of these this
 * node loads for the peer, and coopfs_serve_more (ib/trace.h) what came. coopfs_roles is
 * this node's place in a file's forest, as storage tells it, and coopfs_redirect shows the
 * pages for which storage named nodes in place of bytes. coopfs_bundle is the end of the fetch
 * of a bundle.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM coopfs

#if !defined(COOP_FS_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define COOP_FS_TRACE_H

#include <linux/tracepoint.h>

#include "fs/read.h"

/* clang-format cannot format tracepoint macros. */
/* clang-format off */

TRACE_EVENT(coopfs_bundle,
	TP_PROTO(const struct inode *dir, bool subtree, u32 part, u32 size, u32 files, int err),
	TP_ARGS(dir, subtree, part, size, files, err),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u64, ino)
		__field(bool, subtree)
		__field(u32, part)
		__field(u32, size)
		__field(u32, files)
		__field(int, err)
	),
	TP_fast_assign(
		__entry->dev = dir->i_sb->s_dev;
		__entry->ino = dir->i_ino;
		__entry->subtree = subtree;
		__entry->part = part;
		__entry->size = size;
		__entry->files = files;
		__entry->err = err;
	),
	TP_printk("dev=%u:%u ino=%llu subtree=%d part=%u size=%u files=%u err=%d",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->ino, __entry->subtree,
		  __entry->part, __entry->size, __entry->files, __entry->err)
);

TRACE_EVENT(coopfs_read,
	TP_PROTO(const struct coop_window *w),
	TP_ARGS(w),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u64, ino)
		__field(u64, version)
		__field(u64, index)
		__field(u32, pages)
		__field(u32, openers)
	),
	TP_fast_assign(
		__entry->dev = w->inode->i_sb->s_dev;
		__entry->ino = w->inode->i_ino;
		__entry->version = w->content.version;
		__entry->index = w->fetch.index;
		__entry->pages = w->fetch.n_pages;
		__entry->openers = w->content.n_openers;
	),
	TP_printk("dev=%u:%u ino=%llu version=0x%llx index=%llu pages=%u openers=%u",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->ino, __entry->version,
		  __entry->index, __entry->pages, __entry->openers)
);

TRACE_EVENT(coopfs_fetch_done,
	TP_PROTO(const struct coop_window *w, u64 good, int err),
	TP_ARGS(w, good, err),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u64, ino)
		__field(u64, index)
		__field(u32, pages)
		__field(u64, good)
		__field(int, err)
		__field(u64, us)
	),
	TP_fast_assign(
		__entry->dev = w->inode->i_sb->s_dev;
		__entry->ino = w->inode->i_ino;
		__entry->index = w->fetch.index;
		__entry->pages = w->fetch.n_pages;
		__entry->good = good;
		__entry->err = err;
		__entry->us = coop_now_us() - w->begun_us;
	),
	TP_printk("dev=%u:%u ino=%llu index=%llu pages=%u good=0x%llx err=%d us=%llu",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->ino, __entry->index,
		  __entry->pages, __entry->good, __entry->err, __entry->us)
);

TRACE_EVENT(coopfs_storage_read,
	TP_PROTO(const struct coop_window *w, u32 first, u32 n, int err),
	TP_ARGS(w, first, n, err),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u64, ino)
		__field(u64, index)
		__field(u32, pages)
		__field(int, err)
		__field(u64, us)
	),
	TP_fast_assign(
		__entry->dev = w->inode->i_sb->s_dev;
		__entry->ino = w->inode->i_ino;
		__entry->index = w->fetch.index + first;
		__entry->pages = n;
		__entry->err = err;
		__entry->us = coop_now_us() - w->begun_us;
	),
	TP_printk("dev=%u:%u ino=%llu index=%llu pages=%u err=%d us=%llu",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->ino, __entry->index,
		  __entry->pages, __entry->err, __entry->us)
);

TRACE_EVENT(coopfs_redirect,
	TP_PROTO(const struct coop_window *w, u32 first, u32 n, const u32 *nodes),
	TP_ARGS(w, first, n, nodes),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u64, ino)
		__field(u64, index)
		__field(u32, pages)
		__array(u32, nodes, COOP_PARENTS)
	),
	TP_fast_assign(
		__entry->dev = w->inode->i_sb->s_dev;
		__entry->ino = w->inode->i_ino;
		__entry->index = w->fetch.index + first;
		__entry->pages = n;
		memcpy(__entry->nodes, nodes, sizeof(__entry->nodes));
	),
	TP_printk("dev=%u:%u ino=%llu index=%llu pages=%u nodes=%u,%u,%u,%u", MAJOR(__entry->dev),
		  MINOR(__entry->dev), __entry->ino, __entry->index, __entry->pages,
		  __entry->nodes[0], __entry->nodes[1], __entry->nodes[2], __entry->nodes[3])
);

TRACE_EVENT(coopfs_roles,
	TP_PROTO(const struct inode *inode, u64 version, const struct coop_st_roles *roles),
	TP_ARGS(inode, version, roles),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u64, ino)
		__field(u64, version)
		__field(u32, members)
		__field(u32, index)
	),
	TP_fast_assign(
		__entry->dev = inode->i_sb->s_dev;
		__entry->ino = inode->i_ino;
		__entry->version = version;
		__entry->members = roles->members;
		__entry->index = roles->index;
	),
	TP_printk("dev=%u:%u ino=%llu version=0x%llx members=%u index=%u", MAJOR(__entry->dev),
		  MINOR(__entry->dev), __entry->ino, __entry->version, __entry->members,
		  __entry->index)
);

TRACE_EVENT(coopfs_serve,
	TP_PROTO(const struct inode *inode, const struct coop_ev *ev, const struct coop_found *found),
	TP_ARGS(inode, ev, found),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u64, ino)
		__field(u64, version)
		__field(u64, index)
		__field(u64, asked)
		__field(u64, have)
		__field(u64, coming)
		__field(u32, level)
		__field(u32, serve)
	),
	TP_fast_assign(
		__entry->dev = inode->i_sb->s_dev;
		__entry->ino = inode->i_ino;
		__entry->version = ev->version;
		__entry->index = ev->ext[0].index;
		__entry->asked = ev->pages;
		__entry->have = found->have;
		__entry->coming = found->coming;
		__entry->level = ev->level;
		__entry->serve = ev->id;
	),
	TP_printk("dev=%u:%u ino=%llu version=0x%llx index=%llu asked=0x%llx have=0x%llx coming=0x%llx level=0x%x serve=0x%x",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->ino, __entry->version,
		  __entry->index, __entry->asked, __entry->have, __entry->coming, __entry->level,
		  __entry->serve)
);

TRACE_EVENT(coopfs_relay,
	TP_PROTO(const struct inode *inode, const struct coop_relay_ask *ask, u64 loads),
	TP_ARGS(inode, ask, loads),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(u64, ino)
		__field(u64, version)
		__field(u64, index)
		__field(u64, asked)
		__field(u64, loads)
		__field(u32, level)
	),
	TP_fast_assign(
		__entry->dev = inode->i_sb->s_dev;
		__entry->ino = inode->i_ino;
		__entry->version = ask->version;
		__entry->index = ask->index;
		__entry->asked = ask->pages;
		__entry->loads = loads;
		__entry->level = ask->level;
	),
	TP_printk("dev=%u:%u ino=%llu version=0x%llx index=%llu asked=0x%llx loads=0x%llx level=0x%x",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->ino, __entry->version,
		  __entry->index, __entry->asked, __entry->loads, __entry->level)
);

/* clang-format on */

#endif /* COOP_FS_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
