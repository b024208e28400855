// SPDX-License-Identifier: MIT
// machine.cpp - life, progress and time of a transfer machine; see machine.hpp.
#include "machine.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/epoll.h>
#include <unistd.h>

#include "rpc/base/addr.h"
#include "rpc/fetch/wire.h"
#include "userland/net/random.hpp"

namespace coop::net::ud
{

namespace
{

// Bulk data is sent for data_turn at a time. Then it rests until so many arrivals were handled, or
// for longest_rest, or for as long as the data took.
constexpr std::uint32_t arrivals_most = 64;
constexpr std::chrono::milliseconds longest_rest{2};
constexpr std::chrono::milliseconds data_turn{1};
constexpr std::uint32_t unarmed_most = 256; // polls in a row: then no thread sleeps
static_assert(unarmed_most >= spi::armed_calls);
constexpr std::uint32_t resolver_turns = 64;   // a polling program looks for questions that often
constexpr std::uint32_t polls_a_look = 8192;   // one that polls, at its device
constexpr std::uint32_t held_back_most = 32;   // messages
constexpr std::uint32_t first_index_room = 64; // QP numbers of a machine

std::string text_of(std::uint32_t ip)
{
	return std::to_string(ip >> 24) + '.' + std::to_string(ip >> 16 & 255) + '.' +
	       std::to_string(ip >> 8 & 255) + '.' + std::to_string(ip & 255);
}

std::unique_ptr<coop::ud::endpoint> make_soft_roce(const options &o, identity own,
						   std::uint16_t port)
{
	coop::ud::soft_roce_options s;
	s.ip = text_of(own.ip);
	s.mtu = o.mtu;
	s.socket_buffer = o.socket_buffer;
	s.faults = o.faults;
	s.faults.seed += own.number;
	// Numbers of its own on this IP; the first two of all belong to fabric management.
	s.first_qpn = own.number * first_index_room + 2;
	s.any_memory = true;
	s.port = o.udp_port ? o.udp_port : port;
	try {
		return coop::ud::make_soft_roce(s);
	} catch (const std::system_error &e) {
		if (e.code().value() != EADDRINUSE || o.udp_port)
			throw;
	}
	s.port = 0; // it is told to peers, so any will do
	return coop::ud::make_soft_roce(s);
}

fetch_host::shape bulk_shape(const options &o)
{
	return {.page_shift = page_shift,
		.fetches = o.fetches,
		.queued = reader::queued(o.fetches),
		.serves = o.serves,
		.serve_qps = 1,
		.serve_qkey = 0x7fffffff,
		.max_sge = fetch_host::most_sge,
		.fetches_option = "fetches=",
		.serves_option = "serves="};
}

} // namespace

machine::machine(const options &o, memory_keys &k, spi::sink &s) :
	options_(o),
	keys_(k),
	sink_(s),
	chan_(s),
	completions_(64)
{
}

machine::~machine()
{
	unmake();
}

// A device does not depend on the number of the machine.
int machine::prepare(const address &)
{
	if (!options_.verbs)
		return 0;
	try {
		endpoint_ = coop::ud::make_verbs(options_.device);
	} catch (const std::system_error &e) {
		return -e.code().value();
	}
	coop::ud::endpoint &device = *endpoint_;
	return keys_.open(this, [&device](const segment &s, auto &region, std::uint32_t &key) {
		return device.lend_memory(s.base, s.length, region, key);
	});
}

int machine::start(const address &own)
{
	own_address_ = own;
	try {
		make();
	} catch (const std::system_error &e) {
		// For `*` the core tries the next number, with the same device.
		if (resolver_)
			unmake();
		return -e.code().value();
	}
	if (options_.start_delay_us)
		starts_at_ = now() + options_.start_delay_us;
	else
		begin();
	return 0;
}

void machine::make()
{
	const identity own = identity::of(own_address_);
	resolver_.emplace(options_.key, own);
	if (!options_.verbs)
		endpoint_ = make_soft_roce(options_, own, resolver_->companion_port());
	const std::uint32_t mtu = endpoint_->info().mtu;
	slab_.emplace(mtu, page_bytes);
	channels_.emplace(*endpoint_, *slab_, options_.qkey(), !options_.verbs);
	chan_.reserve(*slab_, operations::most(options_));
	memory_.emplace(options_, keys_, this, *channels_);
	operations_.emplace(options_, *memory_, sink_);
	peers_.emplace(options_, own, own_address_, chan_, *resolver_, sink_);
	outbox_.emplace(*operations_, *peers_, chan_);
	inbox_.emplace(options_, *operations_, *peers_, *outbox_, chan_, sink_);
	fetcher_.emplace(options_, *slab_, *channels_, *peers_, mtu);
	reader_.emplace(options_, *fetcher_, *peers_);
	bulk_.emplace(options_, *operations_, *peers_, *outbox_, *reader_, chan_, nullptr, sink_);
	source_.emplace(*slab_, *channels_, options_.serves, *bulk_);
	host_.emplace(*endpoint_, *slab_, *fetcher_, *source_, channels_->line(COOP_CHAN_COMMAND),
		      bulk_shape(options_));
	blank_at_ = slab_->reserve(mtu);
	slab_->make(*endpoint_);
	channels_->make();
	self_ = channels_->self();
	chan_.make(options_, *channels_, operations::most(options_), now());
	make_fetch(now());
	epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
	epoll_event ev{};
	ev.events = EPOLLIN;
	if (epoll_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, resolver_->fd(), &ev) ||
	    watch_endpoint(true))
		throw std::system_error(errno, std::generic_category(), "ud: epoll");
}

void machine::unmake()
{
	keys_.close(this);
	endpoint_.reset(); // from here on the network writes to no buffer
	operations_.reset();
	memory_.reset();
	keys_.forget(this);
	resolver_.reset();
	if (epoll_ >= 0)
		::close(std::exchange(epoll_, -1));
	watching_ = false;
}

void machine::begin()
{
	starts_at_ = ~0ull;
	instance_ = static_cast<std::uint32_t>(random_number()) | 1;
	resolver_->answer_with(channels_->self(), instance_);
	sink_.started();
}

void machine::make_fetch(std::uint64_t now)
{
	coop_engine_cfg e = host_->config(options_.key);
	e.max_peers = std::min<std::uint32_t>(options_.peers, 1024);
	e.peer_timeout_us = options_.fetch_timeout_us;
	e.silence_us = options_.silence_us();
	e.chunk_pages = 1u << 31; // no placement: the peer to ask is given
	e.policy = coop_policy_sole_source();
	if (options_.page_crc)
		e.flags |= COOP_F_PAGE_CRC;
	host_->make(e, now);
	engine_ = host_->engine();
	fetcher_->make(*host_, *reader_);
}

// ---- what the core calls -----------------------------------------------------------

int machine::submit(spi::token t, const spi::transfer &x)
{
	if (x.queue == queue_type::msg_recv)
		return -EINVAL; // the core chooses places
	const bool message = x.queue == queue_type::msg_send;
	// The device's MTU may leave room for less than the domain could promise.
	if (message && x.length > chan_.max_length())
		return -EMSGSIZE;
	const std::uint32_t index = operations_->add(t, x);
	if (index == operations::none)
		return -ENOBUFS;
	const std::uint64_t time = now();
	if (message)
		outbox_->submit(index, time);
	else
		bulk_->submit(index, time);
	// The end point sends those that are alike in one system call.
	if (!x.more || ++held_back_ == held_back_most)
		drain(time);
	return 0;
}

void machine::flush()
{
	if (chan_)
		drain(now());
}

void machine::cancel(spi::token t)
{
	const std::uint64_t time = now();
	const std::uint32_t index = operations_->find(t);
	if (index == operations::none)
		inbox_->give_back(t, time); // a receive buffer
	else if (!outbox_->cancel(index, time))
		bulk_->cancel(index, -ECANCELED, time);
	drain(time);
}

void machine::peer_close(spi::peer_number n)
{
	if (!peers_->used(n))
		return;
	const std::uint64_t t = now();
	reader_->forget(n);
	bulk_->forget(n);
	peers_->close(n, t);
	outbox_->forget(n);
	drain(t);
}

// ---- progress --------------------------------------------------------------------

unsigned machine::progress(unsigned budget)
{
	if (!chan_)
		return 0;
	if (owed_)
		settle(now());
	if (armed_ || resolver_->asking() || ++turns_ % resolver_turns == 0) {
		armed_ = false;
		const std::uint64_t t = now();
		if (resolver_->progress(t)) {
			resolve(t);
			drain(t);
		}
	}
	if (options_.verbs) {
		// arm() notices changes, and a program that polls never arms.
		if (++polls_ % polls_a_look == 0)
			(void)endpoint_->arm();
		if (const auto s = endpoint_->state(); s.changes != changes_) {
			changes_ = s.changes;
			if (s.lost) {
				chan_.abandon();
				sink_.failed(-ENODEV);
				return 1;
			}
			follow(now());
		}
	}
	if (watching_ && ++unarmed_ == unarmed_most)
		(void)watch_endpoint(false);
	const std::size_t n =
		endpoint_->poll({completions_.data(),
				 std::min<std::size_t>(std::max(budget, 1u), completions_.size())});
	dry_ = n == 0;
	const bool waits = rest_;
	if (rest_) {
		arrived_ += static_cast<std::uint32_t>(n);
		rest_ = !dry_ && arrived_ < arrivals_most && clock::now() < rest_until_;
	}
	if (dry_) {
		if (waits)
			settle(now());
		return waits;
	}
	const std::uint64_t t = now();
	linger_.heard(t);
	for (std::size_t i = 0; i < n; i++)
		dispatch(completions_[i], t);
	// The program gets its message first; the rest waits for the next call.
	if (n > 1 || !owed_)
		settle(t);
	return static_cast<unsigned>(n);
}

void machine::dispatch(const coop::ud::completion &c, std::uint64_t now)
{
	for (std::uint32_t channel = 0; channel < COOP_CHAN_CHANNELS; channel++) {
		message_qp &line = channels_->line(channel);
		if (c.qp != line.qp())
			continue;
		received(channel, line.message(c), c, now);
		if (const std::uint32_t id = line.take(c); id != message_qp::no_tag)
			coop_chan_tx_done(chan_, channel, id,
					  c.status == coop::ud::wc_status::success ? 0 : -EIO, now);
		return;
	}
	host_->completed(c, now);
}

void machine::received(std::uint32_t channel, std::span<const std::byte> datagram,
		       const coop::ud::completion &c, std::uint64_t now)
{
	__le32 magic;
	if (datagram.size() < sizeof(magic))
		return; // no message, or none of ours
	const std::byte *data = datagram.data();
	const auto length = static_cast<std::uint32_t>(datagram.size());
	const coop_addr from = message_qp::sender(c);
	std::memcpy(&magic, data, sizeof(magic));
	if (le32_to_cpu(magic) == COOP_WIRE_MAGIC) {
		if (length <= COOP_CTRL_MAX)
			coop_engine_rx_ctrl(engine_, data, length, &from, now);
		return;
	}
	const coop_chan_dgram rx{channel, length, data, from};
	coop_chan_in in;
	const coop_chan_verdict v = coop_chan_rx(chan_, &rx, now, &in);
	bool copy = v == COOP_CHAN_COPY;
	if (v == COOP_CHAN_PLACE && linger_.stopping())
		coop_chan_refuse(chan_, COOP_CHAN_NO_LISTENER, now);
	else if (v == COOP_CHAN_PLACE)
		copy = inbox_->accept(in, from, now);
	if (copy)
		owed_ |= inbox_->copy(in, data);
}

// All that there is to do, except to look at the network.
void machine::settle(std::uint64_t now)
{
	owed_ = false;
	channels_->repost();
	drain(now);
}

void machine::drain(std::uint64_t now)
{
	// Messages about bulk data feed the other engine, which may want to send some in turn.
	for (bool again = true; again;) {
		drain_chan(now);
		again = drain_reports(now);
		again |= drain_fetch(now);
	}
	endpoint_->flush();
	held_back_ = 0;
	if (linger_.over(bulk_->telling(), now))
		sink_.stopped();
}

void machine::drain_chan(std::uint64_t now)
{
	for (bool again = true; again;) {
		for (coop_chan_tx tx; coop_chan_next_tx(chan_, now, &tx);)
			transmit(tx, now);
		// Before any other work: the peer waits for it.
		channels_->post();
		endpoint_->flush();
		again = sends_over(now);
		// An end may let other messages begin.
		for (coop_chan_ev ev; coop_chan_next_event(chan_, now, &ev); again = true)
			event(ev, now);
	}
}

// Collects a datagram of rpc/chan.
void machine::transmit(coop_chan_tx &tx, std::uint64_t now)
{
	const auto index = static_cast<std::uint32_t>(tx.cookie);
	keyed_memory of_slab;
	segment piece;
	const keyed_memory *payload = &of_slab;
	if (tx.len && index != operations::none && !(*operations_)[index].sending) {
		payload = &(*operations_)[index].memory;
	} else if (tx.len) {
		if (index == operations::none)
			piece = {slab_->at(blank_at_), endpoint_->info().mtu};
		else
			piece = {chan_.text(index), bulk_message::bytes};
		of_slab.segments = {&piece, 1};
		of_slab.size = piece.length;
	}
	if (tx.seal) {
		pieces_.clear();
		spi::cursor c(*payload, tx.off);
		std::size_t left = tx.len;
		for (auto p = c.next(left); !p.empty(); p = c.next(left)) {
			pieces_.push_back({p.data(), static_cast<u32>(p.size())});
			left -= p.size();
		}
		coop_chan_seal(chan_, &tx, pieces_.data(), static_cast<u32>(pieces_.size()));
	}
	channels_->add(tx, payload);
	(void)sends_over(now);
}

// Tells rpc/chan which sends are over. @return whether there are any.
bool machine::sends_over(std::uint64_t now)
{
	if (!channels_->take_over(over_))
		return false;
	for (const channels::over &o : over_)
		coop_chan_tx_done(chan_, o.channel, o.id, o.good ? 0 : -EIO, now);
	return true;
}

bool machine::drain_reports(std::uint64_t now)
{
	bool any = false;
	for (outbox::report r; outbox_->next(r); any = true)
		bulk_->reported(r, now);
	return any;
}

bool machine::drain_fetch(std::uint64_t now)
{
	bool any = false;
	std::optional<clock::time_point> began;
	for (coop_tx tx; rest_ ? coop_engine_next_urgent_tx(engine_, now, &tx)
			       : coop_engine_next_tx(engine_, now, &tx);
	     any = true) {
		const bool data = tx.kind == COOP_TX_DATA;
		if (data && !began)
			began = clock::now();
		host_->perform(tx, now);
		if (!data)
			continue;
		// A machine that serves much must still hear, or its peers take it for dead.
		if (const auto t = clock::now(); t - *began >= data_turn) {
			rest_ = true;
			rest_until_ = t + std::max<clock::duration>(longest_rest, t - *began);
			arrived_ = 0;
		}
	}
	for (coop_ev ev; coop_engine_next_event(engine_, now, &ev); any = true)
		host_->handle(ev, now);
	any |= reader_->advance(now);
	for (reading *r; (r = reader_->next_over()); any = true)
		bulk_->read_over(*r, now);
	return any;
}

void machine::event(const coop_chan_ev &ev, std::uint64_t now)
{
	const auto n = static_cast<spi::peer_number>(ev.peer_cookie - 1);
	switch (ev.kind) {
	case COOP_CHAN_EV_DELIVERED:
	case COOP_CHAN_EV_ABORTED: {
		spi::peer_number from;
		if (const std::uint8_t *text =
			    inbox_->over(static_cast<std::uint32_t>(ev.cookie),
					 ev.kind == COOP_CHAN_EV_DELIVERED, from))
			bulk_->heard(bulk_message::read(text), from, now);
		break;
	}
	case COOP_CHAN_EV_SENT:
		outbox_->sent(ev, now);
		break;
	case COOP_CHAN_EV_PEER_NEW: // its first message names the machine
		peers_->appeared(ev, now);
		break;
	case COOP_CHAN_EV_PEER_DEAD:
		if (ev.peer_cookie)
			bulk_->lost(n, peers_->died(n, ev), now);
		break;
	case COOP_CHAN_EV_PEER_RESTARTED: // its messages at rpc/chan end by themselves
		if (ev.peer_cookie) {
			peers_->restarted(n);
			bulk_->restarted(n, now);
		}
		break;
	}
}

// Handles the answers of the resolver.
void machine::resolve(std::uint64_t now)
{
	for (resolver::result r; resolver_->next(r);) {
		const peers::change c = peers_->resolved(r, now);
		if (c.lost) {
			reader_->forget(r.number);
			bulk_->lost(r.number, c.lost, now);
		}
		if (c.settled)
			outbox_->wake(r.number, c.status, now);
	}
}

bool machine::arm()
{
	if (!chan_)
		return true;
	if (owed_ || rest_)
		settle(now());
	if (rest_)
		return false;
	armed_ = true;
	unarmed_ = 0;
	if (!watching_ && watch_endpoint(true))
		return false;
	return endpoint_->arm();
}

// An epoll instance with a descriptor costs its peers a call-back with every datagram, so a machine
// that is only polled removes the descriptor.
int machine::watch_endpoint(bool on)
{
	epoll_event ev{};
	ev.events = EPOLLIN;
	if (::epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, endpoint_->fd(), &ev))
		return -errno;
	watching_ = on;
	return 0;
}

// ---- time ------------------------------------------------------------------------

std::uint64_t machine::next_time() const
{
	if (rest_)
		return 0;
	return std::min({coop_chan_deadline(chan_), coop_engine_deadline(engine_),
			 resolver_->deadline(), reader_->deadline(), peers_->deadline(),
			 bulk_->deadline(), outbox_->deadline(), linger_.deadline(), starts_at_});
}

time_point machine::deadline() const
{
	if (!chan_)
		return never;
	const std::uint64_t t = next_time();
	return t >= 1ull << 62 ? never
			       : time_point(std::chrono::duration_cast<clock::duration>(
					 std::chrono::microseconds(t)));
}

void machine::expire(time_point)
{
	if (!chan_)
		return;
	const std::uint64_t t = now();
	if (t >= starts_at_)
		begin();
	coop_chan_expire(chan_, t);
	if (coop_engine_overdue(engine_, dry_, t))
		coop_engine_expire(engine_, t);
	resolver_->expire(t);
	resolve(t);
	outbox_->loop(t);
	if (t >= peers_->deadline()) {
		peers_->watch(t);
		bulk_->watch(t);
	}
	if (t >= bulk_->deadline())
		bulk_->ask_readers(t);
	settle(t);
}

// The port of the device has another GID or LID. Peers and sessions know the old one: each session
// begins again, and peers that send to the old address ask for the new one before long.
void machine::follow(std::uint64_t now)
{
	const coop_chan_peer_addr self = channels_->self();
	if (coop_addr_same(&self.command, &self_.command) && self.command.lid == self_.command.lid)
		return;
	self_ = self;
	coop_chan_set_self(chan_, &self.command, self.data_qpn, self.data_qkey);
	coop_engine_set_self(engine_, &self.command);
	if (instance_)
		resolver_->answer_with(self, instance_);
	peers_->reconnect(now);
}

// ---- the end ---------------------------------------------------------------------

void machine::stop()
{
	const std::uint64_t t = now();
	bulk_->stop();
	starts_at_ = ~0ull;
	linger_.stop(bulk_->telling(), t);
	if (owed_)
		settle(t);
	drain(t);
}

} // namespace coop::net::ud
