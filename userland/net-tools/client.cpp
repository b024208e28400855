// SPDX-License-Identifier: MIT
// client.cpp - see client.hpp.
#include "client.hpp"

#include <algorithm>
#include <cerrno>
#include <random>

#include "advice.hpp"
#include "interruption.hpp"
#include "server.hpp"

namespace coop::net_tools
{

namespace
{

// Fetches the figures only: is there a server, and what are its limits?
class greeting final : public task
{
	void go(client &c) override { c.finish(); }
};

// Whether the end of a question is neither of the transport nor of limits: no server of this
// version refuses it, or answers at such length.
bool is_strange(const net::call_result &r)
{
	return (r.status && r.remote && r.status != -ENOBUFS) || r.status == -EFBIG;
}

} // namespace

client::client(station &s, unsigned slots) :
	station_(s),
	run_(static_cast<std::uint16_t>(std::random_device{}())),
	outbox_(s.domain(), *this, slots, s.limits().max_message),
	rpc_(s.domain(), s.machine(), for_questions(s.limits()))
{
}

client::knock::knock(client &c) :
	client_(c),
	bytes_(allocate(head::size)),
	buffer_(c.station_.domain(), bytes_.get(), head::size)
{
	head{command::echo, c.run_, number}.put(bytes_.get());
}

void client::knock::send()
{
	if (out_.exchange(true))
		return;
	net::operation o;
	o.queue = net::queue_type::msg_send;
	o.length = head::size;
	o.to = client_.server_.get();
	o.handler = this;
	if (client_.station_.machine().add(buffer_, o))
		out_ = false;
}

client::~client()
{
	station_.stop();
}

trouble client::connect(const net::address &server, std::chrono::milliseconds patience)
{
	patience_ = patience;
	text_ = net::format(server);
	const std::string &from = station_.how().from;
	std::string own;
	if (from.empty()) {
		own = own_address(server);
	} else {
		net::address a;
		if (trouble t = full_address(from, station_.domain(), a))
			return t;
		net::address here = server;
		here.ip = a.ip;
		here.id = net::address::any;
		own = net::format(here);
	}
	if (trouble t = station_.start(own, *this))
		return t;
	own_ = station_.machine().address();
	// The number was free on this host, so the server's address has no machine.
	if (own_ == server)
		return failure{exit_failure, explain(-ECONNREFUSED, text_, station_.domain())};
	if (const int status = station_.machine().make_endpoint(server, server_))
		return failure{exit_failure, explain(status, text_, station_.domain())};
	greeting g;
	asked_ = net::clock::now();
	if (trouble t = run(g))
		return t;
	takes_ = g.after();
	met_ = true;
	return {};
}

std::size_t client::max_message() const
{
	return std::min<std::uint64_t>(station_.limits().max_message, takes_.max_message);
}

std::size_t client::max_bulk() const
{
	const net::domain_limits &own = station_.limits();
	return std::min<std::uint64_t>({own.max_segment, own.max_buffer, takes_.max_bulk});
}

trouble client::run(task &t)
{
	task_ = &t;
	status_ = 0;
	goal_.reached = false;
	phase_ = phase::asked;
	ask();
	// A signal that came before the goal was reset has reached the earlier goal.
	const bool in_time = interrupted() || station_.until(goal_, patience_, [this] { quiet(); });
	const bool cut_off = interrupted() != 0;
	const int gone = gone_.exchange(0);
	// Ends operations that a failed task left on queues, before the task itself is destroyed.
	// Do not wait for peers then: `patience` is the limit that the user set. With `gone`,
	// handlers may still run, and status_ is theirs.
	if (!in_time || cut_off || gone || status_) {
		station_.stop(true);
		rpc_.stop();
	}
	if (cut_off)
		status_ = -EINTR;
	else if (!in_time)
		status_ = -ETIMEDOUT;
	else if (gone)
		status_ = gone;
	phase_ = phase::idle;
	task_ = nullptr;
	if (status_ == 0)
		return {};
	if (const int lost = station_.lost()) // after stop(), which waits for the state event
		return failure{exit_failure, why_lost(lost, net::format(own_), station_.domain())};
	if (status_ > 0)
		return failure{exit_failure,
			       why_no_server(status_ == older, text_, station_.domain())};
	if (met_ && status_ == -ECONNREFUSED)
		status_ = -ECONNRESET; // the server existed before
	return failure{exit_failure, explain(status_, text_, station_.domain())};
}

int client::call(net::rpc::completion done, net::time_point deadline)
{
	const std::byte run[] = {static_cast<std::byte>(run_), static_cast<std::byte>(run_ >> 8)};
	return rpc_.call(server_, method::tell, run, std::move(done), deadline);
}

int client::told(const net::call_result &r, figures &out)
{
	if (is_strange(r))
		return other;
	if (r.status)
		return r.status;
	if (!figures::get(r.bytes, out) || !out.instance)
		return other;
	if (!instance_)
		instance_ = out.instance;
	return out.instance == instance_ ? 0 : -ECONNRESET;
}

void client::ask()
{
	const int status = call(
		[this](net::call_result &&r) {
			figures f;
			if (const int wrong = told(r, f))
				lose(wrong);
			else
				answered(f);
		},
		net::never);
	if (status)
		lose(status);
}

void client::answered(const figures &f)
{
	step();
	task &t = *task_;
	if (phase_ == phase::asked) {
		t.before_ = f;
		phase_ = phase::running;
		t.cpu_before_ = cpu_us();
		t.began_ = net::clock::now();
		t.go(*this);
	} else if (phase_ == phase::asked_again) {
		t.after_ = f;
		t.server_cpu_us_ = static_cast<double>(f.cpu_us - t.before_.cpu_us);
		phase_ = phase::idle;
		station_.reach(goal_);
	}
}

void client::quiet()
{
	if (!met_) {
		knock_.send();
		return;
	}
	if (inquiring_.exchange(true))
		return;
	const int status = call(
		[this](net::call_result &&r) {
			figures f;
			const int wrong = told(r, f);
			inquiring_ = false;
			if (wrong && wrong != -ETIMEDOUT)
				lose(wrong);
		},
		net::clock::now() + patience_);
	if (status)
		inquiring_ = false;
}

// One answer may have overtaken that of the call. And a server of this version answers late if
// other clients, which do not receive, keep its send buffers for calls: it has them back after
// `unread`.
void client::knocked()
{
	const net::clock::duration late =
		std::min<net::clock::duration>(patience_ / 2, net::rpc_options{}.unread);
	if (!calls_ && ++knocks_ >= 2 && net::clock::now() - asked_ >= late)
		lose(older);
}

void client::lose(int why)
{
	if (why == -ECANCELED) // the end of this side
		return;
	gone_ = why;
	station_.reach(goal_);
}

void client::send(outbox::slot &s, command c, std::uint32_t number, std::size_t length)
{
	head{c, run_, number}.put(s.data());
	if (const int status = outbox_.send(s, station_.machine(), server_.get(), length))
		fail(status);
}

void client::finish()
{
	task &t = *task_;
	if (!t.timed_by_server())
		t.seconds_ = std::chrono::duration<double>(net::clock::now() - t.began_).count();
	t.client_cpu_us_ = static_cast<double>(cpu_us() - t.cpu_before_);
	if (t.timed_by_server()) {
		drain();
		return;
	}
	phase_ = phase::asked_again;
	ask();
}

// A call would do as well, but what is timed is a plain message.
void client::drain()
{
	phase_ = phase::draining;
	drain_++;
	if (outbox::slot *const s = outbox_.take())
		send(*s, command::echo, drain_, head::size);
	else
		fail(-ENOBUFS);
}

void client::drained()
{
	task_->seconds_ = std::chrono::duration<double>(net::clock::now() - task_->began_).count();
	phase_ = phase::asked_again;
	ask();
}

void client::fail(int status)
{
	if (phase_ == phase::idle)
		return;
	phase_ = phase::idle;
	status_ = status;
	station_.reach(goal_);
}

void client::sent(int status)
{
	step();
	if (phase_ == phase::idle)
		return;
	if (status)
		fail(status);
	else if (phase_ == phase::running)
		task_->sent(*this);
}

void client::on_buffer(const net::buffer_event &e)
{
	head h;
	std::span<const std::byte> m;
	if (e.sender && e.status == 0)
		m = {static_cast<const std::byte *>(e.buffer->segments()[0].base) + e.offset,
		     e.length};
	if (!head::get(m, h)) {
		if (m.empty() || !rpc_.take(*e.sender, m))
			step(); // from a stranger, or no message
		else if (e.sender == server_.get())
			calls_ = true;
	} else if (h.command == command::reply && h.number == knock::number) {
		if (h.run == run_ && e.sender == server_.get())
			knocked();
	} else {
		step();
		if (h.run != run_)
			; // an answer to an earlier run of the program
		else if (phase_ == phase::running)
			task_->message(*this, h, m);
		else if (phase_ == phase::draining && h.command == command::reply &&
			 h.number == drain_)
			drained();
	}
	if (!e.queued)
		station_.put_back(e.buffer);
}

} // namespace coop::net_tools
