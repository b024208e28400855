// SPDX-License-Identifier: MIT
// outbox.hpp - buffers that messages are sent from, and who is told when one is free again.
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
/// Memory on pages of its own, written once so that it has pages at all.
using memory = std::unique_ptr<std::byte, free_memory>;
memory allocate(std::size_t size);

class outbox final : net::buffer_handler
{
public:
	/// What is in slots that nobody has written to.
	static constexpr std::byte filling{0x5a};

	struct slot {
		memory bytes;
		net::buffer buffer;
		unsigned tag = 0; ///< the owner's
		/// Bytes in it that are one peer's, and not to be sent to another.
		std::size_t borrowed = 0;

		std::byte *data() { return bytes.get(); }
	};

	class owner
	{
	public:
		/// A message has gone, well or not, and its slot is free again.
		virtual void sent(unsigned tag, int status) = 0;

	protected:
		~owner() = default;
	};

	/// `slots` messages of at most `size` bytes under way at a time.
	outbox(net::domain &, owner &, unsigned slots, std::size_t size);
	outbox(const outbox &) = delete;
	outbox &operator=(const outbox &) = delete;

	/// Null: all are under way. What was borrowed is not in it any more.
	slot *take();
	/// Sends what is in the slot. @return 0 or -errno; then the slot is free again and there
	/// is no sent().
	int send(slot &, net::transfer_machine &, net::endpoint *to, std::size_t length);

private:
	void on_buffer(const net::buffer_event &) override;

	owner &owner_;
	std::vector<std::unique_ptr<slot>> slots_;
	std::vector<slot *> free_;
};

} // namespace coop::net_tools
