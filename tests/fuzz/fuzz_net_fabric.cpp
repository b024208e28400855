// SPDX-License-Identifier: MIT
// fuzz_net_fabric.cpp - two machines of the fabric transport, and an enemy among their peers.
//
// The machines are real, from the choice of a provider on; libfabric is fake_fabric.hpp's,
// their core is net_play.hpp's, time is the script's. The enemy connects and accepts
// connections, sends anything in the handshake, and then whatever a peer can: any word with any
// text, every control message with any field, messages beyond its window, writes with keys that
// it has, that it had, and that it invented; it hangs up at any time, or stays silent. It
// learns what a peer learns: the numbers in messages to it. In some plays it has the address of
// an honest machine, or changes what the honest send. 32-bit words have no cookie: there it may
// also name the link or the landing of another peer, which the transport leaves to the fabric
// (wire.hpp).
//
// In all cases: what net_play.hpp says.
#include <algorithm>
#include <arpa/inet.h>
#include <set>

#include "tests/fuzz/fake_fabric.hpp"
#include "tests/fuzz/net_play.hpp"
#include "userland/net/fabric/machine.hpp"
#include "userland/net/fabric/ports.hpp"

namespace
{

using namespace fuzz_net;

constexpr u32 max_steps = 300;

sockaddr_in place_of(unsigned n, u16 port)
{
	sockaddr_in a{};
	a.sin_family = AF_INET;
	a.sin_port = htons(port);
	::inet_pton(AF_INET, ip_of(n).c_str(), &a.sin_addr);
	return a;
}

class play final : public net_play
{
public:
	explicit play(u8 shape) : forges_(shape & 1), observes_(shape & 2), knows_(shape & 4)
	{
		the_fabric = &wire_;
		wire_.ordered = !(shape & 8);
		wire_.wide = !(shape & 16);
		wire_.reads = shape & 128;
		wire_.enemy_ip = ntohl(place_of(2, 0).sin_addr.s_addr);
		wire_.to_enemy = [this](connection &c, unsigned, const passage &p) { learn(c, p); };
		provider_ = std::make_unique<fabric::provider>("fake");
		options_.eager = shape & 32 ? 4096 : 256;
		options_.receives = 8;
		options_.window = 4;
		options_.max_message = most_message;
		options_.hold = std::chrono::milliseconds(2000);
		options_.max_links = 6;
		options_.idle = std::chrono::milliseconds(shape & 64 ? 600000 : 300);
		begin([this](spi::sink &s) {
			return std::make_unique<fabric::machine>(s, *provider_, options_, keys_);
		});
	}
	~play() override
	{
		for (auto &c : core_)
			c->close();
	}

	void step(script &in);

private:
	/// What the enemy has received on a connection.
	struct heard {
		fabric::hello hello;
		bool greeted = false;
		std::vector<u32> ids;
		std::vector<fabric::region> regions;
	};

	bool genuine() const override { return !forges_ && !observes_ && !poses_; }
	bool undisturbed() const override { return genuine(); }
	bool enemy_knows() const override { return knows_; }

	void run_all()
	{
		for (unsigned n = 0; n < 2; n++)
			run(n);
	}
	void calm() override
	{
		run_all();
		bool moved = false;
		for (std::size_t i = 0; i < wire_.connections.size(); i++)
			for (const unsigned side : {0u, 1u})
				moved |= wire_.move(*wire_.connections[i], side);
		if (!moved)
			pass_on();
		run_all();
		forget();
	}
	void forget_network() override
	{
		wire_.refuse = 0;
		// Frees the link numbers that the enemy holds.
		for (const auto &c : wire_.connections)
			for (const unsigned side : {0u, 1u})
				if (enemys(*c, side))
					wire_.hang_up(*c, side);
		run_all();
	}
	void forget()
	{
		wire_.forget_dead();
		const auto gone = [this](const connection *one) {
			for (const auto &c : wire_.connections)
				if (c.get() == one)
					return false;
			return true;
		};
		std::erase_if(heard_, [&](const auto &h) { return gone(h.first); });
		std::erase_if(his_, gone);
	}

	// ---- the enemy ------------------------------------------------------------------

	/// True if this end belongs to the enemy.
	bool enemys(const connection &c, unsigned side) const
	{
		const sockaddr_in &a = side ? c.to : c.from;
		return !c.ends[side].ep &&
		       (ntohl(a.sin_addr.s_addr) == wire_.enemy_ip || his_.count(&c));
	}
	/// One of the enemy's open ends.
	connection *one(script &in, unsigned &side)
	{
		std::vector<std::pair<connection *, unsigned>> all;
		for (const auto &c : wire_.connections)
			for (const unsigned s : {0u, 1u})
				if (c->ends[s].open && enemys(*c, s))
					all.emplace_back(c.get(), s);
		if (all.empty())
			return nullptr;
		const auto &it = all[in.byte() % all.size()];
		side = it.second;
		return it.first;
	}
	heard &of(connection &c, unsigned side)
	{
		heard &h = heard_[&c];
		const auto &text = side ? c.asked : c.answered;
		if (!h.greeted && !text.empty())
			h.greeted = fabric::decode(std::as_bytes(std::span(text)), h.hello);
		return h;
	}
	void learn(connection &c, const passage &p)
	{
		// Data for one peer must not reach the enemy, unless the enemy poses as that
		// peer.
		if (!forges_)
			FUZZ_CHECK(!tells_a_secret(p.bytes.data(), p.bytes.size()));
		heard &h = heard_[&c];
		fabric::control said;
		if (fabric::word::kind(p.word) != unsigned(fabric::kind::control) ||
		    !fabric::decode(std::as_bytes(std::span(p.bytes)), said))
			return;
		if (said.id && h.ids.size() < 64)
			h.ids.push_back(said.id);
		for (std::size_t i = 0; i < said.count && h.regions.size() < 64; i++)
			h.regions.push_back(said.regions[i]);
	}
	fabric::hello greeting(unsigned n, script &in)
	{
		fabric::hello h;
		const u8 how = in.byte();
		h.from = address_of(forges_ && how & 1 ? 1 - n : 2 + (how >> 1 & 1));
		h.to = how & 4 ? in.quad() : fabric::digest(address_of(n));
		h.link = how & 8 ? in.word() : in.byte();
		h.cookie = in.byte();
		h.window = how & 16 ? in.half() : 4;
		h.eager = how & 32 ? in.word() : 4096;
		return h;
	}
	std::vector<u8> text_of(const fabric::hello &h, script &in)
	{
		const auto b = fabric::encode(h);
		std::vector<u8> t(b.size());
		std::memcpy(t.data(), b.data(), b.size());
		const u8 how = in.byte();
		if (how & 128)
			spoil(t, t.size(), 1 + (how & 3), in);
		if (how & 64)
			t.resize(in.byte());
		return t;
	}
	void connect(unsigned n, script &in)
	{
		const fabric::hello h = greeting(n, in);
		const unsigned as = forges_ && h.from == address_of(1 - n) ? 1 - n : 2;
		const auto ports = fabric::ports_of(address_of(n));
		const auto c = wire_.connect(place_of(as, 999), place_of(n, ports.ports[0]),
					     text_of(h, in), nullptr);
		if (c)
			his_.insert(c.get());
	}
	void answer(script &in)
	{
		for (const auto &c : wire_.connections) {
			if (!c->pending || !enemys(*c, 1))
				continue;
			fabric::hello asked;
			const u8 how = in.byte();
			if (!fabric::decode(std::as_bytes(std::span(c->asked)), asked) ||
			    how == 0) {
				wire_.turn_down(*c);
				return;
			}
			fabric::hello h = greeting(asked.from == address_of(0) ? 0 : 1, in);
			if (how & 1)
				h.from = address_of(2);
			wire_.take_up(*c, text_of(h, in));
			return;
		}
	}
	u64 word(const heard &h, fabric::kind k, script &in)
	{
		const u8 how = in.byte();
		if (how == 255)
			return in.quad();
		const u32 link = how & 64 ? in.byte() : h.hello.link;
		const u32 cookie = how & 128 ? in.word() : wire_.wide ? h.hello.cookie : 0;
		return fabric::word::with(fabric::word::base(link, cookie), k, how & 7);
	}
	u32 number(const heard &h, script &in)
	{
		const u8 how = in.byte();
		if (how == 255 || h.ids.empty())
			return how == 255 ? in.word() : how;
		return h.ids[how % h.ids.size()];
	}
	/// True if this word, on a link of the enemy, is one that another peer may send.
	static bool is_anothers(u64 w, const heard &h)
	{
		if (fabric::word::kind(w) == unsigned(fabric::kind::landed))
			return std::find(h.ids.begin(), h.ids.end(), fabric::word::id(w)) ==
			       h.ids.end();
		return !h.greeted || fabric::word::link(w) != h.hello.link;
	}
	void post(connection &c, unsigned side, passage p)
	{
		poses_ |= !wire_.wide && p.has_word && is_anothers(p.word, of(c, side));
		if (c.ends[side].out.size() < 64)
			c.ends[side].out.push_back(std::move(p));
	}
	void control(script &in)
	{
		unsigned side;
		connection *c = one(in, side);
		if (!c)
			return;
		const heard &h = of(*c, side);
		const u8 how = in.byte();
		const unsigned n = h.hello.from == address_of(0) ? 0 : 1;
		fabric::control m;
		m.verb = static_cast<enum fabric::control::verb>(in.byte() %
								 (fabric::control::verbs + 1));
		m.id = how & 1 ? number(h, in) : in.byte();
		m.peer = how & 2 ? number(h, in) : in.byte();
		m.status = how & 4 ? -static_cast<int>(in.half()) : 0;
		m.length = how & 8 ? in.quad() : in.half();
		m.token = token(n, in);
		m.key = key_of(n, m.token, in);
		m.count = how & 16 ? in.byte() % 129 : in.byte() % 3;
		for (std::size_t i = 0; i < m.count; i++) {
			const u8 what = in.byte();
			m.regions[i] = {what & 1 ? in.quad() : 0, what & 2 ? in.quad() : in.half(),
					what};
		}
		std::vector<std::byte> text(fabric::control::size_most);
		text.resize(fabric::encode(m, text.data()));
		passage p;
		p.has_word = true;
		p.word = word(h, fabric::kind::control, in);
		p.bytes.resize(text.size());
		std::memcpy(p.bytes.data(), text.data(), text.size());
		if (how & 128)
			spoil(p.bytes, p.bytes.size(), 1 + (how >> 5 & 3), in);
		post(*c, side, std::move(p));
	}
	void message(script &in)
	{
		unsigned side;
		connection *c = one(in, side);
		if (!c)
			return;
		const u8 how = in.byte();
		passage p;
		p.has_word = !(how & 1);
		p.word = how & 2 ? in.quad() : word(of(*c, side), fabric::kind::message, in);
		p.bytes.assign(in.half() % 5000, 0x33);
		for (unsigned times = 1 + (how >> 4); times; times--)
			post(*c, side, p);
	}
	void write(script &in)
	{
		unsigned side;
		connection *c = one(in, side);
		if (!c)
			return;
		const heard &h = of(*c, side);
		const u8 how = in.byte();
		passage p;
		p.write = true;
		if (how & 1 || h.regions.empty()) {
			p.key = in.quad();
			p.address = in.half();
		} else {
			const fabric::region &r = h.regions[in.byte() % h.regions.size()];
			p.key = r.key;
			p.address = r.address + (how & 2 ? in.half() : 0);
		}
		p.bytes.assign(in.half(), 0x44);
		p.has_word = how & 4;
		p.word = how & 8 ? in.quad()
				 : fabric::word::landed(word(h, fabric::kind::landed, in),
							number(h, in));
		post(*c, side, std::move(p));
	}
	void meddle(script &in)
	{
		const u8 how = in.byte();
		if (!observes_ || wire_.connections.empty())
			return;
		connection &c = *wire_.connections[how % wire_.connections.size()];
		auto &out = c.ends[how >> 7].out;
		if (out.empty())
			return;
		passage &p = out[in.byte() % out.size()];
		const u8 what = in.byte();
		if (what & 1)
			p.word ^= u64{1} << (in.byte() & 63);
		if (what & 2 && !p.bytes.empty())
			spoil(p.bytes, p.bytes.size(), 1 + (what >> 4 & 3), in);
		if (what & 4)
			p.key ^= in.byte();
		if (what & 8)
			out.push_back(p.pieces.empty() ? p : passage{});
	}

	const bool forges_, observes_, knows_;
	bool poses_ = false; ///< stays true: an accepted word may have effect later
	fake_network wire_;
	fabric::options options_;
	std::unique_ptr<fabric::provider> provider_;
	fabric::local_keys keys_;
	std::set<const connection *> his_;
	std::map<const connection *, heard> heard_;
};

void play::step(script &in)
{
	const u8 op = in.byte();
	const unsigned n = op >> 7;
	if (act(n, op & 31, op >> 5 & 3, in)) {
		run_all();
		return;
	}
	switch (op & 31) {
	case 10:
		if (!wire_.connections.empty()) {
			const u8 which = in.byte();
			(void)wire_.move(*wire_.connections[which % wire_.connections.size()],
					 which >> 7);
		}
		break;
	case 11:
		if (!wire_.connections.empty()) {
			const u8 which = in.byte();
			wire_.break_off(*wire_.connections[which % wire_.connections.size()]);
		}
		break;
	case 12:
		pass(std::chrono::microseconds(u64{in.byte()} << (in.byte() & 15)));
		break;
	case 13:
		meddle(in);
		break;
	case 14:
	case 15:
		connect(n, in);
		break;
	case 16:
		answer(in);
		break;
	case 17:
	case 18:
	case 19:
	case 20:
		control(in);
		break;
	case 21:
		message(in);
		break;
	case 22:
	case 23:
		write(in);
		break;
	case 24:
		wire_.refuse = in.byte() % 8;
		break;
	default:
		for (unsigned k = 1 + (op >> 5 & 3); k; k--)
			calm();
		return;
	}
	run_all();
	forget();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8 *data, std::size_t size)
{
	perform<play>(data, size, max_steps);
	return 0;
}
