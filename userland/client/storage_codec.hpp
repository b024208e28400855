// SPDX-License-Identifier: MIT
// storage_codec.hpp - conversion between system-call values and the numbers of the storage
// protocol. Linux's own numbers differ between architectures.
#pragma once

#include <cstdint>

#include "rpc/storage/message.h"
#include "userland/client/storage.hpp"

namespace coop::client
{

inline std::uint32_t bit_if(bool set, std::uint32_t bit)
{
	return set ? bit : 0;
}

void fill_cred(const caller &, coop_st_cred &);
coop_st_bytes bytes_of(std::string_view);
// Requests about a file or directory, about an open file, and about a name in a directory. They
// refer to the handle and the name.
coop_st_body request_on(const caller &, const handle &);
coop_st_body request_on(const handle &, std::uint64_t open_id);
coop_st_body request_in(const caller &, const handle &dir, std::string_view name);

attributes attributes_of(const coop_st_attr &);
write_result change_of(const coop_st_body &reply);
// The data of READDIR's reply, appended to 'out'. 0, or -EPROTO.
[[nodiscard]] int entries_of(std::string_view data, std::vector<dir_entry> &out);
struct statvfs statvfs_of(const coop_st_statfs &);
open_bundle bundle_of(std::uint64_t open_id, const coop_st_body &reply);
coop_st_setattr set_of(const storage::setattr_request &);
// enum coop_st_open_flag from the flags of open(2).
std::uint32_t open_flags(int flags);
// enum coop_st_fallocate from the mode of fallocate(2). 0, or -EOPNOTSUPP: unknown bits.
[[nodiscard]] int fallocate_flags(int mode, std::uint32_t &out);

} // namespace coop::client
