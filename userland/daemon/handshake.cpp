// SPDX-License-Identifier: MIT
// handshake.cpp - a connection's first messages: who the client is, and which export it wants.
//
// Before the last of them the client is a stranger. That message, PROOF, looks at the export's
// root, so it waits as requests do while the export's file system hangs.
#include <algorithm>
#include <iterator>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "userland/daemon/connection.hpp"
#include "userland/daemon/identity.hpp"

namespace coop::daemon
{

namespace
{

constexpr std::size_t greeted_max = 64; // that wait for the export's file system

// The highest protocol version that both speak; 0: none.
std::uint16_t common_version(const coop_st_body &client, std::uint16_t newest)
{
	const std::uint16_t version = std::min(client.version_max, newest);
	const bool old = version < COOP_ST_VERSION_MIN || version < client.version_min;
	return old ? std::uint16_t{0} : version;
}

} // namespace

void connection::greet(std::vector<work> batch)
{
	for (auto w = batch.begin(); w != batch.end(); ++w) {
		const exported *const in = state_ == state::proof
						   ? server_.files().find_export(shake_.export_name)
						   : nullptr;
		if (!in) {
			handshake(**w);
		} else if (const lane::visit now(server_.lane_of(*in)); now) {
			handshake(**w);
		} else if (lane &l = server_.lane_of(*in); l.waiting() >= greeted_max) {
			shut("its export does not answer");
		} else {
			const auto rest = std::make_shared<std::vector<work>>(
				std::make_move_iterator(w), std::make_move_iterator(batch.end()));
			return l.wait([self = shared_from_this(), rest] {
				self->handshake(*rest->front());
				rest->erase(rest->begin());
				if (!self->ended())
					self->greet(std::move(*rest));
			});
		}
		if (ended())
			return;
	}
	again();
}

void connection::handshake(const request &r)
{
	coop_st_body body;
	if (coop_st_body_get(&body, coop_st_request_fields(r.head.op), r.raw.data(),
			     static_cast<u32>(r.raw.size()))) {
		server_.malformed.fetch_add(1, std::memory_order_relaxed);
		return shut("not the coopfs storage protocol");
	}
	request decoded;
	decoded.head = r.head;
	decoded.body = body;
	if (state_ == state::hello && r.head.op == COOP_ST_HELLO)
		return hello(decoded);
	if (state_ == state::proof && r.head.op == COOP_ST_PROOF_OP)
		return proof(decoded);
	refuse(r, EPROTO);
	state_ = state::over;
}

void connection::hello(const request &r)
{
	const coop_st_body &b = r.body;
	reply out;
	random_bytes(out.body.nonce, sizeof(out.body.nonce));
	const std::uint16_t version = common_version(b, server_.newest_version());
	out.body.version_min = version ? version : COOP_ST_VERSION_MIN;
	out.body.version_max = version ? version : server_.newest_version();
	out.body.flags = server_.key().empty() ? 0 : COOP_ST_W_KEYED;
	shake_ = {
		std::string(reinterpret_cast<const char *>(b.nonce), sizeof(b.nonce)),
		std::string(reinterpret_cast<const char *>(out.body.nonce), sizeof(out.body.nonce)),
		std::string(reinterpret_cast<const char *>(b.session), sizeof(b.session)),
		std::string(view(b.text)),
		b.version_min,
		b.version_max,
		out.body.version_min,
		out.body.flags};
	if (!version)
		out.status = EPROTONOSUPPORT;
	if (!server_.key().empty()) {
		const digest d = shake_.proof(server_.key(), "server");
		std::memcpy(out.body.proof, d.data(), d.size());
	}
	state_ = out.status ? state::over : state::proof;
	answer(r, out);
}

void connection::proof(const request &r)
{
	reply out;
	if (!server_.key().empty()) {
		const digest d = shake_.proof(server_.key(), "client");
		if (!equal_secret(d.data(), r.body.proof, d.size())) {
			server_.auth_failures.fetch_add(1, std::memory_order_relaxed);
			spdlog::warn("{}: wrong cluster key; connection refused", peer_);
			state_ = state::over;
			return refuse(r, EKEYREJECTED);
		}
	}
	if (server_.key().empty()) {
		// Without a key the client may act as any user, so its own user must already have
		// that right.
		const auto owner = peer_owner(fd_);
		if (!owner || (*owner != 0 && *owner != ::geteuid())) {
			server_.auth_failures.fetch_add(1, std::memory_order_relaxed);
			spdlog::warn("{}: belongs to another user; without a cluster key only root "
				     "and this "
				     "daemon's user may connect",
				     peer_);
			state_ = state::over;
			return refuse(r, EACCES);
		}
	}
	const exported *in = server_.files().find_export(shake_.export_name);
	int err = in ? server_.files().root(*in, out) : -ENOENT;
	bool fresh = false;
	std::shared_ptr<session> s;
	if (!err && !in->spec().admits(address_)) {
		server_.auth_failures.fetch_add(1, std::memory_order_relaxed);
		spdlog::warn("{}: export {}: not one of its clients; connection refused", peer_,
			     in->name());
		err = -EACCES;
	}
	if (!err && !server_.known(*this))
		err = -EUSERS;
	if (!err) {
		err = server_.attach(shake_.session, *in, fresh, s);
		if (err == -EACCES) {
			server_.auth_failures.fetch_add(1, std::memory_order_relaxed);
			spdlog::warn("{}: export {}: its session is of another export; connection "
				     "refused",
				     peer_, in->name());
		}
	}
	if (err) {
		state_ = state::over;
		return refuse(r, -err);
	}
	session_ = std::move(s);
	epoch_ = session_->renew(
		[weak = weak_from_this()](std::uint16_t op, const coop_st_body &b) {
			const auto self = weak.lock();
			return self && self->push(op, b);
		},
		[weak = weak_from_this()] {
			if (const auto self = weak.lock())
				self->flush();
		},
		shake_.version >= COOP_ST_VERSION_ROLES);
	session_->hears();
	session_->takes_bundles = shake_.version >= coop_st_op_since(COOP_ST_BUNDLE);
	{
		std::lock_guard lock(mutex_);
		export_ = in;
		lane_ = &server_.lane_of(*in);
		deadline_.cancel();
	}
	in_.resize(input_max);
	state_ = state::ready;
	out.body.flags = fresh ? COOP_ST_W_NEW_SESSION : 0;
	out.body.count = COOP_ST_REQUESTS_MAX;
	answer(r, out);
}

} // namespace coop::daemon
