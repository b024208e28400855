// SPDX-License-Identifier: MIT
// offers.hpp - the operations of a machine with several rails that peers may read.
//
// An operation is offered on every rail. For one peer alone it is offered on a rail once that
// peer's address there has been proven, which may be later than its beginning. It is over when it
// is over on all rails: then nothing reads its memory. Only the first rail may end one unasked,
// because an error of another one costs no more than that rail; a rail that is lost ends none.
//
// Used under the lock of the machine.
#pragma once

#include <unordered_set>
#include <vector>

#include "userland/net/ud/bulk.hpp"

namespace coop::net::kernel
{

/// Where operations are offered beside the first rail.
class further_offers
{
public:
	/// Where this peer is there.
	virtual bool knows(spi::peer_number) const = 0;
	/// @return whether it is offered.
	virtual bool begin(std::uint32_t index) = 0;
	virtual void end(std::uint32_t index) = 0;

protected:
	~further_offers() = default;
};

class all_offers final : public ud::offers
{
public:
	/// `others`: the rails from 1 on.
	all_offers(ud::offers &first, std::vector<further_offers *> others, ud::operations &);

	void begin(std::uint32_t index) override;
	void end(std::uint32_t index) override;

	/// The address of this peer on this rail is known.
	void proven(unsigned rail, spi::peer_number);
	/// Somebody has begun to read it by this rail, or has paused. @return whether it is read by
	/// any.
	bool reading(unsigned rail, std::uint32_t index, bool on);
	/// It has ended on this rail.
	void over(unsigned rail, std::uint32_t index, int status);
	/// This rail, which is not the first, is lost, and everything that is offered on it has
	/// ended. @return what nobody reads any more because of that.
	std::vector<std::uint32_t> lost(unsigned rail);

	struct end_of {
		std::uint32_t index;
		int status; ///< not 0: unasked
	};
	/// One that is over on all rails, once each.
	bool next_over(end_of &);

private:
	struct state {
		unsigned open = 0, waits = 0, read = 0; // bit for each rail
		bool ending = false;
		int status = 0;
	};

	state &of(std::uint32_t index);
	void close(std::uint32_t index, unsigned rails);
	void conclude(std::uint32_t index);

	ud::offers &first_;
	const std::vector<further_offers *> others_;
	ud::operations &operations_;
	std::vector<state> states_;                 // by operation
	std::unordered_set<std::uint32_t> waiting_; // for the address of their peer on some rail
	std::vector<end_of> over_;
	unsigned lost_ = 0; // rails
};

} // namespace coop::net::kernel
