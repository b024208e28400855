// SPDX-License-Identifier: MIT
// machine.cpp - see machine.hpp.
#include "machine.hpp"

#include <algorithm>

#include "connected_port.hpp"
#include "datagram_port.hpp"

namespace coop::net::fabric
{

namespace
{

constexpr unsigned batch = 16;
// Polls of the completion queue for each poll of the connections, which costs a system call more.
constexpr unsigned polls = 256;
// Completions read at a time when a link ends.
constexpr unsigned drained_most = 1u << 13;
// How long peers have to say farewell.
constexpr std::chrono::milliseconds farewell_time{500};

std::unique_ptr<port> make_port(const provider &p)
{
	if (p.connected())
		return std::make_unique<connected_port>(p);
	return std::make_unique<datagram_port>(p);
}

} // namespace

machine::machine(spi::sink &s, const provider &p, const options &o, local_keys &k) :
	port_(make_port(p)),
	env_(s, p, o, k, *port_),
	works_(env_),
	sends_(env_),
	receives_(env_),
	transfers_(env_, works_, sends_),
	messages_(env_, works_, sends_, transfers_),
	partings_(env_, peers_, sends_),
	links_(env_, works_, sends_, transfers_, messages_, peers_, partings_)
{
}

machine::~machine()
{
	// Links first, then regions, then the port with its domain.
	links_.for_each([this](link &l) { port_->close(l); });
	port_->shut();
	works_.close_regions();
	receives_.close_region();
	sends_.close_regions();
	env_.memory.forget();
	port_.reset();
}

int machine::prepare(const address &own)
{
	if (int r = links_.prepare(own))
		return r;
	return env_.memory.begin();
}

int machine::start(const address &own)
{
	if (int r = links_.start(own))
		return r;
	if (int r = receives_.start())
		return r;
	env_.sink.started();
	return 0;
}

void machine::stop()
{
	stopping_ = true;
	stop_by_ = env_.sink.now() + farewell_time;
	links_.stop();
	settle();
}

void machine::finish_stop()
{
	if (!stopping_ || over_ || (!links_.none() && env_.sink.now() < stop_by_))
		return;
	over_ = true;
	env_.sink.stopped();
}

int machine::submit(spi::token t, const spi::transfer &x)
{
	int r = 0;
	link *l = nullptr;
	switch (x.queue) {
	case queue_type::passive_bulk_recv:
	case queue_type::passive_bulk_send:
		// The core keeps it; peers will ask for it.
		return 0;
	case queue_type::msg_send:
		l = links_.to(x.peer, r);
		if (l)
			r = messages_.submit(*l, t, x);
		break;
	case queue_type::active_bulk_recv:
	case queue_type::active_bulk_send:
		l = links_.to(x.peer, r);
		if (l)
			r = transfers_.submit(*l, t, x);
		break;
	case queue_type::msg_recv:
		return -EINVAL;
	}
	settle();
	return r;
}

void machine::cancel(spi::token t)
{
	if (work *w = works_.of_token(t))
		transfers_.cancel(*w);
	else if (const spi::transfer *x = env_.sink.find(t); x && x->queue != queue_type::msg_recv)
		env_.sink.completed(t, -ECANCELED, 0);
	else if (x)
		transfers_.cancel_landings(t);
	settle();
}

void machine::receivable()
{
	messages_.receivable();
	settle();
}

unsigned machine::progress(unsigned budget)
{
	if (over_)
		return 0;
	receives_.post();
	unsigned n = drain(budget);
	if (to_poll_-- == 0) {
		to_poll_ = polls;
		n += port_->poll();
	}
	if (sends_.trying_again())
		for (link *l : sends_.take_backlog())
			if (l->state != link::state::dying)
				messages_.send_waiting(*l);
	settle();
	if (stopping_)
		finish_stop();
	return n;
}

unsigned machine::drain(unsigned budget)
{
	fi_cq_data_entry entries[batch];
	unsigned n = 0;
	do {
		const ssize_t r = fi_cq_read(&port_->queue(), entries, batch);
		if (r > 0) {
			for (ssize_t i = 0; i < r; i++)
				complete(entries[i]);
			n += static_cast<unsigned>(r);
			if (r < static_cast<ssize_t>(batch))
				break;
		} else if (r == -FI_EAVAIL) {
			complete_error();
			n++;
		} else {
			if (r == -FI_ENODEV)
				env_.endings.lose_device(-FI_ENODEV);
			break;
		}
	} while (n < budget);
	return n;
}

// Reads what is there, but not what peers keep sending in the meantime.
void machine::drain_all()
{
	for (unsigned n = 0, got = 1; got && n < drained_most; n += got)
		got = drain(1024);
}

void machine::complete(const fi_cq_data_entry &e)
{
	posted *p = static_cast<posted *>(e.op_context);
	const bool received = p && p->role == role::receive;
	const std::uint64_t w = e.flags & FI_REMOTE_CQ_DATA ? e.data : ~0ull;
	// verbs reports every completion of a shared receive context as a message.
	const bool called = received && word::kind(w) == static_cast<unsigned>(kind::landed) &&
			    env_.provider.words_take_receives();
	if (e.flags & FI_REMOTE_WRITE || called) {
		landed(e.data);
		if (received && env_.provider.words_take_receives())
			receives_.give_back(static_cast<bounce &>(*p));
	} else if (received) {
		arrived(static_cast<bounce &>(*p), e.len, w);
	} else if (p) {
		completed(*p, 0);
	}
}

// A write into our memory is complete; its word names the landing.
void machine::landed(std::uint64_t w)
{
	work *at = works_.find(word::id(w));
	if (at && (!env_.wide || at->link->cookie == word::cookie(w)))
		transfers_.on_landed(at);
}

void machine::complete_error()
{
	fi_cq_err_entry e{};
	if (fi_cq_readerr(&port_->queue(), &e, 0) < 0)
		return;
	posted *p = static_cast<posted *>(e.op_context);
	if (!p)
		return;
	// A receive: the message was too long for the buffer, or truncated. The sender is unknown;
	// if the link is broken, its port reports it.
	if (p->role == role::receive)
		receives_.give_back(static_cast<bounce &>(*p));
	else
		completed(*p, -ECONNRESET);
}

void machine::completed(posted &p, int status)
{
	if (p.role == role::copy)
		return sends_.completed(static_cast<bounce &>(p));
	work &w = static_cast<work &>(p);
	sends_.completed(w);
	if (w.stage == work::stage::zombie)
		return works_.bury(w);
	if (status && w.link)
		env_.endings.fail(*w.link, status); // which ends the work too
	if (w.out || status || !w.link)
		return;
	if (w.stage == work::stage::sending)
		works_.finish(w, 0);
	else
		transfers_.completed(w);
}

void machine::arrived(bounce &b, std::size_t length, std::uint64_t w)
{
	link *l = links_.of(w);
	if (l && length <= b.length && links_.audible(*l))
		heard(*l, b, length, w);
	receives_.give_back(b);
}

void machine::heard(link &l, const bounce &b, std::size_t length, std::uint64_t w)
{
	l.used = true;
	if (const unsigned n = word::credits(w)) {
		l.credit += n;
		if (l.credit > l.credit_most)
			env_.endings.violation(l);
		else if (!l.messages.empty())
			messages_.send_waiting(l);
	}
	if (word::kind(w) == static_cast<unsigned>(kind::message))
		return messages_.take(l, b.data, length);
	control c;
	if (word::kind(w) == static_cast<unsigned>(kind::control) && decode({b.data, length}, c))
		on_control(l, c);
	else
		env_.endings.violation(l);
}

void machine::on_control(link &l, const control &c)
{
	switch (c.verb) {
	case control::verb::offer:
		return messages_.on_offer(l, c);
	case control::verb::put:
	case control::verb::put_at:
		return transfers_.on_put(l, c);
	case control::verb::get:
	case control::verb::get_at:
		return transfers_.on_get(l, c);
	case control::verb::grant:
		return transfers_.on_grant(l, c);
	case control::verb::landed:
		return transfers_.on_landed(works_.find(c.peer, l));
	case control::verb::done:
		return transfers_.on_done(l, c);
	case control::verb::cancel:
		return transfers_.on_cancel(l, c);
	case control::verb::credit:
		return;
	case control::verb::bye:
		if (!std::exchange(l.bade, true))
			partings_.on_bye(l, c.length != 0);
		return;
	case control::verb::farewell:
		return partings_.on_farewell(l);
	case control::verb::lend:
		return transfers_.on_lend(l, c);
	}
}

void machine::settle()
{
	if (settling_ || (!env_.endings.any() && !env_.endings.device()))
		return;
	settling_ = true;
	close_dying();
	// Without the device close all links, so that all their works end and memory is quiet; the
	// core ends the rest. A machine that was stopping has stopped.
	const int lost = over_ ? 0 : env_.endings.device();
	if (lost) {
		links_.for_each([&](link &l) { env_.endings.fail(l, lost); });
		close_dying();
	}
	settling_ = false;
	if (lost && stopping_) {
		finish_stop();
	} else if (lost) {
		over_ = true;
		env_.sink.failed(lost);
	}
}

void machine::close_dying()
{
	while (env_.endings.any()) {
		partings_.take_leaves();
		if (link *l = env_.endings.next_dying())
			close(*l);
	}
}

// Reads the link's completions, closes it, and ends the works on it.
void machine::close(link &l)
{
	const bool linked = l.ep != nullptr;
	if (l.greeted)
		drain_all();
	port_->close(l);
	drain_all();
	if (env_.provider.forgets())
		while (posted *p = l.under_way)
			completed(*p, -ECONNRESET);
	if (linked && port_->shares() && l.uses_memory())
		shut();
	links_.bury(l);
}

// The network may still access memory of operations on a link that has ended, and the provider
// cannot close that link alone: end all of them.
void machine::shut()
{
	links_.for_each([this](link &l) {
		if (l.state == link::state::connecting)
			return;
		env_.endings.fail(l, -ECONNRESET);
		port_->close(l);
	});
	port_->shut();
	links_.for_each([this](link &l) {
		while (posted *p = l.under_way)
			completed(*p, -ECONNRESET);
	});
	sends_.forget_copies();
	int r = port_->reopen();
	if (!r)
		r = receives_.post_all();
	if (r)
		env_.endings.lose_device(r);
}

bool machine::arm()
{
	to_poll_ = 0;
	return (receives_.all_posted() || over_) && !env_.endings.any() && port_->arm();
}

time_point machine::deadline() const
{
	return over_ ? never
		     : std::min({port_->deadline(), stop_by_, sends_.deadline(),
				 transfers_.deadline(), messages_.deadline(),
				 partings_.deadline()});
}

void machine::expire(time_point now)
{
	if (over_)
		return;
	sends_.expire(now);
	port_->expire(now);
	messages_.expire(now);
	partings_.expire(now);
	transfers_.expire(now);
	settle();
	finish_stop();
}

} // namespace coop::net::fabric
