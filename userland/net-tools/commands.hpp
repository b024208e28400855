// SPDX-License-Identifier: MIT
// commands.hpp - one function for each command. It takes its options as a plain struct, prints its
// output and returns the exit status; main.cpp fills the structs.
#pragma once

#include <functional>
#include <sched.h>

#include "client.hpp"
#include "interruption.hpp"
#include "local_server.hpp"
#include "results.hpp"

namespace coop::net_tools
{

/// Options of every measuring command.
struct measure_request {
	settings how;
	std::string server; ///< empty: started on this machine, for the duration of the command
	std::vector<unsigned> server_cpus; ///< processors of that server's threads; none: any
	std::vector<std::size_t> sizes;
	std::uint64_t count = 100000;
	double seconds = 1; ///< limit of one measurement
	double timeout_s = 10;
	bool json = false;
	std::string plot;
};

struct ping_request : measure_request {
	bool check = false;
};
int run_ping(const ping_request &);

struct bulk_request : measure_request {
	std::string direction = "both"; ///< fetch, fill, both
	unsigned depth = 4;
};
int run_bulk(const bulk_request &);

struct bench_request : measure_request {
	std::vector<std::string> modes = {"poll", "block"};
	std::vector<std::string> only = {"ping", "stream", "bulk", "peers"};
	unsigned depth = 64;
	unsigned bulk_depth = 4;
	unsigned peers = 10000;
	unsigned connected = 0; ///< none: 0
};
int run_bench(const bench_request &);

struct serve_request {
	settings how;
	std::string address;
	std::size_t max_bulk = 64 << 20;
	bool until_eof = false;
};
int run_serve(const serve_request &);

/// Default sizes of messages, in bytes.
inline const std::vector<std::size_t> usual_messages = {8,     64,    1024,   4096,
							16384, 65536, 262144, 1048576};

/// A client and its connection.
class session
{
public:
	/// @throw std::system_error as net::domain. `slots`: messages under way at a time.
	session(const measure_request &, const settings &, unsigned slots);
	~session(); ///< restores the thread's processors
	session(const session &) = delete;
	session &operator=(const session &) = delete;

	trouble connect();
	net_tools::client &client() { return *client_; }
	/// The sizes to measure: the wanted ones, or else the usual ones within the limits of both
	/// sides.
	trouble message_sizes(const std::vector<std::size_t> &usual, std::vector<std::size_t> &out);
	trouble bulk_sizes(const std::vector<std::size_t> &usual, std::vector<std::size_t> &out);
	/// Runs the task after another that warms up.
	trouble run(task &warm, task &);
	bool one_process() const { return one_process_; }

private:
	const measure_request &request_;
	const settings settings_;
	bool one_process_ = false;
	std::unique_ptr<local_server> local_; ///< destroyed last
	std::unique_ptr<station> station_;
	std::unique_ptr<net_tools::client> client_;
	interruption interruption_; ///< forgets the station before that is destroyed
	unsigned slots_;
	cpu_set_t cpus_before_{};
};

/// The output of a command, during and after the measurements.
class printer
{
public:
	printer(const measure_request &r, const char *command) : request_(r), command_(command) {}
	/// Checks before the measurements whether the output can be written.
	trouble begin() const;
	/// The domain of the measurements.
	void under(const net::domain &d) { parameters_ = d.parameters(); }
	void add(result);
	/// Of the client's machine, after the measurements in this mode; one rail is not printed.
	void rails(const settings &how, const std::vector<net::rail_stats> &);
	/// Members of the JSON's top object besides the results.
	nlohmann::ordered_json &extra() { return extra_; }
	/// Writes JSON and plot. @return the exit status.
	int end();

private:
	const measure_request &request_;
	const char *command_;
	std::vector<net::domain_parameter> parameters_;
	std::vector<result> results_;
	nlohmann::ordered_json extra_ = nlohmann::ordered_json::object();
};

/// Measure one size after another.
trouble ping_sizes(const measure_request &, const settings &, bool check, session &, printer &);
trouble bulk_sizes(const measure_request &, const settings &, command direction,
		   const std::vector<std::size_t> &sizes, unsigned depth, session &, printer &);

/// Runs `f`; exceptions of constructors become a message and a status.
int guarded(const std::function<trouble()> &f);

} // namespace coop::net_tools
