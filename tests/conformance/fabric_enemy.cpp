// SPDX-License-Identifier: MIT
// fabric_enemy.cpp - see fabric_enemy.hpp.
#include "fabric_enemy.hpp"

#include <cstring>
#include <system_error>

#include "userland/net/fabric/connected_port.hpp"
#include "userland/net/fabric/datagram_port.hpp"

namespace conformance
{

using namespace net;
using namespace net::fabric;
using namespace std::chrono_literals;

fabric_enemy::fabric_enemy(const std::string &name, const net::address &own, bool polled) :
	provider_(name),
	own_(own),
	polled_(polled)
{
	if (provider_.connected())
		port_ = std::make_unique<connected_port>(provider_);
	else
		port_ = std::make_unique<datagram_port>(provider_);
	int r = port_->prepare(own, *this);
	if (!r)
		r = port_->start(own);
	if (r)
		throw std::system_error(-r, std::generic_category(), "enemy");
	hello_ = greeting_of(own);
	for (int i = 0; i < 16; i++) {
		bounce &b = receives_.emplace_back(role::receive);
		b.own.reset(new std::byte[text_most]);
		b.data = b.own.get();
		b.length = text_most;
		post(b);
	}
}

fabric_enemy::~fabric_enemy()
{
	if (link_)
		port_->close(*link_);
	port_.reset();
}

hello fabric_enemy::greeting_of(const net::address &to) const
{
	hello h;
	h.from = own_;
	h.to = digest(to);
	h.link = 1;
	h.cookie = 0x31337;
	h.window = 64;
	h.eager = 4096;
	return h;
}

void fabric_enemy::post(bounce &b)
{
	(void)fi_recv(&port_->receiver(), b.data, b.length, nullptr, FI_ADDR_UNSPEC,
		      static_cast<posted *>(&b));
}

bool fabric_enemy::connect(const net::address &to, const hello &h)
{
	hello_ = h;
	link_ = std::make_unique<net::fabric::link>();
	link_->address = to;
	port_->connect(*link_);
	for (const auto end = net::clock::now() + 30s;
	     link_->state == net::fabric::link::state::connecting && net::clock::now() < end;)
		look();
	return linked();
}

net::fabric::link *fabric_enemy::admit(const hello &h)
{
	if (link_)
		return nullptr;
	link_ = std::make_unique<net::fabric::link>();
	link_->address = h.from;
	hello_ = greeting_of(h.from);
	return accept(*link_, h) ? link_.get() : nullptr;
}

bool fabric_enemy::accept(net::fabric::link &l, const hello &h)
{
	l.base = word::base(h.link, provider_.wide() ? h.cookie : 0);
	return true;
}

void fabric_enemy::post_unread()
{
	if (!reads)
		return;
	for (bounce *b : unread_)
		post(*b);
	unread_.clear();
}

void fabric_enemy::look()
{
	(void)port_->poll();
	port_->expire(now());
	post_unread();
	fi_cq_data_entry e[8];
	for (ssize_t n = 1; n > 0;) {
		n = fi_cq_read(&port_->queue(), e, 8);
		fi_cq_err_entry error{};
		if (n == -FI_EAVAIL)
			n = fi_cq_readerr(&port_->queue(), &error, 0) < 0 ? 0 : 1;
		else
			for (ssize_t i = 0; i < n; i++) {
				auto *p = static_cast<posted *>(e[i].op_context);
				if (!p || p->role != role::receive)
					continue;
				bounce &b = static_cast<bounce &>(*p);
				control c;
				if (word::kind(e[i].data) == unsigned(kind::control) &&
				    decode({b.data, e[i].len}, c))
					heard.push_back(c);
				unread_.push_back(&b);
			}
		post_unread();
	}
}

bool fabric_enemy::say(std::uint64_t w, std::span<const std::byte> text)
{
	if (!linked())
		return false;
	ssize_t r;
	if (text.size() <= provider_.inject_size()) {
		r = fi_injectdata(link_->ep, text.data(), text.size(), w, link_->dest);
	} else {
		// It stays in place until the end.
		bounce &b = sends_.emplace_back(role::copy);
		b.own.reset(new std::byte[text.size()]);
		std::memcpy(b.own.get(), text.data(), text.size());
		r = fi_senddata(link_->ep, b.own.get(), text.size(), nullptr, w, link_->dest,
				static_cast<posted *>(&b));
	}
	return r == 0;
}

bool fabric_enemy::say(control c)
{
	std::byte text[control::size_most];
	return say(word::with(link_->base, kind::control, 0), {text, encode(c, text)});
}

void fabric_enemy::write(region to, std::size_t length, std::uint64_t w)
{
	if (!linked())
		return;
	bounce &b = sends_.emplace_back(role::copy);
	b.own.reset(new std::byte[length]());
	if (w)
		(void)fi_writedata(link_->ep, b.own.get(), length, nullptr, w, link_->dest,
				   to.address, to.key, static_cast<posted *>(&b));
	else
		(void)fi_write(link_->ep, b.own.get(), length, nullptr, link_->dest, to.address,
			       to.key, static_cast<posted *>(&b));
}

} // namespace conformance
