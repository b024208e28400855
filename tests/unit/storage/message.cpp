// SPDX-License-Identifier: MIT
// message.cpp - the storage protocol's codec: valid messages survive encode and decode,
// and decode refuses all others.
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "rpc/storage/message.h"

namespace
{

const std::string handle(COOP_ST_FH_MAX, 'h'), name(COOP_ST_NAME_MAX, 'n'),
	text(COOP_ST_TEXT_MAX, 't');

coop_st_bytes bytes(const std::string &s)
{
	return {reinterpret_cast<const u8 *>(s.data()), static_cast<u32>(s.size())};
}

coop_st_body full(u64 fields)
{
	coop_st_body b{};
	b.nonce[0] = 1, b.proof[31] = 2, b.session[15] = 3;
	b.version_min = 1, b.version_max = 9;
	b.fh = b.fh2 = bytes(handle);
	b.name = b.name2 = bytes(name);
	b.text = bytes(text);
	b.open_id = 1ull << 63, b.offset = 2, b.version = 3, b.before = 4, b.cookie = 5, b.size = 6,
	b.verifier = ~0ull;
	b.count = 7, b.flags = 8, b.mode = 9, b.node_id = 10;
	b.set.valid = COOP_ST_SET_ALL, b.set.size = 77, b.set.mtime = {-5, 999999999};
	b.attr.fid = {11, 12}, b.attr.version = 13, b.attr.size = 14, b.attr.mode = 15;
	b.attr.ctime = {16, 17}, b.attr.btime = {18, 19}, b.attr.has = COOP_ST_HAS_ALL;
	b.attr.traits = COOP_ST_TRAIT_VERITY, b.attr.traits_known = COOP_ST_TRAIT_ALL;
	b.n_nodes = COOP_MAX_HINTS;
	b.nodes[COOP_MAX_HINTS - 1] = 99;
	b.addr.gid[15] = 1, b.addr.qpn = 0xffffff, b.addr.qkey = 5, b.addr.lid = 6, b.addr.sl = 15;
	b.statfs.blocks = 20, b.statfs.namelen = 255;
	b.length = 21, b.open_id2 = 22, b.offset2 = 23, b.rdev = 24;
	b.lock = {25, 26, ~0ull, COOP_ST_LOCK_FLOCK, COOP_ST_LOCK_WRITE, 27};
	if (fields & COOP_ST_ROLES_F) {
		b.roles.members = 30, b.roles.index = 29, b.roles.n_colours = COOP_FOREST_COLOURS;
		for (u32 c = 0; c < COOP_FOREST_COLOURS; c++)
			b.roles.colours[c] = {c, 0, COOP_LEVEL_ROOT + c};
		b.roles.colours[3].alternate = ~0u;
	} else {
		b.cred.uid = 10, b.cred.gid = 11, b.cred.n_groups = COOP_ST_GROUPS_MAX;
		for (u32 i = 0; i < COOP_ST_GROUPS_MAX; i++)
			b.cred.groups[i] = i * 7;
	}
	return b;
}

std::vector<u8> encoded(u64 fields)
{
	std::vector<u8> buf(COOP_ST_BODY_MAX);
	const coop_st_body b = full(fields);
	const int n = coop_st_body_put(&b, fields, buf.data(), static_cast<u32>(buf.size()));
	EXPECT_GE(n, 0);
	buf.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
	return buf;
}

std::vector<u64> all_sets()
{
	std::vector<u64> sets{COOP_ST_DIRENT_FIELDS};
	for (u16 op = 0; op < COOP_ST_OP_END; op++) {
		sets.push_back(coop_st_request_fields(op));
		sets.push_back(coop_st_reply_fields(op));
	}
	return sets;
}

} // namespace

TEST(store_codec, every_body_comes_back_as_it_went_in)
{
	for (u64 fields : all_sets()) {
		const std::vector<u8> wire = encoded(fields);
		coop_st_body b;
		ASSERT_EQ(coop_st_body_get(&b, fields, wire.data(), static_cast<u32>(wire.size())),
			  0)
			<< fields;
		std::vector<u8> again(COOP_ST_BODY_MAX);
		const int n = coop_st_body_put(&b, fields, again.data(), COOP_ST_BODY_MAX);
		again.resize(static_cast<std::size_t>(n));
		EXPECT_EQ(again, wire) << fields;
		if (fields & COOP_ST_SETATTR_F) {
			EXPECT_EQ(b.set.mtime.sec, -5);
		}
		if (fields & COOP_ST_ATTR) {
			EXPECT_EQ(b.attr.fid.lo, 12u);
			EXPECT_EQ(b.attr.btime.nsec, 19u);
			EXPECT_EQ(b.attr.traits, COOP_ST_TRAIT_VERITY + 0u);
		}
		if (fields & COOP_ST_CRED) {
			EXPECT_EQ(b.cred.groups[255], 255u * 7);
		}
	}
}

TEST(store_codec, a_write_asks_and_its_reply_tells_whether_it_is_stable)
{
	for (u64 fields :
	     {coop_st_request_fields(COOP_ST_WRITE), coop_st_reply_fields(COOP_ST_WRITE)}) {
		coop_st_body b{}, got;
		std::vector<u8> wire(COOP_ST_BODY_MAX);
		b.flags = COOP_ST_WRITE_STABLE;
		const int n = coop_st_body_put(&b, fields, wire.data(), COOP_ST_BODY_MAX);
		ASSERT_GT(n, 0);
		ASSERT_EQ(coop_st_body_get(&got, fields, wire.data(), static_cast<u32>(n)), 0);
		EXPECT_EQ(got.flags, COOP_ST_WRITE_STABLE + 0u);
	}
}

TEST(store_codec, every_truncation_and_every_extra_byte_is_refused)
{
	for (u64 fields : all_sets()) {
		std::vector<u8> wire = encoded(fields);
		coop_st_body b;
		for (std::size_t n = 0; n < wire.size(); n++) {
			const std::vector<u8> cut(wire.begin(),
						  wire.begin() + static_cast<long>(n));
			ASSERT_EQ(coop_st_body_get(&b, fields, cut.data(), static_cast<u32>(n)),
				  -EPROTO)
				<< fields << " at " << n;
		}
		wire.push_back(0);
		EXPECT_EQ(coop_st_body_get(&b, fields, wire.data(), static_cast<u32>(wire.size())),
			  -EPROTO);
		const coop_st_body f = full(fields);
		for (std::size_t n = 0; n + 1 < wire.size(); n++)
			ASSERT_EQ(coop_st_body_put(&f, fields, wire.data(), static_cast<u32>(n)),
				  -EMSGSIZE);
	}
}

TEST(store_codec, a_lock_is_a_range_of_a_known_kind)
{
	const coop_st_lock bad[] = {
		{1, 5, 4, 0, 0, 0},                   // ends before it begins
		{1, 1ull << 63, ~0ull, 0, 0, 0},      // begins beyond the largest file
		{1, 0, 1ull << 63, 0, 0, 0},          // ends beyond it
		{1, 0, 1, COOP_ST_LOCK_KINDS, 0, 0},  // unknown kind
		{1, 0, 1, 0, COOP_ST_LOCK_TYPES, 0}}; // unknown type
	for (const coop_st_lock &l : bad) {
		coop_st_body b = full(COOP_ST_LOCK_F);
		std::vector<u8> buf(COOP_ST_BODY_MAX);
		b.lock = l;
		const int n = coop_st_body_put(&b, COOP_ST_LOCK_F, buf.data(), COOP_ST_BODY_MAX);
		ASSERT_GT(n, 0);
		EXPECT_EQ(coop_st_body_get(&b, COOP_ST_LOCK_F, buf.data(), static_cast<u32>(n)),
			  -EPROTO);
	}
}

TEST(store_codec, attributes_tell_only_what_is_known)
{
	coop_st_attr bad[4] = {};
	bad[0].traits = COOP_ST_TRAIT_APPEND;                           // traits_known lacks it
	bad[1].traits_known = 1;                                        // unknown to the protocol
	bad[2].btime = {1, 0};                                          // without COOP_ST_HAS_BTIME
	bad[3].btime = {1, 1000000000}, bad[3].has = COOP_ST_HAS_BTIME; // a nanosecond too many
	for (const coop_st_attr &a : bad) {
		coop_st_body b{};
		std::vector<u8> buf(COOP_ST_BODY_MAX);
		b.attr = a;
		const int n = coop_st_body_put(&b, COOP_ST_ATTR, buf.data(), COOP_ST_BODY_MAX);
		ASSERT_GT(n, 0);
		EXPECT_EQ(coop_st_body_get(&b, COOP_ST_ATTR, buf.data(), static_cast<u32>(n)),
			  -EPROTO);
	}
}

TEST(store_codec, limits_hold_on_both_sides)
{
	std::vector<u8> buf(COOP_ST_BODY_MAX);
	coop_st_body b{};
	const std::string long_name(COOP_ST_NAME_MAX + 1, 'n');
	b.name = bytes(long_name);
	EXPECT_EQ(coop_st_body_put(&b, COOP_ST_NAME, buf.data(), COOP_ST_BODY_MAX), -EMSGSIZE);
	// By hand: a name and a list that are one entry too long, and too many
	// nanoseconds.
	buf = {0, 1};
	buf.insert(buf.end(), 256, 'n');
	EXPECT_EQ(coop_st_body_get(&b, COOP_ST_NAME, buf.data(), static_cast<u32>(buf.size())),
		  -EPROTO);
	buf = {COOP_MAX_HINTS + 1, 0, 0, 0};
	buf.resize(4 + 4 * (COOP_MAX_HINTS + 1));
	EXPECT_EQ(coop_st_body_get(&b, COOP_ST_NODES, buf.data(), static_cast<u32>(buf.size())),
		  -EPROTO);
	buf.assign(12, 0);
	buf[8] = 1, buf[9] = 1; // 257 groups
	buf.resize(12 + 4 * 257);
	EXPECT_EQ(coop_st_body_get(&b, COOP_ST_CRED, buf.data(), static_cast<u32>(buf.size())),
		  -EPROTO);
	buf.assign(12, 0xff); // uid -1
	EXPECT_EQ(coop_st_body_get(&b, COOP_ST_CRED, buf.data(), static_cast<u32>(buf.size())),
		  -EPROTO);
}

TEST(store_codec, headers_with_oversize_lengths_or_unknown_bits_are_refused)
{
	coop_st_header h{COOP_ST_READ, COOP_ST_F_REPLY, 10, COOP_ST_IO_MAX, 5, 1ull << 60}, got;
	u8 buf[COOP_ST_HEADER];
	coop_st_header_put(&h, buf);
	ASSERT_EQ(coop_st_header_get(&got, buf), 0);
	EXPECT_EQ(got.id, h.id);
	EXPECT_EQ(got.data_len, COOP_ST_IO_MAX);
	EXPECT_EQ(got.status, 5u);
	for (auto [body, data] : {std::pair<u32, u32>{COOP_ST_BODY_MAX + 1, 0},
				  {0, COOP_ST_IO_MAX + 1},
				  {0xffffffff, 0xffffffff}}) {
		h.body_len = body, h.data_len = data;
		coop_st_header_put(&h, buf);
		EXPECT_EQ(coop_st_header_get(&got, buf), -EMSGSIZE);
	}
	h.body_len = h.data_len = 0;
	coop_st_header_put(&h, buf);
	for (unsigned at : {0u, 3u, 7u, 31u}) { // magic, flags, reserved
		buf[at] ^= 0x80;
		EXPECT_EQ(coop_st_header_get(&got, buf), -EPROTO) << at;
		buf[at] ^= 0x80;
	}
}

namespace
{

std::vector<u8> message(u16 op, u16 flags, u32 status, const std::string &body,
			const std::string &data, const std::string &tail, u64 id = 7)
{
	std::vector<u8> wire(COOP_ST_HEADER);
	coop_st_header h{
		op,     flags, static_cast<u32>(body.size()), static_cast<u32>(data.size()),
		status, id};
	coop_st_header_put(&h, wire.data());
	for (const std::string *s : {&body, &data, &tail})
		wire.insert(wire.end(), s->begin(), s->end());
	return wire;
}

} // namespace

TEST(store_codec, an_incoming_stream_comes_apart_into_its_parts)
{
	const std::string tail(COOP_ST_TAIL, 't');
	std::vector<u8> wire;
	for (const auto &m :
	     {message(COOP_ST_READ, COOP_ST_F_REPLY | COOP_ST_F_STREAM, 0, "b1", "data1", tail),
	      message(COOP_ST_PING, COOP_ST_F_REPLY, 0, "", "", ""),
	      message(COOP_ST_NODE, 0, 0, "push", "", "", 0),
	      message(COOP_ST_OPEN, COOP_ST_F_REPLY, 0, "b2", "inline", ""),
	      message(COOP_ST_STATS, COOP_ST_F_REPLY, 0, "", "text", ""),
	      message(COOP_ST_ROLES, 0, 0, "roles", "", "", 0),
	      message(COOP_ST_READ_SHARED, COOP_ST_F_REPLY | COOP_ST_F_STREAM, 0, "b3", "data3",
		      tail),
	      message(COOP_ST_READ, COOP_ST_F_REPLY, ENOENT, "", "", "")})
		wire.insert(wire.end(), m.begin(), m.end());
	coop_st_incoming in;
	coop_st_incoming_init(&in);
	std::string seen;
	std::size_t at = 0;
	while (at < wire.size()) {
		ASSERT_LE(at + in.want, wire.size());
		const std::string part(wire.begin() + static_cast<long>(at),
				       wire.begin() + static_cast<long>(at + in.want));
		if (in.part != COOP_ST_PART_HEADER)
			seen += std::to_string(in.part) + ":" + part + " ";
		const u8 *header = in.part == COOP_ST_PART_HEADER ? wire.data() + at : nullptr;
		at += in.want;
		const int r = coop_st_incoming_next(&in, header);
		ASSERT_GE(r, 0);
		if (r)
			seen += std::to_string(in.head.op) + "; ";
	}
	EXPECT_EQ(in.part, u32{COOP_ST_PART_HEADER});
	EXPECT_EQ(in.want, u32{COOP_ST_HEADER});
	const auto op = [](u16 o) { return std::to_string(o) + "; "; };
	EXPECT_EQ(seen, "1:b1 2:data1 3:" + tail + " " + op(COOP_ST_READ) + op(COOP_ST_PING) +
				"1:push " + op(COOP_ST_NODE) + "1:b2 2:inline " + op(COOP_ST_OPEN) +
				"2:text " + op(COOP_ST_STATS) + "1:roles " + op(COOP_ST_ROLES) +
				"1:b3 2:data3 3:" + tail + " " + op(COOP_ST_READ_SHARED) +
				op(COOP_ST_READ));
}

TEST(store_codec, replies_with_data_have_the_body_sizes_that_receivers_plan_with)
{
	EXPECT_EQ(encoded(coop_st_reply_fields(COOP_ST_READ)).size(), 16u);
	EXPECT_EQ(encoded(coop_st_reply_fields(COOP_ST_OPEN)).size(), 208u);
	EXPECT_EQ(encoded(coop_st_reply_fields(COOP_ST_READ_SHARED)).size(), 84u);
}

TEST(store_codec, what_version_7_has_is_the_same_in_version_8)
{
	for (u64 fields :
	     {coop_st_request_fields(COOP_ST_READ), coop_st_reply_fields(COOP_ST_READ)}) {
		EXPECT_FALSE(fields & (COOP_ST_FLAGS | COOP_ST_NODES));
	}
	EXPECT_EQ(COOP_ST_ROLES, COOP_ST_LEASE_RETURN + 1) << "new operations come last";
	EXPECT_EQ(COOP_ST_LEASE_RETURN, 43);
	for (u16 op = 0; op <= COOP_ST_LEASE_RETURN; op++)
		EXPECT_FALSE((coop_st_request_fields(op) | coop_st_reply_fields(op)) &
			     COOP_ST_ROLES_F);
	for (u64 fields : all_sets())
		EXPECT_FALSE(fields & COOP_ST_ROLES_F && fields & COOP_ST_CRED) << "a union";
}

TEST(store_codec, roles_that_could_make_nodes_wait_for_each_other_are_refused)
{
	const u64 fields = coop_st_reply_fields(COOP_ST_ROLES);
	const auto decoded = [&](auto change) {
		coop_st_body b = full(fields), got;
		std::vector<u8> wire(COOP_ST_BODY_MAX);
		change(b.roles);
		const int n = coop_st_body_put(&b, fields, wire.data(), COOP_ST_BODY_MAX);
		if (n < 0)
			return n;
		return coop_st_body_get(&got, fields, wire.data(), static_cast<u32>(n));
	};
	using roles = coop_st_roles;
	EXPECT_EQ(decoded([](roles &) {}), 0);
	EXPECT_EQ(decoded([](roles &r) { r = {1, 0, 0, {}}; }), 0) << "alone";
	EXPECT_EQ(decoded([](roles &r) { r.colours[7].level = COOP_LEVEL_ROOT - 1; }), -EPROTO);
	EXPECT_EQ(decoded([](roles &r) { r.colours[7].level = 0; }), -EPROTO);
	EXPECT_EQ(decoded([](roles &r) { r.colours[7].level = COOP_LEVEL_NO_ROLE; }), -EPROTO);
	EXPECT_EQ(decoded([](roles &r) { r.colours[7].alternate = 7; }), -EPROTO);
	EXPECT_EQ(decoded([](roles &r) { r.colours[0].alternate = 1; }), -EPROTO) << "of a root";
	EXPECT_EQ(decoded([](roles &r) { r.index = r.members; }), -EPROTO);
	EXPECT_EQ(decoded([](roles &r) { r.members = 1, r.index = 0; }), -EPROTO);
	EXPECT_EQ(decoded([](roles &r) { r.n_colours = 0; }), -EPROTO);
	EXPECT_EQ(decoded([](roles &r) { r.n_colours = 1; }), -EMSGSIZE);
	EXPECT_EQ(decoded([](roles &r) { r.n_colours = ~0u; }), -EMSGSIZE);
	// The same count on the wire, from a daemon that does not check it.
	std::vector<u8> wire = encoded(fields);
	coop_st_body b;
	constexpr std::size_t count_at = 16 + 8 + 4 + 4; // after fid, version, members, index
	for (u8 count : {0, 1, 17, 255}) {
		wire[count_at] = count;
		EXPECT_EQ(coop_st_body_get(&b, fields, wire.data(), static_cast<u32>(wire.size())),
			  -EPROTO);
		EXPECT_LE(b.roles.n_colours, COOP_FOREST_COLOURS + 0u);
	}
}

TEST(store_codec, what_no_daemon_sends_ends_an_incoming_stream)
{
	for (const auto &m :
	     {message(COOP_ST_READ, 0, 0, "", "", ""), // a request
	      message(COOP_ST_NODE, COOP_ST_F_REPLY, 0, "", "", "",
		      0),                                     // a request and a reply at once
	      message(COOP_ST_NODE, 0, 0, "", "data", "", 0), // a push with data
	      message(COOP_ST_READ, COOP_ST_F_REPLY, EIO, "", "data", ""), // an error with data
	      message(COOP_ST_READ, COOP_ST_F_REPLY | COOP_ST_F_STREAM, EIO, "", "", ""),
	      message(COOP_ST_OPEN, COOP_ST_F_REPLY | COOP_ST_F_STREAM, 0, "", "x", "")}) {
		coop_st_incoming in;
		coop_st_incoming_init(&in);
		EXPECT_EQ(coop_st_incoming_next(&in, m.data()), -EPROTO);
	}
}

TEST(store_codec, noise_is_decoded_or_refused_within_its_bounds)
{
	std::mt19937 dice(1);
	for (unsigned i = 0; i < 200000; i++) {
		std::vector<u8> noise(dice() % 300);
		for (u8 &c : noise)
			c = static_cast<u8>(dice() % 4 ? dice() % 8 : dice());
		coop_st_body b;
		const u32 fields = dice() & (2 * COOP_ST_VERIFIER - 1);
		if (!coop_st_body_get(&b, fields, noise.data(), static_cast<u32>(noise.size()))) {
			ASSERT_LE(b.name.len, COOP_ST_NAME_MAX + 0u);
			ASSERT_LE(b.n_nodes, COOP_MAX_HINTS + 0u);
		}
	}
}
