// SPDX-License-Identifier: MIT
// machine_life.cpp - the beginning and the end of a transfer machine; see machine.hpp.
#include <algorithm>
#include <cerrno>
#include <sys/epoll.h>
#include <system_error>
#include <unistd.h>

#include "machine.hpp"
#include "userland/net/random.hpp"

namespace coop::net::ud
{

machine::machine(const options &o, memory_keys &k, spi::sink &s) :
	options_(o),
	sink_(s),
	chan_(s),
	completions_(64)
{
	for (unsigned i = 0; i <= o.rails.size(); i++)
		rails_.push_back(std::make_unique<rail>(o, i, k));
}

machine::~machine()
{
	unmake();
}

// A device does not depend on the number of the machine.
int machine::prepare(const address &)
{
	for (const auto &r : rails_)
		if (const int err = r->prepare())
			return err;
	return 0;
}

int machine::start(const address &own)
{
	own_address_ = own;
	try {
		claim(identity::of(own));
		make(identity::of(own));
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

void machine::claim(identity own)
{
	try {
		for (const auto &r : rails_)
			r->claim(own);
	} catch (const std::system_error &) {
		for (const auto &r : rails_)
			r->unclaim();
		throw;
	}
	claimed_ = true;
}

void machine::make(identity own)
{
	for (const auto &r : rails_)
		r->begin(own);
	chan_.reserve(first().slab(), operations::most(options_));
	make_parts(own);
	blank_bytes_ = first().endpoint().info().mtu;
	blank_at_ = first().slab().reserve(blank_bytes_);
	for (const auto &r : rails_)
		r->make(*reader_, now());
	chan_.make(options_, first().channels(), operations::most(options_), now());
	epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
	epoll_event ev{};
	ev.events = EPOLLIN;
	bool good = epoll_ >= 0;
	for (const auto &r : rails_)
		good = good && !::epoll_ctl(epoll_, EPOLL_CTL_ADD, r->resolver().fd(), &ev);
	if (!good || watch_endpoints(true))
		throw std::system_error(errno, std::generic_category(), "ud: epoll");
}

void machine::make_parts(identity own)
{
	std::vector<resolver *> at;
	for (const auto &r : rails_)
		at.push_back(&r->resolver());
	operations_.emplace(options_, first().memory(), sink_);
	peers_.emplace(options_, own, own_address_, chan_, *at[0], sink_);
	outbox_.emplace(*operations_, *peers_, chan_);
	inbox_.emplace(options_, *operations_, *peers_, *outbox_, chan_, sink_);
	peer_rails_.emplace(*peers_, std::move(at));
	for (const auto &r : rails_)
		r->fetch_by(*peers_, *peer_rails_);
	reader_.emplace(options_, first().fetcher(), *peers_);
	for (unsigned i = 1; i < rails_.size(); i++) {
		reader_->add_rail(rails_[i]->fetcher(), *peer_rails_);
		if (rails_[i]->endpoint().info().mtu < first().endpoint().info().mtu)
			peer_rails_->no_path(i);
	}
	bulk_.emplace(options_, *operations_, *peers_, *outbox_, *reader_, chan_, nullptr,
		      rails_.size() > 1 ? &*peer_rails_ : nullptr, sink_);
	for (const auto &r : rails_)
		r->serve(*bulk_);
}

void machine::unmake()
{
	for (const auto &r : rails_)
		r->close(); // from here on the network writes to no buffer
	operations_.reset();
	for (const auto &r : rails_)
		r->forget();
	if (epoll_ >= 0)
		::close(std::exchange(epoll_, -1));
	watching_ = claimed_ = false;
}

void machine::begin()
{
	starts_at_ = ~0ull;
	instance_ = static_cast<std::uint32_t>(random_number()) | 1;
	answer();
	sink_.started();
}

// What the resolvers tell peers.
void machine::answer()
{
	rail_list others;
	others.messages = true;
	for (const auto &r : rails_) {
		if (r->open())
			r->resolver().answer_with(r->channels().self(), instance_);
		if (r != rails_.front())
			others.ip[others.size++] = r->ip();
	}
	first().resolver().answer_with_rails(others);
}

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

std::vector<rail_stats> machine::rails() const
{
	std::vector<rail_stats> all;
	if (!chan_)
		return all;
	for (unsigned i = 0; i < rails_.size(); i++) {
		if (!rails_[i]->open())
			continue;
		const coop::ud::endpoint_stats wire = rails_[i]->endpoint().stats();
		const reader::counters &reads = reader_->stats(i);
		all.push_back({rails_[i]->endpoint().info().name, wire.tx_bytes, wire.rx_bytes,
			       reads.bytes, reads.requests, reads.failed});
	}
	return all;
}

} // namespace coop::net::ud
