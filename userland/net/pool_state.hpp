// SPDX-License-Identifier: MIT
// pool_state.hpp - the implementation of a buffer pool: lists of idle buffers.
//
// A buffer in the pool is on the plain list, or on two lists: that of its colour, most recently
// used first, and that of all coloured buffers in the order of their return. So the right buffer
// for any colour is at the head of a list, and buffers with lapsed claims are at the tail of one.
// Take a pool's locks after a machine's lock, never before; the callers of take() and give() call
// handlers, without locks.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "buffer_state.hpp"
#include "coop/net/buffer_pool.hpp"

namespace coop::net::core
{

class pool_state
{
public:
	pool_state(std::shared_ptr<domain_state>, domain &, const pool_options &, buffer_pool *);
	~pool_state();

	struct taken {
		buffer_state *buffer; // or null
		bool below;           // call tell_below()
	};
	taken take(std::uint32_t colour);
	/// @return 0, -EINVAL, -EBUSY. `first`: call tell_not_empty().
	int give(buffer_state *, bool &first);
	int grow(std::uint32_t n);
	void tell_below();
	std::size_t buffer_size() const { return options_.segment_size * options_.segments; }
	static buffer_state *state_of(net::buffer &);
	static pool_state &of(buffer_pool &);
	/// Wakes the domain's thread if a machine waits, and calls the handler.
	void tell_not_empty();

	/// Machines with a deficit, the one unserved longest first. A machine in the list exists.
	using short_list = std::list<machine *>;
	short_list::iterator add_short(machine &);
	void remove_short(short_list::iterator);
	/// The next of them, if the pool has a buffer for it.
	std::shared_ptr<machine> next_short();

	std::atomic<std::uint32_t> attached{0};
	std::atomic<std::uint32_t> free{0};
	std::atomic<std::uint32_t> total{0};
	const std::shared_ptr<domain_state> domain;
	buffer_pool *const handle;
	bool wanted = false; // on the domain's list; guarded by the domain's lock

private:
	struct list { // of buffers without a colour, or of all that have one; newest first
		buffer_state *head = nullptr, *tail = nullptr;
		void push(buffer_state *);
		void erase(buffer_state *);
	};
	void push(buffer_state *);
	void erase(buffer_state *);
	void sweep(time_point now);

	std::atomic<std::uint32_t> waiting_{0}; // size of short_, which changes under short_lock_
	std::mutex short_lock_;                 // taken after all other locks
	short_list short_;

	net::domain &domain_handle_;
	const pool_options options_;
	std::mutex lock_; // guards all below and the pool_entry of every buffer
	list plain_, coloured_;
	std::vector<buffer_state *> heads_; // by colour: most recently used
	struct owned {
		std::unique_ptr<std::byte[], void (*)(std::byte *)> memory;
		std::unique_ptr<net::buffer> buffer;
	};
	std::vector<owned> owned_;
};

} // namespace coop::net::core
