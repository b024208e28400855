// SPDX-License-Identifier: MIT
// host_socket.hpp - sockets between machines of one host, and removal of dead processes' files.
//
// The sockets are of the Unix family with abstract names: they vanish with their owner, even if it
// is killed, and their hang-up reports its end to peers. They carry descriptors along with data.
#pragma once

#include <string>
#include <unistd.h>
#include <utility>

#include "coop/net/address.hpp"

namespace coop::net::fabric
{

/// Owns a file descriptor.
class descriptor
{
public:
	explicit descriptor(int fd = -1) : fd_(fd) {}
	descriptor(descriptor &&o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
	descriptor &operator=(descriptor &&o) noexcept
	{
		std::swap(fd_, o.fd_);
		return *this;
	}
	~descriptor()
	{
		if (fd_ >= 0)
			::close(fd_);
	}
	int get() const { return fd_; }
	explicit operator bool() const { return fd_ >= 0; }

private:
	int fd_;
};

/// Listens at the address. @return 0 or -errno.
int listen_here(const std::string &provider, const address &, descriptor &out);
/// @return 0, -EAGAIN (ask again later), -ECONNREFUSED or another.
int connect_there(const std::string &provider, const address &, descriptor &out);
/// Whether the peer runs as our user, and so may read our memory anyway.
bool is_own_user(int fd);
/// The pid of the socket's peer; `end` signals its exit. 0: it has no pid here, or its exit cannot
/// be detected.
int peer_process(int fd, descriptor &end);
/// Whether the process has ended, or has closed the socket.
bool has_gone(int socket, int end);

/// Sends a packet with two descriptors. @return 0 or -errno.
int send_packet(int fd, const std::string &text, int first, int second);
/// @return number of bytes, 0: the peer has gone; -EAGAIN; -EPROTO. text: the data; descriptors
/// that did not arrive are empty.
int receive_packet(int fd, std::string &text, descriptor &first, descriptor &second);

/// A name for a file in /dev/shm that identifies our process.
std::string new_shared_name();
/// Removes files with such names whose owners are dead.
void sweep_shared_names();

} // namespace coop::net::fabric
