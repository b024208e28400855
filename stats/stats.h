/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * stats.h - a mount's counters: sources of its reads, events of its queue pairs.
 *
 * Each CPU has its own set, and the sets are added up only when a program reads
 * /proc/fs/coopfs/<id>/stats. So counting costs a local increment on the data
 * path. The sum is not a snapshot of one moment across CPUs. The names of the
 * counters are in stats.c.
 */
#ifndef COOP_PROC_STATS_H
#define COOP_PROC_STATS_H

#include <linux/percpu.h>
#include <linux/types.h>

/* The source of bytes that a reader got; each byte is counted once. */
enum coop_source {
	COOP_FROM_BUFFER,  /* this node's page cache */
	COOP_FROM_PEER,    /* another node's page cache */
	COOP_FROM_STORAGE, /* the storage daemon */
	COOP_SOURCES
};

#define COOP_LATENCY_BUCKETS 32 /* bucket i: took < 2^i microseconds */

enum coop_counter {
	/* reads */
	COOP_C_PEER_FALLBACK_PAGES, /* asked of peers, delivered by storage */
	COOP_C_RELAYED_PAGES,       /* loaded because a peer waited for them */
	COOP_C_REDIRECTED_PAGES,    /* for which storage named nodes in place of bytes */
	COOP_C_READAHEAD_PAGES,
	COOP_C_STALE_READS, /* the version changed during a read */
	COOP_C_READ_ERRORS,
	/* storage connection */
	COOP_C_STORAGE_RX_BYTES,
	COOP_C_STORAGE_TX_BYTES,
	COOP_C_STORAGE_RX_DATA, /* file data among the received bytes */
	COOP_C_STORAGE_CALLS,
	COOP_C_STORAGE_RECONNECTS,
	COOP_C_STORAGE_REPEATS,       /* requests sent again after a reconnect */
	COOP_C_STORAGE_WRITTEN_AGAIN, /* WRITEs repeated because storage had lost them */
	COOP_C_STORAGE_BAD_REPLIES,   /* replies that broke the protocol and ended the connection */
	/* leases: requests answered without storage */
	COOP_C_LEASE_RECALLS, /* recalls from the daemon */
	COOP_C_LEASE_LOOKUPS,
	COOP_C_LEASE_ATTRIBUTES,
	COOP_C_LEASE_OPENS,
	COOP_C_LEASE_LISTINGS,
	COOP_C_BUNDLES_ASKED,
	COOP_C_BUNDLES,       /* those that were of use */
	COOP_C_BUNDLED_FILES, /* whose contents were in them */
	/* peers, on the wire */
	COOP_C_PEER_RX_BYTES,
	COOP_C_PEER_TX_BYTES,
	/* queue pairs and their resources */
	COOP_C_RECV_POSTED,
	COOP_C_RECV_COMPLETED,
	COOP_C_RECV_FLUSHED,
	COOP_C_SEND_POSTED,
	COOP_C_SEND_COMPLETED,
	COOP_C_SEND_ERRORS,
	COOP_C_QP_STOPS,    /* fetch QPs sent to ERR to quiesce (rule 2) */
	COOP_C_QP_RECYCLED, /* QPs recovered that went to ERR by themselves (rule 9) */
	COOP_C_AH_CREATED,
	COOP_C_AH_FAILED,
	COOP_C_AH_WAITED,    /* datagrams that waited for an address handle */
	COOP_C_CTRL_DROPPED, /* control datagrams without a buffer or handle */
	COOP_C_CQ_ERRORS,
	COOP_C_COPIED_BYTES,       /* received bytes copied: ib_copy, and displaced segments */
	COOP_C_SERVE_COPIED_BYTES, /* bytes that small serves copied to send them */
	COOP_C_DEVICE_REMOVALS,
	COOP_COUNTERS
};

struct coop_stats_block {
	u64 requests[COOP_SOURCES];
	u64 pages[COOP_SOURCES];
	u64 bytes[COOP_SOURCES];
	u64 latency[COOP_SOURCES][COOP_LATENCY_BUCKETS];
	u64 count[COOP_COUNTERS];
};

struct coop_stats {
	struct coop_stats_block __percpu *cpu;
};

/**
 * coop_stats_init - allocate zeroed counters
 * @stats: the mount's
 * Context: may sleep. Return: 0 or -ENOMEM.
 */
int coop_stats_init(struct coop_stats *stats);
void coop_stats_free(struct coop_stats *stats);

/* Any context. */
static inline void coop_count(struct coop_stats *stats, enum coop_counter c, u64 n)
{
	this_cpu_add(stats->cpu->count[c], n);
}

/* Any context. Pages and bytes handed to a reader. */
void coop_count_source(struct coop_stats *stats, enum coop_source from, u64 pages, u64 bytes);
/* Any context. A request that took us microseconds, counted at its slowest source. */
void coop_count_request(struct coop_stats *stats, enum coop_source slowest, u64 us);

/* Adds all CPUs up. Any context. */
void coop_stats_sum(const struct coop_stats *stats, struct coop_stats_block *sum);
/* A concurrent increment may be lost or kept. */
void coop_stats_reset(struct coop_stats *stats);

/*
 * A line of the stats file is "kind name value". NULL: the counter appears in a line of another
 * form (traffic).
 */
const char *coop_counter_kind(enum coop_counter c);
const char *coop_counter_name(enum coop_counter c);

#endif /* COOP_PROC_STATS_H */
