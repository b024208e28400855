// SPDX-License-Identifier: MIT
// fuzz_net_ud.cpp - two machines of the ud transport, and an enemy on their fabric.
//
// The machines are real: resolver, channels, rpc/chan, rpc/fetch, bulk. Their end points are
// fake_ud.hpp's, their core is net_play.hpp's, time is the script's. The enemy has the fabric
// key (all zero), its own session, tokens of operations if the play says so, and sends
// anything: messages of rpc/chan with any tag, bulk messages, requests for memory, answers to
// requests, data for any queue pair, questions and answers about addresses; under its own
// address, and in some plays under the others'. In some plays it also changes what they send
// each other.
//
// In all cases: no memory is written or read outside of an operation; data for one peer goes to
// no other; unless the enemy uses the others' addresses, they deliver what they sent; memory is
// bounded; every operation ends; afterwards an honest exchange works, and both machines stop.
#include "rpc/base/mac.h"
#include "rpc/fetch/wire.h"
#include "tests/fuzz/ud_liar.hpp"
#include "userland/net/ud/machine.hpp"

namespace
{

using namespace fuzz_net;

constexpr u32 max_steps = 300;

fake_network *network;
unsigned devices;

class play final : public net_play
{
public:
	explicit play(u8 shape) :
		forges_(shape & 1),
		observes_(shape & 2),
		knows_(shape & 4),
		liar_(wire_, clock_)
	{
		network = &wire_;
		devices = 0;
		wire_.tap = [this](const datagram &d) { seen(d); };
		options_.verbs = shape & 8;
		options_.mtu = shape & 16 ? 1024 : 4096;
		options_.seal = shape & 32;
		options_.page_crc = shape & 64;
		options_.max_message = most_message;
		options_.max_operations = 32;
		options_.peers = 6;
		options_.window = 64;
		options_.fetches = 2;
		options_.serves = 3;
		options_.patience_us = 2000000;
		options_.tries = 6;
		begin([this](spi::sink &s) {
			return std::make_unique<ud::machine>(options_, keys_, s);
		});
	}
	~play() override
	{
		for (auto &c : core_)
			c->close();
	}

	void step(script &in);

	static fake_endpoint *endpoint[2];

private:
	bool genuine() const override { return !forges_ && !observes_; }
	bool undisturbed() const override { return genuine(); }
	bool enemy_knows() const override { return knows_; }

	void run_all()
	{
		for (unsigned n = 0; n < 2; n++)
			run(n);
		liar_.pump();
	}
	void deliver(const datagram &d)
	{
		const gid to = [&] {
			gid g;
			std::copy(std::begin(d.to.gid), std::end(d.to.gid), g.begin());
			return g;
		}();
		for (unsigned n = 0; n < 2; n++)
			if (to == gid_of(ip_of(n)) && endpoint[n])
				endpoint[n]->arrive(d);
		if (to == liar_.here() && d.to.qpn - liar_qpn < 2)
			liar_.hear(d);
	}
	void calm() override
	{
		run_all();
		if (!wire_.under_way.empty()) {
			for (std::size_t n = std::min<std::size_t>(wire_.under_way.size(), 64); n;
			     n--) {
				const datagram d = wire_.under_way.front();
				wire_.under_way.pop_front();
				deliver(d);
			}
			run_all();
			return;
		}
		pass_on();
		run_all();
	}
	void forget_network() override { wire_.under_way.clear(); }
	void seen(const datagram &d)
	{
		const gid liars = liar_.here();
		if (std::equal(liars.begin(), liars.end(), std::begin(d.to.gid)))
			FUZZ_CHECK(!tells_a_secret(d.bytes.data(), d.bytes.size()));
	}

	// ---- the enemy --------------------------------------------------------------------

	coop_chan_peer_addr where(unsigned n)
	{
		coop_chan_peer_addr a{};
		const gid g = gid_of(ip_of(n));
		std::copy(g.begin(), g.end(), a.command.gid);
		a.command.qpn = endpoint[n]->qpn(0);
		a.command.qkey = endpoint[n]->qkey(0);
		a.data_qpn = endpoint[n]->qpn(1);
		a.data_qkey = endpoint[n]->qkey(1);
		return a;
	}
	ud::identity somebody(script &in)
	{
		const u8 how = in.byte();
		if (how > 250)
			return ud::identity::unpack(in.quad());
		return ud::identity::of(address_of(how % 4));
	}
	// To one of a machine's queue pairs.
	void strike(unsigned n, std::vector<u8> bytes, script &in, bool data)
	{
		const u8 how = in.byte();
		datagram d{};
		d.from = forges_ && how & 1 ? gid_of(ip_of(1 - n)) : liar_.here();
		d.src_qp = how & 2 ? in.half() : liar_qpn + (how >> 2 & 1);
		const u32 qp = data ? 2 + (how >> 3) % (endpoint[n]->n_qps() - 2) : how >> 3 & 1;
		d.to = where(n).command;
		d.to.qpn = endpoint[n]->qpn(qp);
		d.to.qkey = endpoint[n]->qkey(qp);
		d.has_imm = data || how & 64;
		d.imm = d.has_imm ? in.word() : 0;
		d.bytes = std::move(bytes);
		wire_.send(std::move(d));
	}
	void bulk_text(unsigned n, script &in);
	void control(unsigned n, script &in);
	void answer(unsigned n, script &in);
	void made_up(unsigned n, script &in);
	void ask(unsigned n, script &in);
	void meddle(script &in);

	const bool forges_, observes_, knows_;
	fake_network wire_;
	ud::options options_;
	ud::machine::memory_keys keys_; // outlives the machines
	liar liar_;
	std::unique_ptr<question_socket> voices_[3];
};

fake_endpoint *play::endpoint[2];

// PUT, DONE and near misses, over the enemy's own session.
void play::bulk_text(unsigned n, script &in)
{
	std::vector<u8> t(64);
	const u8 how = in.byte();
	const auto put = [&](std::size_t at, u64 v) {
		for (unsigned i = 0; i < 8; i++)
			t[at + i] = static_cast<u8>(v >> 8 * i);
	};
	t[0] = how & 3;
	t[1] = how >> 2 & 3;
	const spi::token meant = token(n, in);
	put(8, meant);
	put(16, key_of(n, meant, in));
	put(24, in.byte());
	put(32, in.byte());
	put(40, how & 16 ? in.quad() : in.half());
	if (how & 32)
		t.resize(in.byte());
	const ud::identity who = somebody(in);
	const auto kind = how & 64 ? ud::tag_kind::message : ud::tag_kind::bulk;
	u64 tag = ud::make_tag(kind, who);
	if (how & 128)
		tag ^= in.quad();
	liar_.send(where(n), tag, std::move(t), how);
}

void play::control(unsigned n, script &in)
{
	coop_msg m{};
	constexpr u8 commands[] = {1, 1, 1, 2, 3, 0x81, 0x82, 0x83, 0x84, 0x85};
	m.version = COOP_WIRE_VERSION;
	m.command = commands[in.byte() % std::size(commands)];
	m.hops = COOP_WIRE_HOPS;
	m.id = in.byte();
	m.imm = in.word();
	m.reason = in.byte() % 12;
	m.value = in.half();
	if (m.command == COOP_CMD_REQUEST) {
		auto &q = m.u.request;
		const u8 how = in.byte();
		q.fid = {token(n, in), somebody(in).packed()};
		q.version = key_of(n, q.fid.hi, in);
		q.size = how & 1 ? in.quad() : in.half();
		q.reply = liar_.self();
		q.data = q.reply;
		if (forges_ && how & 128) {
			q.reply = where(1 - n).command;
			q.data = q.reply;
			q.data.qpn += in.byte() % 8;
		}
		q.budget_us = how & 2 ? in.word() : 100000;
		q.mtu = static_cast<u16>(how & 4 ? in.half() : options_.mtu);
		q.page_shift = how & 8 ? in.byte() : 12;
		q.options = in.byte() & COOP_OPT_KNOWN;
		q.attempt = in.byte();
		q.n_ext = 1 + (how >> 4 & 3);
		u64 at = how & 64 ? in.quad() : in.byte();
		for (u32 i = 0; i < q.n_ext; i++) {
			q.ext[i] = {at, 1u + in.byte() % 24, 0};
			at += q.ext[i].count + in.byte() % 5;
		}
		m.n_segs = in.half() % COOP_MAX_SEGS;
		for (u64 &w : q.want)
			w = how & 32 ? in.quad() : ~0ull;
	} else if (m.command == COOP_CMD_COMMIT) {
		auto &c = m.u.commit;
		c.pages = in.quad();
		c.size = in.half();
		c.source = liar_.self();
	}
	std::vector<u8> b(COOP_CTRL_MAX);
	b.resize(coop_wire_encode(&m, key, b.data(), COOP_CTRL_MAX));
	if (!b.empty())
		strike(n, std::move(b), in, false);
}

// Answers a machine's request to the enemy: data of any kind, and a COMMIT that may be false.
void play::answer(unsigned n, script &in)
{
	const coop_msg *r = liar_.request();
	if (!r)
		return;
	const auto &q = r->u.request;
	const u8 how = in.byte();
	const u32 segs = how & 63;
	for (u32 i = 0; i < segs; i++) {
		datagram d{};
		d.from = liar_.here();
		d.src_qp = how & 64 ? liar_qpn : 0x778;
		d.to = q.data;
		d.has_imm = true;
		d.imm = how & 128 ? r->imm ^ in.half() : r->imm + i;
		d.bytes.resize(how & 64 ? in.half() % 5000 : options_.mtu);
		wire_.send(std::move(d));
	}
	coop_msg m{};
	m.version = COOP_WIRE_VERSION;
	const u8 kind = in.byte();
	constexpr u8 commands[] = {0x81, 0x81, 0x81, 0x81, 0x82, 0x83, 0x84, 0x85};
	m.command = commands[kind & 7];
	m.hops = COOP_WIRE_HOPS;
	m.id = r->id ^ (kind & 8 ? in.byte() : 0);
	m.imm = r->imm;
	m.reason = kind >> 4 & 7;
	m.value = in.half();
	auto &c = m.u.commit;
	c.fid = q.fid;
	c.version = q.version;
	c.size = q.size;
	c.pages = kind & 16 ? in.quad() : ~0ull;
	c.source = liar_.self();
	c.source.qpn = how & 64 ? liar_qpn : 0x778;
	c.n_sums = kind & 32 ? coop_extents_pages(q.ext, q.n_ext) : 0;
	std::vector<u8> b(COOP_CTRL_MAX);
	b.resize(coop_wire_encode(&m, key, b.data(), COOP_CTRL_MAX));
	if (!b.empty())
		strike(n, std::move(b), in, false);
}

void play::made_up(unsigned n, script &in)
{
	coop_chan_packet p{};
	constexpr u8 types[] = {1, 2, 3, 4, 0x81, 0x82, 0x83, 0x84, 0x85};
	const u8 how = in.byte();
	p.version = COOP_CHAN_VERSION;
	p.type = types[in.byte() % std::size(types)];
	p.flags = how & COOP_CHAN_W_KNOWN & ~COOP_CHAN_W_SEALED;
	p.src_session = in.byte();
	p.dst_session = how & 16 ? in.byte() : 0;
	p.dst_id = in.byte();
	p.seq = in.byte();
	p.ack = in.byte();
	p.hello.id = in.byte();
	p.hello.first_seq = p.seq - (how >> 5 & 1);
	p.hello.command_qpn = liar_qpn;
	p.hello.command_qkey = how & 64 ? in.word() : liar_qkey;
	p.hello.data_qpn = liar_qpn + 1;
	p.hello.data_qkey = how & 128 ? in.word() : liar_qkey;
	p.hello.mtu[0] = how & 128 ? in.half() : 768;
	p.hello.mtu[1] = static_cast<u16>(how & 64 ? in.half() : options_.mtu);
	p.hello.window = how & 32 ? in.half() : 64;
	p.tag = ud::make_tag(in.byte() & 1 ? ud::tag_kind::message : ud::tag_kind::bulk,
			     somebody(in));
	p.first = p.seq - in.byte() % 3;
	p.unit = in.half();
	p.offset = (p.seq - p.first) * p.unit;
	p.length = in.half();
	p.reason = in.byte() % 5;
	p.n_map = p.type == COOP_CHAN_T_ACK ? in.byte() % 8 : 0;
	p.payload_len = p.type <= 2 || p.type == 4 ? in.half() % 600 : 0;
	p.size = static_cast<u16>(p.payload_len);
	std::vector<u8> b(1024);
	b.resize(coop_chan_encode(&p, key, b.data()));
	b.resize(b.size() + p.payload_len, 0x77);
	strike(n, std::move(b), in, false);
}

// Questions and answers about addresses.
void play::ask(unsigned n, script &in)
{
	const u8 how = in.byte();
	const unsigned v = how & 3 ? how % 3 : 2;
	const unsigned voice = forges_ ? v : 2;
	if (!voices_[voice])
		voices_[voice] =
			voice == 2
				? std::make_unique<question_socket>(2, question_socket::port_of(2))
				: std::make_unique<question_socket>(voice);
	std::vector<u8> p;
	if (how & 4) {
		// A nearly correct answer to the question.
		if (!voices_[2] || !voices_[2]->take(p) || p.size() != 72)
			return;
		p[5] = 2 + (how >> 3 & 1);
		const coop_addr self = liar_.self();
		std::memcpy(&p[24], how & 16 ? where(1 - n).command.gid : self.gid, 16);
		for (std::size_t i = 44; i < 64; i++)
			p[i] = how & 32 ? in.byte() : 0;
		const u16 qpn = liar_qpn, qkey = liar_qkey, data = liar_qpn + 1;
		if (!(how & 32)) {
			std::memcpy(&p[44], &qpn, 2);
			std::memcpy(&p[48], &qkey, 2);
			std::memcpy(&p[52], &data, 2);
			std::memcpy(&p[56], &qkey, 2);
		}
		if (how & 64)
			p[in.byte() % 64] ^= in.byte();
	} else {
		p.resize(how & 64 ? in.byte() : 72);
		for (u8 &b : p)
			b = how & 16 ? in.byte() : 0;
		const u32 magic = cpu_to_le32(0x63646973);
		if (p.size() > 24) {
			std::memcpy(p.data(), &magic, 4);
			p[4] = 1;
			p[5] = 1 + (how >> 3 & 3);
			p[6] = p[7] = 0;
			const u64 who = cpu_to_le64(somebody(in).packed());
			std::memcpy(&p[16], &who, 8);
			p[8] = in.byte();
		}
	}
	if (p.size() == 72 && !(how & 128)) {
		const u64 mac = cpu_to_le64(coop_mac(key, p.data(), 64));
		std::memcpy(&p[64], &mac, 8);
	}
	voices_[voice]->send(p, n);
}

// Changes what the machines send each other, under a correct MAC.
void play::meddle(script &in)
{
	if (!observes_ || wire_.under_way.empty())
		return;
	const u8 how = in.byte();
	datagram d = pick(wire_.under_way, how);
	if (how & 128)
		d.imm ^= in.half();
	if (d.bytes.size() > 40) {
		const bool chan = std::memcmp(d.bytes.data(), "chan", 4) == 0;
		std::size_t head = chan ? d.bytes[7] * 8u : d.bytes.size();
		head = std::min(head, d.bytes.size());
		spoil(d.bytes, how & 64 ? d.bytes.size() : head, 1 + (how >> 4 & 3), in);
		if (head > 16 && !d.has_imm) {
			const u64 mac = cpu_to_le64(coop_mac(key, d.bytes.data(), head - 8));
			std::memcpy(d.bytes.data() + head - 8, &mac, 8);
		}
	}
	deliver(d);
}

void play::step(script &in)
{
	const u8 op = in.byte();
	const unsigned n = op >> 7;
	if (act(n, op & 31, op >> 5 & 3, in)) {
		run_all();
		return;
	}
	switch (op & 31) {
	case 10: {
		const u8 how = in.byte();
		if (!wire_.under_way.empty())
			deliver(pick(wire_.under_way, how));
		break;
	}
	case 11:
		if (!wire_.under_way.empty())
			wire_.under_way.pop_front();
		break;
	case 12:
		pass(std::chrono::microseconds(u64{in.byte()} << (in.byte() & 15)));
		break;
	case 13:
		meddle(in);
		break;
	case 14:
	case 15:
		bulk_text(n, in);
		break;
	case 16:
	case 17:
		control(n, in);
		break;
	case 18:
	case 19:
		answer(n, in);
		break;
	case 20:
		made_up(n, in);
		break;
	case 21:
	case 22:
		ask(n, in);
		break;
	case 23: { // any bytes
		std::vector<u8> b(in.half() % 5000);
		for (std::size_t i = 0; i < b.size() && i < 64; i++)
			b[i] = in.byte();
		strike(n, std::move(b), in, op & 32);
		break;
	}
	default:
		for (unsigned k = 1 + (op >> 5 & 3); k; k--)
			calm();
		return;
	}
	run_all();
}

// The play knows it until its stopped machine destroys it.
class played_endpoint final : public fake_endpoint
{
public:
	using fake_endpoint::fake_endpoint;
	~played_endpoint() override
	{
		for (fake_endpoint *&e : play::endpoint)
			if (e == this)
				e = nullptr;
	}
};

std::unique_ptr<coop::ud::endpoint> make_fake(const gid &g, u32 mtu, u32 first, bool any,
					      bool copies)
{
	auto e = std::make_unique<played_endpoint>(
		*network, fake_endpoint::shape{g, mtu, first, any, copies});
	play::endpoint[g[15] - 1] = e.get();
	return e;
}

} // namespace

// In place of the real ones: the linker finds these first.
namespace coop::ud
{

std::unique_ptr<endpoint> make_soft_roce(const soft_roce_options &o)
{
	return make_fake(gid_of(o.ip), o.mtu, o.first_qpn, o.any_memory, true);
}

// A device with its memory registered; the first machine starts first.
std::unique_ptr<endpoint> make_verbs(const verbs_options &o)
{
	const unsigned n = devices++;
	return make_fake(gid_of(ip_of(n)), o.mtu ? o.mtu : COOP_MTU_MAX, 64 + 512 * n, false,
			 false);
}

// For domains, which plays do not have; it is beside make_verbs().
std::uint32_t find_verbs(const verbs_options &)
{
	return COOP_MTU_MAX;
}

} // namespace coop::ud

extern "C" int LLVMFuzzerTestOneInput(const u8 *data, std::size_t size)
{
	perform<play>(data, size, max_steps);
	return 0;
}
