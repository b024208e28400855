// SPDX-License-Identifier: MIT
// hello.cpp - one machine offers memory in a message, another one reads it.
//
//     c++ -std=c++20 hello.cpp $(pkg-config --cflags --libs coop-net) -o hello && ./hello ud
//
// Two transfer machines in one program; in two programs only the addresses would differ.
#include <cstring>
#include <iostream>
#include <system_error>

#include <coop/net.hpp>

namespace net = coop::net;

// Calls and events use the same error numbers.
static void need(int status, const char *what)
{
	if (status)
		throw std::system_error(-status, std::generic_category(), what);
}

static void start(net::transfer_machine &tm, const char *address)
{
	need(tm.start(address), address);
	need(tm.wait(net::tm_state::started), "starting");
}

static int run(const std::string &transport)
{
	// Declared first, destroyed last: a domain must outlive all objects made from it, and
	// handlers and buffers the machines that use them.
	net::domain domain({transport});
	net::buffer_pool pool(domain, {.buffers = 4, .segment_size = 64 << 10});
	net::channel done; // counts ended operations

	char text[] = "hello, and 1 MiB could be here as well";
	char landing[sizeof(text)] = "";
	char letter[512];
	net::buffer offered(domain, text, sizeof(text));
	net::buffer target(domain, landing, sizeof(landing));
	net::buffer message(domain, letter, sizeof(letter));

	net::buffer_callback ended([&](const net::buffer_event &e) {
		need(e.status, net::name(e.queue));
		done.signal();
	});
	net::transfer_machine receiver(domain), sender(domain);

	// The pool keeps the receiver's queue filled. Each message here is a descriptor: read the
	// memory that it names directly into `landing`.
	net::buffer_callback letters([&](const net::buffer_event &e) {
		if (e.sender) {
			const auto *bytes =
				static_cast<const std::byte *>(e.buffer->segments()[0].base);
			std::cout << e.length << " bytes from " << e.sender->text() << '\n';
			net::operation read;
			read.queue = net::queue_type::active_bulk_recv;
			read.descriptor = {bytes + e.offset, e.length};
			read.handler = &ended;
			need(receiver.add(target, read), "ACTIVE_BULK_RECV");
		}
		if (!e.queued)
			need(pool.put(e.buffer), "put");
	});
	need(receiver.attach(pool, letters, sizeof(letter), 8), "attach");
	start(receiver, "127.0.0.1@tcp:12345:31:*");
	start(sender, "127.0.0.1@tcp:12345:32:*");

	net::endpoint_ptr there;
	need(sender.make_endpoint(receiver.address(), there), "end point");
	net::operation offer;
	offer.queue = net::queue_type::passive_bulk_send;
	offer.handler = &ended;
	offer.deadline = net::clock::now() + std::chrono::seconds(10);
	need(sender.add(offered, offer), "PASSIVE_BULK_SEND");

	const auto descriptor = offered.descriptor();
	std::memcpy(letter, descriptor.data(), descriptor.size());
	net::operation send;
	send.queue = net::queue_type::msg_send;
	send.to = there.get();
	send.length = descriptor.size();
	send.handler = &ended;
	need(sender.add(message, send), "MSG_SEND");

	for (int i = 0; i < 3; i++) // message sent, memory read, offer used
		need(done.wait(net::clock::now() + std::chrono::seconds(10)), "waiting");
	std::cout << "read: " << landing << '\n';
	return 0;
}

int main(int argc, char **argv)
try {
	return run(argc > 1 ? argv[1] : "ud");
} catch (const std::exception &e) {
	std::cerr << "hello: " << e.what() << '\n';
	return 1;
}
