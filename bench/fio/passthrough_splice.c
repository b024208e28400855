/* SPDX-License-Identifier: MIT */
/*
 * libfuse's own example, passthrough_ll.c, with the one thing added that it does
 * not do: it asks the kernel for spliced replies. The example is compiled as it
 * was shipped; only its call of fuse_session_new() is intercepted, so that the
 * init operation can be wrapped. The pair (example, this) brackets what a FUSE
 * file system that adds nothing of its own can reach: with one copy, and with
 * pages spliced from the page cache to /dev/fuse.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 34

#include <fuse_lowlevel.h>

static void (*init_as_shipped)(void *userdata, struct fuse_conn_info *conn);

static void init_with_splice(void *userdata, struct fuse_conn_info *conn)
{
	init_as_shipped(userdata, conn);
	conn->want |= conn->capable &
		      (FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_SPLICE_READ);
}

static struct fuse_session *session_with_splice(struct fuse_args *args,
						const struct fuse_lowlevel_ops *shipped,
						size_t size, void *userdata)
{
	struct fuse_lowlevel_ops ops = *shipped;

	init_as_shipped = ops.init;
	ops.init = init_with_splice;
	return fuse_session_new(args, &ops, size, userdata);
}

#define fuse_session_new session_with_splice
#include "passthrough_ll.c"
