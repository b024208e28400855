// SPDX-License-Identifier: MIT
// bulk.cpp - coopnet bulk: bandwidth of transfers under descriptors, over sizes.
#include "commands.hpp"

namespace coop::net_tools
{

int run_bulk(const bulk_request &r)
{
	printer out(r, "bulk");
	const int status = guarded([&]() -> trouble {
		if (trouble t = out.begin())
			return t;
		session s(r, r.how, 2 * r.depth + 2);
		std::vector<std::size_t> sizes;
		if (trouble t = s.connect())
			return t;
		out.under(s.client().at().domain());
		if (trouble t = s.bulk_sizes({4096, 65536, 262144, 1048576, 4194304}, sizes))
			return t;
		for (const command d : {command::fetch, command::fill}) {
			if (r.direction != "both" &&
			    r.direction != (d == command::fetch ? "fetch" : "fill"))
				continue;
			for (const std::size_t size : sizes) {
				bulk_task warm(s.client(), d, size, {4 * r.depth, r.seconds / 10},
					       r.depth);
				if (trouble t = s.client().run(warm))
					return t;
				bulk_task b(s.client(), d, size, {r.count, r.seconds}, r.depth);
				if (trouble t = s.client().run(b))
					return t;
				out.add(result_of(b, d, r.how, s.one_process()));
			}
		}
		return {};
	});
	return status ? status : out.end();
}

} // namespace coop::net_tools
