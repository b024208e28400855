// SPDX-License-Identifier: MIT
// format.hpp - numbers and tables for people, with a fixed number of columns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "userland/cli/control.hpp"

namespace coop::cli
{

std::string human_bytes(double bytes);           // "0 B", "999 B", "1.0 KiB", "12.3 MiB", "1.2 TiB"
std::string human_rate(double bytes_per_second); // the same with "/s"
std::string human_time_us(std::uint64_t us);     // "64 us", "1.0 ms", "2.1 s"
std::string
at_most_us(std::uint64_t us); // "<64 us"; "-" for 0, which means that nothing was counted
std::string percent(std::uint64_t part, std::uint64_t whole); // "97.3 %"; "-" if whole is 0

// Columns of a UTF-8 text: one for each character, which holds for everything the program prints.
std::size_t columns(std::string_view text);

// Makes control characters visible, so that no text of a mount can control the terminal.
std::string printable(std::string_view text);

// The first column is aligned left, the others right, unless set_left() sets them all.
class table
{
public:
	explicit table(std::vector<std::string> heading) : rows_{std::move(heading)} {}
	void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
	void set_left(std::vector<bool> left) { left_ = std::move(left); }
	std::string text() const;

private:
	std::vector<std::vector<std::string>> rows_;
	std::vector<bool> left_;
};

// The output of `coopfs stats` and `coopfs peers` for one mount.
// This node's part in spreading files, in one line; empty: it is in no forest and never was asked.
std::string forest_line(const mount_stats &);
std::string stats_table(const mount_stats &);
std::string peers_table(const std::vector<peer_record> &);

} // namespace coop::cli
