// SPDX-License-Identifier: MIT
// incoming.cpp - see incoming.hpp.
#include "incoming.hpp"

#include <algorithm>
#include <array>

namespace coop::net::core
{

request_state::~request_state()
{
	if (gate && !answered.load())
		gate->pass([this](incoming &in) {
			const int status = in.answer(*this, -ECANCELED, {});
			if (status == -ENOMEM)
				in.drop(*this);
			return status;
		});
}

incoming::incoming(domain &d, messenger &m, const rpc_options &o, std::size_t eager) :
	domain_(d),
	messenger_(m),
	options_(o),
	eager_(eager),
	share_(std::max(o.messages.send_buffers / 4, 1u)),
	gate_(std::make_shared<gate>(*this)),
	bulk_(std::make_shared<budget>(o.bulk_memory))
{
}

void incoming::serve(std::uint32_t method, rpc::method_handler h)
{
	const accepted added =
		h ? std::make_shared<const rpc::method_handler>(std::move(h)) : nullptr;
	accepted before; // destroyed without the lock
	std::lock_guard hold(lock_);
	accepted &place = methods_[method];
	before = std::exchange(place, added);
	if (!added)
		methods_.erase(method);
}

// @return 0: the request is in the table; 1: it is there already; else the status to refuse with.
int incoming::admit(endpoint &from, const call_head &h, accepted &out, grant &spent)
{
	std::lock_guard hold(lock_);
	if (requests_.contains({&from, h.call}))
		return 1;
	const auto method = methods_.find(h.method);
	if (method == methods_.end())
		return -ENOSYS;
	if (h.length > options_.max_body)
		return -EFBIG;
	const auto p = peers_.find(&from);
	if (requests_.size() >= options_.max_requests ||
	    (p != peers_.end() && p->second.requests >= options_.max_requests_of_peer))
		return -ENOBUFS;
	if (h.flags & call_head::bulk && !(spent = grant(bulk_, h.length)))
		return -ENOBUFS;
	requests_.emplace(key{&from, h.call}, endpoint_ptr(&from));
	peers_[&from].requests++;
	out = method->second;
	return 0;
}

void incoming::take(endpoint &from, const call_head &h, std::span<const std::byte> body,
		    const runner &run)
{
	const time_point arrival = clock::now();
	accepted method;
	grant spent;
	if (const int status = admit(from, h, method, spent)) {
		(status > 0 ? repeated : refused)++;
		if (status < 0)
			refuse(from, h.call, status);
		return;
	}
	auto r = std::make_shared<request_state>();
	r->gate = gate_;
	r->from = endpoint_ptr(&from);
	r->whose = from.address();
	r->id = h.call;
	r->method = h.method;
	r->spent = std::move(spent);
	if (h.time)
		r->deadline = arrival + std::chrono::milliseconds(h.time);
	if (h.flags & call_head::bulk) {
		fetch(std::move(r), method, h, body, run);
		return;
	}
	r->bytes.assign(body.begin(), body.end());
	served++;
	run(*method, std::move(r));
}

// Reads a long argument. What can fail here is the peer's doing or a matter of memory.
void incoming::fetch(std::shared_ptr<request_state> r, const accepted &method, const call_head &h,
		     std::span<const std::byte> descriptor, const runner &run)
{
	std::shared_ptr<transfer> t;
	int status = transfer::make(domain_, static_cast<std::size_t>(h.length), t);
	if (status == 0)
		status = t->read(domain_, messenger_, r->whose, descriptor, r->deadline,
				 [this, r, method, run](std::vector<std::byte> &&b, int s) {
					 if (s) {
						 refused++;
						 answer(*r, s, {});
						 return;
					 }
					 r->bytes = std::move(b);
					 served++;
					 run(*method, r);
				 });
	if (status == 0)
		return;
	refused++;
	answer(*r, status, {});
}

void incoming::probed(endpoint &from, const call_head &h)
{
	call_head answer;
	answer.call = h.call;
	{
		std::lock_guard hold(lock_);
		answer.kind =
			requests_.contains({&from, h.call}) ? call_kind::alive : call_kind::unknown;
	}
	[[maybe_unused]] const int status = send_or_drop(from, answer); // it will ask again
}

void incoming::refuse(endpoint &from, std::uint64_t id, int status)
{
	call_head h;
	h.kind = call_kind::answer;
	h.call = id;
	h.method = static_cast<std::uint32_t>(status);
	if (send_or_drop(from, h))
		unsent++;
}

int incoming::answer(request_state &r, int status, std::span<const std::byte> bytes)
{
	if (r.answered.exchange(true))
		return -EALREADY;
	int failed = -ENOMEM;
	try {
		failed = try_answer(r, status, bytes);
	} catch (const std::bad_alloc &) {
	}
	if (failed == -ETIMEDOUT)
		drop(r);
	else if (failed && failed != -ECANCELED)
		r.answered = false;
	return failed;
}

// @return as request::answer().
int incoming::try_answer(request_state &r, int status, std::span<const std::byte> bytes)
{
	if (r.deadline <= clock::now())
		return -ETIMEDOUT;
	call_head h;
	h.kind = call_kind::answer;
	h.call = r.id;
	h.method = static_cast<std::uint32_t>(status);
	h.length = bytes.size();
	if (bytes.size() > eager_)
		return bytes.size() > options_.max_body ? -EFBIG : offer(r, h, bytes);
	const ending end = end_of(r);
	return outcome(send(r.from, h, bytes, latest(r.deadline), end), end);
}

// Offers a long result. The request ends when the caller has read it, or does not.
int incoming::offer(request_state &r, call_head &h, std::span<const std::byte> bytes)
{
	grant spent(bulk_, bytes.size());
	if (!spent)
		return -ENOBUFS;
	std::shared_ptr<transfer> t;
	int status = transfer::make(domain_, std::vector(bytes.begin(), bytes.end()), t);
	const ending end = end_of(r);
	if (status == 0) {
		t->spent = std::move(spent);
		operation o;
		o.queue = queue_type::passive_bulk_send;
		o.to = r.from.get();
		o.deadline = latest(r.deadline);
		status = t->begin(messenger_, o, [this, end](std::vector<std::byte> &&, int s) {
			if (s)
				unsent++;
		});
	}
	if (status) {
		end->from.reset(); // not answered yet
		return status == -EBADFD ? -ECANCELED : status;
	}
	h.flags = call_head::bulk;
	status = send(r.from, h, t->descriptor(), latest(r.deadline), end);
	if (status)
		t->cancel(messenger_);
	return outcome(status, end);
}

// What a method hears. Where its answer is lost on the way, its caller hears of it.
int incoming::outcome(int status, const ending &end)
{
	if (status == -ENOMEM)
		end->from.reset(); // not answered yet
	return status == -EBADFD ? -ECANCELED : status == -ENOMEM ? status : 0;
}

// When a message that is not read gives its buffer back.
time_point incoming::latest(time_point deadline) const
{
	return std::min(deadline, clock::now() + options_.unread);
}

incoming::ending incoming::end_of(const request_state &r)
{
	return ending(new leave_table{*this, r.from, r.id});
}

int incoming::post(const endpoint_ptr &to, const call_head &h, std::span<const std::byte> body,
		   time_point deadline, const ending &end)
{
	std::array<std::byte, call_head::size> head;
	h.put(head.data());
	try {
		return messenger_.post(
			*to, {head, body},
			[this, to, held = end](int s) mutable {
				if (s)
					unsent++;
				held.reset();
				sent(to.get()); // the messenger calls flush() next
			},
			deadline);
	} catch (const std::bad_alloc &) {
		return -ENOMEM;
	}
}

// @return 0: it is under way or waits; else it has been dropped.
int incoming::send(const endpoint_ptr &to, const call_head &h, std::span<const std::byte> body,
		   time_point deadline, ending end)
{
	int status = -EAGAIN;
	bool first;
	{
		std::lock_guard hold(lock_);
		peer &p = peers_[to.get()];
		if (!over_ && p.sending >= share_) {
			p.queue.push_back({to, h, {body.begin(), body.end()}, deadline, end});
			return 0;
		}
		p.sending++;
		first = ready_.empty();
	}
	if (first)
		status = post(to, h, body, deadline, end);
	if (status == 0)
		return 0;
	if (status == -EAGAIN) {
		std::lock_guard hold(lock_);
		if (over_)
			status = -EBADFD;
		else
			ready_.push_back({to, h, {body.begin(), body.end()}, deadline, end});
	}
	if (status != -EAGAIN) {
		unsent++;
		sent(to.get());
	}
	// All sends may have ended meanwhile. Otherwise the next one that ends calls it.
	flush();
	return status == -EAGAIN ? 0 : status;
}

// What is not worth waiting for: there may be more of it than requests in the table.
int incoming::send_or_drop(endpoint &to, const call_head &h)
{
	{
		std::lock_guard hold(lock_);
		peer &p = peers_[&to];
		if (p.sending >= share_)
			return -EAGAIN;
		p.sending++;
	}
	const endpoint_ptr there(&to);
	const int status = post(there, h, {}, latest(never), nullptr);
	if (status) {
		sent(&to);
		flush();
	}
	return status;
}

// A message to the peer has ended, or has not begun.
void incoming::sent(endpoint *to)
{
	std::lock_guard hold(lock_);
	const auto at = peers_.find(to);
	peer &p = at->second;
	if (p.queue.empty()) {
		p.sending--;
		forget_unused(at);
	} else {
		ready_.push_back(std::move(p.queue.front()));
		p.queue.pop_front();
	}
}

// One thread at a time: otherwise one could find the queue empty, and all sends ended, while
// another has an answer in its hands for which there was no room before.
void incoming::flush()
{
	std::unique_lock hold(lock_);
	if (flushing_) {
		again_ = true;
		return;
	}
	flushing_ = true;
	do {
		again_ = false;
		while (!ready_.empty()) {
			message m = std::move(ready_.front());
			ready_.pop_front();
			hold.unlock();
			const int status = post(m.to, m.head, m.body, m.deadline, m.end);
			if (status && status != -EAGAIN) {
				unsent++;
				sent(m.to.get());
			}
			if (status != -EAGAIN)
				m = {};
			hold.lock();
			if (status == -EAGAIN) {
				ready_.push_front(std::move(m));
				break;
			}
		}
	} while (again_);
	flushing_ = false;
}

void incoming::release(endpoint *from, std::uint64_t id)
{
	endpoint_ptr held; // perhaps the last reference, dropped without the lock
	std::lock_guard hold(lock_);
	const auto at = requests_.find({from, id});
	if (at == requests_.end())
		return;
	held = std::move(at->second);
	requests_.erase(at);
	const auto p = peers_.find(from);
	p->second.requests--;
	forget_unused(p);
}

void incoming::forget_unused(table_of_peers::iterator at)
{
	if (at->second.requests == 0 && at->second.sending == 0)
		peers_.erase(at);
}

void incoming::drop_all()
{
	{
		std::lock_guard hold(lock_);
		over_ = true;
	}
	// The machine takes none: each is dropped, and the next one of its peer follows.
	flush();
}

} // namespace coop::net::core
