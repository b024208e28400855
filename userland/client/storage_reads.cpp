// SPDX-License-Identifier: MIT
// storage_reads.cpp - see storage_reads.hpp.
#include "userland/client/storage_reads.hpp"

#include <algorithm>
#include <cerrno>

#include "userland/client/buffer_list.hpp"
#include "userland/client/storage_codec.hpp"

namespace coop::client
{

// A read in parts. They complete on the connection's thread, one after another.
struct storage_reads::gather {
	handle fh;
	std::uint64_t open_id;
	std::uint64_t version;
	unsigned left;
	std::uint32_t shared = 0; // flags of a read that may be redirected; 0: a plain READ
	storage::read_result result{};
	answer done;

	void finish(int err, std::uint64_t bytes)
	{
		if (err && !result.err)
			result.err = err;
		result.bytes += bytes;
		if (--left == 0)
			done(result);
	}
};

void storage_reads::read(const handle &fh, std::uint64_t open_id, std::uint64_t offset,
			 std::vector<iovec> dest, std::uint64_t version, answer done)
{
	const std::size_t total = length_of(dest);
	const auto g =
		std::make_shared<gather>(gather{fh, open_id, version, 1, 0, {}, std::move(done)});
	if (total > COOP_ST_IO_MAX)
		g->left = static_cast<unsigned>((total + COOP_ST_IO_MAX - 1) / COOP_ST_IO_MAX);
	if (g->left == 1)
		return read_part(g, offset, std::move(dest));
	for (std::size_t at = 0; at < total; at += COOP_ST_IO_MAX)
		read_part(g, offset + at, slice(dest, at, COOP_ST_IO_MAX));
}

void storage_reads::read_shared(const handle &fh, std::uint64_t open_id, std::uint64_t offset,
				std::vector<iovec> dest, std::uint64_t version, bool insist,
				answer done)
{
	if (!link_.redirects() || length_of(dest) > COOP_ST_IO_MAX)
		return read(fh, open_id, offset, std::move(dest), version, std::move(done));
	const std::uint32_t flags = COOP_ST_READ_MAY_REDIRECT | bit_if(insist, COOP_ST_READ_INSIST);
	const auto g = std::make_shared<gather>(
		gather{fh, open_id, version, 1, flags, {}, std::move(done)});
	read_part(g, offset, std::move(dest));
}

void storage_reads::read_part(const std::shared_ptr<gather> &g, std::uint64_t offset,
			      std::vector<iovec> dest)
{
	coop_st_body ask = request_on(g->fh, g->open_id);
	ask.offset = offset;
	ask.count = static_cast<u32>(length_of(dest));
	ask.version = g->version;
	ask.flags = g->shared;
	auto c = link_.make(g->shared ? link_.shared_read() : std::uint16_t{COOP_ST_READ}, ask);
	c->dest = std::move(dest);
	c->done = [this, g, offset, call = c.get()](storage_link::outcome &o) {
		if (o.err == -EOPNOTSUPP && g->shared) { // sent again to an older daemon
			g->shared = 0;
			return read_part(g, offset, std::move(call->dest));
		}
		if (!o.err && o.body->n_nodes) {
			g->result.holders.assign(o.body->nodes, o.body->nodes + o.body->n_nodes);
			g->result.level = std::clamp<std::uint32_t>(
				o.body->flags, COOP_LEVEL_REDIRECTED, COOP_LEVEL_ROOT - 1);
			o.bytes = 0;
		}
		if (!o.err) {
			storage::read_result &r = g->result;
			if (r.version && r.version != o.body->version)
				o.err = -ESTALE; // parts of different versions
			r.version = o.body->version;
			r.size = o.body->size;
		}
		if (!o.err && o.streamed)
			check(g, o.body->version, o.bytes);
		else
			g->finish(o.err, o.err ? 0 : o.bytes);
	};
	link_.submit(std::move(c));
}

void storage_reads::check(const std::shared_ptr<gather> &g, std::uint64_t version,
			  std::uint64_t bytes)
{
	coop_st_body ask = request_on(g->fh, g->open_id);
	ask.version = version;
	auto c = link_.make(COOP_ST_CHECK, ask);
	c->done = [g, bytes](storage_link::outcome &o) { g->finish(o.err, o.err ? 0 : bytes); };
	link_.submit(std::move(c));
}

} // namespace coop::client
