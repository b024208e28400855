// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * stats.c - per-CPU counters, and their names in the stats file.
 *
 * Key names are a contract with scripts, and the same as in the FUSE variant
 * where both count the same thing: new keys may be added, none is renamed.
 */
#include "stats/stats.h"

#include <linux/log2.h>

static const struct coop_counter_text {
	const char *kind;
	const char *name;
} counter_text[COOP_COUNTERS] = {
	[COOP_C_PEER_FALLBACK_PAGES] = {"read", "peer_fallback_pages"},
	[COOP_C_RELAYED_PAGES] = {"read", "relayed_pages"},
	[COOP_C_REDIRECTED_PAGES] = {"read", "redirected_pages"},
	[COOP_C_READAHEAD_PAGES] = {"read", "readahead_pages"},
	[COOP_C_STALE_READS] = {"read", "stale_reads"},
	[COOP_C_READ_ERRORS] = {"read", "errors"},
	[COOP_C_COPIED_BYTES] = {"read", "copied_bytes"},
	[COOP_C_SERVE_COPIED_BYTES] = {"serve", "copied_bytes"},
	[COOP_C_STORAGE_RX_DATA] = {"storage", "rx_data_bytes"},
	[COOP_C_STORAGE_CALLS] = {"storage", "calls"},
	[COOP_C_STORAGE_RECONNECTS] = {"storage", "reconnects"},
	[COOP_C_STORAGE_REPEATS] = {"storage", "repeats"},
	[COOP_C_STORAGE_WRITTEN_AGAIN] = {"storage", "written_again"},
	[COOP_C_STORAGE_BAD_REPLIES] = {"storage", "bad_replies"},
	[COOP_C_LEASE_RECALLS] = {"lease", "recalls"},
	[COOP_C_LEASE_LOOKUPS] = {"lease", "lookups"},
	[COOP_C_LEASE_ATTRIBUTES] = {"lease", "attributes"},
	[COOP_C_LEASE_OPENS] = {"lease", "opens"},
	[COOP_C_LEASE_LISTINGS] = {"lease", "listings"},
	[COOP_C_BUNDLES_ASKED] = {"lease", "bundles_asked"},
	[COOP_C_BUNDLES] = {"lease", "bundles"},
	[COOP_C_BUNDLED_FILES] = {"lease", "bundled_files"},
	[COOP_C_RECV_POSTED] = {"endpoint", "recv_posted"},
	[COOP_C_RECV_COMPLETED] = {"endpoint", "recv_completed"},
	[COOP_C_RECV_FLUSHED] = {"endpoint", "recv_flushed"},
	[COOP_C_SEND_POSTED] = {"endpoint", "send_posted"},
	[COOP_C_SEND_COMPLETED] = {"endpoint", "send_completed"},
	[COOP_C_SEND_ERRORS] = {"endpoint", "send_errors"},
	[COOP_C_QP_STOPS] = {"endpoint", "qp_stops"},
	[COOP_C_QP_RECYCLED] = {"endpoint", "qp_recycled"},
	[COOP_C_AH_CREATED] = {"endpoint", "ah_created"},
	[COOP_C_AH_FAILED] = {"endpoint", "ah_failed"},
	[COOP_C_AH_WAITED] = {"endpoint", "ah_waited"},
	[COOP_C_CTRL_DROPPED] = {"endpoint", "ctrl_dropped"},
	[COOP_C_CQ_ERRORS] = {"endpoint", "cq_errors"},
	[COOP_C_DEVICE_REMOVALS] = {"endpoint", "device_removals"},
};

const char *coop_counter_kind(enum coop_counter c)
{
	return counter_text[c].kind;
}

const char *coop_counter_name(enum coop_counter c)
{
	return counter_text[c].name;
}

int coop_stats_init(struct coop_stats *stats)
{
	stats->cpu = alloc_percpu(struct coop_stats_block);
	return stats->cpu ? 0 : -ENOMEM;
}

void coop_stats_free(struct coop_stats *stats)
{
	free_percpu(stats->cpu);
	stats->cpu = NULL;
}

void coop_count_source(struct coop_stats *stats, enum coop_source from, u64 pages, u64 bytes)
{
	this_cpu_add(stats->cpu->pages[from], pages);
	this_cpu_add(stats->cpu->bytes[from], bytes);
}

void coop_count_request(struct coop_stats *stats, enum coop_source slowest, u64 us)
{
	/* Bucket i took less than 2^i: fls64() is the first such i. */
	const unsigned int bucket = min_t(unsigned int, fls64(us), COOP_LATENCY_BUCKETS - 1);

	this_cpu_inc(stats->cpu->requests[slowest]);
	this_cpu_inc(stats->cpu->latency[slowest][bucket]);
}

void coop_stats_sum(const struct coop_stats *stats, struct coop_stats_block *sum)
{
	/* A block consists of u64 counters only: add it up as an array. */
	u64 *to = (u64 *)sum;
	size_t i;
	int cpu;

	memset(sum, 0, sizeof(*sum));
	for_each_possible_cpu(cpu) {
		const u64 *from = (const u64 *)per_cpu_ptr(stats->cpu, cpu);

		for (i = 0; i < sizeof(*sum) / sizeof(u64); i++)
			to[i] += READ_ONCE(from[i]);
	}
}

void coop_stats_reset(struct coop_stats *stats)
{
	int cpu;

	for_each_possible_cpu(cpu)
		memset(per_cpu_ptr(stats->cpu, cpu), 0, sizeof(struct coop_stats_block));
}
