// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * text.c - renders records, one a line, as "key value" pairs or key=value words, for
 * people, scripts and the command-line tool. The FUSE variant renders the same text
 * (userland/client/text.cpp).
 */
#include "proc/text.h"

#include <linux/seq_file.h>
#include <linux/slab.h>

#include "rpc/base/addr.h"

static const char *const source_names[COOP_SOURCES] = {
	[COOP_FROM_BUFFER] = "buffer",
	[COOP_FROM_PEER] = "peer",
	[COOP_FROM_STORAGE] = "storage",
};

static void show_address(struct seq_file *m, const struct coop_addr *addr)
{
	char text[COOP_ADDR_TEXT];

	if (coop_addr_format(addr, text, sizeof(text)) > 0)
		seq_printf(m, "%s\n", text);
}

void coop_show_addresses(struct seq_file *m, struct coop_shards *shards)
{
	struct coop_peer_info peer;
	struct coop_addr self;
	u32 cursor = 0;

	if (!shards)
		return;
	if (coop_shards_self(shards, &self))
		show_address(m, &self);
	while (coop_shards_peer_next(shards, &cursor, &peer))
		show_address(m, &peer.addr);
}

void coop_show_peers(struct seq_file *m, struct coop_shards *shards)
{
	struct coop_peer_info p;
	u32 cursor = 0;

	while (shards && coop_shards_peer_next(shards, &cursor, &p)) {
		seq_printf(m, "peer gid=%pI6c lid=0x%04x qpn=0x%06x sl=%u origin=%s state=%s",
			   p.addr.gid, p.addr.lid, p.addr.qpn, p.addr.sl,
			   coop_peer_origin_name(p.origin), coop_peer_health_name(p.health));
		seq_printf(m, " srtt_us=%u rttvar_us=%u fails=%u in_flight=%u", p.srtt_us,
			   p.rttvar_us, p.fails_in_row, p.in_flight);
		seq_printf(m, " hits=%llu misses=%llu failures=%llu busy=%llu", p.hits, p.misses,
			   p.failures, p.busy);
		seq_printf(m, " rx_pages=%llu rx_bytes=%llu tx_pages=%llu tx_bytes=%llu\n", p.pages,
			   p.bytes, p.served_pages, p.served_bytes);
	}
}

void coop_show_requests(struct seq_file *m, struct coop_shards *shards)
{
	struct coop_request_info r;
	u32 cursor = 0;

	while (shards && coop_shards_request_next(shards, &cursor, &r))
		seq_printf(m,
			   "%s id=0x%08x state=%s fid=%016llx%016llx version=0x%llx first=%llu "
			   "pages=%u peer=0x%x attempt=%u age_us=%llu\n",
			   r.serve ? "serve" : "fetch", r.id, r.state, r.fid.hi, r.fid.lo,
			   r.version, r.first_index, r.n_pages, r.peer, r.attempt, r.age_us);
}

#define SHOW(kind, key, field) seq_printf(m, kind " " key " %llu\n", (u64)s.field)

static void show_engine(struct seq_file *m, struct coop_shards *shards)
{
	struct coop_engine_stats s;

	coop_shards_engine_stats(shards, &s);
	SHOW("fetch", "fetches", fetches);
	SHOW("fetch", "fetches_full", fetches_full);
	SHOW("fetch", "fetches_partial", fetches_partial);
	SHOW("fetch", "fetches_failed", fetches_failed);
	SHOW("fetch", "fetches_refused", fetches_refused);
	SHOW("fetch", "pages_ok", pages_ok);
	SHOW("fetch", "pages_missed", pages_missed);
	SHOW("fetch", "bytes_ok", bytes_ok);
	SHOW("fetch", "attempts", attempts);
	SHOW("fetch", "retries", retries);
	SHOW("fetch", "queries", queries);
	SHOW("fetch", "waits", waits);
	SHOW("fetch", "passes", passes);
	SHOW("fetch", "segs_rx", segs_rx);
	SHOW("fetch", "segs_stale", segs_stale);
	SHOW("fetch", "segs_foreign", segs_foreign);
	SHOW("fetch", "segs_bad", segs_bad);
	SHOW("fetch", "segs_displaced", segs_displaced);
	SHOW("fetch", "segs_dup", segs_dup);
	SHOW("fetch", "pads_rx", pads_rx);
	SHOW("fetch", "stops", stops);
	SHOW("fetch", "flushes", flushes);
	SHOW("fetch", "crc_bad", crc_bad);
	SHOW("fetch", "tag_bad", tag_bad);
	SHOW("fetch", "commits_rx", commits_rx);
	SHOW("fetch", "commits_stale", commits_stale);
	SHOW("fetch", "commits_bad", commits_bad);
	SHOW("fetch", "ctrl_rx", ctrl_rx);
	SHOW("fetch", "ctrl_short", ctrl_short);
	SHOW("fetch", "ctrl_mac", ctrl_mac);
	SHOW("fetch", "ctrl_version", ctrl_version);
	SHOW("fetch", "ctrl_command", ctrl_command);
	SHOW("fetch", "ctrl_malformed", ctrl_malformed);
	SHOW("fetch", "ctrl_refused_tx", ctrl_refused_tx);
	SHOW("fetch", "ctrl_dropped_tx", ctrl_dropped_tx);
	SHOW("fetch", "peer_down", peer_down);
	SHOW("fetch", "peer_up", peer_up);
	SHOW("fetch", "window_bytes", window_bytes);
	SHOW("fetch", "invited_bytes", invited_bytes);
	SHOW("fetch", "window_shrinks", window_shrinks);
	SHOW("serve", "serves", serves);
	SHOW("serve", "busy", serves_busy);
	SHOW("serve", "limited", serves_limited);
	SHOW("serve", "pages", serve_pages);
	SHOW("serve", "bytes", serve_bytes);
	SHOW("serve", "misses", serve_misses);
	SHOW("serve", "changed", serve_changed);
	SHOW("serve", "commits_tx", commits_tx);
	SHOW("serve", "repeated", serves_dup);
	SHOW("serve", "tx_errors", serve_tx_errors);
	SHOW("serve", "waits", serve_waits);
	SHOW("serve", "wait_pages", serve_wait_pages);
	SHOW("serve", "wait_timeouts", serve_wait_timeouts);
	SHOW("serve", "passed", serves_passed);
	SHOW("serve", "forwarded", serves_forwarded);
	SHOW("serve", "forwards_refused", forwards_refused);
	SHOW("serve", "waiting", serves_waiting);
}

static void show_sources(struct seq_file *m, const struct coop_stats_block *sum)
{
	int i, bucket;

	for (i = 0; i < COOP_SOURCES; i++)
		seq_printf(m, "source %s requests %llu pages %llu bytes %llu\n", source_names[i],
			   sum->requests[i], sum->pages[i], sum->bytes[i]);
	for (i = 0; i < COOP_SOURCES; i++) {
		seq_printf(m, "latency %s", source_names[i]);
		for (bucket = 0; bucket < COOP_LATENCY_BUCKETS; bucket++)
			seq_printf(m, " %llu", sum->latency[i][bucket]);
		seq_putc(m, '\n');
	}
}

int coop_show_stats(struct seq_file *m, const struct coop_stats *stats, struct coop_shards *shards)
{
	struct coop_stats_block *sum = kmalloc(sizeof(*sum), GFP_KERNEL);
	int c;

	if (!sum)
		return -ENOMEM;
	coop_stats_sum(stats, sum);
	seq_puts(m, "coopfs-stats 1\n");
	show_sources(m, sum);
	seq_printf(m, "traffic peer rx_bytes %llu tx_bytes %llu\n",
		   sum->count[COOP_C_PEER_RX_BYTES], sum->count[COOP_C_PEER_TX_BYTES]);
	seq_printf(m, "traffic storage rx_bytes %llu tx_bytes %llu\n",
		   sum->count[COOP_C_STORAGE_RX_BYTES], sum->count[COOP_C_STORAGE_TX_BYTES]);
	for (c = 0; c < COOP_COUNTERS; c++)
		if (coop_counter_kind(c))
			seq_printf(m, "%s %s %llu\n", coop_counter_kind(c), coop_counter_name(c),
				   sum->count[c]);
	kfree(sum);
	if (shards)
		show_engine(m, shards);
	return 0;
}

void coop_show_device(struct seq_file *m, struct coop_shards *shards)
{
	char line[160];

	if (shards)
		coop_shards_describe(shards, line, sizeof(line));
	else
		strscpy(line, "none", sizeof(line));
	seq_printf(m, "endpoint %s\n", line);
}
