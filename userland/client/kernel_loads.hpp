// SPDX-License-Identifier: MIT
// kernel_loads.hpp - takes pages back out of the kernel's cache for a peer that asks for them.
//
// A page that comes back is published only if its sum is that of the page that left
// (kernel_copies.hpp). It need not be: the kernel may have dropped the page, may be about to read
// it again and hand out a page without contents, or a process may have changed it through a
// mapping. Then the note goes, and the peer turns to another node or to storage.
//
// The kernel's answer is a request to a worker, and all workers may be busy with reads. So no read
// waits for it: the pages are claimed in their block only when they are here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <unordered_map>

#include "userland/client/block_serves.hpp"
#include "userland/client/page_store.hpp"

namespace coop::client
{

class kernel_loads
{
public:
	// Asks the kernel for bytes [offset, offset + length) of a file in its cache: 0, and later
	// arrived() with the cookie, or -errno. Must not block.
	using asker = std::function<int(const coop_fid &, std::uint64_t offset,
					std::uint32_t length, std::uint64_t cookie)>;

	// The store must outlive it.
	kernel_loads(page_store &, asker);
	kernel_loads(const kernel_loads &) = delete;
	kernel_loads &operator=(const kernel_loads &) = delete;

	// Asks for those of the pages that are noted. Any thread.
	void begin(const wanted_pages &);
	// The kernel's answer: what it had from the offset on, without gaps. Any thread.
	void arrived(std::uint64_t cookie, std::span<const std::byte>);

private:
	struct load {
		content_key key;
		std::uint64_t block = 0, file_size = 0;
		std::uint32_t first = 0, count = 0; // pages of the block
	};
	static constexpr std::size_t loads_most = 256; // under way; beyond that pages are lacking

	void ask(const load &);
	std::uint64_t publish(const load &, std::span<const std::byte>, std::uint64_t &refuted,
			      std::uint32_t &came);

	page_store &store_;
	const asker asker_;
	std::mutex mutex_;                              // guards the rest
	std::unordered_map<std::uint64_t, load> loads_; // by cookie
	std::uint64_t next_ = 1;
};

} // namespace coop::client
