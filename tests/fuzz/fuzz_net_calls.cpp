// SPDX-License-Identifier: MIT
// fuzz_net_calls.cpp - calls among strangers: heads, requests, answers and descriptors of any kind.
//
// An rpc object serves methods that answer at once, later, at length or never, and it calls the
// strangers. They send it any bytes; heads with any field; memory that exists, existed, belongs to
// others or never existed; they answer its calls right, wrong, twice or not at all, and they leave
// in the middle. A naive reader of the table in head.hpp computes what the object must count.
//
// In all cases: what the object sends is of the protocol; the requests that a method holds, and the
// memory for long ones, stay within the limits; each own call ends once; afterwards nothing is
// left, and calls of a good peer succeed.
#include <algorithm>
#include <cerrno>
#include <deque>
#include <sanitizer/allocator_interface.h>

#include "coop/net/rpc.hpp"
#include "tests/fuzz/net_stranger.hpp"
#include "tests/fuzz/script.hpp"
#include "tests/fuzz/watched_mem.hpp"
#include "userland/net/calls/head.hpp"
#include "userland/net/descriptor.hpp"

namespace
{

using namespace fuzz_net;
using namespace std::chrono_literals;
using net::core::call_head;
using net::core::call_kind;

constexpr u32 max_steps = 200;
constexpr std::byte filling{0x5a}; // of long results

net::domain_options watched(std::size_t max_message)
{
	return {"watched", {{"max_message", std::to_string(max_message)}}};
}

u64 number_in(const bytes &b, std::size_t from, std::size_t size)
{
	u64 v = 0;
	for (std::size_t i = size; i-- > 0;)
		v = v << 8 | static_cast<u8>(b[from + i]);
	return v;
}

/// The table in head.hpp, read once more. @return the kind, or 0: it is malformed.
u8 kind_of(const bytes &b)
{
	if (b.size() < 32 || number_in(b, 0, 4) != 0x50526f43 || number_in(b, 4, 1) != 1)
		return 0;
	const u64 kind = number_in(b, 5, 1), flags = number_in(b, 6, 2),
		  length = number_in(b, 24, 8);
	if (kind < 1 || kind > 6 || flags > 1)
		return 0;
	if (flags ? kind > 2 || length == 0 || b.size() == 32 : length != b.size() - 32)
		return 0;
	return static_cast<u8>(kind);
}

bytes message(const call_head &h, std::span<const std::byte> body)
{
	bytes m(call_head::size);
	h.put(m.data());
	m.insert(m.end(), body.begin(), body.end());
	return m;
}

enum method : u32 { echo = 1, keep, lengthy, drop, fail };

class play
{
public:
	play(u8 shape, script &in) :
		in_(in),
		max_message_(shape & 1 ? 4096 : 512),
		options_{.messages = {.max_message = max_message_,
				      .send_buffers = 4,
				      .receive_buffers = 2},
			 .max_body = shape & 2 ? 65536u : 6000u,
			 .eager = 128,
			 .bulk_memory = shape & 2 ? 140000u : 13000u,
			 .max_requests = 8,
			 .max_requests_of_peer = 5,
			 .max_calls = 6,
			 .unread = 2s},
		domain_(watched(max_message_)),
		ledger_(the_ledger),
		rpc_(domain_, options_),
		others_(the_ledger = std::make_shared<ledger>()),
		theirs_(watched(3 * max_message_))
	{
		serve();
		FUZZ_CHECK(rpc_.start(nid + "0",
				      [](net::endpoint &, std::span<const std::byte>) {}) == 0);
		for (unsigned n = 0; n < 2; n++)
			come(n, 2);
		before_ = ledger_->bytes();
	}

	void step()
	{
		const u8 op = in_.byte();
		const unsigned n = op >> 7;
		switch (op & 15) {
		case 0: { // any bytes
			bytes b(in_.half() % (3 * max_message_ + 1));
			for (std::size_t i = 0; i < b.size() && i < 48; i++)
				b[i] = std::byte{in_.byte()};
			say(n, b);
			break;
		}
		case 1:
		case 2:
		case 3:
		case 4:
			say(n, any_head(op & 64));
			break;
		case 5:
		case 6:
		case 7:
			say(n, long_request(n));
			break;
		case 8:
			strangers_[n]->offer(op & 64, 1 + in_.half() % options_.max_body,
					     op & 32 ? servers_[n].get() : nullptr);
			break;
		case 9:
			strangers_[n]->withdraw(in_.byte());
			break;
		case 10:
			answer_kept(op & 64);
			break;
		case 11:
			call(n, op & 64);
			break;
		case 12:
			if (op & 64) {
				go(n);
				come(n, in_.byte() % 3);
			}
			break;
		case 13:
			the_time += std::chrono::milliseconds(in_.half());
			break;
		case 14:
			rpc_.serve(keep, op & 64 ? net::rpc::method_handler() : keeper());
			break;
		default:
			turn_all();
		}
		if (op & 16)
			turn_all();
		look();
	}

	void end()
	{
		rpc_.serve(keep, {});
		calm();
		kept_.clear();
		// What nobody has read is dropped by now.
		for (unsigned i = 0; i < 2; i++) {
			the_time += options_.unread + 1s;
			calm();
		}
		look();
		settle_accounts();
		for (unsigned n = 0; n < 2; n++)
			if (strangers_[n]->descriptors().size() % 2)
				go(n);
		good_peer();
		for (unsigned n = 0; n < 2; n++)
			go(n);
		rpc_.stop();
		FUZZ_CHECK(ended_ == begun_);
		calm();
	}

private:
	// ---- methods ---------------------------------------------------------------

	void serve()
	{
		const auto on = [this](u32 number, auto f) {
			rpc_.serve(number, [this, number, f](const net::request &q) {
				FUZZ_CHECK(q.method() == number);
				FUZZ_CHECK(q.bytes().size() <= options_.max_body);
				f(q);
			});
		};
		on(echo, [](const net::request &q) { q.answer(q.bytes()); });
		rpc_.serve(keep, keeper());
		on(lengthy, [this](const net::request &q) {
			std::size_t size = 0;
			for (std::size_t i = 0; i < q.bytes().size() && i < 2; i++)
				size = size << 8 | static_cast<u8>(q.bytes()[i]);
			const bytes result(size % (options_.max_body + 100), filling);
			const int status = q.answer(result);
			FUZZ_CHECK((status == -EFBIG) == (result.size() > options_.max_body) ||
				   status == -ETIMEDOUT);
		});
		on(drop, [](const net::request &) {});
		on(fail, [](const net::request &q) { q.fail(-EDOM); });
	}
	net::rpc::method_handler keeper()
	{
		return [this](const net::request &q) { kept_.push_back(q); };
	}
	void answer_kept(bool dropped)
	{
		if (kept_.empty())
			return;
		const auto which =
			kept_.begin() + static_cast<std::ptrdiff_t>(in_.byte() % kept_.size());
		const net::request q = *which;
		const int status = dropped ? 0 : q.answer(bytes(in_.half() % 3000, filling));
		FUZZ_CHECK(status != -EINVAL && status != -EALREADY);
		if (status != -ENOBUFS) // then it is not answered yet
			kept_.erase(which);
	}

	// ---- strangers -------------------------------------------------------------

	void come(unsigned n, unsigned receives)
	{
		strangers_[n] =
			std::make_unique<stranger>(theirs_, nid + std::to_string(1 + n), receives);
		strangers_[n]->bulk_most = options_.max_body;
		strangers_[n]->on_sent = [this](const bytes &b, int status) { sent(b, status); };
		strangers_[n]->on_message = [this, n](auto m, net::endpoint &from) {
			hear(n, m, from);
		};
		servers_[n] = strangers_[n]->end_point(at(0));
	}
	void go(unsigned n)
	{
		servers_[n].reset();
		strangers_[n].reset();
	}
	void say(unsigned n, bytes b) { strangers_[n]->send(*servers_[n], std::move(b)); }
	bytes any_head(bool any_kind)
	{
		call_head h;
		const u8 how = in_.byte();
		h.kind = static_cast<call_kind>(any_kind ? in_.byte() : 1 + in_.byte() % 6);
		h.flags = how & 1 ? 0 : how & 2 ? in_.half() : how >> 7;
		h.call = how & 4 ? last_call_ : in_.byte() % 16;
		h.method = how & 8 ? in_.word() : in_.byte() % 7;
		h.time = how & 16 ? in_.half() : 0;
		bytes body(in_.half() % max_message_);
		for (std::size_t i = 0; i < body.size() && i < 4; i++)
			body[i] = std::byte{in_.byte()};
		h.length = how & 96 ? body.size() : in_.quad();
		return message(h, body);
	}
	/// A descriptor of the stranger's, of the other's, of one that never was; or spoilt.
	bytes some_descriptor(unsigned n, std::size_t length)
	{
		const u8 how = in_.byte();
		bytes d;
		switch (how & 3) {
		case 0:
			strangers_[n]->offer(how & 4,
					     std::clamp<std::size_t>(length, 1, options_.max_body),
					     how & 8 ? servers_[n].get() : nullptr);
			[[fallthrough]];
		case 1:
			if (const auto &all = strangers_[how & 16 ? 1 - n : n]->descriptors();
			    !all.empty())
				d = all[all.size() - 1 - in_.byte() % all.size()];
			break;
		default: {
			net::core::descriptor made;
			made.transport = net::core::transport_id("watched");
			made.writable = how & 4;
			made.size = length;
			made.token = in_.quad();
			made.key = in_.quad();
			made.machine = at(in_.byte() % 5);
			d.resize(net::core::descriptor::fixed);
			net::core::encode(made, d.data());
		}
		}
		if (how & 32 && !d.empty()) {
			const u32 where = in_.half();
			d[where % d.size()] ^= std::byte{in_.byte()};
			if (how & 64 && d.size() >= net::core::descriptor::fixed)
				net::core::seal(d);
		}
		if (how & 128)
			d.resize(in_.byte());
		return d;
	}
	bytes long_request(unsigned n)
	{
		call_head h;
		const u8 how = in_.byte();
		h.kind = call_kind::request;
		h.flags = call_head::bulk;
		h.call = in_.byte() % 16;
		h.method = how & 2 ? in_.byte() % 7 : how & 4 ? lengthy : echo;
		h.time = how & 8 ? in_.half() : 0;
		h.length = how & 1 ? in_.quad() : 1 + in_.half() % options_.max_body;
		return message(h, some_descriptor(n, static_cast<std::size_t>(h.length)));
	}
	/// What the object sends is of the protocol. A stranger may read a result, and answers
	/// calls.
	void hear(unsigned n, std::span<const std::byte> m, net::endpoint &from)
	{
		call_head h;
		FUZZ_CHECK(kind_of({m.begin(), m.end()}) && call_head::get(m, h));
		const u8 how = in_.byte();
		switch (h.kind) {
		case call_kind::answer:
			FUZZ_CHECK(static_cast<std::int32_t>(h.method) <= 0 && h.time == 0);
			FUZZ_CHECK(h.length <= options_.max_body);
			if (h.flags && how & 1)
				strangers_[n]->use(false, static_cast<std::size_t>(h.length), m);
			return;
		case call_kind::request:
			last_call_ = h.call;
			if (h.flags && how & 1)
				strangers_[n]->use(false, static_cast<std::size_t>(h.length), m);
			if (how & 2)
				lie(n, from, h, how);
			return;
		case call_kind::alive:
		case call_kind::unknown:
			FUZZ_CHECK(h.flags == 0 && h.method == 0 && h.time == 0);
			return;
		default:
			FUZZ_CHECK(h.kind == call_kind::probe);
		}
	}
	/// An answer to a call, right or not, perhaps more than one.
	void lie(unsigned n, net::endpoint &to, call_head h, u8 how)
	{
		h.kind = how & 4 ? call_kind::answer : static_cast<call_kind>(1 + in_.byte() % 6);
		h.flags = how >> 3 & 1;
		h.method = how & 16 ? in_.word() : 0;
		h.time = 0;
		bytes body;
		if (h.flags) {
			h.length = how & 32 ? in_.quad() : 1 + in_.half() % options_.max_body;
			body = some_descriptor(n, static_cast<std::size_t>(h.length));
		} else {
			body.resize(in_.half() % max_message_);
			h.length = how & 32 ? in_.quad() : body.size();
		}
		for (u32 times = how & 64 ? 3 : 1; times; times--)
			strangers_[n]->send(to, message(h, body));
	}

	// ---- own calls -------------------------------------------------------------

	void call(unsigned n, bool later)
	{
		const bytes argument(in_.half() % (options_.max_body + 10), filling);
		const int status = rpc_.call(
			at(1 + n), in_.byte() % 7, argument,
			[this](net::call_result &&r) {
				ended_++;
				FUZZ_CHECK(ended_ <= begun_ + 1); // perhaps before call() returns
				FUZZ_CHECK(r.status <= 0 && (r.status == 0 || r.bytes.empty()));
				FUZZ_CHECK(r.bytes.size() <= options_.max_body);
			},
			later ? net::clock::now() + std::chrono::milliseconds(in_.half())
			      : net::never);
		FUZZ_CHECK((status == -EFBIG) == (argument.size() > options_.max_body));
		if (status == 0)
			begun_++;
	}
	void good_peer()
	{
		the_ledger = std::make_shared<ledger>();
		net::domain d(watched(max_message_));
		net::rpc good(d, options_);
		FUZZ_CHECK(good.start(nid + "9") == 0);
		const auto was = rpc_.stats();
		for (const std::size_t size : {std::size_t{5}, options_.max_body}) {
			const bytes argument(size, std::byte{0x11});
			net::call_result got{1, false, {}};
			FUZZ_CHECK(good.call(at(0), echo, argument, [&](net::call_result &&r) {
				got = std::move(r);
			}) == 0);
			calm();
			FUZZ_CHECK(got.status == 0 && got.bytes == argument);
		}
		FUZZ_CHECK(rpc_.stats().served == was.served + 2);
		good.stop();
	}

	// ---- what must hold ----------------------------------------------------------

	/// Counts what the table says of an arrived message.
	void sent(const bytes &b, int status)
	{
		if (status == -ECANCELED) {
			unsure_++;
			return;
		}
		if (status)
			return;
		const u8 kind = kind_of(b);
		malformed_ += kind == 0;
		requests_ += kind == 1;
	}
	void look()
	{
		FUZZ_CHECK(kept_.size() <= options_.max_requests);
		for (unsigned n = 0; n < 2; n++)
			FUZZ_CHECK(std::count_if(kept_.begin(), kept_.end(), [&](const auto &q) {
					   return q.from() == at(1 + n);
				   }) <= options_.max_requests_of_peer);
		std::size_t by_bulk = 0; // they do not fit into a message
		for (const net::request &q : kept_)
			by_bulk += q.bytes().size() > max_message_ ? q.bytes().size() : 0;
		FUZZ_CHECK(by_bulk <= options_.bulk_memory);
		FUZZ_CHECK(ledger_->bytes() <=
			   before_ + 2 * options_.bulk_memory +
				   2 * options_.max_calls * options_.max_body +
				   options_.messages.send_buffers * max_message_);
	}
	/// Holds when it is quiet, and every request has been dropped or answered.
	void settle_accounts()
	{
		const net::rpc_stats s = rpc_.stats();
		const auto about = [this](u64 n, u64 expected) {
			return n >= expected && n <= expected + unsure_;
		};
		FUZZ_CHECK(about(s.malformed, malformed_));
		FUZZ_CHECK(about(s.served + s.refused + s.repeated, requests_));
		FUZZ_CHECK(rpc_.machine().queued(net::queue_type::msg_send) == 0);
		FUZZ_CHECK(rpc_.machine().queued(net::queue_type::active_bulk_recv) == 0);
	}

	script &in_;
	const std::size_t max_message_;
	const net::rpc_options options_;
	net::domain domain_;
	const std::shared_ptr<ledger> ledger_;
	std::vector<net::request> kept_;
	net::rpc rpc_;
	const std::shared_ptr<ledger> others_;
	net::domain theirs_;
	std::unique_ptr<stranger> strangers_[2];
	net::endpoint_ptr servers_[2];
	std::size_t before_ = 0; ///< bytes registered for messages
	u64 malformed_ = 0, requests_ = 0, unsure_ = 0, begun_ = 0, ended_ = 0, last_call_ = 0;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8 *data, std::size_t size)
{
	static const watched_mem transport;
	[[maybe_unused]] static const bool known = (spi::add_transport(transport), true);
	constexpr std::size_t most_memory = 24u << 20;
	const alone only;
	const std::size_t before = __sanitizer_get_current_allocated_bytes();
	random_state = 1;
	the_time = 1s;
	script in(data, size);
	the_ledger = std::make_shared<ledger>();
	play p(in.byte(), in);
	for (u32 n = 0; in.more() && n < max_steps; n++) {
		p.step();
		FUZZ_CHECK(__sanitizer_get_current_allocated_bytes() < before + most_memory);
	}
	p.end();
	return 0;
}
