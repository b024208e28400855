// SPDX-License-Identifier: MIT
// bundling.cpp - the operation BUNDLE, and how a bundle is made.
//
// It is made of what the operations would reply to its user: the lease of a file first, then its
// attributes, then the user's rights, with the user's own calls and never from mode bits. What has
// no lease, because it is being written or has just changed, is only named.
#include <cerrno>
#include <deque>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_set>

#include "userland/daemon/identity.hpp"
#include "userland/daemon/service.hpp"

namespace coop::daemon
{

namespace
{

// Bytes of contents in a bundle: the rest is for names and attributes. A directory that does not
// fit with its contents is for the next part, or, if it is alone too large, without some of them.
constexpr std::size_t contents_max = COOP_BUNDLE_BYTES / 4 * 3;
// Bytes of a record without content, at most: a handle, a name, a link's target and attributes.
constexpr std::size_t record_max = COOP_ST_BODY_MAX + COOP_BUNDLE_RECORD;

class bundle_maker
{
public:
	// at_nodes: contents that nodes were sent stay with them. Null: no.
	bundle_maker(const exported &in, inode_table &inodes, lease_table &leases, bundle &b,
		     const coop_st_cred &cred, const holder_table *at_nodes) :
		in_(in),
		inodes_(inodes),
		leases_(leases),
		bundle_(b),
		cred_(cred),
		at_nodes_(at_nodes)
	{
	}

	// 0; -E2BIG: it does not fit any more; other errors: there is none of this directory.
	int add(const std::string &handle)
	{
		const std::size_t contents = contents_, nodes = bundle_.nodes.size();
		const std::uint64_t left = bundle_.left;
		one_.clear();
		fresh_.clear();
		below_.clear();
		count_ = 0;
		left_out_ = false;
		coop_st_body d{};
		int err = describe(handle, d);
		if (!err && (bytes_.size() + one_.size() + record_max > COOP_BUNDLE_BYTES ||
			     dirs_ + entries_ + count_ + 1 > COOP_BUNDLE_RECORDS))
			err = -E2BIG;
		if (err) {
			contents_ = contents;
			bundle_.nodes.resize(nodes);
			bundle_.left = left;
			for (const coop_fid &f : fresh_) {
				leases_.give_back(bundle_.holder.get(), f);
				covered_.erase(f);
			}
			return err;
		}
		d.count = count_;
		if (!put(bytes_, d, nullptr))
			return -EIO;
		bytes_.insert(bytes_.end(), one_.begin(), one_.end());
		dirs_++;
		entries_ += count_;
		return 0;
	}
	// Handles of directories in the one that was added last.
	const std::vector<std::string> &below() const { return below_; }

	// The bytes go into a file in memory. 0 or -errno.
	// alive: counts the bytes of bundles that are in memory.
	int finish(const std::string &key, std::shared_ptr<std::atomic<std::size_t>> alive)
	{
		unique_fd fd(::memfd_create("coopfs-bundle", MFD_CLOEXEC | MFD_ALLOW_SEALING));
		if (!fd)
			return -errno;
		coop_bundle_put_header(dirs_, entries_, bytes_.data());
		for (std::size_t at = 0; at < bytes_.size();) {
			const ssize_t n = ::write(fd.get(), bytes_.data() + at, bytes_.size() - at);
			if (n < 0 && errno != EINTR)
				return -errno;
			at += n > 0 ? static_cast<std::size_t>(n) : 0;
		}
		if (::fcntl(fd.get(), F_ADD_SEALS,
			    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
			return -errno;
		bundle_.size = bytes_.size();
		bundle_.contents = contents_;
		bundle_.proof =
			sha256({reinterpret_cast<const char *>(bytes_.data()), bytes_.size()});
		const digest name = sha256("coopfs bundle " + in_.name() + '/' + key);
		coop_fid fid;
		std::memcpy(&fid.hi, name.data(), sizeof(fid.hi));
		std::memcpy(&fid.lo, name.data() + sizeof(fid.hi), sizeof(fid.lo));
		auto file = std::make_unique<inode>(in_, exported::named{"a bundle", fid, fid},
						    std::make_shared<file_use>(), std::move(fd),
						    S_IFREG);
		*alive += bundle_.size;
		bundle_.file = inode_ref(file.release(), [alive, size = bundle_.size](inode *n) {
			*alive -= size;
			delete n;
		});
		// Also after a restart of the daemon no other bundle gets this number.
		bundle_.file->constant = provisional_version() & ~provisional_bit;
		bundle_.covered.assign(covered_.begin(), covered_.end());
		return 0;
	}

private:
	using buffer = std::vector<std::uint8_t>;

	static bool put(buffer &to, const coop_st_body &b, const coop_st_bytes *content)
	{
		const std::size_t at = to.size(), room = record_max + (content ? content->len : 0);
		to.resize(at + room);
		const int n = coop_bundle_put(&b, content, to.data() + at, static_cast<u32>(room));
		to.resize(at + static_cast<std::size_t>(std::max(n, 0)));
		return n > 0;
	}

	int attributes(inode &n, coop_st_attr &a) const
	{
		std::lock_guard lock(n.mutex);
		file_look now;
		std::uint64_t version;
		if (const int err = n.observe_locked(now, version))
			return err;
		fill_attr(now, n, version, a);
		return n.use->writers || a.version & provisional_bit ? -EBUSY : 0;
	}

	void covers(const coop_fid &f, coop_st_attr &a)
	{
		a.has |= COOP_ST_HAS_LEASE;
		if (covered_.insert(f).second)
			fresh_.push_back(f);
	}

	int describe(const std::string &handle, coop_st_body &d)
	{
		inode_ref dir;
		unique_fd fd;
		if (const int err = inodes_.get(in_, handle, dir))
			return err;
		if (dir->type != S_IFDIR)
			return -ENOTDIR;
		lease_table::offer lease(leases_, bundle_.holder, dir);
		if (!lease)
			return -EBUSY;
		if (const int err = attributes(*dir, d.attr))
			return err;
		// A name made from now on must move the change time: inotify's event is compared
		// with it.
		const std::uint64_t changed =
			static_cast<std::uint64_t>(d.attr.ctime.sec) * 1'000'000'000 +
			d.attr.ctime.nsec;
		if (!d.attr.nlink || !is_past(changed, in_.clock()))
			return -EBUSY;
		if (const int err =
			    as(cred_, [&] { return dir->reopen(O_RDONLY | O_DIRECTORY, fd); }))
			return err;
		// Names that differ in case only are one there: a name that is not listed may
		// exist.
		int of_directory = 0;
		if (!::ioctl(fd.get(), FS_IOC_GETFLAGS, &of_directory) &&
		    of_directory & FS_CASEFOLD_FL)
			return -EOPNOTSUPP;
		d.flags = COOP_BUNDLE_LIST;
		if (!as(cred_, [&] { return permitted(dir->path.get(), X_OK); }))
			d.flags |= COOP_BUNDLE_SEARCH;
		if (const int err = list(*dir, std::move(fd)))
			return err;
		held_ = handle;
		d.fh = bytes(held_);
		if (!lease.tell(d.attr.ctime))
			return -EBUSY;
		covers(dir->file, d.attr);
		return 0;
	}

	int list(const inode &dir, unique_fd fd)
	{
		listing names(std::move(fd));
		raw_entry e;
		int err;
		for (; !(err = names.look(e)); names.step()) {
			if (!good_name(e.name) || hidden(in_, dir, e.name))
				continue;
			// Leave no room unchecked: a directory may be of any size.
			if (count_ >= COOP_BUNDLE_RECORDS || one_.size() > COOP_BUNDLE_BYTES)
				return -E2BIG;
			if (const int bad = entry(dir, e))
				return bad;
			if (left_out_ && dirs_)
				return -E2BIG;
		}
		return err == 1 ? 0 : err;
	}

	int entry(const inode &dir, const raw_entry &d)
	{
		coop_st_body e{};
		coop_st_bytes content{};
		unique_fd path;
		exported::named named;
		const int err = as(cred_, [&] { return in_.walk(dir.path.get(), d.name, path); });
		if (err == -ENOENT || err == -EXDEV)
			return 0;
		e.name = bytes(d.name);
		e.cookie = d.cookie;
		e.attr.ino = d.ino;
		e.attr.mode = static_cast<u32>(d.type) << 12;
		if (!err && !in_.name_of(path.get(), dir.handle, d.name, named)) {
			e.fh = bytes(named.handle);
			if (const inode_ref node = node_of(named, std::move(path)))
				describe_entry(node, e, content);
		}
		if (!put(one_, e, &content))
			return -EIO; // without it the listing would be taken as complete
		count_++;
		return 0;
	}

	inode_ref node_of(const exported::named &named, unique_fd path)
	{
		struct stat st;
		inode_ref node = inodes_.find(named.handle);
		if (node || ::fstatat(path.get(), "", &st, AT_EMPTY_PATH))
			return node;
		return inodes_.put(in_, named, std::move(path), st.st_mode & S_IFMT, node) ? nullptr
											   : node;
	}

	void describe_entry(const inode_ref &n, coop_st_body &e, coop_st_bytes &content)
	{
		coop_st_attr a;
		lease_table::offer lease(leases_, bundle_.holder, n);
		if (!lease || attributes(*n, a) || !a.nlink)
			return;
		const bool read = n->type == S_IFREG && content_of(n, a, e, content);
		if (n->type == S_IFLNK)
			e.text = target_of(*n);
		if (!lease.tell(a.ctime)) {
			content = e.text = {};
			e.n_nodes = 0;
			return;
		}
		covers(n->file, a);
		e.attr = a;
		if (read)
			e.flags = e.n_nodes ? COOP_BUNDLE_AT_NODES : COOP_BUNDLE_READ;
		if (n->type == S_IFDIR)
			below_.emplace_back(view(e.fh));
	}

	// The bytes, or nodes that have them, if the user may read them and no program of this
	// machine can change them unseen.
	bool content_of(const inode_ref &n, const coop_st_attr &a, coop_st_body &e,
			coop_st_bytes &content)
	{
		unique_fd fd;
		if (a.size > COOP_BUNDLE_CONTENT)
			return false;
		const bool room = contents_ + a.size <= contents_max;
		if (!room && !at_nodes_) {
			left_out_ = true;
			return false;
		}
		{
			std::lock_guard lock(n->mutex); // as in OPEN
			if (as(cred_, [&] { return n->reopen(O_RDONLY, fd); }))
				return false;
		}
		if (!leases_.guard(n))
			return false;
		name_nodes(*n, a, e);
		if (e.n_nodes)
			return matches(*n, a.version);
		if (!room) {
			left_out_ = true;
			return false;
		}
		text_.resize(a.size);
		if (::pread(fd.get(), text_.data(), a.size, 0) != static_cast<ssize_t>(a.size) ||
		    !matches(*n, a.version))
			return false;
		contents_ += a.size;
		content = bytes(text_);
		return true;
	}

	void name_nodes(const inode &n, const coop_st_attr &a, coop_st_body &e)
	{
		if (!at_nodes_ || !a.size || a.version & provisional_bit)
			return;
		std::vector<std::uint32_t> &known = bundle_.nodes;
		for (const std::uint32_t node : at_nodes_->sent(
			     {n.fid, a.version}, {0, (a.size + page_bytes - 1) / page_bytes},
			     COOP_BUNDLE_NODES)) {
			if (std::find(known.begin(), known.end(), node) == known.end()) {
				if (known.size() == bundle_nodes_max)
					continue;
				known.push_back(node);
			}
			e.nodes[e.n_nodes++] = node;
		}
		bundle_.left += e.n_nodes ? a.size : 0;
	}

	coop_st_bytes target_of(const inode &n)
	{
		target_.resize(COOP_ST_TEXT_MAX + 1);
		const ssize_t got = ::readlinkat(n.path.get(), "", target_.data(), target_.size());
		target_.resize(got > 0 && got <= COOP_ST_TEXT_MAX ? static_cast<std::size_t>(got)
								  : 0);
		return bytes(target_);
	}

	const exported &in_;
	inode_table &inodes_;
	lease_table &leases_;
	bundle &bundle_;
	const coop_st_cred &cred_;
	const holder_table *const at_nodes_;
	buffer bytes_ = buffer(COOP_BUNDLE_HEADER), one_; // the bundle; the directory at work
	std::uint32_t dirs_ = 0, entries_ = 0, count_ = 0;
	std::size_t contents_ = 0;
	bool left_out_ = false; // for want of room, a content in the directory at work
	std::unordered_set<coop_fid, fid_hash, fid_equal> covered_;
	lease_table::fids fresh_; // of the directory at work
	std::vector<std::string> below_;
	std::string held_, text_, target_;
};

} // namespace

bool service::is_shared(session &s, call r, const inode &dir) const
{
	return s.takes_bundles && r.head.flags & COOP_ST_F_LEASE && !dir.in.by_path() &&
	       leases.other_clients_hold(&s, dir.file);
}

bool service::begin_bundle(const exported &in, const session &s, request &r,
			   std::function<void()> go)
{
	using few = bundle_table::few;
	const auto at_nodes = [&] {
		const std::string key = bundle_key(r.body);
		const std::vector<std::uint32_t> nodes = bundles.nodes_of(key);
		return s.role_node() && (nodes.empty() || holders.any_but(s.role_node(), nodes))
			       ? bundles.for_few(key)
			       : few::no;
	};
	in.spec().squash(r.body.cred);
	// Later parts are of the kind of the first one.
	if (r.body.flags & COOP_ST_B_AT_NODES && !r.body.count && !r.counted) {
		const few what = at_nodes();
		if (what == few::no)
			r.body.flags &= ~static_cast<u32>(COOP_ST_B_AT_NODES);
		r.counted = what == few::yes;
	}
	return bundles.begin(bundle_key(r.body), r.makes, std::move(go));
}

// Breadth first: the directories at the top are those that programs look in first.
int service::make_bundle(const exported &in, call r, const std::string &key,
			 std::shared_ptr<class bundle> &out)
{
	std::deque<std::string> queue;
	if (inodes.size() >= inodes.capacity() - inodes.capacity() / 8)
		return -EBUSY; // each file in it takes descriptors that open files may need
	if (*bundles.alive > bundle_bytes_most)
		return -ENOBUFS; // clients have not closed what was evicted
	if (r.body.count) {
		coop_st_body before = r.body;
		before.count--;
		for (std::string &each : bundles.rest_of(bundle_key(before)))
			queue.push_back(std::move(each));
	} else {
		queue.emplace_back(view(r.body.fh));
	}
	auto b = bundle::create(leases);
	bundle_maker maker(in, inodes, leases, *b, r.body.cred,
			   r.body.flags & COOP_ST_B_AT_NODES ? &holders : nullptr);
	int added = 0, err = queue.empty() ? -ENOENT : 0;
	while (!err && !queue.empty()) {
		const int one = maker.add(queue.front());
		if (one == -E2BIG && added)
			break;
		queue.pop_front();
		if (one && !r.body.count && !added)
			err = one;
		if (one)
			continue;
		added++;
		if (r.body.flags & COOP_ST_B_SUBTREE)
			queue.insert(queue.end(), maker.below().begin(), maker.below().end());
		// The others are asked for on their own.
		queue.resize(std::min<std::size_t>(queue.size(), COOP_BUNDLE_RECORDS));
	}
	if (!err)
		err = added ? maker.finish(key, bundles.alive) : -ENOENT;
	if (err || !b->stands())
		return err ? err : -EBUSY;
	b->rest.assign(queue.begin(), queue.end());
	out = std::move(b);
	return 0;
}

int service::bundled(session &s, call r, const std::shared_ptr<class bundle> &b, reply &out)
{
	const inode_ref &n = b->file;
	auto f = std::make_shared<open_file>();
	n->in.unnamed().opened(n->fid);
	f->node = n;
	f->flags = COOP_ST_O_READ;
	f->who = opener::of(r.body.cred);
	if (r.head.flags & COOP_ST_F_REPEAT) // its reply was lost with the connection
		if (const auto old = s.find(r.body.open_id); old && old->node->constant)
			s.take(r.body.open_id);
	if (const int err = s.add(r.body.open_id, f, std::min(opens_max, inodes.capacity() / 2)))
		return err;
	if (!leases.share(b->holder.get(), s.shared_from_this(), b->covered)) {
		s.take(r.body.open_id);
		return -EBUSY;
	}
	s.stays(*f);
	if (s.takes_roles)
		f->seat = audiences.join(s.shared_from_this(), {n->fid, n->constant});
	std::vector<std::uint32_t> others;
	openers.opened({n->fid, n->constant}, s.node, others);
	out.body.n_nodes = static_cast<u32>(others.size());
	std::copy(others.begin(), others.end(), out.body.nodes);
	std::memcpy(out.body.proof, b->proof.data(), sizeof(out.body.proof));
	out.body.fid = n->fid;
	out.body.version = n->constant;
	out.body.size = b->size;
	out.body.flags =
		(b->rest.empty() ? 0 : COOP_ST_B_MORE) | (r.body.flags & COOP_ST_B_AT_NODES);
	out.known = b->nodes;
	bundles.count.used.fetch_add(1, std::memory_order_relaxed);
	return 0;
}

int service::bundle(const exported &in, session &s, call r, reply &out)
{
	const std::string key = bundle_key(r.body);
	// made() must be called whatever happens: others wait for it.
	struct ending {
		bundle_table &table;
		const std::string &key;
		const bool makes;
		std::shared_ptr<class bundle> b{};
		~ending()
		{
			if (makes)
				table.made(key, std::move(b));
		}
	} end{bundles, key, r.makes};
	const bool good = r.body.open_id && !(r.body.flags & ~COOP_ST_B_ALL) &&
			  (!r.body.count || r.body.flags & COOP_ST_B_SUBTREE);
	int err = 0;
	if (!good)
		err = -EINVAL;
	else if (in.by_path() || !(r.head.flags & COOP_ST_F_LEASE))
		err = -EOPNOTSUPP;
	else if (r.makes)
		err = make_bundle(in, r, key, end.b);
	else if (!(end.b = bundles.find(key)))
		err = -EBUSY;
	if (!err)
		err = bundled(s, r, end.b, out);
	if (err)
		bundles.count.refused.fetch_add(1, std::memory_order_relaxed);
	return err;
}

} // namespace coop::daemon
