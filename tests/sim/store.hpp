// SPDX-License-Identifier: MIT
// store.hpp - the pages that a node holds, and who may write them.
//
// A block is a run of pages of one file version in one piece of memory. The store reuses freed
// memory at once for another block, so a late write hits other pages and is found. The oracle
// checks every page when it becomes good and again when its block goes. A guard word behind the
// block detects writes past its end.
#pragma once

#include <memory>
#include <vector>

#include "tests/sim/oracle.hpp"

namespace coop::sim
{

// Memory for blocks, shared by the nodes of a world, last in first out.
class arena
{
public:
	explicit arena(u32 block_bytes) : bytes_(block_bytes) {}
	u8 *take();
	void give(u8 *mem) { free_.push_back(mem); }
	u32 block_bytes() const { return bytes_; }

private:
	u32 bytes_;
	std::vector<std::unique_ptr<u64[]>> all_;
	std::vector<u8 *> free_;
};

struct block {
	content of{};
	u64 index = 0; // in blocks of the file
	u8 *mem = nullptr;
	u64 valid = 0, loading = 0;     // bit per page
	u32 pins = 0;                   // serves that read it
	u32 users = 0;                  // reads that fill it
	u32 seq[COOP_MAX_PAGES] = {};   // bumped before every change of the page
	u32 owner[COOP_MAX_PAGES] = {}; // token of the read whose WRs may write the page; 0: none
};

class store
{
public:
	store(arena &, const oracle &, u32 block_pages, u32 capacity);
	~store();
	store(const store &) = delete;
	store &operator=(const store &) = delete;

	block *find(content, u64 index);
	// The block, created if absent; nullptr if nothing can be evicted. Judges evicted
	// blocks and appends their wrong pages to 'wrong'.
	block *get(content, u64 index, dice &, std::vector<std::string> &wrong);
	// Frees the block unless it is in use; returns what was wrong with it.
	std::vector<std::string> evict(block &);
	u8 *page(const block &b, u32 i) const { return b.mem + u64{i} * oracle_.page_size(); }
	u32 block_pages() const { return block_pages_; }
	u64 first_page(const block &b) const { return b.index * block_pages_; }
	// Appends the errors of the block's valid pages (of 'mask'); returns the good ones.
	u64 judge(const block &, u64 mask, std::vector<std::string> &wrong) const;
	// Another edition replaces one page in place, as a page cache may do.
	void overwrite(block &, u32 i, content by);
	std::vector<std::unique_ptr<block>> &blocks() { return blocks_; }
	// Frees all memory; judges as get() does.
	void clear(std::vector<std::string> &wrong);

private:
	void let_go(block &, std::vector<std::string> &wrong);

	arena &arena_;
	const oracle &oracle_;
	u32 block_pages_, capacity_;
	std::vector<std::unique_ptr<block>> blocks_;
};

} // namespace coop::sim
