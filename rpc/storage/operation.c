// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * operation.c - the operations of the storage protocol, in one table.
 *
 * For each it has the fields of the request and of the reply, so that no
 * operation can forget to check a length: the codec (message.c) walks these sets.
 */
#include "message.h"

struct op_form {
	const char *name;
	u64 request;
	u64 reply;
	bool changes;
};

#define HANDSHAKE  (COOP_ST_NONCE_F | COOP_ST_VERSIONS)
#define ENTRY      (COOP_ST_FH | COOP_ST_ATTR)
#define IN_DIR     (COOP_ST_CRED | COOP_ST_FH | COOP_ST_NAME)
#define MADE       (ENTRY | COOP_ST_DIR_ATTR)
#define CHANGED    (COOP_ST_ATTR | COOP_ST_BEFORE)
#define UNSTABLE   (CHANGED | COOP_ST_VERIFIER)
#define OPEN_FILE  (COOP_ST_FH | COOP_ST_OPEN_ID)
#define RANGE      (COOP_ST_LENGTH | COOP_ST_FLAGS)
#define READ_RANGE (OPEN_FILE | COOP_ST_OFFSET | COOP_ST_COUNT | COOP_ST_DATA_VERSION)
#define READ_FOUND (COOP_ST_DATA_VERSION | COOP_ST_SIZE)
#define OPENED     (COOP_ST_ATTR | COOP_ST_NODES | COOP_ST_VERIFIER)

static const struct op_form forms[COOP_ST_OP_END] = {
	[COOP_ST_HELLO] = {"hello", HANDSHAKE | COOP_ST_SESSION_F | COOP_ST_TEXT,
			   HANDSHAKE | COOP_ST_PROOF_F | COOP_ST_FLAGS, false},
	[COOP_ST_PROOF_OP] = {"proof", COOP_ST_PROOF_F, ENTRY | COOP_ST_FLAGS | COOP_ST_COUNT,
			      false},
	[COOP_ST_REGISTER] = {"register", COOP_ST_ADDR, COOP_ST_NODE_ID, false},
	[COOP_ST_BYE] = {"bye", 0, 0, false},
	[COOP_ST_PING] = {"ping", 0, 0, false},
	[COOP_ST_STATS] = {"stats", 0, 0, false},
	[COOP_ST_LOOKUP] = {"lookup", IN_DIR, ENTRY, false},
	[COOP_ST_GETATTR] = {"getattr", COOP_ST_CRED | COOP_ST_FH, COOP_ST_ATTR, false},
	[COOP_ST_SETATTR] = {"setattr",
			     COOP_ST_CRED | COOP_ST_FH | COOP_ST_OPEN_ID | COOP_ST_SETATTR_F,
			     UNSTABLE, true},
	[COOP_ST_OPEN] = {"open",
			  COOP_ST_CRED | COOP_ST_FH | COOP_ST_OPEN_ID | COOP_ST_COUNT |
				  COOP_ST_FLAGS,
			  OPENED, true},
	[COOP_ST_CREATE] = {"create", IN_DIR | COOP_ST_OPEN_ID | COOP_ST_FLAGS | COOP_ST_MODE,
			    COOP_ST_FH | OPENED | COOP_ST_DIR_ATTR, true},
	[COOP_ST_CLOSE] = {"close", COOP_ST_FH | COOP_ST_OPEN_ID, CHANGED, true},
	[COOP_ST_READ] = {"read", READ_RANGE, READ_FOUND, false},
	[COOP_ST_CHECK] = {"check", COOP_ST_FH | COOP_ST_OPEN_ID | COOP_ST_DATA_VERSION, READ_FOUND,
			   false},
	[COOP_ST_WRITE] = {"write", OPEN_FILE | COOP_ST_OFFSET | COOP_ST_FLAGS,
			   UNSTABLE | COOP_ST_FLAGS, true},
	[COOP_ST_COMMIT] = {"commit", COOP_ST_FH | COOP_ST_OPEN_ID, UNSTABLE, false},
	[COOP_ST_MKDIR] = {"mkdir", IN_DIR | COOP_ST_MODE, MADE, true},
	[COOP_ST_UNLINK] = {"unlink", IN_DIR, COOP_ST_DIR_ATTR, true},
	[COOP_ST_RMDIR] = {"rmdir", IN_DIR, COOP_ST_DIR_ATTR, true},
	[COOP_ST_RENAME] = {"rename", IN_DIR | COOP_ST_FH2 | COOP_ST_NAME2 | COOP_ST_FLAGS, 0,
			    true},
	[COOP_ST_LINK] = {"link", IN_DIR | COOP_ST_FH2, MADE, true},
	[COOP_ST_SYMLINK] = {"symlink", IN_DIR | COOP_ST_TEXT, MADE, true},
	[COOP_ST_READLINK] = {"readlink", COOP_ST_CRED | COOP_ST_FH, COOP_ST_TEXT, false},
	[COOP_ST_READDIR] = {"readdir", COOP_ST_CRED | COOP_ST_FH | COOP_ST_COUNT | COOP_ST_COOKIE,
			     COOP_ST_FLAGS, false},
	[COOP_ST_STATFS] = {"statfs", COOP_ST_CRED | COOP_ST_FH, COOP_ST_STATFS_F, false},
	[COOP_ST_NODE] = {"node", 0, COOP_ST_FLAGS | COOP_ST_ADDR | COOP_ST_NODE_ID, false},
	[COOP_ST_ACCESS] = {"access", COOP_ST_CRED | COOP_ST_FH | COOP_ST_MODE,
			    COOP_ST_MODE | COOP_ST_ATTR, false},
	[COOP_ST_MKNOD] = {"mknod", IN_DIR | COOP_ST_MODE | COOP_ST_RDEV, MADE, true},
	[COOP_ST_GETXATTR] = {"getxattr", IN_DIR | COOP_ST_COUNT, COOP_ST_SIZE, false},
	[COOP_ST_SETXATTR] = {"setxattr", IN_DIR | COOP_ST_FLAGS, UNSTABLE, true},
	[COOP_ST_LISTXATTR] = {"listxattr", COOP_ST_CRED | COOP_ST_FH | COOP_ST_COUNT, COOP_ST_SIZE,
			       false},
	[COOP_ST_REMOVEXATTR] = {"removexattr", IN_DIR, UNSTABLE, true},
	[COOP_ST_FALLOCATE] = {"fallocate", OPEN_FILE | COOP_ST_OFFSET | RANGE, UNSTABLE, true},
	[COOP_ST_SEEK] = {"seek", OPEN_FILE | COOP_ST_OFFSET | COOP_ST_FLAGS, COOP_ST_OFFSET,
			  false},
	[COOP_ST_COPY] = {"copy",
			  OPEN_FILE | COOP_ST_OFFSET | RANGE | COOP_ST_FH2 | COOP_ST_OPEN_ID2 |
				  COOP_ST_OFFSET2,
			  UNSTABLE | COOP_ST_LENGTH, true},
	[COOP_ST_TMPFILE] = {"tmpfile",
			     COOP_ST_CRED | COOP_ST_FH | COOP_ST_OPEN_ID | COOP_ST_FLAGS |
				     COOP_ST_MODE,
			     COOP_ST_FH | OPENED, true},
	[COOP_ST_LOCK] = {"lock", OPEN_FILE | COOP_ST_LOCK_F | COOP_ST_FLAGS | COOP_ST_COOKIE,
			  COOP_ST_FLAGS | COOP_ST_ATTR, true},
	[COOP_ST_LOCK_TEST] = {"lock_test", OPEN_FILE | COOP_ST_LOCK_F, COOP_ST_LOCK_F, false},
	[COOP_ST_UNLOCK] = {"unlock", OPEN_FILE | COOP_ST_LOCK_F | COOP_ST_COOKIE, COOP_ST_FLAGS,
			    true},
	[COOP_ST_LOCK_GRANTED] = {"lock_granted", 0, COOP_ST_OPEN_ID | COOP_ST_COOKIE, false},
	[COOP_ST_RECLAIMED] = {"reclaimed", 0, 0, true},
	[COOP_ST_LEASE_RECALL] = {"lease_recall", 0, COOP_ST_FID_F, false},
	[COOP_ST_LEASE_RETURN] = {"lease_return", COOP_ST_FID_F, 0, true},
	[COOP_ST_ROLES] = {"roles", 0, COOP_ST_FID_F | COOP_ST_DATA_VERSION | COOP_ST_ROLES_F,
			   false},
	[COOP_ST_READ_SHARED] = {"read_shared", READ_RANGE | COOP_ST_FLAGS,
				 READ_FOUND | COOP_ST_NODES, false},
	[COOP_ST_READ_CHAINED] = {"read_chained", READ_RANGE | COOP_ST_FLAGS,
				  READ_FOUND | COOP_ST_NODES | COOP_ST_FLAGS, false},
	[COOP_ST_JOIN] = {"join", COOP_ST_ADDR | COOP_ST_FLAGS | COOP_ST_COUNT, COOP_ST_NODE_ID,
			  false},
	[COOP_ST_BUNDLE] = {"bundle",
			    COOP_ST_CRED | COOP_ST_FH | COOP_ST_OPEN_ID | COOP_ST_COUNT |
				    COOP_ST_FLAGS,
			    COOP_ST_PROOF_F | COOP_ST_FID_F | READ_FOUND | COOP_ST_NODES |
				    COOP_ST_FLAGS,
			    false},
	[COOP_ST_RUN] = {"run", COOP_ST_FLAGS, COOP_ST_NONCE_F | COOP_ST_VERIFIER, false},
	[COOP_ST_LEAVE] = {"leave", 0, 0, false},
};

bool coop_st_op_known(u16 op)
{
	return op < COOP_ST_OP_END && forms[op].name;
}

u16 coop_st_op_since(u16 op)
{
	if (op < COOP_ST_ROLES)
		return COOP_ST_VERSION_MIN;
	if (op < COOP_ST_JOIN)
		return COOP_ST_VERSION_ROLES;
	return op < COOP_ST_RUN ? COOP_ST_VERSION_JOIN : COOP_ST_VERSION;
}

bool coop_st_op_is_push(u16 op)
{
	return op == COOP_ST_NODE || op == COOP_ST_LOCK_GRANTED || op == COOP_ST_LEASE_RECALL ||
	       op == COOP_ST_ROLES;
}

u64 coop_st_request_fields(u16 op)
{
	return coop_st_op_known(op) ? forms[op].request : 0;
}

u64 coop_st_reply_fields(u16 op)
{
	return coop_st_op_known(op) ? forms[op].reply : 0;
}

bool coop_st_op_changes(u16 op)
{
	return coop_st_op_known(op) && forms[op].changes;
}

u32 coop_st_request_data_max(u16 op)
{
	switch (op) {
	case COOP_ST_WRITE:
		return COOP_ST_IO_MAX;
	case COOP_ST_SETXATTR:
		return COOP_ST_XATTR_MAX;
	default:
		return 0;
	}
}

const char *coop_st_op_name(u16 op)
{
	return coop_st_op_known(op) ? forms[op].name : "unknown";
}
