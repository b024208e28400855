// SPDX-License-Identifier: MIT
// fuzz_addr.cpp - the line that registers a peer.
//
// A line that parses must give a sendable address, whose text must parse to the same address; a
// line that does not parse must leave the caller's address alone.
#include <cstdint>
#include <cstring>
#include <vector>

#include "rpc/base/addr.h"
#include "tests/fuzz/check.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
	// No terminator and no slack, so that ASan finds a read past the end.
	std::vector<char> text;
	text.reserve(size ? size : 1);
	text.assign(data, data + size);
	coop_addr a, untouched;
	std::memset(&a, 0x5a, sizeof(a));
	untouched = a;
	const int err = coop_addr_parse(text.data(), text.size(), &a);
	FUZZ_CHECK(err == 0 || err == -EINVAL);
	if (err) {
		FUZZ_CHECK(!std::memcmp(&a, &untouched, sizeof(a)));
		return 0;
	}
	FUZZ_CHECK(coop_addr_valid(&a));
	char line[COOP_ADDR_TEXT];
	const int len = coop_addr_format(&a, line, sizeof(line));
	FUZZ_CHECK(len > 0 && len < static_cast<int>(sizeof(line)) &&
		   std::strlen(line) == static_cast<std::size_t>(len));
	coop_addr b;
	FUZZ_CHECK(coop_addr_parse(line, static_cast<std::size_t>(len), &b) == 0);
	FUZZ_CHECK(!std::memcmp(&a, &b, sizeof(a)));
	for (int room = 0; room <= len; ++room)
		FUZZ_CHECK(coop_addr_format(&a, line, static_cast<std::size_t>(room)) == -ENOSPC);
	return 0;
}
