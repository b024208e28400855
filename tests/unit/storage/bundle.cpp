// SPDX-License-Identifier: MIT
// bundle.cpp - the format of bundles: what is put in comes out, and no bytes of a stranger do harm.
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "rpc/storage/bundle.h"

namespace
{

using bytes = std::vector<u8>;

coop_st_bytes view(const std::string &s)
{
	return {reinterpret_cast<const u8 *>(s.data()), static_cast<u32>(s.size())};
}

coop_st_body directory(u32 entries)
{
	static const std::string fh = "handle of a directory";
	coop_st_body b{};
	b.fh = view(fh);
	b.count = entries;
	b.flags = COOP_BUNDLE_LIST | COOP_BUNDLE_SEARCH;
	b.attr.mode = 0040755;
	b.attr.has = COOP_ST_HAS_LEASE;
	return b;
}

// The strings must outlive the body.
coop_st_body file(const std::string &name, const std::string &content)
{
	static const std::string fh = "handle of a file";
	coop_st_body b{};
	b.fh = view(fh);
	b.name = view(name);
	b.flags = COOP_BUNDLE_READ;
	b.attr.mode = 0100644;
	b.attr.has = COOP_ST_HAS_LEASE;
	b.attr.version = 7;
	b.attr.size = content.size();
	b.cookie = 3;
	return b;
}

void put(bytes &to, const coop_st_body &b, const std::string *content = nullptr)
{
	const coop_st_bytes c = content ? view(*content) : coop_st_bytes{};
	u8 buf[COOP_ST_BODY_MAX + COOP_BUNDLE_CONTENT + COOP_BUNDLE_RECORD];
	const int n = coop_bundle_put(&b, content ? &c : nullptr, buf, sizeof(buf));
	ASSERT_GT(n, 0);
	to.insert(to.end(), buf, buf + n);
}

bytes started(u32 dirs, u32 entries)
{
	bytes b(COOP_BUNDLE_HEADER);
	coop_bundle_put_header(dirs, entries, b.data());
	return b;
}

const std::string names[] = {"one", "two", "three"}, contents[] = {"", "2", std::string(999, '3')};

bytes good()
{
	bytes b = started(2, 3);
	put(b, directory(2));
	put(b, file(names[0], contents[0]), &contents[0]);
	put(b, file(names[1], contents[1]), &contents[1]);
	put(b, directory(1));
	put(b, file(names[2], contents[2]), &contents[2]);
	return b;
}

// Records before the end; -1: refused.
int walk(const bytes &b)
{
	coop_bundle at;
	coop_st_body body;
	coop_st_bytes content;
	int n = 0, what;
	if (coop_bundle_begin(&at, b.data(), static_cast<u32>(b.size())))
		return -1;
	while ((what = coop_bundle_next(&at, &body, &content)) > 0) {
		n++;
		for (const coop_st_bytes *s : {&body.fh, &body.name, &body.text, &content})
			if (s->len && (s->p < b.data() || s->p + s->len > b.data() + b.size()))
				ADD_FAILURE() << "a string outside of the bundle";
	}
	if (what)
		EXPECT_EQ(coop_bundle_next(&at, &body, &content), -EPROTO) << "the end is final";
	return what ? -1 : n;
}

// A bundle of one directory and this entry.
int walk_entry(const coop_st_body &e, const std::string &content)
{
	bytes b = started(1, 1);
	put(b, directory(1));
	put(b, e, &content);
	return walk(b);
}

} // namespace

TEST(bundle, gives_back_what_was_put_in)
{
	const bytes b = good();
	coop_bundle at;
	coop_st_body body;
	coop_st_bytes content;
	ASSERT_EQ(coop_bundle_begin(&at, b.data(), static_cast<u32>(b.size())), 0);
	const int order[] = {COOP_BUNDLE_DIRECTORY, COOP_BUNDLE_ENTRY, COOP_BUNDLE_ENTRY,
			     COOP_BUNDLE_DIRECTORY, COOP_BUNDLE_ENTRY, COOP_BUNDLE_END};
	int i = 0;
	for (const int expected : order) {
		ASSERT_EQ(coop_bundle_next(&at, &body, &content), expected);
		if (expected != COOP_BUNDLE_ENTRY)
			continue;
		EXPECT_EQ(std::string(body.name.p, body.name.p + body.name.len), names[i]);
		EXPECT_EQ(std::string(content.p, content.p + content.len), contents[i]);
		EXPECT_EQ(body.attr.version, 7u);
		EXPECT_EQ(body.cookie, 3u);
		i++;
	}
	EXPECT_EQ(i, 3);
}

TEST(bundle, is_refused_when_it_is_cut_off_or_longer)
{
	bytes b = good();
	ASSERT_EQ(walk(b), 5);
	for (std::size_t n = 0; n < b.size(); n++)
		EXPECT_EQ(walk(bytes(b.begin(), b.begin() + static_cast<long>(n))), -1) << n;
	b.push_back(0);
	EXPECT_EQ(walk(b), -1);
}

TEST(bundle, is_refused_when_its_counts_are_wrong)
{
	const bytes b = good();
	for (const auto &[dirs, entries] : {std::pair{0u, 0u},
					    {0u, 3u},
					    {1u, 3u},
					    {2u, 2u},
					    {2u, 4u},
					    {3u, 3u},
					    {2u, 0xffffffffu},
					    {0xffffffffu, 3u},
					    {COOP_BUNDLE_RECORDS, 1u},
					    {2u, COOP_BUNDLE_RECORDS - 1}}) {
		bytes wrong = b;
		coop_bundle_put_header(dirs, entries, wrong.data());
		EXPECT_EQ(walk(wrong), -1) << dirs << ' ' << entries;
	}
	bytes wrong = started(1, 1);
	put(wrong, directory(2));
	put(wrong, file(names[0], contents[0]), &contents[0]);
	EXPECT_EQ(walk(wrong), -1);
}

TEST(bundle, holds_only_what_may_be_believed)
{
	const std::string empty, text = "text", slash = "a/b", dot = ".", up = "..", nul("a\0b", 3);
	coop_st_body e = file(names[0], text);
	EXPECT_EQ(walk_entry(e, text), 2);
	for (const std::string &name : {empty, slash, dot, up, nul})
		EXPECT_EQ(walk_entry(file(name, text), text), -1) << name;
	e.attr.version = 0;
	EXPECT_EQ(walk_entry(e, text), -1) << "no version";
	e.attr.version = 1ull << 63 | 7;
	EXPECT_EQ(walk_entry(e, text), -1) << "a provisional version";
	e = file(names[0], text);
	e.attr.size++;
	EXPECT_EQ(walk_entry(e, text), -1) << "a part of the content";
	e = file(names[0], text);
	e.attr.has = 0;
	EXPECT_EQ(walk_entry(e, text), -1) << "content without a lease";
	e.flags = 0;
	EXPECT_EQ(walk_entry(e, text), -1) << "content without the right to read it";
	EXPECT_EQ(walk_entry(e, empty), 2);
	e.fh = {};
	EXPECT_EQ(walk_entry(e, empty), 2) << "listed only";
	e.attr.has = COOP_ST_HAS_LEASE;
	EXPECT_EQ(walk_entry(e, empty), -1) << "a lease of no file";
	e = file(names[0], text);
	e.attr.mode = 0040755;
	EXPECT_EQ(walk_entry(e, text), -1) << "content of a directory";
	e = file(names[0], text);
	e.text = view(text);
	EXPECT_EQ(walk_entry(e, text), -1) << "a target of no link";
	e.attr.mode = 0120777;
	e.flags = 0;
	EXPECT_EQ(walk_entry(e, empty), 2);
	e.flags = 8;
	EXPECT_EQ(walk_entry(e, empty), -1) << "unknown flags";
	for (int i = 0; i < 3; i++) {
		coop_st_body d = directory(0);
		if (i == 0)
			d.attr.has = 0;
		else if (i == 1)
			d.attr.mode = 0100644;
		else
			d.fh = {};
		bytes b = started(1, 0);
		put(b, d);
		EXPECT_EQ(walk(b), -1) << i;
	}
}

TEST(bundle, survives_any_bytes)
{
	std::mt19937 dice(1);
	const bytes b = good();
	for (int i = 0; i < 20000; i++) {
		bytes wrong = b;
		for (unsigned k = dice() % 4 + 1; k--;)
			wrong[dice() % wrong.size()] = static_cast<u8>(dice());
		(void)walk(wrong);
	}
}

TEST(bundle, is_not_written_over_its_limits)
{
	const std::string large(COOP_BUNDLE_CONTENT + 1, 'x');
	const coop_st_body e = file(names[0], large);
	const coop_st_bytes c = view(large);
	bytes buf(2 * COOP_BUNDLE_CONTENT);
	EXPECT_EQ(coop_bundle_put(&e, &c, buf.data(), static_cast<u32>(buf.size())), -EMSGSIZE);
	const coop_st_bytes less = {c.p, 100};
	const int n = coop_bundle_put(&e, &less, buf.data(), static_cast<u32>(buf.size()));
	ASSERT_GT(n, 100);
	for (int cap = 0; cap < n; cap++)
		EXPECT_EQ(coop_bundle_put(&e, &less, buf.data(), static_cast<u32>(cap)), -EMSGSIZE);
}

TEST(bundle, names_nodes_in_place_of_a_content)
{
	const std::string none;
	coop_st_body e = file(names[0], none);
	e.flags = COOP_BUNDLE_AT_NODES;
	e.attr.size = 5000;
	for (u32 n = 0; n <= COOP_BUNDLE_NODES + 1; n++) {
		e.n_nodes = n;
		for (u32 i = 0; i < n; i++)
			e.nodes[i] = 100 + i;
		EXPECT_EQ(walk_entry(e, none), n && n <= COOP_BUNDLE_NODES ? 2 : -1) << n;
	}
	e.n_nodes = 2;
	bytes b = started(1, 1);
	put(b, directory(1));
	put(b, e, &none);
	coop_bundle at;
	coop_st_body got;
	coop_st_bytes content;
	ASSERT_EQ(coop_bundle_begin(&at, b.data(), static_cast<u32>(b.size())), 0);
	ASSERT_EQ(coop_bundle_next(&at, &got, &content), COOP_BUNDLE_DIRECTORY);
	ASSERT_EQ(coop_bundle_next(&at, &got, &content), COOP_BUNDLE_ENTRY);
	EXPECT_EQ(content.len, 0u);
	ASSERT_EQ(got.n_nodes, 2u);
	EXPECT_EQ(got.nodes[1], 101u);

	coop_st_body empty = e, large = e;
	empty.attr.size = 0;
	large.attr.size = COOP_BUNDLE_CONTENT + 1;
	for (const coop_st_body *wrong : {&empty, &large})
		EXPECT_EQ(walk_entry(*wrong, none), -1) << wrong->attr.size;
	coop_st_body both = e, unleased = e, unproved = e, link = e;
	both.flags |= COOP_BUNDLE_READ;
	unleased.attr.has = 0;
	unproved.attr.version = 0;
	link.attr.mode = 0120777;
	for (const coop_st_body *wrong : {&both, &unleased, &unproved, &link})
		EXPECT_EQ(walk_entry(*wrong, none), -1);
}
