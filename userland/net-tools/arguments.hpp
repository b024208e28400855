// SPDX-License-Identifier: MIT
// arguments.hpp - what is checked of words of the command line, and what is said of wrong ones.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace coop::net_tools
{

/// What is wrong, the nearest word that would not be, and whose --help tells more.
std::string parse_failure(const CLI::App *, const CLI::Error &);

/// A number of bytes, with a unit or without; becomes the number.
CLI::Validator size_word();
/// Digits alone: the parser takes -1 for the largest number there is.
CLI::Validator whole_number();
/// Anything that is not evidently the second word of a list.
CLI::Validator address_word();
/// The transports that reach other processes are listed; the reason why another one does not
/// serve is said by who knows it.
CLI::Validator serving_transport();

} // namespace coop::net_tools
