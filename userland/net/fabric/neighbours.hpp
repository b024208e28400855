// SPDX-License-Identifier: MIT
// neighbours.hpp - the shm end points of this process, and how long each has to stay.
//
// libfabric's shm (1.17) lets end points of one process into each other's memory as it is, without
// a mapping of their own: whoever still sends to one that was closed, or takes it out of its table
// later, reaches into nothing. It also enters senders into the table of the end point that they
// send to, without being asked. So an end point whose port is done empties its table and stays
// until every port that has met it has parted from it, or is done too; it is some 4 MB in /dev/shm.
// End points of other processes are mapped by each of us, and need none of this.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "objects.hpp"

namespace coop::net::fabric
{

class neighbours
{
public:
	/// What a port leaves; closed in reverse.
	struct remains {
		objects base;
		handle<fid_av> table;
		handle<fid_ep> ep;
	};

	/// Those of this process, for as long as it lives.
	static neighbours &here();

	/// Names are of libfabric, and none comes twice.
	void opened(const std::string &name);
	/// `own` is about to enter `other` into its table. False: do not, its port is done.
	bool meet(const std::string &own, const std::string &other);
	/// Those that `own` has met and whose ports are done.
	std::vector<std::string> gone(const std::string &own);
	/// Takes one of these out of the table of `own`, which has looked at all that it had sent.
	void part(const std::string &own, const std::string &other, fid_av &table);
	/// Whether there is anybody whom `own` has met and not parted from.
	bool any(const std::string &own);
	/// The port is done; nobody uses its table. What it leaves is closed now or later, in any
	/// thread.
	void done(const std::string &name, std::unique_ptr<remains>);

private:
	/// Nobody needs one that is done once all that it has met are, or have parted from it.
	struct neighbour {
		bool open = true;
		std::set<std::string> met;  ///< in this process, and open
		std::set<std::string> gone; ///< met and done, of one that is open: not parted from
		std::unique_ptr<remains> left;
	};
	void bury(const std::string &name);

	std::mutex lock_;
	std::map<std::string, neighbour> all_;
};

} // namespace coop::net::fabric
