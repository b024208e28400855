// SPDX-License-Identifier: MIT
// sealed.cpp - see sealed.hpp.
#include "userland/ntrdma/window/sealed.hpp"

#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace coop::ntrdma
{

namespace
{

constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

} // namespace

unique_fd make_sealed(const char *name, std::size_t bytes)
{
	unique_fd fd{memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
	if (!fd || (!ftruncate(fd.get(), static_cast<off_t>(bytes)) &&
		    !fcntl(fd.get(), F_ADD_SEALS, seals)))
		return fd;
	const int error = errno;
	fd = unique_fd{};
	errno = error;
	return fd;
}

void *map_sealed(int fd, std::size_t bytes, int protection)
{
	struct stat st;
	const int has = fcntl(fd, F_GET_SEALS);
	if (has < 0 || (has & seals) != seals || fstat(fd, &st) ||
	    st.st_size != static_cast<off_t>(bytes)) {
		errno = EINVAL;
		return nullptr;
	}
	void *at = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return nullptr;
	madvise(at, bytes, MADV_DONTFORK);
	return at;
}

} // namespace coop::ntrdma
