// SPDX-License-Identifier: MIT
// neighbours.hpp - the shm end points of this process, and how long each must stay open.
//
// libfabric's shm (1.17) lets end points of one process access each other's memory directly,
// without a mapping: sending to an end point that was closed, or removing it from a table later,
// accesses freed memory. shm also enters senders into the table of the end point that they send to.
// So an end point whose port is done empties its table and stays open until every port that has met
// it has parted from it, or is done too; it takes some 4 MB in /dev/shm. End points of other
// processes are mapped separately and need none of this.
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
	/// What a port leaves behind; closed in reverse.
	struct remains {
		objects base;
		handle<fid_av> table;
		handle<fid_ep> ep;
	};

	/// The neighbours of this process; exists as long as the process.
	static neighbours &here();

	/// Names come from libfabric and are unique.
	void opened(const std::string &name);
	/// `own` is about to enter `other` into its table. False: do not, the port of `other` is
	/// done.
	bool meet(const std::string &own, const std::string &other);
	/// End points that `own` has met and whose ports are done.
	std::vector<std::string> gone(const std::string &own);
	/// Removes one of these from the table of `own`, which has read all that it had sent.
	void part(const std::string &own, const std::string &other, fid_av &table);
	/// Whether `own` has met end points from which it has not parted.
	bool any(const std::string &own);
	/// The port is done, and its table is unused. Its remains are closed now or later, on any
	/// thread.
	void done(const std::string &name, std::unique_ptr<remains>);

private:
	/// A done end point can be closed once all that it has met are done, or have parted from
	/// it.
	struct neighbour {
		bool open = true;
		std::set<std::string> met;  ///< in this process, and open
		std::set<std::string> gone; ///< met, done, and not parted from; only while open
		std::unique_ptr<remains> left;
	};
	void bury(const std::string &name);

	std::mutex lock_;
	std::map<std::string, neighbour> all_;
};

} // namespace coop::net::fabric
