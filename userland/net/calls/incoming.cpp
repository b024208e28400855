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
		gate->pass([this](incoming &in) { return in.answer(*this, -ECANCELED, {}); });
}

incoming::incoming(domain &d, messenger &m, const rpc_options &o, std::size_t eager) :
	domain_(d),
	messenger_(m),
	options_(o),
	eager_(eager),
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
	const auto count = of_peer_.find(&from);
	if (requests_.size() >= options_.max_requests ||
	    (count != of_peer_.end() && count->second >= options_.max_requests_of_peer))
		return -ENOBUFS;
	if (h.flags & call_head::bulk && !(spent = grant(bulk_, h.length)))
		return -ENOBUFS;
	requests_.emplace(key{&from, h.call}, endpoint_ptr(&from));
	of_peer_[&from]++;
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
	std::array<std::byte, call_head::size> head;
	answer.put(head.data());
	[[maybe_unused]] const int status = messenger_.post(from, head); // it will ask again
}

void incoming::refuse(endpoint &from, std::uint64_t id, int status)
{
	call_head h;
	h.kind = call_kind::answer;
	h.call = id;
	h.method = static_cast<std::uint32_t>(status);
	std::array<std::byte, call_head::size> head;
	h.put(head.data());
	if (messenger_.post(from, head))
		unsent++;
}

int incoming::answer(request_state &r, int status, std::span<const std::byte> bytes)
{
	if (r.answered.exchange(true))
		return -EALREADY;
	if (r.deadline <= clock::now()) {
		release(r.from.get(), r.id);
		return -ETIMEDOUT;
	}
	call_head h;
	h.kind = call_kind::answer;
	h.call = r.id;
	h.method = static_cast<std::uint32_t>(status);
	h.length = bytes.size();
	if (bytes.size() <= eager_) {
		send(r.from, h, bytes, r.deadline, true);
		return 0;
	}
	const int failed = bytes.size() > options_.max_body ? -EFBIG : offer(r, h, bytes);
	if (failed)
		r.answered = false;
	return failed;
}

// Offers a long result. The request ends when the caller has read it, or does not.
int incoming::offer(request_state &r, call_head &h, std::span<const std::byte> bytes)
{
	grant spent(bulk_, bytes.size());
	if (!spent)
		return -ENOBUFS;
	std::shared_ptr<transfer> t;
	int status = -ENOMEM;
	try {
		status = transfer::make(domain_, std::vector(bytes.begin(), bytes.end()), t);
	} catch (const std::bad_alloc &) {
	}
	if (status == 0) {
		t->spent = std::move(spent);
		operation o;
		o.queue = queue_type::passive_bulk_send;
		o.to = r.from.get();
		o.deadline = std::min(r.deadline, clock::now() + options_.unread);
		status = t->begin(
			messenger_, o,
			[this, from = r.from, id = r.id](std::vector<std::byte> &&, int s) {
				if (s)
					unsent++;
				release(from.get(), id);
			});
	}
	if (status)
		return status == -EBADFD ? -ECANCELED : status;
	h.flags = call_head::bulk;
	send(r.from, h, t->descriptor(), r.deadline, false);
	return 0;
}

// An answer whose `last` is false, and that cannot be sent, leaves its transfer to its deadline.
int incoming::post(const endpoint_ptr &to, const call_head &h, std::span<const std::byte> body,
		   time_point deadline, bool last)
{
	std::array<std::byte, call_head::size> head;
	h.put(head.data());
	const std::uint64_t id = h.call;
	return messenger_.post(
		*to, {head, body},
		[this, to, id, last](int s) {
			if (s)
				unsent++;
			if (last)
				release(to.get(), id);
		},
		deadline);
}

void incoming::send(const endpoint_ptr &to, const call_head &h, std::span<const std::byte> body,
		    time_point deadline, bool last)
{
	int status = -EAGAIN;
	bool first;
	{
		std::lock_guard hold(lock_);
		first = queue_.empty();
	}
	if (first)
		status = post(to, h, body, deadline, last);
	if (status == -EAGAIN) {
		{
			std::lock_guard hold(lock_);
			queue_.push_back({to, h, {body.begin(), body.end()}, deadline, last});
		}
		// All sends may have ended meanwhile. Otherwise the next one that ends calls it.
		flush();
		return;
	}
	if (status == 0)
		return;
	unsent++;
	if (last)
		release(to.get(), h.call);
}

void incoming::flush()
{
	for (;;) {
		waiting w;
		{
			std::lock_guard hold(lock_);
			if (queue_.empty())
				return;
			w = std::move(queue_.front());
			queue_.pop_front();
		}
		const int status = post(w.to, w.head, w.body, w.deadline, w.last);
		if (status == -EAGAIN) {
			std::lock_guard hold(lock_);
			queue_.push_front(std::move(w));
			return;
		}
		if (status) {
			unsent++;
			if (w.last)
				release(w.to.get(), w.head.call);
		}
	}
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
	const auto count = of_peer_.find(from);
	if (--count->second == 0)
		of_peer_.erase(count);
}

void incoming::drop_all()
{
	std::deque<waiting> gone;
	{
		std::lock_guard hold(lock_);
		gone.swap(queue_);
	}
	for (const waiting &w : gone) {
		unsent++;
		release(w.to.get(), w.head.call);
	}
}

} // namespace coop::net::core
