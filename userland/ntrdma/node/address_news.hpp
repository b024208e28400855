// SPDX-License-Identifier: MIT
// address_news.hpp - word from the kernel that an address of this machine may have come or gone.
//
// What has changed is left to those who look at the addresses. They look after the news are opened,
// so that they miss no change.
#pragma once

#include "userland/include/coop/unique_fd.hpp"

namespace coop::ntrdma
{

class address_news
{
public:
	/// Where the kernel refuses the socket, there is never any news.
	address_news();
	/// Can be read if there are news. Empty if there is no socket.
	const unique_fd &fd() const { return fd_; }
	/// Takes all that there are, without waiting. True if there were any.
	bool take();

private:
	unique_fd fd_;
};

} // namespace coop::ntrdma
