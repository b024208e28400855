// SPDX-License-Identifier: MIT
// fuzz_net_descriptor.cpp - bulk descriptors and addresses from hostile bytes.
//
// Accepted bytes have one encoding: they encode to the same bytes. Half of the inputs get a
// correct checksum, because otherwise none would pass it.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "userland/net/descriptor.hpp"

using namespace coop::net;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
	address a;
	const std::string_view text(reinterpret_cast<const char *>(data), size);
	if (parse(text, a) == 0 && (!is_valid(a) || parse(format(a), a) || text.size() > 80))
		std::abort();

	std::vector<std::byte> bytes(size);
	if (size)
		std::memcpy(bytes.data(), data, size);
	core::descriptor d;
	if (core::decode(bytes, d) != 0) {
		core::seal(bytes);
		if (core::decode(bytes, d) != 0)
			return 0;
	}
	std::vector<std::byte> again(core::descriptor::fixed + d.part.size());
	if (core::encode(d, again.data()) != bytes.size() || again != bytes)
		std::abort();
	if (!is_valid(d.machine) || d.machine.wildcard())
		std::abort();
	return 0;
}
