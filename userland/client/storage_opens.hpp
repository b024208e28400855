// SPDX-License-Identifier: MIT
// storage_opens.hpp - opening files at the daemon.
//
// The client chooses the open id, and never uses one twice. The link records what is open, because
// the next daemon may have to open it again. An open whose caller gave up is closed when its reply
// comes.
#pragma once

#include <atomic>

#include "userland/client/storage_link.hpp"

namespace coop::client
{

class storage_opens
{
public:
	explicit storage_opens(storage_link &link) : link_(link) {}
	std::uint64_t new_id() { return ++last_id_; }
	// As storage's functions of these names.
	int open(const caller &, const handle &, int flags, std::uint32_t want_inline,
		 open_result &out, storage::late_reply late);
	void open_as(std::uint64_t open_id, const caller &, const handle &, int flags,
		     std::function<void(int err)> done);
	int bundle(const caller &, const handle &dir, std::uint32_t flags, std::uint32_t part,
		   open_bundle &out);
	void close_reader(const handle &, std::uint64_t open_id);
	// CREATE and TMPFILE. where: the request's directory, and its name if it has one.
	int make(std::uint16_t op, const caller &, coop_st_body where, int flags, const new_mode &,
		 entry &node, open_result &out, attributes *dir_after = nullptr);

private:
	void opened(const caller &, const handle &, const coop_st_body &ask,
		    const coop_st_body &got, open_result &out);
	void forget(const handle &, std::uint64_t open_id, bool at_once = false);

	storage_link &link_;
	std::atomic<std::uint64_t> last_id_{0};
	std::atomic<bool> at_nodes_{true}; // the daemon knows COOP_ST_B_AT_NODES
};

} // namespace coop::client
