// SPDX-License-Identifier: MIT
// slab.hpp - memory of a machine, other than buffers, that work requests name.
//
// One anonymous mapping, registered once and cut into areas before it is made; what is never
// used is never there.
#pragma once

#include <cerrno>
#include <cstddef>
#include <sys/mman.h>
#include <system_error>

namespace coop::net::ud
{

class slab
{
public:
	slab() = default;
	~slab()
	{
		if (base_)
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
	/// @throw std::system_error ENOMEM.
	void make()
	{
		void *p = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			throw std::system_error(errno, std::generic_category(),
						"ud: memory of a transfer machine");
		base_ = static_cast<std::byte *>(p);
	}
	std::byte *at(std::size_t where) const { return base_ + where; }
	std::byte *base() const { return base_; }
	std::size_t size() const { return size_; }

private:
	std::byte *base_ = nullptr;
	std::size_t size_ = 0;
};

} // namespace coop::net::ud
