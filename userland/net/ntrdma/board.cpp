// SPDX-License-Identifier: MIT
// board.cpp - see board.hpp.
#include "board.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>

namespace coop::net::nt
{

namespace
{

constexpr std::size_t board_bytes = board::words * sizeof(std::uint64_t);
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

void *map_board(int fd, int protection)
{
	void *at = ::mmap(nullptr, board_bytes, protection, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return nullptr;
	::madvise(at, board_bytes, MADV_DONTFORK); // a child of fork has no part in a link
	return at;
}

} // namespace

board::board() : fd_(::memfd_create("coop-net-board", MFD_CLOEXEC | MFD_ALLOW_SEALING))
{
	void *at = nullptr;
	if (fd_ && ::ftruncate(fd_.get(), board_bytes) == 0 &&
	    ::fcntl(fd_.get(), F_ADD_SEALS, seals) == 0)
		at = map_board(fd_.get(), PROT_READ | PROT_WRITE);
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
	struct stat st;
	const int has = ::fcntl(fd, F_GET_SEALS);
	if (has < 0 || (has & seals) != seals || ::fstat(fd, &st) ||
	    st.st_size != static_cast<off_t>(board_bytes)) {
		errno = EINVAL;
		return nullptr;
	}
	void *at = map_board(fd, PROT_READ);
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
