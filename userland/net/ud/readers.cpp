// SPDX-License-Identifier: MIT
// readers.cpp - see readers.hpp.
#include "readers.hpp"

#include <cerrno>

namespace coop::net::ud
{

void readers::began(std::uint32_t index, identity reader, std::uint64_t now)
{
	if (begun_.empty())
		look_at_ = now + watch_every_us;
	begun_.join(
		index, [this](auto i) -> auto & { return operations_[i].begun_at; });
	operations_[index].reader = reader;
	operations_[index].asked = false;
}

void readers::left(std::uint32_t index)
{
	begun_.leave(
		index, [this](auto i) -> auto & { return operations_[i].begun_at; });
	operations_[index].asked = false;
}

void readers::due(std::uint64_t now, std::vector<std::uint32_t> &out)
{
	look_at_ = now + watch_every_us;
	for (const std::uint32_t index : begun_) {
		op &o = operations_[index];
		if (o.serving || now < o.ask_at)
			continue;
		o.ask_at = now + probe_every_us; // if it cannot be asked now
		out.push_back(index);
	}
}

void readers::asked(std::uint32_t index)
{
	operations_[index].asked = true;
	operations_[index].ask_at = ~0ull; // until that is over
}

int readers::answered(std::uint32_t index, int err, std::uint64_t now)
{
	op &o = operations_[index];
	if (!o.begun_at)
		return 0;
	o.ask_at = now + probe_every_us;
	if (!o.asked)
		return 0; // it reads again
	switch (err) {
	case -ECONNREFUSED: // the host is there, the machine is not
		return -ECONNRESET;
	case -EHOSTDOWN:
	case -EHOSTUNREACH: // no session: its requests are all that was heard of it
		return -EHOSTDOWN;
	default: // it answers, or sessions ended under the question: ask again later
		return 0;
	}
}

int readers::gave_up(std::uint32_t index, outcome result, identity from)
{
	op &o = operations_[index];
	if (!o.asked || !(from == o.reader))
		return 0;
	if (result == outcome::gone)
		return -ECONNRESET;
	left(index);
	return 0;
}

} // namespace coop::net::ud
