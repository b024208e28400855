// SPDX-License-Identifier: MIT
// memory.cpp - protection domains and memory regions of the stand-in libibverbs.
#include <algorithm>
#include <atomic>
#include <cerrno>

#include <sys/mman.h>
#include <unistd.h>

#include "userland/ntrdma/verbs/objects.hpp"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

using namespace coop::ntrdma;
using coop::ntrdma::verbs::of;

namespace
{

std::atomic<std::uint32_t> domains{1};

/// True if every page of the range is mapped, so that no access of a peer's message faults.
bool is_mapped(const void *addr, std::size_t length)
{
	const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
	auto at = reinterpret_cast<std::uintptr_t>(addr) & ~(page - 1);
	auto end = reinterpret_cast<std::uintptr_t>(addr) + length;
	if (end < reinterpret_cast<std::uintptr_t>(addr))
		return false;
	unsigned char present[4096];
	while (at < end) {
		std::size_t n = std::min<std::size_t>(end - at, sizeof(present) * page);
		if (mincore(reinterpret_cast<void *>(at), n, present))
			return false;
		at += n;
	}
	return true;
}

/// True if the program may do what `advice` says, read or write, with the first and the last page
/// of a range that is mapped; where it may not, a message of a peer would end it by SIGSEGV. These
/// two pages become present. A device looks at all pages, since it pins them, but that takes time
/// and memory by the size; so pages of other rights between the two are not noticed here.
bool is_usable(const void *addr, std::size_t length, int advice)
{
	const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
	const auto allowed = [page, advice](std::uintptr_t at) {
		return !madvise(reinterpret_cast<void *>(at & ~(page - 1)), page, advice) ||
		       (errno != EFAULT && errno != EINVAL);
	};
	// A kernel before 5.14 does not know the advice, and says EINVAL of every page.
	char writable;
	static const bool asks = allowed(reinterpret_cast<std::uintptr_t>(&writable));
	const auto at = reinterpret_cast<std::uintptr_t>(addr);
	return !asks || !length || (allowed(at) && allowed(at + length - 1));
}

ibv_mr *fail_with(int error)
{
	errno = error;
	return nullptr;
}

} // namespace

COOP_VERB ibv_pd *ibv_alloc_pd(ibv_context *c)
{
	auto *d = new verbs::domain{};
	d->pd.context = c;
	d->number = domains.fetch_add(1);
	return &d->pd;
}

COOP_VERB int ibv_dealloc_pd(ibv_pd *pd)
{
	auto held = of(pd->context)->device->hold();
	if (of(pd)->users)
		return EBUSY;
	held.unlock();
	delete of(pd);
	return 0;
}

COOP_VERB ibv_mr *ibv_reg_mr_iova2(ibv_pd *pd, void *addr, std::size_t length, std::uint64_t iova,
				   unsigned access)
{
	constexpr unsigned known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
				   IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB |
				   IBV_ACCESS_OPTIONAL_RANGE;
	if (access & ~known)
		return fail_with(EOPNOTSUPP); // memory windows, paging on demand
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
	    !(access & IBV_ACCESS_LOCAL_WRITE))
		return fail_with(EINVAL);
	if (!is_mapped(addr, length) ||
	    !is_usable(addr, length,
		       access & IBV_ACCESS_LOCAL_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
		return fail_with(EFAULT);
	if (access & IBV_ACCESS_ZERO_BASED)
		iova = 0;
	auto held = of(pd->context)->device->hold();
	auto key = of(pd->context)
			   ->device->regions()
			   .add(static_cast<std::uint8_t *>(addr), length, iova, of(pd)->number,
				access & 15);
	if (!key)
		return fail_with(ENOMEM);
	of(pd)->users++;
	auto *mr = new ibv_mr{};
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->handle = *key;
	mr->lkey = mr->rkey = *key;
	return mr;
}

COOP_VERB ibv_mr *ibv_reg_mr(ibv_pd *pd, void *addr, std::size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, reinterpret_cast<std::uintptr_t>(addr),
				static_cast<unsigned>(access));
}

COOP_VERB ibv_mr *ibv_reg_mr_iova(ibv_pd *pd, void *addr, std::size_t length, std::uint64_t iova,
				  int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, static_cast<unsigned>(access));
}

COOP_VERB int ibv_dereg_mr(ibv_mr *mr)
{
	node *device = of(mr->context)->device;
	auto held = device->hold();
	if (!device->remove_region(mr->lkey, held))
		return EINVAL;
	of(mr->pd)->users--;
	held.unlock();
	delete mr;
	return 0;
}
