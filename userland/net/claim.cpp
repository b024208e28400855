// SPDX-License-Identifier: MIT
// claim.cpp - see claim.hpp.
//
// The socket is only bound; it neither listens nor connects.
#include "claim.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

#include "number_runs.hpp"

namespace coop::net::core
{

namespace
{

// The claims of this process: the numbers of each line.
struct claims {
	std::mutex lock;
	std::map<std::string, number_runs> lines;

	void erase_if_empty(const std::string &line)
	{
		if (const auto it = lines.find(line); it->second.empty())
			lines.erase(it);
	}
};

claims &all_claims()
{
	static claims &the = *new claims; // never destroyed: machines may be static, too
	return the;
}

std::string line_of(const std::string &transport, address a)
{
	a.id = 0;
	return transport + '/' + format(a);
}

int bind_abstract(const std::string &name)
{
	sockaddr_un a{};
	a.sun_family = AF_UNIX;
	if (name.size() + 1 > sizeof(a.sun_path))
		return -EINVAL;
	std::memcpy(a.sun_path + 1, name.data(),
		    name.size()); // a leading 0 byte: the abstract name space
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

claim::claim(claim &&o) noexcept :
	fd_(std::exchange(o.fd_, -1)),
	line_(std::exchange(o.line_, {})),
	number_(o.number_)
{
}

claim &claim::operator=(claim &&o) noexcept
{
	std::swap(fd_, o.fd_);
	std::swap(line_, o.line_);
	std::swap(number_, o.number_);
	return *this;
}

int claim::take(const std::string &transport, const address &a, bool private_)
{
	release();
	std::string line = line_of(transport, a);
	claims &all = all_claims();
	std::lock_guard guard(all.lock);
	number_runs &numbers = all.lines[line];
	// The kernel decides: our own claim may be in another network name space.
	const bool ours = numbers.highest_missing(a.id) != a.id;
	const int r = private_ ? ours ? -EADDRINUSE : 0
			       : bind_abstract("coop-net/" + transport + '/' + format(a));
	if (r >= 0 && !private_)
		fd_ = r;
	if (r >= 0 && !ours) {
		numbers.insert(a.id);
		line_ = std::move(line);
		number_ = a.id;
	} else {
		all.erase_if_empty(line);
	}
	return std::min(r, 0);
}

void claim::release() noexcept
{
	claims &all = all_claims();
	std::lock_guard guard(all.lock); // the next owner of the number enters it under the lock
	if (fd_ >= 0)
		::close(std::exchange(fd_, -1));
	if (line_.empty())
		return;
	all.lines[line_].erase(number_);
	all.erase_if_empty(line_);
	line_.clear();
}

std::optional<std::uint32_t> claim::highest_free(const std::string &transport, const address &a)
{
	claims &all = all_claims();
	std::lock_guard guard(all.lock);
	const auto it = all.lines.find(line_of(transport, a));
	return it == all.lines.end() ? a.id : it->second.highest_missing(a.id);
}

} // namespace coop::net::core
