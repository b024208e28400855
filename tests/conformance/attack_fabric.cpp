// SPDX-License-Identifier: MIT
// attack_fabric.cpp - an enemy among the peers of the fabric transport.
//
// It connects, with a greeting that may be refused, and sends: noise under words of all kinds;
// every control message with numbers out of range; messages beyond its window; and, where the
// provider guards memory, writes with invented keys. Then it hangs up. The seed decides all of
// it.
#include "attack_fabric.hpp"

#include <cstring>
#include <random>
#include <system_error>

#include "fabric_enemy.hpp"

namespace conformance
{

using namespace coop::net::fabric;

bool attack_fabric(const std::string &provider, const net::address &a, std::uint64_t seed)
{
	std::mt19937_64 random(seed);
	const auto pick = [&](std::uint64_t n) { return random() % n; };
	net::address own = a;
	own.id = static_cast<std::uint32_t>(seed % net::address::machines);
	if (a.kind == net::address::form::lnet)
		own.portal = 13;
	else
		own.id += 20000; // a port of no machine under test
	fabric_enemy e(provider, own);
	hello h = e.greeting_of(a);
	if (pick(4) == 0)
		h.window = static_cast<std::uint16_t>(random());
	if (pick(4) == 0)
		h.eager = static_cast<std::uint32_t>(random());
	if (pick(8) == 0)
		h.to = random();
	if (pick(8) == 0)
		h.from.id ^= 1;
	if (!e.connect(a, h))
		return false;
	std::vector<std::byte> text(20000);
	for (std::byte &b : text)
		b = std::byte(random());
	for (int i = 0; i < 64 && e.linked(); i++) {
		const std::uint64_t base = pick(8) ? e.link().base : random();
		const std::uint32_t id = static_cast<std::uint32_t>(
			pick(2) || e.heard.empty() ? random() : e.heard[pick(e.heard.size())].id);
		switch (pick(6)) {
		case 0:
			e.say(random(), {text.data(), pick(text.size())});
			break;
		case 1:
			e.say(word::with(base, kind::message, unsigned(pick(3))),
			      {text.data(), pick(2) ? pick(300) : pick(text.size())});
			break;
		case 2:
			e.write({pick(2) ? 0 : random(), 0, random()}, pick(5000),
				pick(2) ? 0 : word::landed(base, id));
			break;
		default: {
			control c;
			c.verb = static_cast<enum control::verb>(pick(control::verbs));
			c.id = pick(2) ? id : static_cast<std::uint32_t>(random());
			c.peer = pick(2) ? id : static_cast<std::uint32_t>(random());
			c.status = pick(2) ? 0 : -static_cast<int>(pick(5000));
			c.length = pick(2) ? pick(1u << 21) : random();
			c.token = random();
			c.key = random();
			c.count = pick(4) ? pick(3) : pick(control::regions_most + 1);
			for (std::size_t k = 0; k < c.count; k++)
				c.regions[k] = {random(), random(), random()};
			e.say(c);
			break;
		}
		}
		e.look();
	}
	return true;
}

} // namespace conformance
