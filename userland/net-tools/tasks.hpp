// SPDX-License-Identifier: MIT
// tasks.hpp - the measurements: round trips, a stream of messages, bulk transfers.
//
// A task ends after `count` operations or `seconds`, whichever comes first. All samples are kept,
// so percentiles are exact.
#pragma once

#include <memory>
#include <vector>

#include "client.hpp"

namespace coop::net_tools
{

struct extent {
	std::uint64_t count; ///< operations at most
	double seconds;      ///< at most
};

/// Sends a message and waits for one of the same length, one at a time.
class ping_task final : public task
{
public:
	ping_task(std::size_t size, extent e, bool check);
	/// Round trips in ns, in order.
	const std::vector<std::uint64_t> &samples() const { return samples_; }
	std::size_t size() const { return size_; }

private:
	void go(client &) override;
	void message(client &, const head &, std::span<const std::byte>) override;
	void sent(client &) override;
	void next(client &);
	void took(net::time_point now);

	const std::size_t size_;
	const extent extent_;
	const bool check_;
	net::time_point last_{}, end_{};
	std::uint32_t number_ = 0;
	bool waiting_ = false, over_ = false;
	std::vector<std::uint64_t> samples_;
};

/// One-way messages, `depth` under way at a time; the time ends when the server has them.
class stream_task final : public task
{
public:
	stream_task(std::size_t size, extent e, unsigned depth);
	std::uint64_t messages() const { return sent_; }
	unsigned depth() const { return depth_; }
	/// The number of those that the server received.
	std::uint64_t arrived() const
	{
		return static_cast<std::uint32_t>(after().counted - before().counted);
	}

private:
	void go(client &) override;
	void sent(client &) override;
	void next(client &);
	bool timed_by_server() const override { return true; }

	const std::size_t size_;
	const extent extent_;
	const unsigned depth_;
	net::time_point end_{};
	std::uint64_t sent_ = 0;
	unsigned under_way_ = 0;
	bool over_ = false;
};

/// Bulk transfers by descriptors in requests, `depth` under way at a time.
class bulk_task final : public task, net::buffer_handler
{
public:
	/// `fetch`: the server reads our memory. `fill`: it writes to it.
	bulk_task(client &, command direction, std::size_t size, extent e, unsigned depth);
	/// Times in ns from the offer of the memory to its final event.
	const std::vector<std::uint64_t> &samples() const { return samples_; }
	std::size_t size() const { return size_; }
	unsigned depth() const { return static_cast<unsigned>(pieces_.size()); }

private:
	struct piece {
		memory bytes;
		net::buffer buffer;
		net::time_point began{};
	};

	void go(client &) override;
	void message(client &, const head &, std::span<const std::byte>) override;
	void sent(client &) override;
	void on_buffer(const net::buffer_event &) override;
	void begin(piece &);
	void ask_for(piece &, outbox::slot &);

	client &client_;
	const command direction_;
	const std::size_t size_;
	const extent extent_;
	net::time_point end_{};
	std::uint64_t begun_ = 0;
	unsigned under_way_ = 0;
	std::vector<std::unique_ptr<piece>> pieces_;
	std::vector<piece *> unasked_; ///< offered; no slot for the request yet
	std::vector<std::uint64_t> samples_;
};

} // namespace coop::net_tools
