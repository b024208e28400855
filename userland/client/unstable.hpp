// SPDX-License-Identifier: MIT
// unstable.hpp - changes of one file that storage has acknowledged but not yet
// promised to keep.
//
// Every acknowledgement carries a verifier; a commit that returns the same one
// covers all that was acknowledged before it was sent. Another verifier means
// that storage's machine came up anew, or could not write the file back: what
// was acknowledged may be gone. This mount keeps no copy to send again, so the
// loss is told: every open file learns of it once, at its next fsync or close.
//
// It lasts as long as the file is open here; nobody can ask about it later.
#pragma once

#include <cstdint>
#include <mutex>

namespace coop::client
{

class unstable
{
public:
	// An open file's view: losses up to here it knows of.
	using mark = std::uint64_t;
	mark attach()
	{
		std::lock_guard guard(lock_);
		opens_++;
		return losses_;
	}
	void detach()
	{
		std::lock_guard guard(lock_);
		if (--opens_ == 0)
			pending_ = false;
	}
	void acknowledged(std::uint64_t verifier)
	{
		std::lock_guard guard(lock_);
		if (!opens_)
			return;
		if (pending_ && verifier != verifier_)
			losses_++;
		pending_ = true;
		verifier_ = verifier;
		changes_++;
	}

	// What a commit that is sent now will cover.
	struct cover {
		bool pending;
		std::uint64_t verifier, changes;
	};
	cover covered()
	{
		std::lock_guard guard(lock_);
		return {pending_, verifier_, changes_};
	}
	void committed(const cover &c, std::uint64_t verifier)
	{
		std::lock_guard guard(lock_);
		if (!c.pending || !pending_)
			return;
		// If it went over to another verifier meanwhile, the loss is counted already.
		if (verifier != c.verifier && c.verifier == verifier_)
			losses_++;
		if (c.changes == changes_)
			pending_ = false;
		else if (c.verifier == verifier_)
			verifier_ = verifier;
	}
	bool lost_since(mark &m)
	{
		std::lock_guard guard(lock_);
		const bool lost = m != losses_;
		m = losses_;
		return lost;
	}

private:
	std::mutex lock_;
	bool pending_ = false;
	std::uint64_t verifier_ = 0; // of what is pending
	std::uint64_t changes_ = 0, losses_ = 0;
	unsigned opens_ = 0;
};

} // namespace coop::client
