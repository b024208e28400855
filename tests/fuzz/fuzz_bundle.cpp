// SPDX-License-Identifier: MIT
// fuzz_bundle.cpp - the decoder of bundles, whose bytes come from other nodes.
//
// It stays within the bytes, ends, and what it accepts is what the encoder writes.
#include <cstdint>
#include <cstring>
#include <vector>

#include "rpc/storage/bundle.h"
#include "tests/fuzz/check.hpp"

namespace
{

void check_within(const coop_st_bytes &s, const std::uint8_t *data, std::size_t size)
{
	FUZZ_CHECK(!s.len || (s.p >= data && s.p + s.len <= data + size));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
	coop_bundle b;
	coop_st_body body;
	coop_st_bytes content;
	std::vector<std::uint8_t> again(COOP_BUNDLE_HEADER);
	std::uint32_t dirs = 0, entries = 0;
	int what;
	if (size > COOP_BUNDLE_BYTES || coop_bundle_begin(&b, data, static_cast<u32>(size)))
		return 0;
	while ((what = coop_bundle_next(&b, &body, &content)) > 0) {
		for (const coop_st_bytes *s : {&body.fh, &body.name, &body.text, &content})
			check_within(*s, data, size);
		const bool dir = what == COOP_BUNDLE_DIRECTORY;
		(dir ? dirs : entries)++;
		FUZZ_CHECK(dirs + entries <= COOP_BUNDLE_RECORDS);
		const std::size_t at = again.size();
		again.resize(at + COOP_BUNDLE_RECORD + COOP_ST_BODY_MAX + content.len);
		const int n = coop_bundle_put(&body, dir ? nullptr : &content, again.data() + at,
					      static_cast<u32>(again.size() - at));
		FUZZ_CHECK(n > 0);
		again.resize(at + static_cast<std::size_t>(n));
	}
	if (what)
		return 0;
	coop_bundle_put_header(dirs, entries, again.data());
	FUZZ_CHECK(again.size() == size && !std::memcmp(again.data(), data, size));
	return 0;
}
