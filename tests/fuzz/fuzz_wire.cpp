// SPDX-License-Identifier: MIT
// fuzz_wire.cpp - decoding control messages from any sender.
//
// Input: a datagram. The program decodes it as it is, and again with correct magic, length and
// MAC, as a peer with the key could send it. A decoded message must encode to the same bytes:
// every message has one form.
#include <cstdint>
#include <cstring>
#include <vector>

#include "rpc/base/mac.h"
#include "rpc/fetch/wire.h"
#include "tests/fuzz/check.hpp"

namespace
{

constexpr std::uint8_t key[16] = {1, 2, 3};

void decode(const std::vector<std::uint8_t> &in)
{
	coop_msg m;
	std::memset(&m, 0, sizeof(m));
	if (coop_wire_decode(&m, key, in.data(), static_cast<u32>(in.size())) != COOP_DECODE_OK)
		return;
	std::vector<std::uint8_t> out(in.size());
	FUZZ_CHECK(coop_wire_encode(&m, key, out.data(), static_cast<u32>(out.size())) ==
		   in.size());
	FUZZ_CHECK(out == in);
	coop_msg again;
	std::memset(&again, 0, sizeof(again));
	FUZZ_CHECK(coop_wire_decode(&again, key, out.data(), static_cast<u32>(out.size())) ==
		   COOP_DECODE_OK);
	FUZZ_CHECK(!std::memcmp(&m, &again, sizeof(m)));
	// An encoder must never write past its room.
	if (!out.empty()) {
		out.pop_back();
		FUZZ_CHECK(!coop_wire_encode(&m, key, out.data(), static_cast<u32>(out.size())));
	}
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
	std::vector<std::uint8_t> in(data, data + size);
	decode(in);
	if (size < COOP_WIRE_HEADER + COOP_WIRE_MAC || size > 2 * COOP_CTRL_MAX)
		return 0;
	const std::uint32_t magic = cpu_to_le32(COOP_WIRE_MAGIC);
	const std::uint16_t length = cpu_to_le16(static_cast<std::uint16_t>(size));
	std::memcpy(in.data(), &magic, sizeof(magic));
	std::memcpy(in.data() + 20, &length, sizeof(length));
	const std::uint64_t mac = cpu_to_le64(coop_mac(key, in.data(), size - COOP_WIRE_MAC));
	std::memcpy(in.data() + size - COOP_WIRE_MAC, &mac, sizeof(mac));
	decode(in);
	return 0;
}
