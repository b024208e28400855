// SPDX-License-Identifier: MIT
// stranger.cpp - in place of `coopnet serve`: one from before its calls, another version of it, or
// another program.
//
//     coop-net-stranger older|newer|other TRANSPORT ADDRESS [KEY=VALUE...]
//
// It says "serving at ADDRESS", and ends with its standard input.
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>
#include <unistd.h>

#include "coop/net.hpp"

namespace
{

namespace net = coop::net;

int until_eof(int status, const std::string &address)
{
	if (status) {
		std::fprintf(stderr, "%s: %s\n", address.c_str(), std::strerror(-status));
		return 1;
	}
	std::printf("serving at %s\n", address.c_str());
	std::fflush(stdout);
	char some[64];
	while (::read(0, some, sizeof(some)) > 0)
		;
	return 0;
}

// Answers a command of 1, an echo, and drops what it does not know: heads begin with 0xc7.
int older(net::domain &d, const std::string &address)
{
	net::messenger m(d);
	const int status = m.start(address, [&m](net::endpoint &from,
						 std::span<const std::byte> bytes) {
		if (bytes.size() < 8 || bytes[0] != std::byte{0xc7} || bytes[1] != std::byte{1})
			return;
		std::vector<std::byte> answer(bytes.begin(), bytes.end());
		answer[1] = std::byte{0x81};
		if (m.post(from, answer))
			std::fputs("an echo without an answer\n", stderr);
	});
	return until_eof(status, address);
}

// Method 1 tells more than this version knows.
int newer(net::domain &d, const std::string &address)
{
	net::rpc r(d);
	r.serve(1, [](const net::request &q) {
		std::array<std::byte, 72> told{};
		told[0] = std::byte{3};
		q.answer(told);
	});
	return until_eof(r.start(address), address);
}

int other(net::domain &d, const std::string &address)
{
	net::rpc r(d);
	return until_eof(r.start(address), address);
}

} // namespace

int main(int argc, char **argv)
try {
	if (argc < 4)
		return 2;
	net::domain_options o{argv[2]};
	for (int i = 4; i < argc; i++) {
		const std::string_view word = argv[i];
		const std::size_t equals = word.find('=');
		o.parameters.emplace_back(word.substr(0, equals), word.substr(equals + 1));
	}
	net::domain d(o);
	const std::string_view kind = argv[1];
	return kind == "older"   ? older(d, argv[3])
	       : kind == "newer" ? newer(d, argv[3])
				 : other(d, argv[3]);
} catch (const std::exception &e) {
	std::fprintf(stderr, "coop-net-stranger: %s\n", e.what());
	return 1;
}
