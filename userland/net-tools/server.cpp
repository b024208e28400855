// SPDX-License-Identifier: MIT
// server.cpp - see server.hpp.
#include "server.hpp"

#include <cerrno>
#include <cstdio>
#include <new>
#include <random>
#include <sys/resource.h>
#include <system_error>
#include <unistd.h>

#include "advice.hpp"

namespace coop::net_tools
{

namespace
{

constexpr unsigned slots = 16, bulk_places = 16;
constexpr std::size_t answers_most = 65536, offers_most = 1024;

} // namespace

std::uint64_t cpu_us()
{
	rusage u{};
	::getrusage(RUSAGE_SELF, &u);
	const auto us = [](const timeval &t) {
		return static_cast<std::uint64_t>(t.tv_sec) * 1000000 +
		       static_cast<std::uint64_t>(t.tv_usec);
	};
	return us(u.ru_utime) + us(u.ru_stime);
}

std::uint64_t resident()
{
	unsigned long size = 0, pages = 0;
	if (std::FILE *f = std::fopen("/proc/self/statm", "re")) {
		if (std::fscanf(f, "%lu %lu", &size, &pages) != 2)
			pages = 0;
		std::fclose(f);
	}
	return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

server::server(station &s, const limits &l, goal &end) :
	station_(s),
	limits_(l),
	end_(end),
	instance_(std::uint64_t{std::random_device{}()} << 32 | 1),
	outbox_(s.domain(), *this, slots, s.limits().max_message),
	rpc_(s.domain(), s.machine(), for_questions(s.limits())),
	places_(bulk_places)
{
	rpc_.serve(method::tell, [this](const net::request &r) { tell(r); });
	for (place &p : places_)
		idle_.push_back(&p);
}

server::~server()
{
	station_.stop();
}

trouble server::start(const std::string &address)
{
	return station_.start(address, *this);
}

trouble server::run()
{
	const std::string here = net::format(station_.machine().address());
	while (!station_.until(end_, std::chrono::hours(24)) && !station_.lost())
		;
	rails_ = station_.machine().rails();
	station_.stop();
	rpc_.stop();
	if (const int status = station_.lost())
		return failure{exit_failure, why_lost(status, here, station_.domain())};
	return {};
}

void server::on_buffer(const net::buffer_event &e)
{
	end_.step();
	if (e.sender && e.status == 0) {
		const auto *base = static_cast<const std::byte *>(e.buffer->segments()[0].base);
		take({base + e.offset, e.length}, *e.sender);
	}
	if (!e.queued)
		station_.put_back(e.buffer);
}

void server::take(std::span<const std::byte> m, net::endpoint &from)
{
	head h;
	// Receive buffers are larger, and a peer may not know the limit.
	const bool fits = m.size() <= station_.limits().max_message;
	const bool ours = fits && head::get(m, h);
	if (fits && !ours && rpc_.take(from, m))
		return;
	count_.messages++;
	if (!ours) {
		count_.malformed++;
		return;
	}
	switch (h.command) {
	case command::count:
		counted_[h.run]++;
		return;
	case command::echo:
		h.command = command::reply;
		give(from, h, m.size());
		return;
	case command::mirror:
		h.command = command::reply;
		if (outbox::slot *s = outbox_.take()) {
			h.put(s->data());
			std::copy(m.begin() + head::size, m.end(), s->data() + head::size);
			s->borrowed = m.size();
			if (outbox_.send(*s, station_.machine(), &from, m.size()) == 0) {
				count_.answered++;
				return;
			}
		}
		count_.dropped++;
		return;
	case command::fetch:
	case command::fill:
		accept(m, h, from);
		return;
	default:
		count_.malformed++;
	}
}

void server::tell(const net::request &r) const
{
	if (r.bytes().size() != sizeof(head::run)) {
		r.fail(-EPROTO);
		return;
	}
	const auto run = static_cast<std::uint16_t>(std::to_integer<unsigned>(r.bytes()[0]) |
						    std::to_integer<unsigned>(r.bytes()[1]) << 8);
	std::array<std::byte, figures::size> told;
	figures{instance_, counted_[run], cpu_us(), resident(), station_.limits().max_message,
		max_bulk()}
		.put(told);
	r.answer(told);
}

server::counters server::count() const
{
	counters c = count_;
	const net::rpc_stats s = rpc_.stats();
	c.calls = s.served;
	c.unsent = s.unsent;
	return c;
}

std::size_t server::max_bulk() const
{
	return std::min(limits_.bulk, station_.limits().max_segment);
}

// Sends an answer now, or when a slot is free.
void server::give(net::endpoint &to, const head &h, std::size_t length, std::uint64_t body)
{
	if (answers_.empty() && put(to, h, length, body))
		return;
	if (answers_.size() == answers_most) {
		count_.dropped++;
		return;
	}
	answers_.push_back({net::endpoint_ptr(&to), h, length, body});
}

// @return false: there is no free slot.
bool server::put(net::endpoint &to, const head &h, std::size_t length, std::uint64_t body)
{
	outbox::slot *const s = outbox_.take();
	if (!s)
		return false;
	h.put(s->data());
	if (h.command == command::failed)
		put64(s->data() + head::size, body);
	s->borrowed = h.command == command::reply ? 0 : length;
	if (outbox_.send(*s, station_.machine(), &to, length) == 0)
		count_.answered++;
	else
		count_.dropped++;
	return true;
}

void server::sent(int status)
{
	end_.step();
	if (status)
		count_.dropped++;
	for (; !answers_.empty(); answers_.pop_front()) {
		const answer &a = answers_.front();
		if (!put(*a.to, a.what, a.length, a.body))
			return;
	}
}

void server::accept(std::span<const std::byte> m, const head &h, net::endpoint &from)
{
	if (m.size() <= offer_size || m.size() > offer_size + station_.limits().max_descriptor) {
		count_.malformed++;
		return;
	}
	const std::uint64_t length = get64(m.data() + head::size);
	offer o{net::endpoint_ptr(&from), h, length, {}};
	if (length == 0 || length > max_bulk()) {
		refuse(o, -EFBIG);
		return;
	}
	if (idle_.empty() && offers_.size() == offers_most) {
		refuse(o, -ENOBUFS);
		return;
	}
	o.descriptor.assign(m.begin() + offer_size, m.end());
	if (idle_.empty()) {
		offers_.push_back(std::move(o));
		return;
	}
	place &p = *idle_.back();
	idle_.pop_back();
	begin(p, std::move(o));
}

bool server::grow(place &p, std::size_t size)
{
	if (p.buffer && p.buffer->size() >= size)
		return true;
	try {
		p.buffer.reset();
		p.bytes = allocate(size);
		p.buffer = std::make_unique<net::buffer>(station_.domain(), p.bytes.get(), size);
		return true;
	} catch (const std::bad_alloc &) {
	} catch (const std::system_error &) { // the limit of locked memory
	}
	return false;
}

void server::begin(place &p, offer o)
{
	p.now = std::move(o);
	net::operation op;
	op.queue = p.now.what.command == command::fetch ? net::queue_type::active_bulk_recv
							: net::queue_type::active_bulk_send;
	op.length = p.now.length;
	op.descriptor = p.now.descriptor;
	op.handler = &bulk_events_;
	op.context = &p;
	const int status = grow(p, p.now.length) ? station_.machine().add(*p.buffer, op) : -ENOMEM;
	if (status == 0)
		return;
	count_.bulk_failed++;
	refuse(p.now, status);
	p.now = {};
	idle_.push_back(&p);
}

void server::refuse(const offer &o, int status)
{
	head h = o.what;
	h.command = command::failed;
	give(*o.from, h, failed_size,
	     static_cast<std::uint64_t>(static_cast<std::int64_t>(status)));
}

void server::bulk_over(const net::buffer_event &e)
{
	end_.step();
	place &p = *static_cast<place *>(e.context);
	if (e.status) {
		count_.bulk_failed++;
		refuse(p.now, e.status);
	} else {
		count_.bulk_ok++;
	}
	p.now = {};
	idle_.push_back(&p);
	// If an offer cannot begin, its place goes to the next one.
	while (!offers_.empty() && !idle_.empty()) {
		place &free = *idle_.back();
		idle_.pop_back();
		offer next = std::move(offers_.front());
		offers_.pop_front();
		begin(free, std::move(next));
	}
}

} // namespace coop::net_tools
