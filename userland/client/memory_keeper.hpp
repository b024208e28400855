// SPDX-License-Identifier: MIT
// memory_keeper.hpp - a thread that has the page store follow the machine's memory:
// it looks once a second and tells the store what it sees.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "userland/client/memory_state.hpp"
#include "userland/client/page_store.hpp"

namespace coop::client
{

class memory_keeper
{
public:
	// The store must outlive it.
	explicit memory_keeper(page_store &);
	~memory_keeper();
	memory_keeper(const memory_keeper &) = delete;
	memory_keeper &operator=(const memory_keeper &) = delete;

private:
	void loop(page_store &);

	std::mutex lock_;
	std::condition_variable wake_;
	bool stop_ = false;
	std::thread thread_; // last
};

} // namespace coop::client
