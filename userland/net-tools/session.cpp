// SPDX-License-Identifier: MIT
// session.cpp - common parts of the measuring commands.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "commands.hpp"

namespace coop::net_tools
{

int report(const failure &f)
{
	std::fprintf(stderr, "coopnet: %s\n", f.text.c_str());
	return f.status;
}

trouble printed()
{
	errno = 0;
	if (!std::fflush(stdout) && !std::ferror(stdout))
		return {};
	return failure{exit_failure,
		       std::string("cannot write to standard output") +
			       (errno ? std::string(": ") + std::strerror(errno) : std::string())};
}

int guarded(const std::function<trouble()> &f)
{
	try {
		const trouble t = f();
		if (interrupted())
			return exit_failure; // reported when everything has been taken down
		return t ? report(*t) : exit_ok;
	} catch (const std::system_error &e) {
		const bool usage = e.code() == std::errc::invalid_argument ||
				   e.code() == std::errc::protocol_not_supported;
		std::string text = e.what();
		// The text already says what is wrong with the parameter: drop "Invalid argument".
		if (const std::string behind = ": " + e.code().message();
		    usage && text.size() > behind.size() && text.ends_with(behind))
			text.resize(text.size() - behind.size());
		return report({usage ? exit_usage : exit_failure, text});
	} catch (const std::bad_alloc &) {
		return report({exit_failure, "not enough memory; lower --depth or --size, or `-o "
					     "max_message=`"});
	}
}

namespace
{

// Checks `wanted` against the range (`why`: its origin): all must fit, for the user chose them. If
// `wanted` is empty: those of `usual` that fit.
trouble fitting_sizes(const std::vector<std::size_t> &wanted, const std::vector<std::size_t> &usual,
		      std::size_t least, std::size_t most, const std::string &why,
		      std::vector<std::size_t> &out)
{
	const std::string range = "must be from " + std::to_string(least) + " to " +
				  std::to_string(most) + " bytes, " + why;
	out.clear();
	for (const std::size_t s : wanted.empty() ? usual : wanted)
		if (s >= least && s <= most)
			out.push_back(s);
		else if (!wanted.empty())
			return failure{exit_usage, "--size " + std::to_string(s) + ": " + range};
	if (out.empty())
		return failure{exit_usage, "none of the usual sizes fits; --size " + range};
	return {};
}

} // namespace

session::session(const measure_request &r, const settings &s, unsigned slots) :
	request_(r),
	settings_(s),
	slots_(slots)
{
	station_ = std::make_unique<station>(s);
	interruption_.install();
	one_process_ = !station_->domain().traits().between_processes;
	::sched_getaffinity(0, sizeof(cpus_before_), &cpus_before_);
}

session::~session()
{
	::sched_setaffinity(0, sizeof(cpus_before_), &cpus_before_);
}

trouble session::connect()
{
	net::address server;
	if (trouble t = may_run_on("--cpus", settings_.cpus))
		return t;
	if (trouble t = may_run_on("--server-cpus", request_.server_cpus))
		return t;
	if (!request_.server.empty() && !request_.server_cpus.empty())
		return failure{exit_usage,
			       "--server-cpus is for a server that this command starts; with an "
			       "address, give --cpus to its `coopnet serve`"};
	if (one_process_ && !request_.server.empty())
		return failure{exit_usage,
			       "the transport " + settings_.transport +
				       " reaches only its own process; leave the address out"};
	if (request_.server.empty()) {
		local_ = std::make_unique<local_server>();
		settings there = settings_;
		there.cpus = request_.server_cpus;
		if (trouble t = local_->start(there, one_process_))
			return t;
	}
	// Not before: a child inherits the processors of its thread.
	if (const int status = confine_thread(settings_.cpus))
		return failure{exit_usage, "--cpus: " + std::string(std::strerror(-status))};
	if (trouble t = full_address(local_ ? local_->address() : request_.server,
				     station_->domain(), server))
		return t;
	client_ = std::make_unique<net_tools::client>(*station_, slots_);
	interruption_.ends(*station_, client_->over());
	return client_->connect(
		server, std::chrono::milliseconds(static_cast<long>(request_.timeout_s * 1000)));
}

trouble session::run(task &warm, task &measured)
{
	if (trouble t = client_->run(warm))
		return t;
	return client_->run(measured);
}

trouble session::message_sizes(const std::vector<std::size_t> &usual, std::vector<std::size_t> &out)
{
	const std::size_t own = station_->limits().max_message,
			  theirs = client_->takes().max_message;
	std::string why = theirs < own   ? "which is `-o max_message=` of the server"
			  : own < theirs ? "which is `-o max_message=` of this side"
					 : "which is `-o max_message=` of both sides";
	if (station_->domain().transport() == "ud")
		why += ", or half of window= times mtu= there";
	return fitting_sizes(request_.sizes, usual, head::size, client_->max_message(), why, out);
}

trouble session::bulk_sizes(const std::vector<std::size_t> &usual, std::vector<std::size_t> &out)
{
	return fitting_sizes(request_.sizes, usual, 1, client_->max_bulk(),
			     client_->max_bulk() < client_->takes().max_bulk
				     ? "the most that the transport moves at a time"
				     : "which is `--max-bulk` of the server",
			     out);
}

trouble printer::begin() const
{
	return request_.plot.empty() ? trouble() : may_draw(request_.plot);
}

void printer::add(result r)
{
	if (!request_.json) {
		std::fputs(table_line(r, results_.empty() ? nullptr : &results_.back()).c_str(),
			   stdout);
		std::fflush(stdout);
	}
	results_.push_back(std::move(r));
}

void printer::rails(const settings &how, const std::vector<net::rail_stats> &all)
{
	if (all.size() < 2)
		return;
	auto &j = extra_["rails"][name(how.progress)] = nlohmann::ordered_json::array();
	for (const net::rail_stats &r : all) {
		j.push_back({{"name", r.name},
			     {"sent", r.sent},
			     {"received", r.received},
			     {"read", r.read_bytes},
			     {"reads", r.reads},
			     {"failed", r.failed}});
		if (!request_.json)
			std::fputs(rail_line(r).c_str(), stdout);
	}
}

int printer::end()
{
	const settings &how = request_.how;
	if (request_.json) {
		nlohmann::ordered_json parameters = nlohmann::ordered_json::object();
		for (const net::domain_parameter &p : parameters_)
			parameters[p.key] = p.value;
		nlohmann::ordered_json j = {
			{"coopnet", COOP_VERSION},
			{"command", command_},
			{"transport", how.transport},
			{"parameters", parameters},
			{"server", request_.server.empty()
					   ? nlohmann::ordered_json(nullptr)
					   : nlohmann::ordered_json(request_.server)},
			{"cpus", how.cpus},
			{"server_cpus", request_.server_cpus}};
		j.update(extra_);
		j["results"] = nlohmann::ordered_json::array();
		for (const result &r : results_)
			j["results"].push_back(to_json(r));
		std::printf(
			"%s\n",
			j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
		std::fflush(stdout);
	}
	if (!request_.plot.empty()) {
		const auto charts = charts_of(results_, "coopnet " + how.transport);
		if (const trouble t = draw(charts, request_.plot))
			return report(*t);
		if (!request_.json)
			std::printf("\nplot: %s\n", request_.plot.c_str());
	}
	return exit_ok;
}

} // namespace coop::net_tools
