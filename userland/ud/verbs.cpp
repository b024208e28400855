// SPDX-License-Identifier: MIT
// verbs.cpp - UD queue pairs of an RDMA device through rdma-core.
//
// One completion queue for all queue pairs, large enough for every WR that can be
// posted: its overflow would kill them all. A queue pair that dies (a datagram
// longer than its WR) shows by an error completion; from then on it is in state
// error here too, and its owner takes it through reset when all its WRs have come
// back. When the port's LID or GID changes, address handles are made anew.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

#include "userland/ud/completion_ring.hpp"
#include "userland/ud/memory_map.hpp"
#include "userland/ud/verbs_ah_cache.hpp"
#include "userland/ud/verbs_device.hpp"
#include "userland/ud/verbs_qp.hpp"

namespace coop::ud
{

namespace
{

constexpr std::uint32_t max_sge = 16;
constexpr std::size_t batch = 32; // WRs or completions a call into the driver
constexpr std::size_t grh_ipv6_source = 8, grh_ipv4_source = 20 + 12;

class verbs final : public endpoint
{
public:
	explicit verbs(const verbs_options &);

	const endpoint_info &info() const override { return info_; }
	int register_memory(void *base, std::size_t length) override;
	int create_qp(const qp_attr &) override;
	std::uint32_t qpn(std::uint32_t qp) const override { return qps_.at(qp)->get()->qp_num; }
	std::uint32_t qkey(std::uint32_t qp) const override { return qps_.at(qp)->attr.qkey; }
	int modify_qp(std::uint32_t qp, qp_state) override;
	int post_recv(std::uint32_t qp, std::span<const recv_wr>) override;
	int post_send(std::uint32_t qp, const address &, std::span<const send_wr>) override;
	std::size_t poll(std::span<completion> out) override;
	int fd() const override { return channel_->fd; }
	bool arm() override;
	endpoint_stats stats() const override { return stats_; }

private:
	verbs_qp *at(std::uint32_t qp) { return qp < qps_.size() ? qps_[qp].get() : nullptr; }
	bool fill(const sge *list, std::uint32_t n, ibv_sge *out) const;
	int post_recv_batch(verbs_qp &, std::span<const recv_wr>);
	int post_send_batch(verbs_qp &, ibv_ah *, const address &, std::span<const send_wr>);
	void complete_send(verbs_qp &, std::uint64_t wr_id, wc_status);
	void take(const ibv_wc &);
	std::size_t take_all();
	void refresh_info();
	void watch_port();

	// Destroyed in reverse order.
	verbs_device device_;
	verbs_pd pd_;
	std::vector<verbs_mr> regions_;
	memory_map memory_;
	verbs_channel channel_;
	verbs_cq cq_;
	ah_cache handles_;
	std::vector<std::unique_ptr<verbs_qp>> qps_;
	std::uint32_t cq_entries_ = 0, cq_promised_ = 0;
	std::uint64_t sends_in_flight_ = 0;
	unsigned unacked_events_ = 0;
	completion_ring done_;
	endpoint_info info_{};
	endpoint_stats stats_{};

public:
	~verbs() override
	{
		qps_.clear();
		ibv_ack_cq_events(cq_.get(), unacked_events_);
	}
};

[[noreturn]] void fail(const verbs_device &device, const char *what)
{
	throw std::system_error(errno, std::generic_category(),
				"verbs: " + device.name() + ": " + what);
}

void set_nonblocking(int fd)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

verbs::verbs(const verbs_options &options) : device_(options)
{
	if (options.mtu > device_.mtu() || (options.mtu && options.mtu < COOP_MTU_MIN))
		throw std::system_error(EINVAL, std::generic_category(),
					"verbs: MTU " + std::to_string(options.mtu) +
						": the port carries " +
						std::to_string(device_.mtu()));
	pd_.reset(ibv_alloc_pd(device_.context()));
	if (!pd_)
		fail(device_, "protection domain");
	channel_.reset(ibv_create_comp_channel(device_.context()));
	if (!channel_)
		fail(device_, "completion channel");
	cq_entries_ = std::min<std::uint32_t>(options.cq_entries,
					      static_cast<std::uint32_t>(device_.attr().max_cqe));
	cq_.reset(ibv_create_cq(device_.context(), static_cast<int>(cq_entries_), nullptr,
				channel_.get(), 0));
	if (!cq_)
		fail(device_, "completion queue");
	set_nonblocking(channel_->fd);
	set_nonblocking(device_.context()->async_fd);

	info_.sl = options.sl;
	info_.mtu = options.mtu ? options.mtu : device_.mtu();
	info_.max_qps = static_cast<std::uint32_t>(device_.attr().max_qp);
	info_.max_recv_wr = static_cast<std::uint32_t>(device_.attr().max_qp_wr);
	// What is posted is what can be absorbed; all of it has to fit the completion queue.
	info_.receive_window = std::size_t{cq_entries_} * info_.mtu;
	refresh_info();
}

void verbs::refresh_info()
{
	info_.gid = device_.gid();
	info_.lid = device_.lid();
	info_.name = "verbs " + device_.name();
}

int verbs::register_memory(void *base, std::size_t length)
{
	const int access = IBV_ACCESS_LOCAL_WRITE; // the macro mixes enumerations
	verbs_mr region(ibv_reg_mr(pd_.get(), base, length, access));
	if (!region)
		return errno ? -errno : -ENOMEM;
	const int error = memory_.add(base, length, region->lkey);
	if (!error)
		regions_.push_back(std::move(region));
	return error;
}

int verbs::create_qp(const qp_attr &attr)
{
	const auto limit = static_cast<std::uint32_t>(device_.attr().max_qp_wr);
	if (!attr.max_sge || attr.max_sge > max_sge || attr.max_recv_wr > limit ||
	    attr.max_send_wr > limit)
		return -EINVAL;
	const std::uint32_t completions = attr.max_recv_wr + attr.max_send_wr;
	if (completions > cq_entries_ - cq_promised_)
		return -ENOSPC;
	try {
		auto qp = std::make_unique<verbs_qp>(pd_.get(), cq_.get(),
						     static_cast<std::uint32_t>(qps_.size()), attr);
		const int error = qp->to_ready(device_.port());
		if (error)
			return error;
		done_.reserve_more(completions);
		qps_.push_back(std::move(qp));
	} catch (const std::system_error &e) {
		return e.code().value() ? -e.code().value() : -EIO;
	} catch (const std::bad_alloc &) {
		return -ENOMEM;
	}
	cq_promised_ += completions;
	return static_cast<int>(qps_.size() - 1);
}

int verbs::modify_qp(std::uint32_t index, qp_state state)
{
	verbs_qp *qp = at(index);
	if (!qp)
		return -EINVAL;
	if (state == qp_state::error)
		return qp->to_error();
	// Some devices forget completions on RESET, others corrupt themselves under traffic.
	if (qp->recvs_owed || qp->sends_owed)
		return -EBUSY;
	const int error = qp->to_reset();
	if (error || state == qp_state::reset)
		return error;
	return qp->to_ready(device_.port());
}

bool verbs::fill(const sge *list, std::uint32_t n, ibv_sge *out) const
{
	for (std::uint32_t i = 0; i < n; i++) {
		std::uint32_t lkey;
		if (!memory_.find(list[i], lkey))
			return false;
		out[i] = {reinterpret_cast<std::uintptr_t>(list[i].addr), list[i].length, lkey};
	}
	return true;
}

int verbs::post_recv(std::uint32_t index, std::span<const recv_wr> wrs)
{
	verbs_qp *qp = at(index);
	if (!qp || qp->state == qp_state::reset)
		return -EINVAL;
	int posted = 0;
	while (!wrs.empty()) {
		const auto part = wrs.first(std::min(wrs.size(), batch));
		const int n = post_recv_batch(*qp, part);
		if (n < 0)
			return posted ? posted : n;
		posted += n;
		if (static_cast<std::size_t>(n) < part.size())
			break;
		wrs = wrs.subspan(part.size());
	}
	return posted;
}

int verbs::post_recv_batch(verbs_qp &qp, std::span<const recv_wr> wrs)
{
	std::array<ibv_recv_wr, batch> chain;
	std::array<ibv_sge, batch * max_sge> entries;
	std::uint32_t n = 0;
	int error = 0;

	for (const recv_wr &wr : wrs) {
		if (qp.recvs_owed + n >= qp.attr.max_recv_wr)
			error = -ENOMEM;
		else if (!wr.n_sge || wr.n_sge > qp.attr.max_sge || wr.list[0].length < COOP_GRH)
			error = -EINVAL;
		else if (!fill(wr.list, wr.n_sge, entries.data() + n * max_sge))
			error = -EFAULT;
		if (error)
			break;
		const std::uint32_t slot = qp.next_recv(wr.wr_id, wr.list[0].addr);
		chain[n] = {};
		chain[n].wr_id = verbs_wr_number{qp.index, slot, true}.pack();
		chain[n].sg_list = entries.data() + n * max_sge;
		chain[n].num_sge = static_cast<int>(wr.n_sge);
		if (n)
			chain[n - 1].next = &chain[n];
		n++;
	}
	if (!n)
		return error;
	ibv_recv_wr *bad = nullptr;
	error = ibv_post_recv(qp.get(), chain.data(), &bad);
	if (error) {
		const auto posted = static_cast<std::uint32_t>(bad ? bad - chain.data() : 0);
		qp.unpost_recvs(n - posted);
		n = posted;
	}
	qp.recvs_owed += n;
	return n ? static_cast<int>(n) : -error;
}

int verbs::post_send(std::uint32_t index, const address &dst, std::span<const send_wr> wrs)
{
	verbs_qp *qp = at(index);
	if (!qp || qp->state == qp_state::reset)
		return -EINVAL;
	int error = 0;
	ibv_ah *handle = handles_.find(pd_.get(), device_, dst, error);
	if (!handle)
		return error;
	int posted = 0;
	while (!wrs.empty()) {
		const auto part = wrs.first(std::min(wrs.size(), batch));
		const int n = post_send_batch(*qp, handle, dst, part);
		if (n < 0)
			return posted ? posted : n;
		posted += n;
		if (static_cast<std::size_t>(n) < part.size())
			break;
		wrs = wrs.subspan(part.size());
	}
	return posted;
}

int verbs::post_send_batch(verbs_qp &qp, ibv_ah *handle, const address &dst,
			   std::span<const send_wr> wrs)
{
	std::array<ibv_send_wr, batch> chain;
	std::array<ibv_sge, batch * max_sge> entries;
	std::array<std::uint32_t, batch> origin; // of chain[i] in wrs
	std::uint32_t n = 0, seen = 0;
	std::uint64_t total = 0;
	int error = 0;

	for (const send_wr &wr : wrs) {
		std::uint64_t payload = 0;
		for (std::uint32_t i = 0; i < wr.n_sge; i++)
			payload += wr.list[i].length;
		if (qp.sends_owed + n >= qp.attr.max_send_wr)
			error = -ENOMEM;
		else if (wr.n_sge > qp.attr.max_sge)
			error = -EINVAL;
		else if (!fill(wr.list, wr.n_sge, entries.data() + n * max_sge))
			error = -EFAULT;
		if (error)
			break;
		seen++;
		// Devices differ in what they do with it; here it vanishes.
		if (payload > info_.mtu)
			continue;
		const std::uint32_t slot = qp.next_send(wr.wr_id, wr.signaled);
		ibv_send_wr &out = chain[n];
		out = {};
		out.wr_id = verbs_wr_number{qp.index, slot, false}.pack();
		out.sg_list = entries.data() + n * max_sge;
		out.num_sge = static_cast<int>(wr.n_sge);
		out.opcode = wr.has_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
		out.send_flags = IBV_SEND_SIGNALED;
		out.imm_data = htonl(wr.imm);
		out.wr.ud.ah = handle;
		out.wr.ud.remote_qpn = dst.qpn;
		out.wr.ud.remote_qkey = dst.qkey;
		if (n)
			chain[n - 1].next = &out;
		origin[n++] = seen - 1;
		total += payload;
	}
	if (!seen)
		return error;

	ibv_send_wr *bad = nullptr;
	stats_.tx_calls++;
	error = !n ? 0 : ibv_post_send(qp.get(), chain.data(), &bad);
	if (error) {
		const auto posted = static_cast<std::uint32_t>(bad ? bad - chain.data() : 0);
		qp.unpost_sends(n - posted);
		stats_.tx_errors += n - posted;
		seen = origin[posted];
		n = posted;
	}
	qp.sends_owed += n;
	sends_in_flight_ += n;
	stats_.tx_packets += n;
	stats_.tx_bytes += total;
	for (std::uint32_t i = 0, posted = 0; i < seen; i++) {
		if (posted < n && origin[posted] == i)
			posted++;
		else if (wrs[i].signaled)
			complete_send(qp, wrs[i].wr_id, wc_status::success);
	}
	return seen ? static_cast<int>(seen) : -error;
}

void verbs::complete_send(verbs_qp &qp, std::uint64_t wr_id, wc_status status)
{
	completion &c = done_.push();
	c = completion{};
	c.wr_id = wr_id;
	c.qp = qp.index;
	c.status = status;
	qp.sends_owed++;
}

wc_status status_of(const ibv_wc &wc, bool is_recv)
{
	switch (wc.status) {
	case IBV_WC_SUCCESS:
		return wc_status::success;
	case IBV_WC_WR_FLUSH_ERR:
		return wc_status::flushed;
	case IBV_WC_LOC_LEN_ERR:
		return wc_status::length_error;
	case IBV_WC_LOC_QP_OP_ERR: // rxe's word for it
		return is_recv ? wc_status::length_error : wc_status::other_error;
	default:
		return wc_status::other_error;
	}
}

void verbs::take(const ibv_wc &wc)
{
	const auto number = verbs_wr_number::parse(wc.wr_id);
	verbs_qp *qp = at(number.qp);
	if (!qp)
		return;
	const wc_status status = status_of(wc, number.is_recv);
	// The device has put it there itself; what is posted from now on flushes.
	if (status != wc_status::success && qp->state == qp_state::ready)
		qp->to_error();

	if (!number.is_recv) {
		sends_in_flight_--;
		qp->sends_owed--;
		const auto &slot = qp->send(number.slot);
		if (slot.signaled || status != wc_status::success)
			complete_send(*qp, slot.wr_id, status);
		return;
	}

	const auto &slot = qp->recv(number.slot);
	completion &c = done_.push();
	c = completion{};
	c.wr_id = slot.wr_id;
	c.qp = qp->index;
	c.status = status;
	c.is_recv = true;
	if (status == wc_status::length_error)
		stats_.rx_too_long++;
	if (status != wc_status::success)
		return;
	c.has_imm = (wc.wc_flags & IBV_WC_WITH_IMM) != 0;
	c.imm = c.has_imm ? ntohl(wc.imm_data) : 0;
	c.byte_len = wc.byte_len;
	c.src_qp = wc.src_qp;
	c.src_lid = wc.slid;
	c.sl = wc.sl;
	c.has_gid = device_.roce() || (wc.wc_flags & IBV_WC_GRH);
	if (c.has_gid && device_.ipv4()) {
		c.src_gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
		std::memcpy(c.src_gid.data() + 12, slot.grh + grh_ipv4_source, 4);
	} else if (c.has_gid) {
		std::memcpy(c.src_gid.data(), slot.grh + grh_ipv6_source, 16);
	}
	stats_.rx_packets++;
	stats_.rx_bytes += wc.byte_len - COOP_GRH;
}

std::size_t verbs::take_all()
{
	std::array<ibv_wc, batch> wc;
	const int n = ibv_poll_cq(cq_.get(), static_cast<int>(wc.size()), wc.data());
	for (int i = 0; i < n; i++)
		take(wc[static_cast<std::size_t>(i)]);
	if (!sends_in_flight_)
		handles_.quiet();
	return n > 0 ? static_cast<std::size_t>(n) : 0;
}

std::size_t verbs::poll(std::span<completion> out)
{
	std::size_t n = 0;
	while (n < out.size()) {
		if (done_.empty()) {
			stats_.rx_calls++;
			if (!take_all())
				break;
			continue;
		}
		const completion &c = out[n++] = done_.front();
		done_.pop();
		verbs_qp &qp = *qps_[c.qp];
		if (c.is_recv)
			qp.recvs_owed--;
		else
			qp.sends_owed--;
	}
	return n;
}

bool verbs::arm()
{
	watch_port();
	ibv_cq *cq;
	void *context;
	while (!ibv_get_cq_event(channel_.get(), &cq, &context))
		unacked_events_++;
	if (unacked_events_ >= 1024) { // acknowledging takes a lock
		ibv_ack_cq_events(cq_.get(), unacked_events_);
		unacked_events_ = 0;
	}
	if (!done_.empty() || ibv_req_notify_cq(cq_.get(), 0))
		return false;
	// What completed before the request made no event: to the end of it, though sends that
	// nobody asked about leave nothing to tell.
	while (done_.empty() && take_all())
		;
	return done_.empty();
}

void verbs::watch_port()
{
	ibv_async_event event;
	while (!ibv_get_async_event(device_.context(), &event)) {
		switch (event.event_type) {
		case IBV_EVENT_GID_CHANGE:
		case IBV_EVENT_LID_CHANGE:
		case IBV_EVENT_PORT_ERR:
		case IBV_EVENT_PORT_ACTIVE:
		case IBV_EVENT_CLIENT_REREGISTER:
		case IBV_EVENT_SM_CHANGE:
			handles_.forget();
			if (device_.refresh())
				refresh_info();
			break;
		default: // queue-pair events show as error completions
			break;
		}
		ibv_ack_async_event(&event);
	}
}

} // namespace

std::unique_ptr<endpoint> make_verbs(const verbs_options &options)
{
	return std::make_unique<verbs>(options);
}

} // namespace coop::ud
