// SPDX-License-Identifier: MIT
// machine.cpp - life, progress and time of a transfer machine; see machine.hpp.
//
// A machine that stops stays for a moment after the last datagram: its peers may have missed
// the acknowledgement of what it has received, and would take its silence for a failure.
#include "machine.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "rpc/base/addr.h"
#include "rpc/base/mac.h"
#include "rpc/fetch/wire.h"

namespace coop::net::ud
{

namespace
{

constexpr std::uint64_t linger_quiet_us = 20000; // without a datagram, then it is over
constexpr std::uint64_t linger_again_us = 5000;
constexpr std::uint64_t linger_most_us = 500000;
constexpr std::uint64_t linger_tell_us = 2000000; // for bulk messages under way
constexpr std::uint64_t recent_us = 1000000;
constexpr std::uint32_t arrivals_most = 64;          // and then data again
constexpr std::chrono::milliseconds longest_rest{2}; // likewise, or as long as the data took
constexpr std::chrono::milliseconds data_turn{1};    // of sending bulk data, then what arrived
constexpr std::uint32_t unarmed_most = 256;          // polls in a row, then nobody waits
static_assert(unarmed_most >= spi::armed_calls);
constexpr std::uint32_t resolver_turns = 64; // a polling program looks for questions that often
constexpr std::uint32_t polls_a_look = 8192; // one that polls, at its device
constexpr std::uint32_t most_refusals = 8;   // for want of a buffer: about 0.2 s
constexpr std::uint32_t spare_peers = 4;
constexpr std::uint32_t first_index_room = 64; // QP numbers of a machine

std::uint64_t random_number()
{
	std::uint64_t v = 0;
	if (::getrandom(&v, sizeof(v), 0) != sizeof(v))
		throw std::system_error(errno, std::generic_category(), "ud: getrandom");
	return v;
}

std::string text_of(std::uint32_t ip)
{
	return std::to_string(ip >> 24) + '.' + std::to_string(ip >> 16 & 255) + '.' +
	       std::to_string(ip >> 8 & 255) + '.' + std::to_string(ip & 255);
}

std::unique_ptr<coop::ud::endpoint> make_endpoint(const options &o, identity own,
						  std::uint16_t port)
{
	if (o.verbs)
		return coop::ud::make_verbs(o.device);
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

// One for all machines: answers go to where a datagram came from, which does not tell it.
std::uint32_t fabric_qkey(const std::array<std::uint8_t, 16> &key)
{
	constexpr char label[] = "coop ud q_key";
	// The top bit is for privileged consumers.
	return static_cast<std::uint32_t>(coop_mac(key.data(), label, sizeof(label))) & 0x7fffffff;
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

void *zeroed(std::size_t size)
{
	// Large ones come from the kernel, and only as far as they are touched.
	void *p = std::calloc((size + 7) / 8, 8);
	if (!p)
		throw std::system_error(ENOMEM, std::generic_category(), "ud: memory of rpc/chan");
	return p;
}

} // namespace

machine::machine(const options &o, memory_keys &k, spi::sink &s) :
	options_(o),
	keys_(k),
	sink_(s),
	chan_memory_(nullptr, std::free),
	by_token_(o.max_operations + extra_ops),
	places_of_(receives),
	completions_(64)
{
}

machine::~machine()
{
	endpoint_.reset(); // from here on nobody writes to buffers
	keys_.forget(this);
	if (epoll_ >= 0)
		::close(epoll_);
}

std::uint64_t machine::now_us()
{
	return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
						  sink_.now().time_since_epoch())
						  .count());
}

int machine::start(const address &own)
{
	own_address_ = own;
	own_ = identity::of(own);
	try {
		resolver_ = std::make_unique<resolver>(options_.key, own_);
		endpoint_ = make_endpoint(options_, own_, resolver_->companion_port());
		slab_.emplace(endpoint_->info().mtu, page_bytes);
		channels_.emplace(*endpoint_, *slab_, fabric_qkey(options_.key), !options_.verbs);
		reader_.emplace(*slab_, *channels_, endpoint_->info().mtu, options_.fetches);
		source_.emplace(*slab_, *channels_, options_.serves,
				static_cast<source::owner &>(*this));
		host_.emplace(*endpoint_, *slab_, *reader_, *source_,
			      channels_->line(COOP_CHAN_COMMAND), bulk_shape(options_));
		text_at_ = slab_->reserve(text_bytes * (options_.max_operations + extra_ops));
		blank_at_ = slab_->reserve(endpoint_->info().mtu);
		slab_->make(*endpoint_);
		channels_->make();
		make_chan(now_us());
		make_engine(now_us());
		epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
		epoll_event ev{};
		ev.events = EPOLLIN;
		if (epoll_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, resolver_->fd(), &ev) ||
		    watch_endpoint(true))
			throw std::system_error(errno, std::generic_category(), "ud: epoll");
	} catch (const std::system_error &e) {
		const int status = -e.code().value();
		resolver_.reset();
		if (epoll_ >= 0)
			::close(epoll_);
		epoll_ = -1;
		if (status != -EADDRINUSE)
			return status;
		// `*` goes on with the next number, and needs all of this unmade.
		host_.reset();
		reader_.reset();
		source_.reset();
		channels_.reset();
		endpoint_.reset();
		keys_.forget(this);
		return status;
	}
	if (options_.start_delay_us)
		starts_at_ = now_us() + options_.start_delay_us;
	else
		begin();
	return 0;
}

void machine::begin()
{
	starts_at_ = ~0ull;
	instance_ = static_cast<std::uint32_t>(random_number()) | 1;
	resolver_->answer_with(channels_->self(), instance_);
	sink_.started();
}

void machine::make_chan(std::uint64_t now)
{
	const coop_chan_peer_addr self = self_ = channels_->self();
	coop_chan_cfg c{};
	c.seed = random_number();
	std::copy(options_.key.begin(), options_.key.end(), c.key);
	c.self = self.command;
	c.data_qpn = self.data_qpn;
	c.data_qkey = self.data_qkey;
	for (std::uint32_t i = 0; i < COOP_CHAN_CHANNELS; i++) {
		c.mtu[i] = channels_->mtu(i);
		c.credits[i] = channels::credits;
	}
	c.max_peers = options_.peers;
	c.max_active = std::min<std::uint32_t>(options_.peers, 1024);
	c.max_reorder = std::min<std::uint32_t>(options_.peers, 256);
	c.max_sends = options_.max_operations + extra_ops;
	c.max_receives = receives;
	c.max_segments = 4 * COOP_CHAN_WINDOW;
	c.window = options_.window;
	c.max_length = max_length_ = static_cast<std::uint32_t>(
		options_.longest_message(channels_->mtu(COOP_CHAN_DATA)));
	c.max_tries = options_.tries;
	c.rnr_tries = most_refusals;
	if (options_.seal)
		c.flags |= COOP_CHAN_F_SEAL;
	if (options_.fixed_seq)
		c.flags |= COOP_CHAN_F_FIRST_SEQ;
	c.first_seq = options_.first_seq;
	const std::size_t size = coop_chan_size(&c);
	if (size) {
		chan_memory_.reset(zeroed(size));
		chan_ = coop_chan_create(chan_memory_.get(), size, &c, now);
	}
	if (!chan_)
		throw std::system_error(EINVAL, std::generic_category(),
					"ud: a parameter is out of the range of the protocol");
}

void machine::make_engine(std::uint64_t now)
{
	coop_engine_cfg e = host_->config(options_.key);
	e.max_peers = std::min<std::uint32_t>(options_.peers, 1024);
	e.peer_timeout_us = options_.fetch_timeout_us;
	e.silence_us = static_cast<u32>(
		std::clamp<std::uint64_t>(options_.patience_us / 4, e.peer_timeout_us, 2000000));
	e.chunk_pages = 1u << 31; // no placement: whom to ask is known
	e.policy = coop_policy_sole_source();
	if (options_.page_crc)
		e.flags |= COOP_F_PAGE_CRC;
	host_->make(e, now);
	engine_ = host_->engine();
	reader_->make(
		*host_, own_, options_.fetch_timeout_us, options_.patience_us,
		[this](reading &r) { read_over(r, now_us()); },
		[this](const reading &r) { return engine_peer(r.peer, true, now_us()); });
}

// ---- progress --------------------------------------------------------------------

unsigned machine::progress(unsigned budget)
{
	if (!chan_)
		return 0;
	if (owed_)
		settle(now_us());
	if (armed_ || resolver_->asking() || ++turns_ % resolver_turns == 0) {
		armed_ = false;
		const std::uint64_t now = now_us();
		if (resolver_->progress(now)) {
			for (resolver::result r; resolver_->next(r);)
				resolved(r, now);
			drain(now);
		}
	}
	if (options_.verbs) {
		// A program that polls never arms, which is when changes are noticed.
		if (++polls_ % polls_a_look == 0)
			(void)endpoint_->arm();
		if (const auto s = endpoint_->state(); s.changes != changes_) {
			changes_ = s.changes;
			if (s.lost) {
				fail_all(-ENODEV);
				return 1;
			}
			follow(now_us());
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
			settle(now_us());
		return waits;
	}
	const std::uint64_t now = now_us();
	heard_at_ = now;
	for (std::size_t i = 0; i < n; i++)
		dispatch(completions_[i], now);
	// What has been delivered goes to the program first; the rest waits for the next call.
	if (n > 1 || !owed_)
		settle(now);
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
	if (v == COOP_CHAN_PLACE)
		place(in, from, copy, now);
	if (copy)
		copy_in(in, data);
}

// All that there is to do, but for the network.
void machine::settle(std::uint64_t now)
{
	owed_ = false;
	channels_->repost();
	drain(now);
}

void machine::drain(std::uint64_t now)
{
	// Messages about bulk data feed the other engine, which may want to send some in turn.
	do
		drain_chan(now);
	while (drain_engine(now));
	endpoint_->flush();
	held_back_ = 0;
	if (!stopping_ || stop_at_ == ~0ull)
		return;
	if (!lingering(now)) {
		stop_at_ = ~0ull;
		sink_.stopped();
	} else if (stop_at_ <= now) {
		stop_at_ = now + linger_again_us;
	}
}

void machine::drain_chan(std::uint64_t now)
{
	bool again = true;
	coop_chan_tx tx;
	while (again) {
		again = false;
		while (coop_chan_next_tx(chan_, now, &tx)) {
			keyed_memory text;
			segment piece;
			const keyed_memory *payload = nullptr;
			if (tx.len) {
				const auto index = static_cast<std::uint32_t>(tx.cookie);
				if (index == none)
					piece = {slab_->at(blank_at_), endpoint_->info().mtu};
				else if (ops_[index].sending)
					piece = {slab_->at(text_at_ + index * text_bytes),
						 text_bytes};
				else
					payload = &ops_[index].memory;
				if (!payload) {
					text.segments = {&piece, 1};
					text.size = piece.length;
					payload = &text;
				}
			}
			if (tx.seal) {
				pieces_.clear();
				spi::cursor c(*payload, tx.off);
				std::size_t left = tx.len;
				for (auto p = c.next(left); !p.empty(); p = c.next(left)) {
					pieces_.push_back({p.data(), static_cast<u32>(p.size())});
					left -= p.size();
				}
				coop_chan_seal(chan_, &tx, pieces_.data(),
					       static_cast<u32>(pieces_.size()));
			}
			channels_->add(tx, payload);
			if (channels_->take_over(over_))
				for (const channels::over &o : over_)
					coop_chan_tx_done(chan_, o.channel, o.id, o.good ? 0 : -EIO,
							  now);
		}
		// Not behind what else there is to do: whoever waits for it waits for that, too.
		channels_->post();
		endpoint_->flush();
		if (channels_->take_over(over_)) {
			again = true;
			for (const channels::over &o : over_)
				coop_chan_tx_done(chan_, o.channel, o.id, o.good ? 0 : -EIO, now);
		}
		// Who hears of an end may begin anew.
		for (coop_chan_ev ev; coop_chan_next_event(chan_, now, &ev); again = true)
			event(ev, now);
	}
}

bool machine::drain_engine(std::uint64_t now)
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
		// Who serves much must still hear, or is taken for dead.
		if (const auto t = clock::now(); t - *began >= data_turn) {
			rest_ = true;
			rest_until_ = t + std::max<clock::duration>(longest_rest, t - *began);
			arrived_ = 0;
		}
	}
	for (coop_ev ev; coop_engine_next_event(engine_, now, &ev); any = true)
		host_->handle(ev, now);
	any |= reader_->advance(now);
	return any;
}

void machine::event(const coop_chan_ev &ev, std::uint64_t now)
{
	switch (ev.kind) {
	case COOP_CHAN_EV_DELIVERED:
		landed(static_cast<std::uint32_t>(ev.cookie), true, now);
		break;
	case COOP_CHAN_EV_ABORTED:
		landed(static_cast<std::uint32_t>(ev.cookie), false, now);
		break;
	case COOP_CHAN_EV_SENT:
		sent(ev, now);
		break;
	case COOP_CHAN_EV_PEER_NEW: { // who it is its first message tells
		struct ::coop_chan_stats s;
		coop_chan_stats(chan_, &s);
		// The next one shall be let in, for of those who are not nobody hears.
		if (s.peers + spare_peers >= options_.peers)
			(void)evict(now, s.peers < options_.peers ? ev.peer : 0);
		coop_chan_peer_info info;
		if (!ev.peer_cookie && !coop_chan_peer_get(chan_, ev.peer, &info))
			sessions_.add_stranger(ev.peer);
		break;
	}
	case COOP_CHAN_EV_PEER_DEAD:
		if (ev.peer_cookie)
			died(static_cast<spi::peer_number>(ev.peer_cookie - 1), ev, now);
		break;
	case COOP_CHAN_EV_PEER_RESTARTED:
		// What was under way at rpc/chan ends, and says so.
		if (ev.peer_cookie)
			restarted(static_cast<spi::peer_number>(ev.peer_cookie - 1), now);
		break;
	}
}

bool machine::arm()
{
	if (!chan_)
		return true;
	const std::uint64_t now = now_us();
	if (owed_ || rest_)
		settle(now);
	if (rest_)
		return false;
	armed_ = true;
	unarmed_ = 0;
	if (!watching_ && watch_endpoint(true))
		return false;
	return endpoint_->arm();
}

// A descriptor that somebody waits for costs its peers a call-back with every datagram, so
// that of a machine that is only polled is not waited for.
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
	std::uint64_t t =
		std::min({coop_chan_deadline(chan_), coop_engine_deadline(engine_),
			  resolver_->deadline(), reader_->deadline(), stop_at_, starts_at_});
	if (active_ || !begun_.empty())
		t = std::min(t, watch_at_);
	if (!loop_.empty())
		t = std::min(t, ops_[loop_.front()].since + loop_patience_us);
	return t;
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
	const std::uint64_t now = now_us();
	if (now >= starts_at_)
		begin();
	coop_chan_expire(chan_, now);
	if (coop_engine_overdue(engine_, dry_, now))
		coop_engine_expire(engine_, now);
	resolver_->expire(now);
	for (resolver::result r; resolver_->next(r);)
		resolved(r, now);
	if (!loop_.empty())
		receivable();
	if ((active_ || !begun_.empty()) && now >= watch_at_)
		watch(now);
	settle(now);
}

// Whom nothing is heard of is asked for: by rpc/chan, for bulk moves without it, and by the
// resolver, for a machine that is there no more or anew says so at once.
void machine::watch(std::uint64_t now)
{
	watch_at_ = now + watch_every_us;
	for (const spi::peer_number n : watched_) {
		peer &p = peers_[n];
		coop_chan_peer_info info;
		if (!p.resolved || coop_chan_peer_get(chan_, p.chan, &info))
			continue;
		bool ask = info.tries >= 2;
		if (p.bulk != none && now >= p.probe_at) {
			p.probe_at = now + probe_every_us;
			ask = true;
			if (!info.in_flight && !info.queued) {
				probe(p, false, now);
				// It answers, and nothing has come: does the path take datagrams as
				// long as those? rpc/fetch does not know, rpc/chan finds out.
				if (info.srtt_us && info.carried < coop_chan_unit(chan_) &&
				    reader_->came_at(n) < p.bulk_since)
					probe(p, true, now);
			}
		}
		if (ask)
			resolver_->ask(n, p.who, now);
	}
	ask_readers(now);
}

// The port of the device has another GID or LID. Peers know us by the old one, as a session
// does: each begins anew, and whoever sends to where we were asks for us before long.
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
	for (spi::peer_number n = 0; n < peers_.size(); n++) {
		peer &p = peers_[n];
		if (!p.used || !p.chan)
			continue;
		sessions_.drop(p.session);
		(void)coop_chan_close(chan_, std::exchange(p.chan, 0), now);
		p.resolved = connect(n, coop_chan_peer_addr(p.addr), now) == 0;
	}
}

// ---- the end ---------------------------------------------------------------------

void machine::stop()
{
	const std::uint64_t now = now_us();
	stopping_ = true;
	starts_at_ = ~0ull;
	stop_latest_ = now + (telling_ ? linger_tell_us : linger_most_us);
	if (owed_)
		settle(now);
	stop_at_ = now;
	if (heard_at_ && now - heard_at_ < recent_us)
		stop_at_ = now + linger_quiet_us;
	drain(now);
}

bool machine::lingering(std::uint64_t now) const
{
	if (now >= stop_latest_)
		return false;
	if (telling_)
		return true;
	return now < stop_at_ || (heard_at_ && now - heard_at_ < linger_quiet_us);
}

void machine::fail_all(int status)
{
	chan_ = nullptr;
	sink_.failed(status);
}

} // namespace coop::net::ud
