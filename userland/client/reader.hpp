// SPDX-License-Identifier: MIT
// reader.hpp - how bytes of a file version get into the page store: local
// buffer first, then peers, then storage; what a peer did not deliver is
// continued from storage at once, in the same request.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "userland/client/node.hpp"
#include "userland/client/page_store.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

// One file version as a reader sees it. Cheap to copy by shared_ptr; immutable.
struct content {
	content_key key;
	std::uint64_t size; // bytes at that version
	handle fh;
	std::uint64_t open_id;
	std::vector<std::uint32_t> openers; // node ids from the open reply
};

struct source_stats {
	std::uint64_t requests, pages, bytes;
	std::uint64_t latency[32]; // count of requests that took < 2^i microseconds
};

enum class source : std::uint8_t { buffer, peer, storage };

struct reader_stats {
	source_stats by[3]; // enum source
	std::uint64_t peer_fallback_pages; // asked of peers, delivered by storage
	std::uint64_t readahead_pages, stale_reads, errors;
};

struct reader_options {
	std::uint32_t readahead_pages = 256; // window kept ahead of a sequential reader
	bool ra_async = true; // false: a read waits for its readahead too
};

// Piece of an answer: [offset, offset + length) of the memfd, pinned by 'pin'.
struct piece {
	block_ref pin;
	std::uint64_t arena_offset;
	std::uint32_t length;
};

class reader
{
    public:
	virtual ~reader() = default;
	// node may be null: no peers, storage only.
	static std::unique_ptr<reader> create(const reader_options &, page_store &, node *, storage &);

	// Sequential-access state of one open file; the caller keeps one per file handle.
	struct stream {
		std::uint64_t next = 0; // byte after the last read
		std::uint64_t ahead = 0; // byte up to which readahead was started
		std::uint32_t run = 0; // sequential reads in a row
	};

	// Makes [offset, offset + length) of the file valid and returns it in pieces, in order,
	// shorter only at end of file. Blocks. 0, or -errno of storage; -ESTALE: the version is
	// gone (the caller revalidates and retries).
	virtual int read(const content &, stream &, std::uint64_t offset, std::uint32_t length,
			 std::vector<piece> &out) = 0;
	// The first bytes of the file came with the open reply.
	virtual void put_inline(const content &, std::string_view bytes) = 0;
	virtual reader_stats stats() const = 0;
	virtual void reset_stats() = 0;
	virtual void set_options(const reader_options &) = 0;
};

} // namespace coop::client
