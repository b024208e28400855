// SPDX-License-Identifier: MIT
// change.hpp - one change of a file's content, with the versions before and after.
//
// The version before is reported only if a kernel lease excluded every other writer until the
// version after was read. Otherwise it is 0, and no client carries its cached pages over to the new
// version.
#pragma once

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>

#include "userland/daemon/service.hpp"

namespace coop::daemon
{

template <class act> int service::change_locked(inode &n, coop_st_body &out, act change)
{
	int err = 0;
	std::shared_ptr<unique_fd> fd;
	if (n.type == S_IFREG)
		fd = n.data_locked(
			err); // a daemon that is not root may get none: then there is no proof
	struct stat st;
	stillness still(fd ? fd->get() : -1, n.writable_locked());
	if (::fstatat(n.path.get(), "", &st, AT_EMPTY_PATH))
		return -errno;
	if (n.type == S_IFREG) {
		done.changes(n.file, static_cast<std::uint64_t>(st.st_size));
		out.before = n.record.observe(st, still, n.in.clock());
		if (!still.granted())
			out.before = 0;
	}
	err = change(fd ? fd->get() : -1);
	if (err)
		return err;
	file_look now;
	if ((err = look(n.path.get(), now)))
		return err;
	std::uint64_t version = 0;
	if (n.type == S_IFREG)
		version = n.record.observe(now.st, still, n.in.clock());
	fill_attr(now, n, version, out.attr);
	return 0;
}

} // namespace coop::daemon
