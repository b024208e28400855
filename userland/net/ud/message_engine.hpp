// SPDX-License-Identifier: MIT
// message_engine.hpp - the rpc/chan engine of a machine, as a C++ object.
//
// Owns the engine's memory. Used under the lock of the machine.
#pragma once

#include <cstdlib>
#include <memory>

#include "channels.hpp"
#include "options.hpp"

namespace coop::net::ud
{

class message_engine
{
public:
	static constexpr std::uint32_t receives = 1024; ///< messages half received, at most

	/// Creates it for these queue pairs. @throw std::system_error.
	void make(const options &, const channels &, std::uint32_t sends, std::uint64_t now);
	/// The end point is lost: the engine is not used any more.
	void abandon() { engine_ = nullptr; }
	/// For the functions of rpc/chan; null before make() and after abandon().
	operator coop_chan *() const { return engine_; }
	/// The longest message that MTU and window allow.
	std::uint32_t max_length() const { return max_length_; }

private:
	std::unique_ptr<void, void (*)(void *)> memory_{nullptr, std::free};
	coop_chan *engine_ = nullptr;
	std::uint32_t max_length_ = 0;
};

/// @throw std::system_error.
std::uint64_t random_number();

} // namespace coop::net::ud
