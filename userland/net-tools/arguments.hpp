// SPDX-License-Identifier: MIT
// arguments.hpp - checks of command line words, and messages about wrong ones.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace coop::net_tools
{

/// The error, the nearest valid word, and the --help to read.
std::string parse_failure(const CLI::App *, const CLI::Error &);

/// A number of bytes, with or without a unit; replaced by the number.
CLI::Validator size_word();
/// Digits only: the parser would take -1 for the largest number.
CLI::Validator whole_number();
/// Any word that is not obviously the second word of a list.
CLI::Validator address_word();
/// Lists the transports that reach other processes; for the others, `serve` gives the reason later.
CLI::Validator serving_transport();

/// Splits a list; `part` checks and transforms each word. @throw CLI::ValidationError: an empty
/// word, or an error of `part`.
std::vector<std::string> parts_of(const std::string &option, const std::string &list,
				  const CLI::Validator &part);

/// An option with comma-separated lists; several occurrences are joined. The initial value of `to`
/// is the default.
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
