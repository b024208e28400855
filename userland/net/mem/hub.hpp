// SPDX-License-Identifier: MIT
// hub.hpp - the network of the transport `mem`: a map of mailboxes.
//
// Every request from one machine to another is a packet with a copy of the data. No machine touches
// the memory of another's operations, so memory is obviously quiet when an operation has ended, and
// a late packet can only carry an outdated number.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "userland/net/lanes.hpp"

namespace coop::net::mem
{

enum class kind : std::uint8_t {
	message, // data; answered by `ended`
	get,     // asks for data of `remote`; answered by `data` or `ended`
	put,     // data for `remote`; answered by `ended`
	data,    // for the get `remote`; answered by `got`
	got,     // `remote` has been read, if status is 0
	ended,   // `remote`, an operation of the receiver, has ended with status
};

struct packet {
	mem::kind kind;
	address from;
	spi::token token = 0;  // of the sender's operation
	spi::token remote = 0; // of the receiver's
	std::uint64_t key = 0; // authorises the use of that operation
	std::size_t length = 0;
	bool ranged = false; // get, put: the operation is a reusable one
	std::size_t offset = 0;
	bool high = false; // message: overtakes others that have not been taken
	int status = 0;
	std::vector<std::byte> data = {};
};

class mailbox
{
public:
	/// Most packets in a mailbox; further ones are refused.
	static constexpr std::size_t most = 1u << 17;

	mailbox(); // throws std::system_error
	~mailbox();
	mailbox(const mailbox &) = delete;
	mailbox &operator=(const mailbox &) = delete;

	/// Any thread. False: closed, or full.
	bool push(packet &&);
	bool pop(packet &);
	/// Like transport_machine::arm(), for fd().
	bool arm();
	int fd() const { return fd_; }
	/// Returns the remaining packets; push() returns false from now on.
	std::deque<packet> close();

private:
	std::mutex lock_;
	lanes<std::deque<packet>> packets_;
	std::atomic<std::size_t> waiting_{0};
	bool armed_ = false, closed_ = false;
	const int fd_;
};

/// The mailboxes of this process by address. Any thread.
class hub
{
public:
	static hub &instance();
	void insert(const address &, std::shared_ptr<mailbox>);
	void erase(const address &);
	/// Null: no machine has this address.
	std::shared_ptr<mailbox> find(const address &);

private:
	std::mutex lock_;
	std::unordered_map<address, std::shared_ptr<mailbox>> boxes_;
};

} // namespace coop::net::mem
