// SPDX-License-Identifier: MIT
// claim.cpp - see claim.hpp.
//
// The socket is never listened on or connected to; binding is all.
#include "claim.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <set>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

namespace coop::net::core
{

namespace
{

std::mutex private_lock;

std::set<std::string> &private_names()
{
	static std::set<std::string> names;
	return names;
}

int bind_abstract(const std::string &name)
{
	sockaddr_un a{};
	a.sun_family = AF_UNIX;
	if (name.size() + 1 > sizeof(a.sun_path))
		return -EINVAL;
	std::memcpy(a.sun_path + 1, name.data(), name.size()); // the 0 before it: abstract
	const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
	if (::bind(fd, reinterpret_cast<const sockaddr *>(&a), size)) {
		const int error = errno;
		::close(fd);
		return -error;
	}
	return fd;
}

} // namespace

claim::claim(claim &&o) noexcept : fd_(std::exchange(o.fd_, -1)), name_(std::exchange(o.name_, {}))
{
}

claim &claim::operator=(claim &&o) noexcept
{
	std::swap(fd_, o.fd_);
	std::swap(name_, o.name_);
	return *this;
}

int claim::take(const std::string &transport, const address &a, bool private_)
{
	release();
	std::string name = "coop-net/" + transport + '/' + format(a);
	if (private_) {
		std::lock_guard guard(private_lock);
		if (!private_names().insert(name).second)
			return -EADDRINUSE;
		name_ = std::move(name);
		return 0;
	}
	const int fd = bind_abstract(name);
	if (fd < 0)
		return fd;
	fd_ = fd;
	return 0;
}

void claim::release() noexcept
{
	if (fd_ >= 0)
		::close(std::exchange(fd_, -1));
	if (!name_.empty()) {
		std::lock_guard guard(private_lock);
		private_names().erase(name_);
		name_.clear();
	}
}

} // namespace coop::net::core
