// SPDX-License-Identifier: MIT
// plot.hpp - charts with logarithmic axes, drawn by gnuplot.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trouble.hpp"

namespace coop::net_tools
{

struct chart {
	struct curve {
		std::string name;
		std::vector<std::pair<double, double>> points;
	};
	std::string title, x, y;
	std::vector<curve> curves;
};

/// Whether the name ends in .svg or .png.
bool can_draw(const std::string &file);
/// Checks the file and gnuplot before there is something to draw.
trouble may_draw(const std::string &file);
/// Draws the charts side by side with gnuplot.
trouble draw(const std::vector<chart> &, const std::string &file);

} // namespace coop::net_tools
