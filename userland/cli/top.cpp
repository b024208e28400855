// SPDX-License-Identifier: MIT
// top.cpp - coopfs top: reads mounts periodically.
//
// A mount that stops answering stays on the screen with the reason, because the user needs to see
// it; it is read again each time. The terminal is restored on every exit, also by signals.
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include <ncurses.h>

#include "userland/cli/commands.hpp"
#include "userland/cli/control.hpp"
#include "userland/cli/documents.hpp"
#include "userland/cli/frame.hpp"
#include "userland/cli/mounts.hpp"

namespace coop::cli
{

namespace
{

using clock = std::chrono::steady_clock;
constexpr std::size_t longest_history = 512;

volatile std::sig_atomic_t stop_signal;

class looker
{
public:
	explicit looker(const std::vector<mount_entry> &mounts)
	{
		for (const auto &m : mounts)
			views_.emplace_back().mount = m;
		looked_.resize(views_.size());
	}

	// Reads every mount. Returns the failures; empty if there were none.
	std::vector<failure> look()
	{
		std::vector<failure> failed;
		for (std::size_t i = 0; i < views_.size(); i++)
			if (auto ok = look_at(views_[i], looked_[i]); !ok)
				failed.push_back(ok.error());
		return failed;
	}

	const std::vector<mount_view> &views() const { return views_; }

private:
	static result<done> look_at(mount_view &v, clock::time_point &looked)
	{
		auto stats = read_stats(v.mount.mountpoint);
		auto peers = stats ? read_peers(v.mount.mountpoint)
				   : result<std::vector<peer_record>>(stats.error());
		if (!peers) {
			v.error = peers.error().text;
			v.recent = {};
			v.seconds = 0;
			return peers.error();
		}
		const auto now = clock::now();
		const bool first = looked == clock::time_point{};
		v.error.clear();
		v.seconds = first ? 0 : std::chrono::duration<double>(now - looked).count();
		v.recent = first ? mount_stats{} : difference(*stats, v.total);
		v.peers_before = first ? *peers : std::move(v.peers);
		v.total = std::move(*stats);
		v.peers = std::move(*peers);
		if (v.seconds > 0)
			v.history.push_back(static_cast<double>(total_bytes(v.recent)) / v.seconds);
		if (v.history.size() > longest_history)
			v.history.pop_front();
		looked = now;
		return done{};
	}

	std::vector<mount_view> views_;
	std::vector<clock::time_point> looked_;
};

class screen
{
public:
	screen()
	{
		initscr();
		cbreak();
		noecho();
		curs_set(0);
		keypad(stdscr, TRUE);
		if (has_colors()) {
			start_color();
			use_default_colors();
			for (const short c :
			     {COLOR_RED, COLOR_GREEN, COLOR_YELLOW, COLOR_BLUE, COLOR_CYAN})
				init_pair(c, c, -1);
		}
	}
	~screen() { endwin(); }
	screen(const screen &) = delete;
	screen &operator=(const screen &) = delete;

	frame_size size() const
	{
		return {static_cast<std::size_t>(std::max(COLS, 1)),
			static_cast<std::size_t>(std::max(LINES, 1))};
	}

	void paint(const std::vector<line> &frame)
	{
		erase();
		int row = 0;
		for (const auto &l : frame) {
			move(row++, 0);
			for (const auto &s : l.spans()) {
				attrset(attribute(s.look));
				addstr(s.text.c_str());
			}
		}
		attrset(A_NORMAL);
		refresh();
	}

	// Returns a key, or ERR on timeout or after a signal.
	int key(clock::time_point until)
	{
		const auto left =
			std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
		timeout(static_cast<int>(std::max<long long>(left, 0)));
		return getch();
	}

private:
	static attr_t attribute(style s)
	{
		const auto color = [](short c) { return has_colors() ? COLOR_PAIR(c) : A_NORMAL; };
		switch (s) {
		case style::plain:
			return A_NORMAL;
		case style::strong:
			return A_BOLD;
		case style::faint:
			return A_DIM;
		case style::good:
		case style::from_peer:
			return color(COLOR_GREEN);
		case style::warn:
		case style::from_storage:
			return color(COLOR_YELLOW);
		case style::bad:
			return color(COLOR_RED) | A_BOLD;
		case style::from_buffer:
			return color(COLOR_CYAN);
		}
		return A_NORMAL;
	}
};

bool ascii_only()
{
	return std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
}

void handle_stop_signals()
{
	struct sigaction action {
	};
	action.sa_handler = [](int number) { stop_signal = number; };
	for (const int s : {SIGINT, SIGTERM, SIGHUP})
		sigaction(s, &action, nullptr); // no SA_RESTART: getch must return
}

int watch(looker &look, double interval_s)
{
	const auto step = std::chrono::duration_cast<clock::duration>(
		std::chrono::duration<double>(interval_s));
	handle_stop_signals();
	screen terminal;
	const bool ascii = ascii_only();
	auto next = clock::now();
	while (!stop_signal) {
		if (clock::now() >= next) {
			static_cast<void>(look.look()); // failures are shown on the screen
			next = std::max(next + step, clock::now());
		}
		terminal.paint(draw_frame(look.views(), interval_s, terminal.size(), ascii));
		const int key = terminal.key(next);
		if (key == 'q' || key == 'Q' || key == 27)
			break;
	}
	return exit_ok;
}

int print_once(looker &look, const top_request &r)
{
	const auto first = look.look();
	if (first.size() == look.views().size())
		return report(first.front()); // none answers: report the reason instead of an empty
					      // screen
	std::this_thread::sleep_for(std::chrono::duration<double>(r.interval_s));
	const auto failed = look.look();
	if (r.json) {
		std::printf("%s\n", top_document(look.views()).c_str());
	} else {
		winsize w{};
		const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0;
		const frame_size size{known ? w.ws_col : std::size_t{80}, 0};
		for (const auto &l : draw_frame(look.views(), r.interval_s, size, ascii_only()))
			std::printf("%s\n", l.text().c_str());
	}
	return failed.empty() ? exit_ok : failed.front().status;
}

} // namespace

int run_top(const top_request &r)
{
	const auto mounts = choose_mounts(r.mountpoints);
	if (!mounts)
		return report(mounts.error());
	looker look(*mounts);
	if (r.once || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
		return print_once(look, r);
	if (!std::getenv("TERM"))
		return report({exit_failure,
			       "TERM is not set, so the terminal type is unknown; try --once"});
	return watch(look, r.interval_s);
}

} // namespace coop::cli
