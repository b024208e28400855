// SPDX-License-Identifier: MIT
// calls_messenger.cpp - the messenger of calls for plays: no thread, the play gives it its turns.
//
// messenger.cpp waits for the events of its machine's states, which the background thread delivers.
// This one delivers synchronously, in the turns of all machines. Each message has memory of its own
// size that is freed with its event, so that the sanitizer finds every late access. Receive buffers
// are small and few, so that they fill up, retire and run out.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "coop/net/messenger.hpp"
#include "tests/fuzz/check.hpp"
#include "tests/fuzz/net_alone.hpp"

namespace coop::net
{

using namespace std::chrono_literals;

class messenger::state final : public buffer_handler
{
public:
	state(domain &d, const messenger_options &o) :
		domain_(d),
		options_(o),
		size_(std::min(o.max_message, d.limits().max_message)),
		pool_(d, {.buffers = o.receive_buffers, .segment_size = 2 * size_}),
		tm_(d)
	{
		FUZZ_CHECK(tm_.deliver_synchronously() == 0);
		FUZZ_CHECK(tm_.attach(pool_, *this, size_, 4) == 0);
	}
	~state() { stop(true); }

	int start(std::string_view address)
	{
		const int status = tm_.start(address);
		FUZZ_CHECK(status || tm_.state() == tm_state::started);
		return status;
	}
	int post(const destination &to, std::initializer_list<std::span<const std::byte>> parts,
		 completion done, time_point deadline, priority rank)
	{
		endpoint_ptr there;
		if (const int status = to.find(tm_, there))
			return status;
		if (under_way_ == options_.send_buffers)
			return stopping_ ? -EBADFD : -EAGAIN;
		std::vector<std::byte> bytes;
		for (const auto &part : parts)
			bytes.insert(bytes.end(), part.begin(), part.end());
		FUZZ_CHECK(bytes.size() <= size_);
		auto p = std::make_unique<piece>();
		p->memory = std::make_unique<std::byte[]>(std::max<std::size_t>(bytes.size(), 1));
		std::copy(bytes.begin(), bytes.end(), p->memory.get());
		p->registered = std::make_unique<buffer>(domain_, p->memory.get(),
							 std::max<std::size_t>(bytes.size(), 1));
		p->done = std::move(done);
		operation o;
		o.queue = queue_type::msg_send;
		o.length = bytes.size();
		o.to = there.get();
		o.deadline = deadline;
		o.priority = rank;
		o.handler = this;
		o.context = p.get();
		if (const int status = tm_.add(*p->registered, o))
			return status == -ETIME ? -ETIMEDOUT : status;
		under_way_++;
		(void)p.release(); // its event's
		return 0;
	}
	int wait_room(time_point) const
	{
		return stopping_                             ? -ECANCELED
		       : under_way_ == options_.send_buffers ? -ETIMEDOUT
							     : 0;
	}
	void stop(bool abort)
	{
		if (tm_.state() == tm_state::initialized || stopping_)
			return;
		stopping_ = true;
		FUZZ_CHECK(tm_.stop(abort) == 0);
		while (tm_.state() < tm_state::stopped)
			if (!fuzz_net::turn_all())
				fuzz_net::the_time += 1ms;
		while (tm_.deliver_all())
			continue;
		FUZZ_CHECK(under_way_ == 0);
		if (ended_)
			ended_(0);
	}

	domain &domain_;
	const messenger_options options_;
	const std::size_t size_;
	receiver receive_;
	completion ended_;
	std::function<void()> room_;
	buffer_pool pool_;
	transfer_machine tm_; // destroyed first: no event comes afterwards

private:
	struct piece {
		std::unique_ptr<std::byte[]> memory;
		std::unique_ptr<buffer> registered;
		completion done;
	};

	void on_buffer(const buffer_event &e) override
	{
		if (e.queue != queue_type::msg_send) {
			const auto *base = static_cast<std::byte *>(e.buffer->segments()[0].base);
			if (e.sender && e.status == 0 && receive_)
				receive_(*e.sender, {base + e.offset, e.length});
			if (!e.queued)
				(void)pool_.put(e.buffer);
			return;
		}
		const std::unique_ptr<piece> p(static_cast<piece *>(e.context));
		const completion done = std::move(p->done);
		under_way_--;
		if (done)
			done(e.status);
		if (room_)
			room_();
	}

	std::uint32_t under_way_ = 0;
	bool stopping_ = false;
};

messenger::messenger(domain &d, const messenger_options &o) : state_(std::make_unique<state>(d, o))
{
}

// The calls of this play are at a machine of their own.
messenger::messenger(domain &d, transfer_machine &, const messenger_options &o) : messenger(d, o)
{
	FUZZ_CHECK(false);
}

messenger::~messenger() = default;

int messenger::start(std::string_view address, receiver r, completion ended)
{
	state_->receive_ = std::move(r);
	state_->ended_ = std::move(ended);
	return state_->start(address);
}

int messenger::post(const destination &to, std::span<const std::byte> bytes, completion done,
		    time_point deadline, priority p)
{
	return state_->post(to, {bytes}, std::move(done), deadline, p);
}

int messenger::post(const destination &to, std::initializer_list<std::span<const std::byte>> parts,
		    completion done, time_point deadline, priority p)
{
	return state_->post(to, parts, std::move(done), deadline, p);
}

int messenger::wait_room(time_point deadline)
{
	return state_->wait_room(deadline);
}

int messenger::on_room(std::function<void()> room)
{
	state_->room_ = std::move(room);
	return 0;
}

int messenger::stop(bool abort)
{
	state_->stop(abort);
	return 0;
}

net::address messenger::address() const
{
	return state_->tm_.address();
}

std::size_t messenger::max_message() const noexcept
{
	return state_->size_;
}

transfer_machine &messenger::machine() noexcept
{
	return state_->tm_;
}

bool messenger::inside() const noexcept
{
	return false;
}

} // namespace coop::net
