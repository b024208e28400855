// SPDX-License-Identifier: MIT
// shape.cpp - the scenarios, a table.
#include "tests/sim/scale/shape.hpp"

namespace coop::scale
{

namespace
{

struct scenario {
	const char *name, *text;
	void (*apply)(shape &);
};

const scenario table[] = {
	{"start", "all nodes start at once and read in order", [](shape &) {}},
	{"waves", "the nodes arrive in eight waves",
	 [](shape &s) {
		 s.waves = 8;
		 s.wave_us = 4000;
	 }},
	{"dying", "1 % of the nodes die", [](shape &s) { s.dying_ppm = 10000; }},
	{"slow", "5 % of the nodes have a tenth of the rate", [](shape &s) { s.slow_ppm = 50000; }},
	{"trouble", "1 % die and 5 % are slow",
	 [](shape &s) {
		 s.dying_ppm = 10000;
		 s.slow_ppm = 50000;
	 }},
	{"partition", "an eighth of the nodes is cut off from the others for 20 ms",
	 [](shape &s) {
		 s.cut_ppm = 125000;
		 s.cut_us = 20000;
	 }},
	{"loss", "0.1 % of the datagrams are lost", [](shape &s) { s.loss_ppm = 1000; }},
	{"shuffled", "each node reads the units in an order of its own",
	 [](shape &s) { s.shuffled = true; }},
	{"files", "files of 40 units, one after the other",
	 [](shape &s) {
		 s.files = 1000;
		 s.units = 40;
	 }},
};

} // namespace

bool apply_scenario(shape &s, std::string_view name)
{
	for (const scenario &each : table) {
		if (each.name != name)
			continue;
		s.scenario = name;
		each.apply(s);
		return true;
	}
	return false;
}

std::vector<std::string> scenario_names()
{
	std::vector<std::string> out;
	for (const scenario &each : table)
		out.push_back(each.name);
	return out;
}

std::string describe_scenario(std::string_view name)
{
	for (const scenario &each : table) {
		if (each.name == name)
			return each.text;
	}
	return {};
}

} // namespace coop::scale
