// SPDX-License-Identifier: MIT
// core.hpp - the core, as the parts of the kernel transport see it in their tests.
#pragma once

#include <cerrno>
#include <map>
#include <string>
#include <vector>

#include "userland/net/transport.hpp"

namespace kernel_test
{

using namespace coop::net;

/// The core: it believes that messages come in order, as receive_queue::received_in() does.
class core : public spi::sink
{
public:
	struct slot {
		std::size_t size, min_size;
		std::uint32_t places;
	};
	std::map<spi::token, slot> open;
	std::vector<std::string> heard;
	std::map<spi::token, int> ended;
	bool held = false;

	bool received_in(spi::token t, std::size_t offset, std::size_t length,
			 spi::peer_number) override
	{
		const auto at = open.find(t);
		if (at == open.end()) {
			heard.push_back("lost");
			return false;
		}
		slot &s = at->second;
		heard.push_back(std::to_string(offset) + '+' + std::to_string(length));
		s.places--;
		if (s.places && s.size - offset - length >= s.min_size)
			return true;
		open.erase(at);
		return false;
	}
	void completed(spi::token t, int status, std::size_t) override
	{
		ended[t] = status;
		open.erase(t);
	}
	void started() override {}
	void failed(int) override {}
	void stopped() override {}
	const spi::transfer *find(spi::token) override { return nullptr; }
	int place(std::size_t, spi::landing &) override { return -ENOSYS; }
	void received(const spi::landing &, spi::peer_number) override {}
	int receive(const void *, std::size_t, spi::peer_number) override { return -ENOSYS; }
	void abandon(const spi::landing &) override {}
	spi::token use(spi::token, std::size_t, std::size_t, spi::peer_number) override
	{
		return 0;
	}
	void given_up(spi::token) override {}
	spi::peer_number peer(const address &) override
	{
		held = true;
		return 9;
	}
	void release(spi::peer_number) override { held = false; }
	time_point now() override { return {}; }
	bool polled() const override { return false; }
};

} // namespace kernel_test
