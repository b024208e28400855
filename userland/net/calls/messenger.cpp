// SPDX-License-Identifier: MIT
// messenger.cpp - a transfer machine, a pool of receive buffers and a list of send buffers; or, at
// a machine of the program, the send buffers alone.
//
// A send buffer is free, or belongs to one send until its final event. The lock guards the list of
// free ones and the state of waiting threads; it is never held during a callback or a call of the
// machine.
#include "coop/net/messenger.hpp"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <vector>

#include "inside.hpp"

namespace coop::net
{

class messenger::state final : public buffer_handler, public tm_handler
{
public:
	/// `theirs`: the program's machine, or null for one of its own.
	state(messenger &m, domain &d, transfer_machine *theirs, const messenger_options &o);
	~state() { stop(true); }

	struct slot {
		slot(domain &d, std::size_t size) :
			bytes(new std::byte[size]),
			registered(d, bytes.get(), size)
		{
		}
		std::unique_ptr<std::byte[]> bytes;
		buffer registered;
		completion done;
	};
	struct parts {
		const std::span<const std::byte> *first;
		std::size_t count;
	};

	int start(std::string_view address, receiver, completion ended);
	int post(const destination &to, parts, completion done, time_point deadline, priority);
	int wait_room(time_point deadline);
	int stop(bool abort);
	/// The second: by any handler on the machine's thread, also of the program's own
	/// operations. The machine refuses to wait there, and elsewhere its deadline has passed.
	bool called_inside()
	{
		return core::inside::of(&owner_) ||
		       tm_.wait(tm_state::stopped, time_point{}) == -EDEADLK;
	}

	messenger &owner_;
	const std::size_t size_;
	receiver receive_;
	completion ended_;
	std::function<void()> room_;

private:
	void on_buffer(const buffer_event &) override;
	void on_state(const tm_event &) override;
	void received(const buffer_event &);
	void give_back(slot &);
	void failed(slot &);

	std::mutex lock_;
	std::condition_variable changed_;
	std::vector<slot *> free_;
	unsigned waiting_ = 0;
	bool refused_ = false; ///< a post() found no buffer since a failed one freed its own
	bool stopping_ = false;
	int failure_ = 0;
	std::vector<std::unique_ptr<slot>> slots_;
	std::unique_ptr<buffer_pool> pool_;     // with a machine of its own
	std::unique_ptr<transfer_machine> own_; // destroyed first: no event comes afterwards

public:
	transfer_machine &tm_; // its own, or the program's
};

namespace
{

std::size_t checked(const messenger_options &o, const domain &d, bool guest)
{
	if (!o.max_message || !o.send_buffers || (!guest && !o.receive_buffers))
		throw std::system_error(EINVAL, std::generic_category(),
					"an option of a messenger is 0");
	const std::uint64_t receives = guest ? 0 : o.receive_buffers;
	if (o.send_buffers + receives > d.limits().max_queued)
		throw std::system_error(
			EINVAL, std::generic_category(),
			"more send_buffers and receive_buffers than a machine can queue");
	return std::min(o.max_message, d.limits().max_message);
}

} // namespace

messenger::state::state(messenger &m, domain &d, transfer_machine *theirs,
			const messenger_options &o) :
	owner_(m),
	size_(checked(o, d, theirs)),
	own_(theirs ? nullptr : std::make_unique<transfer_machine>(d, this)),
	tm_(theirs ? *theirs : *own_)
{
	for (std::uint32_t i = 0; i < o.send_buffers; i++) {
		slots_.push_back(std::make_unique<slot>(d, size_));
		free_.push_back(slots_.back().get());
	}
	if (theirs)
		return;
	pool_ = std::make_unique<buffer_pool>(
		d, pool_options{.buffers = std::max(o.receive_buffers, 2u), .segment_size = size_});
	// A buffer takes messages while an eighth of it is free. If the next message is longer
	// than what is left, the machine retires the buffer and takes another one.
	const std::size_t least = std::max<std::size_t>(size_ / 8, 1);
	int status = tm_.attach(*pool_, *this, least, 64);
	if (status == 0 && o.poll.count())
		status = tm_.poll_before_block(o.poll);
	if (status == 0)
		status = tm_.set_pool_length(std::max(o.receive_buffers / 2, 2u));
	if (status)
		throw std::system_error(-status, std::generic_category(), "messenger");
}

int messenger::state::start(std::string_view address, receiver r, completion ended)
{
	if (!own_ || tm_.state() != tm_state::initialized)
		return -EBADFD;
	receive_ = std::move(r);
	ended_ = std::move(ended);
	if (const int status = tm_.start(address))
		return status;
	const int status = tm_.wait(tm_state::started);
	std::lock_guard hold(lock_);
	return status && failure_ ? failure_ : status;
}

int messenger::state::post(const destination &to, parts p, completion done, time_point deadline,
			   priority rank)
{
	std::size_t length = 0;
	for (std::size_t i = 0; i < p.count; i++)
		length += p.first[i].size();
	if (length > size_)
		return -EMSGSIZE;
	if (!own_) {
		std::lock_guard hold(lock_);
		if (stopping_)
			return -EBADFD;
	}
	endpoint_ptr there;
	if (const int status = to.find(tm_, there))
		return status;
	slot *s;
	{
		std::lock_guard hold(lock_);
		if (free_.empty()) {
			refused_ = true;
			return stopping_ ? -EBADFD : -EAGAIN;
		}
		s = free_.back();
		free_.pop_back();
	}
	std::byte *at = s->bytes.get();
	for (std::size_t i = 0; i < p.count; i++)
		at = std::copy(p.first[i].begin(), p.first[i].end(), at);
	s->done = std::move(done);
	operation o;
	o.queue = queue_type::msg_send;
	o.length = length;
	o.to = there.get();
	o.deadline = deadline;
	o.priority = rank;
	o.handler = this;
	o.context = s;
	const int status = tm_.add(s->registered, o);
	if (status == 0)
		return 0;
	s->done = {};
	failed(*s);
	return status == -ETIME ? -ETIMEDOUT : status;
}

// No event follows for its buffer, which another thread may have missed meanwhile.
void messenger::state::failed(slot &s)
{
	give_back(s);
	bool missed;
	{
		std::lock_guard hold(lock_);
		missed = std::exchange(refused_, false);
	}
	if (missed && room_)
		room_();
}

void messenger::state::give_back(slot &s)
{
	bool waited;
	{
		std::lock_guard hold(lock_);
		free_.push_back(&s);
		waited = waiting_ != 0;
	}
	if (waited)
		changed_.notify_all();
}

int messenger::state::wait_room(time_point deadline)
{
	const bool here = called_inside();
	std::unique_lock hold(lock_);
	if (here)
		return free_.empty() ? -EDEADLK : 0;
	waiting_++;
	const auto over = [this] { return stopping_ || !free_.empty(); };
	bool in_time = true;
	if (deadline == never)
		changed_.wait(hold, over);
	else
		in_time = changed_.wait_until(hold, deadline, over);
	waiting_--;
	return stopping_ ? -ECANCELED : in_time ? 0 : -ETIMEDOUT;
}

void messenger::state::received(const buffer_event &e)
{
	if (e.sender && e.status == 0 && receive_) {
		const auto *base = static_cast<const std::byte *>(e.buffer->segments()[0].base);
		receive_(*e.sender, {base + e.offset, e.length});
	}
	if (!e.queued) [[maybe_unused]]
		const int status = pool_->put(e.buffer);
}

void messenger::state::on_buffer(const buffer_event &e)
{
	const core::inside scope(&owner_);
	if (e.queue != queue_type::msg_send) {
		received(e);
		return;
	}
	slot &s = *static_cast<slot *>(e.context);
	// The buffer is free before `done` runs, so that it can send the next message.
	const completion done = std::exchange(s.done, {});
	give_back(s);
	if (done)
		done(e.status);
	if (room_)
		room_();
}

void messenger::state::on_state(const tm_event &e)
{
	const core::inside scope(&owner_);
	if (e.state == tm_state::started)
		return;
	{
		std::lock_guard hold(lock_);
		stopping_ = true;
		failure_ = e.status;
	}
	changed_.notify_all();
	if (ended_)
		ended_(e.status);
}

int messenger::state::stop(bool abort)
{
	if (own_ && tm_.state() == tm_state::initialized)
		return -EBADFD;
	if (abort || !own_) {
		{
			std::lock_guard hold(lock_);
			stopping_ = true;
		}
		changed_.notify_all();
	}
	if (!own_)
		return 0;
	// -EBADFD: another call stops it, or it has ended.
	[[maybe_unused]] const int asked = tm_.stop(abort);
	if (called_inside())
		return 0;
	[[maybe_unused]] const int over = tm_.wait(tm_state::stopped); // -ECANCELED: it has failed
	return 0;
}

// ---- the handle ------------------------------------------------------------------

messenger::messenger(domain &d, const messenger_options &o) :
	state_(std::make_unique<state>(*this, d, nullptr, o))
{
}

messenger::messenger(domain &d, transfer_machine &m, const messenger_options &o) :
	state_(std::make_unique<state>(*this, d, &m, o))
{
}

messenger::~messenger() = default;

int messenger::start(std::string_view address, receiver r, completion ended)
{
	return state_->start(address, std::move(r), std::move(ended));
}

int messenger::send(const destination &to, std::span<const std::byte> bytes, time_point deadline,
		    priority p)
{
	if (inside())
		return -EDEADLK;
	for (;;) {
		const int status = async_send(to, bytes, deadline, p).get();
		if (status != -EAGAIN)
			return status;
		if (const int waited = wait_room(deadline))
			return waited;
	}
}

int messenger::post(const destination &to, std::span<const std::byte> bytes, completion done,
		    time_point deadline, priority p)
{
	return state_->post(to, {&bytes, 1}, std::move(done), deadline, p);
}

int messenger::post(const destination &to, std::initializer_list<std::span<const std::byte>> parts,
		    completion done, time_point deadline, priority p)
{
	return state_->post(to, {parts.begin(), parts.size()}, std::move(done), deadline, p);
}

std::future<int> messenger::async_send(const destination &to, std::span<const std::byte> bytes,
				       time_point deadline, priority p)
{
	auto over = std::make_shared<std::promise<int>>();
	const int status = post(
		to, bytes, [over](int s) { over->set_value(s); }, deadline, p);
	if (status)
		over->set_value(status);
	return over->get_future();
}

int messenger::wait_room(time_point deadline)
{
	return state_->wait_room(deadline);
}

int messenger::on_room(std::function<void()> room)
{
	if (state_->tm_.state() != tm_state::initialized)
		return -EBADFD;
	state_->room_ = std::move(room);
	return 0;
}

int messenger::stop(bool abort)
{
	return state_->stop(abort);
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
	return state_->called_inside();
}

} // namespace coop::net
