// SPDX-License-Identifier: MIT
// fakes.hpp - storage and node without a network, for tests of the reader.
//
// Content is a function of file, version and offset, so that tests can check any byte. Storage
// answers from its own thread, in random order, like the real one.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "storage_stub.hpp"
#include "userland/client/fetcher.hpp"
#include "userland/client/reader.hpp"
#include "userland/client/storage.hpp"

namespace client_test
{

using namespace coop::client;

inline std::uint64_t word_of(std::uint64_t file, std::uint64_t version, std::uint64_t offset)
{
	std::uint64_t h = (file * 0x9e3779b97f4a7c15u) ^ (version << 17) ^ (offset >> 3);
	h *= 0xff51afd7ed558ccdu;
	return h ^ h >> 29;
}

inline std::uint8_t byte_of(std::uint64_t file, std::uint64_t version, std::uint64_t offset)
{
	return static_cast<std::uint8_t>(word_of(file, version, offset) >> offset % 8 * 8);
}

inline void fill_pattern(void *to, std::size_t length, std::uint64_t file, std::uint64_t version,
			 std::uint64_t offset)
{
	auto *p = static_cast<std::uint8_t *>(to);
	std::size_t i = 0;
	for (; i < length && (offset + i) % 8 != 0; i++)
		p[i] = byte_of(file, version, offset + i);
	for (; i + 8 <= length; i += 8) {
		const std::uint64_t w = word_of(file, version, offset + i);
		std::memcpy(p + i, &w, 8);
	}
	for (; i < length; i++)
		p[i] = byte_of(file, version, offset + i);
}

inline bool is_pattern(const void *from, std::size_t length, std::uint64_t file,
		       std::uint64_t version, std::uint64_t offset)
{
	std::vector<std::uint8_t> want(length);
	fill_pattern(want.data(), length, file, version, offset);
	return std::memcmp(want.data(), from, length) == 0;
}

inline content make_content(std::uint64_t file, std::uint64_t version, std::uint64_t size)
{
	return {{{file, file}, version}, size, "fh" + std::to_string(file), 7, {}};
}

class fake_storage final : public storage_stub
{
public:
	struct file {
		std::uint64_t number, version, size;
	};
	std::map<std::string, file> files; // by handle; set before use
	std::atomic<int> fail{0};          // error of all later reads
	std::atomic<int> fail_next{0};     // so many later reads fail with -EIO
	std::atomic<std::uint64_t> reads{0}, bytes{0}, largest{0};
	std::vector<std::uint32_t> holders; // named to shared reads that do not insist
	std::atomic<std::uint32_t> held{0}; // reads that wait for release()

	explicit fake_storage(unsigned seed = 1) : rng_(seed), thread_([this] { run(); }) {}
	~fake_storage() override
	{
		{
			const std::lock_guard lock(mutex_);
			stop_ = true;
			hold_ = false;
		}
		changed_.notify_all();
		thread_.join();
	}
	void add(std::uint64_t number, std::uint64_t version, std::uint64_t size)
	{
		const std::lock_guard lock(mutex_);
		files["fh" + std::to_string(number)] = {number, version, size};
	}
	void hold()
	{
		const std::lock_guard lock(mutex_);
		hold_ = true;
	}
	void release()
	{
		{
			const std::lock_guard lock(mutex_);
			hold_ = false;
		}
		changed_.notify_all();
	}
	// How often readers asked for each page of a file.
	std::map<std::pair<std::string, std::uint64_t>, int> pages_read() const
	{
		const std::lock_guard lock(mutex_);
		return pages_read_;
	}

	void read(const handle &fh, std::uint64_t, std::uint64_t offset, std::vector<iovec> dest,
		  std::uint64_t version, std::function<void(const read_result &)> done) override
	{
		{
			const std::lock_guard lock(mutex_);
			queue_.push_back({fh, offset, std::move(dest), version, std::move(done)});
			held++;
		}
		changed_.notify_all();
	}

	void read_shared(const handle &fh, std::uint64_t open_id, std::uint64_t offset,
			 std::vector<iovec> dest, std::uint64_t version, bool insist,
			 std::function<void(const read_result &)> done) override
	{
		if (insist || holders.empty())
			return read(fh, open_id, offset, std::move(dest), version, std::move(done));
		read_result r{};
		r.version = version;
		r.holders = holders;
		done(r);
	}

	traffic stats() const override { return {0, bytes, bytes, reads, 0, true}; }

private:
	struct call {
		handle fh;
		std::uint64_t offset;
		std::vector<iovec> dest;
		std::uint64_t version;
		std::function<void(const read_result &)> done;
	};

	void run()
	{
		std::unique_lock lock(mutex_);
		for (;;) {
			changed_.wait(lock,
				      [this] { return stop_ || (!hold_ && !queue_.empty()); });
			if (queue_.empty())
				return;
			std::swap(queue_[rng_() % queue_.size()], queue_.back());
			call c = std::move(queue_.back());
			queue_.pop_back();
			read_result r = answer(c);
			lock.unlock();
			c.done(r);
			c.done = nullptr;
			held--;
			lock.lock();
		}
	}

	read_result answer(const call &c)
	{
		read_result r{};
		reads++;
		const auto it = files.find(c.fh);
		r.err = fail;
		if (r.err == 0 && fail_next > 0) {
			fail_next--;
			r.err = -EIO;
		}
		if (r.err == 0 && it == files.end())
			r.err = -ENOENT;
		if (r.err == 0 && c.version != 0 && c.version != it->second.version)
			r.err = -ESTALE;
		if (r.err != 0)
			return r;
		const file &f = it->second;
		r.version = f.version;
		r.size = f.size;
		for (const iovec &v : c.dest) {
			const std::uint64_t at = c.offset + r.bytes;
			const std::uint64_t n =
				at < f.size ? std::min<std::uint64_t>(v.iov_len, f.size - at) : 0;
			fill_pattern(v.iov_base, n, f.number, f.version, at);
			r.bytes += n;
		}
		for (std::uint64_t at = c.offset; at < c.offset + r.bytes; at += 4096)
			pages_read_[{c.fh, at / 4096}]++;
		bytes += r.bytes;
		largest = std::max<std::uint64_t>(largest, r.bytes);
		return r;
	}

	mutable std::mutex mutex_;
	std::condition_variable changed_;
	std::deque<call> queue_;
	std::map<std::pair<std::string, std::uint64_t>, int> pages_read_;
	bool stop_ = false, hold_ = false;
	std::mt19937 rng_;
	std::thread thread_; // last
};

// A fabric that delivers what deliver() returns, when a thread drives it.
class fake_node final : public fetcher
{
public:
	unsigned page_shift = 12;
	// Returns the requested pages that the peers deliver.
	std::function<std::uint64_t(const content_key &, std::uint64_t block, std::uint64_t pages)>
		deliver = [](const content_key &, std::uint64_t, std::uint64_t p) { return p; };
	std::atomic<int> refuse{0}; // what fetch() returns
	std::atomic<std::uint64_t> fetches{0}, pages{0}, runs{0}, flushes{0};
	std::atomic<std::uint32_t> most_in_flight{0};
	fetch_sources last; // of the last fetch

	~fake_node() override
	{
		while (step()) {}
	}
	int fetch(const content_key &key, std::uint64_t file_size, block_ref pin,
		  std::uint64_t want, const fetch_sources &from, fetch_done done) override
	{
		if (refuse != 0)
			return refuse;
		const std::lock_guard lock(mutex_);
		std::uint64_t starts = want & ~(want << 1);
		runs = std::max<std::uint64_t>(runs,
					       static_cast<std::uint64_t>(std::popcount(starts)));
		fetches++;
		last = from;
		(from.gather ? gathered_ : queue_)
			.push_back({key, file_size, std::move(pin), want, std::move(done)});
		most_in_flight = std::max<std::uint32_t>(most_in_flight, ++in_flight_);
		return 0;
	}
	void flush() override
	{
		const std::lock_guard lock(mutex_);
		flushes++;
		std::move(gathered_.begin(), gathered_.end(), std::back_inserter(queue_));
		gathered_.clear();
	}
	std::uint32_t background_most() const override { return 32; }
	std::uint32_t in_flight() const override { return in_flight_; }
	void drive_until(const std::function<bool()> &ready, std::uint64_t) override
	{
		for (int i = 0; i < 1000 && !ready(); i++)
			if (!step())
				std::this_thread::sleep_for(std::chrono::microseconds(20));
	}
	void tend() override
	{
		while (step()) {}
	}
	void wake() override {}

private:
	struct call {
		content_key key;
		std::uint64_t size;
		block_ref pin;
		std::uint64_t want;
		fetch_done done;
	};

	bool step()
	{
		call c;
		{
			const std::lock_guard lock(mutex_);
			if (queue_.empty())
				return false;
			c = std::move(queue_.front());
			queue_.pop_front();
		}
		const std::uint64_t good = deliver(c.key, c.pin->index(), c.want) & c.want;
		for (std::uint64_t left = good; left != 0; left &= left - 1) {
			const auto p = static_cast<std::uint32_t>(std::countr_zero(left));
			// Whole pages, even past the end of the file, as peers send them.
			fill_pattern(c.pin->data(p), std::size_t{1} << page_shift, c.key.fid.lo,
				     c.key.version, (c.pin->index() * 64 + p) << page_shift);
			pages++;
		}
		zero_tail(*c.pin, good, c.size, page_shift);
		c.pin->publish(good, origin::peer);
		c.pin = block_ref();
		in_flight_--;
		c.done({good, 1, good == c.want ? 0 : -ENOENT});
		return true;
	}

	std::mutex mutex_;
	std::deque<call> queue_, gathered_; // gathered: not sent yet
	std::atomic<std::uint32_t> in_flight_{0};
};

} // namespace client_test
