// SPDX-License-Identifier: MIT
// board.hpp - words that say which memory a machine lends.
//
// Only its machine writes a board; peers map it to read. A lent operation has a word with a value
// that is never used again. Taking the value off the word ends the loan at once: a peer that has
// read the memory meanwhile finds the word changed, and drops what it read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "userland/ntrdma/window/window.hpp"

namespace coop::net::nt
{

namespace rdma = coop::ntrdma;

class board
{
public:
	static constexpr std::uint32_t words = 1u << 15; ///< the most operations of a machine

	/// A new one. @throw std::system_error.
	board();
	~board();
	board(const board &) = delete;
	board &operator=(const board &) = delete;

	struct loan {
		std::uint32_t word = 0;
		std::uint64_t value = 0; ///< 0: none
	};
	/// `value` is 0 if no word is free.
	loan lend();
	void end(loan &);
	int fd() const { return fd_.get(); }

private:
	rdma::unique_fd fd_;
	std::atomic<std::uint64_t> *at_;
	std::vector<std::uint32_t> free_;
	std::uint64_t next_ = 1;
};

/// A peer's.
class board_view
{
public:
	/// Null if it may change its size, or has another; errno is ENOMEM if it has not.
	static std::unique_ptr<board_view> map(int fd);
	~board_view();
	board_view(const board_view &) = delete;
	board_view &operator=(const board_view &) = delete;

	/// To be asked after the memory was read.
	bool lends(std::uint32_t word, std::uint64_t value) const
	{
		std::atomic_thread_fence(std::memory_order_seq_cst);
		return word < board::words && at_[word].load(std::memory_order_seq_cst) == value;
	}

private:
	explicit board_view(const std::atomic<std::uint64_t> *at) : at_(at) {}
	const std::atomic<std::uint64_t> *at_;
};

} // namespace coop::net::nt
