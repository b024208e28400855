// SPDX-License-Identifier: MIT
// main.cpp - coopnet: the command line of the messaging library's tool.
//
// The counterpart of fi_pingpong of libfabric and ucx_perftest of UCX. ping and bulk are in
// measure.cpp, the other commands in files of their names.
#include <cstdio>
#include <functional>

#include "arguments.hpp"
#include "commands.hpp"

namespace coop::net_tools
{

namespace
{

constexpr const char *exit_text = "Exit status: 0 done; 1 failed; 2 wrong usage.";
constexpr const char *measure_text =
	"ADDR is IP, IP@tcp:12345:PORTAL:TMID, or (fabric, ntrdma) inet:tcp:IP@PORT or\n"
	"inet6:tcp:IPv6@PORT, as printed by the server.\n"
	"Without ADDR the command starts a server on this machine.\n"
	"Exit status: 0 done; 1 failed; 2 wrong usage.";
constexpr const char *serve_text =
	"ADDR is IP, for portal 31 and TMID 0 there; IP@tcp:12345:PORTAL:TMID; or (fabric,\n"
	"ntrdma) inet:tcp:IP@PORT, inet6:tcp:IPv6@PORT. `*` for TMID or PORT selects a free\n"
	"one; the server prints the command for its clients.\n"
	"Exit status: 0 done; 1 failed; 2 wrong usage.";

constexpr double seconds_most = 3600;
// The TMIDs of a portal of this host, less some spare ones.
constexpr unsigned connected_most = net::address::machines - 96;

/// Options that add_settings() can only store after everything has been parsed.
struct raw_settings {
	std::vector<std::string> parameters;
	std::string progress;
};

void add_settings(CLI::App &app, settings &s, raw_settings &raw, const CLI::Validator &transports)
{
	app.add_option("-t,--transport", s.transport, "transport of the messages")
		->check(transports)
		->capture_default_str();
	app.add_option("-o,--option", raw.parameters,
		       "KEY=VALUE of the transport; `coopnet options -t NAME` lists them")
		->allow_extra_args(false)
		->type_name("KEY=VALUE");
	add_list(app, "--cpus", s.cpus, "processors to run on, separated by commas", whole_number())
		->type_name("N");
}

void add_progress(CLI::App &app, raw_settings &raw, const char *usual)
{
	raw.progress = usual;
	app.add_option("--progress", raw.progress,
		       "poll: a thread that polls; block: the library's thread, which sleeps; "
		       "notify: a thread that sleeps on a channel")
		->check(CLI::IsMember({"poll", "block", "notify"}))
		->capture_default_str();
}

void add_measure(CLI::App &app, measure_request &r, raw_settings &raw, const char *sizes_text)
{
	app.footer(measure_text);
	app.add_option("ADDR", r.server, "address of `coopnet serve`")->check(address_word());
	add_settings(app, r.how, raw, CLI::IsMember(net::domain::transports()));
	app.add_option("--from", r.how.from,
		       "own IP, if the route to the server does not determine it")
		->type_name("IP");
	add_list(app, "--server-cpus", r.server_cpus,
		 "processors for a server that the command starts itself", whole_number())
		->type_name("N");
	add_list(app, "-s,--size", r.sizes, sizes_text, size_word())->type_name("BYTES");
	app.add_option("-n,--count", r.count, "most operations of a measurement")
		->check(CLI::Range(1u, 100000000u))
		->capture_default_str();
	app.add_option("--seconds", r.seconds, "most seconds of a measurement")
		->check(CLI::Range(0.001, seconds_most))
		->capture_default_str();
	app.add_option("--timeout", r.timeout_s, "fail after that many seconds without an answer")
		->check(CLI::Range(0.1, seconds_most))
		->capture_default_str();
	app.add_flag("--json", r.json, "print JSON at the end");
	app.add_option("--plot", r.plot, "plot the results with gnuplot")
		->type_name("FILE.svg|FILE.png")
		->check([](const std::string &file) {
			return can_draw(file)
				       ? std::string()
				       : "the name must end in .svg or .png, not '" + file + "'";
		});
}

// @return the error, or nothing.
trouble finish_settings(settings &s, const raw_settings &raw)
{
	for (const std::string &p : raw.parameters) {
		const std::size_t equals = p.find('=');
		if (equals == std::string::npos || equals == 0)
			return failure{exit_usage,
				       "-o " + p + ": must be KEY=VALUE; `coopnet options -t " +
					       s.transport + "` lists the keys"};
		s.parameters.emplace_back(p.substr(0, equals), p.substr(equals + 1));
	}
	for (const progress p : {progress::poll, progress::block, progress::notify})
		if (raw.progress == name(p))
			s.progress = p;
	return {};
}

int coopnet(int argc, char **argv)
{
	CLI::App app{"coopnet: latency and bandwidth of libcoop-net's transports.", "coopnet"};
	app.footer(exit_text);
	app.set_version_flag("-V,--version", "coopnet " COOP_VERSION);
	app.require_subcommand(1);
	app.failure_message(parse_failure);
	std::function<int()> act;
	raw_settings raw_ping, raw_bulk, raw_bench, raw_serve;
	const auto runs = [&act](CLI::App &command, auto &request, raw_settings &raw, auto *run) {
		command.callback([&act, &request, &raw, run] {
			act = [&request, &raw, run] {
				const trouble t = finish_settings(request.how, raw);
				return t ? report(*t) : run(request);
			};
		});
	};

	ping_request ping;
	auto *p = app.add_subcommand("ping", "Latency of messages, there and back");
	add_measure(*p, ping, raw_ping, "sizes, separated by commas; k, m and g are accepted");
	add_progress(*p, raw_ping, "poll");
	p->add_flag("--check", ping.check, "compare every byte that comes back");
	runs(*p, ping, raw_ping, run_ping);

	bulk_request bulk;
	auto *b =
		app.add_subcommand("bulk", "Bandwidth of transfers into and out of offered memory");
	add_measure(*b, bulk, raw_bulk, "sizes, separated by commas; k, m and g are accepted");
	add_progress(*b, raw_bulk, "poll");
	b->add_option("--direction", bulk.direction,
		      "fetch: the server reads our memory; fill: it writes to it; both")
		->check(CLI::IsMember({"fetch", "fill", "both"}))
		->capture_default_str();
	b->add_option("--depth", bulk.depth, "transfers in flight")
		->check(CLI::Range(1u, 1024u))
		->capture_default_str();
	runs(*b, bulk, raw_bulk, run_bulk);

	bench_request bench;
	auto *e = app.add_subcommand("bench", "All measurements, in each mode of progress");
	add_measure(*e, bench, raw_bench,
		    "sizes of ping, separated by commas; stream has 8, 64 and 1024 bytes, bulk 64k "
		    "and 1m");
	e->get_option("--count")->description(
		"most operations of a measurement; 100 times as many for a stream");
	add_list(*e, "--progress", bench.modes, "modes, separated by commas",
		 CLI::IsMember({"poll", "block", "notify"}))
		->type_name("{poll,block,notify}")
		->default_str("poll,block");
	add_list(*e, "--only", bench.only, "measurements, separated by commas",
		 CLI::IsMember({"ping", "stream", "bulk", "peers"}))
		->type_name("{ping,stream,bulk,peers}")
		->default_str("ping,stream,bulk,peers");
	e->add_option("--depth", bench.depth, "messages of a stream in flight")
		->check(CLI::Range(1u, 1024u))
		->capture_default_str();
	e->add_option("--bulk-depth", bench.bulk_depth, "bulk transfers in flight")
		->check(CLI::Range(1u, 1024u))
		->capture_default_str();
	e->add_option("--peers", bench.peers, "end points to measure the memory of")
		->check(CLI::Range(1u, 1000000u))
		->capture_default_str();
	e->add_option("--connected", bench.connected,
		      "machines to connect, to measure the server's memory per machine; 0: none")
		->check(CLI::Range(0u, connected_most))
		->capture_default_str();
	runs(*e, bench, raw_bench, run_bench);

	serve_request serve;
	auto *s = app.add_subcommand("serve", "Serve clients until a signal");
	s->footer(serve_text);
	s->add_option("ADDR", serve.address, "address of this host to serve at")
		->required()
		->check(address_word());
	add_settings(*s, serve.how, raw_serve, serving_transport());
	add_progress(*s, raw_serve, "block");
	s->add_option("--max-bulk", serve.max_bulk, "most bytes of a bulk transfer")
		->transform(size_word())
		->type_name("BYTES")
		->capture_default_str();
	s->add_flag("--until-eof", serve.until_eof,
		    "end at the end of standard input, without a summary");
	runs(*s, serve, raw_serve, run_serve);

	std::string transport;
	auto *o = app.add_subcommand("options", "List the parameters that -o sets for a transport");
	o->add_option("-t,--transport", transport, "the transport; all if none is named")
		->check(CLI::IsMember(net::domain::transports()));
	o->callback([&] {
		act = [&] {
			for (const std::string &t : net::domain::transports())
				if (transport.empty() || transport == t)
					std::printf("%s\n%s", t.c_str(),
						    net::domain::parameters(t).c_str());
			return exit_ok;
		};
	});

	try {
		app.parse(argc, argv);
	} catch (const CLI::ParseError &wrong) {
		return app.exit(wrong) == 0 ? exit_ok : exit_usage;
	}
	const int status = act();
	if (interrupted())
		die_interrupted();
	const trouble lost = printed();
	return status == exit_ok && lost ? report(*lost) : status;
}

} // namespace
} // namespace coop::net_tools

int main(int argc, char **argv)
{
	return coop::net_tools::coopnet(argc, argv);
}
