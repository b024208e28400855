// SPDX-License-Identifier: MIT
// verbs_loans.cpp - see verbs_loans.hpp.
#include "userland/ud/verbs_loans.hpp"

#include <cerrno>

namespace coop::ud
{

class verbs_loans::loan final : public lent_memory
{
public:
	loan(std::shared_ptr<table> t, std::uint64_t number) : table_(std::move(t)), number_(number)
	{
	}
	~loan() override
	{
		std::lock_guard guard(table_->lock);
		table_->regions.erase(number_);
	}

private:
	const std::shared_ptr<table> table_;
	const std::uint64_t number_;
};

int verbs_loans::add(ibv_pd *pd, void *base, std::size_t length, std::unique_ptr<lent_memory> &out,
		     std::uint32_t &key)
{
	std::lock_guard guard(table_->lock);
	if (table_->closed)
		return -ENODEV;
	const int access = IBV_ACCESS_LOCAL_WRITE; // the macro mixes enumerations
	errno = 0;
	verbs_mr region(ibv_reg_mr(pd, base, length, access));
	if (!region)
		return errno ? -errno : -ENOMEM;
	key = region->lkey;
	const std::uint64_t number = ++table_->next;
	table_->regions.emplace(number, std::move(region));
	out = std::make_unique<loan>(table_, number);
	return 0;
}

void verbs_loans::close()
{
	std::lock_guard guard(table_->lock);
	table_->closed = true;
	table_->regions.clear();
}

} // namespace coop::ud
