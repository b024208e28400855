// SPDX-License-Identifier: MIT
// peers.cpp - see peers.hpp.
#include "peers.hpp"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <malloc.h>
#include <mutex>
#include <system_error>
#include <utility>

#include "advice.hpp"
#include "interruption.hpp"

namespace coop::net_tools
{

namespace
{

using namespace std::chrono_literals;

// Bytes allocated by malloc(); resident memory would hide memory that was used before.
std::uint64_t allocated()
{
	const struct mallinfo2 m = ::mallinfo2();
	return m.uordblks + m.hblkhd;
}

// Machines that connect at a time: a greeting has to end within some seconds, and on a busy machine
// hundreds of them keep each other from it.
constexpr unsigned at_once = 32;

net::address peer_address(const net::address &like, unsigned i)
{
	// No machine has to exist there: an end point is not a connection.
	net::address a = like;
	a.ip[a.ip.size() - 3] = static_cast<std::uint8_t>(100 + i / 62500);
	a.ip[a.ip.size() - 2] = static_cast<std::uint8_t>(1 + i / 250 % 250);
	a.ip[a.ip.size() - 1] = static_cast<std::uint8_t>(1 + i % 250);
	return a;
}

// Fetches the server's figures only.
class look final : public task
{
	void go(client &c) override { c.finish(); }
};

// Counts ends of sends, from the threads of many machines.
class tally
{
public:
	void add(int status)
	{
		std::lock_guard guard(lock_);
		ended_++;
		if (status)
			status_ = status;
		changed_.notify_one();
	}
	/// Waits until `count` sends have ended. @return 0, the status of a failed one, -ETIMEDOUT,
	/// or -EINTR.
	int await(unsigned count, std::chrono::milliseconds patience)
	{
		std::unique_lock guard(lock_);
		unsigned seen = ended_;
		auto limit = net::clock::now() + patience;
		while (status_ == 0 && ended_ < count && !interrupted()) {
			// A signal does not wake this wait.
			changed_.wait_for(guard, 100ms);
			if (std::exchange(seen, ended_) != ended_)
				limit = net::clock::now() + patience;
			else if (net::clock::now() >= limit)
				return -ETIMEDOUT;
		}
		return interrupted() ? -EINTR : status_;
	}

private:
	std::mutex lock_;
	std::condition_variable changed_;
	unsigned ended_ = 0;
	int status_ = 0;
};

// Machines that send one message to the server, and stay connected.
class crowd
{
public:
	explicit crowd(client &c) : client_(c), word_(allocate(head::size))
	{
		head{command::count, c.run_number(), 0}.put(word_.get());
	}
	~crowd()
	{
		// Let all of them disconnect first, then wait for each.
		for (const auto &m : members_)
			(void)m->tm.stop(true);
	}
	trouble grow()
	{
		net::address own = client_.at().machine().address();
		own.id = net::address::any;
		const std::string here = net::format(own);
		const auto failed = [&](const std::string &why) {
			return failure{exit_failure, "--connected: machine " +
							     std::to_string(members_.size() + 1) +
							     ": " + why};
		};
		try {
			auto m = std::make_unique<member>(*this);
			int r = m->tm.start(here);
			if (!r)
				r = m->tm.wait(net::tm_state::started, net::clock::now() + 10s);
			if (r)
				return failed(why_not_started(r, here, client_.at().domain()));
			r = m->tm.make_endpoint(client_.server()->address(), m->server);
			if (!r)
				r = m->send();
			if (r)
				return failed(
					explain(r, client_.server_text(), client_.at().domain()));
			members_.push_back(std::move(m));
			return {};
		} catch (const std::system_error &e) {
			return failed(e.what());
		}
	}
	tally &ends() { return ends_; }

private:
	struct member final : net::buffer_handler {
		explicit member(crowd &c) :
			ends(c.ends_),
			word(c.client_.at().domain(), c.word_.get(), head::size),
			tm(c.client_.at().domain())
		{
		}
		int send()
		{
			net::operation op;
			op.queue = net::queue_type::msg_send;
			op.to = server.get();
			op.length = head::size;
			op.handler = this;
			return tm.add(word, op);
		}
		// A server that gets no processor for some seconds looks like one that is not
		// there.
		void on_buffer(const net::buffer_event &e) override
		{
			if (e.status != -ECONNREFUSED || !repeats-- || send())
				ends.add(e.status);
		}
		tally &ends;
		unsigned repeats = 3;
		net::buffer word;
		net::endpoint_ptr server;
		net::transfer_machine tm; // last: no event comes once it has gone
	};

	client &client_;
	const memory word_; // the same for all
	tally ends_;
	std::vector<std::unique_ptr<member>> members_;
};

} // namespace

trouble measure_endpoints(client &c, unsigned count, endpoint_figures &out)
{
	net::transfer_machine &tm = c.at().machine();
	const net::address &like = c.server()->address();
	std::vector<net::endpoint_ptr> all(count);
	const std::uint64_t before = allocated();
	const auto pass = [&](double &ns) -> trouble {
		const net::time_point began = net::clock::now();
		for (unsigned i = 0; i < count; i++) {
			net::endpoint_ptr e;
			if (const int status = tm.make_endpoint(peer_address(like, i), e))
				return failure{exit_failure,
					       "end point " + std::to_string(i) + ": " +
						       explain(status,
							       net::format(peer_address(like, i)),
							       c.at().domain())};
			all[i] = std::move(e);
		}
		ns = std::chrono::duration<double, std::nano>(net::clock::now() - began).count() /
		     count;
		return {};
	};
	out.count = count;
	if (trouble t = pass(out.make_ns))
		return t;
	const std::uint64_t now = allocated();
	out.bytes = (now > before ? static_cast<double>(now - before) : 0.0) / count;
	return pass(out.find_ns);
}

trouble measure_connected(client &c, unsigned count, std::chrono::milliseconds patience,
			  connected_figures &out)
{
	look before;
	if (trouble t = c.run(before))
		return t;
	crowd all(c);
	const auto failed = [&](const std::string &what, int status) {
		return failure{exit_failure,
			       "--connected: " + what + ": " +
				       explain(status, c.server_text(), c.at().domain())};
	};
	for (unsigned n = 0; n < count; n++) {
		if (trouble t =
			    interrupted() ? trouble(failed("it has ended", -EINTR)) : all.grow())
			return t;
		const unsigned made = n + 1,
			       needed = made < count ? made - std::min(made, at_once) : count;
		if (const int status = all.ends().await(needed, patience))
			return failed("a message to the server", status);
	}
	// A message sent need not have arrived.
	const auto deadline = net::clock::now() + patience;
	for (;;) {
		look now;
		if (trouble t = c.run(now))
			return t;
		const auto heard =
			static_cast<std::uint32_t>(now.after().counted - before.after().counted);
		if (heard >= count) {
			const auto was = static_cast<double>(before.after().resident);
			// The kernel may have reclaimed some of its pages.
			const auto is = static_cast<double>(now.after().resident);
			out = {count, std::max(0.0, is - was) / count};
			return {};
		}
		if (net::clock::now() >= deadline)
			return failed("the server has heard only from " + std::to_string(heard) +
					      " machines",
				      -ETIMEDOUT);
	}
}

} // namespace coop::net_tools
