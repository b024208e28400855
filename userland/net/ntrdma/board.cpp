// SPDX-License-Identifier: MIT
// board.cpp - see board.hpp.
#include "board.hpp"

#include <cerrno>
#include <sys/mman.h>
#include <system_error>

#include "userland/ntrdma/window/sealed.hpp"

namespace coop::net::nt
{

namespace
{

constexpr std::size_t board_bytes = board::words * sizeof(std::uint64_t);

} // namespace

board::board() : fd_(rdma::make_sealed("coop-net-board", board_bytes))
{
	void *at = fd_ ? rdma::map_sealed(fd_.get(), board_bytes) : nullptr;
	if (!at)
		throw std::system_error(errno, std::generic_category(), "ntrdma: board");
	at_ = static_cast<std::atomic<std::uint64_t> *>(at);
	free_.reserve(words);
	for (std::uint32_t i = words; i-- > 0;)
		free_.push_back(i);
}

board::~board()
{
	// Peers may have it mapped for longer: no loan outlives the machine.
	for (std::uint32_t i = 0; i < words; i++)
		if (at_[i].load(std::memory_order_relaxed))
			at_[i].store(0, std::memory_order_seq_cst);
	::munmap(at_, board_bytes);
}

board::loan board::lend()
{
	if (free_.empty())
		return {};
	const loan l{free_.back(), next_++};
	free_.pop_back();
	at_[l.word].store(l.value, std::memory_order_release);
	return l;
}

void board::end(loan &l)
{
	if (!l.value)
		return;
	at_[l.word].store(0, std::memory_order_seq_cst);
	// The memory is the program's again only after peers can see the change.
	std::atomic_thread_fence(std::memory_order_seq_cst);
	free_.push_back(l.word);
	l = {};
}

std::unique_ptr<board_view> board_view::map(int fd)
{
	void *at = rdma::map_sealed(fd, board_bytes, PROT_READ);
	if (!at)
		return nullptr;
	return std::unique_ptr<board_view>(
		new board_view(static_cast<const std::atomic<std::uint64_t> *>(at)));
}

board_view::~board_view()
{
	::munmap(const_cast<std::atomic<std::uint64_t> *>(at_), board_bytes);
}

} // namespace coop::net::nt
