// SPDX-License-Identifier: MIT
// local_keys.cpp - see local_keys.hpp.
#include "local_keys.hpp"

namespace coop::net::fabric
{

void *local_keys::add(std::span<const segment> segments)
{
	std::list<buffer> one(1);
	one.front().segments.assign(segments.begin(), segments.end());
	one.front().self = one.begin();
	buffer *b = &one.front();
	std::lock_guard guard(lock_);
	buffers_.splice(buffers_.end(), one);
	return b;
}

void local_keys::remove(void *registration)
{
	if (!registration)
		return;
	std::lock_guard guard(lock_);
	buffers_.erase(static_cast<buffer *>(registration)->self);
}

int local_keys::find(const spi::memory &m, const void *machine, fid_domain &domain,
		     descriptors &out)
{
	buffer &b = *static_cast<buffer *>(m.registration);
	std::lock_guard guard(lock_);
	for (const keys &k : b.by_machine)
		if (k.machine == machine) {
			out = k.descs;
			return 0;
		}
	keys k{machine, {}, {}};
	for (const segment &s : b.segments) {
		fid_mr *mr = nullptr;
		if (int r = fi_mr_reg(&domain, s.base, s.length, FI_SEND | FI_WRITE, 0, next_key_++,
				      0, &mr, nullptr))
			return r;
		k.regions.emplace_back(mr);
		k.descs.push_back(fi_mr_desc(mr));
	}
	b.by_machine.push_back(std::move(k));
	out = b.by_machine.back().descs;
	return 0;
}

void local_keys::forget(const void *machine)
{
	std::lock_guard guard(lock_);
	for (buffer &b : buffers_)
		b.by_machine.remove_if([&](const keys &k) { return k.machine == machine; });
}

bool covered(const spi::memory &m, local_keys::descriptors keys, std::span<const iovec> pieces,
	     std::span<void *const> descs)
{
	for (std::size_t n = 0; n < pieces.size(); n++) {
		const auto *from = static_cast<const std::byte *>(pieces[n].iov_base);
		bool good = false;
		for (std::size_t i = 0; i < m.segments.size() && i < keys.size(); i++) {
			const auto *base = static_cast<const std::byte *>(m.segments[i].base);
			good |= descs[n] && descs[n] == keys[i] && from >= base &&
				from + pieces[n].iov_len <= base + m.segments[i].length;
		}
		if (!good)
			return false;
	}
	return true;
}

} // namespace coop::net::fabric
