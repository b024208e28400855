// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * main.c - the module: initialises its parts in the order of their dependencies and
 * ends them in reverse order. All state outside of mounts is created here.
 */
#include <linux/module.h>

#include "fs/fs.h"
#include "msg/msg.h"
#include "proc/proc.h"

static int __init coopfs_init(void)
{
	int err;

	err = coop_inode_cache_init();
	if (err)
		return err;
	err = coop_write_init();
	if (err)
		goto err_inodes;
	err = coop_proc_init();
	if (err)
		goto err_write;
	err = coop_ib_init();
	if (err)
		goto err_proc;
	err = coop_net_init();
	if (err)
		goto err_ib;
	err = register_filesystem(&coop_fs_type);
	if (err)
		goto err_net;
	return 0;

err_net:
	coop_net_exit();
err_ib:
	coop_ib_exit();
err_proc:
	coop_proc_exit();
err_write:
	coop_write_exit();
err_inodes:
	coop_inode_cache_exit();
	return err;
}

static void __exit coopfs_exit(void)
{
	unregister_filesystem(&coop_fs_type);
	coop_net_exit();
	coop_ib_exit();
	coop_proc_exit();
	coop_write_exit();
	coop_inode_cache_exit();
}

module_init(coopfs_init);
module_exit(coopfs_exit);
MODULE_ALIAS_FS("coopfs");
MODULE_SOFTDEP("pre: sha256 hmac crc32c");
MODULE_DESCRIPTION("coopfs: a network file system whose nodes share their page caches");
MODULE_LICENSE("Dual MIT/GPL");
