// SPDX-License-Identifier: MIT
// forest.cpp - see forest.hpp.
//
// Below 16 members several colours have the same tree, so trees are drawn once, under all their
// colours. Above some members only this node's path and children are drawn.
#include "userland/cli/forest.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include "rpc/storage/forest.h"
#include "userland/cli/format.hpp"

namespace coop::cli
{

namespace
{

constexpr std::uint32_t drawn_whole = 32; // members

coop_role role(const forest_record &f, std::uint32_t index, std::uint32_t colour)
{
	coop_role r;
	coop_forest_role(f.members, index, colour, &r);
	return r;
}

std::vector<std::uint32_t> children(const forest_record &f, std::uint32_t index,
				    std::uint32_t colour)
{
	std::vector<std::uint32_t> out;
	for (std::uint32_t i = 0; i < f.members; i++)
		if (role(f, i, colour).parent == index)
			out.push_back(i);
	return out;
}

std::string name(const forest_record &f, std::uint32_t index)
{
	return std::to_string(index) + (index == f.index ? " (this node)" : "");
}

void draw(std::string &out, const forest_record &f, std::uint32_t index, std::uint32_t colour,
	  unsigned depth)
{
	out += std::string(2 + 2 * std::size_t{depth}, ' ') + name(f, index) + "\n";
	for (const std::uint32_t child : children(f, index, colour))
		draw(out, f, child, colour, depth + 1);
}

void draw_path(std::string &out, const forest_record &f, std::uint32_t colour)
{
	out += "  storage";
	std::vector<std::uint32_t> path{f.index};
	for (std::uint32_t up; (up = role(f, path.back(), colour).parent) != COOP_NONE;)
		path.push_back(up);
	for (auto i = path.rbegin(); i != path.rend(); ++i)
		out += " > " + name(f, *i);
	const std::vector<std::uint32_t> fed = children(f, f.index, colour);
	for (std::size_t i = 0; i < fed.size(); i++)
		out += (i == 0 ? " > " : ", ") + std::to_string(fed[i]);
	out += "\n";
}

std::string join(const std::vector<std::uint32_t> &numbers)
{
	std::string out;
	for (const std::uint32_t n : numbers)
		out += (out.empty() ? "" : " ") + std::to_string(n);
	return out;
}

// Colours with the same drawing, by that drawing.
std::map<std::string, std::vector<std::uint32_t>> trees(const forest_record &f)
{
	std::map<std::string, std::vector<std::uint32_t>> out;
	for (std::uint32_t c = 0; c < f.colours.size(); c++) {
		std::string drawing;
		if (f.members > drawn_whole)
			draw_path(drawing, f, c);
		else
			for (const std::uint32_t root : children(f, COOP_NONE, c))
				draw(drawing, f, root, c, 0);
		out[drawing].push_back(c);
	}
	return out;
}

} // namespace

std::vector<std::uint32_t> forest_children(const forest_record &f, std::uint32_t colour)
{
	return children(f, f.index, colour);
}

result<forest_record> parse_forest(std::string_view text)
{
	const failure odd{exit_failure, "the mount's attribute coopfs.forest has an unknown form"};
	std::istringstream lines{std::string(text)};
	forest_record f;
	for (std::string line; std::getline(lines, line);) {
		std::istringstream in(line);
		std::string kind, word;
		in >> kind;
		if (kind == "forest") {
			in >> word >> f.members >> word >> f.index;
		} else if (kind == "colour") {
			std::size_t number = 0;
			forest_record::colour c;
			in >> number >> word >> c.level >> word >> c.parent >> word >> c.alternate;
			if (number != f.colours.size())
				return odd;
			f.colours.push_back(std::move(c));
		}
		if (in.fail())
			return odd;
	}
	const bool whole = f.colours.empty() || f.colours.size() == COOP_FOREST_COLOURS;
	if (f.members == 0 || f.index >= f.members || !whole)
		return odd;
	return f;
}

std::string forest_text(const forest_record &f)
{
	if (f.colours.empty())
		return "no other node has it open, or it is smaller than 256 KiB; this node reads "
		       "from storage and from nodes that had it open before\n";
	std::string out = std::to_string(f.members) + " nodes have it open; this is number " +
			  std::to_string(f.index) + "\n\nthis node asks\n";
	std::map<std::pair<std::string, std::string>, std::vector<std::uint32_t>> asks;
	for (std::uint32_t c = 0; c < f.colours.size(); c++)
		asks[{f.colours[c].parent, f.colours[c].alternate}].push_back(c);
	table whom({"first", "then", "for colours"});
	whom.set_left({true, true, true});
	for (const auto &[who, colours] : asks)
		whom.add({who.first == "-" ? "storage" : printable(who.first),
			  who.second == "-" ? (who.first == "-" ? "" : "storage")
					    : printable(who.second),
			  join(colours)});
	out += whom.text();
	for (const auto &[drawing, colours] : trees(f))
		out += "\ncolours " + join(colours) + "\n" + drawing;
	return out;
}

} // namespace coop::cli
