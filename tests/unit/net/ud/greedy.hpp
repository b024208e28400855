// SPDX-License-Identifier: MIT
// greedy.hpp - a peer that keeps to the protocol where that helps it, and takes what it can get.
#pragma once

#include <arpa/inet.h>
#include <chrono>
#include <cstdlib>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "rpc/chan/wire.h"
#include "userland/net/ud/channels.hpp"
#include "userland/net/ud/options.hpp"
#include "userland/net/ud/resolver.hpp"

namespace ud_test
{

using namespace coop::net;

class greedy
{
public:
	/// At this IP address, with this TMID.
	greedy(const std::string &ip, char id) :
		own_(identity(ip + "@tcp:12345:31:" + id)),
		endpoint_(end_point(ip)),
		slab_(endpoint_->info().mtu, 4096),
		lines_(*endpoint_, slab_, ud::options{}.qkey(), true),
		resolver_({}, own_)
	{
		slab_.make(*endpoint_);
		lines_.make();
		const coop_chan_peer_addr self = lines_.self();
		coop_chan_cfg c{};
		c.seed = own_.packed();
		c.self = self.command;
		c.data_qpn = self.data_qpn;
		c.data_qkey = self.data_qkey;
		for (std::uint32_t i = 0; i < COOP_CHAN_CHANNELS; i++) {
			c.mtu[i] = lines_.mtu(i);
			c.credits[i] = ud::channels::credits;
		}
		c.max_peers = 4;
		c.max_active = 4;
		c.max_sends = 2048;
		c.max_receives = 64;
		c.max_segments = COOP_CHAN_WINDOW;
		c.max_length = 1u << 16;
		c.max_tries = 250;
		c.rnr_tries = 250;
		c.flags = COOP_CHAN_F_TEST_NO_CWND;
		const std::size_t size = coop_chan_size(&c);
		memory_.reset(std::calloc((size + 7) / 8, 8));
		chan_ = coop_chan_create(memory_.get(), size, &c, now());
		EXPECT_TRUE(chan_);
		resolver_.answer_with(self, 1);
	}
	/// Finds the machine that the messages go to.
	bool find(const std::string &machine)
	{
		resolver_.ask(0, identity(machine), now());
		ud::resolver::result r{};
		for (int i = 0; i < 10000 && !resolver_.next(r); i++) {
			(void)resolver_.progress(now());
			resolver_.expire(now());
		}
		peer_ = r.status ? 0 : coop_chan_open(chan_, &r.where, 1, now());
		return peer_ > 0;
	}
	/// Does not acknowledge what the other sends.
	void turn_deaf() { deaf_ = true; }
	/// Sends no more of a message than its first datagram.
	void stop_short() { short_ = true; }
	void send(ud::tag_kind kind, const std::vector<std::uint8_t> &text)
	{
		texts_.push_back(text);
		coop_chan_msg m{};
		m.peer = static_cast<std::uint32_t>(peer_);
		m.cookie = texts_.size() - 1;
		m.tag = ud::make_tag(kind, own_);
		m.length = static_cast<std::uint32_t>(text.size());
		std::uint32_t id;
		EXPECT_EQ(coop_chan_send(chan_, &m, now(), &id), 0);
	}
	/// Datagrams move.
	void turn()
	{
		coop::ud::completion c[64];
		for (std::size_t n; (n = endpoint_->poll(c)) != 0;)
			for (std::size_t i = 0; i < n; i++)
				take(c[i]);
		lines_.repost();
		coop_chan_expire(chan_, now());
		for (coop_chan_tx tx; coop_chan_next_tx(chan_, now(), &tx);)
			transmit(tx);
		lines_.post();
		endpoint_->flush();
		done();
		for (coop_chan_ev ev; coop_chan_next_event(chan_, now(), &ev);)
			taken_ += ev.kind == COOP_CHAN_EV_SENT && !ev.err;
		(void)resolver_.progress(now());
	}
	/// Messages that the other has taken whole; datagrams that it has found no room for.
	unsigned taken() const { return taken_; }
	std::uint64_t refused() const
	{
		struct ::coop_chan_stats s;
		coop_chan_stats(chan_, &s);
		return s.rnr_rx;
	}

private:
	static ud::identity identity(const std::string &text)
	{
		address a;
		EXPECT_EQ(parse(text, a), 0);
		return ud::identity::of(a);
	}
	static std::unique_ptr<coop::ud::endpoint> end_point(const std::string &ip)
	{
		coop::ud::soft_roce_options o;
		o.ip = ip;
		o.port = 0;
		o.any_memory = true;
		return coop::ud::make_soft_roce(o);
	}
	static std::uint64_t now()
	{
		return static_cast<std::uint64_t>(
			std::chrono::duration_cast<std::chrono::microseconds>(
				coop::net::clock::now().time_since_epoch())
				.count());
	}
	void take(const coop::ud::completion &c)
	{
		for (std::uint32_t channel = 0; channel < COOP_CHAN_CHANNELS; channel++) {
			ud::message_qp &line = lines_.line(channel);
			if (c.qp != line.qp())
				continue;
			const auto d = line.message(c);
			constexpr std::size_t type_at = 5;
			const bool message = d.size() > type_at &&
					     static_cast<unsigned>(d[type_at]) <= COOP_CHAN_T_CHUNK;
			const coop_chan_dgram rx{channel, static_cast<std::uint32_t>(d.size()),
						 d.data(), ud::message_qp::sender(c)};
			coop_chan_in in;
			if (!d.empty() && !(deaf_ && message) &&
			    coop_chan_rx(chan_, &rx, now(), &in) == COOP_CHAN_PLACE)
				coop_chan_ignore(chan_);
			if (const auto id = line.take(c); id != ud::message_qp::no_tag)
				coop_chan_tx_done(chan_, channel, id, 0, now());
		}
	}
	void transmit(coop_chan_tx &tx)
	{
		if (short_ && tx.len && tx.off) {
			coop_chan_tx_done(chan_, tx.channel, tx.id, 0, now());
			return;
		}
		ud::keyed_memory payload;
		segment piece;
		if (tx.len) {
			std::vector<std::uint8_t> &text = texts_[tx.cookie];
			piece = {text.data(), text.size()};
			payload.segments = {&piece, 1};
			payload.size = piece.length;
		}
		lines_.add(tx, &payload);
		lines_.post(); // `piece` is used no more
		done();
	}
	void done()
	{
		if (lines_.take_over(over_))
			for (const auto &o : over_)
				coop_chan_tx_done(chan_, o.channel, o.id, o.good ? 0 : -EIO, now());
	}

	const ud::identity own_;
	std::unique_ptr<coop::ud::endpoint> endpoint_;
	coop::fetch_host::slab slab_;
	ud::channels lines_;
	ud::resolver resolver_;
	std::unique_ptr<void, void (*)(void *)> memory_{nullptr, std::free};
	coop_chan *chan_ = nullptr;
	s64 peer_ = 0;
	std::vector<std::vector<std::uint8_t>> texts_;
	std::vector<ud::channels::over> over_;
	unsigned taken_ = 0;
	bool deaf_ = false, short_ = false;
};

} // namespace ud_test
