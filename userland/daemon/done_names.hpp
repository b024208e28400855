// SPDX-License-Identifier: MIT
// done_names.hpp - which changes of names a session's requests have made, kept over the end of the
// daemon's process.
//
// A client repeats a request whose reply it did not get. If the process that made the change has
// ended, its memory of replies is gone, and a second MKDIR would fail because of the first. So each
// session has a file in the state directory. What was written there stays when the process is
// killed, and is never synced: a crash of the machine makes all changes uncertain, and a file of
// another boot is void. Written, not mapped: a store into a mapped file ends the process if the
// disk is full or broken.
//
// A change is noted when it is about to be made, and its outcome when it is made, both under the
// mutex of the directory. A process that ends in between leaves the question open; the next one
// then looks for traces of the change (names_once.hpp). What cannot be noted is made all the same.
//
// Appends to files are noted in the same way, under the mutex of the file, with the offset at which
// they go: run twice, they double their bytes. Of one that has only begun, the next process notes
// how far the file reaches before it changes the file for anybody: bytes behind that are of others,
// also if they are the same. So are ranges that are collapsed or inserted, with the size of the
// file: each moves its end.
//
// The outcomes kept are as many as replies: at most COOP_ST_REQUESTS_MAX requests are in flight and
// replies keep their order, so twice as many always suffice.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coop/fid.hpp"
#include "coop/unique_fd.hpp"
#include "rpc/storage/message.h"
#include "userland/daemon/state_directory.hpp"

namespace coop::daemon
{

// The clock that stamps files, in nanoseconds. Some kernels stamp up to a tick later.
std::uint64_t change_time_now();

// A file, also after another one got its number. ino 0: there is none.
struct file_identity {
	std::uint64_t ino = 0;
	std::uint64_t born = 0; // ns; 0: not known
	bool operator==(const file_identity &) const = default;
};

class done_names
{
public:
	enum class kind : std::uint16_t {
		name,
		append,         // no process has changed the file since it began
		bounded_append, // one has
		shift,          // of a range that is collapsed or inserted; the same
		bounded_shift,
	};
	// As in the file. One page holds it whole, so that it is written whole or not at all.
	struct change {
		std::uint64_t request = 0; // 0: none
		std::uint64_t begun = 0;   // change_time_now()
		std::uint64_t ended = 0;   // 0: not known
		std::uint64_t verifier = 0;
		// Of the outcome, rising. If there is none: of an append, the offset at which it
		// goes; of a shift, the size before it; else when the next process began (ns); 0:
		// it has not.
		std::uint64_t number = 0;
		file_identity source;     // that had the name before; of a file's content: its id
		std::uint16_t status = 0; // 0 or an errno
		kind what = kind::name;
		// bounded_append: how far the file reached behind 'number'; bounded_shift: whether
		// its size was another one.
		std::uint32_t grown = 0;
	};
	static_assert(sizeof(change) == 64);
	static constexpr std::size_t running_max = COOP_ST_REQUESTS_MAX;
	static constexpr std::size_t nowhere = running_max;
	static constexpr std::size_t outcomes_max = 2 * COOP_ST_REQUESTS_MAX;

	// since: when this process began; it has made no change before. name: for messages. Null if
	// the file cannot be read or written: then nothing is kept. What is not a file of this boot
	// is made an empty one.
	static std::unique_ptr<done_names> load(unique_fd, const std::string &boot,
						std::uint64_t since, std::string name);
	// Whether the file may hold changes of this boot.
	static bool is_of(const std::string &boot, std::string_view file);

	// This process begins: notes that what had only begun was not made later. True: changes of
	// contents are among it.
	[[nodiscard]] bool bound_names();
	// Call before anybody changes the file, which has this size. False: none is left that would
	// have to know of a change.
	[[nodiscard]] bool bound_contents(const coop_fid &file, std::uint64_t size);

	// What an earlier process noted of this request. place: of one that has not ended, for
	// ended(); else nowhere.
	[[nodiscard]] std::optional<change> earlier(std::uint64_t request, std::size_t &place);
	// Notes the change and the time. Returns the place to pass to ended(); nowhere: it is not
	// noted.
	std::size_t begin(change &);
	void ended(std::size_t place, const change &, int err);
	// It begins once more, at another place of the file.
	void moved(std::size_t place, const change &);
	// The request ends without having tried the change.
	void drop(std::size_t place);
	// Answered from what was noted: the client may need it once more.
	void again(const change &);
	// The process that had begun this change has done what it did until then.
	std::uint64_t until(const change &c) const
	{
		return c.number ? std::min(c.number, since_) : since_;
	}

private:
	struct head {
		char magic[16];
		std::uint8_t boot[32];
		std::uint8_t unused[16];
	};
	static_assert(sizeof(head) == sizeof(change));
	using contents = std::array<change, running_max + outcomes_max>;
	static constexpr std::size_t bytes = sizeof(head) + sizeof(contents);
	static head head_of(const std::string &boot);

	done_names(unique_fd fd, std::uint64_t since, std::string name, const contents &);
	[[nodiscard]] bool write(std::size_t index, const change &);
	void keep_locked(change);

	const unique_fd fd_;
	const std::uint64_t since_;
	const std::string name_;
	std::atomic<bool> told_{false}; // that it cannot be written
	std::mutex mutex_;              // guards what follows
	std::vector<change> outcomes_;  // of earlier processes
	// Begun by earlier processes; the client has not repeated them, and may never do so.
	std::vector<std::pair<std::size_t, change>> left_;
	std::vector<std::size_t> free_;
	std::uint64_t number_ = 0; // of the latest outcome
};

// The files of all sessions.
class done_files
{
public:
	done_files(const state_directory &, std::string boot);
	// Before the first is opened: at most so many are, each with a descriptor.
	void limit(std::size_t most) { most_ = most; }
	// Null: none can be kept. over: the session has ended; set before forget().
	std::shared_ptr<done_names> open(const std::string &session, const std::atomic<bool> &over);
	// Call before each change of a file's content, under the file's mutex.
	void changes(const coop_fid &file, std::uint64_t size)
	{
		if (contents_left_.load(std::memory_order_relaxed))
			bound_contents(file, size);
	}
	// The session has ended.
	void forget(const std::string &session);
	// Sessions of earlier processes that have not come back have ended.
	void end_grace();

private:
	void bound_contents(const coop_fid &file, std::uint64_t size);
	void drop_locked(const std::string &name);

	const state_directory dir_;
	const std::string boot_;
	const std::uint64_t since_;
	std::size_t most_ = SIZE_MAX;
	std::mutex mutex_;
	std::set<std::string> mine_; // files opened by this process for a session
	// By file: those in which changes of contents by earlier processes are left.
	std::map<std::string, std::shared_ptr<done_names>> with_contents_;
	std::atomic<bool> contents_left_{false}; // that is not empty
	bool told_ = false;                      // that none can be kept
};

} // namespace coop::daemon
