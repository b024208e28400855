// SPDX-License-Identifier: MIT
// frame.hpp - one picture of `coopfs top` as styled text, independent of its display: the live view
// paints it with ncurses, --once prints it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "userland/cli/control.hpp"
#include "userland/cli/mounts.hpp"

namespace coop::cli
{

enum class style : std::uint8_t {
	plain,
	strong,
	faint,
	good,
	warn,
	bad,
	from_buffer,
	from_peer,
	from_storage
};

struct span {
	std::string text;
	style look;
};

class line
{
public:
	line &add(std::string text, style look = style::plain);
	// Fills with blanks up to this column; adds at least one blank.
	line &to(std::size_t column);
	// Places text so that it ends before this column.
	line &right(std::string text, std::size_t column, style look = style::plain);
	void cut(std::size_t width);
	std::size_t width() const { return width_; }
	std::string text() const;
	const std::vector<span> &spans() const { return spans_; }

private:
	std::vector<span> spans_;
	std::size_t width_ = 0;
};

// A mount between two readings.
struct mount_view {
	mount_entry mount;
	std::string error;         // not empty: it did not answer; the rest is from before
	mount_stats total, recent; // since the last reset; since the previous reading
	std::vector<peer_record> peers, peers_before;
	double seconds = 0;         // between the two readings; 0: there was only one
	std::deque<double> history; // bytes a second delivered to readers, oldest first
};

struct frame_size {
	std::size_t columns = 80, rows = 24;
};

// Never wider than columns nor longer than rows: mounts share the rows, and a last line counts
// those that do not fit. rows 0: no limit. ascii: no block characters.
std::vector<line> draw_frame(const std::vector<mount_view> &views, double interval_s,
			     frame_size size, bool ascii);

// A bar of 'columns' columns, filled by fraction (clamped to 0..1) to an eighth of a column.
std::string bar(double fraction, std::size_t columns, bool ascii);
std::string sparkline(const std::deque<double> &values, double full, std::size_t columns,
		      bool ascii);

} // namespace coop::cli
