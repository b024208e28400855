// SPDX-License-Identifier: MIT
// peer.cpp - the program conformance-peer: echoes messages until it is killed.
//
// Usage: conformance-peer LABEL ADDRESS. It says READY, then the descriptors of memory to read
// and to write, in hexadecimal. The callback adds receive buffers again; each receive buffer has
// its own buffer for echoes.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

#include "helper.hpp"

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
	/// Empty: it cannot be offered.
	std::string show(net::buffer &b, queue_type q)
	{
		operation o;
		o.queue = q;
		o.handler = this;
		std::string text;
		if (tm_.add(b, o) == 0)
			for (const std::byte each : b.descriptor()) {
				constexpr char digits[] = "0123456789abcdef";
				text += digits[unsigned(each) >> 4];
				text += digits[unsigned(each) & 15];
			}
		return text;
	}
	void on_buffer(const buffer_event &e) override
	{
		if (!e.context)
			return; // bulk; it is offered once
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
	std::vector<std::byte> shown(helper::bulk), taken(helper::bulk);
	net::buffer show(d, shown.data(), shown.size()), take(d, taken.data(), taken.size());
	const std::string line = "READY " + e.show(show, queue_type::passive_bulk_send) + ' ' +
				 e.show(take, queue_type::passive_bulk_recv) + '\n';
	if (::write(STDOUT_FILENO, line.data(), line.size()) != ssize_t(line.size()))
		std::_Exit(1);
	for (;;)
		::pause();
}
