// SPDX-License-Identifier: MIT
// node_memory.hpp - memory of a node, other than pages, that work requests name.
//
// One anonymous mapping, registered with the endpoint once: control messages in
// both directions, the area that takes every GRH (nobody reads it: completions
// say where a datagram came from), scrap for what is longer than its place, and
// zeros for pages that a peer asked for and we lack.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <system_error>

#include "rpc/fetch/engine.h"

namespace coop::client
{

class node_memory
{
public:
	static constexpr std::size_t control_recvs = 512, control_sends = 256;

	explicit node_memory(std::size_t page_bytes) : zeros_at_(round(control_bytes + scrap_bytes))
	{
		size_ = zeros_at_ + round(page_bytes);
		void *p = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			throw std::system_error(errno, std::generic_category(),
						"node: no memory for control messages");
		base_ = static_cast<std::byte *>(p);
	}
	~node_memory() { ::munmap(base_, size_); }
	node_memory(const node_memory &) = delete;
	node_memory &operator=(const node_memory &) = delete;

	std::byte *base() const { return base_; }
	std::size_t size() const { return size_; }
	std::byte *control_recv(std::size_t i) const { return base_ + i * COOP_CTRL_MAX; }
	std::byte *control_send(std::size_t i) const
	{
		return base_ + (control_recvs + i) * COOP_CTRL_MAX;
	}
	std::byte *grh() const { return base_ + control_bytes; }
	std::byte *scrap() const { return grh() + 64; }        // COOP_MTU_MAX bytes
	std::byte *zeros() const { return base_ + zeros_at_; } // a page

private:
	static constexpr std::size_t control_bytes =
		(control_recvs + control_sends) * COOP_CTRL_MAX;
	static constexpr std::size_t scrap_bytes = 64 + COOP_MTU_MAX;
	static constexpr std::size_t round(std::size_t n)
	{
		return (n + 4095) & ~std::size_t{4095};
	}

	std::size_t zeros_at_, size_;
	std::byte *base_;
};

} // namespace coop::client
