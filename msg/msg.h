/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* msg.h - /dev/coop-net, for the module: see COOPNET.md. */
#ifndef COOP_MSG_MSG_H
#define COOP_MSG_MSG_H

/* The device and /proc/fs/coopfs/net. Context: may sleep. */
int coop_net_init(void);
void coop_net_exit(void); /* no file is open: each holds the module */

#endif /* COOP_MSG_MSG_H */
