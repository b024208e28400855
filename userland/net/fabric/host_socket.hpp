// SPDX-License-Identifier: MIT
// host_socket.hpp - sockets between machines of one host, and files left by dead ones.
//
// The sockets are of the Unix family with abstract names: they vanish with their owner, even
// if it is killed, and their hang-up tells peers of its end. Descriptors go along with data.
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
/// The socket of somebody who may read our memory anyway.
bool is_own_user(int fd);
/// Whose socket it is, and what tells that this process has ended. 0: it has no number here, or
/// nothing tells.
int peer_process(int fd, descriptor &end);
/// Whether the process has ended, or has closed the socket.
bool has_gone(int socket, int end);

/// Sends a packet with two descriptors. @return 0 or -errno.
int send_packet(int fd, const std::string &text, int first, int second);
/// @return bytes, 0: the peer has gone; -EAGAIN; -EPROTO. Text is what came; descriptors that did
/// not come are empty.
int receive_packet(int fd, std::string &text, descriptor &first, descriptor &second);

/// A name for a file in /dev/shm that says whose it is.
std::string new_shared_name();
/// Removes files with such names whose owners are dead.
void sweep_shared_names();

} // namespace coop::net::fabric
