// SPDX-License-Identifier: MIT
// storage_reads.hpp - reads from the daemon, straight into the caller's memory.
//
// A read longer than a protocol message is split here. The daemon streams a long read from the file
// without a copy, so the bytes may be newer than the header says; when they have arrived a CHECK
// asks whether the file still has that version. Only then is the read complete.
#pragma once

#include "userland/client/storage_link.hpp"

namespace coop::client
{

class storage_reads
{
public:
	using answer = std::function<void(const storage::read_result &)>;

	explicit storage_reads(storage_link &link) : link_(link) {}
	// As storage's functions of these names.
	void read(const handle &, std::uint64_t open_id, std::uint64_t offset,
		  std::vector<iovec> dest, std::uint64_t version, answer done);
	void read_shared(const handle &, std::uint64_t open_id, std::uint64_t offset,
			 std::vector<iovec> dest, std::uint64_t version, bool insist, answer done);

private:
	struct gather; // one read in parts
	void read_part(const std::shared_ptr<gather> &, std::uint64_t offset,
		       std::vector<iovec> dest);
	void check(const std::shared_ptr<gather> &, std::uint64_t version, std::uint64_t bytes);

	storage_link &link_;
};

} // namespace coop::client
