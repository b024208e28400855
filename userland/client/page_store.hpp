// SPDX-License-Identifier: MIT
// page_store.hpp - the page cache of a user-space node.
//
// One arena in a memfd, mapped: FUSE replies and what peers ask for go to the kernel
// straight from it. It is cut into blocks: up to 64 pages of
// one file version, contiguous in the file (aligned to 64 pages) and in the
// arena. Small files take small blocks.
//
// A page that is valid never changes: a write makes a new version, and what it
// touched is dropped, not overwritten. So a pinned block may be read by anyone,
// for as long as the pin lasts, without a lock.
//
// A page is absent, loading (one owner fills it) or valid. claim() makes the
// caller the owner of what was absent; the owner must publish() or abandon().
//
// Eviction is S3-FIFO over blocks, weighted by bytes. Fetching a block or reading
// its pages for the first time is no use of it; reading them again is, and so is
// a request of a peer. So a scan, however long, passes through the small queue.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "rpc/fetch/engine.h"
#include "userland/client/memory_state.hpp"

namespace coop::client
{

struct content_key {
	coop_fid fid;
	std::uint64_t version;
	bool operator==(const content_key &o) const
	{
		return fid.hi == o.fid.hi && fid.lo == o.fid.lo && version == o.version;
	}
};

enum class origin : std::uint8_t { peer, storage };

class block;

// A pin: the block's memory stays as it is until the last pin goes, also if the
// store forgets the block meanwhile.
class block_ref
{
public:
	block_ref() = default;
	explicit block_ref(block *adopted) : b_(adopted) {}
	block_ref(block_ref &&o) noexcept : b_(o.b_) { o.b_ = nullptr; }
	block_ref &operator=(block_ref &&o) noexcept;
	block_ref(const block_ref &) = delete;
	block_ref &operator=(const block_ref &) = delete;
	~block_ref();
	block_ref clone() const;
	explicit operator bool() const { return b_ != nullptr; }
	block *operator->() const { return b_; }
	block &operator*() const { return *b_; }
	block *get() const { return b_; }

private:
	block *b_ = nullptr;
};

class block
{
public:
	virtual ~block() = default;
	virtual std::uint64_t index() const = 0;     // block number in the file: first page / 64
	virtual std::uint32_t pages() const = 0;     // pages that it has room for, <= 64
	virtual std::uint64_t file_size() const = 0; // bytes of the file, as get() was told
	virtual std::byte *data(std::uint32_t page) const = 0;
	virtual std::uint64_t arena_offset(std::uint32_t page) const = 0; // in the memfd
	virtual std::uint64_t valid() const = 0;                          // bit per page
	virtual std::uint64_t loading() const = 0;
	// Of 'want', those that were absent and are now the caller's to fill.
	virtual std::uint64_t claim(std::uint64_t want) = 0;
	// The owner filled them; what it wrote before is seen by whoever finds them valid.
	virtual void publish(std::uint64_t pages, origin from) = 0;
	virtual void abandon(std::uint64_t pages) = 0;
	// Until none of 'pages' is loading, or the deadline. Returns valid().
	virtual std::uint64_t wait(std::uint64_t pages,
				   std::chrono::steady_clock::time_point deadline) = 0;
	// Reading of 'pages': those whose origin has not been reported yet; they are marked
	// reported. Where all were reported before, this counts as a use for eviction.
	virtual void take_fresh(std::uint64_t pages, std::uint64_t &from_peer,
				std::uint64_t &from_storage) = 0;

	virtual void pin() = 0; // only by who holds a pin: block_ref's business
	virtual void unpin() = 0;
};

inline block_ref &block_ref::operator=(block_ref &&o) noexcept
{
	if (this != &o) {
		if (b_ != nullptr)
			b_->unpin();
		b_ = o.b_;
		o.b_ = nullptr;
	}
	return *this;
}

inline block_ref::~block_ref()
{
	if (b_ != nullptr)
		b_->unpin();
}

inline block_ref block_ref::clone() const
{
	if (b_ != nullptr)
		b_->pin();
	return block_ref(b_);
}

// Zeroes what lies past the end of the file in the block's last page, if that is among 'pages'.
void zero_tail(const block &, std::uint64_t pages, std::uint64_t file_size, unsigned page_shift);

struct store_stats {
	std::uint64_t capacity, used; // bytes
	std::uint64_t present;        // bytes that the system has given, used or not
	std::uint64_t blocks, evicted_blocks, evicted_pages;
	std::uint64_t no_room; // times that get() found everything pinned
};

class page_store
{
public:
	virtual ~page_store() = default;
	// bytes: most that is kept; rounded up to whole blocks of 64 pages, at least four.
	// ahead: how much more than is in use an idle processor keeps present, so that readers
	// need not wait for fresh memory. Throws std::system_error. Must outlive every pin.
	static std::unique_ptr<page_store> create(std::size_t bytes, unsigned page_shift,
						  std::size_t ahead = 0);
	virtual int memfd() const = 0;
	virtual std::byte *base() const = 0;
	// Bytes mapped: the capacity and a small reserve behind it. When everything is pinned,
	// get() hands out a private block of the reserve: good for as long as it is pinned,
	// found by nobody else, given back to the system after (but see keep_memory()).
	virtual std::size_t size() const = 0;
	virtual unsigned page_shift() const = 0;
	// Pins the block if the store has it. used: counts as a use for eviction.
	virtual block_ref find(const content_key &, std::uint64_t block_index,
			       bool used = true) = 0;
	// The same, made if it is not there (no use for eviction); file_size bounds its size.
	// Empty: wholly past the end of the file, or everything is pinned and the reserve is out
	// too, which passes as soon as a pin goes.
	virtual block_ref get(const content_key &, std::uint64_t block_index,
			      std::uint64_t file_size) = 0;
	// The file went from one version to the next by a local write of [offset, offset + length)
	// and, if the sizes differ, by a change of size: untouched blocks follow, touched ones
	// are dropped. old_size, new_size: bytes.
	virtual void advance(const content_key &from, std::uint64_t to_version,
			     std::uint64_t offset, std::uint64_t length, std::uint64_t old_size,
			     std::uint64_t new_size) = 0;
	// Forgets a version (pins stay good).
	virtual void drop(const content_key &) = 0;
	// Forgets everything that is not pinned.
	virtual void drop_all() = 0;
	// One step, of a second or so, towards what the machine can spare: where memory lacks the
	// store evicts as much and gives it back, and takes no more until there is plenty again.
	// Otherwise it gives back some of what it does not use.
	virtual void follow(const memory_state &) = 0;
	// A device has registered the memory and holds its physical pages: from now on nothing is
	// given back to the system.
	virtual void keep_memory() = 0;
	virtual store_stats stats() const = 0;
};

} // namespace coop::client
