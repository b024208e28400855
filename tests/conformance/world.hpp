// SPDX-License-Identifier: MIT
// world.hpp - a domain, transfer machines in it, and a record of every event.
//
// The same tests run with automatic and with synchronous delivery: until() waits for a condition
// in either, pumping the machines that need it, and fails after a time far longer than any test
// needs. No test sleeps and hopes.
#pragma once

#include <condition_variable>
#include <deque>
#include <gtest/gtest.h>
#include <memory>
#include <mutex>
#include <thread>

#include "target.hpp"

namespace conformance
{

using namespace std::chrono_literals;

/// Far longer than any passing test takes: 100 s, or so many times longer as
/// COOP_CONFORMANCE_PATIENCE in the environment says.
extern const std::chrono::seconds patience;

/// The mode of a test: a transport and a way of delivery.
struct mode {
	const target *of;
	bool sync;
};
std::ostream &operator<<(std::ostream &, const mode &);
std::string mode_name(const testing::TestParamInfo<mode> &);
std::vector<mode> automatic(), synchronous(), both();

/// Every event of every machine rings it.
struct bell {
	std::mutex lock;
	std::condition_variable rung;
};

/// A buffer event as it came.
struct happened {
	const net::buffer *buffer;
	queue_type queue;
	bool queued;
	int status;
	std::size_t offset, length;
	endpoint_ptr sender;
	void *context;
	std::thread::id thread;
	int cpu;
};

/// Handler of all events of one machine; keeps them. If `before` is set, events go there first.
class recorder final : public buffer_handler, public tm_handler
{
public:
	explicit recorder(bell &b) : bell_(b) {}
	void on_buffer(const buffer_event &) override;
	void on_state(const tm_event &) override;

	std::vector<happened> all() const;
	/// Events of one buffer; final ones only, or all.
	std::vector<happened> of(const net::buffer &, bool finals = true) const;
	std::size_t finals(const net::buffer &b) const { return of(b).size(); }
	std::size_t count() const;
	/// Messages received.
	std::vector<happened> messages() const;
	std::vector<std::pair<tm_event, std::thread::id>> states() const;
	bool came(tm_state) const;
	void clear();

	/// Set before the machine starts.
	std::function<void(const buffer_event &)> on_event;
	std::function<void(const tm_event &)> on_change;

private:
	bell &bell_;
	mutable std::mutex lock_;
	std::deque<happened> events_;
	std::vector<std::pair<tm_event, std::thread::id>> states_;
};

/// Memory and a buffer over it. Several segments are cut at odd places.
struct piece {
	piece(domain &, std::size_t size, unsigned segments = 1);
	void fill(unsigned seed);
	std::vector<std::byte> copy(std::size_t offset, std::size_t length) const;
	bool is(std::byte b, std::size_t offset, std::size_t length) const;

	std::vector<std::vector<std::byte>> memory;
	std::unique_ptr<net::buffer> buffer;
};

/// Byte i of pattern `seed`.
std::byte pattern(unsigned seed, std::size_t i);
std::vector<std::byte> patterned(unsigned seed, std::size_t length);

class world;

/// A transfer machine with its record.
struct node {
	node(world &, domain &, bool sync);
	int start(const std::string &address);
	/// Starts and waits for the start. @return whether it started.
	bool up(const std::string &address);

	world &in;
	domain &of;
	const bool sync;
	recorder record;
	transfer_machine tm;

	int receive(piece &, std::size_t min_size = 0, std::uint32_t max_msgs = 1,
		    time_point deadline = never);
	int send(piece &, std::size_t length, const endpoint_ptr &to, time_point deadline = never);
	int passive(piece &, queue_type, std::size_t length = 0, time_point deadline = never);
	int active(piece &, queue_type, std::span<const std::byte> descriptor,
		   std::size_t length = 0, time_point deadline = never);
	/// Calls `add` with a deadline so far ahead, and again if the deadline passed before the
	/// add on a busy machine. @return as `add`.
	template <class function> static int within(std::chrono::milliseconds limit, function add)
	{
		const time_point enough = clock::now() + patience;
		int r;
		do
			r = add(clock::now() + limit);
		while (r == -ETIME && clock::now() < enough);
		return r;
	}
	endpoint_ptr to(const node &other);
	std::string text() const { return format(tm.address()); }
};

class world
{
public:
	explicit world(const mode &m) : how(m) {}
	~world();

	/// `transport`: the target's; with its options.
	domain &open(const parameters &more = {}, const std::string &transport = {});
	domain &home(); ///< the first domain, opened on demand
	/// A started node, at the target's next address.
	node &up(domain *d = nullptr);
	/// A node that is not started.
	node &made(domain *d = nullptr);
	/// Memory and pools that live as long as the nodes.
	piece &memory(std::size_t size, unsigned segments = 1, domain *d = nullptr);
	buffer_pool &pool(const pool_options &, domain *d = nullptr);
	/// An object that pools refer to.
	template <class thing> thing &keep()
	{
		auto p = std::make_shared<thing>();
		kept_.push_back(p);
		return *p;
	}
	std::string next_address() { return how.of->address(addresses_++); }

	/// Waits, pumping, until `f` holds. @return false: patience ran out.
	bool until(const std::function<bool()> &f);
	/// Waits until the buffer has had this many final events in all.
	bool ended(const node &, const piece &, std::size_t times = 1);
	/// Stops a node and forgets it.
	void remove(node &);

	const mode how;
	bell rings;

private:
	friend struct node;
	std::vector<std::unique_ptr<domain>> domains_;
	std::vector<std::shared_ptr<void>> kept_;
	std::deque<std::unique_ptr<piece>> pieces_;
	std::deque<std::unique_ptr<buffer_pool>> pools_;
	std::vector<std::unique_ptr<node>> nodes_;
	unsigned addresses_ = 0;
};

/// The base of every test.
class suite : public testing::TestWithParam<mode>
{
protected:
	world w{GetParam()};
	const target &t = *GetParam().of;
};

#define COOP_CONFORMANCE(name, modes) \
	INSTANTIATE_TEST_SUITE_P(on, name, testing::ValuesIn(modes()), mode_name)

/// The count for a normal run, or with COOP_LONG=1 in the environment (make check-long).
unsigned scale(unsigned normally, unsigned when_long);

} // namespace conformance
