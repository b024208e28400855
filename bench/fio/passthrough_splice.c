/* SPDX-License-Identifier: MIT */
/*
 * passthrough_splice.c - libfuse's own example, passthrough_ll.c, made to ask the
 * kernel for spliced replies. The example is compiled as shipped; this file only
 * intercepts its call of fuse_session_new(), to wrap the init operation. The two
 * programs bracket the speed of a FUSE file system that adds nothing of its own:
 * with one copy, and with pages spliced from the page cache to /dev/fuse.
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
