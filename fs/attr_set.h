/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* attr_set.h - changes of attributes, and of set-id bits by a change of bytes (setattr.c). */
#ifndef COOP_FS_ATTR_SET_H
#define COOP_FS_ATTR_SET_H

#include "fs/compat.h"

int coop_setattr(struct mnt_idmap *idmap, struct dentry *dentry, struct iattr *attr);
/*
 * May storage keep set-id bits that this node does not know of, although the caller changes the
 * file? Then call coop_bits_settle() after the change.
 */
bool coop_bits_unseen(const struct file *file);
/* The reply to a change has shown the mode: removes its set-id bits. Under the inode's lock. */
void coop_bits_settle(struct file *file);

#endif
