// SPDX-License-Identifier: MIT
// signals.cpp - one thread receives the signals and interrupts the loop repeatedly until it ends: a
// single interruption between the loop's check and its wait would be lost.
#include "fuse-shim/signals.hpp"

#include <chrono>

namespace coop::shim
{

namespace
{

constexpr int wake_signal = SIGUSR1;
constexpr auto step = std::chrono::milliseconds(20);
constexpr auto limit = std::chrono::seconds(5);

sigset_t ending_signals()
{
	sigset_t set;
	sigemptyset(&set);
	for (int s : {SIGTERM, SIGINT, SIGHUP, SIGUSR2})
		sigaddset(&set, s);
	return set;
}

} // namespace

void block_ending_signals()
{
	sigset_t set = ending_signals();
	pthread_sigmask(SIG_BLOCK, &set, nullptr);
	struct sigaction act {
	};
	act.sa_handler = [](int) {}; // without SA_RESTART: it only interrupts
	sigaction(wake_signal, &act, nullptr);
	signal(SIGPIPE, SIG_IGN);
}

signal_watch::signal_watch(std::function<void()> end, std::function<void()> give_up) :
	end_(std::move(end)),
	give_up_(std::move(give_up)),
	loop_(pthread_self()),
	thread_([this] { watch(); })
{
}

signal_watch::~signal_watch()
{
	ended_ = true;
	pthread_kill(thread_.native_handle(), SIGUSR2);
	thread_.join();
}

void signal_watch::watch()
{
	sigset_t set = ending_signals();
	int number = 0;
	do
		sigwait(&set, &number);
	while (number == SIGUSR2 && !ended_);
	if (ended_)
		return;
	end_();
	for (auto waited = step; !ended_ && waited < limit; waited += step) {
		pthread_kill(loop_, wake_signal);
		std::this_thread::sleep_for(step);
	}
	if (!ended_)
		give_up_();
}

} // namespace coop::shim
