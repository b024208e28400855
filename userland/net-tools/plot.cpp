// SPDX-License-Identifier: MIT
// plot.cpp - see plot.hpp. gnuplot reads the script from a pipe; no shell is involved.
#include "plot.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

namespace coop::net_tools
{

namespace
{

bool ends_in(const std::string &s, const char *end)
{
	const std::size_t n = std::strlen(end);
	return s.size() > n && s.compare(s.size() - n, n, end) == 0;
}

// Quotes any text as a string of gnuplot.
std::string quoted(const std::string &s)
{
	std::string q = "'";
	for (const char c : s)
		q += c == '\''   ? std::string("''")
		     : c == '\n' ? std::string(" ")
				 : std::string(1, c);
	return q + "'";
}

// gnuplot complains about an axis with a single value: widen the range around it.
std::string around_one(const char *axis, const std::vector<chart> &charts,
		       double std::pair<double, double>::*which)
{
	std::optional<double> one;
	for (const chart &c : charts)
		for (const chart::curve &v : c.curves)
			for (const auto &point : v.points)
				if (std::exchange(one, point.*which).value_or(point.*which) !=
				    point.*which)
					one = 0;
	const std::string name = std::string("set ") + axis + "range [";
	return one.value_or(0) > 0
		       ? name + std::to_string(*one / 2) + ":" + std::to_string(*one * 2) + "]\n"
		       : name + "*:*]\n";
}

const char *terminal(const std::string &file)
{
	return ends_in(file, ".svg") ? "svg dynamic" : "png";
}

std::string script(const std::vector<chart> &charts, const std::string &file)
{
	std::string s = std::string("set terminal ") + terminal(file) + " size " +
			std::to_string(760 * charts.size()) + ",520 background '#ffffff'\n" +
			"set output " + quoted(file) + "\nset multiplot layout 1," +
			std::to_string(charts.size()) +
			"\nset logscale x 2\nset logscale y\nset grid\nset key left top\n"
			"set format x '%.0b%B'\n" +
			around_one("x", charts, &std::pair<double, double>::first);
	for (std::size_t c = 0; c < charts.size(); c++) {
		const chart &k = charts[c];
		std::string plot;
		for (std::size_t i = 0; i < k.curves.size(); i++) {
			const std::string data = "$c" + std::to_string(c) + "_" + std::to_string(i);
			s += data + " << EOD\n";
			for (const auto &[x, y] : k.curves[i].points)
				s += std::to_string(x) + " " + std::to_string(y) + "\n";
			s += "EOD\n";
			plot += (i ? ", " : "plot ") + data + " with linespoints lw 2 title " +
				quoted(k.curves[i].name);
		}
		s += "set title " + quoted(k.title) + " noenhanced\nset xlabel " + quoted(k.x) +
		     "\nset ylabel " + quoted(k.y) + "\n" +
		     around_one("y", {k}, &std::pair<double, double>::second) + plot + "\n";
	}
	return s + "unset multiplot\n";
}

// Runs gnuplot with this script. Its standard output is discarded: errors go to standard error, and
// our standard output is for results.
trouble gnuplot(const std::string &text, const std::string &otherwise)
{
	int pipe_[2];
	if (::pipe2(pipe_, O_CLOEXEC))
		return failure{exit_failure, std::string("no plot: ") + std::strerror(errno)};
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, pipe_[0], 0);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	char program[] = "gnuplot";
	char *args[] = {program, nullptr};
	pid_t pid = -1;
	const int status = ::posix_spawnp(&pid, program, &actions, nullptr, args, environ);
	posix_spawn_file_actions_destroy(&actions);
	::close(pipe_[0]);
	if (status) {
		::close(pipe_[1]);
		return failure{
			exit_failure,
			"--plot: gnuplot cannot be started: " + std::string(std::strerror(status)) +
				"; `apt-get install gnuplot-nox`, or leave --plot out"};
	}
	const auto old = std::signal(SIGPIPE, SIG_IGN);
	std::size_t done = 0;
	while (done < text.size()) {
		const ssize_t n = ::write(pipe_[1], text.data() + done, text.size() - done);
		if (n <= 0)
			break;
		done += static_cast<std::size_t>(n);
	}
	::close(pipe_[1]);
	std::signal(SIGPIPE, old);
	int ended = 0;
	while (::waitpid(pid, &ended, 0) < 0 && errno == EINTR)
		;
	if (ended == 0)
		return {};
	return failure{exit_failure, otherwise};
}

} // namespace

bool can_draw(const std::string &file)
{
	return ends_in(file, ".svg") || ends_in(file, ".png");
}

trouble may_draw(const std::string &file)
{
	// An existing file keeps its content until there is a new one; do not leave an empty new
	// file.
	int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd >= 0)
		(void)::unlink(file.c_str());
	else if (errno == EEXIST)
		fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return failure{exit_failure,
			       "--plot: " + file + " cannot be written: " + std::strerror(errno)};
	::close(fd);
	return gnuplot(std::string("set terminal ") + terminal(file) + "\n",
		       "--plot: gnuplot cannot draw such a file; see its message above");
}

trouble draw(const std::vector<chart> &charts, const std::string &file)
{
	return gnuplot(script(charts, file),
		       "no plot: gnuplot could not write " + file + "; see its message above");
}

} // namespace coop::net_tools
