// SPDX-License-Identifier: MIT
// reader.hpp - loads a file version into the page store: from the store itself, then peers, then
// storage. Pages that a peer did not deliver are requested from storage at once, within the same
// read.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "userland/client/block_serves.hpp"
#include "userland/client/content.hpp"
#include "userland/client/fetcher.hpp"
#include "userland/client/membership.hpp"
#include "userland/client/page_store.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

struct source_stats {
	std::uint64_t requests, pages, bytes;
	std::uint64_t latency[32]; // count of requests that took < 2^i microseconds
};

// The source of a request's bytes. A request that needed several is counted, with its latency,
// under the slowest: storage, then peer, then buffer.
enum class source : std::uint8_t { buffer, peer, storage };

struct reader_stats {
	source_stats by[3];                // enum source
	std::uint64_t peer_fallback_pages; // requested from peers, delivered by storage
	std::uint64_t relayed_pages;       // loaded for peers that waited
	std::uint64_t taken_pages;         // that peers were about to drop
	std::uint64_t redirected_pages;    // for which storage named nodes in place of bytes
	std::uint64_t readahead_pages, stale_reads, errors;
};

struct reader_options {
	std::uint32_t readahead_pages = 256; // window kept ahead of a sequential reader
	bool ra_async = true;                // false: a read waits for its readahead too
	unsigned wait_timeout_ms = 2000;     // most time that a load waits for its parents
};

// A piece of a result: [offset, offset + length) of the memfd, pinned by 'pin'.
struct piece {
	block_ref pin;
	std::uint64_t arena_offset;
	std::uint32_t length;
};

class reader
{
public:
	// Waits for loads under way (readahead). They end when storage answers or gives up, so
	// close the storage connection first to avoid waiting for it.
	virtual ~reader() = default;
	// The fetcher may be null: no peers, storage only. The membership may be null: no forests.
	// All of them must outlive the reader.
	static std::unique_ptr<reader> create(const reader_options &, page_store &, fetcher *,
					      storage &, const membership * = nullptr);

	// Sequential-access state of one open file; the caller keeps one per file handle. Reads of
	// one stream may come from several threads and out of order, as kernel readahead does.
	struct stream {
		std::mutex mutex;         // guards the rest
		std::uint64_t next = 0;   // byte after the furthest read of the run
		std::uint64_t ahead = 0;  // byte up to which readahead was started
		std::uint64_t window = 0; // bytes kept ahead, doubling
		std::uint32_t run = 0;    // consecutive reads that advanced 'next'
	};

	// Makes [offset, offset + length) (bytes of the file) valid and returns it in pieces, in
	// order, shorter only at end of file. Blocks. Any thread. Returns 0, or -errno of storage;
	// -ESTALE: the version is gone (the caller revalidates and retries); -EINVAL: the content
	// has no version; -EINTR: the asker has gone. out is empty unless 0 is returned.
	virtual int read(const content &, stream &, std::uint64_t offset, std::uint32_t length,
			 std::vector<piece> &out) = 0;
	// Reads all of what is no file of a program's: it counts in no statistics. from: the source
	// of its bytes.
	virtual int read_whole(const content &, std::vector<piece> &out, source &from) = 0;
	// Stores the first bytes of the file, from the open reply: whole pages only, where the last
	// page of the file counts as whole.
	virtual void put_inline(const content &, std::string_view bytes,
				origin from = origin::storage) = 0;
	// Loads pages that a peer waits for; see node_options::on_wanted.
	virtual void relay(const wanted_pages &) = 0;
	// Fetches small files that nodes have, before they are read. None of it is asked of
	// storage.
	virtual void fetch_ahead(std::vector<held_content>) = 0;
	// Fetches pages that a peer is about to drop; see node_options::on_offered.
	virtual void take(const offered_pages &) = 0;
	virtual reader_stats stats() const = 0;
	virtual void reset_stats() = 0;
};

} // namespace coop::client
