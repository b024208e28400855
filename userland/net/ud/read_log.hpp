// SPDX-License-Identifier: MIT
// read_log.hpp - what a machine can say of its own reads when the other side asks: by ASK, or by a
// PUT that it sends again.
//
// Owns the list of reads whose end the other side does not know yet, and the last ends that it
// may have missed. Used under the lock of the machine.
#pragma once

#include <deque>
#include <unordered_map>

#include "operations.hpp"

namespace coop::net::ud
{

class read_log
{
public:
	explicit read_log(operations &o) : operations_(o) {}

	/// The end of a read, by the other side's operation.
	struct end {
		identity who;
		spi::token token;
		std::uint64_t key;
		outcome result;
		std::uint64_t length;
	};

	void begin(std::uint32_t index)
	{
		op &o = operations_[index];
		reading_.emplace(o.remote, index);
		o.logged = true;
	}
	/// Before the record is released; no effect if it is not listed.
	void leave(std::uint32_t index)
	{
		op &o = operations_[index];
		if (!std::exchange(o.logged, false))
			return;
		for (auto [i, end] = reading_.equal_range(o.remote); i != end; ++i)
			if (i->second == index) {
				reading_.erase(i);
				return;
			}
	}
	/// Whether the other side will be told by a read that is still listed.
	bool pending(identity who, spi::token t, std::uint64_t key) const
	{
		for (auto [i, end] = reading_.equal_range(t); i != end; ++i) {
			const op &o = operations_[i->second];
			if (o.remote_key == key && o.who == who)
				return true;
		}
		return false;
	}
	/// The other side may not learn of this end.
	void remember(const op &o, outcome result)
	{
		if (ends_.size() == most)
			ends_.pop_front();
		ends_.push_back({o.who, o.remote, o.remote_key, result, o.length});
	}
	/// The other side knows this end, but may have asked again before it did. Many of these do
	/// not push out those that it does not know.
	void told(const op &o, outcome result)
	{
		if (order_.size() == most) {
			told_.erase(order_.front());
			order_.pop_front();
		}
		told_.insert_or_assign(o.remote_key,
				       end{o.who, o.remote, o.remote_key, result, o.length});
		order_.push_back(o.remote_key);
	}
	/// The last end of such a read; null: none is known.
	const end *recall(identity who, spi::token t, std::uint64_t key) const
	{
		const auto known = told_.find(key);
		if (known != told_.end() && known->second.token == t && known->second.who == who)
			return &known->second;
		for (auto e = ends_.rbegin(); e != ends_.rend(); ++e)
			if (e->token == t && e->key == key && e->who == who)
				return &*e;
		return nullptr;
	}

private:
	static constexpr std::size_t most = 1024;

	operations &operations_;
	/// By the token of the other side.
	std::unordered_multimap<spi::token, std::uint32_t> reading_;
	std::deque<end> ends_;
	std::unordered_map<std::uint64_t, end> told_; // by key
	std::deque<std::uint64_t> order_;             // of told_, oldest first
};

} // namespace coop::net::ud
