// SPDX-License-Identifier: MIT
// peer.cc - the program conformance-peer: echoes messages until it is killed.
//
// Usage: conformance-peer LABEL ADDRESS. Receive buffers are added again from the callback;
// echoes are sent from buffers of their own, one a receive buffer.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

#include "target.hpp"

using namespace conformance;

namespace
{

constexpr std::size_t size = 65536;
constexpr unsigned depth = 16;

class echo final : public buffer_handler
{
public:
	echo(domain &d, transfer_machine &tm) : tm_(tm)
	{
		for (unsigned i = 0; i < depth; i++)
			slots_.push_back(std::make_unique<slot>(d));
	}
	bool begin()
	{
		for (auto &s : slots_)
			if (!receive(*s))
				return false;
		return true;
	}
	void on_buffer(const buffer_event &e) override
	{
		slot &s = *static_cast<slot *>(e.context);
		if (e.queue == queue_type::msg_recv && e.status == 0) {
			std::memcpy(s.out.data(), s.in.data(), e.length);
			operation o;
			o.queue = queue_type::msg_send;
			o.length = e.length;
			o.to = e.sender;
			o.handler = this;
			o.context = &s;
			if (tm_.add(s.send, o) == 0)
				return;
		}
		receive(s);
	}

private:
	struct slot {
		explicit slot(domain &d) : receive(d, in.data(), size), send(d, out.data(), size) {}
		std::vector<std::byte> in = std::vector<std::byte>(size);
		std::vector<std::byte> out = std::vector<std::byte>(size);
		net::buffer receive, send;
	};
	bool receive(slot &s)
	{
		operation o;
		o.min_receive_size = size;
		o.max_receive_msgs = 1;
		o.handler = this;
		o.context = &s;
		return tm_.add(s.receive, o) == 0;
	}

	transfer_machine &tm_;
	std::vector<std::unique_ptr<slot>> slots_;
};

} // namespace

int main(int argc, char **argv)
{
	::prctl(PR_SET_PDEATHSIG, SIGKILL);
	const target *t = argc == 3 ? find_target(argv[1]) : nullptr;
	if (!t) {
		std::fprintf(stderr, "usage: conformance-peer LABEL ADDRESS\n");
		return 2;
	}
	domain d({t->transport, t->options});
	transfer_machine tm(d);
	echo e(d, tm);
	if (tm.start(argv[2]) || tm.wait(tm_state::started) || !e.begin()) {
		std::fprintf(stderr, "conformance-peer: %s cannot start\n", argv[2]);
		std::_Exit(1);
	}
	if (::write(STDOUT_FILENO, "READY\n", 6) != 6)
		std::_Exit(1);
	for (;;)
		::pause();
}
