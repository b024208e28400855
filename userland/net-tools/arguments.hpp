// SPDX-License-Identifier: MIT
// arguments.hpp - what is checked of words of the command line, and what is said of wrong ones.
#pragma once

#include <string>
#include <vector>

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

/// The words of one list, each as `part` leaves it. @throw CLI::ValidationError: an empty one, or
/// what `part` says of one.
std::vector<std::string> parts_of(const std::string &option, const std::string &list,
				  const CLI::Validator &part);

/// An option of lists, separated by commas; given more than once, they are one. What `to` has
/// before is the default.
template <class value>
CLI::Option *add_list(CLI::App &app, const std::string &names, std::vector<value> &to,
		      const std::string &help, const CLI::Validator &part)
{
	const std::string name = names.substr(names.find("--"));
	CLI::Option *const o = app.add_option(
		names,
		[&to, name, part](const CLI::results_t &lists) {
			to.clear();
			for (const std::string &list : lists) {
				for (const std::string &word : parts_of(name, list, part)) {
					value v{};
					if (!CLI::detail::lexical_cast(word, v))
						throw CLI::ValidationError(
							name, "'" + word + "' is out of range");
					to.push_back(std::move(v));
				}
			}
			return true;
		},
		help);
	return o->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(false);
}

} // namespace coop::net_tools
