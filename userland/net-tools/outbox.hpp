// SPDX-License-Identifier: MIT
// outbox.hpp - buffers to send messages from, and the notification when one is free again.
//
// Used by the thread that runs handlers, or before there is one.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "coop/net.hpp"

namespace coop::net_tools
{

namespace net = coop::net;

struct free_memory {
	void operator()(void *p) const { std::free(p); }
};
/// Memory on its own pages, written once so that pages are allocated.
using memory = std::unique_ptr<std::byte, free_memory>;
memory allocate(std::size_t size);

class outbox final : net::buffer_handler
{
public:
	/// Contents of slots that were never written.
	static constexpr std::byte filling{0x5a};

	struct slot {
		memory bytes;
		net::buffer buffer;
		/// Bytes that belong to one peer, and must not be sent to another.
		std::size_t borrowed = 0;

		std::byte *data() { return bytes.get(); }
	};

	class owner
	{
	public:
		/// A send has ended, successfully or not, and its slot is free again.
		virtual void sent(int status) = 0;

	protected:
		~owner() = default;
	};

	/// At most `slots` messages of `size` bytes are under way at a time.
	outbox(net::domain &, owner &, unsigned slots, std::size_t size);
	outbox(const outbox &) = delete;
	outbox &operator=(const outbox &) = delete;

	/// Null: all are under way. Clears borrowed bytes.
	slot *take();
	/// Sends the slot's contents. @return 0 or -errno; after an error the slot is free again
	/// and sent() is not called.
	int send(slot &, net::transfer_machine &, net::endpoint *to, std::size_t length);

private:
	void on_buffer(const net::buffer_event &) override;

	owner &owner_;
	std::vector<std::unique_ptr<slot>> slots_;
	std::vector<slot *> free_;
};

} // namespace coop::net_tools
