// SPDX-License-Identifier: MIT
// session.hpp - the mount point and the loop that serves it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "fuse-shim/invalidator.hpp"
#include "fuse-shim/shim.hpp"
#include "fuse-shim/signals.hpp"

namespace coop::shim
{

class session
{
public:
	// Mounts. Throws std::runtime_error.
	session(const client::mount_options &, const std::string &mountpoint);
	~session();
	session(const session &) = delete;
	session &operator=(const session &) = delete;

	// Serves until the file system is unmounted or a signal ends it. usable is called once, on
	// a thread of the loop, as soon as the mount answers. Returns 0, a signal number, or
	// -errno.
	int run(const std::function<void()> &usable);

private:
	int loop();
	void end();
	void give_up();
	void stop_retrieving();
	void drop_pages(fuse_ino_t);
	void set_readahead() const;

	std::atomic<fuse_session *> live_{nullptr};                      // null unless mounted
	signal_watch signals_{[this] { end(); }, [this] { give_up(); }}; // outlives the rest
	const client::mount_options &options_;
	const std::string mountpoint_;
	invalidator invalidator_;
	std::mutex retrieving_; // held while the kernel is asked for pages
	bool retrieves_ = true; // guarded by it; false: the session ends
	std::unique_ptr<client::mount> mount_;
	std::unique_ptr<context> context_;
	std::atomic<context *> named_{nullptr}; // null: the kernel has no names yet
	std::unique_ptr<fuse_session, void (*)(fuse_session *)> fuse_;
};

} // namespace coop::shim
