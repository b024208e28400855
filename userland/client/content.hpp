// SPDX-License-Identifier: MIT
// content.hpp - one version of a file: what a reader names to have its pages loaded.
#pragma once

#include <cstdint>
#include <vector>

#include "userland/client/page_store.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

// Cheap to copy by shared_ptr; immutable.
struct content {
	content_key key;
	std::uint64_t size; // bytes at that version
	handle fh;
	std::uint64_t open_id;
	std::vector<std::uint32_t> openers; // node ids from the open reply
};

} // namespace coop::client
