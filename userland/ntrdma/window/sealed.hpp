// SPDX-License-Identifier: MIT
// sealed.hpp - memory that two processes share, and whose size neither can change.
//
// It is a memfd. Without the seals, a peer could shrink it, and an access to the rest would end
// this process.
#pragma once

#include <cstddef>

#include <sys/mman.h>

#include "userland/include/coop/unique_fd.hpp"

namespace coop::ntrdma
{

/// New memory, zeroed. `name` is for readers of /proc. Invalid: errno says why.
[[nodiscard]] unique_fd make_sealed(const char *name, std::size_t bytes);
/// Maps it, not for children of fork(), which have no part in a link. Null: it is not sealed or has
/// another size, with errno EINVAL, or mmap() failed.
[[nodiscard]] void *map_sealed(int fd, std::size_t bytes, int protection = PROT_READ | PROT_WRITE);

} // namespace coop::ntrdma
