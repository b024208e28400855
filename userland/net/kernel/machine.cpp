// SPDX-License-Identifier: MIT
// machine.cpp - see machine.hpp.
#include "machine.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <sys/epoll.h>
#include <system_error>
#include <unistd.h>

#include "userland/net/random.hpp"

namespace coop::net::kernel
{

namespace
{

constexpr std::uint32_t resolver_turns = 64; // a polling program looks for questions that often
constexpr std::uint32_t held_back_most = 32; // messages
constexpr std::uint32_t dry_most = 16;       // calls in a row: then it is a program that polls
constexpr std::uint32_t ring = 1024;         // operations; more of them wait behind it

} // namespace

ring_sizes sizes_of(const options &o)
{
	ring_sizes s;
	s.operations = ring;
	// An operation may be offered while its bulk message is sent.
	s.handles =
		std::min(2 * ud::operations::most(o) + ud::reader::requests(o) + o.peers, 65536u);
	s.events = std::clamp(std::bit_ceil(s.handles), 64u, 16384u);
	return s;
}

machine::machine(const options &o, buffers &b, spi::sink &s) : options_(o), buffers_(b), sink_(s)
{
	for (unsigned i = 1; i <= o.rails.size(); i++)
		rails_.push_back(std::make_unique<rail>(o, i, b));
}

machine::~machine()
{
	unmake();
}

// ---- life --------------------------------------------------------------------------

// A device does not depend on the number of the machine.
int machine::prepare(const address &)
{
	try {
		device_.emplace(options_, sizes_of(options_));
	} catch (const std::system_error &e) {
		return -e.code().value();
	}
	int err = pin(buffers_, *device_);
	for (auto r = rails_.begin(); !err && r != rails_.end(); ++r)
		err = (*r)->prepare();
	return err;
}

int machine::start(const address &own)
{
	own_address_ = own;
	try {
		claim(ud::identity::of(own));
		make(ud::identity::of(own));
	} catch (const std::system_error &e) {
		// For `*` the core tries the next number, with the same devices.
		if (claimed_)
			unmake();
		return -e.code().value();
	}
	if (options_.start_delay_us)
		starts_at_ = now() + options_.start_delay_us;
	else
		begin();
	return 0;
}

void machine::claim(ud::identity own)
{
	try {
		resolver_.emplace(options_.key, own);
		for (const auto &r : rails_)
			r->claim(own);
	} catch (const std::system_error &) {
		resolver_.reset();
		for (const auto &r : rails_)
			r->unclaim();
		throw;
	}
	claimed_ = true;
}

void machine::make(ud::identity own)
{
	make_parts(own);
	polls_ = sink_.polled();
	device_->polls(polls_);
	epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
	watch(resolver_->fd());
	watch(device_->fd());
	for (const auto &r : rails_) {
		r->device()->polls(polls_);
		watch(r->resolver().fd());
		watch(r->device()->fd());
	}
}

void machine::make_parts(ud::identity own)
{
	std::vector<ud::resolver *> at{&*resolver_};
	for (const auto &r : rails_)
		at.push_back(&r->resolver());
	memory_.emplace(buffers_, *device_);
	handles_.emplace(sizes_of(options_).handles);
	receives_.emplace(*handles_, *device_, own_address_, sink_);
	engine_.emplace(options_, *device_, *handles_);
	operations_.emplace(options_, *memory_, sink_);
	peers_.emplace(options_, own, own_address_, *engine_, *resolver_, sink_);
	outbox_.emplace(*operations_, *peers_, *engine_);
	peer_rails_.emplace(*peers_, std::move(at));
	reader_.emplace(options_, *engine_, *peers_);
	std::vector<further_offers *> others;
	for (const auto &r : rails_) {
		r->make(*operations_, *peers_, *peer_rails_);
		reader_->add_rail(*r, *peer_rails_);
		others.push_back(&*r);
	}
	ud::offers *offers = &*engine_;
	if (!rails_.empty())
		offers = &offers_.emplace(*engine_, std::move(others), *operations_);
	bulk_.emplace(options_, *operations_, *peers_, *outbox_, *reader_, *engine_, offers,
		      rails_.empty() ? nullptr : &*peer_rails_, sink_);
	engine_->serve(*operations_, *peers_);
}

void machine::watch(int fd)
{
	epoll_event ev{};
	ev.events = EPOLLIN;
	if (epoll_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &ev))
		throw std::system_error(errno, std::generic_category(), "kernel: epoll");
}

void machine::unmake()
{
	close_device();
	resolver_.reset();
	for (const auto &r : rails_)
		r->unclaim();
	if (epoll_ >= 0)
		::close(std::exchange(epoll_, -1));
	claimed_ = false;
}

// From here on the network writes to no buffer.
void machine::close_device()
{
	for (const auto &r : rails_)
		r->close();
	if (!device_)
		return;
	buffers_.close(&*device_);
	buffers_.forget(&*device_); // gives them back
	device_.reset();
}

void machine::begin()
{
	starts_at_ = ~0ull;
	instance_ = static_cast<std::uint32_t>(random_number()) | 1;
	answer();
	sink_.started();
}

// What the resolvers tell peers. Messages go by the first rail alone.
void machine::answer()
{
	resolver_->answer_with(device_->self(), instance_);
	ud::rail_list others;
	for (const auto &r : rails_) {
		if (r->device())
			r->resolver().answer_with(r->device()->self(), instance_);
		others.ip[others.size++] = r->ip();
	}
	resolver_->answer_with_rails(others);
}

void machine::stop()
{
	const std::uint64_t t = now();
	bulk_->stop();
	starts_at_ = ~0ull;
	linger_.stop(bulk_->telling(), t);
	drain(t);
}

// What the network was doing with the memory of operations ends with the file.
void machine::fail(int status)
{
	over_ = true;
	close_device();
	sink_.failed(status);
}

// ---- what the core calls -----------------------------------------------------------

int machine::submit(spi::token t, const spi::transfer &x)
{
	const std::uint64_t time = now();
	if (x.queue == queue_type::msg_recv)
		return submit_receive(t, x, time);
	const bool message = x.queue == queue_type::msg_send;
	if (message && x.length > device_->setup().max_message)
		return -EMSGSIZE;
	const std::uint32_t index = operations_->add(t, x);
	if (index == ud::operations::none)
		return -ENOBUFS;
	if (const int err = memory_->failure()) {
		operations_->drop(index);
		return err;
	}
	if (message)
		outbox_->submit(index, time);
	else
		bulk_->submit(index, time);
	if (!x.more || ++held_back_ == held_back_most)
		drain(time);
	return 0;
}

int machine::submit_receive(spi::token t, const spi::transfer &x, std::uint64_t now)
{
	std::span<const std::uint32_t> keys;
	if (const int err = memory_->find(x.memory, keys))
		return err;
	receives_->add(t, x, keys[0]);
	drain(now);
	return 0;
}

void machine::flush()
{
	if (device_ && !over_)
		drain(now());
}

void machine::cancel(spi::token t)
{
	const std::uint64_t time = now();
	if (!receives_->cancel(t)) {
		const std::uint32_t index = operations_->find(t);
		if (index != ud::operations::none && !outbox_->cancel(index, time))
			bulk_->cancel(index, -ECANCELED, time);
	}
	drain(time);
}

void machine::peer_close(spi::peer_number n)
{
	if (!peers_->used(n))
		return;
	const std::uint64_t t = now();
	reader_->forget(n);
	forget_rails(n);
	bulk_->forget(n);
	peers_->close(n, t);
	outbox_->forget(n);
	drain(t);
}

// ---- progress ----------------------------------------------------------------------

unsigned machine::progress(unsigned budget)
{
	if (!device_ || over_)
		return 0;
	if (armed_ || asking() || ++turns_ % resolver_turns == 0) {
		armed_ = false;
		const std::uint64_t t = now();
		if (question(t)) {
			resolve(t);
			drain(t);
		}
	}
	std::uint64_t t = 0;
	unsigned n = progress_rails(budget, t);
	coop_net_event ev;
	for (unsigned i = 0; i < std::max(budget, 1u) && device_->next(ev); i++) {
		if (n++ == 0)
			t = now();
		dispatch(ev, t);
	}
	if (const int status = device_->failure(); status && device_->empty()) {
		fail(status);
		return n + 1;
	}
	if (n == 0) {
		if (++dry_ == dry_most && !polls_)
			set_polls(true);
		return 0;
	}
	dry_ = 0;
	drain(t);
	return n;
}

void machine::set_polls(bool on)
{
	polls_ = on;
	device_->polls(on);
	for (const auto &r : rails_)
		if (r->device())
			r->device()->polls(on);
}

void machine::dispatch(const coop_net_event &ev, std::uint64_t now)
{
	switch (ev.code) {
	case COOP_NET_SENT:
	case COOP_NET_RECEIVED:
	case COOP_NET_RECV_OVER:
	case COOP_NET_READER:
	case COOP_NET_OFFER_OVER:
	case COOP_NET_FETCHED:
		dispatch_of_handle(ev, now);
		break;
	case COOP_NET_ADDRESS:
		follow(now);
		break;
	default:
		dispatch_of_peer(ev, now);
	}
}

void machine::dispatch_of_handle(const coop_net_event &ev, std::uint64_t now)
{
	handles &uses = *handles_;
	const handles::record of = uses[ev.handle];
	const std::uint32_t id = uses.id(ev.handle);
	const bool final = ev.flags & COOP_NET_FINAL;
	switch (of.what) {
	case handles::use::free:
		break;
	case handles::use::probe:
	case handles::use::send: {
		coop_chan_ev e{};
		e.kind = COOP_CHAN_EV_SENT;
		e.cookie = of.number;
		e.id = id;
		// A peer that there is not: its session was closed while this waited for the ring.
		e.err = ev.status == -ENOENT ? -ECANCELED : ev.status;
		uses.release(ev.handle);
		linger_.heard(now);
		outbox_->sent(e, now);
		break;
	}
	case handles::use::receive:
		if (ev.code == COOP_NET_RECEIVED) {
			linger_.heard(now);
			receives_->received(ev, ev.peer ? sender(ev) : spi::no_peer);
		} else {
			receives_->over(ev);
		}
		break;
	case handles::use::fetch:
		uses.release(ev.handle);
		linger_.heard(now);
		// The engine asks nobody else, so it has asked the peer unless it says why not.
		reader_->finished(of.number, engine_->ordinals(of.number, ev.pages), ev.status,
				  ev.status == -ENOENT, now);
		break;
	case handles::use::offer:
		if (ev.code == COOP_NET_READER)
			read_by(0, ev, of.number);
		if (!final)
			break;
		uses.release(ev.handle);
		engine_->over(of.number);
		if (offers_)
			offers_->over(0, of.number, ev.status);
		else
			bulk_->over(of.number, ev.status, now);
		break;
	}
}

void machine::dispatch_of_peer(const coop_net_event &ev, std::uint64_t now)
{
	coop_chan_ev e{};
	e.peer = ev.peer;
	e.peer_cookie = ev.cookie;
	e.err = ev.status;
	e.why = static_cast<u32>(ev.tag);
	const auto n = static_cast<spi::peer_number>(ev.cookie - 1);
	// Events of a session that is closed may still be in the ring.
	const bool known = ev.cookie && peers_->used(n) && (*peers_)[n].chan == ev.peer;
	switch (ev.code) {
	case COOP_NET_TEXT_IN:
		linger_.heard(now);
		// The module has accepted it, and its sender waits for an answer, for which a
		// record is needed. DONE needs none, and frees one.
		if (operations_->crowded() &&
		    ud::bulk_message::read(ev.text).kind != ud::bulk_kind::done) {
			if (texts_.size() < ud::operations::most(options_))
				texts_.push_back(ev);
		} else {
			text(ev, now);
		}
		break;
	case COOP_NET_STRANGER:
		linger_.heard(now);
		stranger(ev, now);
		break;
	case COOP_NET_PEER_NEW:
		engine_->appeared(ev.peer);
		peers_->appeared(e, now);
		break;
	case COOP_NET_PEER_DEAD:
		if (known) {
			bulk_->lost(n, peers_->died(n, e), now);
			forget_rails(n);
		}
		break;
	case COOP_NET_PEER_RESTARTED: // its messages end by themselves
		if (known) {
			peers_->restarted(n, now);
			peer_rails_->restarted(n);
			bulk_->restarted(n, now);
		}
		break;
	}
}

// The number of the peer that a message names. The module has checked that its session is that
// peer's; the number may have been reused since, or belong to a later session.
spi::peer_number machine::sender(const coop_net_event &ev)
{
	const ud::identity who = ud::identity::unpack(ev.tag & ((1ull << 50) - 1));
	auto n = static_cast<spi::peer_number>(ev.cookie - 1);
	if (!peers_->is(n, who))
		n = peers_->number_of(who);
	else
		peers_->heard(n);
	want_rails(n, now());
	return n;
}

void machine::text(const coop_net_event &ev, std::uint64_t now)
{
	if (const spi::peer_number from = sender(ev); from != spi::no_peer)
		bulk_->heard(ud::bulk_message::read(ev.text), from, now);
}

// A session without a peer: the machine that its message names is asked whether it is there.
void machine::stranger(const coop_net_event &ev, std::uint64_t now)
{
	const ud::identity who = ud::identity::unpack(ev.tag & ((1ull << 50) - 1));
	if (who == peers_->own() || (ev.tag >> 50 & 63) != 0 || peers_->crowded())
		return;
	const spi::peer_number n = peers_->number_of(who);
	if (n == spi::no_peer)
		return;
	if (!peers_->is_at(n, ev.peer)) {
		peers_->ask(n, now);
		return;
	}
	peers_->adopt(n, ev.peer, now);
	engine_->place(n);
	outbox_->wake(n, 0, now);
}

// Handles the answers of the resolver.
void machine::resolve(std::uint64_t now)
{
	resolve_rails(now);
	for (ud::resolver::result r; resolver_->next(r);) {
		if (r.list) {
			peer_rails_->heard(0, r, now);
			continue;
		}
		const ud::peers::change c = peers_->resolved(r, now);
		if (c.lost) {
			reader_->forget(r.number);
			forget_rails(r.number);
			bulk_->lost(r.number, c.lost, now);
		}
		if (c.settled && !c.status)
			engine_->place(r.number);
		if (c.settled)
			outbox_->wake(r.number, c.status, now);
		if (c.settled && !c.status)
			want_rails(r.number, now);
	}
}

// The port of the device has another GID or LID: see the ud transport.
void machine::follow(std::uint64_t now)
{
	if (instance_)
		answer();
	peers_->reconnect(now);
}

void machine::drain(std::uint64_t now)
{
	if (over_)
		return;
	drain_receives(now);
	for (; !texts_.empty() && !operations_->crowded(); texts_.pop_front())
		text(texts_.front(), now);
	while (drain_bulk(now)) {}
	held_back_ = 0;
	// The first last: it has the messages that tell peers of offers on the others.
	for (const auto &r : rails_) {
		if (!r->device())
			continue;
		r->device()->submit();
		r->device()->drop_late();
	}
	device_->submit();
	device_->drop_late();
	if (linger_.over(bulk_->telling(), now))
		sink_.stopped();
}

void machine::drain_receives(std::uint64_t now)
{
	if (!receives_->has_home())
		return;
	receives_->give();
	outbox_->loop(now);
}

bool machine::drain_bulk(std::uint64_t now)
{
	bool any = false;
	for (ud::outbox::report r; outbox_->next(r); any = true)
		bulk_->reported(r, now);
	for (all_offers::end_of e; offers_ && offers_->next_over(e); any = true)
		bulk_->over(e.index, e.status, now);
	any |= reader_->advance(now);
	for (ud::reading *r; (r = reader_->next_over()); any = true)
		bulk_->read_over(*r, now);
	return any;
}

bool machine::arm()
{
	if (!device_ || over_)
		return true;
	armed_ = true;
	dry_ = 0;
	if (polls_)
		set_polls(false);
	bool idle = device_->empty() && !device_->failure();
	for (const auto &r : rails_)
		idle &= !r->device() || (r->device()->empty() && !r->device()->failure());
	return idle;
}

// ---- time --------------------------------------------------------------------------

std::uint64_t machine::next_time() const
{
	std::uint64_t t =
		std::min({resolver_->deadline(), reader_->deadline(), peers_->deadline(),
			  bulk_->deadline(), outbox_->deadline(), linger_.deadline(), starts_at_});
	for (const auto &r : rails_)
		t = std::min(t, r->resolver().deadline());
	return t;
}

time_point machine::deadline() const
{
	if (!device_ || over_)
		return never;
	return ud::time_of(next_time());
}

void machine::expire(time_point)
{
	if (!device_ || over_)
		return;
	const std::uint64_t t = now();
	if (t >= starts_at_)
		begin();
	resolver_->expire(t);
	for (const auto &r : rails_)
		r->resolver().expire(t);
	resolve(t);
	outbox_->loop(t);
	if (t >= peers_->deadline()) {
		peers_->watch(t);
		bulk_->watch(t);
	}
	if (t >= bulk_->deadline())
		bulk_->ask_readers(t);
	drain(t);
}

} // namespace coop::net::kernel
