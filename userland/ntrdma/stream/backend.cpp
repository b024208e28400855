// SPDX-License-Identifier: MIT
// backend.cpp - see backend.hpp.
#include "userland/ntrdma/stream/backend.hpp"

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace coop::ntrdma
{

// A word that is not known could mean that a network is meant to be used, or not, so it is refused.
backend chosen_backend()
{
	const char *text = std::getenv("COOP_NTRDMA_BACKEND");
	std::string_view word = text ? text : "";
	if (word.empty() || word == "window")
		return backend::window;
	if (word == "tcp")
		return backend::tcp;
	if (word == "auto")
		return backend::both;
	throw std::system_error{EINVAL, std::generic_category(),
				"COOP_NTRDMA_BACKEND is none of window, tcp, auto"};
}

} // namespace coop::ntrdma
