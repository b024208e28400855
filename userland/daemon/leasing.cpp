// SPDX-License-Identifier: MIT
// leasing.cpp - leases in operations: which files a change touches, and which replies carry a
// lease. The holders of a lease are in lease_table.
#include <algorithm>
#include <cerrno>

#include "userland/daemon/service.hpp"

namespace coop::daemon
{

namespace
{

// WRITE recalls no lease, so such a file has none.
bool is_written(const inode &n)
{
	return n.use->writers;
}

} // namespace

// Grant the lease before anything is looked at: any later change then recalls it. An operation that
// checks the caller's rights checks them after it has looked, because its reply vouches for them
// too. If a program of this machine changes the file in between, the attributes in the reply are
// old, and the change recalls the lease. In the other order the reply would have the attributes
// after the change beside a right from before it, and the change would look known.
lease_table::offer service::offer(session &s, call r, const inode_ref &n)
{
	// Path handles of one file differ: a client could not tell which file is recalled. A file
	// that was just written is likely to be changed next, or not to be looked at again.
	const bool writes = r.head.op == COOP_ST_CREATE || r.head.op == COOP_ST_TMPFILE ||
			    r.head.op == COOP_ST_CLOSE ||
			    (r.head.op == COOP_ST_OPEN && r.body.flags & COOP_ST_O_WRITE);
	const bool may_be =
		r.head.flags & COOP_ST_F_LEASE && !writes && !n->in.by_path() && !is_written(*n);
	return may_be ? lease_table::offer(leases, s.shared_from_this(), n) : lease_table::offer();
}

void service::tell_offer(lease_table::offer &lease, inode &n, coop_st_attr &a)
{
	bool stands = a.nlink;
	if (!lease)
		return;
	if (stands && n.type == S_IFREG) {
		std::lock_guard lock(n.mutex);
		stands = !is_written(n) && !(a.version & provisional_bit);
	}
	if (!stands)
		lease.withdraw();
	else if (lease.tell(a.ctime))
		a.has |= COOP_ST_HAS_LEASE;
}

int service::leased_attributes(session &s, call r, const inode_ref &n, coop_st_attr &a)
{
	lease_table::offer lease = offer(s, r, n);
	if (const int err = attributes(*n, a))
		return err;
	tell_offer(lease, *n, a);
	return 0;
}

void service::tell_lease(session &s, call r, const inode &n, coop_st_attr &a)
{
	const bool stands = n.type != S_IFREG || (!is_written(n) && !(a.version & provisional_bit));
	if (!(r.head.flags & COOP_ST_F_LEASE))
		return;
	if (!stands)
		leases.withdraw(&s, n.file, 0);
	else if (leases.tell(&s, n.file, 0, a.ctime))
		a.has |= COOP_ST_HAS_LEASE;
}

void service::tell_directory(const exported &in, session &s, call r, coop_st_attr &a)
{
	inode_ref dir;
	if (!(r.head.flags & COOP_ST_F_LEASE) || inodes.get(in, view(r.body.fh), dir) ||
	    !leases.holds(&s, dir->file))
		return;
	if (attributes(*dir, a))
		a = {};
	else
		tell_lease(s, r, *dir, a);
}

// Adds the file of this name. The user's rights do not matter: the user learns nothing of it.
void service::lease_name(const exported &in, const inode &dir, std::string_view name,
			 lease_table::fids &what)
{
	unique_fd path;
	exported::named named;
	if (good_name(name) && !in.walk(dir.path.get(), name, path) &&
	    !in.name_of(path.get(), dir.handle, name, named) &&
	    std::none_of(what.begin(), what.end(),
			 [&](const coop_fid &f) { return fid_equal{}(f, named.file); }))
		what.push_back(named.file);
}

// keeps: the requester keeps its leases on the first 'keeps' files, for it knows the change.
void service::touched(const exported &in, session &, call r, lease_table::extent &what,
		      std::size_t &keeps)
{
	const coop_st_body &b = r.body;
	const std::string name(view(b.name));
	inode_ref n, n2;
	keeps = 0;
	if (!(coop_st_request_fields(r.head.op) & COOP_ST_FH))
		return;
	if (inodes.get(in, view(b.fh), n))
		return; // the operation will return the error
	switch (r.head.op) {
	case COOP_ST_SETATTR:
		// The operation opens the file for writing and would wait for our own guard.
		what.files = {n->file};
		keeps = b.set.valid & (COOP_ST_SET_SIZE | COOP_ST_SET_KILL_ID) ? 0 : 1;
		return;
	case COOP_ST_SETXATTR:
	case COOP_ST_REMOVEXATTR:
		what.files = {n->file};
		keeps = 1;
		return;
	case COOP_ST_OPEN:
		// A file open for writing has no leases, so WRITE and similar need no recall.
		if (b.flags & (COOP_ST_O_WRITE | COOP_ST_O_TRUNC))
			what.files = {n->file};
		return;
	case COOP_ST_MKDIR:
	case COOP_ST_MKNOD:
	case COOP_ST_SYMLINK:
		what.files = {n->file};
		what.names = {{0, name}};
		keeps = 1;
		return;
	case COOP_ST_CREATE:
	case COOP_ST_UNLINK:
	case COOP_ST_RMDIR:
		what.files = {n->file};
		what.names = {{0, name}};
		keeps = 1;
		return lease_name(in, *n, view(b.name), what.files);
	case COOP_ST_LINK:
		what.files = {n->file};
		what.names = {{0, name}};
		keeps = 1;
		if (!inodes.get(in, view(b.fh2), n2))
			what.files.push_back(n2->file);
		return;
	case COOP_ST_RENAME:
		what.files = {n->file};
		keeps = 1;
		if (inodes.get(in, view(b.fh2), n2))
			return;
		if (n2 != n) {
			what.files.push_back(n2->file);
			keeps = 2;
		}
		what.names = {{0, name}, {keeps - 1, std::string(view(b.name2))}};
		if (b.flags & COOP_ST_R_EXCHANGE) // each goes and comes
			what.names.insert(what.names.end(), {what.names[0], what.names[1]});
		lease_name(in, *n, view(b.name), what.files);
		return lease_name(in, *n2, view(b.name2), what.files);
	default:
		return;
	}
}

bool service::begin_change(const exported &in, session &s, call r, lease_table::extent &what,
			   std::function<void()> go)
{
	std::size_t keeps = 0;
	touched(in, s, r, what, keeps);
	return what.files.empty() || leases.begin(s.shared_from_this(), what, keeps, std::move(go));
}

int service::lease_return(const exported &, session &s, call r, reply &)
{
	if (r.body.fid.hi || r.body.fid.lo)
		leases.give_back(&s, r.body.fid);
	else
		leases.give_back_all(&s);
	return 0;
}

} // namespace coop::daemon
