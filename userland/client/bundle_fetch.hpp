// SPDX-License-Identifier: MIT
// bundle_fetch.hpp - reads bundles as files that other nodes have open too, and keeps the contents
// of the files in them as if storage had sent them with an open's reply.
#pragma once

#include <atomic>

#include "userland/client/membership.hpp"
#include "userland/client/reader.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

class bundle_fetch final : public bundle_reader
{
public:
	explicit bundle_fetch(membership &m) : membership_(m) {}
	// Before start() and after stop() it reads none. No call may be under way at stop().
	void start(reader &, page_store &);
	void stop();

	int read(const handle &dir, const std::function<int(open_bundle &)> &open, open_bundle &out,
		 std::string &bytes) override;
	void closed(const open_bundle &) override;
	void keep(const open_bundle &, const coop_fid &, std::uint64_t version,
		  std::string_view bytes) override;
	void at_nodes(std::vector<held_content>) override;

private:
	membership &membership_;
	page_store *store_ = nullptr; // set before reader_
	std::atomic<reader *> reader_{nullptr};
};

} // namespace coop::client
