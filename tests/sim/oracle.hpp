// SPDX-License-Identifier: MIT
// oracle.hpp - what every byte of every file version must be.
//
// The n-th 8-byte word of a version is K + n * step, where K is a random number that belongs to
// (file, version). Filling and checking cost one addition per word, so tests can check every
// byte of every page. A wrong word names its owner, because the step is odd and so can be
// divided out: for the true owner the quotient is a word number within the file.
#pragma once

#include <string>
#include <vector>

#include "rpc/fetch/engine.h"
#include "tests/sim/dice.hpp"

namespace coop::sim
{

// A version of a file. The number on the wire is oracle::version().
struct content {
	u32 file;
	u32 edition; // 0, 1, 2 ...
	bool operator==(const content &) const = default;
};

class oracle
{
public:
	oracle(u64 seed, u32 files, u32 page_size, u32 max_pages);

	u32 files() const { return static_cast<u32>(editions_.size()); }
	u32 page_size() const { return page_size_; }
	content latest(u32 file) const { return {file, editions_[file]}; }
	void edit(u32 file) { ++editions_[file]; } // replaces the file by its next edition

	u64 size(content) const; // bytes
	u32 pages(content) const;
	coop_fid fid(u32 file) const;
	u64 version(content c) const { return 1000 + c.edition; } // neighbours, as ctime makes them
	// Sets the content that (fid, version) names; false if there is none.
	bool find(const coop_fid &, u64 version, content &) const;

	void fill(u8 *page, content, u64 index) const;
	bool right(const u8 *page, content, u64 index) const;
	// For a wrong page: where it first differs, and whose bytes are there.
	std::string blame(const u8 *page, content, u64 index) const;

	// Fills memory with marks that reveal unwritten parts: one word every 128 bytes; a
	// datagram has at least 256 bytes.
	static void poison(u8 *mem, u32 len);

private:
	u64 key(content c) const { return mix(seed_, u64{c.file} << 32 | c.edition); }

	u64 seed_;
	u32 page_size_, max_pages_;
	std::vector<u32> editions_;
};

} // namespace coop::sim
