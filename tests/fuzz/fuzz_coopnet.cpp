// SPDX-License-Identifier: MIT
// fuzz_coopnet.cpp - coopnet's own protocol: a server among strangers, a client of a liar.
//
// Server, outbox, client and tasks are the program's; all of libcoop-net below them is real, on
// the transport `mem`. Two strangers send the server anything: any bytes, heads with any
// command, offers of memory that exists, existed, belongs to others or never existed, and calls;
// they flood the server, ignore its answers, and leave in the middle. A naive reader of the
// protocol computes what the server must count.
//
// In all cases: the server registers no more memory for a bulk operation than it was told to
// allow, and for no more operations at a time than it has places; its counts include every
// message it took; what it owes is bounded; and afterwards a correct client measures as if
// there had been no strangers.
//
// Strangers do not agree on max_message.
//
// In the other play a client asks a liar, which mostly answers right, so that there is a next
// question, and otherwise as the script says. Every task ends, in success or with a sentence.
#include <algorithm>
#include <cerrno>
#include <sanitizer/allocator_interface.h>

#include "tests/fuzz/net_stranger.hpp"
#include "tests/fuzz/script.hpp"
#include "tests/fuzz/watched_mem.hpp"
#include "userland/net-tools/server.hpp"
#include "userland/net-tools/tasks.hpp"
#include "userland/net/calls/head.hpp"
#include "userland/net/descriptor.hpp"

namespace
{

using namespace fuzz_net;
using namespace coop::net_tools;
using namespace std::chrono_literals;

constexpr u32 max_steps = 200;
constexpr std::size_t bulk_places = 16, answer_slots = 16, call_slots = 8;

using net::core::call_head;
using net::core::call_kind;

settings how(std::size_t max_message)
{
	settings s;
	s.transport = "watched";
	s.parameters = {{"max_message", std::to_string(max_message)}};
	return s;
}

bytes message(command c, std::uint16_t run, std::uint32_t number, std::size_t size)
{
	bytes m(std::max(size, head::size), std::byte{0x2d});
	head{c, run, number}.put(m.data());
	m.resize(size);
	return m;
}

bytes message(call_head h, std::span<const std::byte> body)
{
	bytes m(call_head::size);
	h.put(m.data());
	m.insert(m.end(), body.begin(), body.end());
	return m;
}

/// Whether it is a message of calls; `body` is what follows its head.
bool is_call(std::span<const std::byte> m, call_head &h, std::span<const std::byte> &body)
{
	body = m;
	return call_head::get(body, h);
}

bytes spoilt(bytes b, script &in)
{
	for (u32 times = 1 + (in.byte() & 3); times && !b.empty(); times--) {
		const u32 where = in.half();
		b[where % b.size()] ^= std::byte{in.byte()};
	}
	return b;
}

// ---- a server among strangers ------------------------------------------------------

class server_play
{
public:
	explicit server_play(u8 shape) :
		max_message_(shape & 1 ? 4096 : 256),
		max_bulk_(shape & 2 ? 65536 : 4096),
		station_(how(max_message_)),
		server_(station_, {max_bulk_}, end_),
		theirs_({"watched", how(longest_).parameters})
	{
		const trouble t = server_.start(nid + "0");
		FUZZ_CHECK(!t);
		ledger_->most = max_bulk_;
		before_ = ledger_->regions.size();
		for (unsigned n = 0; n < 2; n++)
			come(n, n == 0 && shape & 4 ? 0 : 2);
	}

	void step(script &in)
	{
		const u8 op = in.byte();
		const unsigned n = op >> 7;
		switch (op & 15) {
		case 0: { // any bytes
			bytes b(in.half() % (longest_ + 1));
			for (std::size_t i = 0; i < b.size() && i < 48; i++)
				b[i] = std::byte{in.byte()};
			say(n, b, in);
			break;
		}
		case 1:
		case 2:
		case 3: {
			const auto c =
				static_cast<command>(op & 64 ? in.byte() : 1 + in.byte() % 4);
			const u16 run = in.byte();
			say(n, message(c, run, in.word(), in.half() % (longest_ + 1)), in);
			break;
		}
		case 4:
		case 5:
		case 6:
		case 7:
			say(n, bulk(n, in), in);
			break;
		case 8:
			strangers_[n]->offer(op & 64, 1 + in.half() % (2 * max_bulk_),
					     op & 32 ? servers_[n].get() : nullptr);
			break;
		case 9:
			strangers_[n]->withdraw(in.byte());
			break;
		case 10:
			if (op & 64) {
				go(n);
				come(n, in.byte() % 3);
			}
			break;
		case 11:
			the_time += std::chrono::milliseconds(in.half());
			break;
		case 12:
			strangers_[n]->turn();
			break;
		case 13:
			turn_server();
			break;
		case 14:
			say(n, call(in), in);
			break;
		default:
			turn_all();
		}
		look();
	}

	void end()
	{
		calm();
		look();
		settle_accounts();
		for (unsigned n = 0; n < 2; n++)
			if (strangers_[n]->descriptors().size() % 2)
				go(n);
		right_client();
		for (unsigned n = 0; n < 2; n++)
			go(n);
		calm();
		look();
	}

private:
	void come(unsigned n, unsigned receives)
	{
		strangers_[n] =
			std::make_unique<stranger>(theirs_, nid + std::to_string(1 + n), receives);
		strangers_[n]->on_sent = [this](const bytes &b, int status) { sent(b, status); };
		strangers_[n]->on_message = [this](auto m, net::endpoint &) { answered(m); };
		servers_[n] = strangers_[n]->end_point(at(0));
	}
	void go(unsigned n)
	{
		servers_[n].reset();
		strangers_[n].reset();
	}
	void turn_server() { (void)station_.machine().deliver_all(); }
	void say(unsigned n, bytes b, script &in)
	{
		// Bit 0 of the number marks an echo, so that the answer shows which it is.
		head h;
		if (head::get(b, h) && h.command == command::echo)
			b[4] |= std::byte{1};
		else if (head::get(b, h))
			b[4] &= std::byte{0xfe};
		const u8 times = in.byte();
		for (u32 i = 0; i < 1u + (times >= 192 ? times & 63 : 0); i++)
			strangers_[n]->send(*servers_[n], b);
	}
	/// Mostly the call of a client.
	bytes call(script &in)
	{
		call_head h;
		const u8 how = in.byte();
		h.kind = how & 1 ? call_kind::request : static_cast<call_kind>(1 + in.byte() % 6);
		h.flags = how & 2 && how & 4;
		h.call = in.byte();
		h.method = how & 8 ? in.word() : u32{method::tell};
		h.time = how & 16 ? in.half() : 0;
		const bytes body(how & 32 ? in.half() % 200 : 2, std::byte{in.byte()});
		h.length = how & 64 ? in.quad() : body.size();
		bytes m = message(h, body);
		return how & 128 ? spoilt(std::move(m), in) : m;
	}
	bytes bulk(unsigned n, script &in)
	{
		const u8 how = in.byte();
		const bool write = how & 1;
		std::size_t length = how & 2 ? in.quad() : 1 + in.half() % max_bulk_;
		bytes d;
		switch (how >> 2 & 3) {
		case 0:
			strangers_[n]->offer(
				write, std::clamp<std::size_t>(length, 1, 2 * max_bulk_), nullptr);
			[[fallthrough]];
		case 1: {
			const auto &all = strangers_[how & 16 ? 1 - n : n]->descriptors();
			if (!all.empty())
				d = all[all.size() - 1 - in.byte() % all.size()];
			break;
		}
		default: {
			net::core::descriptor made;
			made.transport = net::core::transport_id("watched");
			made.writable = write;
			made.size = length;
			made.token = in.quad();
			made.key = in.quad();
			made.machine = at(in.byte() % 5);
			d.resize(net::core::descriptor::fixed);
			net::core::encode(made, d.data());
		}
		}
		if (how & 32) {
			d = spoilt(std::move(d), in);
			if (how & 64 && d.size() >= net::core::descriptor::fixed)
				net::core::seal(d);
		}
		if (how & 128)
			d.resize(in.byte());
		bytes m = message(write ? command::fill : command::fetch, in.byte(), in.word(),
				  offer_size);
		put64(m.data() + head::size, length);
		m.insert(m.end(), d.begin(), d.end());
		m.resize(std::min(m.size(), max_message_));
		return m;
	}

	/// Counts what the protocol says of an arrived message.
	void sent(const bytes &b, int status)
	{
		if (status == -ECANCELED) {
			unsure_++;
			return;
		}
		call_head call;
		std::span<const std::byte> body;
		if (status || (b.size() <= max_message_ && is_call(b, call, body)))
			return;
		expected_.messages++;
		const u8 c = b.size() < head::size ? 0 : static_cast<u8>(b[1]);
		const bool offer = c == u8(command::fetch) || c == u8(command::fill);
		const std::size_t most = offer_size + net::core::descriptor::fixed;
		if (c == 0 || b.size() > max_message_ || b[0] != std::byte{head::magic} ||
		    c > u8(command::fill) || c == 4 ||
		    (offer && (b.size() <= offer_size || b.size() > most)))
			expected_.malformed++;
		else if (c == u8(command::count))
			counts_++;
	}
	void answered(std::span<const std::byte> m)
	{
		head h;
		call_head call;
		std::span<const std::byte> body;
		FUZZ_CHECK(m.size() <= max_message_);
		if (is_call(m, call, body)) {
			told(call, body);
			return;
		}
		FUZZ_CHECK(head::get(m, h));
		if (h.command == command::failed)
			FUZZ_CHECK(m.size() == failed_size &&
				   static_cast<std::int64_t>(get64(m.data() + head::size)) < 0);
		else
			FUZZ_CHECK(h.command == command::reply);
		if (h.command == command::reply && h.number & 1) // without another peer's bytes
			FUZZ_CHECK(std::all_of(m.begin() + head::size, m.end(), [](std::byte each) {
				return each == outbox::filling;
			}));
	}

	void told(const call_head &h, std::span<const std::byte> body)
	{
		figures f;
		if (h.kind == call_kind::alive || h.kind == call_kind::unknown)
			return;
		FUZZ_CHECK(h.kind == call_kind::answer && !h.flags);
		if (h.method == 0)
			FUZZ_CHECK(figures::get(body, f) && f.max_bulk == max_bulk_ &&
				   f.max_message == max_message_ && f.instance);
		else
			FUZZ_CHECK(static_cast<std::int32_t>(h.method) < 0 && body.empty());
	}

	/// Messages that needed an answer.
	u64 answers() const
	{
		const server::counters &c = server_.count();
		return c.messages - c.malformed - counts_ - c.bulk_ok;
	}
	bool owed() const
	{
		const server::counters &c = server_.count();
		return answers() > c.answered + c.dropped + unsure_;
	}
	// Holds at any time.
	void look()
	{
		net::transfer_machine &m = station_.machine();
		FUZZ_CHECK(m.queued(net::queue_type::active_bulk_recv) +
				   m.queued(net::queue_type::active_bulk_send) <=
			   bulk_places);
		FUZZ_CHECK(m.queued(net::queue_type::msg_send) <= answer_slots + call_slots);
		FUZZ_CHECK(ledger_->regions.size() <= before_ + bulk_places);
		const server::counters &c = server_.count();
		FUZZ_CHECK(c.messages >= c.malformed + c.bulk_ok);
	}
	// Holds when it is quiet: each message was one of these, and no answer is owed.
	void settle_accounts()
	{
		const server::counters &c = server_.count();
		const auto about = [this](u64 n, u64 expected) {
			return n >= expected && n <= expected + unsure_;
		};
		FUZZ_CHECK(about(c.messages, expected_.messages));
		FUZZ_CHECK(about(c.malformed, expected_.malformed));
		FUZZ_CHECK(c.answered <= answers());
		FUZZ_CHECK(!owed());
		net::transfer_machine &m = station_.machine();
		for (const auto q : {net::queue_type::active_bulk_recv,
				     net::queue_type::active_bulk_send, net::queue_type::msg_send})
			FUZZ_CHECK(m.queued(q) == 0);
	}
	void right_client()
	{
		const server::counters was = server_.count();
		the_ledger = std::make_shared<ledger>();
		station own(how(max_message_));
		client c(own, 4);
		const auto well = [](const trouble &t) {
			if (t)
				std::fprintf(stderr, "a correct client: %s\n", t->text.c_str());
			return !t;
		};
		FUZZ_CHECK(well(c.connect(at(0), 60s)));
		FUZZ_CHECK(c.max_bulk() == max_bulk_ && c.max_message() == max_message_);
		ping_task mirror(max_message_, {3, 1e6}, true), echo(head::size, {3, 1e6}, false);
		stream_task stream(64, {20, 1e6}, 3);
		bulk_task fetch(c, command::fetch, max_bulk_, {3, 1e6}, 2);
		bulk_task fill(c, command::fill, 1000, {3, 1e6}, 2);
		for (task *t : {static_cast<task *>(&mirror), static_cast<task *>(&echo),
				static_cast<task *>(&stream), static_cast<task *>(&fetch),
				static_cast<task *>(&fill)})
			FUZZ_CHECK(well(c.run(*t)));
		FUZZ_CHECK(mirror.samples().size() == 3 && echo.samples().size() == 3);
		FUZZ_CHECK(fetch.samples().size() == 3 && fill.samples().size() == 3);
		FUZZ_CHECK(stream.arrived() == 20);
		FUZZ_CHECK(server_.count().bulk_ok == was.bulk_ok + 6);
		FUZZ_CHECK(server_.count().malformed == was.malformed);
	}

	const std::size_t max_message_, max_bulk_;
	const std::size_t longest_ = 3 * max_message_; // the longest text of a stranger
	const std::shared_ptr<ledger> ledger_ = the_ledger = std::make_shared<ledger>();
	goal end_;
	station station_;
	server server_;
	std::size_t before_ = 0; // regions not for bulk
	const std::shared_ptr<ledger> others_ = the_ledger = std::make_shared<ledger>();
	net::domain theirs_;
	std::unique_ptr<stranger> strangers_[2];
	net::endpoint_ptr servers_[2];
	server::counters expected_{};
	u64 counts_ = 0, unsure_ = 0;
};

// ---- a client of a liar ----------------------------------------------------------------

class client_play
{
public:
	client_play(u8 shape, script &in) :
		in_(in),
		max_message_(shape & 1 ? 4096 : 256),
		theirs_({"watched", how(max_message_).parameters}),
		liar_(std::make_unique<stranger>(theirs_, nid + "0", 3)),
		station_(how(max_message_))
	{
		liar_->on_message = [this](auto m, net::endpoint &from) { lie(m, from); };
	}

	void play()
	{
		client c(station_, 4);
		if (run(c, c.connect(at(0), 10s)))
			return;
		for (u32 tasks = 1 + in_.byte() % 4; tasks; tasks--) {
			const u8 kind = in_.byte();
			const extent e{1u + (kind >> 4), 1e6};
			const std::size_t size =
				std::min<std::size_t>(1 + in_.half(), c.max_bulk());
			std::unique_ptr<task> t;
			ping_task *ping = nullptr;
			bulk_task *bulk = nullptr;
			const bool fits = c.max_message() >= head::size;
			switch (kind & 3) {
			case 0:
			case 1:
				if (!fits)
					continue;
				t.reset(ping = new ping_task(head::size + size % (c.max_message() -
										  head::size + 1),
							     e, kind & 1));
				break;
			case 2:
				if (!fits)
					continue;
				t = std::make_unique<stream_task>(head::size, e, 3);
				break;
			default:
				if (!size)
					continue;
				t.reset(bulk = new bulk_task(
						c, kind & 4 ? command::fetch : command::fill, size,
						e, 1 + (kind >> 3 & 1)));
			}
			if (run(c, c.run(*t)))
				return;
			if (ping)
				FUZZ_CHECK(ping->samples().size() == e.count);
			if (bulk)
				FUZZ_CHECK(bulk->samples().size() == e.count);
		}
	}

private:
	/// True if the client failed: it has a sentence, and nothing is left of it.
	bool run(client &c, const trouble &t)
	{
		if (!t) {
			const net::transfer_machine *const m = &c.at().machine();
			for (const auto q : {net::queue_type::passive_bulk_recv,
					     net::queue_type::passive_bulk_send})
				FUZZ_CHECK(m->queued(q) == 0);
			return false;
		}
		FUZZ_CHECK(t->status == exit_failure && !t->text.empty());
		return true;
	}
	void answer(net::endpoint &to, bytes m)
	{
		if (m.size() <= max_message_)
			liar_->send(to, std::move(m));
	}
	void lie(std::span<const std::byte> m, net::endpoint &from)
	{
		head h;
		call_head call;
		std::span<const std::byte> body;
		if (is_call(m, call, body)) {
			if (call.kind == call_kind::request)
				tell(call, from);
			return;
		}
		if (!head::get(m, h))
			return;
		const u8 how = in_.byte();
		bytes a(m.begin(), m.end());
		switch (h.command) {
		case command::echo:
		case command::mirror:
			h.command = command::reply;
			break;
		case command::count:
			counted_++;
			if (how & 16)
				break;
			return;
		default:
			bulk(m, h, how, from);
			return;
		}
		h.put(a.data());
		twist(std::move(a), h, how & 15, from);
	}
	/// The answer to a question; none, as of an older server; or a wrong one.
	void tell(call_head h, net::endpoint &from)
	{
		const u8 how = in_.byte();
		counted_ += how & 64 ? in_.half() : 0;
		std::array<std::byte, figures::size> told;
		figures{(how & 15) == 9 ? in_.byte() : 1u,
			counted_,
			1,
			2,
			how & 32 ? in_.quad() : max_message_,
			how & 32 ? in_.quad() : 1u << 20}
			.put(told);
		bytes body(told.begin(), told.end());
		h.kind = call_kind::answer;
		h.method = 0;
		h.time = 0;
		switch (how & 15) {
		case 6:
			return;
		case 7:
			h.length = body.size();
			answer(from, message(h, body));
			break;
		case 8:
			h.call ^= in_.byte();
			break;
		case 10:
			h.kind = static_cast<call_kind>(in_.byte());
			break;
		case 11:
			body.resize(in_.byte());
			break;
		case 12:
			h.method = in_.word();
			body.clear();
			break;
		case 13:
			body = spoilt(std::move(body), in_);
			break;
		case 14:
			h.flags = call_head::bulk;
			break;
		default:
			break;
		}
		h.length = body.size();
		answer(from, message(h, body));
	}
	void bulk(std::span<const std::byte> m, head h, u8 how, net::endpoint &from)
	{
		FUZZ_CHECK(m.size() > offer_size);
		const std::size_t length = get64(m.data() + head::size);
		const auto d = m.subspan(offer_size);
		if ((how & 15) < 8 || how & 16) {
			const std::size_t other = how & 64 ? 1 + in_.half() : length;
			bytes changed(d.begin(), d.end());
			if (how & 128) {
				changed = spoilt(std::move(changed), in_);
				net::core::seal(changed);
			}
			liar_->use(h.command == command::fill, other, changed);
		}
		if ((how & 15) < 8)
			return;
		h.command = command::failed;
		bytes a(failed_size);
		h.put(a.data());
		put64(a.data() + head::size, in_.byte() & 1 ? in_.quad() : ~u64{in_.half()});
		twist(std::move(a), h, how & 7, from);
	}
	void twist(bytes a, head h, u8 how, net::endpoint &from)
	{
		switch (how) {
		case 6:
			return;
		case 7:
			answer(from, a);
			break;
		case 8:
			h.number ^= in_.byte();
			h.put(a.data());
			break;
		case 9:
			h.run ^= in_.byte();
			h.put(a.data());
			break;
		case 10:
			a[1] = std::byte{in_.byte()};
			break;
		case 11:
			a.resize(in_.half() % (max_message_ + 1));
			break;
		case 12:
			h.command = command::failed;
			a.resize(failed_size);
			h.put(a.data());
			put64(a.data() + head::size,
			      in_.byte() & 1 ? in_.quad() : ~u64{in_.half()});
			break;
		case 13:
			a = spoilt(std::move(a), in_);
			break;
		default:
			break;
		}
		answer(from, std::move(a));
	}

	script &in_;
	const std::size_t max_message_;
	net::domain theirs_;
	std::unique_ptr<stranger> liar_;
	station station_;
	u64 counted_ = 0;
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
	const u8 shape = in.byte();
	if (shape & 128) {
		client_play(shape, in).play();
		return 0;
	}
	server_play p(shape);
	for (u32 n = 0; in.more() && n < max_steps; n++)
		p.step(in);
	FUZZ_CHECK(__sanitizer_get_current_allocated_bytes() < before + most_memory);
	p.end();
	FUZZ_CHECK(__sanitizer_get_current_allocated_bytes() < before + most_memory);
	return 0;
}
