// SPDX-License-Identifier: MIT
// chan_engine.hpp - the rpc/chan engine of a machine, as a C++ object.
//
// Owns the engine's memory, and the texts of bulk messages, which are in the slab. Used under the
// lock of the machine.
#pragma once

#include <cstdlib>
#include <memory>

#include "channels.hpp"
#include "message_engine.hpp"
#include "options.hpp"

namespace coop::net::ud
{

class chan_engine final : public message_engine
{
public:
	static constexpr std::uint32_t receives = 1024; ///< messages half received, at most

	explicit chan_engine(spi::sink &s) : sink_(s) {}
	/// Sets room for so many texts apart.
	void reserve(fetch_host::slab &, std::uint32_t texts);
	/// Creates it for these queue pairs. @throw std::system_error.
	void make(const options &, const channels &, std::uint32_t sends, std::uint64_t now);
	/// The end point is lost: the engine is not used any more.
	void abandon() { engine_ = nullptr; }
	/// For the functions of rpc/chan; null before make() and after abandon().
	operator coop_chan *() const { return engine_; }
	/// The longest message that MTU and window allow.
	std::uint32_t max_length() const { return max_length_; }

	std::int64_t open(const coop_chan_peer_addr &, spi::peer_number, identity,
			  std::uint64_t now) override;
	void admit(std::uint32_t session, spi::peer_number, identity) override;
	void close(std::uint32_t session, std::uint64_t now) override;
	bool info(std::uint32_t session, coop_chan_peer_info &) const override;
	std::uint32_t sessions() const override;
	int send(const coop_chan_msg &m, std::uint64_t now, std::uint32_t &id) override
	{
		return coop_chan_send(engine_, &m, now, &id);
	}
	void cancel(std::uint32_t id, std::uint64_t now) override
	{
		(void)coop_chan_cancel(engine_, id, now);
	}
	std::uint32_t unit() const override { return coop_chan_unit(engine_); }
	std::byte *text(std::uint32_t index) override;
	int deliver_here(std::uint32_t index, op &) override;

private:
	spi::sink &sink_;
	std::unique_ptr<void, void (*)(void *)> memory_{nullptr, std::free};
	coop_chan *engine_ = nullptr;
	std::uint32_t max_length_ = 0;
	const fetch_host::slab *slab_ = nullptr;
	std::size_t text_at_ = 0; // by operation
};

} // namespace coop::net::ud
