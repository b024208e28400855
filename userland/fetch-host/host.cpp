// SPDX-License-Identifier: MIT
// host.cpp - see host.hpp.
#include "userland/fetch-host/host.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace coop::fetch_host
{

namespace
{

constexpr std::size_t least_window = 64u << 10, most_window = 1u << 30; // bytes

} // namespace

host::host(ud::endpoint &ep, const slab &s, fetched_pages &fetched, served_pages &served,
	   message_qp &control, const shape &what) :
	endpoint_(ep),
	fetched_(fetched),
	control_(control),
	shape_(what),
	requester_(ep, s, fetched, what),
	responder_(ep, s, served, what),
	engine_(nullptr, std::free)
{
}

coop_engine_cfg host::config(const std::array<std::uint8_t, 16> &key) const
{
	const ud::endpoint_info &info = endpoint_.info();
	coop_engine_cfg cfg{};
	if (::getrandom(&cfg.seed, sizeof(cfg.seed), 0) != sizeof(cfg.seed))
		throw std::system_error(errno, std::generic_category(), "getrandom");
	std::copy(key.begin(), key.end(), cfg.key);
	cfg.self = control_.self();
	cfg.page_shift = shape_.page_shift;
	cfg.mtu = info.mtu;
	cfg.max_fetches = shape_.fetches;
	cfg.max_serves = shape_.serves;
	cfg.max_queued = shape_.queued;
	cfg.window_bytes = static_cast<std::uint32_t>(
		std::clamp(info.receive_window, least_window, most_window));
	cfg.fetch_depth = requester_.depth();
	cfg.serve_depth = responder_.depth();
	if (shape_.page_bytes() % info.mtu != 0)
		cfg.flags |= COOP_F_PACKED;
	return cfg;
}

void host::make(const coop_engine_cfg &cfg, std::uint64_t now)
{
	const std::size_t size = coop_engine_size(&cfg);
	if (size != 0) {
		// Zeroed memory of this size comes from the kernel, page by page as it is touched.
		engine_.reset(std::calloc((size + 7) / 8, 8));
		if (!engine_)
			throw std::system_error(ENOMEM, std::generic_category(), "engine");
	}
	if (size == 0 || coop_engine_init(engine_.get(), size, &cfg, now) == nullptr)
		throw std::system_error(EINVAL, std::generic_category(),
					std::string(shape_.fetches_option) + ", " +
						shape_.serves_option +
						" or a timeout is out of range");
	requester_.make(engine());
	responder_.make(engine());
	for (std::uint32_t slot = 0; slot < shape_.fetches; slot++)
		assign(requester_.qp(slot), {role::fetch, slot});
	for (std::uint32_t i = 0; i < responder_.n_qps(); i++)
		assign(responder_.qp(i), {role::serve, i});
}

void host::assign(std::uint32_t qp, role r)
{
	if (roles_.size() <= qp)
		roles_.resize(qp + 1);
	roles_[qp] = r;
}

void host::completed(const ud::completion &c, std::uint64_t now)
{
	const role r = c.qp < roles_.size() ? roles_[c.qp] : role{};
	if (r.what == role::fetch)
		requester_.completed(r.index, c, now);
	else if (r.what == role::serve)
		responder_.completed(r.index, c, now);
}

void host::perform(const coop_tx &tx, std::uint64_t now)
{
	switch (tx.kind) {
	case COOP_TX_CTRL:
		control_.send(tx.addr, tx.buf, tx.len);
		break;
	case COOP_TX_POST_RECV:
		requester_.post(tx, now);
		break;
	case COOP_TX_DATA:
		responder_.send(tx, now);
		break;
	case COOP_TX_STOP_QP:
		requester_.stop(tx.slot);
		break;
	case COOP_TX_RESET_QP:
		requester_.reset(tx.slot);
		break;
	}
}

void host::handle(const coop_ev &ev, std::uint64_t now)
{
	switch (ev.kind) {
	case COOP_EV_LOOKUP:
		responder_.lookup(ev, now);
		break;
	case COOP_EV_RECHECK:
		responder_.recheck(ev, now);
		break;
	case COOP_EV_SERVE_END:
		responder_.end(ev);
		break;
	case COOP_EV_VERIFY:
		requester_.verify(ev, now);
		break;
	case COOP_EV_FETCH_DONE:
		fetched_.finished(ev, now);
		break;
	case COOP_EV_PEER:
		break; // the health is in coop_engine_peer_next()
	case COOP_EV_OFFER:
		break; // of no use to a host without a cache
	}
}

} // namespace coop::fetch_host
