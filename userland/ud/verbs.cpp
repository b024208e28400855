// SPDX-License-Identifier: MIT
// verbs.cpp - UD queue pairs of an RDMA device through rdma-core.
//
// A queue pair that dies (a datagram longer than its WR) shows by an error
// completion; from then on it is in state error here too, and its owner takes it
// through reset when all its WRs have come back. When the port's LID or GID
// changes, all address handles are replaced. When the device is removed, let_go()
// destroys the queue pairs, so that the device no longer writes to memory; then
// every WR comes back flushed, and the endpoint remains but can post nothing.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "userland/ud/completion_ring.hpp"
#include "userland/ud/memory_map.hpp"
#include "userland/ud/verbs_ah_cache.hpp"
#include "userland/ud/verbs_cq.hpp"
#include "userland/ud/verbs_device.hpp"
#include "userland/ud/verbs_loans.hpp"
#include "userland/ud/verbs_qp.hpp"
#include "userland/ud/verbs_watch.hpp"

namespace coop::ud
{

namespace
{

constexpr std::size_t batch = 32; // completions per call into the driver
constexpr std::size_t grh_ipv6_source = 8, grh_ipv4_source = 20 + 12;

// A descriptor that is readable when any of a set is. A closed one leaves the set.
class descriptor_set
{
public:
	descriptor_set() : fd_(::epoll_create1(EPOLL_CLOEXEC))
	{
		if (fd_ < 0)
			throw std::system_error(errno, std::generic_category(), "verbs: epoll");
	}
	~descriptor_set() { ::close(fd_); }
	descriptor_set(const descriptor_set &) = delete;
	descriptor_set &operator=(const descriptor_set &) = delete;

	int fd() const { return fd_; }
	void add(int fd) const
	{
		epoll_event e{};
		e.events = EPOLLIN;
		if (fd >= 0 && ::epoll_ctl(fd_, EPOLL_CTL_ADD, fd, &e))
			throw std::system_error(errno, std::generic_category(), "verbs: epoll");
	}

private:
	const int fd_;
};

class verbs final : public endpoint
{
public:
	explicit verbs(const verbs_options &);

	const endpoint_info &info() const override { return info_; }
	endpoint_state state() const override { return state_; }
	int register_memory(void *base, std::size_t length) override;
	int lend_memory(void *base, std::size_t length, std::unique_ptr<lent_memory> &out,
			std::uint32_t &key) override
	{
		return loans_.add(pd_.get(), base, length, out, key);
	}
	int create_qp(const qp_attr &) override;
	std::string refusal() const override { return refusal_; }
	std::uint32_t qpn(std::uint32_t qp) const override { return qps_.at(qp)->number; }
	std::uint32_t qkey(std::uint32_t qp) const override { return qps_.at(qp)->attr.qkey; }
	int modify_qp(std::uint32_t qp, qp_state) override;
	int post_recv(std::uint32_t qp, std::span<const recv_wr>) override;
	int post_send(std::uint32_t qp, const address &, std::span<const send_wr>) override;
	std::size_t poll(std::span<completion> out) override;
	int fd() const override { return wake_.fd(); }
	bool arm() override;
	endpoint_stats stats() const override { return stats_; }
	void reset_stats() override { stats_ = {}; }

private:
	verbs_qp *at(std::uint32_t qp) { return qp < qps_.size() ? qps_[qp].get() : nullptr; }
	int refuse(int error, std::string why);
	void take(const ibv_wc &);
	std::size_t take_all();
	void refresh_info();
	void look_at_port();
	void let_go();

	// Destroyed in reverse order; let_go() does the same by hand.
	verbs_device device_;
	std::unique_ptr<verbs_watch> watch_;
	verbs_pd pd_;
	std::vector<verbs_mr> regions_;
	verbs_loans loans_;
	memory_map memory_;
	verbs_channel channel_;
	// One per preferred queue pair, for both directions; then those that the others share.
	std::unique_ptr<completion_queues> preferred_cqs_, send_cqs_, recv_cqs_;
	ah_cache handles_;
	std::vector<std::unique_ptr<verbs_qp>> qps_;
	descriptor_set wake_;
	std::uint64_t sends_in_flight_ = 0;
	std::string refusal_;
	completion_ring done_;
	endpoint_info info_{};
	endpoint_state state_{};
	endpoint_stats stats_{};
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

verbs::verbs(const verbs_options &options) : device_(options), handles_(options.traffic_class)
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
	const std::uint32_t entries = std::min<std::uint32_t>(
		options.cq_entries, static_cast<std::uint32_t>(device_.attr().max_cqe));
	preferred_cqs_ =
		std::make_unique<completion_queues>(device_.context(), channel_.get(), entries);
	send_cqs_ = std::make_unique<completion_queues>(device_.context(), channel_.get(), entries);
	recv_cqs_ = std::make_unique<completion_queues>(device_.context(), channel_.get(), entries);
	set_nonblocking(channel_->fd);
	watch_ = std::make_unique<verbs_watch>(device_.context());
	wake_.add(channel_->fd);
	wake_.add(watch_->async_fd());
	wake_.add(watch_->uevent_fd());

	info_.sl = options.sl;
	info_.mtu = options.mtu ? options.mtu : device_.mtu();
	info_.max_qps = static_cast<std::uint32_t>(device_.attr().max_qp);
	info_.max_sge =
		std::min(static_cast<std::uint32_t>(device_.attr().max_sge), verbs_qp::max_sge);
	info_.max_recv_wr = std::min(static_cast<std::uint32_t>(device_.attr().max_qp_wr), entries);
	// The device can absorb as much as is posted.
	info_.receive_window = std::size_t{entries} * info_.mtu;
	info_.mbps = device_.mbps();
	refresh_info();
}

void verbs::refresh_info()
{
	info_.gid = device_.gid();
	info_.lid = device_.lid();
	info_.name = "verbs " + device_.name();
	info_.pins_memory = true;
}

int verbs::register_memory(void *base, std::size_t length)
{
	if (state_.lost)
		return -ENODEV;
	const int access = IBV_ACCESS_LOCAL_WRITE; // the macro mixes enumerations
	verbs_mr region(ibv_reg_mr(pd_.get(), base, length, access));
	if (!region)
		return errno ? -errno : -ENOMEM;
	const int error = memory_.add(base, length, region->lkey);
	if (!error)
		regions_.push_back(std::move(region));
	return error;
}

int verbs::refuse(int error, std::string why)
{
	refusal_ = "verbs: " + device_.name() + ": " + why;
	return error;
}

int verbs::create_qp(const qp_attr &attr)
{
	const auto limit = static_cast<std::uint32_t>(device_.attr().max_qp_wr);
	const std::uint32_t most = std::max(attr.max_recv_wr, attr.max_send_wr);
	if (state_.lost)
		return refuse(-ENODEV, "the device is gone");
	if (!attr.max_sge || attr.max_sge > verbs_qp::max_sge)
		return -EINVAL;
	if (attr.max_sge > info_.max_sge)
		return refuse(-EOPNOTSUPP, std::to_string(attr.max_sge) +
						   " segments per work request; it takes " +
						   std::to_string(info_.max_sge));
	if (most > limit)
		return refuse(-ENOSPC, std::to_string(most) +
					       " work requests per queue; it holds " +
					       std::to_string(limit));
	const std::uint32_t both = attr.max_recv_wr + attr.max_send_wr;
	const std::uint32_t owed = attr.preferred ? both : most; // by one completion queue
	if (owed > send_cqs_->entries())
		return refuse(-ENOSPC,
			      std::to_string(owed) +
				      " completions per queue pair; a completion queue holds " +
				      std::to_string(send_cqs_->entries()));
	ibv_cq *alone = attr.preferred ? preferred_cqs_->reserve_alone(both) : nullptr;
	ibv_cq *recv = attr.preferred ? alone : recv_cqs_->reserve(attr.max_recv_wr);
	ibv_cq *send = attr.preferred ? alone
		       : recv         ? send_cqs_->reserve(attr.max_send_wr)
				      : nullptr;
	int error = send ? 0
			 : refuse(-errno, "it has no further completion queue; most: " +
						  std::to_string(device_.attr().max_cq));
	try {
		if (!error) {
			auto qp = std::make_unique<verbs_qp>(
				pd_.get(), send, recv, static_cast<std::uint32_t>(qps_.size()),
				attr);
			error = qp->to_ready(device_.port());
			if (!error) {
				done_.reserve_more(both);
				qps_.push_back(std::move(qp));
				return static_cast<int>(qps_.size() - 1);
			}
			refuse(error, "the new queue pair does not become ready");
		}
	} catch (const std::system_error &e) {
		error = refuse(
			e.code().value() ? -e.code().value() : -EIO,
			"it has no further queue pair; " + std::to_string(qps_.size()) +
				" are in use here, most: " + std::to_string(device_.attr().max_qp));
	} catch (const std::bad_alloc &) {
		error = -ENOMEM;
	}
	if (alone)
		preferred_cqs_->give_back(alone, both);
	else if (recv)
		recv_cqs_->give_back(recv, attr.max_recv_wr);
	if (send && !alone)
		send_cqs_->give_back(send, attr.max_send_wr);
	return error;
}

int verbs::modify_qp(std::uint32_t index, qp_state state)
{
	verbs_qp *qp = at(index);
	if (!qp)
		return -EINVAL;
	if (state == qp_state::error)
		return state_.lost ? 0 : qp->to_error();
	// Some devices forget completions on RESET, others corrupt themselves under traffic.
	if (qp->recvs_owed || qp->sends_owed)
		return -EBUSY;
	const int error =
		device_.may_reset() || !qp->attr.renumber ? qp->to_reset() : qp->to_another();
	if (error || state == qp_state::reset)
		return error;
	return qp->to_ready(device_.port());
}

int verbs::post_recv(std::uint32_t index, std::span<const recv_wr> wrs)
{
	verbs_qp *qp = at(index);
	if (state_.lost)
		return -ENODEV;
	if (!qp || qp->state == qp_state::reset)
		return -EINVAL;
	int posted = 0;
	while (!wrs.empty()) {
		const auto part = wrs.first(std::min(wrs.size(), verbs_qp::batch));
		const int n = qp->post_recv(part, memory_);
		if (n < 0)
			return posted ? posted : n;
		posted += n;
		if (static_cast<std::size_t>(n) < part.size())
			break;
		wrs = wrs.subspan(part.size());
	}
	return posted;
}

int verbs::post_send(std::uint32_t index, const address &dst, std::span<const send_wr> wrs)
{
	verbs_qp *qp = at(index);
	if (state_.lost)
		return -ENODEV;
	if (!qp || qp->state == qp_state::reset)
		return -EINVAL;
	int error = 0;
	ibv_ah *handle = handles_.find(pd_.get(), device_, dst, qp->number, error);
	if (!handle)
		return error;
	int taken = 0;
	while (!wrs.empty()) {
		const auto part = wrs.first(std::min(wrs.size(), verbs_qp::batch));
		const auto sent = qp->post_send(handle, dst, part, memory_, info_.mtu);
		stats_.tx_calls++;
		stats_.tx_packets += sent.posted;
		stats_.tx_bytes += sent.bytes;
		stats_.tx_errors += sent.refused;
		sends_in_flight_ += sent.posted;
		for (std::size_t i = 0; i < part.size(); i++) {
			if (!(sent.vanished >> i & 1) || !part[i].signaled)
				continue;
			qp->sends_owed++;
			done_.push(qp->index, part[i].wr_id, wc_status::success, false);
		}
		if (sent.taken < 0)
			return taken ? taken : sent.taken;
		taken += sent.taken;
		if (static_cast<std::size_t>(sent.taken) < part.size())
			break;
		wrs = wrs.subspan(part.size());
	}
	return taken;
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
	case IBV_WC_LOC_QP_OP_ERR: // of rxe
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
	// The device has entered this state itself; WRs posted from now on flush.
	if (status != wc_status::success && qp->state == qp_state::ready)
		qp->to_error();

	if (!number.is_recv) {
		sends_in_flight_--;
		const auto &slot = qp->send_done(number.slot);
		if (slot.signaled || status != wc_status::success)
			done_.push(qp->index, slot.wr_id, status, false);
		else
			qp->sends_owed--;
		return;
	}

	const auto &slot = qp->recv_done(number.slot);
	completion &c = done_.push(qp->index, slot.wr_id, status, true);
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
	if (state_.lost)
		return 0;
	std::array<ibv_wc, 2 * batch> wc;
	// No preferred queue may starve the others, nor may all of them together.
	std::size_t n = preferred_cqs_->poll(std::span(wc).first(batch), batch / 2);
	const std::size_t shared = n + batch;
	n += recv_cqs_->poll(std::span(wc).first(shared).subspan(n), batch);
	n += send_cqs_->poll(std::span(wc).first(shared).subspan(n), batch);
	for (std::size_t i = 0; i < n; i++)
		take(wc[i]);
	if (!sends_in_flight_)
		handles_.quiet();
	return n;
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
	if (state_.lost)
		return done_.empty();
	const verbs_watch::news news = watch_->take();
	if (news.lost || news.port) {
		news.lost ? let_go() : look_at_port();
		return false;
	}
	ibv_cq *cq;
	void *context;
	while (!ibv_get_cq_event(channel_.get(), &cq, &context))
		completion_queues::count_event(context);
	if (!done_.empty() || !preferred_cqs_->request_notify() || !recv_cqs_->request_notify() ||
	    !send_cqs_->request_notify())
		return false;
	// Completions before the request make no event, so take them all; unsignaled sends yield
	// nothing for the owner.
	while (done_.empty() && take_all())
		;
	return done_.empty();
}

void verbs::look_at_port()
{
	handles_.forget();
	state_.port_up = device_.refresh();
	if (state_.port_up)
		refresh_info();
	state_.changes++;
}

void verbs::let_go()
{
	while (take_all())
		;
	for (const auto &qp : qps_)
		qp->destroy();
	for (const auto &qp : qps_) {
		qp->state = qp_state::error;
		for (std::uint32_t left = qp->recvs_out(), i = qp->next_recv() - left; left; left--)
			done_.push(qp->index, qp->recv_done(i++).wr_id, wc_status::flushed, true);
		for (std::uint32_t left = qp->sends_out(), i = qp->next_send() - left; left; left--)
			done_.push(qp->index, qp->send_done(i++).wr_id, wc_status::flushed, false);
	}
	sends_in_flight_ = 0;
	handles_ = ah_cache();
	preferred_cqs_.reset();
	recv_cqs_.reset();
	send_cqs_.reset();
	regions_.clear();
	loans_.close();
	channel_.reset();
	pd_.reset();
	watch_.reset(); // closed descriptors, also the channel's, leave the set by themselves
	device_.close();
	state_.lost = true;
	state_.port_up = false;
	state_.changes++;
}

} // namespace

std::unique_ptr<endpoint> make_verbs(const verbs_options &options)
{
	return std::make_unique<verbs>(options);
}

std::uint32_t find_verbs(const verbs_options &options)
{
	return verbs_device(options).mtu();
}

} // namespace coop::ud
