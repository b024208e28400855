// SPDX-License-Identifier: MIT
// arguments.cpp - see arguments.hpp.
#include "arguments.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "coop/net.hpp"

namespace coop::net_tools
{

namespace
{

// The edit distance of two words.
std::size_t distance(const std::string &a, const std::string &b)
{
	std::vector<std::size_t> row(b.size() + 1);
	std::iota(row.begin(), row.end(), std::size_t{0});
	for (std::size_t i = 0; i < a.size(); i++) {
		std::size_t corner = std::exchange(row[0], i + 1);
		for (std::size_t j = 0; j < b.size(); j++) {
			const std::size_t changed = corner + (a[i] != b[j]);
			corner = row[j + 1];
			row[j + 1] = std::min({changed, row[j] + 1, corner + 1});
		}
	}
	return row.back();
}

// The known word that was probably meant, or nothing. `common`: a prefix of all words, which is
// ignored.
std::string nearest(const std::string &word, const std::vector<std::string> &known,
		    const std::string &common = "")
{
	std::string best;
	if (word.size() <= common.size())
		return best;
	std::size_t least = std::min<std::size_t>(3, (word.size() - common.size()) / 3 + 1);
	for (const std::string &k : known) {
		const std::size_t d =
			k.starts_with(word) || word.starts_with(k) ? 1 : distance(word, k);
		if (d < least) {
			least = d;
			best = k;
		}
	}
	return best;
}

std::string listed(const std::vector<std::string> &words)
{
	std::string text;
	for (const std::string &w : words)
		text += (text.empty() ? "" : ", ") + w;
	return text;
}

bool digit(char c)
{
	return c >= '0' && c <= '9';
}

// Splits a number from its unit. False: there is no number.
bool number_and_unit(const std::string &word, std::string &unit)
{
	const auto end = std::find_if_not(word.begin(), word.end(), digit);
	unit.assign(end, word.end());
	std::transform(unit.begin(), unit.end(), unit.begin(), [](char c) {
		return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
	});
	return end != word.begin();
}

bool is_unit(const std::string &u)
{
	const std::vector<std::string> known = {"",    "b", "k",  "kb",  "kib", "m",  "mb",
						"mib", "g", "gb", "gib", "t",   "tb", "tib"};
	return std::find(known.begin(), known.end(), u) != known.end();
}

bool is_size(const std::string &word)
{
	std::string unit;
	return number_and_unit(word, unit) && is_unit(unit);
}

// The value of a size. False: out of range.
bool bytes_of(const std::string &word, std::uint64_t &bytes)
{
	std::string unit;
	(void)number_and_unit(word, unit);
	const char *const end = word.data() + word.size() - unit.size();
	if (std::from_chars(word.data(), end, bytes).ec != std::errc())
		return false;
	const std::size_t power = unit.empty() ? 0 : std::string("bkmgt").find(unit[0]);
	const std::uint64_t factor = std::uint64_t{1} << 10 * power;
	if (bytes > std::numeric_limits<std::uint64_t>::max() / factor)
		return false;
	bytes *= factor;
	return true;
}

} // namespace

std::vector<std::string> parts_of(const std::string &option, const std::string &list,
				  const CLI::Validator &part)
{
	std::vector<std::string> all;
	for (std::size_t at = 0; at <= list.size();) {
		const std::size_t end = std::min(list.find(',', at), list.size());
		std::string word = list.substr(at, end - at);
		at = end + 1;
		if (word.empty())
			throw CLI::ValidationError(option,
						   "'" + list +
							   "' has an empty place; a list is "
							   "words with a comma between two");
		if (const std::string wrong = part(word); !wrong.empty())
			throw CLI::ValidationError(option, wrong);
		all.push_back(std::move(word));
	}
	return all;
}

std::string parse_failure(const CLI::App *app, const CLI::Error &e)
{
	const auto used = app->get_subcommands();
	std::vector<std::string> extra = app->remaining(true);
	std::string what = e.what(), help = app->get_name();
	std::vector<std::string> known;
	if (used.empty()) {
		for (const CLI::App *a : app->get_subcommands({}))
			known.push_back(a->get_name());
		if (!extra.empty()) {
			const std::string meant = nearest(extra.front(), known);
			what = "'" + extra.front() + "' is no subcommand" +
			       (meant.empty() ? "" : ", perhaps " + meant);
		}
		what += "; there are: " + listed(known);
	} else {
		help += ' ' + used.back()->get_name();
		// The word after an unknown option is misparsed: report the option.
		if (!extra.empty() && extra.front().starts_with("-")) {
			for (const CLI::Option *o : used.back()->get_options())
				for (const std::string &name : o->get_lnames())
					known.push_back("--" + name);
			const std::string meant = nearest(extra.front(), known, "--");
			what = "'" + extra.front() + "' is no option" +
			       (meant.empty() ? "" : ", perhaps " + meant);
		}
	}
	return "coopnet: " + what + "; `" + help + " --help` shows the usage\n";
}

CLI::Validator size_word()
{
	return CLI::Validator(
		[](std::string &word) {
			if (!is_size(word))
				return "'" + word +
				       "' is no size: a number of bytes, with k, m or g behind it "
				       "for "
				       "2^10, 2^20 or 2^30; several are one word, separated by "
				       "commas: 8,64";
			std::uint64_t bytes = 0;
			if (!bytes_of(word, bytes))
				return "'" + word +
				       "' is out of range: 2^64 - 1 bytes are the most";
			word = std::to_string(bytes);
			return std::string();
		},
		"", "size");
}

CLI::Validator whole_number()
{
	return CLI::Validator(
		[](std::string &word) {
			return !word.empty() && std::all_of(word.begin(), word.end(), digit)
				       ? std::string()
				       : "'" + word + "' is no number";
		},
		"", "number");
}

CLI::Validator address_word()
{
	return CLI::Validator(
		[](std::string &word) {
			if (word.empty())
				return std::string("it is empty");
			return is_size(word) ? "'" + word +
						       "' is no address; a list is one word, "
						       "separated by commas: 8,64"
					     : std::string();
		},
		"", "address");
}

CLI::Validator serving_transport()
{
	std::vector<std::string> all = net::domain::transports(), others;
	std::copy_if(all.begin(), all.end(), std::back_inserter(others),
		     [](const std::string &t) { return t != "mem"; });
	std::string shown;
	for (const std::string &t : others)
		shown += (shown.empty() ? "" : ",") + t;
	CLI::Validator v = CLI::IsMember(all);
	v.description("{" + shown + "}");
	return v;
}

} // namespace coop::net_tools
