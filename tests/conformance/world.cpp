// SPDX-License-Identifier: MIT
// world.cpp - see world.hpp.
//
// A recorder locks its list before the bell, never the other way round.
#include "world.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sched.h>

namespace conformance
{

namespace
{

std::chrono::seconds patience_of_machine()
{
	const char *times = std::getenv("COOP_CONFORMANCE_PATIENCE");
	return 100s * std::max(1, times ? std::atoi(times) : 1);
}

} // namespace

const std::chrono::seconds patience = patience_of_machine();

std::ostream &operator<<(std::ostream &o, const mode &m)
{
	return o << m.of->label << (m.sync ? " sync" : "");
}

std::string mode_name(const testing::TestParamInfo<mode> &i)
{
	return i.param.of->label + (i.param.sync ? "_sync" : "");
}

namespace
{

std::vector<mode> modes(bool automatic, bool synchronous)
{
	std::vector<mode> all;
	for (const target &t : targets()) {
		if (automatic)
			all.push_back({&t, false});
		if (synchronous)
			all.push_back({&t, true});
	}
	return all;
}

} // namespace

std::vector<mode> automatic()
{
	return modes(true, false);
}

std::vector<mode> synchronous()
{
	return modes(false, true);
}

std::vector<mode> both()
{
	return modes(true, true);
}

unsigned scale(unsigned normally, unsigned when_long)
{
	const char *asked = std::getenv("COOP_LONG");
	return asked && *asked == '1' ? when_long : normally;
}

void recorder::on_buffer(const buffer_event &e)
{
	if (on_event)
		on_event(e);
	{
		std::lock_guard guard(lock_);
		events_.push_back({e.buffer, e.queue, e.queued, e.status, e.offset, e.length,
				   endpoint_ptr(e.sender), e.context, std::this_thread::get_id(),
				   ::sched_getcpu()});
	}
	std::lock_guard guard(bell_.lock);
	bell_.rung.notify_all();
}

void recorder::on_state(const tm_event &e)
{
	if (on_change)
		on_change(e);
	{
		std::lock_guard guard(lock_);
		states_.push_back({e, std::this_thread::get_id()});
	}
	std::lock_guard guard(bell_.lock);
	bell_.rung.notify_all();
}

std::vector<happened> recorder::all() const
{
	std::lock_guard guard(lock_);
	return {events_.begin(), events_.end()};
}

std::vector<happened> recorder::of(const net::buffer &b, bool finals) const
{
	std::lock_guard guard(lock_);
	std::vector<happened> some;
	for (const happened &h : events_)
		if (h.buffer == &b && !(finals && h.queued))
			some.push_back(h);
	return some;
}

std::vector<happened> recorder::messages() const
{
	std::lock_guard guard(lock_);
	std::vector<happened> some;
	for (const happened &h : events_)
		if (h.sender)
			some.push_back(h);
	return some;
}

std::size_t recorder::count() const
{
	std::lock_guard guard(lock_);
	return events_.size();
}

std::vector<std::pair<tm_event, std::thread::id>> recorder::states() const
{
	std::lock_guard guard(lock_);
	return states_;
}

bool recorder::came(tm_state s) const
{
	std::lock_guard guard(lock_);
	for (const auto &e : states_)
		if (e.first.state == s)
			return true;
	return false;
}

void recorder::clear()
{
	std::deque<happened> old; // releases end points without the lock
	std::lock_guard guard(lock_);
	old.swap(events_);
}

std::byte pattern(unsigned seed, std::size_t i)
{
	const std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
	return static_cast<std::byte>(x >> 56);
}

std::vector<std::byte> patterned(unsigned seed, std::size_t length)
{
	std::vector<std::byte> v(length);
	for (std::size_t i = 0; i < length; i++)
		v[i] = pattern(seed, i);
	return v;
}

piece::piece(domain &d, std::size_t size, unsigned segments)
{
	std::vector<segment> list;
	for (unsigned i = 0; i < segments; i++) {
		const std::size_t left = size, rest = segments - i;
		const std::size_t n = rest == 1 ? left : left / rest + (i % 3) * (left / rest / 5);
		memory.emplace_back(n ? n : 1);
		list.push_back({memory.back().data(), memory.back().size()});
		size -= n;
	}
	buffer = std::make_unique<net::buffer>(d, list);
}

void piece::fill(unsigned seed)
{
	std::size_t at = 0;
	for (auto &m : memory)
		for (std::byte &b : m)
			b = pattern(seed, at++);
}

std::vector<std::byte> piece::copy(std::size_t offset, std::size_t length) const
{
	std::vector<std::byte> out;
	for (const auto &m : memory) {
		if (offset >= m.size()) {
			offset -= m.size();
			continue;
		}
		const std::size_t n = std::min(length, m.size() - offset);
		const auto from = m.begin() + static_cast<std::ptrdiff_t>(offset);
		out.insert(out.end(), from, from + static_cast<std::ptrdiff_t>(n));
		length -= n;
		offset = 0;
	}
	return out;
}

bool piece::is(std::byte b, std::size_t offset, std::size_t length) const
{
	for (std::byte each : copy(offset, length))
		if (each != b)
			return false;
	return true;
}

node::node(world &w, domain &d, bool synchronous) :
	in(w),
	of(d),
	sync(synchronous),
	record(w.rings),
	tm(d, &record)
{
	if (sync)
		EXPECT_EQ(tm.deliver_synchronously(), 0);
}

int node::start(const std::string &address)
{
	return tm.start(address);
}

bool node::up(const std::string &address)
{
	const int r = start(address);
	EXPECT_EQ(r, 0) << address << ": " << std::strerror(-r);
	if (r)
		return false;
	const int came = tm.wait(tm_state::started, clock::now() + patience);
	EXPECT_EQ(came, 0) << address << " is " << name(tm.state());
	return came == 0;
}

int node::receive(piece &p, std::size_t min_size, std::uint32_t max_msgs, time_point deadline)
{
	operation o;
	o.queue = queue_type::msg_recv;
	o.min_receive_size = min_size ? min_size : p.buffer->size();
	o.max_receive_msgs = max_msgs;
	o.deadline = deadline;
	o.handler = &record;
	return tm.add(*p.buffer, o);
}

int node::send(piece &p, std::size_t length, const endpoint_ptr &to, time_point deadline)
{
	operation o;
	o.queue = queue_type::msg_send;
	o.length = length;
	o.to = to.get();
	o.deadline = deadline;
	o.handler = &record;
	return tm.add(*p.buffer, o);
}

int node::passive(piece &p, queue_type q, std::size_t length, time_point deadline)
{
	operation o;
	o.queue = q;
	o.length = length;
	o.deadline = deadline;
	o.handler = &record;
	return tm.add(*p.buffer, o);
}

int node::active(piece &p, queue_type q, std::span<const std::byte> descriptor, std::size_t length,
		 time_point deadline)
{
	operation o;
	o.queue = q;
	o.length = length;
	o.descriptor = descriptor;
	o.deadline = deadline;
	o.handler = &record;
	return tm.add(*p.buffer, o);
}

endpoint_ptr node::to(const node &other)
{
	endpoint_ptr e;
	const int r = tm.make_endpoint(other.tm.address(), e);
	EXPECT_EQ(r, 0) << other.text() << ": " << std::strerror(-r);
	return e;
}

world::~world()
{
	// Records may hold the last references to end points; those must go before the machines.
	for (auto &n : nodes_) {
		(void)n->tm.stop(true);
		n->record.clear();
	}
	nodes_.clear();
}

domain &world::open(const parameters &more, const std::string &transport)
{
	domain_options o{transport.empty() ? how.of->transport : transport, how.of->options};
	for (const auto &changed : more) {
		std::erase_if(o.parameters,
			      [&](const auto &p) { return p.first == changed.first; });
		o.parameters.push_back(changed);
	}
	domains_.push_back(std::make_unique<domain>(o));
	return *domains_.back();
}

domain &world::home()
{
	return domains_.empty() ? open() : *domains_.front();
}

piece &world::memory(std::size_t size, unsigned segments, domain *d)
{
	pieces_.push_back(std::make_unique<piece>(d ? *d : home(), size, segments));
	return *pieces_.back();
}

buffer_pool &world::pool(const pool_options &o, domain *d)
{
	pools_.push_back(std::make_unique<buffer_pool>(d ? *d : home(), o));
	return *pools_.back();
}

node &world::made(domain *d)
{
	nodes_.push_back(std::make_unique<node>(*this, d ? *d : home(), how.sync));
	return *nodes_.back();
}

node &world::up(domain *d)
{
	node &n = made(d);
	n.up(next_address());
	return n;
}

void world::remove(node &n)
{
	(void)n.tm.stop(true);
	n.record.clear();
	std::erase_if(nodes_, [&](const auto &p) { return p.get() == &n; });
}

bool world::until(const std::function<bool()> &f)
{
	const time_point deadline = clock::now() + patience;
	while (!f()) {
		if (clock::now() > deadline)
			return false;
		std::size_t delivered = 0;
		for (auto &n : nodes_)
			if (n->sync)
				delivered += n->tm.deliver_all();
		if (delivered)
			continue;
		// The state that f reads changes with an event, which rings, or with a state that
		// the loop checks again soon.
		std::unique_lock guard(rings.lock);
		rings.rung.wait_for(guard, how.sync ? 20us : 2000us);
	}
	return true;
}

bool world::ended(const node &n, const piece &p, std::size_t times)
{
	return until([&] { return n.record.finals(*p.buffer) >= times; });
}

} // namespace conformance
