// SPDX-License-Identifier: MIT
// machine.cpp - the life of a machine, its progress and its sleep; see machine.hpp.
//
// The descriptor to sleep on is an epoll set: the own bell, the listener, and each link's bell,
// socket and process. A machine that polls looks at the set only now and then (tick), since rings
// tell it of everything but new and lost peers, and of what links bring that were set aside.
//
// A link that has had no request for a while is set aside: neither a poll nor a sleep looks at it,
// and its peer rings, also while the machine is awake. The next request of either side ends that.
#include "machine.hpp"

#include <algorithm>
#include <cerrno>
#include <endian.h>
#include <limits>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <system_error>
#include <unistd.h>

namespace coop::net::nt
{

namespace
{

using namespace std::chrono_literals;

constexpr std::uint32_t domain_number = 1;
constexpr auto tick = 500us;        // between two looks at the set while the program polls
constexpr auto tend_most = 100ms;   // between two looks at links while something waits
constexpr auto stop_within = 500ms; // for what is owed to peers
constexpr auto rest_after = 1s;     // without requests
constexpr unsigned batch = 16;

} // namespace

machine::machine(spi::sink &s, const options &o) :
	sink_(s),
	options_(o),
	queue_(*this),
	receives_(*this, domain_number, o.receives),
	receive_memory_(new std::byte[o.receive_bytes() * o.receives])
{
	// Requests of its own name any memory; peers get no rights at all.
	all_memory_ = *regions_.add(reinterpret_cast<std::uint8_t *>(1),
				    std::numeric_limits<std::uint64_t>::max() - 1, 1, domain_number,
				    rdma::local_write);
	for (std::uint32_t i = 0; i < o.receives; i++)
		repost(i);
}

machine::~machine()
{
	close_all();
}

int machine::start(const address &own)
{
	while (::getrandom(&probe_, sizeof(probe_), 0) != sizeof(probe_))
		continue;
	try {
		board_ = std::make_unique<nt::board>();
	} catch (const std::system_error &e) {
		return -e.code().value();
	}
	if (options_.reach != reach::tcp)
		if (int r = listen_at(own, listener_))
			return r;
	if (options_.reach != reach::windows)
		if (int r = rdma::listen_tcp(own.ip, tcp_port(own), far_listener_)) {
			listener_ = rdma::unique_fd();
			return r;
		}
	bell_ = rdma::unique_fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	epoll_ = rdma::unique_fd(::epoll_create1(EPOLL_CLOEXEC));
	if (!bell_ || !epoll_) {
		const int error = errno;
		listener_ = rdma::unique_fd();
		far_listener_ = rdma::unique_fd();
		return -error;
	}
	own_ = own;
	watch(bell_.get(), 0);
	for (const auto *all : {&listener_, &far_listener_})
		if (*all && options_.answer)
			watch(all->get(), 1);
	sink_.started();
	return 0;
}

void machine::stop()
{
	stopping_ = true;
	for (auto *all : {&listener_, &far_listener_}) {
		unwatch(*all);
		*all = rdma::unique_fd();
	}
	stop_until_ = sink_.now() + stop_within;
	ring_all();
	(void)finish_stop(sink_.now());
}

// Peers may wait for answers, which nothing repeats after the end.
bool machine::finish_stop(time_point now)
{
	if (now < stop_until_)
		for (const auto &l : links_)
			if (l && l->stage == stage::up && !l->ends &&
			    (!l->owed.empty() || l->pair->sends_outstanding() ||
			     (l->tcp && l->tcp->waits())))
				return false;
	close_all();
	stopping_ = false;
	sink_.stopped();
	return true;
}

void machine::close_all()
{
	// Peers learn of a good end, and of it before the sockets close.
	for (auto &l : links_) {
		if (l && l->pair) {
			l->ends = -ECANCELED;
			l->pair->set_state(rdma::pair_state::reset);
		}
		l.reset();
	}
	links_.clear();
	free_links_.clear();
	awake_.clear();
	blocked_.clear();
	unrung_.clear();
	far_.clear();
	held_.clear();
	held_bytes_ = owed_bytes_ = 0;
	intakes_.clear();
	operations_.clear();
	for (auto *all : {&listener_, &far_listener_}) {
		unwatch(*all);
		*all = rdma::unique_fd();
	}
	ends_ = false;
}

int machine::submit(spi::token t, const spi::transfer &x)
{
	if (x.queue == queue_type::passive_bulk_recv || x.queue == queue_type::passive_bulk_send)
		return 0;
	peer &p = peers_[x.peer];
	if (!p.sends && !p.links.empty())
		p.sends = p.links.front();
	const bool more = x.more;
	if (p.sends && p.sends->stage == stage::up && p.queue.empty() && p.sends->owed.empty() &&
	    post_operation(*p.sends, t, x)) {
		if (!more)
			ring_all();
	} else {
		p.queue.push_back(t, x.queue == queue_type::msg_send && x.high);
		if (!p.sends)
			dial(x.peer);
		else if (p.sends->stage == stage::up)
			block(*p.sends);
	}
	rests_ = false;
	active_ = sink_.now();
	if (ends_)
		settle_ends();
	return 0;
}

void machine::cancel(spi::token t)
{
	const spi::transfer *x = sink_.find(t);
	if (x && x->queue == queue_type::msg_recv) {
		std::vector<std::uint64_t> lost;
		for (const auto &[id, i] : intakes_)
			if (!i.own && i.landing.token == t)
				lost.push_back(id);
		std::sort(lost.begin(), lost.end()); // in the order in which they began
		for (const std::uint64_t id : lost)
			replace(id);
		offer_room();
	} else {
		if (const auto it = operations_.find(t); it != operations_.end()) {
			const operation &o = it->second;
			link &l = *o.of;
			// owe() may change the streams.
			std::vector<std::uint64_t> takers;
			std::erase_if(l.streams, [&](const stream &s) {
				if (s.token == t)
					takers.push_back(s.intake);
				return s.token == t;
			});
			for (const std::uint64_t id : takers) {
				head h;
				h.to = id;
				h.status = -ECANCELED;
				owe(l, kind::refuse, h);
			}
			if (const auto i = intakes_.find(o.intake); i != intakes_.end()) {
				head h;
				h.to = i->second.giver;
				h.from = i->first;
				h.status = -ECANCELED;
				owe(l, kind::done, h);
			}
		}
		end_operation(t, -ECANCELED, 0);
	}
	ring_all();
	if (ends_)
		settle_ends();
}

int machine::peer_open(spi::peer_number n, const address &a)
{
	if (n >= peers_.size())
		peers_.resize(n + 1);
	peers_[n].at = a;
	return 0;
}

void machine::peer_close(spi::peer_number n)
{
	peers_[n] = peer();
}

// ---- progress --------------------------------------------------------------------

unsigned machine::progress(unsigned budget)
{
	if (armed_)
		disarm();
	unsigned n = far_.empty() ? 0 : look_at_streams();
	n += reap(budget);
	if (!blocked_.empty()) {
		const std::vector<link *> all = std::exchange(blocked_, {});
		for (link *l : all)
			l->blocked = false;
		for (link *l : all)
			n += drain(*l);
	}
	// One piece. Intakes that have ended take no turn, or a peer that begins and ends them
	// could make the list grow for ever, and others wait.
	while (!pulls_.empty()) {
		const auto i = intakes_.find(pulls_.front());
		pulls_.pop_front();
		if (i == intakes_.end())
			continue;
		pull(i->second);
		n++;
		break;
	}
	offer_room();
	ring_all();
	if (!far_.empty())
		n += flush_streams();
	if (ends_)
		settle_ends();
	if (stopping_ && finish_stop(sink_.now()))
		n++;
	return n;
}

unsigned machine::reap(unsigned budget)
{
	unsigned n = 0;
	rdma::completion got[batch];
	while (n < budget) {
		const auto come = static_cast<unsigned>(queue_.poll(got));
		if (!come)
			break;
		for (unsigned i = 0; i < come; i++)
			handle(got[i]);
		n += come;
		// Another look would send the answers, which may go along with replies.
		if (come < batch)
			break;
	}
	if (std::exchange(starved_, false))
		n += serve_starved();
	return n;
}

// Peers' messages that found no receive wait in their rings. A peer may take all that are there, so
// the next turn begins behind it.
unsigned machine::serve_starved()
{
	unsigned n = 0;
	const std::size_t count = links_.size(), first = next_starved_;
	for (std::size_t i = 0; i < count && !receives_.empty(); i++) {
		const std::size_t at = (first + i) % count;
		const auto &l = links_[at];
		if (!l || l->stage != stage::up || !l->pair->starved())
			continue;
		n += l->pair->progress(true);
		next_starved_ = at + 1;
	}
	return n;
}

void machine::handle(const rdma::completion &c)
{
	link &l = *links_[c.qp - 1];
	if (!c.receive) {
		if (c.id)
			sink_.completed(c.id,
					c.result == rdma::status::success ? 0
					: l.ends                          ? l.ends
									  : -ECONNRESET,
					c.bytes);
		return;
	}
	if (c.result == rdma::status::success && l.ends != -EPROTO)
		take(l, static_cast<kind>(le32toh(c.imm)),
		     {receive_memory_.get() + c.id * options_.receive_bytes(), c.bytes});
	repost(c.id);
}

void machine::repost(std::uint64_t index)
{
	rdma::recv_request r{};
	r.id = index;
	r.segments = 1;
	r.at[0] = {reinterpret_cast<std::uintptr_t>(receive_memory_.get() +
						    index * options_.receive_bytes()),
		   static_cast<std::uint32_t>(options_.receive_bytes()), all_memory_};
	starved_ |= receives_.empty();
	(void)receives_.post(r);
}

// Peers ring only while they see that this side waits. Whoever sleeps on the set must still hear
// of what comes from here on, so the bell stays rung until the next arm().
void machine::disarm()
{
	armed_ = false;
	for (link *l : awake_)
		if (l->port)
			l->port->wait(false);
	const std::uint64_t one = 1;
	[[maybe_unused]] const ssize_t n = ::write(bell_.get(), &one, sizeof(one));
	look_at_sockets();
}

bool machine::arm()
{
	if (armed_)
		disarm();
	if (!pulls_.empty() || ends_ || starved_)
		return false;
	std::uint64_t rung;
	[[maybe_unused]] const ssize_t n = ::read(bell_.get(), &rung, sizeof(rung));
	// An end of the rest wakes the thread that sleeps, which is dear if each request does it.
	rests_ = held_.empty() && operations_.empty() && !stopping_ && !deaf_ &&
		 sink_.now() - active_ > rest_after;
	set_idle_aside(sink_.now());
	for (link *l : awake_) {
		rests_ &= !l->waits();
		if (l->port)
			l->port->wait(true);
	}
	std::atomic_thread_fence(std::memory_order_seq_cst);
	bool news = false;
	for (link *l : awake_)
		if (l->stage == stage::up)
			news |= l->pair->progress() || l->pair->unpolled();
	if (!far_.empty())
		news |= flush_streams() != 0;
	armed_ = true;
	if (!news && !ends_)
		return true;
	armed_ = false;
	for (link *l : awake_)
		if (l->port)
			l->port->wait(false);
	return false;
}

time_point machine::deadline() const
{
	if (!armed_)
		return tick_ + tick;
	if (!pulls_.empty() || starved_)
		return tick_; // another thread than the one that sleeps has left it
	if (rests_)
		return never;
	time_point at = tended_ + std::min<clock::duration>(tend_most, options_.bound / 4);
	if (!held_.empty())
		at = std::min(at, held_.front().until);
	return stopping_ ? std::min(at, stop_until_) : at;
}

void machine::expire(time_point now)
{
	tick_ = now;
	look_at_sockets();
	if (now - tended_ >= std::min<clock::duration>(tend_most, options_.bound / 4))
		tend(now);
	while (!held_.empty() && held_.front().until <= now) {
		held h = std::move(held_.front());
		held_.pop_front();
		let_go(h);
		if (head offer; h.offer && read_head(h.bytes, offer))
			for (const auto &l : links_)
				if (l && l->serial == h.serial) {
					head answer;
					answer.to = offer.from;
					answer.status = -ENOBUFS;
					owe(*l, kind::done, answer);
				}
	}
	ring_all();
	if (ends_)
		settle_ends();
	if (stopping_)
		(void)finish_stop(now);
}

} // namespace coop::net::nt
