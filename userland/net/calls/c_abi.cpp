// SPDX-License-Identifier: MIT
// c_abi.cpp - coop/net.h: the handles are the objects, exceptions become errno values.
//
// A handle counts the objects made from it, so that a wrong order of closing is an error and not
// the abort that destructors owe to C++ programs.
#include "coop/net.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <system_error>

#include "coop/net/rpc.hpp"

namespace net = coop::net;

struct coop_net_domain {
	explicit coop_net_domain(const net::domain_options &o) : domain(o) {}
	net::domain domain;
	std::atomic<unsigned> users{0};
};

struct coop_net_rpc {
	coop_net_rpc(coop_net_domain &d, const net::rpc_options &o) : home(d), rpc(d.domain, o) {}
	coop_net_domain &home;
	net::rpc rpc;
	std::atomic<unsigned> offers{0};
};

struct coop_net_request {
	net::request request;
	std::string from;
};

namespace coop::net::core
{

// One bulk operation, and those who wait for its end.
class waited_bulk final : public net::buffer_handler
{
public:
	waited_bulk(net::domain &d, void *memory, std::size_t length) : buffer_(d, memory, length)
	{
	}

	int begin(net::transfer_machine &tm, net::operation o)
	{
		o.handler = this;
		const int status = tm.add(buffer_, o);
		if (status) // else the event, which may have come already, says so
			over_ = true;
		return status == -ETIME ? -ETIMEDOUT : status;
	}
	int wait(std::size_t *got = nullptr)
	{
		std::unique_lock hold(lock_);
		ended_.wait(hold, [this] { return over_; });
		if (got)
			*got = length_;
		return status_;
	}
	void cancel(net::transfer_machine &tm) { tm.del(buffer_); }
	const net::buffer &buffer() const { return buffer_; }

private:
	void on_buffer(const net::buffer_event &e) override
	{
		// Under the lock: the waiting thread destroys this.
		std::lock_guard hold(lock_);
		status_ = e.status;
		length_ = e.length;
		over_ = true;
		ended_.notify_all();
	}

	net::buffer buffer_;
	std::mutex lock_;
	std::condition_variable ended_;
	bool over_ = false;
	int status_ = 0;
	std::size_t length_ = 0;
};

} // namespace coop::net::core

namespace
{

thread_local std::string last_error;

template <class function> int guarded(function f)
{
	try {
		return f();
	} catch (const std::system_error &e) {
		last_error = e.what();
		return e.code().value() ? -e.code().value() : -EIO;
	} catch (const std::bad_alloc &) {
		last_error = "out of memory";
		return -ENOMEM;
	} catch (const std::exception &e) {
		last_error = e.what();
		return -EIO;
	}
}

std::span<const std::byte> bytes_at(const void *bytes, std::size_t length)
{
	return {static_cast<const std::byte *>(bytes), length};
}

// Decades are as good as never, and do not overflow the clock.
net::time_point deadline_in(std::int64_t ms)
{
	constexpr std::int64_t most = std::int64_t{1000} * 3600 * 24 * 3650;
	return ms < 0 || ms > most ? net::never : net::clock::now() + std::chrono::milliseconds(ms);
}

// A copy of the caller's structure, with zeros for what it does not have.
template <class structure> bool known(const structure *from, structure &out)
{
	out = {};
	if (from->size < sizeof(from->size))
		return false;
	std::memcpy(&out, from, std::min(from->size, sizeof(out)));
	return true;
}

// The other way; fields that the library does not have become 0.
template <class structure> int tell(structure &from, structure *out)
{
	const std::size_t size = out->size;
	if (size < sizeof(out->size))
		return -EINVAL;
	from.size = size;
	std::memset(out, 0, size);
	std::memcpy(out, &from, std::min(size, sizeof(from)));
	return 0;
}

template <class value, class given> void set(value &to, given from)
{
	if (from)
		to = value(from);
}

net::rpc_options options_of(const coop_net_options &o)
{
	net::rpc_options r;
	set(r.messages.max_message, o.max_message);
	set(r.messages.send_buffers, o.send_buffers);
	set(r.messages.receive_buffers, o.receive_buffers);
	set(r.messages.poll, o.poll_us);
	set(r.max_body, o.max_body);
	set(r.eager, o.eager);
	set(r.bulk_memory, o.bulk_memory);
	set(r.max_requests, o.max_requests);
	set(r.max_requests_of_peer, o.max_requests_of_peer);
	set(r.max_calls, o.max_calls);
	set(r.probe, o.probe_ms);
	set(r.unread, o.unread_ms);
	return r;
}

// `range`: what to use of the memory that the descriptor names.
int run(coop_net_rpc *r, const net::operation &range, const void *descriptor, std::size_t size,
	void *memory, std::size_t length, std::int64_t timeout_ms, std::size_t *got)
{
	if (r->rpc.inside())
		return -EDEADLK;
	return guarded([&] {
		net::core::waited_bulk b(r->home.domain, memory, length);
		net::operation o = range;
		o.descriptor = bytes_at(descriptor, size);
		o.deadline = deadline_in(timeout_ms);
		const int status = b.begin(r->rpc.machine(), o);
		return status ? status : b.wait(got);
	});
}

net::operation all_of(net::queue_type queue)
{
	net::operation o;
	o.queue = queue;
	return o;
}

net::operation range_of(net::queue_type queue, std::uint64_t offset, std::size_t length)
{
	net::operation o = all_of(queue);
	o.offset = offset;
	o.length = length;
	return o;
}

} // namespace

struct coop_net_offer {
	coop_net_offer(coop_net_rpc &r, void *memory, std::size_t length) :
		home(r),
		operation(r.home.domain, memory, length)
	{
	}
	coop_net_rpc &home;
	net::core::waited_bulk operation;
};

// ---- domain and rpc --------------------------------------------------------------

const char *coop_net_version(void)
{
	return COOP_NET_VERSION;
}

const char *coop_net_error(void)
{
	return last_error.c_str();
}

int coop_net_domain_open(const char *transport, const char *const *parameters,
			 coop_net_domain **out)
{
	return guarded([&] {
		net::domain_options o{transport};
		for (; parameters && *parameters; parameters++) {
			const std::string text = *parameters;
			const std::size_t middle = text.find('=');
			if (middle == text.npos)
				throw std::system_error(EINVAL, std::generic_category(),
							"no = in parameter " + text);
			o.parameters.emplace_back(text.substr(0, middle), text.substr(middle + 1));
		}
		*out = new coop_net_domain(o);
		return 0;
	});
}

int coop_net_domain_close(coop_net_domain *d)
{
	if (d && d->users.load())
		return -EBUSY;
	delete d;
	return 0;
}

int coop_net_domain_limits(const coop_net_domain *d, coop_net_limits *out)
{
	const net::domain_limits &l = d->domain.limits();
	coop_net_limits mine{0, l.max_message, l.max_segment, l.max_descriptor};
	return tell(mine, out);
}

int coop_net_rpc_create(coop_net_domain *d, const coop_net_options *options, coop_net_rpc **out)
{
	return guarded([&] {
		coop_net_options mine{};
		if (options && !known(options, mine))
			throw std::system_error(EINVAL, std::generic_category(),
						"size of the options");
		*out = new coop_net_rpc(*d, options_of(mine));
		d->users++;
		return 0;
	});
}

int coop_net_rpc_close(coop_net_rpc *r)
{
	if (!r)
		return 0;
	if (r->rpc.inside())
		return -EDEADLK;
	if (r->offers.load())
		return -EBUSY;
	coop_net_domain &home = r->home;
	delete r;
	home.users--;
	return 0;
}

int coop_net_rpc_start(coop_net_rpc *r, const char *address, coop_net_receive_fn *receive,
		       void *context)
{
	return guarded([&] {
		net::messenger::receiver to;
		if (receive)
			to = [receive, context](net::endpoint &from, std::span<const std::byte> b) {
				receive(context, from.text().c_str(), b.data(), b.size());
			};
		return r->rpc.start(address, std::move(to));
	});
}

int coop_net_rpc_stop(coop_net_rpc *r)
{
	return r->rpc.stop();
}

int coop_net_rpc_address(const coop_net_rpc *r, char *text, std::size_t size)
{
	return guarded([&] {
		const std::string address = r->rpc.text();
		if (address.empty())
			return -EBADFD;
		if (address.size() >= size)
			return -ENOSPC;
		std::memcpy(text, address.c_str(), address.size() + 1);
		return 0;
	});
}

int coop_net_rpc_stats(const coop_net_rpc *r, coop_net_stats *out)
{
	const net::rpc_stats s = r->rpc.stats();
	coop_net_stats mine{0,          s.calls, s.served,    s.refused,
			    s.repeated, s.late,  s.malformed, s.unsent};
	return tell(mine, out);
}

std::size_t coop_net_rpc_max_message(const coop_net_rpc *r)
{
	return r->rpc.max_message();
}

// ---- messages and calls ----------------------------------------------------------

static int send_one(coop_net_rpc *r, const char *to, const void *bytes, std::size_t length,
		    std::int64_t timeout_ms, net::priority p)
{
	return guarded([&] {
		return r->rpc.send(to, bytes_at(bytes, length), deadline_in(timeout_ms), p);
	});
}

int coop_net_send(coop_net_rpc *r, const char *to, const void *bytes, std::size_t length,
		  std::int64_t timeout_ms)
{
	return send_one(r, to, bytes, length, timeout_ms, net::priority::normal);
}

int coop_net_send_high(coop_net_rpc *r, const char *to, const void *bytes, std::size_t length,
		       std::int64_t timeout_ms)
{
	return send_one(r, to, bytes, length, timeout_ms, net::priority::high);
}

static int post_one(coop_net_rpc *r, const char *to, const void *bytes, std::size_t length,
		    coop_net_done_fn *done, void *context, std::int64_t timeout_ms, net::priority p)
{
	return guarded([&] {
		net::messenger::completion over;
		if (done)
			over = [done, context](int status) { done(context, status); };
		return r->rpc.post(to, bytes_at(bytes, length), std::move(over),
				   deadline_in(timeout_ms), p);
	});
}

int coop_net_post(coop_net_rpc *r, const char *to, const void *bytes, std::size_t length,
		  coop_net_done_fn *done, void *context, std::int64_t timeout_ms)
{
	return post_one(r, to, bytes, length, done, context, timeout_ms, net::priority::normal);
}

int coop_net_post_high(coop_net_rpc *r, const char *to, const void *bytes, std::size_t length,
		       coop_net_done_fn *done, void *context, std::int64_t timeout_ms)
{
	return post_one(r, to, bytes, length, done, context, timeout_ms, net::priority::high);
}

int coop_net_call(coop_net_rpc *r, const char *to, std::uint32_t method, const void *bytes,
		  std::size_t length, coop_net_result_fn *result, void *context,
		  std::int64_t timeout_ms)
{
	return guarded([&] {
		return r->rpc.call(
			to, method, bytes_at(bytes, length),
			[result, context](net::call_result &&c) {
				result(context, c.status, c.remote, c.bytes.data(), c.bytes.size());
			},
			deadline_in(timeout_ms));
	});
}

int coop_net_call_wait(coop_net_rpc *r, const char *to, std::uint32_t method, const void *bytes,
		       std::size_t length, std::int64_t timeout_ms, void **result,
		       std::size_t *result_length)
{
	*result = nullptr;
	*result_length = 0;
	if (r->rpc.inside())
		return -EDEADLK;
	return guarded([&] {
		const net::call_result c =
			r->rpc.call(to, method, bytes_at(bytes, length), deadline_in(timeout_ms))
				.get();
		if (c.status)
			return c.status;
		// At least a byte: null says that there is none.
		*result = std::malloc(std::max<std::size_t>(c.bytes.size(), 1));
		if (!*result)
			return -ENOMEM;
		std::copy(c.bytes.begin(), c.bytes.end(), static_cast<std::byte *>(*result));
		*result_length = c.bytes.size();
		return 0;
	});
}

void coop_net_free(void *p)
{
	std::free(p);
}

int coop_net_serve(coop_net_rpc *r, std::uint32_t method, coop_net_method_fn *run, void *context)
{
	return guarded([&] {
		if (!run) {
			r->rpc.serve(method, {});
			return 0;
		}
		r->rpc.serve(method, [run, context](const net::request &q) {
			run(context, new coop_net_request{q, net::format(q.from())});
		});
		return 0;
	});
}

const void *coop_net_request_bytes(const coop_net_request *q, std::size_t *length)
{
	const std::span<const std::byte> b = q->request.bytes();
	if (length)
		*length = b.size();
	return b.data();
}

const char *coop_net_request_from(const coop_net_request *q)
{
	return q->from.c_str();
}

std::uint32_t coop_net_request_method(const coop_net_request *q)
{
	return q->request.method();
}

std::int64_t coop_net_request_time_left(const coop_net_request *q)
{
	const net::time_point deadline = q->request.deadline();
	if (deadline == net::never)
		return INT64_MAX;
	return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - net::clock::now())
		.count();
}

int coop_net_answer(coop_net_request *q, const void *bytes, std::size_t length)
{
	return guarded([&] { return q->request.answer(bytes_at(bytes, length)); });
}

int coop_net_fail(coop_net_request *q, int status)
{
	return guarded([&] { return q->request.fail(status); });
}

void coop_net_request_free(coop_net_request *q)
{
	delete q;
}

// ---- bulk ------------------------------------------------------------------------

static int make_offer(coop_net_rpc *r, void *memory, std::size_t length, int writable,
		      bool reusable, std::int64_t timeout_ms, coop_net_offer **out)
{
	return guarded([&] {
		auto made = std::make_unique<coop_net_offer>(*r, memory, length);
		net::operation o;
		o.queue = writable ? net::queue_type::passive_bulk_recv
				   : net::queue_type::passive_bulk_send;
		o.reusable = reusable;
		o.deadline = deadline_in(timeout_ms);
		if (const int status = made->operation.begin(r->rpc.machine(), o))
			return status;
		r->offers++;
		*out = made.release();
		return 0;
	});
}

int coop_net_offer_make(coop_net_rpc *r, void *memory, std::size_t length, int writable,
			std::int64_t timeout_ms, coop_net_offer **out)
{
	return make_offer(r, memory, length, writable, false, timeout_ms, out);
}

int coop_net_offer_share(coop_net_rpc *r, void *memory, std::size_t length, int writable,
			 std::int64_t timeout_ms, coop_net_offer **out)
{
	return make_offer(r, memory, length, writable, true, timeout_ms, out);
}

const void *coop_net_offer_descriptor(const coop_net_offer *o, std::size_t *length)
{
	const std::span<const std::byte> d = o->operation.buffer().descriptor();
	if (length)
		*length = d.size();
	return d.data();
}

int coop_net_offer_wait(coop_net_offer *o)
{
	return o->home.rpc.inside() ? -EDEADLK : o->operation.wait();
}

int coop_net_offer_end(coop_net_offer *o)
{
	if (!o)
		return 0;
	if (o->home.rpc.inside())
		return -EDEADLK;
	o->operation.cancel(o->home.rpc.machine());
	[[maybe_unused]] const int status = o->operation.wait();
	coop_net_rpc &home = o->home;
	delete o;
	home.offers--;
	return 0;
}

int coop_net_read(coop_net_rpc *r, const void *descriptor, std::size_t descriptor_length,
		  void *memory, std::size_t length, std::int64_t timeout_ms, std::size_t *got)
{
	return run(r, all_of(net::queue_type::active_bulk_recv), descriptor, descriptor_length,
		   memory, length, timeout_ms, got);
}

int coop_net_write(coop_net_rpc *r, const void *descriptor, std::size_t descriptor_length,
		   const void *memory, std::size_t length, std::int64_t timeout_ms)
{
	return run(r, all_of(net::queue_type::active_bulk_send), descriptor, descriptor_length,
		   const_cast<void *>(memory), length, timeout_ms, nullptr);
}

int coop_net_read_at(coop_net_rpc *r, const void *descriptor, std::size_t descriptor_length,
		     std::uint64_t offset, void *memory, std::size_t length,
		     std::int64_t timeout_ms)
{
	return run(r, range_of(net::queue_type::active_bulk_recv, offset, length), descriptor,
		   descriptor_length, memory, length, timeout_ms, nullptr);
}

int coop_net_write_at(coop_net_rpc *r, const void *descriptor, std::size_t descriptor_length,
		      std::uint64_t offset, const void *memory, std::size_t length,
		      std::int64_t timeout_ms)
{
	return run(r, range_of(net::queue_type::active_bulk_send, offset, length), descriptor,
		   descriptor_length, const_cast<void *>(memory), length, timeout_ms, nullptr);
}
