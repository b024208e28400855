// SPDX-License-Identifier: MIT
// fuzz_fabric_greeting.cpp - how machines of shm greet each other, with an enemy at the port.
//
// Two ports of shm are real, with sockets of this host and the libfabric of fake_shm.cpp. The
// enemy connects to one of them as often as it likes and sends whatever fits into a packet,
// with any descriptors, or hangs up, or listens itself and answers so; in between, the honest
// two connect and part.
//
// In all cases: a linked peer has greeted and has an end point to send to; the names in the
// tables are balanced; no descriptor of a refused stranger stays open, and none at all at the
// end; and when the enemy is gone, one honest port lets the other in.
#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <list>
#include <optional>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/fuzz/check.hpp"
#include "tests/fuzz/script.hpp"
#include "userland/net/fabric/datagram_port.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::fabric;
using namespace std::chrono_literals;

constexpr u32 max_steps = 200;
constexpr std::size_t most_links = 8, most_sockets = 80;
// A port admits no more strangers than it keeps; each of them is one file.
constexpr std::ptrdiff_t most_files = 2 * (16 + 64 + 2 * most_links);

address address_of(unsigned n)
{
	const auto pid = static_cast<unsigned>(::getpid());
	address a;
	FUZZ_CHECK(parse("127." + std::to_string(1 + pid / 254 % 250) + '.' +
				 std::to_string(1 + pid % 254) +
				 ".1@tcp:12345:31:" + std::to_string(n),
			 a) == 0);
	return a;
}

std::ptrdiff_t open_files()
{
	const std::filesystem::directory_iterator files("/proc/self/fd");
	return std::distance(begin(files), end(files));
}

// A party with a port; it admits every peer that calls.
class keeper final : port::events
{
public:
	bool mute_ = false;

	keeper(unsigned n, const provider &p, time_point &clock) :
		own_(address_of(n)),
		clock_(clock),
		port_(p)
	{
		FUZZ_CHECK(port_.prepare(own_, *this) == 0);
		FUZZ_CHECK(port_.start(own_) == 0);
	}
	~keeper()
	{
		for (const auto &l : links_)
			port_.close(*l);
	}

	void connect(unsigned to)
	{
		if (links_.size() >= most_links)
			return;
		fabric::link &l = make(address_of(to));
		if (port_.connect(l))
			unlinked(l, -ECONNREFUSED);
		bury();
	}
	void poll()
	{
		port_.poll();
		bury();
	}
	void expire()
	{
		port_.expire(clock_);
		bury();
	}
	void arm() { (void)port_.arm(); }
	void part(u8 which)
	{
		if (!links_.empty())
			kill(**std::next(links_.begin(), which % links_.size()));
		bury();
	}
	void ring(u8 which)
	{
		if (links_.empty())
			return;
		fabric::link &l = **std::next(links_.begin(), which % links_.size());
		if (l.ready())
			port_.sent(l);
		else
			port_.catch_up(l);
		bury();
	}
	bool linked_to(unsigned n) const
	{
		return std::any_of(links_.begin(), links_.end(), [n](const auto &l) {
			return l->ready() && l->address == address_of(n);
		});
	}
	std::size_t links() const { return links_.size(); }

private:
	bool mute() const override { return mute_; }
	bool polled() const override { return false; }
	time_point now() override { return clock_; }
	fabric::link *admit(const hello &h) override
	{
		if (h.to != digest(own_) || links_.size() >= most_links)
			return nullptr;
		return &make(h.from);
	}
	hello greeting(const fabric::link &l) const override
	{
		hello h;
		h.from = own_;
		h.to = digest(l.address);
		h.link = 1;
		h.cookie = 7;
		h.window = 64;
		h.eager = 4096;
		return h;
	}
	bool accept(fabric::link &l, const hello &h) override
	{
		FUZZ_CHECK(is_valid(h.from));
		return h.from == l.address && h.to == digest(own_);
	}
	void linked(fabric::link &l) override
	{
		FUZZ_CHECK(l.state == fabric::link::state::connecting);
		FUZZ_CHECK(l.ep && l.dest != FI_ADDR_UNSPEC && l.side);
		l.state = fabric::link::state::ready;
	}
	void unlinked(fabric::link &l, int status) override
	{
		FUZZ_CHECK(status < 0 && l.state != fabric::link::state::dying);
		kill(l);
	}

	fabric::link &make(const address &a)
	{
		links_.push_back(std::make_unique<fabric::link>());
		links_.back()->address = a;
		return *links_.back();
	}
	void kill(fabric::link &l) { l.state = fabric::link::state::dying; }
	void bury()
	{
		links_.remove_if([this](const auto &l) {
			if (l->state != fabric::link::state::dying)
				return false;
			port_.close(*l);
			return true;
		});
	}

	const address own_;
	time_point &clock_;
	std::list<std::unique_ptr<fabric::link>> links_;
	datagram_port port_;
};

class play
{
public:
	explicit play(u8 shape) : ordinary_(shape & 1)
	{
		for (unsigned n = 0; n < 2; n++)
			honest_[n] = std::make_unique<keeper>(n, provider_, clock_);
		FUZZ_CHECK(listen_here(provider_.name(), address_of(2), listener_) == 0);
	}

	void step(script &in)
	{
		const u8 op = in.byte();
		keeper &k = *honest_[op >> 7];
		switch (op & 15) {
		case 0:
			knock(op >> 7);
			break;
		case 1:
		case 2:
		case 3:
		case 4:
			if (sockets_.empty())
				knock(op >> 7);
			greet(in);
			break;
		case 5: { // any text
			std::string text(in.half() % 700, 'x');
			for (std::size_t i = 0; i < text.size() && i < 80; i++)
				text[i] = static_cast<char>(in.byte());
			say(text, in);
			break;
		}
		case 6:
			if (const auto s = one(in))
				sockets_.erase(*s);
			break;
		case 7:
			k.connect(2);
			break;
		case 8:
			hear();
			break;
		case 9:
			k.connect(1 - (op >> 7));
			break;
		case 10:
			k.part(in.byte());
			break;
		case 11:
			k.ring(in.byte());
			break;
		case 12:
			clock_ += std::chrono::milliseconds(in.half() % 6000);
			k.expire();
			break;
		case 13:
			k.mute_ = op & 64;
			break;
		case 14:
			k.arm();
			break;
		default:
			for (const auto &h : honest_)
				h->poll();
			return;
		}
		k.poll();
		for (const auto &h : honest_)
			FUZZ_CHECK(h->links() <= most_links);
	}
	void end()
	{
		FUZZ_CHECK(open_files() <= before_ + most_files + std::ssize(sockets_));
		sockets_.clear();
		listener_ = descriptor();
		for (const auto &h : honest_)
			h->mute_ = false;
		// The enemy has gone; honest callers of it give up.
		pass(200, [] { return false; });
		for (const auto &h : honest_)
			while (h->links())
				h->part(0);
		pass(20, [] { return false; });
		honest_[1]->connect(0);
		FUZZ_CHECK(pass(
			200, [&] { return honest_[0]->linked_to(1) && honest_[1]->linked_to(0); }));
		for (auto &h : honest_)
			h.reset();
		FUZZ_CHECK(open_files() == before_);
	}

private:
	using socket = std::list<descriptor>::iterator;

	template <class condition> bool pass(u32 turns, condition c)
	{
		for (; turns && !c(); turns--) {
			clock_ += 50ms;
			for (const auto &h : honest_) {
				h->expire();
				h->poll();
			}
		}
		return turns;
	}
	std::optional<socket> one(script &in)
	{
		const u8 which = in.byte();
		if (sockets_.empty())
			return {};
		return std::prev(sockets_.end(), 1 + which % std::ssize(sockets_));
	}
	void knock(unsigned n)
	{
		descriptor s;
		if (sockets_.size() < most_sockets &&
		    connect_there(provider_.name(), address_of(n), s) == 0)
			sockets_.push_back(std::move(s));
	}
	/// Reads the enemy's calls, and the names of the honest end points.
	void hear()
	{
		descriptor s(
			::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
		if (s && sockets_.size() < most_sockets)
			sockets_.push_back(std::move(s));
		for (const descriptor &d : sockets_) {
			std::string text;
			descriptor bell, page;
			if (receive_packet(d.get(), text, bell, page) > int(hello::size))
				heard_ = text.substr(hello::size);
		}
	}
	void greet(script &in)
	{
		const u8 how = in.byte();
		hello h;
		h.from = address_of(how & 1 ? in.byte() % 4 : 2);
		h.to = how & 2 ? in.quad() : digest(address_of(how >> 2 & 1));
		h.link = in.byte();
		h.cookie = in.byte();
		h.window = how & 8 ? in.half() : 64;
		h.eager = how & 16 ? in.word() : 4096;
		const auto bytes = encode(h);
		std::string text(reinterpret_cast<const char *>(bytes.data()), bytes.size());
		const u8 name = in.byte();
		switch (name & 7) {
		case 0:
			break;
		case 1:
			text += std::string(in.byte(), 'n');
			break;
		case 2:
			text += std::string("fi_shm://coop\0net", 17);
			break;
		case 3: // as if from this process
			text += "fi_shm://coop-net-" + std::to_string(::getpid());
			break;
		case 4:
			text += heard_;
			break;
		default:
			text += "fi_shm://coop-net-nobody-" + std::to_string(name >> 3 & 3);
		}
		if (how & 32)
			for (u32 times = 1 + (how >> 6); times; times--) {
				const u32 at = in.half();
				text[at % text.size()] ^= static_cast<char>(in.byte());
			}
		if (name & 128)
			text.resize(in.byte());
		say(text, in);
	}
	/// A descriptor of a chosen kind.
	descriptor thing(u8 kind)
	{
		switch (kind & 7) {
		case 0:
			return descriptor(::eventfd(0, EFD_CLOEXEC));
		case 1:
		case 2:
			return memory(4096, F_SEAL_SHRINK);
		case 3:
			return memory(4096, 0);
		case 4:
			return memory(kind >> 3, F_SEAL_SHRINK);
		case 5:
			return descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC));
		case 6:
			return descriptor(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
		default:
			return descriptor(::epoll_create1(EPOLL_CLOEXEC));
		}
	}
	static descriptor memory(off_t size, int seals)
	{
		descriptor d(::memfd_create("enemy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
		FUZZ_CHECK(::ftruncate(d.get(), size) == 0);
		const u32 asleep = 1;
		if (size > 4)
			FUZZ_CHECK(::pwrite(d.get(), &asleep, sizeof(asleep), 0) == sizeof(asleep));
		FUZZ_CHECK(::fcntl(d.get(), F_ADD_SEALS, seals) == 0);
		return d;
	}
	void say(const std::string &text, script &in)
	{
		const auto s = one(in);
		if (!s)
			return;
		const u8 how = in.byte();
		std::vector<descriptor> things;
		if (how & 128 && !ordinary_) {
			for (u32 n = how & 7; n; n--)
				things.push_back(thing(in.byte()));
		} else {
			things.push_back(thing(0));
			things.push_back(thing(1));
		}
		int fds[8];
		for (std::size_t i = 0; i < things.size(); i++)
			fds[i] = things[i].get();
		const std::size_t size = things.size() * sizeof(int);
		iovec piece{const_cast<char *>(text.data()), text.size()};
		alignas(cmsghdr) char space[CMSG_SPACE(sizeof(fds))] = {};
		msghdr m{};
		m.msg_iov = &piece;
		m.msg_iovlen = 1;
		if (size) {
			m.msg_control = space;
			m.msg_controllen = CMSG_SPACE(size);
			cmsghdr *const c = CMSG_FIRSTHDR(&m);
			c->cmsg_level = SOL_SOCKET;
			c->cmsg_type = SCM_RIGHTS;
			c->cmsg_len = CMSG_LEN(size);
			std::memcpy(CMSG_DATA(c), fds, size);
		}
		(void)::sendmsg((*s)->get(), &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	}

	const bool ordinary_; // the enemy's descriptors are correct
	const std::ptrdiff_t before_ = open_files();
	time_point clock_{1s};
	const provider provider_{"fake"};
	std::unique_ptr<keeper> honest_[2];
	descriptor listener_;
	std::list<descriptor> sockets_;
	std::string heard_;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8 *data, std::size_t size)
{
	script in(data, size);
	play p(in.byte());
	for (u32 n = 0; in.more() && n < max_steps; n++)
		p.step(in);
	p.end();
	return 0;
}
