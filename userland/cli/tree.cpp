// SPDX-License-Identifier: MIT
// tree.cpp - coopfs tree: who feeds whom when several nodes read a file.
//
// The mount says in the attribute coopfs.forest which nodes have the file open and whom it asks
// itself. The rest of the trees follows from the number of members (rpc/storage/forest.h).
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sys/xattr.h>

#include "userland/cli/commands.hpp"
#include "userland/cli/documents.hpp"
#include "userland/cli/forest.hpp"
#include "userland/cli/format.hpp"

namespace coop::cli
{

int run_tree(const tree_request &r)
{
	std::string text(4096, '\0');
	const ssize_t n = ::getxattr(r.file.c_str(), "coopfs.forest", text.data(), text.size());
	if (n < 0) {
		const int err = errno;
		if (err == ENODATA || err == EOPNOTSUPP)
			return report({exit_not_coopfs,
				       printable(r.file) + " is not a regular file on a mount of "
							   "coopfs"});
		return report({err == EACCES || err == EPERM ? exit_permission : exit_failure,
			       printable(r.file) + ": " + std::strerror(err)});
	}
	text.resize(static_cast<std::size_t>(n));
	const auto forest = parse_forest(text);
	if (!forest)
		return report(forest.error());
	if (r.json)
		std::printf("%s\n", forest_document(*forest).c_str());
	else
		std::printf("%s: %s", printable(r.file).c_str(), forest_text(*forest).c_str());
	return exit_ok;
}

} // namespace coop::cli
