// SPDX-License-Identifier: MIT
// text.cpp - see text.hpp. Scripts rely on key names: keys are added, never renamed.
#include "userland/client/text.hpp"

#include <arpa/inet.h>

#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "rpc/base/addr.h"

namespace coop::client
{

namespace
{

__attribute__((format(printf, 2, 3))) void add(std::string &out, const char *format, ...)
{
	char line[512];
	va_list args;
	va_start(args, format);
	const int n = std::vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (n > 0)
		out.append(line,
			   std::min<std::size_t>(static_cast<std::size_t>(n), sizeof(line) - 1));
}

struct counter {
	const char *name;
	std::uint64_t value;
};

template <std::size_t N> void add_all(std::string &out, const char *kind, const counter (&list)[N])
{
	for (const counter &c : list)
		add(out, "%s %s %" PRIu64 "\n", kind, c.name, c.value);
}

std::string gid_text(const std::uint8_t (&gid)[16])
{
	char text[INET6_ADDRSTRLEN];
	return ::inet_ntop(AF_INET6, gid, text, sizeof(text)) != nullptr ? text : "::";
}

void add_address(std::string &out, const coop_addr &a)
{
	char text[COOP_ADDR_TEXT];
	if (coop_addr_format(&a, text, sizeof(text)) > 0)
		add(out, "%s\n", text);
}

void add_engine(std::string &out, const struct coop_engine_stats &s)
{
	const counter fetch[] = {
		{"fetches", s.fetches},
		{"fetches_full", s.fetches_full},
		{"fetches_partial", s.fetches_partial},
		{"fetches_failed", s.fetches_failed},
		{"fetches_refused", s.fetches_refused},
		{"pages_ok", s.pages_ok},
		{"pages_missed", s.pages_missed},
		{"bytes_ok", s.bytes_ok},
		{"attempts", s.attempts},
		{"retries", s.retries},
		{"queries", s.queries},
		{"waits", s.waits},
		{"passes", s.passes},
		{"segs_rx", s.segs_rx},
		{"segs_stale", s.segs_stale},
		{"segs_foreign", s.segs_foreign},
		{"segs_bad", s.segs_bad},
		{"segs_displaced", s.segs_displaced},
		{"segs_dup", s.segs_dup},
		{"pads_rx", s.pads_rx},
		{"stops", s.stops},
		{"flushes", s.flushes},
		{"crc_bad", s.crc_bad},
		{"tag_bad", s.tag_bad},
		{"commits_rx", s.commits_rx},
		{"commits_stale", s.commits_stale},
		{"commits_bad", s.commits_bad},
		{"ctrl_rx", s.ctrl_rx},
		{"ctrl_short", s.ctrl_short},
		{"ctrl_mac", s.ctrl_mac},
		{"ctrl_version", s.ctrl_version},
		{"ctrl_command", s.ctrl_command},
		{"ctrl_malformed", s.ctrl_malformed},
		{"ctrl_refused_tx", s.ctrl_refused_tx},
		{"ctrl_dropped_tx", s.ctrl_dropped_tx},
		{"peer_down", s.peer_down},
		{"peer_up", s.peer_up},
		{"window_bytes", s.window_bytes},
		{"invited_bytes", s.invited_bytes},
		{"window_shrinks", s.window_shrinks},
	};
	const counter serve[] = {
		{"serves", s.serves},
		{"busy", s.serves_busy},
		{"limited", s.serves_limited},
		{"pages", s.serve_pages},
		{"bytes", s.serve_bytes},
		{"misses", s.serve_misses},
		{"changed", s.serve_changed},
		{"commits_tx", s.commits_tx},
		{"repeated", s.serves_dup},
		{"tx_errors", s.serve_tx_errors},
		{"waits", s.serve_waits},
		{"wait_pages", s.serve_wait_pages},
		{"wait_timeouts", s.serve_wait_timeouts},
		{"passed", s.serves_passed},
		{"forwarded", s.serves_forwarded},
		{"forwards_refused", s.forwards_refused},
		{"waiting", s.serves_waiting},
	};
	add_all(out, "fetch", fetch);
	add_all(out, "serve", serve);
}

void add_endpoint(std::string &out, const ud::endpoint_stats &s)
{
	const counter endpoint[] = {
		{"tx_packets", s.tx_packets},     {"tx_bytes", s.tx_bytes},
		{"tx_calls", s.tx_calls},         {"tx_errors", s.tx_errors},
		{"rx_packets", s.rx_packets},     {"rx_bytes", s.rx_bytes},
		{"rx_calls", s.rx_calls},         {"rx_bad_icrc", s.rx_bad_icrc},
		{"rx_malformed", s.rx_malformed}, {"rx_no_qp", s.rx_no_qp},
		{"rx_bad_qkey", s.rx_bad_qkey},   {"rx_no_wr", s.rx_no_wr},
		{"rx_too_long", s.rx_too_long},   {"rx_copied", s.rx_copied},
	};
	add_all(out, "endpoint", endpoint);
}

void add_network(std::string &out, const ud::endpoint_state &s)
{
	const counter state[] = {
		{"port_up", s.port_up ? 1u : 0u},
		{"device_lost", s.lost ? 1u : 0u},
		{"changes", s.changes},
	};
	add_all(out, "endpoint", state);
}

void add_forest(std::string &out, const forest_figures &f)
{
	const counter forest[] = {
		{"files", f.files},           {"leaf", f.leaf},       {"carrier", f.carrier},
		{"substitute", f.substitute}, {"parents", f.parents}, {"children", f.children},
	};
	add_all(out, "forest", forest);
}

} // namespace

std::string stats_text(const reader &r, const node *n, const page_store &store, const storage &s,
		       const membership &m, std::uint64_t written_again)
{
	static const char *const names[] = {"buffer", "peer", "storage"};
	const reader_stats rs = r.stats();
	std::string out = "coopfs-stats 1\n";
	for (int i = 0; i < 3; i++)
		add(out, "source %s requests %" PRIu64 " pages %" PRIu64 " bytes %" PRIu64 "\n",
		    names[i], rs.by[i].requests, rs.by[i].pages, rs.by[i].bytes);
	for (int i = 0; i < 3; i++) {
		add(out, "latency %s", names[i]);
		for (const std::uint64_t count : rs.by[i].latency)
			add(out, " %" PRIu64, count);
		out += '\n';
	}
	const counter reads[] = {
		{"peer_fallback_pages", rs.peer_fallback_pages},
		{"relayed_pages", rs.relayed_pages},
		{"redirected_pages", rs.redirected_pages},
		{"taken_pages", rs.taken_pages},
		{"readahead_pages", rs.readahead_pages},
		{"stale_reads", rs.stale_reads},
		{"errors", rs.errors},
	};
	add_all(out, "read", reads);
	ud::endpoint_stats es{};
	if (n != nullptr)
		es = n->endpoint_stats();
	const storage::traffic t = s.stats();
	add(out, "traffic peer rx_bytes %" PRIu64 " tx_bytes %" PRIu64 "\n", es.rx_bytes,
	    es.tx_bytes);
	add(out, "traffic storage rx_bytes %" PRIu64 " tx_bytes %" PRIu64 "\n", t.rx_bytes,
	    t.tx_bytes);
	const counter connection[] = {
		{"rx_data_bytes", t.rx_data_bytes},   {"calls", t.calls},
		{"reconnects", t.reconnects},         {"written_again", written_again},
		{"connected", t.connected ? 1u : 0u},
	};
	add_all(out, "storage", connection);
	const lease_figures l = s.leases();
	const counter leases[] = {
		{"held", l.held},
		{"recalls", l.recalls},
		{"lookups", l.lookups},
		{"attributes", l.attributes},
		{"opens", l.opens},
		{"listings", l.listings},
		{"bundles_asked", l.bundles_asked},
		{"bundles", l.bundles},
		{"bundled_files", l.bundled_files},
	};
	add_all(out, "lease", leases);
	if (n != nullptr) {
		add_engine(out, n->stats());
		const offer_stats o = n->offers();
		const counter offers[] = {
			{"made", o.made}, {"taken", o.taken}, {"waiting", o.waiting}};
		add_all(out, "offer", offers);
		add_endpoint(out, es);
		add_network(out, n->endpoint_state());
		add_forest(out, m.figures());
	}
	const store_stats cs = store.stats();
	const kernel_copies_stats ks = store.in_kernel().stats();
	const counter copies[] = {{"left_to_kernel", ks.left}, {"kernel_held", ks.noted},
				  {"came_back", ks.came_back}, {"retrieved", ks.retrieved},
				  {"lost", ks.lost},           {"refuted", ks.refuted}};
	add_all(out, "store", copies);
	add(out,
	    "cache capacity %" PRIu64 " used %" PRIu64 " present %" PRIu64 " blocks %" PRIu64
	    " evicted %" PRIu64 "\n",
	    cs.capacity, cs.used, cs.present, cs.blocks, cs.evicted_blocks);
	return out;
}

void stats_reset(reader &r, node *n)
{
	r.reset_stats();
	if (n != nullptr)
		n->reset_stats();
}

std::string peers_text(const node *n, const membership &m)
{
	std::string out;
	if (n == nullptr)
		return out;
	std::vector<std::pair<coop_addr, std::uint64_t>> parents;
	for (const auto &[id, trees] : m.parent_trees())
		if (coop_addr addr; n->find(id, addr))
			parents.emplace_back(addr, trees);
	for (const coop_peer_info &p : n->peers()) {
		add(out, "peer gid=%s lid=0x%04x qpn=0x%06x sl=%u origin=%s state=%s",
		    gid_text(p.addr.gid).c_str(), unsigned{p.addr.lid}, p.addr.qpn,
		    unsigned{p.addr.sl}, coop_peer_origin_name(p.origin),
		    coop_peer_health_name(p.health));
		add(out, " srtt_us=%u rttvar_us=%u fails=%u in_flight=%u", p.srtt_us, p.rttvar_us,
		    p.fails_in_row, p.in_flight);
		add(out, " hits=%" PRIu64 " misses=%" PRIu64 " failures=%" PRIu64 " busy=%" PRIu64,
		    p.hits, p.misses, p.failures, p.busy);
		add(out,
		    " rx_pages=%" PRIu64 " rx_bytes=%" PRIu64 " tx_pages=%" PRIu64
		    " tx_bytes=%" PRIu64,
		    p.pages, p.bytes, p.served_pages, p.served_bytes);
		const auto parent =
			std::find_if(parents.begin(), parents.end(), [&](const auto &x) {
				return coop_addr_same(&x.first, &p.addr);
			});
		add(out, " parent_trees=%" PRIu64 "\n",
		    parent == parents.end() ? std::uint64_t{0} : parent->second);
	}
	return out;
}

std::string ibaddr_text(const node *n)
{
	std::string out;
	if (n == nullptr)
		return out;
	add_address(out, n->self());
	for (const coop_peer_info &p : n->peers())
		add_address(out, p.addr);
	return out;
}

std::string forest_text(const membership &m, const node *n, const content_key &key)
{
	const coop_st_roles roles = m.roles(key);
	const auto address = [n](std::uint32_t node_id) {
		coop_addr a{};
		if (node_id == 0)
			return std::string("-");
		return n != nullptr && n->find(node_id, a) ? gid_text(a.gid)
							   : "node-" + std::to_string(node_id);
	};
	std::string out;
	add(out, "forest members %u index %u\n", roles.members, roles.index);
	for (std::uint32_t c = 0; c < roles.n_colours; c++)
		add(out, "colour %u level %u parent %s alternate %s\n", c, roles.colours[c].level,
		    address(roles.colours[c].parent).c_str(),
		    address(roles.colours[c].alternate).c_str());
	return out;
}

int ibaddr_write(node *n, std::string_view line)
{
	if (n == nullptr)
		return -EOPNOTSUPP;
	coop_addr a{};
	if (const int err = coop_addr_parse(line.data(), line.size(), &a); err != 0)
		return err;
	return n->add_by_hand(a);
}

std::string requests_text(const node *n, const storage &s)
{
	std::string out;
	for (const coop_request_info &r : n ? n->requests() : std::vector<coop_request_info>{})
		add(out,
		    "%s id=0x%08x state=%s fid=%016" PRIx64 "%016" PRIx64 " version=0x%" PRIx64
		    " first=%" PRIu64 " pages=%u peer=0x%x attempt=%u age_us=%" PRIu64 "\n",
		    r.serve ? "serve" : "fetch", r.id, r.state, r.fid.hi, r.fid.lo, r.version,
		    r.first_index, r.n_pages, r.peer, r.attempt, r.age_us);
	for (const storage::waiting &c : s.calls())
		add(out, "call id=%" PRIu64 " op=%s state=%s age_us=%" PRIu64 "\n", c.id, c.op,
		    c.state, c.age_us);
	return out;
}

} // namespace coop::client
