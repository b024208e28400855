// SPDX-License-Identifier: MIT
// The datagrams as a strict receiver sees them: one that knows the IP header (a network card,
// rxe) accepts an ICRC only if it covers the identification that the kernel really wrote. The
// test runs in its own network namespace and switches off the loopback's segmentation, so that
// the kernel cuts super packets as it does in front of a plain network card. It checks every
// frame on a packet socket.
#include <cstring>
#include <functional>
#include <thread>

#include <arpa/inet.h>
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "tests/unit/ud/pair.hpp"

using namespace ud_test;

namespace
{

struct descriptor {
	int fd;
	explicit descriptor(int f) : fd(f) {}
	~descriptor() { close(fd); }
	descriptor(const descriptor &) = delete;
	descriptor &operator=(const descriptor &) = delete;
};

bool loopback_ioctl(int fd, unsigned long request, const std::function<void(ifreq &)> &fill)
{
	ifreq r{};
	std::strcpy(r.ifr_name, "lo");
	fill(r);
	return !ioctl(fd, request, &r);
}

bool loopback_up(int fd)
{
	return loopback_ioctl(fd, SIOCSIFFLAGS, [](ifreq &r) { r.ifr_flags = IFF_UP; });
}

// As 'ethtool -K lo tx-udp-segmentation off' does.
bool no_udp_segmentation(int fd)
{
	std::vector<char> info(sizeof(ethtool_sset_info) + sizeof(__u32));
	auto *set = reinterpret_cast<ethtool_sset_info *>(info.data());
	set->cmd = ETHTOOL_GSSET_INFO;
	set->sset_mask = 1ull << ETH_SS_FEATURES;
	if (!loopback_ioctl(fd, SIOCETHTOOL, [&](ifreq &r) { r.ifr_data = info.data(); }))
		return false;
	__u32 count;
	std::memcpy(&count, set->data, sizeof(count));

	std::vector<char> names(sizeof(ethtool_gstrings) + count * ETH_GSTRING_LEN);
	auto *strings = reinterpret_cast<ethtool_gstrings *>(names.data());
	strings->cmd = ETHTOOL_GSTRINGS;
	strings->string_set = ETH_SS_FEATURES;
	strings->len = count;
	if (!loopback_ioctl(fd, SIOCETHTOOL, [&](ifreq &r) { r.ifr_data = names.data(); }))
		return false;

	const __u32 blocks = (count + 31) / 32;
	std::vector<char> bits(sizeof(ethtool_sfeatures) +
			       blocks * sizeof(ethtool_set_features_block));
	auto *change = reinterpret_cast<ethtool_sfeatures *>(bits.data());
	change->cmd = ETHTOOL_SFEATURES;
	change->size = blocks;
	for (__u32 i = 0; i < count; i++) {
		const char *name = names.data() + sizeof(ethtool_gstrings) + i * ETH_GSTRING_LEN;
		if (!std::strcmp(name, "tx-udp-segmentation"))
			change->features[i / 32].valid |= 1u << i % 32;
	}
	return loopback_ioctl(fd, SIOCETHTOOL, [&](ifreq &r) { r.ifr_data = bits.data(); });
}

bool add_ipv6(const char *text)
{
	struct {
		in6_addr addr;
		std::uint32_t prefix;
		int index;
	} request{};
	const descriptor s(socket(AF_INET6, SOCK_DGRAM, 0));
	inet_pton(AF_INET6, text, &request.addr);
	request.prefix = 128;
	request.index = static_cast<int>(if_nametoindex("lo"));
	if (ioctl(s.fd, SIOCSIFADDR, &request))
		return false;
	// The kernel enables the address a little later.
	sockaddr_in6 own{};
	own.sin6_family = AF_INET6;
	own.sin6_addr = request.addr;
	const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
	while (bind(s.fd, reinterpret_cast<sockaddr *>(&own), sizeof(own))) {
		if (errno != EADDRNOTAVAIL || std::chrono::steady_clock::now() > deadline)
			return false;
		usleep(1000);
	}
	return true;
}

// Deliberately naive: bit by bit over the frame with the variant fields set to ones.
std::uint32_t reference_icrc(const std::uint8_t *ip, std::size_t length)
{
	std::vector<std::uint8_t> bytes(8, 0xff);
	bytes.insert(bytes.end(), ip, ip + length - 4);
	std::uint8_t *p = bytes.data() + 8;
	std::size_t header;
	if (p[0] >> 4 == 4) {
		header = 20;
		p[1] = p[8] = p[10] = p[11] = 0xff;
	} else {
		header = 40;
		p[0] |= 0x0f;
		p[1] = p[2] = p[3] = p[7] = 0xff;
	}
	p[header + 6] = p[header + 7] = 0xff;
	p[header + 8 + 4] = 0xff;
	std::uint32_t crc = ~0u;
	for (const std::uint8_t b : bytes) {
		crc ^= b;
		for (int i = 0; i < 8; i++)
			crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320u : 0);
	}
	return ~crc;
}

struct sniffer {
	descriptor s{socket(AF_PACKET, SOCK_DGRAM | SOCK_NONBLOCK, htons(ETH_P_ALL))};
	std::vector<std::vector<std::uint8_t>> frames;

	void read()
	{
		for (;;) {
			std::vector<std::uint8_t> frame(70000);
			sockaddr_ll from{};
			socklen_t length = sizeof(from);
			const ssize_t n = recvfrom(s.fd, frame.data(), frame.size(), 0,
						   reinterpret_cast<sockaddr *>(&from), &length);
			if (n < 0)
				return;
			frame.resize(static_cast<std::size_t>(n));
			if (from.sll_pkttype == PACKET_HOST)
				frames.push_back(std::move(frame));
		}
	}
};

void every_frame_is_right(const std::string &from, const std::string &to)
{
	const int force = 32 << 20;
	sniffer tap;
	ASSERT_GE(tap.s.fd, 0);
	setsockopt(tap.s.fd, SOL_SOCKET, SO_RCVBUFFORCE, &force, sizeof(force));
	auto a = make_soft_roce(options(from)), b = make_soft_roce(options(to));
	outbox out(*a);
	inbox in(*b, 128, 4096);
	in.post(0, 128);

	std::vector<std::vector<std::uint8_t>> pages, mixed;
	for (unsigned i = 0; i < 50; i++)
		pages.push_back(pattern(4096, i));
	for (unsigned i = 0; i < 50; i++)
		mixed.push_back(pattern(i % 7 ? i * 37 : 0, i));
	ASSERT_EQ(out.send(in.where(), pages, true), 50);
	ASSERT_EQ(out.send(in.where(), mixed, false), 50);
	EXPECT_EQ(collect(*b, 100).size(), 100u);
	EXPECT_EQ(b->stats().rx_bad_icrc, 0u);
	EXPECT_EQ(a->stats().tx_errors, 0u);

	tap.read();
	ASSERT_EQ(tap.frames.size(), 100u) << "the kernel did not cut super packets";
	bool numbered = false;
	for (const auto &f : tap.frames) {
		const std::uint8_t *p = f.data();
		const bool v6 = p[0] >> 4 == 6;
		ASSERT_EQ(v6, from.find(':') != std::string::npos);
		if (!v6) {
			EXPECT_EQ(p[6] << 8 | p[7], IP_DF);
			numbered |= (p[4] << 8 | p[5]) == 14;
		}
		std::uint32_t icrc;
		std::memcpy(&icrc, p + f.size() - 4, 4);
		ASSERT_EQ(le32toh(icrc), reference_icrc(p, f.size()))
			<< "length " << f.size() << " identification " << (p[4] << 8 | p[5]);
	}
	EXPECT_TRUE(numbered || from.find(':') != std::string::npos)
		<< "no super packet of 15: the test is void";
}

// The namespace belongs to the thread and ends with it.
void in_namespace(const std::function<void()> &body)
{
	std::string skipped, failed;
	std::thread([&] {
		if (unshare(CLONE_NEWNET)) {
			skipped = std::string("cannot make a network namespace: ") +
				  std::strerror(errno);
			return;
		}
		const descriptor s(socket(AF_INET, SOCK_DGRAM, 0));
		if (!loopback_up(s.fd) || !no_udp_segmentation(s.fd))
			skipped =
				std::string("cannot set up the loopback: ") + std::strerror(errno);
		else
			try {
				body();
			} catch (const std::exception &e) {
				failed = e.what();
			}
	}).join();
	EXPECT_EQ(failed, "");
	if (!skipped.empty())
		GTEST_SKIP() << skipped;
}

TEST(StrictIcrc, Ipv4)
{
	in_namespace([] { every_frame_is_right("127.0.0.2", "127.0.0.3"); });
}

TEST(StrictIcrc, Ipv6)
{
	in_namespace([] {
		ASSERT_TRUE(add_ipv6("fd00::1") && add_ipv6("fd00::2")) << std::strerror(errno);
		every_frame_is_right("fd00::1", "fd00::2");
	});
}

TEST(StrictIcrc, Ipv6GidsAndGrh)
{
	in_namespace([] {
		ASSERT_TRUE(add_ipv6("fd00::1") && add_ipv6("fd00::2")) << std::strerror(errno);
		auto a = make_soft_roce(options("fd00::1")), b = make_soft_roce(options("fd00::2"));
		EXPECT_EQ(a->info().gid[0], 0xfd);
		EXPECT_EQ(a->info().mtu, 4096u);
		outbox out(*a);
		inbox in(*b, 1, 4096);
		in.post(0, 1);
		ASSERT_EQ(out.send(in.where(), {pattern(4096, 3)}), 1);
		const auto got = collect(*b, 1);
		EXPECT_EQ(got[0].src_gid, a->info().gid);
		EXPECT_EQ(in.slot(0)[0] >> 4, 6);
		EXPECT_EQ(std::memcmp(in.slot(0) + 8, a->info().gid.data(), 16), 0);
		EXPECT_EQ(std::memcmp(in.slot(0) + 24, b->info().gid.data(), 16), 0);
	});
}

// A small interface MTU: the largest InfiniBand MTU below it, as rxe would choose.
TEST(StrictIcrc, MtuFollowsTheInterface)
{
	in_namespace([] {
		const descriptor s(socket(AF_INET, SOCK_DGRAM, 0));
		const auto with = [&](int mtu) {
			EXPECT_TRUE(loopback_ioctl(s.fd, SIOCSIFMTU,
						   [&](ifreq &r) { r.ifr_mtu = mtu; }));
			return make_soft_roce(options("127.0.0.2"))->info().mtu;
		};
		EXPECT_EQ(with(9000), 4096u);
		EXPECT_EQ(with(4176), 4096u);
		EXPECT_EQ(with(4175), 2048u);
		EXPECT_EQ(with(1500), 1024u);
	});
}

// The path is narrower than the datagrams: they get lost, and sending continues.
TEST(StrictIcrc, DatagramsThatDoNotFitTheDeviceVanish)
{
	in_namespace([] {
		auto a = make_soft_roce(options("127.0.0.2")),
		     b = make_soft_roce(options("127.0.0.3"));
		const descriptor s(socket(AF_INET, SOCK_DGRAM, 0));
		outbox out(*a);
		inbox in(*b, 8, 4096);
		in.post(0, 8);
		ASSERT_TRUE(loopback_ioctl(s.fd, SIOCSIFMTU, [](ifreq &r) { r.ifr_mtu = 2000; }));
		ASSERT_EQ(out.send(in.where(), {pattern(4096, 1), pattern(4096, 2)}, true, 0, true),
			  2);
		for (const auto &c : collect(*a, 2))
			EXPECT_EQ(c.status, wc_status::success);
		EXPECT_EQ(a->stats().tx_errors, 2u);
		ASSERT_EQ(out.send(in.where(), {pattern(1024, 1), pattern(1024, 2)}), 2);
		EXPECT_EQ(collect(*b, 2).size(), 2u);
	});
}

} // namespace
