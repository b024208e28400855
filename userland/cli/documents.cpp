// SPDX-License-Identifier: MIT
// documents.cpp - whole outputs, made of the parts in json.hpp.
#include "userland/cli/documents.hpp"

#include <algorithm>

#include "userland/cli/json.hpp"

namespace coop::cli
{

namespace
{

// "gid=... qpn=..." -> {"gid": "...", ...}, as written.
nlohmann::ordered_json address_json(const std::string &line)
{
	nlohmann::ordered_json out = nlohmann::ordered_json::object();
	std::size_t at = 0;
	while (at < line.size()) {
		const auto end = std::min(line.find(' ', at), line.size());
		const auto eq = line.find('=', at);
		if (eq < end)
			out[line.substr(at, eq - at)] = line.substr(eq + 1, end - eq - 1);
		at = end + 1;
	}
	return out;
}

nlohmann::ordered_json view_json(const mount_view &v)
{
	nlohmann::ordered_json rates = nlohmann::ordered_json::object();
	for (std::size_t i = 0; i < source_name.size(); i++)
		rates[source_name[i]] =
			v.seconds > 0 ? static_cast<double>(v.recent.sources[i].bytes) / v.seconds
				      : 0.0;
	nlohmann::ordered_json j = {{"mountpoint", v.mount.mountpoint},
				    {"source", v.mount.source},
				    {"error", v.error.empty() ? nlohmann::ordered_json(nullptr)
							      : nlohmann::ordered_json(v.error)},
				    {"seconds", v.seconds},
				    {"bytes_per_second", rates},
				    {"peers", to_json(v.peers)}};
	j.update(to_json(v.total));
	return j;
}

} // namespace

std::string stats_document(const mount_entry &mount, const mount_stats &stats, double seconds)
{
	nlohmann::ordered_json j = {{"mountpoint", mount.mountpoint}, {"source", mount.source}};
	if (seconds > 0)
		j["seconds"] = seconds;
	j.update(to_json(stats));
	return dump(j, seconds > 0 ? -1 : 2);
}

std::string peers_document(const mount_entry &mount, const std::string &self,
			   const std::vector<peer_record> &peers)
{
	return dump({{"mountpoint", mount.mountpoint},
		     {"source", mount.source},
		     {"self", address_json(self)},
		     {"peers", to_json(peers)}},
		    2);
}

std::string top_document(const std::vector<mount_view> &views)
{
	nlohmann::ordered_json all = nlohmann::ordered_json::array();
	for (const auto &v : views)
		all.push_back(view_json(v));
	return dump({{"mounts", all}}, 2);
}

std::string forest_document(const forest_record &f)
{
	nlohmann::ordered_json colours = nlohmann::ordered_json::array();
	for (std::uint32_t c = 0; c < f.colours.size(); c++) {
		const auto &k = f.colours[c];
		nlohmann::ordered_json one = {{"colour", c}, {"level", k.level}};
		if (k.parent != "-")
			one["parent"] = k.parent;
		if (k.alternate != "-")
			one["alternate"] = k.alternate;
		one["children"] = forest_children(f, c);
		colours.push_back(std::move(one));
	}
	const nlohmann::ordered_json j = {
		{"members", f.members}, {"index", f.index}, {"colours", colours}};
	return dump(j, 2);
}

} // namespace coop::cli
