// SPDX-License-Identifier: MIT
// slab.hpp - the memory of a host, other than pages, that work requests name.
//
// One anonymous mapping, cut into areas first, then mapped and registered with the end point
// once. An area that is never used takes no memory. Every host has three of them: one that
// takes all GRHs, one that takes the end of a datagram that is too long for its place, and a
// page of zeros, sent in place of a page that the host lacks.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <system_error>

#include "userland/ud/endpoint.hpp"

namespace coop::fetch_host
{

class slab
{
public:
	slab(std::uint32_t mtu, std::size_t page_bytes) :
		grh_at_(reserve(COOP_GRH)),
		scrap_at_(reserve(mtu)),
		zeros_at_(reserve(page_bytes))
	{
	}
	~slab()
	{
		if (base_ != nullptr)
			::munmap(base_, size_);
	}
	slab(const slab &) = delete;
	slab &operator=(const slab &) = delete;

	/// Sets bytes apart, before make(). @return where they will be, for at().
	std::size_t reserve(std::size_t bytes)
	{
		const std::size_t at = size_;
		size_ += (bytes + 63) & ~std::size_t{63};
		return at;
	}
	/// Maps and registers. @throw std::system_error.
	void make(ud::endpoint &ep)
	{
		void *p = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			throw std::system_error(errno, std::generic_category(),
						"no memory for messages");
		base_ = static_cast<std::byte *>(p);
		if (const int err = ep.register_memory(base_, size_); err != 0)
			throw std::system_error(-err, std::generic_category(),
						"cannot register memory with " + ep.info().name);
	}

	std::byte *at(std::size_t where) const { return base_ + where; }
	/// Completions say where a datagram came from, so nothing reads this.
	std::byte *grh() const { return at(grh_at_); }
	std::byte *scrap() const { return at(scrap_at_); } // MTU bytes
	std::byte *zeros() const { return at(zeros_at_); } // a page; work requests only read it

private:
	std::byte *base_ = nullptr;
	std::size_t size_ = 0;
	std::size_t grh_at_, scrap_at_, zeros_at_;
};

} // namespace coop::fetch_host
