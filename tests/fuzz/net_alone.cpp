// SPDX-License-Identifier: MIT
// net_alone.cpp - see net_alone.hpp. The linker finds these before those of the libraries.
#include "tests/fuzz/net_alone.hpp"

#include <algorithm>
#include <dlfcn.h>
#include <thread>

#include "tests/fuzz/check.hpp"

std::chrono::nanoseconds fuzz_net::the_time{1000000000};

namespace
{

unsigned plays;

template <class function> function *next_of(const char *name)
{
	void *const p = ::dlsym(RTLD_NEXT, name);
	FUZZ_CHECK(p);
	return reinterpret_cast<function *>(p);
}

} // namespace

namespace std
{

namespace chrono
{

inline namespace _V2
{

steady_clock::time_point steady_clock::now() noexcept
{
	return time_point(fuzz_net::the_time);
}

} // namespace _V2

} // namespace chrono

// A thread that does not run has its maker's id, so that it can be joined and named. The
// fuzzer's own threads are real.
void thread::_M_start_thread(_State_ptr s, void (*depend)())
{
	if (plays)
		_M_id = id(::pthread_self());
	else
		next_of<void(thread *, _State_ptr, void (*)())>(
			"_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateE"
			"St14default_deleteIS1_EEPFvvE")(this, std::move(s), depend);
}

void thread::join()
{
	if (_M_id == id(::pthread_self()))
		_M_id = id();
	else
		next_of<void(thread *)>("_ZNSt6thread4joinEv")(this);
}

} // namespace std

namespace fuzz_net
{

#if defined(__x86_64__)
unsigned long long read_counter()
{
	static unsigned long long count;
	return count += 1u << 20;
}
#endif

alone::alone()
{
	plays++;
}

alone::~alone()
{
	plays--;
}

std::vector<driven *> driven::all;
std::uint64_t driven::moved;
spi::token driven::last_token;

driven::driven(std::unique_ptr<spi::transport_machine> inner, spi::sink &core) :
	inner_(std::move(inner)),
	core_(static_cast<net::core::machine &>(core))
{
	all.push_back(this);
}

driven::~driven()
{
	std::erase(all, this);
}

bool turn(net::core::machine &m)
{
	const std::uint64_t before = driven::moved;
	bool some = m.deliver_all() != 0;
	if (m.receive_deficit()) {
		m.provision();
		some |= m.receive_deficit() == 0;
	}
	return some || driven::moved != before;
}

bool turn_all()
{
	// Handlers may create machines and end stopped ones during the loop.
	std::vector<std::shared_ptr<net::core::machine>> machines;
	for (driven *d : driven::all)
		machines.push_back(d->core().shared_from_this());
	bool some = false;
	for (unsigned round = 0; round < 2 && !some; round++)
		for (const auto &m : machines)
			some |= turn(*m);
	return some;
}

net::time_point next_deadline()
{
	net::time_point at = net::never;
	for (const driven *d : driven::all)
		at = std::min(at, d->deadline());
	return at;
}

} // namespace fuzz_net
