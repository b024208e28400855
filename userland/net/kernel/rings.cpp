// SPDX-License-Identifier: MIT
// rings.cpp - see rings.hpp.
#include "rings.hpp"

#include <cerrno>

namespace coop::net::kernel
{

void rings::use(coop_net_rings *r, coop_net_op *ops, std::uint32_t n_ops,
		const coop_net_event *events, std::uint32_t n_events)
{
	rings_ = r;
	ops_ = ops;
	n_ops_ = n_ops;
	events_ = events;
	n_events_ = n_events;
}

// ---- operations ------------------------------------------------------------------

bool rings::place(const coop_net_op &op)
{
	if (put_ - load(rings_->op_head, std::memory_order_acquire) >= n_ops_)
		return false;
	ops_[put_++ & (n_ops_ - 1)] = op;
	return true;
}

void rings::push(const coop_net_op &op)
{
	if (!behind_.empty() || !place(op))
		behind_.push_back(op);
}

void rings::cancel(std::uint32_t handle)
{
	coop_net_op op{};
	op.code = COOP_NET_CANCEL;
	op.handle = handle;
	push(op);
}

// An awake module promises to take what is in the ring, and may then sleep without an event. Nobody
// would bring the operations behind the ring into it, so we make room for them at once. Afterwards
// some wait only if the module has no room for their events: then events are in the ring or come,
// and the machine calls submit() once it has taken some.
void rings::submit()
{
	for (;;) {
		while (!behind_.empty() && place(behind_.front()))
			behind_.pop_front();
		const std::uint32_t taken = load(rings_->op_head, std::memory_order_relaxed);
		if (taken == put_) {
			if (behind_.empty())
				break;
			continue; // there is room since
		}
		std::atomic_ref(rings_->op_tail).store(put_, std::memory_order_release);
		// Either we see that the module sleeps, or it sees the new index before it does.
		std::atomic_thread_fence(std::memory_order_seq_cst);
		const std::uint32_t state = load(rings_->state, std::memory_order_relaxed);
		if (state & COOP_NET_FAILED || (state & COOP_NET_AWAKE && behind_.empty()))
			break;
		enter();
		if (behind_.empty() || load(rings_->op_head, std::memory_order_relaxed) == taken)
			break;
	}
}

// ---- events ----------------------------------------------------------------------

bool rings::next(coop_net_event &ev)
{
	if (empty())
		return false;
	ev = events_[taken_++ & (n_events_ - 1)];
	std::atomic_ref(rings_->event_head).store(taken_, std::memory_order_release);
	return true;
}

int rings::failure() const
{
	if (!(load(rings_->state, std::memory_order_acquire) & COOP_NET_FAILED))
		return 0;
	const int status = rings_->failure;
	return status < 0 ? status : -EIO;
}

} // namespace coop::net::kernel
