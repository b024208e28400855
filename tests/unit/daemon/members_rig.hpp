// SPDX-License-Identifier: MIT
// members_rig.hpp - clients that are members of files: with a node, and roles that they note.
#pragma once

#include "rig.hpp"

#include <arpa/inet.h>
#include <deque>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>

#include "coop/unique_fd.hpp"

namespace rig
{

using coop::client::file_roles;

inline coop_addr address(std::uint32_t n)
{
	coop_addr a{};
	a.gid[15] = 1;
	a.qpn = n;
	return a;
}

// A client that takes roles, with a node.
struct reader {
	std::mutex mutex;
	std::deque<file_roles> pushed; // in order
	std::uint32_t node = 0;
	std::unique_ptr<storage> link;

	std::optional<file_roles> latest(std::uint64_t version)
	{
		std::lock_guard lock(mutex);
		for (auto r = pushed.rbegin(); r != pushed.rend(); ++r)
			if (r->version == version)
				return *r;
		return {};
	}
	std::size_t pushes()
	{
		std::lock_guard lock(mutex);
		return pushed.size();
	}
	std::uint32_t members(std::uint64_t version)
	{
		const auto r = latest(version);
		return r ? r->roles.members : 0;
	}
};

class members_test : public daemon_test
{
protected:
	static constexpr std::size_t big = COOP_FOREST_UNIT + 5;

	void serve(const std::string &name = "big", std::size_t size = big)
	{
		start();
		client_ = connect();
		file_ = make(name, size);
	}
	// A file whose version is proved.
	entry make(const std::string &name, std::size_t size)
	{
		put(name, std::string(size, 'x'));
		const entry e = find(name);
		attributes a{};
		EXPECT_TRUE(eventually(
			[&] { return !client_->getattr(me(), e.fh, a) && !(a.version >> 63); }));
		return {e.fh, a};
	}
	std::unique_ptr<reader> come(std::uint32_t n, bool registered = true)
	{
		auto r = std::make_unique<reader>();
		storage_options o = client_options();
		o.on_roles = [&r = *r](const file_roles &what) {
			std::lock_guard lock(r.mutex);
			r.pushed.push_back(what);
		};
		r->link = storage::connect(o);
		if (registered)
			r->node = r->link->register_node(address(n));
		return r;
	}
	open_result open_by(reader &r, const entry &e, int flags = O_RDONLY)
	{
		open_result o{};
		EXPECT_EQ(r.link->open(me(), e.fh, flags, 0, o), 0);
		return o;
	}
	// Both directions: whatever the daemon has pushed so far has been handled.
	static void heard(reader &r) { EXPECT_EQ(r.link->ping(), 0); }
	// Each reader's latest roles are those of one forest of all of them.
	static bool agree(const std::vector<reader *> &all, std::uint64_t version)
	{
		std::vector<std::uint32_t> node(all.size());
		std::vector<file_roles> said;
		for (reader *r : all) {
			const auto one = r->latest(version);
			if (!one || one->roles.index >= all.size())
				return false;
			node[one->roles.index] = r->node;
			said.push_back(*one);
		}
		const auto id = [&](std::uint32_t n) { return n == COOP_NONE ? 0 : node[n]; };
		for (const file_roles &one : said)
			for (std::uint32_t c = 0; c < COOP_FOREST_COLOURS; c++) {
				const coop_st_parents &p = one.roles.colours[c];
				coop_role r;
				coop_forest_role(static_cast<u32>(all.size()), one.roles.index, c,
						 &r);
				if (p.parent != id(r.parent) || p.alternate != id(r.alternate) ||
				    p.level != r.level)
					return false;
			}
		return true;
	}

	entry file_;
};

// A client of the test's own making, which chooses the protocol's version.
class plain_client
{
public:
	// used: the latest request id of its session, on an earlier connection.
	plain_client(std::uint16_t port, std::uint16_t low, std::uint16_t high, char session,
		     std::uint64_t used = 0) :
		id_(used)
	{
		fd_ = coop::unique_fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
		sockaddr_in a{};
		a.sin_family = AF_INET;
		a.sin_port = htons(port);
		::inet_pton(AF_INET, host().c_str(), &a.sin_addr);
		EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr *>(&a), sizeof(a)), 0);
		const struct timeval patience = {deadline.count(), 0};
		::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		coop_st_body b{};
		b.version_min = low, b.version_max = high;
		b.session[0] = static_cast<u8>(session);
		b.text = {reinterpret_cast<const u8 *>("/data"), 5};
		status = ask(COOP_ST_HELLO, b);
		chosen_min = got.version_min, chosen_max = got.version_max;
		if (!status) {
			EXPECT_EQ(ask(COOP_ST_PROOF_OP, b), 0);
			proof_flags = got.flags;
		}
	}
	// Sends a request; returns the reply's status. Notes pushes that come before it.
	int ask(std::uint16_t op, const coop_st_body &b)
	{
		std::uint8_t buf[COOP_ST_HEADER + COOP_ST_BODY_MAX];
		const int n = coop_st_body_put(&b, coop_st_request_fields(op), buf + COOP_ST_HEADER,
					       COOP_ST_BODY_MAX);
		EXPECT_GE(n, 0);
		coop_st_header h{op, flags, static_cast<u32>(n), static_cast<u32>(data.size()),
				 0,  ++id_};
		coop_st_header_put(&h, buf);
		std::string all(reinterpret_cast<const char *>(buf),
				COOP_ST_HEADER + static_cast<std::size_t>(n));
		all += data;
		EXPECT_EQ(::send(fd_.get(), all.data(), all.size(), MSG_NOSIGNAL),
			  static_cast<ssize_t>(all.size()));
		for (;;) {
			if (!take(h))
				return -1;
			if (h.id == id_)
				return static_cast<int>(h.status);
			EXPECT_EQ(h.id, 0u);
			pushes.push_back(h.op);
		}
	}
	static coop_st_body on(const entry &e, std::uint64_t open_id)
	{
		coop_st_body b{};
		b.fh = {reinterpret_cast<const u8 *>(e.fh.data()), static_cast<u32>(e.fh.size())};
		b.cred.uid = ::geteuid();
		b.open_id = open_id;
		return b;
	}
	int open(const entry &e, std::uint64_t open_id, std::uint32_t how = COOP_ST_O_READ)
	{
		coop_st_body b = on(e, open_id);
		b.flags = how;
		return ask(COOP_ST_OPEN, b);
	}
	int close(const entry &e, std::uint64_t open_id)
	{
		return ask(COOP_ST_CLOSE, on(e, open_id));
	}
	int enroll(std::uint32_t n)
	{
		coop_st_body b{};
		b.addr = address(n);
		return ask(COOP_ST_REGISTER, b);
	}
	std::size_t count(std::uint16_t op) const
	{
		return static_cast<std::size_t>(std::count(pushes.begin(), pushes.end(), op));
	}
	void cut() { ::shutdown(fd_.get(), SHUT_RDWR); }
	int fd() const { return fd_.get(); }
	std::uint64_t used() const { return id_; }
	void number(std::uint64_t id) { id_ = id - 1; } // of the next request

	int status = 0;
	std::uint16_t flags = 0; // of the next requests' headers
	std::string data;        // that they carry
	std::uint16_t chosen_min = 0, chosen_max = 0;
	std::uint32_t proof_flags = 0;     // of the reply to PROOF
	std::vector<std::uint16_t> pushes; // operations
	coop_st_body got{};                // the latest reply

private:
	bool take(coop_st_header &h)
	{
		std::uint8_t buf[COOP_ST_HEADER];
		if (::recv(fd_.get(), buf, sizeof(buf), MSG_WAITALL) != sizeof(buf) ||
		    coop_st_header_get(&h, buf))
			return false;
		body_.resize(h.body_len + h.data_len);
		if (!body_.empty() && ::recv(fd_.get(), body_.data(), body_.size(), MSG_WAITALL) !=
					      static_cast<ssize_t>(body_.size()))
			return false;
		if (h.status && !h.body_len)
			return true;
		coop_st_body b;
		if (coop_st_body_get(&b, coop_st_reply_fields(h.op), body_.data(), h.body_len))
			return false;
		if (h.id)
			got = b;
		return true;
	}

	coop::unique_fd fd_;
	std::uint64_t id_;
	std::vector<std::uint8_t> body_;
};

} // namespace rig
