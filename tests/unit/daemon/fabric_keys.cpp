// SPDX-License-Identifier: MIT
// fabric_keys.cpp - which clients get the same fabric key, and that nodes with different ones are
// not told of each other.
#include "members_rig.hpp"

#include <numeric>

using namespace rig;
using coop::daemon::fabric_circle;
using coop::daemon::member_table;

namespace
{

using fabric_key = std::array<std::uint8_t, 16>;

// A client and the latest key that it was told of.
struct holder {
	std::mutex mutex;
	fabric_key told{};
	std::unique_ptr<storage> link;

	bool has(const fabric_key &key)
	{
		const std::lock_guard lock(mutex);
		return told == key && link->fabric_key() == key;
	}
};

class daemon_fabric_keys : public daemon_test
{
protected:
	void SetUp() override
	{
		daemon_test::SetUp();
		std::filesystem::create_directory(base_ / "other");
		settings_.exports.push_back({"other", (base_ / "other").string()});
	}
	std::unique_ptr<holder> come(const std::string &export_name = "/data")
	{
		auto h = std::make_unique<holder>();
		storage_options o = client_options();
		o.export_name = export_name;
		o.on_roles = [](const coop::client::file_roles &) {};
		o.on_fabric_key = [&h = *h](const fabric_key &key) {
			const std::lock_guard lock(h.mutex);
			h.told = key;
		};
		h->link = storage::connect(o);
		return h;
	}
	// One key in a run and an export, another in the next.
	void check_runs()
	{
		start();
		auto a = come(), b = come(), c = come("/other");
		const fabric_key first = a->link->fabric_key();
		EXPECT_NE(first, fabric_key{});
		EXPECT_EQ(b->link->fabric_key(), first);
		EXPECT_NE(c->link->fabric_key(), first);
		restart();
		ASSERT_TRUE(eventually([&] { return a->link->fabric_key() != first; }));
		const fabric_key second = a->link->fabric_key();
		EXPECT_TRUE(eventually([&] { return a->has(second) && b->has(second); }));
		EXPECT_EQ(come()->link->fabric_key(), second);
		EXPECT_TRUE(eventually([&] { return c->has(c->link->fabric_key()); }));
		EXPECT_NE(c->link->fabric_key(), second);
	}
};

} // namespace

TEST_F(daemon_fabric_keys, belong_to_an_export_and_a_run)
{
	settings_.key_file = write_key("key", 'k');
	check_runs();
}

TEST_F(daemon_fabric_keys, belong_to_an_export_and_a_run_without_a_cluster_key_too)
{
	check_runs();
}

TEST_F(daemon_fabric_keys, of_an_older_daemon_follow_from_the_cluster_key)
{
	settings_.newest_version = 9;
	settings_.key_file = write_key("key", 'k');
	start();
	EXPECT_EQ(come()->link->fabric_key(),
		  coop::fabric_key(coop::load_cluster_key(settings_.key_file)));
}

TEST_F(daemon_fabric_keys, of_an_older_daemon_without_a_cluster_key_are_nobody_elses)
{
	settings_.newest_version = 9;
	start();
	auto a = come(), b = come();
	EXPECT_NE(a->link->fabric_key(), b->link->fabric_key());
	EXPECT_NE(a->link->fabric_key(), fabric_key{});
}

// The kernel module derives the same: these are from another implementation of HMAC.
TEST(fabric_keys, known_answers)
{
	std::array<char, 32> nonce;
	std::iota(nonce.begin(), nonce.end(), char{0});
	const std::string_view view(nonce.data(), nonce.size());
	EXPECT_EQ(coop::fabric_key(coop::secret(32, 'k'), view),
		  (fabric_key{0x16, 0x4a, 0x24, 0xef, 0x78, 0xa1, 0xfb, 0x91, 0xd3, 0xc3, 0xdf,
			      0xb4, 0x57, 0x71, 0xbe, 0xb7}));
	EXPECT_EQ(coop::fabric_key({}, view),
		  (fabric_key{0xd1, 0x22, 0x06, 0xe8, 0xf8, 0x66, 0xef, 0xc6, 0x57, 0xae, 0x11,
			      0x0d, 0x85, 0xe5, 0xd2, 0xce}));
}

TEST(fabric_keys, nodes_without_a_common_one_are_strangers)
{
	const int one = 0, two = 0;
	const fabric_circle circles[] = {{&one, true}, {&one, false}, {&two, true}, {&one, true}};
	member_table table;
	std::size_t messages[4] = {};
	std::uint32_t id[4];
	for (unsigned i = 0; i < 4; i++)
		id[i] = table.join(
			address(i + 1), [&count = messages[i]](std::string_view, bool) { count++; },
			true, 0, circles[i]);
	const auto told = [&] { return std::vector<std::size_t>(messages, messages + 4); };
	EXPECT_EQ(told(), (std::vector<std::size_t>{1, 0, 0, 1}));
	table.name(id[1], id);
	table.name(id[2], id);
	EXPECT_EQ(told(), (std::vector<std::size_t>{1, 0, 0, 1})) << "also when they are named";
	table.leave(id[1]);
	table.leave(id[3]);
	EXPECT_EQ(told(), (std::vector<std::size_t>{2, 0, 0, 1}));
}
