// SPDX-License-Identifier: MIT
// verbs_loans.hpp - memory of other owners that is registered with a device.
//
// A loan ends with its lent_memory or with the device, whichever ends first, maybe on different
// threads: so both hold the table of regions, which has a lock.
#pragma once

#include <map>
#include <mutex>

#include "userland/ud/verbs_device.hpp"

namespace coop::ud
{

class verbs_loans
{
public:
	verbs_loans() = default;
	~verbs_loans() { close(); }
	verbs_loans(const verbs_loans &) = delete;
	verbs_loans &operator=(const verbs_loans &) = delete;

	// 0 or -errno.
	int add(ibv_pd *, void *base, std::size_t length, std::unique_ptr<lent_memory> &out,
		std::uint32_t &key);
	// From here on the device accesses none of the memory, and no loan is accepted.
	void close();

private:
	struct table {
		std::mutex lock;
		std::map<std::uint64_t, verbs_mr> regions;
		std::uint64_t next = 0;
		bool closed = false;
	};
	class loan;

	const std::shared_ptr<table> table_ = std::make_shared<table>();
};

} // namespace coop::ud
