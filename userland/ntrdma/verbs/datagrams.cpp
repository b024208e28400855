// SPDX-License-Identifier: MIT
// datagrams.cpp - see datagrams.hpp.
#include "userland/ntrdma/verbs/datagrams.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <system_error>

#include <csignal>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "userland/ud/grh.hpp"
#include "userland/ud/roce_wire.hpp"

namespace coop::ntrdma::verbs
{

namespace
{

constexpr int socket_buffer = 4 << 20;
constexpr unsigned batch = 64;                   // datagrams of a look
constexpr std::uint32_t privileged = 0x80000000; // a Q_Key: use the queue pair's own

std::uint16_t port_of(std::uint32_t number)
{
	return static_cast<std::uint16_t>(first_port + (number >> slot_shift));
}

socklen_t fill(const gid_bytes &ip, std::uint16_t port, sockaddr_in6 *out)
{
	*out = {};
	if (!is_v4(ip)) {
		out->sin6_family = AF_INET6;
		out->sin6_port = htons(port);
		std::memcpy(&out->sin6_addr, ip.data(), 16);
		return sizeof(sockaddr_in6);
	}
	sockaddr_in v4{};
	v4.sin_family = AF_INET;
	v4.sin_port = htons(port);
	std::memcpy(&v4.sin_addr, ip.data() + 12, 4);
	std::memcpy(out, &v4, sizeof(v4));
	return sizeof(v4);
}

unique_fd open_socket(const gid_bytes &ip, std::uint16_t port)
{
	sockaddr_in6 name;
	socklen_t length = fill(ip, port, &name);
	unique_fd fd{socket(is_v4(ip) ? AF_INET : AF_INET6,
			    SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
	if (!fd)
		return fd;
	// The check sum of a datagram covers its identification, which is 0 with this.
	int whole = is_v4(ip) ? IP_PMTUDISC_DO : IPV6_PMTUDISC_DO, buffer = socket_buffer;
	if (is_v4(ip))
		setsockopt(fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, &whole, sizeof(whole));
	else
		setsockopt(fd.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, &whole, sizeof(whole));
	setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
	if (bind(fd.get(), reinterpret_cast<sockaddr *>(&name), length))
		return unique_fd{};
	return fd;
}

} // namespace

datagrams::datagrams(node &n, std::uint32_t slot) :
	node_{n},
	port_base_{static_cast<std::uint16_t>(first_port + slot)},
	wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)}
{
	if (!wake_)
		throw std::system_error{errno, std::generic_category(), "datagrams"};
	claim_port();
	sigset_t all, before; // signals are for the application's threads
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	thread_ = std::thread{[this] { run(); }};
	pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

datagrams::~datagrams()
{
	{
		auto held = node_.hold();
		stop_ = true;
		wake();
	}
	thread_.join();
}

void datagrams::claim_port()
{
	shortage s = follow_addresses();
	if (s.error == EADDRINUSE || sources_.empty())
		throw std::system_error{s.error, std::generic_category(),
					"UDP port " + std::to_string(port_base_) + " of " +
						text_of(s.ip)};
}

/// The first address without a socket, if any. An IPv6 address cannot have one until the kernel
/// knows that no other machine has it, which is news again.
datagrams::shortage datagrams::follow_addresses()
{
	const std::vector<gid_bytes> own = own_addresses();
	shortage first{};
	bool changes = std::erase_if(sources_, [&](const source &s) {
		return std::find(own.begin(), own.end(), s.ip) == own.end();
	});
	for (const gid_bytes &ip : own) {
		if (is_empty(ip) || find_source(ip))
			continue;
		unique_fd fd = open_socket(ip, port_base_);
		if (fd) {
			sources_.push_back({std::move(fd), ip});
			changes = true;
		} else if (!first.error || (errno == EADDRINUSE && first.error != EADDRINUSE)) {
			first = {errno, ip};
		}
		if (sources_.empty())
			break; // nothing goes without the first
	}
	if (changes) {
		changes_++;
		wake();
	}
	return first;
}

const datagrams::source *datagrams::find_source(const gid_bytes &ip)
{
	auto found = std::find_if(sources_.begin(), sources_.end(),
				  [&](const source &s) { return s.ip == ip; });
	return found == sources_.end() ? nullptr : &*found;
}

void datagram_pair::enter(ibv_qp_state s)
{
	state = of->qp.state = s;
	figures.state = s == IBV_QPS_RESET  ? pair_state::reset
			: s == IBV_QPS_INIT ? pair_state::init
			: s == IBV_QPS_RTR  ? pair_state::ready
			: s == IBV_QPS_RTS  ? pair_state::sends
					    : pair_state::error;
}

void datagrams::add(datagram_pair &p)
{
	pairs_[p.of->qp.qp_num] = &p;
	wake(); // its queue may be armed already
}

void datagrams::remove(datagram_pair &p)
{
	pairs_.erase(p.of->qp.qp_num);
}

/// True if a datagram may bring what a thread of the application waits for.
bool datagrams::awaited() const
{
	return std::any_of(pairs_.begin(), pairs_.end(), [](const auto &p) {
		return of(p.second->of->qp.recv_cq)->core->armed();
	});
}

void datagrams::wake()
{
	std::uint64_t one = 1;
	[[maybe_unused]] ssize_t n = write(wake_.get(), &one, sizeof(one));
}

// Takes datagrams as long as a queue is armed: one that has come may be for another, or be none of
// those that it is armed for.
void datagrams::run()
{
	constexpr std::size_t always = 1; // wake_
	std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
	std::uint64_t changes = 0;
	bool watching = false;
	for (;;) {
		poll(fds.data(), watching ? fds.size() : always, -1);
		std::uint64_t count;
		[[maybe_unused]] ssize_t n = read(wake_.get(), &count, sizeof(count));
		auto held = node_.hold();
		if (stop_)
			return;
		if (changes != changes_) {
			changes = changes_;
			fds.resize(always);
			for (const source &s : sources_)
				fds.push_back({s.socket.get(), POLLIN, 0});
		}
		while (awaited() && receive())
			;
		watching = awaited();
	}
}

// ---- sending ---------------------------------------------------------------------

/// Completes the datagram whose payload is in place, and sends it. It fails, as by a device, if the
/// address of its handle has gone. What the network refuses is lost, as on a fabric.
ibv_wc_status datagrams::send_from(datagram_pair &p, const ibv_send_wr &wr, std::uint8_t *bytes,
				   std::size_t payload)
{
	const auto &ah = *reinterpret_cast<const address_handle *>(wr.wr.ud.ah);
	if (!find_source(ah.from))
		follow_addresses();
	const source *s = find_source(ah.from);
	if (!s)
		return IBV_WC_LOC_QP_OP_ERR;
	bool has_imm = wr.opcode == IBV_WR_SEND_WITH_IMM;
	std::size_t head = ud::head_bytes(has_imm);
	ud::datagram_head h{};
	h.dest_qp = wr.wr.ud.remote_qpn & ud::qpn_mask;
	h.src_qp = p.of->qp.qp_num;
	h.qkey = wr.wr.ud.remote_qkey & privileged ? p.qkey : wr.wr.ud.remote_qkey;
	h.psn = p.psn++;
	h.imm = be32toh(wr.imm_data);
	h.has_imm = has_imm;
	h.pad = ud::pad_bytes(payload);
	ud::encode_head(bytes, h);
	bytes[1] = static_cast<std::uint8_t>(bytes[1] & ~ud::solicited);
	if (wr.send_flags & IBV_SEND_SOLICITED)
		bytes[1] |= ud::solicited;
	std::size_t length = ud::datagram_bytes(payload, has_imm);
	std::memset(bytes + head + payload, 0, h.pad);
	ud::flow f{};
	f.src = s->ip;
	f.dst = ah.to;
	f.src_port = port_base_;
	f.dst_port = port_of(h.dest_qp);
	f.v6 = !is_v4(s->ip);
	std::uint32_t crc = ud::icrc_begin(f, length, 0, bytes, head);
	crc = ud::crc32(crc, bytes + head, payload + h.pad);
	ud::put_icrc(bytes + length - ud::icrc_bytes, crc);
	sockaddr_in6 to;
	socklen_t size = fill(ah.to, f.dst_port, &to);
	auto go = [&] {
		return sendto(s->socket.get(), bytes, length, MSG_NOSIGNAL,
			      reinterpret_cast<sockaddr *>(&to), size);
	};
	p.figures.sent++;
	ssize_t gone = go();
	if (gone < 0 && errno == EAGAIN) {
		pollfd room{s->socket.get(), POLLOUT, 0};
		poll(&room, 1, 5);
		gone = go();
	}
	if (gone >= 0 || errno != EINVAL)
		return IBV_WC_SUCCESS;
	// The kernel says this of an address that has gone, and may not have told the thread yet.
	follow_addresses();
	return find_source(ah.from) ? IBV_WC_SUCCESS : IBV_WC_LOC_QP_OP_ERR;
}

int datagrams::send(datagram_pair &p, const ibv_send_wr &wr)
{
	bool has_imm = wr.opcode == IBV_WR_SEND_WITH_IMM;
	if (p.state != IBV_QPS_RTS && p.state != IBV_QPS_ERR)
		return EINVAL;
	if ((!has_imm && wr.opcode != IBV_WR_SEND) || !wr.wr.ud.ah || wr.num_sge < 0 ||
	    wr.num_sge > static_cast<int>(max_segments))
		return EINVAL;
	if (p.unpolled_sends >= std::max(p.of->made.cap.max_send_wr, 1u))
		return ENOMEM;
	ibv_wc wc{};
	wc.wr_id = wr.wr_id;
	wc.opcode = IBV_WC_SEND;
	std::uint8_t bytes[ud::head_imm + datagram_most + 3 + ud::icrc_bytes];
	std::size_t head = ud::head_bytes(has_imm), payload = 0;
	wc.status = p.state == IBV_QPS_ERR ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS;
	for (int i = 0; i < wr.num_sge && wc.status == IBV_WC_SUCCESS; i++) {
		const ibv_sge &s = wr.sg_list[i];
		const void *from = reinterpret_cast<const void *>(s.addr);
		if (s.length > datagram_most - payload) {
			wc.status = IBV_WC_LOC_LEN_ERR;
			break;
		}
		if (!(wr.send_flags & IBV_SEND_INLINE) && s.length) {
			auto at = node_.regions().check(s.lkey, p.of->core->pair->options().domain,
							s.addr, s.length, 0);
			if (!at) {
				wc.status = IBV_WC_LOC_PROT_ERR;
				break;
			}
			from = at->at;
		}
		std::memcpy(bytes + head + payload, from, s.length);
		payload += s.length;
	}
	if (wc.status == IBV_WC_SUCCESS)
		wc.status = send_from(p, wr, bytes, payload);
	if (wc.status != IBV_WC_SUCCESS || p.of->made.sq_sig_all ||
	    (wr.send_flags & IBV_SEND_SIGNALED))
		complete(p, wc, false, wc.status != IBV_WC_SUCCESS);
	if (wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR)
		fail(p);
	return 0;
}

void datagrams::complete(datagram_pair &p, const ibv_wc &wc, bool received, bool solicited)
{
	queue_of_completions &q = *of(received ? p.of->qp.recv_cq : p.of->qp.send_cq);
	q.datagrams.push_back(wc);
	q.datagrams.back().qp_num = p.of->qp.qp_num;
	(received ? p.unpolled_receives : p.unpolled_sends)++;
	q.datagram_origins.push_back({&p, solicited});
	q.core->note(solicited);
}

void datagrams::fail(datagram_pair &p)
{
	p.enter(IBV_QPS_ERR);
	for (const recv_request &r : p.receives) {
		ibv_wc wc{};
		wc.wr_id = r.id;
		wc.status = IBV_WC_WR_FLUSH_ERR;
		wc.opcode = IBV_WC_RECV;
		complete(p, wc, true, true);
	}
	p.figures.taken = p.figures.posted;
	p.receives.clear();
}

int datagrams::set_state(datagram_pair &p, ibv_qp_state s)
{
	if (s == IBV_QPS_ERR) {
		fail(p);
		return 0;
	}
	if (s == IBV_QPS_RESET) {
		p.receives.clear();
		p.figures.taken = p.figures.posted;
		forget_datagrams(p);
	}
	p.enter(s);
	return 0;
}

// ---- receiving -------------------------------------------------------------------

bool datagrams::receive()
{
	bool found = false;
	std::uint8_t bytes[ud::head_imm + datagram_most + 3 + ud::icrc_bytes + 1];
	for (const source &s : sources_) {
		for (unsigned i = 0; i < batch; i++) {
			sockaddr_in6 from{};
			socklen_t size = sizeof(from);
			ssize_t n = recvfrom(s.socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT,
					     reinterpret_cast<sockaddr *>(&from), &size);
			if (n < 0)
				break;
			found |= take(s, from, bytes, static_cast<std::size_t>(n));
		}
	}
	return found;
}

bool datagrams::take(const source &s, const sockaddr_in6 &from, std::uint8_t *bytes,
		     std::size_t length)
{
	auto h = ud::decode_head(bytes, length, length);
	if (!h || length > sizeof(std::uint8_t[ud::head_imm + datagram_most + 3 + ud::icrc_bytes]))
		return false;
	auto found = pairs_.find(h->dest_qp);
	if (found == pairs_.end())
		return false;
	datagram_pair &p = *found->second;
	if ((p.state != IBV_QPS_RTR && p.state != IBV_QPS_RTS) || h->qkey != p.qkey)
		return false;
	ud::flow f{};
	f.v6 = !is_v4(s.ip);
	if (f.v6) {
		std::memcpy(f.src.data(), &from.sin6_addr, 16);
		f.src_port = ntohs(from.sin6_port);
	} else {
		sockaddr_in v4;
		std::memcpy(&v4, &from, sizeof(v4));
		f.src = gid_of(v4.sin_addr);
		f.src_port = ntohs(v4.sin_port);
	}
	f.dst = s.ip;
	f.dst_port = port_base_;
	std::size_t head = ud::head_bytes(h->has_imm);
	std::uint32_t crc = ud::icrc_begin(f, length, 0, bytes, head);
	crc = ud::crc32(crc, bytes + head, length - head - ud::icrc_bytes);
	if (crc != ud::get_icrc(bytes + length - ud::icrc_bytes))
		return false;
	shared_receives *shared = p.of->qp.srq ? of(p.of->qp.srq)->core.get() : nullptr;
	if (shared ? shared->empty() : p.receives.empty()) {
		p.figures.dropped++;
		return false;
	}
	recv_request r;
	if (shared) {
		shared->take(r);
	} else {
		r = p.receives.front();
		p.receives.pop_front();
		p.figures.taken++;
	}
	std::size_t payload = length - head - h->pad - ud::icrc_bytes;
	std::uint8_t grh[grh_bytes];
	ud::write_grh(grh, f, length, 0);
	ibv_wc wc{};
	wc.wr_id = r.id;
	wc.opcode = IBV_WC_RECV;
	wc.byte_len = static_cast<std::uint32_t>(grh_bytes + payload);
	std::size_t done = 0, all = grh_bytes + payload;
	std::uint32_t domain = shared ? shared->domain() : p.of->core->pair->options().domain;
	for (std::uint32_t i = 0; i < r.segments && done < all; i++) {
		std::size_t n = std::min<std::size_t>(r.at[i].length, all - done);
		if (!n)
			continue;
		auto at = node_.regions().check(r.at[i].lkey, domain, r.at[i].addr, n, local_write);
		if (!at) {
			wc.status = IBV_WC_LOC_PROT_ERR;
			break;
		}
		std::size_t first = done < grh_bytes ? std::min(n, grh_bytes - done) : 0;
		std::memcpy(at->at, grh + done, first);
		std::memcpy(at->at + first, bytes + head + (done + first - grh_bytes), n - first);
		done += n;
	}
	if (wc.status == IBV_WC_SUCCESS && done < all)
		wc.status = IBV_WC_LOC_LEN_ERR;
	wc.src_qp = h->src_qp;
	wc.slid = own_lid;
	if (h->has_imm) {
		wc.imm_data = htobe32(h->imm);
		wc.wc_flags |= IBV_WC_WITH_IMM;
	}
	// From this machine by LID there is none.
	if (f.src != sources_[0].ip)
		wc.wc_flags |= IBV_WC_GRH;
	p.figures.received++;
	complete(p, wc, true, wc.status != IBV_WC_SUCCESS || bytes[1] & ud::solicited);
	if (wc.status != IBV_WC_SUCCESS)
		fail(p);
	return true;
}

// ---- of a node -------------------------------------------------------------------

namespace
{

std::map<node *, std::unique_ptr<datagrams>> &all_datagrams()
{
	static auto *all = new std::map<node *, std::unique_ptr<datagrams>>;
	return *all;
}

} // namespace

datagrams &datagrams_of(node *n, std::uint32_t slot)
{
	auto &d = all_datagrams()[n];
	if (d)
		d->claim_port();
	else
		d = std::make_unique<datagrams>(*n, slot);
	return *d;
}

datagrams *find_datagrams(node *n)
{
	auto d = all_datagrams().find(n);
	return d == all_datagrams().end() ? nullptr : d->second.get();
}

void end_datagrams(node *n)
{
	// Its thread ends without the lock.
	std::unique_ptr<datagrams> ends;
	auto held = n->hold();
	if (auto d = all_datagrams().find(n); d != all_datagrams().end()) {
		ends = std::move(d->second);
		all_datagrams().erase(d);
	}
}

void forget_datagrams(datagram_pair &p)
{
	for (ibv_cq *cq : {p.of->qp.send_cq, p.of->qp.recv_cq}) {
		queue_of_completions &q = *of(cq);
		for (std::size_t i = 0; i < q.datagram_origins.size();) {
			if (q.datagram_origins[i].pair != &p) {
				i++;
				continue;
			}
			auto at = static_cast<std::ptrdiff_t>(i);
			q.datagram_origins.erase(q.datagram_origins.begin() + at);
			q.datagrams.erase(q.datagrams.begin() + at);
		}
	}
	p.unpolled_sends = p.unpolled_receives = 0;
}

int post_datagram_recv(datagram_pair &p, const recv_request &r)
{
	if (p.state == IBV_QPS_RESET || p.of->qp.srq)
		return EINVAL;
	if (p.receives.size() + p.unpolled_receives >= std::max(p.of->made.cap.max_recv_wr, 1u))
		return ENOMEM;
	p.receives.push_back(r);
	p.figures.posted++;
	if (p.state == IBV_QPS_ERR)
		return find_datagrams(of(p.of->qp.context)->device)->set_state(p, IBV_QPS_ERR);
	return 0;
}

int poll_datagrams(queue_of_completions &q, int count, ibv_wc *out)
{
	int n = 0;
	for (; n < count && !q.datagrams.empty(); n++) {
		out[n] = q.datagrams.front();
		datagram_pair &p = *q.datagram_origins.front().pair;
		// The opcode of a failed request is undefined; the pair counts by what it was.
		(out[n].opcode == IBV_WC_RECV ? p.unpolled_receives : p.unpolled_sends)--;
		q.datagrams.pop_front();
		q.datagram_origins.pop_front();
	}
	return n;
}

} // namespace coop::ntrdma::verbs

// ---- address handles -------------------------------------------------------------

using namespace coop::ntrdma;
using coop::ntrdma::verbs::of;

COOP_VERB ibv_ah *ibv_create_ah(ibv_pd *pd, ibv_ah_attr *a)
{
	auto own = verbs::own_addresses();
	auto *h = new verbs::address_handle{};
	h->ah.context = pd->context;
	h->ah.pd = pd;
	bool valid = a->port_num <= 1;
	ibv_gid here;
	ibv_query_gid(pd->context, 1, 0, &here);
	if (!a->is_global || !std::memcmp(&a->grh.dgid, &here, sizeof(here))) {
		h->from = h->to = own[0];
		valid &= a->is_global || a->dlid == verbs::own_lid;
	} else {
		if (a->grh.sgid_index < own.size())
			h->from = own[a->grh.sgid_index];
		std::memcpy(h->to.data(), &a->grh.dgid, 16);
		// Of the same family as the own address.
		valid &= !verbs::is_empty(h->from) && verbs::is_v4(h->from) == verbs::is_v4(h->to);
	}
	if (!valid) {
		delete h;
		errno = EINVAL;
		return nullptr;
	}
	auto held = of(pd->context)->device->hold();
	of(pd)->users++;
	return &h->ah;
}

COOP_VERB int ibv_destroy_ah(ibv_ah *ah)
{
	auto held = of(ah->context)->device->hold();
	of(ah->pd)->users--;
	held.unlock();
	delete reinterpret_cast<verbs::address_handle *>(ah);
	return 0;
}

COOP_VERB int ibv_init_ah_from_wc(ibv_context *, std::uint8_t port, ibv_wc *wc, ibv_grh *grh,
				  ibv_ah_attr *a)
{
	*a = {};
	a->port_num = port;
	a->dlid = wc->slid;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	// An IPv6 header, or an IPv4 header in the last 20 bytes.
	verbs::gid_bytes from, to;
	const auto *bytes = reinterpret_cast<const std::uint8_t *>(grh);
	if (bytes[0] >> 4 == 6) {
		std::memcpy(from.data(), bytes + 8, 16);
		std::memcpy(to.data(), bytes + 24, 16);
	} else {
		in_addr v4;
		std::memcpy(&v4, bytes + 32, 4);
		from = verbs::gid_of(v4);
		std::memcpy(&v4, bytes + 36, 4);
		to = verbs::gid_of(v4);
	}
	auto own = verbs::own_addresses();
	auto mine = std::find(own.begin(), own.end(), to);
	if (mine == own.end()) {
		errno = EINVAL;
		return -1;
	}
	a->is_global = 1;
	std::memcpy(&a->grh.dgid, from.data(), 16);
	a->grh.sgid_index = static_cast<std::uint8_t>(mine - own.begin());
	a->grh.hop_limit = 64;
	return 0;
}

COOP_VERB ibv_ah *ibv_create_ah_from_wc(ibv_pd *pd, ibv_wc *wc, ibv_grh *grh, std::uint8_t port)
{
	ibv_ah_attr a;
	if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &a))
		return nullptr;
	return ibv_create_ah(pd, &a);
}
