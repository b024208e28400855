// SPDX-License-Identifier: MIT
// environment.hpp - what every part of a machine uses.
//
// The parts of a machine (machine.hpp lists them) have no lock: the core holds the one of the
// transfer machine during every call.
#pragma once

#include <algorithm>

#include "endings.hpp"
#include "registrar.hpp"

namespace coop::net::fabric
{

struct options {
	std::size_t eager = 0;       ///< largest message without an offer, in bytes
	unsigned receives = 0;       ///< buffers posted
	unsigned window = 0;         ///< unconsumed messages of a peer
	std::size_t max_message = 0; ///< bytes
	std::size_t parked = 0;      ///< bytes of small messages waiting for a buffer
	std::chrono::milliseconds hold{};
	unsigned max_links = 0;
	bool answer = true;                       ///< peers that want to connect
	bool read = true;                         ///< bulk data from peers that lend them
	bool sockets = false;                     ///< poll them one by one, for polling programs
	std::chrono::milliseconds idle{600000};   ///< unused links are closed after that
	std::chrono::milliseconds landing{60000}; ///< time for a message to fill its place
};

struct environment {
	environment(spi::sink &s, const fabric::provider &p, const fabric::options &o,
		    local_keys &k, fabric::port &via) :
		sink(s),
		provider(p),
		port(via),
		options(o),
		inject(p.inject_size()),
		pieces(p.pieces()),
		buffer_size(std::max(o.eager, control::size_most)),
		wide(p.wide()),
		ordered(p.ordered_writes()),
		memory(p, via, endings, k)
	{
	}

	spi::sink &sink;
	const fabric::provider &provider;
	fabric::port &port;
	const fabric::options options;
	const std::size_t inject;      ///< bytes that libfabric copies at once
	const std::size_t pieces;      ///< of memory in one operation
	const std::size_t buffer_size; ///< holds every small message and every control message
	const bool wide, ordered;      ///< see provider
	fabric::endings endings;
	fabric::registrar memory;
};

} // namespace coop::net::fabric
