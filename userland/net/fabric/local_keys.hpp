// SPDX-License-Identifier: MIT
// local_keys.hpp - local keys of buffers, for providers that want one for all they read.
//
// libfabric registers memory with a domain of its own. Each transfer machine has one, and a
// buffer may be added to any of them: so it is registered with a machine's when it is first
// sent from there, and stays so until the buffer or the machine goes, whichever is first.
// Either happens on any thread; whoever asks for keys has the buffer in an operation and is
// the machine, so neither goes meanwhile.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "../memory.hpp"
#include "provider.hpp"

namespace coop::net::fabric
{

/// Of one transport domain.
class local_keys
{
public:
	/// What fi_mr_desc() says of each segment, in their order.
	using descriptors = std::span<void *const>;

	/// A buffer. @return what becomes its registration.
	void *add(std::span<const segment>);
	void remove(void *registration);

	/// For a machine and its domain. @return 0 or -errno of the registration.
	int find(const spi::memory &, const void *machine, fid_domain &, descriptors &out);
	/// The machine's domain is about to be closed.
	void forget(const void *machine);

private:
	struct keys {
		const void *machine;
		std::vector<handle<fid_mr>> regions;
		std::vector<void *> descs;
	};
	struct buffer {
		std::vector<segment> segments;
		std::list<keys> by_machine; // few
		std::list<buffer>::iterator self;
	};

	std::mutex lock_;
	std::list<buffer> buffers_;
	std::uint64_t next_key_ = 1; // where the provider lets us choose
};

/// Whether each piece lies in the segment whose descriptor it carries; for tests.
bool covered(const spi::memory &, local_keys::descriptors, std::span<const iovec>,
	     std::span<void *const>);

} // namespace coop::net::fabric
