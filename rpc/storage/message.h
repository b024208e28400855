/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * message.h - the storage protocol's messages: a client's requests to the
 * storage daemon, its replies and its pushes.
 *
 * A message is a fixed header, a body and data. One table (message.c) defines
 * the bodies: for every operation a set of fields for the request and one for
 * the reply. Fields are laid out in the order of their bits. One encoder and one
 * decoder walk the set, so lengths are checked in one place and no operation
 * can forget it.
 *
 * The decoder trusts nothing: a named limit and the bytes left bound every
 * length, a body must be used up exactly, and reserved bits must be zero. Byte
 * strings point into the caller's buffer. STORAGE.md has the meaning.
 */
#ifndef COOP_STORE_H
#define COOP_STORE_H

#include "rpc/base/types.h"
#include "rpc/storage/forest.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_ST_MAGIC         0x53504f43u /* "COPS" */
#define COOP_ST_VERSION       10
#define COOP_ST_VERSION_MIN   7          /* without ROLES and READ_SHARED */
#define COOP_ST_VERSION_ROLES 8          /* the first with them */
#define COOP_ST_VERSION_JOIN  9          /* the first with JOIN, READ_CHAINED and BUNDLE */
#define COOP_ST_VERSION_NAMED 10         /* the first with flag NAMED of OPEN */
#define COOP_ST_COMMIT_ALL    (~0ull)    /* open id of a COMMIT of all that the export holds */
#define COOP_ST_HEADER        32         /* bytes */
#define COOP_ST_TAIL          16         /* bytes after a streamed READ's data */
#define COOP_ST_BODY_MAX      8192       /* bytes of a body */
#define COOP_ST_IO_MAX        (1u << 20) /* bytes of one READ or WRITE, and of any data */
#define COOP_ST_COPY_MAX      (1u << 24) /* bytes that one COPY copies; clones have no limit */
#define COOP_ST_FH_MAX        128        /* bytes of a handle */
#define COOP_ST_NAME_MAX      255        /* bytes of a name, of a file or of an attribute */
#define COOP_ST_XATTR_MAX     65536      /* bytes of an extended attribute, or of all names */
#define COOP_ST_TEXT_MAX      4095       /* bytes of a link's target or an export's name */
#define COOP_ST_GROUPS_MAX    256        /* supplementary groups of a caller */
#define COOP_ST_NONCE         32         /* bytes */
#define COOP_ST_PROOF         32         /* bytes: HMAC-SHA256 */
#define COOP_ST_SESSION       16         /* bytes */
#define COOP_ST_INLINE_MAX    65536      /* bytes of a file that an open reply may carry */
#define COOP_ST_REQUESTS_MAX  128        /* requests in flight a connection */
#define COOP_ST_HOLDERS_MAX   4          /* nodes that a reply to READ_SHARED names */
/*
 * How long a client relies on a lease, or on a lock, after it sent the last request that was
 * answered. The daemon waits longer, since the last input that it had.
 */
#define COOP_ST_LEASE_TRUST_MS 10000
#define COOP_ST_SILENCE_MS     (COOP_ST_LEASE_TRUST_MS + 5000)

enum coop_st_op {
	COOP_ST_HELLO = 1, /* handshake: client's nonce, session, export */
	COOP_ST_PROOF_OP,  /* handshake: client's proof; the reply completes it */
	COOP_ST_REGISTER,  /* this connection's node address */
	COOP_ST_BYE,       /* ends the session */
	COOP_ST_PING,
	COOP_ST_STATS, /* daemon's counters as text in the data */
	COOP_ST_LOOKUP,
	COOP_ST_GETATTR,
	COOP_ST_SETATTR,
	COOP_ST_OPEN,
	COOP_ST_CREATE,
	COOP_ST_CLOSE,
	COOP_ST_READ,
	COOP_ST_CHECK, /* does the file still have this version? */
	COOP_ST_WRITE,
	COOP_ST_COMMIT,
	COOP_ST_MKDIR,
	COOP_ST_UNLINK,
	COOP_ST_RMDIR,
	COOP_ST_RENAME,
	COOP_ST_LINK,
	COOP_ST_SYMLINK,
	COOP_ST_READLINK,
	COOP_ST_READDIR,
	COOP_ST_STATFS,
	COOP_ST_NODE,   /* push: a node joined or left */
	COOP_ST_ACCESS, /* which rights does the caller have on the file? */
	COOP_ST_MKNOD,
	COOP_ST_GETXATTR,
	COOP_ST_SETXATTR, /* the value is the request's data */
	COOP_ST_LISTXATTR,
	COOP_ST_REMOVEXATTR,
	COOP_ST_FALLOCATE,
	COOP_ST_SEEK,    /* the next data or hole */
	COOP_ST_COPY,    /* bytes from one open file to another, by the daemon */
	COOP_ST_TMPFILE, /* a file without a name, opened */
	COOP_ST_LOCK,
	COOP_ST_LOCK_TEST,
	COOP_ST_UNLOCK,
	COOP_ST_LOCK_GRANTED, /* push: a queued lock is now held */
	COOP_ST_RECLAIMED,    /* the client has reclaimed all locks from before the restart */
	COOP_ST_LEASE_RECALL, /* push: a file is about to change, or has changed */
	COOP_ST_LEASE_RETURN, /* the client no longer relies on a lease, or on any */
	COOP_ST_ROLES,        /* push: the client's place among the members of a file */
	COOP_ST_READ_SHARED,  /* READ whose reply may name nodes instead of sending bytes */
	COOP_ST_JOIN,         /* REGISTER, and what the node can do for others */
	COOP_ST_READ_CHAINED, /* READ_SHARED; the reply has the level of the load that follows */
	COOP_ST_BUNDLE,       /* opens a bundle of a directory, with leases of what is in it */
	COOP_ST_RUN,          /* what this run of the daemon has for a client that it let in */
	COOP_ST_LEAVE,        /* this connection's node has left the fabric */
	COOP_ST_OP_END,
};

enum coop_st_flag { /* of the header */
		    COOP_ST_F_REPLY = 1,
		    COOP_ST_F_STREAM =
			    2, /* reply of READ: a tail follows the data, and CHECK must follow */
		    COOP_ST_F_REPEAT = 4, /* request: sent before, on a connection that was lost */
		    COOP_ST_F_LEASE = 8,  /* request: asks for leases of the files in the reply */
		    COOP_ST_F_SHARED_DIR = 16, /* reply: others use the directory looked in */
};

/* Fields of a body, laid out in this order. A set of them takes 64 bits. */
enum coop_st_field {
	COOP_ST_NONCE_F = 1ull << 0,
	COOP_ST_PROOF_F = 1ull << 1,
	COOP_ST_SESSION_F = 1ull << 2,
	COOP_ST_VERSIONS =
		1ull << 3, /* lowest, highest protocol version; reply: both the chosen one */
	COOP_ST_CRED = 1ull << 4,
	COOP_ST_FH = 1ull << 5,
	COOP_ST_FH2 = 1ull << 6,
	COOP_ST_NAME = 1ull << 7,
	COOP_ST_NAME2 = 1ull << 8,
	COOP_ST_TEXT = 1ull << 9,
	COOP_ST_OPEN_ID = 1ull << 10,
	COOP_ST_OFFSET = 1ull << 11,
	COOP_ST_COUNT = 1ull << 12,
	COOP_ST_DATA_VERSION = 1ull << 13,
	COOP_ST_BEFORE = 1ull << 14, /* data version before the change */
	COOP_ST_FLAGS = 1ull << 15,
	COOP_ST_MODE = 1ull << 16,
	COOP_ST_SETATTR_F = 1ull << 17,
	COOP_ST_ATTR = 1ull << 18,
	COOP_ST_NODES = 1ull << 19,
	COOP_ST_ADDR = 1ull << 20,
	COOP_ST_NODE_ID = 1ull << 21,
	COOP_ST_COOKIE = 1ull << 22,
	COOP_ST_STATFS_F = 1ull << 23,
	COOP_ST_SIZE = 1ull << 24,
	COOP_ST_VERIFIER = 1ull << 25, /* of changes that are not on stable storage yet */
	COOP_ST_LENGTH = 1ull << 26,   /* bytes of a range */
	COOP_ST_OPEN_ID2 = 1ull << 27, /* COPY: the open file to write to */
	COOP_ST_OFFSET2 = 1ull << 28,
	COOP_ST_RDEV = 1ull << 29, /* major number in the upper 32 bits, minor in the lower */
	COOP_ST_LOCK_F = 1ull << 30,
	COOP_ST_FID_F = 1ull << 31,    /* a file; zero: all files */
	COOP_ST_DIR_ATTR = 1ull << 32, /* of the changed directory, after the change */
	COOP_ST_ROLES_F = 1ull << 33,
};

/* 'flags' of OPEN, CREATE and TMPFILE. We define our own numbers, because Linux numbers differ
 * between architectures. */
enum coop_st_open_flag {
	COOP_ST_O_READ = 1,
	COOP_ST_O_WRITE = 2,
	COOP_ST_O_TRUNC = 4,
	COOP_ST_O_APPEND = 8,
	COOP_ST_O_EXCL = 16,
	COOP_ST_O_AGAIN = 32,  /* opened again in a new session: no truncation, no inline data */
	COOP_ST_O_EXEC = 64,   /* for execution: needs the right to execute instead of to read */
	COOP_ST_O_NAMED = 128, /* ESTALE if the file has no name; since version 10 */
	COOP_ST_O_ALL = 255,
};

enum coop_st_read_flag {                                /* 'flags' of both; 0: as READ */
			 COOP_ST_READ_MAY_REDIRECT = 1, /* may be answered with nodes */
			 COOP_ST_READ_INSIST = 2,       /* the nodes did not help */
			 COOP_ST_READ_ALL = 3,
};

enum coop_st_join_flag {                         /* 'flags' of JOIN */
			 COOP_ST_JOIN_LEAF = 1,  /* loads nothing for other nodes */
			 COOP_ST_JOIN_NAMED = 2, /* of many nodes it needs only those named to it */
			 COOP_ST_JOIN_ALL = 3,
};

enum coop_st_run_flag {                        /* 'flags' of RUN */
			COOP_ST_RUN_PLAIN = 1, /* no roles, no reads redirected to it, no bundles */
			COOP_ST_RUN_LAPSES = 2, /* its locks lapse if it is silent */
			COOP_ST_RUN_ALL = 3,
};

enum coop_st_bundle_flag {
	COOP_ST_B_SUBTREE = 1,  /* with the directories below it, in parts */
	COOP_ST_B_AT_NODES = 2, /* contents that nodes have stay there; reply: so it is */
	COOP_ST_B_ALL = 3,
	COOP_ST_B_MORE = 1, /* reply: there is a next part */
};

enum coop_st_write_flag {
	/*
	 * Request: write to stable storage, as if a COMMIT followed. Reply: all bytes are there;
	 * a reply without the flag is that of an ordinary WRITE.
	 */
	COOP_ST_WRITE_STABLE = 1,
};

/* 'flags' of FALLOCATE, combined as in fallocate(2); 0: allocate. */
enum coop_st_fallocate {
	COOP_ST_FA_KEEP_SIZE = 1,
	COOP_ST_FA_PUNCH = 2,
	COOP_ST_FA_ZERO = 4,
	COOP_ST_FA_COLLAPSE = 8,
	COOP_ST_FA_INSERT = 16,
	COOP_ST_FA_UNSHARE = 32,
	COOP_ST_FA_ALL = 63,
};

enum coop_st_seek { /* 'flags' of SEEK */
		    COOP_ST_SEEK_DATA = 1,
		    COOP_ST_SEEK_HOLE = 2,
};

enum coop_st_copy_flag {
	COOP_ST_COPY_CLONE = 1, /* share all blocks, or fail */
};

enum coop_st_xattr_flag { /* 'flags' of SETXATTR, as setxattr(2) has them */
			  COOP_ST_X_CREATE = 1,
			  COOP_ST_X_REPLACE = 2,
};

/*
 * What a file has in addition to its attributes, sent with them: a client that knows that there is
 * none need not ask. Otherwise it would ask before each write for a capability to remove.
 */
enum coop_st_has {
	COOP_ST_HAS_XATTR = 1, /* extended attributes of any kind */
	COOP_ST_HAS_ACL = 2,
	COOP_ST_HAS_DEFAULT_ACL = 4,
	COOP_ST_HAS_CAPABILITY = 8, /* security.capability */
	COOP_ST_HAS_XATTRS = 0x000f,
	COOP_ST_HAS_ASK_OPEN = 0x1000, /* OPEN's reply: the lease does not cover opens */
	COOP_ST_HAS_NO_NAMES = 0x2000, /* MKDIR's reply: the directory is empty under its lease */
	COOP_ST_HAS_BTIME = 0x4000,    /* its file system stores the time of birth */
	COOP_ST_HAS_LEASE = 0x8000,    /* the client has a lease of the file: see STORAGE.md */
	COOP_ST_HAS_ALL = 0xf00f,
};

/*
 * How the export's file system treats a file, with the numbers of STATX_ATTR_* of statx(2). The
 * other STATX_ATTR_* describe a mount, and each client has its own.
 */
enum coop_st_trait {
	COOP_ST_TRAIT_COMPRESSED = 0x4,
	COOP_ST_TRAIT_IMMUTABLE = 0x10,
	COOP_ST_TRAIT_APPEND = 0x20,
	COOP_ST_TRAIT_NODUMP = 0x40,
	COOP_ST_TRAIT_ENCRYPTED = 0x800,
	COOP_ST_TRAIT_VERITY = 0x100000,
	COOP_ST_TRAIT_ALL = 0x100874,
};

enum coop_st_rename_flag {
	COOP_ST_R_NOREPLACE = 1,
	COOP_ST_R_EXCHANGE = 2,
};

enum coop_st_welcome_flag {
	COOP_ST_W_NEW_SESSION = 1, /* the daemon did not know the session: open files again */
	COOP_ST_W_KEYED = 2,       /* HELLO's reply: carries a proof and requires one */
};

enum coop_st_set {
	COOP_ST_SET_MODE = 1,
	COOP_ST_SET_UID = 2,
	COOP_ST_SET_GID = 4,
	COOP_ST_SET_SIZE = 8,
	COOP_ST_SET_ATIME = 16,
	COOP_ST_SET_MTIME = 32,
	COOP_ST_SET_ATIME_NOW = 64,
	COOP_ST_SET_MTIME_NOW = 128,
	COOP_ST_SET_KILL_ID = 256, /* clear set-id bits as a write does; needs the right to write */
	COOP_ST_SET_ALL = 511,
};

/*
 * 'mode' of a request that makes a file: the caller's mode (with the type for MKNOD), and in the
 * upper bits the caller's umask. The export's file system decides whether the umask applies: in a
 * directory with a default ACL it does not.
 */
#define COOP_ST_UMASK_SHIFT 16

static inline u32 coop_st_mode(u32 mode, u32 umask)
{
	return (mode & 0xffff) | (umask & 0777) << COOP_ST_UMASK_SHIFT;
}

static inline u32 coop_st_umask(u32 mode)
{
	return mode >> COOP_ST_UMASK_SHIFT & 0777;
}

struct coop_st_header {
	u16 op;
	u16 flags;
	u32 body_len;
	u32 data_len;
	u32 status; /* reply: 0 or a Linux errno, positive */
	u64 id;     /* of the request; 0: a push */
};

struct coop_st_bytes {
	const u8 *p;
	u32 len;
};

struct coop_st_cred {
	u32 uid, gid;
	u32 n_groups;
	u32 groups[COOP_ST_GROUPS_MAX];
};

struct coop_st_time {
	s64 sec;
	u32 nsec;
};

struct coop_st_attr {
	struct coop_fid fid;
	u64 version;
	u64 ino, size, blocks, rdev;
	u32 mode, nlink, uid, gid, blksize;
	struct coop_st_time atime, mtime, ctime;
	struct coop_st_time btime; /* zero without COOP_ST_HAS_BTIME */
	u32 has;                   /* enum coop_st_has; on the wire above the mode's 16 bits */
	u32 traits, traits_known;  /* enum coop_st_trait; known: those its file system supports */
};

struct coop_st_setattr {
	u32 valid, mode, uid, gid;
	u64 size;
	struct coop_st_time atime, mtime;
};

/* A lock of a byte range, or of a whole file. Its owner is the session and 'owner' together. */
struct coop_st_lock {
	u64 owner;      /* chosen by the client: one process or open file description */
	u64 start, end; /* first and last byte; end ~0: to the end of the file, however it grows */
	u32 kind;       /* enum coop_st_lock_kind */
	u32 type;       /* enum coop_st_lock_type */
	u32 pid;        /* on the client's machine, for display */
};

enum coop_st_lock_kind {
	COOP_ST_LOCK_POSIX, /* fcntl(2): byte ranges of a process */
	COOP_ST_LOCK_OFD,   /* fcntl(2): byte ranges of an open file description */
	COOP_ST_LOCK_FLOCK, /* flock(2): the whole file, of an open file description */
	COOP_ST_LOCK_KINDS,
};

enum coop_st_lock_type {
	COOP_ST_LOCK_NONE,
	COOP_ST_LOCK_READ,
	COOP_ST_LOCK_WRITE,
	COOP_ST_LOCK_TYPES,
};

enum coop_st_lock_flag {                        /* of LOCK's request */
			 COOP_ST_L_WAIT = 1,    /* queue it if it conflicts now */
			 COOP_ST_L_RECLAIM = 2, /* it was held before the daemon's restart */
};

enum coop_st_lock_result { /* flags of LOCK's reply */
			   COOP_ST_LOCK_HELD,
			   COOP_ST_LOCK_QUEUED, /* LOCK_GRANTED will follow */
			   COOP_ST_LOCK_CONFLICT,
};

/* A member's parents in the tree of one colour. Ids are those of NODE; 0: none. */
struct coop_st_parents {
	u32 parent;    /* 0: the member is the root */
	u32 alternate; /* to be asked if the parent fails */
	u32 level;     /* see forest.h */
};

/* A client's place in the forest of one version of a file: see STORAGE.md. */
struct coop_st_roles {
	u32 members;   /* when this was sent */
	u32 index;     /* the client's own */
	u32 n_colours; /* COOP_FOREST_COLOURS; 0: it is the only member */
	struct coop_st_parents colours[COOP_FOREST_COLOURS];
};

struct coop_st_statfs {
	u64 blocks, bfree, bavail, files, ffree;
	u32 bsize, frsize, namelen;
};

/* A decoded body: the fields that the operation's set names, the others zero. */
struct coop_st_body {
	u8 nonce[COOP_ST_NONCE];
	u8 proof[COOP_ST_PROOF];
	u8 session[COOP_ST_SESSION];
	u16 version_min, version_max;
	union { /* no message has both */
		struct coop_st_cred cred;
		struct coop_st_roles roles;
	};
	struct coop_st_bytes fh, fh2, name, name2, text;
	u64 open_id, open_id2, offset, offset2, length, version, before, cookie, size, verifier;
	u64 rdev;
	u32 count, flags, mode, node_id;
	struct coop_st_setattr set;
	struct coop_st_attr attr, dir; /* dir: mode 0 if the daemon did not send attributes */
	u32 n_nodes;
	u32 nodes[COOP_MAX_HINTS];
	struct coop_addr addr;
	struct coop_st_statfs statfs;
	struct coop_st_lock lock;
	struct coop_fid fid;
};

/* Field sets; 0 for an unknown operation or one without a body. */
u64 coop_st_request_fields(u16 op);
u64 coop_st_reply_fields(u16 op);
bool coop_st_op_known(u16 op);
/* The first version of the protocol that has the operation. */
u16 coop_st_op_since(u16 op);
/* A message that the daemon sends unasked. */
bool coop_st_op_is_push(u16 op);
/* True if a second or a late execution could do harm; the daemon remembers the replies. */
bool coop_st_op_changes(u16 op);
/* Most bytes of data that a request of this operation may carry. */
u32 coop_st_request_data_max(u16 op);
const char *coop_st_op_name(u16 op);

void coop_st_header_put(const struct coop_st_header *h, u8 *buf);
/* -EPROTO: wrong magic or reserved bits set; -EMSGSIZE: a length over its limit. */
int coop_st_header_get(struct coop_st_header *h, const u8 *buf);

/*
 * Splits a client's incoming stream into parts, for receivers that place data
 * directly as they arrive. Take 'want' bytes of 'part', then ask for the next
 * part; empty parts are skipped. BODY and DATA may be taken in any pieces. From
 * BODY on, 'head' has id, data length and status. The body precedes the data.
 */
enum coop_st_part {
	COOP_ST_PART_HEADER,
	COOP_ST_PART_BODY,
	COOP_ST_PART_DATA,
	COOP_ST_PART_TAIL, /* of a streamed READ: coop_st_tail_get() */
};

struct coop_st_incoming {
	struct coop_st_header head;
	u32 part; /* enum coop_st_part */
	u32 want; /* bytes of the part, never 0 */
};

void coop_st_incoming_init(struct coop_st_incoming *in);
/*
 * The wanted bytes have arrived; 'header' is read only if they are a header.
 * 1: they completed the message 'head', and 'in' wants the next header; 0: more
 * of the message follows. -EPROTO, -EMSGSIZE: end the connection.
 */
int coop_st_incoming_next(struct coop_st_incoming *in, const u8 *header);

void coop_st_tail_put(u32 status, u64 version, u8 *buf);
int coop_st_tail_get(u32 *status, u64 *version, const u8 *buf);

/* Bytes written, or -EMSGSIZE: no room or a field over its limit. */
int coop_st_body_put(const struct coop_st_body *b, u64 fields, u8 *buf, u32 cap);
/* 0, or -EPROTO: truncated, over a limit, a bad value, or bytes left over. */
int coop_st_body_get(struct coop_st_body *b, u64 fields, const u8 *buf, u32 len);

/* A directory's entries are bodies with these fields, each preceded by its 32-bit length. */
#define COOP_ST_DIRENT_FIELDS (COOP_ST_FH | COOP_ST_NAME | COOP_ST_ATTR | COOP_ST_COOKIE)
int coop_st_dirent_put(const struct coop_st_body *b, u8 *buf, u32 cap);
/* Bytes taken, 0 at the end, or -EPROTO. */
int coop_st_dirent_get(struct coop_st_body *b, const u8 *buf, u32 len);

#ifdef __cplusplus
}
#endif

#endif /* COOP_STORE_H */
