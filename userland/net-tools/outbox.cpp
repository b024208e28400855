// SPDX-License-Identifier: MIT
// outbox.cpp - see outbox.hpp.
#include "outbox.hpp"

#include <cstring>
#include <new>
#include <utility>

namespace coop::net_tools
{

memory allocate(std::size_t size)
{
	constexpr std::size_t page = 4096;
	size = (size + page - 1) / page * page;
	memory m(static_cast<std::byte *>(std::aligned_alloc(page, size)));
	if (!m)
		throw std::bad_alloc();
	std::memset(m.get(), std::to_integer<int>(outbox::filling), size);
	return m;
}

outbox::outbox(net::domain &d, owner &o, unsigned slots, std::size_t size) : owner_(o)
{
	for (unsigned i = 0; i < slots; i++) {
		memory m = allocate(size);
		std::byte *const base = m.get();
		slots_.push_back(
			std::make_unique<slot>(slot{std::move(m), net::buffer(d, base, size)}));
		free_.push_back(slots_.back().get());
	}
}

outbox::slot *outbox::take()
{
	if (free_.empty())
		return nullptr;
	slot *const s = free_.back();
	free_.pop_back();
	std::memset(s->data(), std::to_integer<int>(filling), std::exchange(s->borrowed, 0));
	return s;
}

int outbox::send(slot &s, net::transfer_machine &tm, net::endpoint *to, std::size_t length)
{
	net::operation o;
	o.queue = net::queue_type::msg_send;
	o.length = length;
	o.to = to;
	o.handler = this;
	o.context = &s;
	const int status = tm.add(s.buffer, o);
	if (status)
		free_.push_back(&s);
	return status;
}

void outbox::on_buffer(const net::buffer_event &e)
{
	slot *const s = static_cast<slot *>(e.context);
	free_.push_back(s);
	owner_.sent(e.status);
}

} // namespace coop::net_tools
