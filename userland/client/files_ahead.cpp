// SPDX-License-Identifier: MIT
// files_ahead.cpp - see files_ahead.hpp.
#include "userland/client/files_ahead.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "rpc/storage/bundle.h"

namespace coop::client
{

namespace
{

constexpr std::size_t waiting_most = 2 * COOP_BUNDLE_RECORDS; // files

} // namespace

files_ahead::files_ahead(page_store &store, fetcher &f, const membership *m) :
	store_(store),
	fetcher_(f),
	membership_(m),
	window_(std::min<std::uint64_t>(window_most, store.stats().capacity / 4)),
	most_(std::min(files_most, f.background_most())),
	may_fetch_(window_)
{
}

files_ahead::~files_ahead()
{
	std::unique_lock lock(mutex_);
	ending_ = true;
	files_.clear();
	idle_.wait(lock, [this] { return callbacks_ == 0; });
}

void files_ahead::add(std::vector<held_content> files)
{
	{
		const std::lock_guard lock(mutex_);
		if (ending_)
			return;
		files_.insert(files_.begin(), std::move_iterator(files.begin()),
			      std::move_iterator(files.end()));
		if (files_.size() > waiting_most)
			files_.resize(waiting_most);
	}
	start();
}

void files_ahead::start()
{
	go();
	fetcher_.tend();
}

// One thread at a time: fetches may end within the calls that begin and send them, and then call
// this again.
void files_ahead::go()
{
	std::unique_lock lock(mutex_);
	if (running_) {
		again_ = true;
		return;
	}
	running_ = true;
	do {
		bool any = false;
		again_ = false;
		fill(lock, any);
		if (any) {
			lock.unlock();
			fetcher_.flush();
			lock.lock();
		}
	} while (again_);
	running_ = false;
	waits_.store(!files_.empty() && (under_way_ == 0 || files_.front().size > may_fetch_),
		     std::memory_order_relaxed);
}

void files_ahead::fill(std::unique_lock<std::mutex> &lock, bool &any)
{
	may_fetch_ = std::min(may_fetch_ + used_.exchange(0), window_);
	while (!files_.empty() && under_way_ < most_ && files_.front().size <= may_fetch_) {
		held_content f = std::move(files_.front());
		files_.pop_front();
		may_fetch_ -= f.size;
		under_way_++;
		callbacks_++;
		lock.unlock();
		const begun what = begin(f);
		lock.lock();
		if (what == begun::yes) {
			any = true;
			continue;
		}
		may_fetch_ += f.size;
		under_way_--;
		callbacks_--;
		if (what == begun::no_node)
			std::erase_if(files_, [&](const held_content &other) {
				return other.nodes == f.nodes;
			});
		if (what == begun::busy) {
			if (!ending_)
				files_.push_front(std::move(f));
			return;
		}
	}
}

// Of a fetch that has ended, and of which nothing else is to be done.
void files_ahead::ended()
{
	bool few;
	{
		const std::lock_guard lock(mutex_);
		few = --under_way_ <= most_ / 2 && !files_.empty();
	}
	if (few)
		go();
	const std::lock_guard lock(mutex_); // last: after this it may be destroyed
	if (--callbacks_ == 0)
		idle_.notify_all();
}

files_ahead::begun files_ahead::begin(const held_content &f)
{
	const content_key key{f.fid, f.version};
	const std::uint64_t n = (f.size + (1u << store_.page_shift()) - 1) >> store_.page_shift();
	if (n == 0 || n > 64 || store_.in_kernel().noted(key, 0) != 0)
		return begun::no;
	block_ref pin = store_.get(key, 0, f.size);
	// A private block of the reserve would not be found by who reads the file.
	if (!pin || store_.find(key, 0, false).get() != pin.get())
		return begun::no;
	const std::uint32_t level =
		membership_ != nullptr ? membership_->place(key, 0).level : COOP_LEVEL_NO_ROLE;
	const std::uint64_t pages = pin->claim(~std::uint64_t{0} >> (64 - n), level);
	if (pages == 0)
		return begun::no;
	fetch_sources from;
	from.openers = f.nodes;
	from.background = from.gather = true;
	auto done = [this, pages,
		     held = std::make_shared<block_ref>(pin.clone())](const fetch_outcome &out) {
		(*held)->abandon(pages & ~out.good);
		*held = block_ref();
		ended();
	};
	const int err = fetcher_.fetch(key, f.size, pin.clone(), pages, from, done);
	if (err == 0) {
		pages_.fetch_add(static_cast<std::uint64_t>(std::popcount(pages)),
				 std::memory_order_relaxed);
		return begun::yes;
	}
	pin->abandon(pages);
	if (pin->valid() == 0 && pin->loading() == 0)
		store_.drop(key); // an empty block takes the place of a full one
	return err == -EAGAIN ? begun::busy : begun::no_node;
}

} // namespace coop::client
