// SPDX-License-Identifier: MIT
// stranger.cpp - in place of `coopnet serve`: one from before its calls, another version of it,
// another program, or one whose answers to calls do not come.
//
//     coop-net-stranger older|newer|other|astray|busy TRANSPORT ADDRESS [KEY=VALUE...]
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

// Answers a command of 1, an echo, and drops what it does not know: heads begin with 0xc7. `other`
// changes the number of the run.
void echo(net::messenger &m, net::endpoint &from, std::span<const std::byte> bytes,
	  std::byte other = {})
{
	if (bytes.size() < 8 || bytes[0] != std::byte{0xc7} || bytes[1] != std::byte{1})
		return;
	std::vector<std::byte> answer(bytes.begin(), bytes.end());
	answer[1] = std::byte{0x81};
	answer[2] ^= other;
	if (m.post(from, answer))
		std::fputs("an echo without an answer\n", stderr);
}

int older(net::domain &d, const std::string &address, std::byte other = {})
{
	net::messenger m(d);
	const int status = m.start(address, [&m, other](net::endpoint &from, auto bytes) {
		echo(m, from, bytes, other);
	});
	return until_eof(status, address);
}

// Answers messages, and keeps calls.
class busy final : net::buffer_handler
{
public:
	explicit busy(net::domain &d) :
		pool_(d, {.buffers = 4, .segment_size = 65536}),
		machine_(d),
		messages_(d, machine_),
		calls_(d, machine_)
	{
		calls_.serve(1, [this](const net::request &q) { kept_.push_back(q); });
	}
	~busy()
	{
		if (machine_.stop(true) == 0)
			(void)machine_.wait(net::tm_state::stopped);
		calls_.stop();
	}
	int serve(const std::string &address)
	{
		int status = machine_.attach(pool_, *this, 8192, 64);
		if (!status)
			status = machine_.start(address);
		if (!status)
			status = machine_.wait(net::tm_state::started);
		return until_eof(status, address);
	}

private:
	void on_buffer(const net::buffer_event &e) override
	{
		if (e.sender && e.status == 0) {
			const auto *base = static_cast<std::byte *>(e.buffer->segments()[0].base);
			const std::span<const std::byte> m(base + e.offset, e.length);
			if (!calls_.take(*e.sender, m))
				echo(messages_, *e.sender, m);
		}
		if (!e.queued)
			(void)pool_.put(e.buffer);
	}

	std::vector<net::request> kept_;
	net::buffer_pool pool_;
	net::transfer_machine machine_;
	net::messenger messages_;
	net::rpc calls_;
};

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
	return kind == "older"    ? older(d, argv[3])
	       : kind == "astray" ? older(d, argv[3], std::byte{1})
	       : kind == "busy"   ? busy(d).serve(argv[3])
	       : kind == "newer"  ? newer(d, argv[3])
				  : other(d, argv[3]);
} catch (const std::exception &e) {
	std::fprintf(stderr, "coop-net-stranger: %s\n", e.what());
	return 1;
}
