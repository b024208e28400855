// SPDX-License-Identifier: MIT
// rpc.cpp - a messenger, the calls of this side and the requests of peers.
#include "coop/net/rpc.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "head.hpp"
#include "incoming.hpp"
#include "inside.hpp"
#include "outgoing.hpp"

namespace coop::net
{

using core::call_head;
using core::call_kind;

class rpc::state
{
public:
	state(domain &d, transfer_machine *theirs, const rpc_options &o,
	      messenger::receiver r = {}) :
		options_(checked(o)),
		guest_(theirs),
		messenger_(theirs ? messenger(d, *theirs, o.messages) : messenger(d, o.messages)),
		eager_(eager(d)),
		outgoing_(d, messenger_, options_, eager_, &messenger_),
		incoming_(d, messenger_, options_, eager_),
		receive_(std::move(r))
	{
		if (guest_ && messenger_.on_room([this] { incoming_.flush(); }))
			throw std::system_error(EBADFD, std::generic_category(),
						"the machine of calls has been started");
	}
	~state()
	{
		stop();
		incoming_.close();
	}

	int start(std::string_view address, messenger::receiver r);
	int stop();
	bool take(endpoint &from, std::span<const std::byte>);

	const rpc_options options_;
	const bool guest_; ///< at a machine of the program
	messenger messenger_;
	const std::size_t eager_;
	core::outgoing outgoing_;
	core::incoming incoming_;
	std::atomic<std::uint64_t> malformed_{0};

private:
	static rpc_options checked(rpc_options);
	std::size_t eager(const domain &d) const;
	void end(int status);

	messenger::receiver receive_;
	std::atomic<bool> stopped_{false}; ///< a guest
};

// Years are as good as for ever, and do not overflow the clock.
rpc_options rpc::state::checked(rpc_options o)
{
	constexpr std::chrono::milliseconds least{1}, most = std::chrono::hours(24 * 3650);
	if (o.probe < least || o.unread < least)
		throw std::system_error(EINVAL, std::generic_category(),
					"probe or unread is not positive");
	o.probe = std::min(o.probe, most);
	o.unread = std::min(o.unread, most);
	return o;
}

// A descriptor, too, must fit into a message.
std::size_t rpc::state::eager(const domain &d) const
{
	const std::size_t most = messenger_.max_message();
	const std::size_t least = call_head::size + d.limits().max_descriptor;
	if (most < least)
		throw std::system_error(EINVAL, std::generic_category(),
					"max_message must be at least " + std::to_string(least) +
						" bytes for calls");
	return std::min({options_.eager, options_.max_body, most - call_head::size});
}

int rpc::state::start(std::string_view address, messenger::receiver r)
{
	if (guest_ || messenger_.machine().state() != tm_state::initialized)
		return -EBADFD;
	receive_ = std::move(r);
	if (const int status = messenger_.on_room([this] { incoming_.flush(); }))
		return status;
	return messenger_.start(
		address,
		[this](endpoint &from, std::span<const std::byte> bytes) {
			if (!take(from, bytes))
				malformed_++;
		},
		[this](int status) { end(status ? status : -ECANCELED); });
}

// No call and no answer leaves any more.
void rpc::state::end(int status)
{
	incoming_.drop_all();
	outgoing_.end_all(status);
}

// @return false: not a message of calls.
bool rpc::state::take(endpoint &from, std::span<const std::byte> bytes)
{
	call_head h;
	if (!call_head::get(bytes, h))
		return false;
	if (stopped_)
		return true;
	switch (h.kind) {
	case call_kind::request:
		incoming_.take(
			from, h, bytes,
			[](const rpc::method_handler &run, std::shared_ptr<core::request_state> s) {
				run(request(std::move(s)));
			});
		break;
	case call_kind::answer:
		outgoing_.answered(from, h, bytes);
		break;
	case call_kind::probe:
		incoming_.probed(from, h);
		break;
	case call_kind::alive:
	case call_kind::unknown:
		outgoing_.probed(from, h);
		break;
	case call_kind::message:
		if (receive_)
			receive_(from, bytes);
		break;
	}
	return true;
}

int rpc::state::stop()
{
	const int status = messenger_.stop();
	if (guest_) {
		const core::inside scope(&messenger_);
		stopped_ = true;
		end(-ECANCELED);
	}
	if (status == 0 && !messenger_.inside())
		outgoing_.settle();
	return status;
}

// ---- the handles -----------------------------------------------------------------

rpc::rpc(domain &d, const rpc_options &o) : state_(std::make_unique<state>(d, nullptr, o)) {}

rpc::rpc(domain &d, transfer_machine &m, const rpc_options &o, messenger::receiver r) :
	state_(std::make_unique<state>(d, &m, o, std::move(r)))
{
}

rpc::~rpc() = default;

void rpc::serve(std::uint32_t method, method_handler h)
{
	state_->incoming_.serve(method, std::move(h));
}

int rpc::start(std::string_view address, messenger::receiver r)
{
	return state_->start(address, std::move(r));
}

bool rpc::take(endpoint &from, std::span<const std::byte> bytes)
{
	const core::inside scope(&state_->messenger_);
	return state_->take(from, bytes);
}

int rpc::call(const destination &to, std::uint32_t method, std::span<const std::byte> bytes,
	      completion done, time_point deadline)
{
	return state_->outgoing_.begin(to, method, bytes, std::move(done), deadline);
}

std::future<call_result> rpc::call(const destination &to, std::uint32_t method,
				   std::span<const std::byte> bytes, time_point deadline)
{
	auto over = std::make_shared<std::promise<call_result>>();
	for (;;) {
		int status = call(
			to, method, bytes,
			[over](call_result &&r) { over->set_value(std::move(r)); }, deadline);
		if (status == -EAGAIN && !state_->messenger_.inside()) {
			status = state_->outgoing_.wait_room(deadline);
			if (status == 0)
				status = state_->messenger_.wait_room(deadline);
			if (status == 0)
				continue;
		}
		if (status)
			over->set_value({status, false, {}});
		return over->get_future();
	}
}

int rpc::post(const destination &to, std::span<const std::byte> bytes, messenger::completion done,
	      time_point deadline, priority p)
{
	call_head h;
	h.length = bytes.size();
	std::array<std::byte, call_head::size> head;
	h.put(head.data());
	return state_->messenger_.post(to, {head, bytes}, std::move(done), deadline, p);
}

int rpc::send(const destination &to, std::span<const std::byte> bytes, time_point deadline,
	      priority p)
{
	if (state_->messenger_.inside())
		return -EDEADLK;
	for (;;) {
		auto over = std::make_shared<std::promise<int>>();
		const int status = post(
			to, bytes, [over](int s) { over->set_value(s); }, deadline, p);
		if (status == 0)
			return over->get_future().get();
		if (status != -EAGAIN)
			return status;
		if (const int waited = state_->messenger_.wait_room(deadline))
			return waited;
	}
}

std::size_t rpc::max_message() const noexcept
{
	return state_->messenger_.max_message() - call_head::size;
}

int rpc::stop()
{
	return state_->stop();
}

net::address rpc::address() const
{
	return state_->messenger_.address();
}

transfer_machine &rpc::machine() noexcept
{
	return state_->messenger_.machine();
}

bool rpc::inside() const noexcept
{
	return state_->messenger_.inside();
}

rpc_stats rpc::stats() const
{
	const core::outgoing &out = state_->outgoing_;
	const core::incoming &in = state_->incoming_;
	rpc_stats s;
	s.calls = out.calls;
	s.served = in.served;
	s.refused = in.refused;
	s.repeated = in.repeated;
	s.late = out.late;
	s.malformed = state_->malformed_;
	s.unsent = in.unsent;
	return s;
}

const address &request::from() const noexcept
{
	return state_->whose;
}

std::uint32_t request::method() const noexcept
{
	return state_->method;
}

std::span<const std::byte> request::bytes() const noexcept
{
	return state_->bytes;
}

time_point request::deadline() const noexcept
{
	return state_->deadline;
}

int request::answer(std::span<const std::byte> bytes) const
{
	return state_->gate->pass([&](core::incoming &in) { return in.answer(*state_, 0, bytes); });
}

int request::fail(int status) const
{
	if (status >= 0)
		return -EINVAL;
	return state_->gate->pass(
		[&](core::incoming &in) { return in.answer(*state_, status, {}); });
}

} // namespace coop::net
