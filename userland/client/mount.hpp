// SPDX-License-Identifier: MIT
// mount.hpp - the parts of one mount, created from its options and destroyed in order of
// dependence.
//
// A mount that asks for peers but cannot have an end point does not start: a node that silently
// read everything from storage would look like a slow network.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "userland/client/bundle_fetch.hpp"
#include "userland/client/file.hpp"
#include "userland/client/inode.hpp"
#include "userland/client/kernel_loads.hpp"
#include "userland/client/memory_keeper.hpp"
#include "userland/client/node.hpp"
#include "userland/client/options.hpp"
#include "userland/client/page_store.hpp"
#include "userland/client/reader.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

class mount
{
public:
	// Throws std::runtime_error (std::system_error) with a text that tells the user what to
	// change.
	mount(const mount_options &, inode_events);
	~mount() { end(); }
	mount(const mount &) = delete;
	mount &operator=(const mount &) = delete;

	const mount_options &options() const { return options_; }
	client::storage &storage() { return *storage_; }
	page_store &pages() { return *pages_; }
	client::node *node() { return node_.get(); } // null: no peers
	client::reader &reader() { return *reader_; }
	client::kernel_loads *kernel_loads() { return kernel_loads_.get(); } // null: none
	inode_table &inodes() { return *inodes_; }
	client::files &files() { return *files_; }
	const client::membership &membership() const { return membership_; }
	std::uint32_t node_id() const { return node_id_; }
	const std::string &endpoint_name() const { return endpoint_name_; }

private:
	void start(inode_events);
	void end();
	void start_node();
	void on_node(const node_event &);
	void on_self(const coop_addr *); // null: peers cannot reach this node

	const mount_options options_;
	std::shared_ptr<bundle_fetch> bundles_; // null: no bundles
	std::unique_ptr<client::storage> storage_;
	std::unique_ptr<page_store> pages_;
	std::unique_ptr<memory_keeper> keeper_;              // null: no memory can be given back
	std::unique_ptr<client::kernel_loads> kernel_loads_; // null: no peer is served from there
	std::unique_ptr<client::node> node_;
	std::atomic<client::node *> node_for_events_{nullptr};
	client::membership membership_;
	std::unique_ptr<client::reader> reader_;
	std::mutex relay_mutex_;                     // guards the next
	client::reader *reader_for_peers_ = nullptr; // null: no load for a peer may begin
	std::unique_ptr<inode_table> inodes_;
	std::atomic<inode_table *> inodes_for_leases_{nullptr}; // null: the kernel has no names
	std::unique_ptr<client::files> files_;
	std::uint32_t node_id_ = 0;
	std::mutex self_mutex_;
	bool registered_ =
		false; // the daemon knows this node's address and wants to know a new one
	std::string endpoint_name_ = "none";
};

} // namespace coop::client
