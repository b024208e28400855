// SPDX-License-Identifier: MIT
// page_store.cpp - the index, the arena and what happens when it is full.
//
// Small blocks that outlive their neighbours leave an arena full of holes in
// which no large run fits. When evicting in queue order has given back twice what
// is needed and still no run, the frame of the next victim is swept.
//
// Memory follows use in both directions: frames become present as blocks are made
// in them, a few ahead of that; frames that blocks have left go back to the system
// bit by bit, all of them at once when the machine is short of memory.
#include "userland/client/page_store.hpp"

#include <algorithm>
#include <bit>
#include <system_error>

namespace coop::client
{

namespace
{

constexpr std::uint32_t reserve_frames = 64;
constexpr std::uint32_t min_frames = 4;
constexpr std::uint32_t least_frames = 64;   // that are kept where memory lacks
constexpr std::uint32_t few_blocks = 64;     // evicted while the mutex is held
constexpr std::size_t notes = 8;             // of blocks in the kernel, for each block of the store
constexpr std::uint32_t retrieved_room = 16; // of the capacity is kept after it was retrieved
constexpr std::uint32_t few_frames = 8;      // given back while it is held
constexpr std::uint32_t offer_room = 16;     // of the capacity stays free of offered blocks
constexpr std::uint32_t growth = 16;         // of the capacity a step, when memory lacks no more

} // namespace

page_store::page_store(std::uint32_t frames, unsigned page_shift, std::size_t ahead) :
	page_shift_(page_shift),
	kept_pages_(frames * buddy::frame_pages),
	ahead_frames_(static_cast<std::uint32_t>(
		std::min(ahead >> (page_shift + buddy::max_order), std::size_t{frames}))),
	arena_((std::size_t{frames} + reserve_frames) << (page_shift + buddy::max_order),
	       std::size_t{1} << (page_shift + buddy::max_order), ahead,
	       std::size_t{frames} << (page_shift + buddy::max_order)),
	in_kernel_(frames * notes),
	runs_(0, frames),
	reserve_(kept_pages_, reserve_frames),
	queues_(std::uint64_t{kept_pages_} << page_shift, page_shift),
	buckets_(std::bit_ceil(std::size_t{kept_pages_} / 2)),
	by_page_(kept_pages_),
	limit_(kept_pages_)
{
}

page_store::~page_store()
{
	// No pin may be left; pages whose owner went without a word are no reason to stay.
	while (!contents_.empty())
		forget(contents_.begin()->second);
}

void page_store::link(block *b)
{
	block *&head = bucket(b->key, b->index());
	b->hash_next = head;
	head = b;
	block *&first = contents_[b->key];
	b->sibling_prev = nullptr;
	b->sibling_next = first;
	if (first != nullptr)
		first->sibling_prev = b;
	first = b;
	stats_.blocks++;
}

void page_store::unlink(block *b)
{
	block **at = &bucket(b->key, b->index());
	while (*at != b)
		at = &(*at)->hash_next;
	*at = b->hash_next;
	if (b->sibling_next != nullptr)
		b->sibling_next->sibling_prev = b->sibling_prev;
	if (b->sibling_prev != nullptr)
		b->sibling_prev->sibling_next = b->sibling_next;
	else if (b->sibling_next != nullptr)
		contents_[b->key] = b->sibling_next;
	else
		contents_.erase(b->key);
	stats_.blocks--;
}

void page_store::free_memory(block *b)
{
	if (runs_.owns(b->first_page)) {
		runs_.free(b->first_page, b->order);
		by_page_[b->first_page] = nullptr;
	} else {
		arena_.punch(std::size_t{b->first_page} << page_shift_,
			     std::size_t{1} << (b->order + page_shift_));
		reserve_.free(b->first_page, b->order);
	}
	delete b;
}

// Takes a linked block out of the store; its memory goes now or with its last pin.
void page_store::forget(block *b)
{
	queues_.remove(b);
	unlink(b);
	if (b->forget())
		free_memory(b);
}

void page_store::release_forgotten(block *b)
{
	const std::lock_guard lock(mutex_);
	free_memory(b);
}

void page_store::need_memory(const block &b)
{
	const auto page = static_cast<std::uint32_t>(b.arena_offset(0) >> page_shift_);
	if (runs_.owns(page)) // the reserve is punched after each use: it takes the faults
		arena_.need_frame(page / buddy::frame_pages);
}

void page_store::evict(block *b)
{
	stats_.evicted_blocks++;
	stats_.evicted_pages += static_cast<std::uint64_t>(std::popcount(b->valid()));
	forget(b);
}

std::uint32_t page_store::alloc(unsigned order)
{
	const std::uint32_t used = used_pages() + (1u << order);
	nearly_full_.store(used + limit_ / offer_room > limit_, std::memory_order_relaxed);
	if (used > limit_)
		return buddy::none;
	const std::uint32_t page = runs_.alloc(order);
	if (page != buddy::none)
		arena_.use_frame(page / buddy::frame_pages);
	return page;
}

std::uint32_t page_store::make_room(unsigned order)
{
	std::uint32_t page = alloc(order);
	std::uint32_t given_back = 0;
	bool kept = false; // one at a time: what comes after it makes the room
	while (page == buddy::none) {
		block *b = queues_.victim();
		if (b == nullptr)
			break;
		if (leaver_ && !kept && leaver_(*b)) {
			kept = true;
			continue;
		}
		const std::uint32_t frame = b->first_page & ~(buddy::frame_pages - 1);
		given_back += 1u << b->order;
		evict(b);
		if (given_back > 2u << order) {
			for (std::uint32_t p = frame; p < frame + buddy::frame_pages; p++) {
				block *other = by_page_[p];
				if (other != nullptr && other->queue != queue_id::none &&
				    other->idle())
					evict(other);
			}
		}
		page = alloc(order);
	}
	return page;
}

void page_store::evict_down_to(std::uint32_t pages)
{
	for (bool more = true; more;) {
		const std::lock_guard lock(mutex_);
		for (std::uint32_t n = 0; n < few_blocks && more; n++) {
			block *b = used_pages() > pages ? queues_.victim() : nullptr;
			more = b != nullptr;
			if (more)
				evict(b);
		}
	}
}

void page_store::given(block_ref ref, std::uint64_t pages, bool company)
{
	ref->given(pages);
	if (!company && ref->in_kernel() && may_leave(*ref))
		leave(std::move(ref));
	else if (copies_ == copies::spare && nearly_full_.load(std::memory_order_relaxed))
		leave_one();
}

// The block that would be evicted next leaves in time, if the kernel has it: evicted, it would not
// be noted, and peers could not get it.
void page_store::leave_one()
{
	block_ref ref;
	{
		const std::lock_guard lock(mutex_);
		block *const b = queues_.next();
		if (b == nullptr || !b->idle() || b->valid() == 0 || !b->in_kernel() || b->stays())
			return;
		b->pin();
		ref = block_ref(b);
	}
	leave(std::move(ref));
}

// Given that the kernel holds all of it, and that nobody needs it here at this time.
bool page_store::may_leave(const block &b) const
{
	switch (copies_) {
	case copies::keep:
		return false;
	case copies::spare:
		return !b.stays() && (b.only_here() == 0 || short_.load(std::memory_order_relaxed));
	case copies::prove:
	case copies::drop:
		break;
	}
	return !b.stays();
}

// The block leaves, unless more of it has come meanwhile. Sums are taken without the mutex: valid
// pages do not change.
void page_store::leave(block_ref ref)
{
	block *const b = ref.get();
	const std::uint64_t pages = b->valid();
	kernel_copies::sums sums;
	const bool prove = copies_ != copies::drop;
	for (std::uint64_t left = prove ? pages : 0; left != 0; left &= left - 1) {
		const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
		sums.of[i] = in_kernel_.sum(b->data(i), std::size_t{1} << page_shift_);
	}
	const std::lock_guard lock(mutex_); // the pin goes after it
	if (lookup(b->key, b->index()) != b || b->queue == queue_id::none || b->valid() != pages ||
	    !b->in_kernel())
		return;
	in_kernel_.note(b->key, b->index(), b->file_size(), pages, prove ? &sums : nullptr);
	forget(b);
}

// Pins those of the siblings that the kernel holds and that nobody uses.
void page_store::pin_siblings(block *first, std::vector<block_ref> &out) const
{
	for (block *b = first; b != nullptr; b = b->sibling_next)
		if (b->idle() && b->valid() != 0 && b->in_kernel() && may_leave(*b)) {
			b->pin();
			out.emplace_back(b);
		}
}

void page_store::closed(const content_key &key)
{
	std::vector<block_ref> leaving;
	if (copies_ == copies::keep)
		return;
	{
		const std::lock_guard lock(mutex_);
		const auto it = contents_.find(key);
		if (it != contents_.end())
			pin_siblings(it->second, leaving);
	}
	for (block_ref &ref : leaving)
		leave(std::move(ref));
}

// What the kernel holds too leaves until no more than this is in use.
void page_store::leave_down_to(std::uint32_t pages)
{
	std::vector<block_ref> leaving;
	{
		const std::lock_guard lock(mutex_);
		for (auto it = contents_.begin(); it != contents_.end(); ++it)
			pin_siblings(it->second, leaving);
	}
	for (block_ref &ref : leaving) {
		{
			const std::lock_guard lock(mutex_);
			if (used_pages() <= pages)
				return;
		}
		leave(std::move(ref));
	}
}

void page_store::retrieved(block_ref ref)
{
	const std::lock_guard lock(mutex_); // the pin goes after it
	const std::uint32_t pages = 1u << ref->order;
	if (copies_ == copies::spare && !short_.load(std::memory_order_relaxed)) {
		ref->stay(); // peers do ask for it
		return;
	}
	retrieved_.push_back({ref->key, ref->index(), pages});
	retrieved_pages_ += pages;
	while (retrieved_pages_ > kept_pages_ / retrieved_room) {
		const place oldest = retrieved_.front();
		retrieved_.pop_front();
		retrieved_pages_ -= oldest.pages;
		block *const b = lookup(oldest.key, oldest.block);
		if (b == nullptr || !b->idle() || !b->in_kernel() || b->stays())
			continue;
		const std::uint64_t all = b->valid();
		if (in_kernel_.provable(b->key, b->index(), all) == all)
			forget(b); // it is noted already
	}
}

// Frames without a block that have memory. Unless all are wanted: a quarter of those beyond what is
// kept ahead, since what was free for a second may be used in the next.
std::vector<std::uint32_t> page_store::unused_frames(bool all)
{
	const std::lock_guard lock(mutex_);
	// Every frame with a block is held.
	const std::uint32_t blocks = kept_pages_ / buddy::frame_pages - runs_.free_frame_count();
	const std::uint32_t unused = arena_.held() - std::min(arena_.held(), blocks);
	const std::uint32_t keep = all ? 0 : ahead_frames_;
	if (unused <= keep)
		return {};
	std::vector<std::uint32_t> out = runs_.free_frames();
	std::erase_if(out, [this](std::uint32_t f) { return !arena_.holds(f); });
	const std::size_t excess = out.size() - std::min<std::size_t>(keep, out.size());
	if (!all)
		out.erase(out.begin(), out.end() - static_cast<long>((excess + 3) / 4));
	return out;
}

void page_store::follow(const memory_state &memory)
{
	const std::uint64_t lacking = memory.lacking() >> page_shift_;
	if (arena_.kept())
		return;
	std::uint32_t limit;
	{
		const std::lock_guard lock(mutex_);
		const std::uint32_t used = used_pages();
		if (lacking != 0)
			short_.store(true, std::memory_order_relaxed);
		else if (memory.ample())
			short_.store(false, std::memory_order_relaxed);
		if (lacking != 0)
			limit_ = std::max<std::uint32_t>(
				std::min(least_frames * buddy::frame_pages, kept_pages_),
				used - static_cast<std::uint32_t>(
					       std::min<std::uint64_t>(used, lacking)));
		else if (memory.ample())
			limit_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(
				kept_pages_, std::uint64_t{limit_} + kept_pages_ / growth));
		limit = limit_;
	}
	if (lacking == 0)
		arena_.tick();
	if (lacking != 0 && copies_ != copies::keep)
		leave_down_to(limit);
	evict_down_to(limit);
	const std::vector<std::uint32_t> frames = unused_frames(lacking != 0);
	for (std::size_t at = 0; at < frames.size();) {
		const std::lock_guard lock(mutex_);
		for (std::uint32_t n = 0; n < few_frames && at < frames.size(); n++, at++)
			if (runs_.frame_is_free(frames[at]))
				(void)arena_.give_back(frames[at]);
	}
}

block_ref page_store::find(const content_key &key, std::uint64_t block_index, bool used)
{
	const std::lock_guard lock(mutex_);
	block *b = lookup(key, block_index);
	if (b == nullptr)
		return {};
	b->pin();
	if (used)
		b->count_use();
	return block_ref(b);
}

bool page_store::is_of(const block &b, const content_key &key) const
{
	const std::lock_guard lock(mutex_);
	return b.key == key;
}

// Of a block; 0: it lies past the end of the file.
std::uint32_t page_store::pages_of(std::uint64_t block_index, std::uint64_t file_size) const
{
	const std::uint64_t page_bytes = std::uint64_t{1} << page_shift_;
	const std::uint64_t file_pages =
		(file_size >> page_shift_) + ((file_size & (page_bytes - 1)) != 0 ? 1 : 0);
	if (block_index > UINT64_MAX / 64 || block_index * 64 >= file_pages)
		return 0;
	return static_cast<std::uint32_t>(
		std::min<std::uint64_t>(file_pages - block_index * 64, 64));
}

block_ref page_store::get(const content_key &key, std::uint64_t block_index,
			  std::uint64_t file_size)
{
	const std::uint32_t pages = pages_of(block_index, file_size);
	if (pages == 0)
		return {};
	const auto order = static_cast<unsigned>(std::bit_width(pages - 1));

	const std::lock_guard lock(mutex_);
	if (block *b = lookup(key, block_index); b != nullptr) {
		if (b->pages() == pages) {
			b->pin();
			return block_ref(b);
		}
		// One version has one size; a caller that says otherwise gets a block of its size.
		forget(b);
	}
	std::uint32_t at = make_room(order);
	const bool kept = at != buddy::none;
	if (!kept) {
		stats_.no_room++;
		at = reserve_.alloc(order);
		if (at == buddy::none)
			return {};
	}
	const std::size_t offset = std::size_t{at} << page_shift_;
	auto *b = new block(*this, arena_.base() + offset, offset, page_shift_, block_index, pages,
			    file_size);
	b->first_page = at;
	b->order = static_cast<std::uint8_t>(order);
	b->key = key;
	if (!kept) {
		(void)b->forget(); // private from the start: the caller's pin holds it
		return block_ref(b);
	}
	by_page_[at] = b;
	link(b);
	queues_.insert(b);
	return block_ref(b);
}

void page_store::let_go(block_ref ref, bool taken) // the pin goes after the mutex
{
	const std::lock_guard lock(mutex_);
	block *b = ref.get();
	if (lookup(b->key, b->index()) != b || b->queue != queue_id::none)
		return;
	if (!taken && b->uses.load(std::memory_order_relaxed) != 0)
		queues_.insert(b);
	else
		queues_.insert_last(b);
}

bool page_store::takes_offer(const content_key &key, std::uint64_t block_index,
			     std::uint64_t file_size) const
{
	const std::uint32_t pages = pages_of(block_index, file_size);
	if (pages == 0)
		return false;
	const auto order = static_cast<unsigned>(std::bit_width(pages - 1));
	const std::lock_guard lock(mutex_);
	return lookup(key, block_index) != nullptr ||
	       used_pages() + (1u << order) + limit_ / offer_room <= limit_ ||
	       queues_.next_is_copy(order);
}

void page_store::advance(const content_key &from, std::uint64_t to_version, std::uint64_t offset,
			 std::uint64_t length, std::uint64_t old_size, std::uint64_t new_size)
{
	const std::uint64_t block_bytes = std::uint64_t{64} << page_shift_;
	// What lies between the write and the sizes changes too: the tail of the old last
	// page was zero and is a hole now, or is past the end now.
	std::uint64_t begin = offset,
		      end = length > UINT64_MAX - offset ? UINT64_MAX : offset + length;
	const bool resized = old_size != new_size;
	const std::uint64_t edge = std::min(old_size, new_size);

	const auto touched = [&](std::uint64_t block_index) {
		const std::uint64_t first = block_index * block_bytes;
		const std::uint64_t last = first + block_bytes; // one past
		return (length != 0 && first < end && last > begin) || (resized && last > edge);
	};

	const std::lock_guard lock(mutex_);
	if (from.version == to_version)
		return;
	in_kernel_.advance(from, to_version, new_size, touched);
	const auto it = contents_.find(from);
	if (it == contents_.end())
		return;
	const content_key to{from.fid, to_version};
	block *next = nullptr;
	for (block *b = it->second; b != nullptr; b = next) {
		next = b->sibling_next;
		if (touched(b->index()) || lookup(to, b->index()) != nullptr) {
			forget(b);
			continue;
		}
		unlink(b);
		b->key = to;
		b->held_here_only();
		b->set_file_size(new_size);
		link(b);
	}
}

void page_store::drop(const content_key &key)
{
	const std::lock_guard lock(mutex_);
	in_kernel_.drop(key);
	for (auto it = contents_.find(key); it != contents_.end(); it = contents_.find(key))
		forget(it->second);
}

void page_store::drop_all()
{
	const std::lock_guard lock(mutex_);
	std::vector<block *> idle;
	for (const auto &[key, first] : contents_)
		for (block *b = first; b != nullptr; b = b->sibling_next)
			if (b->idle())
				idle.push_back(b);
	for (block *b : idle)
		forget(b);
}

store_stats page_store::stats() const
{
	const std::lock_guard lock(mutex_);
	store_stats s = stats_;
	s.capacity = std::uint64_t{kept_pages_} << page_shift_;
	s.used = std::uint64_t{kept_pages_ - runs_.free_pages()} << page_shift_;
	s.present = arena_.present();
	return s;
}

std::unique_ptr<page_store> page_store::create(std::size_t bytes, unsigned page_shift,
					       std::size_t ahead)
{
	if (page_shift < COOP_PAGE_MIN_SHIFT || page_shift > COOP_PAGE_MAX_SHIFT)
		throw std::system_error(EINVAL, std::generic_category(), "page store: page size");
	const unsigned frame_shift = page_shift + buddy::max_order;
	const std::size_t frames = std::max<std::size_t>(
		(bytes + (std::size_t{1} << frame_shift) - 1) >> frame_shift, min_frames);
	// Page numbers are 32 bits wide, and one value means none.
	if (frames + reserve_frames > (UINT32_MAX >> buddy::max_order))
		throw std::system_error(EFBIG, std::generic_category(),
					"page store: cache_size= is too large for its page size");
	return std::unique_ptr<page_store>(
		new page_store(static_cast<std::uint32_t>(frames), page_shift, ahead));
}

} // namespace coop::client
