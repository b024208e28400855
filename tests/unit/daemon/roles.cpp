// SPDX-License-Identifier: MIT
// roles.cpp - what clients of a daemon are told about the members of a file: the push ROLES.
#include "members_rig.hpp"

using namespace rig;

using daemon_roles = members_test;

TEST_F(daemon_roles, a_lone_reader_is_told_nothing)
{
	serve();
	auto a = come(1);
	open_by(*a, file_);
	open_by(*a, file_);
	heard(*a);
	EXPECT_EQ(a->pushes(), 0u);
	EXPECT_EQ(server_->files().audiences.pushed, 0u);
}

TEST_F(daemon_roles, the_roles_are_there_when_open_returns)
{
	serve();
	auto a = come(1), b = come(2);
	const std::uint64_t version = open_by(*a, file_).attr.version;
	open_by(*b, file_);
	ASSERT_EQ(b->pushes(), 1u) << "before the reply, without waiting";
	EXPECT_EQ(b->members(version), 2u);
	EXPECT_EQ(b->pushed[0].fid.lo, file_.attr.fid.lo);
	EXPECT_EQ(b->pushed[0].fid.hi, file_.attr.fid.hi);
	EXPECT_TRUE(eventually([&] { return agree({a.get(), b.get()}, version); }));
	EXPECT_EQ(a->pushes(), 1u);
}

TEST_F(daemon_roles, forty_readers_agree_on_one_forest_also_when_some_leave)
{
	serve();
	std::vector<std::unique_ptr<reader>> all;
	std::vector<std::uint64_t> open_ids;
	std::vector<reader *> left;
	std::uint64_t version = 0;
	for (std::uint32_t n = 0; n < 40; n++) {
		all.push_back(come(n + 1));
		const open_result o = open_by(*all.back(), file_);
		version = o.attr.version;
		open_ids.push_back(o.open_id);
		left.push_back(all.back().get());
	}
	EXPECT_TRUE(eventually([&] { return agree(left, version); }));
	const std::size_t pushes = server_->files().audiences.pushed;
	EXPECT_LE(pushes, 40u * 17) << "not all members at each open";
	write_result w{};
	for (std::size_t i : {0, 17, 33, 39}) { // by CLOSE, and by the end of the connection
		std::erase(left, all[i].get());
		if (i % 2)
			all[i]->link->close(file_.fh, open_ids[i], w);
		else
			all[i]->link.reset();
		EXPECT_TRUE(eventually([&] { return agree(left, version); })) << i;
	}
	while (left.size() > 1) {
		left.back()->link.reset();
		left.pop_back();
	}
	EXPECT_TRUE(eventually([&] { return left[0]->members(version) == 1; }));
}

TEST_F(daemon_roles, only_the_last_close_of_a_session_ends_its_membership)
{
	serve();
	auto a = come(1), b = come(2);
	const open_result one = open_by(*a, file_), two = open_by(*a, file_);
	open_by(*b, file_);
	const std::uint64_t version = one.attr.version;
	write_result w{};
	ASSERT_EQ(a->link->close(file_.fh, one.open_id, w), 0);
	EXPECT_EQ(server_->files().audiences.size(), 1u);
	heard(*b);
	EXPECT_EQ(b->members(version), 2u);
	a->link->close_reader(file_.fh, two.open_id); // sent later
	EXPECT_TRUE(eventually([&] { return b->members(version) == 1; }));
}

TEST_F(daemon_roles, readers_of_different_versions_are_not_members_of_one_audience)
{
	serve();
	auto a = come(1), b = come(2);
	const std::uint64_t old = open_by(*a, file_).attr.version;
	file_ = make("big", big + 1);
	const std::uint64_t now = open_by(*b, file_).attr.version;
	ASSERT_NE(old, now);
	EXPECT_EQ(server_->files().audiences.size(), 2u);
	EXPECT_EQ(b->pushes(), 0u);
	open_by(*a, file_);
	EXPECT_EQ(server_->files().audiences.size(), 1u) << "it has left the old one";
	EXPECT_TRUE(eventually([&] { return agree({b.get(), a.get()}, now); }));
	EXPECT_EQ(a->members(old), 0u);
}

TEST_F(daemon_roles, small_files_and_writers_have_no_members)
{
	serve("small", COOP_FOREST_UNIT - 1);
	auto a = come(1), b = come(2);
	open_by(*a, file_);
	open_by(*b, file_);
	EXPECT_EQ(server_->files().audiences.size(), 0u);
	file_ = make("unit", COOP_FOREST_UNIT);
	open_by(*a, file_, O_WRONLY);
	EXPECT_EQ(server_->files().audiences.size(), 0u);
	open_by(*b, file_);
	EXPECT_EQ(server_->files().audiences.size(), 1u);
	heard(*a);
	heard(*b);
	EXPECT_EQ(a->pushes() + b->pushes(), 0u);
}

TEST_F(daemon_roles, a_created_file_that_exists_has_members_like_an_opened_one)
{
	serve();
	auto a = come(1), b = come(2);
	const std::uint64_t version = open_by(*a, file_).attr.version;
	entry e;
	open_result o{};
	ASSERT_EQ(b->link->create(me(), b->link->root().fh, "big", O_RDONLY, {0644}, e, o), 0);
	EXPECT_EQ(o.attr.version, version);
	EXPECT_EQ(b->members(version), 2u) << "before the reply";
}

TEST_F(daemon_roles, a_node_that_registers_after_its_open_becomes_a_member_then)
{
	serve();
	auto a = come(1), b = come(2, false);
	const std::uint64_t version = open_by(*a, file_).attr.version;
	open_by(*b, file_);
	heard(*b);
	EXPECT_EQ(b->pushes(), 0u);
	b->node = b->link->register_node(address(2));
	EXPECT_TRUE(eventually([&] { return agree({a.get(), b.get()}, version); }));
}

TEST_F(daemon_roles, the_members_are_known_again_after_a_restart)
{
	serve();
	auto a = come(1), b = come(2);
	const std::uint64_t version = open_by(*a, file_).attr.version;
	open_by(*b, file_);
	EXPECT_TRUE(eventually([&] { return agree({a.get(), b.get()}, version); }));
	{
		std::scoped_lock lock(a->mutex, b->mutex);
		a->pushed.clear();
		b->pushed.clear();
	}
	restart();
	EXPECT_TRUE(
		eventually([&] { return a->members(version) == 2 && b->members(version) == 2; }));
	// Node ids are new, so compare what the two were told with each other.
	const auto x = a->latest(version), y = b->latest(version);
	const auto &roles = x->roles.index ? x->roles : y->roles;
	EXPECT_NE(x->roles.index, y->roles.index);
	EXPECT_EQ(roles.n_colours, COOP_FOREST_COLOURS + 0u);
}

TEST_F(daemon_roles, a_client_of_version_7_gets_no_roles_and_is_in_nobodys)
{
	serve();
	plain_client old(port_, 7, 7, 'o');
	ASSERT_EQ(old.status, 0);
	EXPECT_EQ(old.chosen_min, 7);
	EXPECT_EQ(old.chosen_max, 7);
	ASSERT_EQ(old.enroll(90), 0);
	ASSERT_EQ(old.open(file_, 1), 0);
	auto a = come(1), b = come(2);
	const std::uint64_t version = open_by(*a, file_).attr.version;
	EXPECT_EQ(a->pushes(), 0u);
	open_by(*b, file_);
	ASSERT_EQ(old.open(file_, 2), 0);
	EXPECT_TRUE(eventually([&] { return agree({a.get(), b.get()}, version); }));
	ASSERT_EQ(old.ask(COOP_ST_PING, {}), 0);
	EXPECT_EQ(old.count(COOP_ST_ROLES), 0u);
	EXPECT_EQ(old.count(COOP_ST_NODE), 0u) << "the others have the fabric key of this run";
}

TEST_F(daemon_roles, the_highest_common_version_is_chosen)
{
	start();
	const auto chosen = [&](std::uint16_t low, std::uint16_t high) {
		const plain_client c(port_, low, high, 'v');
		return c.status ? -c.status : c.chosen_min * 100 + c.chosen_max;
	};
	EXPECT_EQ(chosen(7, 8), 808);
	EXPECT_EQ(chosen(8, 8), 808);
	EXPECT_EQ(chosen(7, 99), 1010);
	EXPECT_EQ(chosen(7, 9), 909);
	EXPECT_EQ(chosen(1, 7), 707);
	EXPECT_EQ(chosen(1, 6), -EPROTONOSUPPORT);
	EXPECT_EQ(chosen(10, 11), 1010);
	EXPECT_EQ(chosen(11, 99), -EPROTONOSUPPORT);
	EXPECT_EQ(chosen(8, 7), -EPROTONOSUPPORT);
	const plain_client late(port_, 11, 11, 'v');
	EXPECT_EQ(late.chosen_min, 7) << "its own, so that the client can say why";
	EXPECT_EQ(late.chosen_max, 10);
}

TEST_F(daemon_roles, an_older_daemon_serves_a_newer_client)
{
	settings_.newest_version = 7;
	serve();
	auto a = come(1), b = come(2);
	open_by(*a, file_);
	const open_result o = open_by(*b, file_);
	EXPECT_EQ(read_text(*b->link, file_, o.open_id, 0, 4), "xxxx");
	heard(*a);
	EXPECT_EQ(a->pushes() + b->pushes(), 0u);
	plain_client c(port_, 7, 8, 'n');
	EXPECT_EQ(c.chosen_max, 7);
	EXPECT_EQ(c.ask(COOP_ST_READ_SHARED, {}), EOPNOTSUPP);
}

TEST_F(daemon_roles, a_client_that_wants_no_roles_gets_none)
{
	serve(); // client_ is such a client
	auto a = come(1);
	ASSERT_NE(client_->register_node(address(9)), 0u);
	open_by(*a, file_);
	open(file_, O_RDONLY);
	heard(*a);
	EXPECT_EQ(server_->files().audiences.pushed, 0u);
}

TEST_F(daemon_roles, a_client_that_wants_no_roles_gets_none_from_older_daemons)
{
	for (const std::uint16_t version : {8, 9}) {
		settings_.newest_version = version;
		serve();
		auto a = come(1);
		ASSERT_NE(client_->register_node(address(9)), 0u);
		open_by(*a, file_);
		open(file_, O_RDONLY);
		heard(*a);
		EXPECT_EQ(server_->files().audiences.pushed, 0u) << "version " << version;
		client_.reset();
		a.reset();
		server_.reset();
	}
}

TEST_F(daemon_roles, the_run_has_a_nonce_of_its_own_and_the_verifier_of_names)
{
	serve();
	const auto run = [&](char session) {
		plain_client c(port_, 7, COOP_ST_VERSION, session);
		EXPECT_EQ(c.ask(COOP_ST_RUN, {}), 0);
		return c.got;
	};
	const coop_st_body one = run('a'), two = run('b');
	EXPECT_EQ(std::memcmp(one.nonce, two.nonce, sizeof(one.nonce)), 0);
	EXPECT_EQ(one.verifier, two.verifier);
	EXPECT_NE(one.verifier, 0u);
	const std::uint8_t zero[sizeof(one.nonce)] = {};
	EXPECT_NE(std::memcmp(one.nonce, zero, sizeof(zero)), 0);
	plain_client c(port_, 7, COOP_ST_VERSION, 'c');
	EXPECT_EQ(c.ask(COOP_ST_COMMIT, plain_client::on(client_->root(), 0)), 0);
	EXPECT_EQ(c.got.verifier, one.verifier) << "no fsync of a directory has failed";
	coop_st_body odd{};
	odd.flags = COOP_ST_RUN_ALL + 1;
	EXPECT_EQ(c.ask(COOP_ST_RUN, odd), EINVAL);
	plain_client old(port_, 7, 9, 'o');
	EXPECT_EQ(old.ask(COOP_ST_RUN, {}), EOPNOTSUPP);
	server_.reset();
	restart();
	const coop_st_body later = run('a');
	EXPECT_NE(std::memcmp(one.nonce, later.nonce, sizeof(one.nonce)), 0);
	EXPECT_EQ(one.verifier, later.verifier) << "the kernel, and its page cache, are the same";
}

TEST_F(daemon_roles, a_client_that_asks_for_the_run_does_not_know_yet_that_its_session_is_new)
{
	start();
	for (int again = 0; again < 2; again++) {
		plain_client c(port_, 7, COOP_ST_VERSION, 's', 10u * static_cast<unsigned>(again));
		EXPECT_TRUE(c.proof_flags & COOP_ST_W_NEW_SESSION);
		EXPECT_EQ(c.ask(COOP_ST_RUN, {}), 0);
	}
}

TEST_F(daemon_roles, a_node_that_does_not_forward_is_nobodys_parent)
{
	serve();
	auto a = come(1);
	const std::uint64_t version = open_by(*a, file_).attr.version;
	plain_client leaf(port_, 9, 9, 'l');
	coop_st_body b{};
	b.addr = address(9);
	b.flags = COOP_ST_JOIN_ALL + 1;
	EXPECT_EQ(leaf.ask(COOP_ST_JOIN, b), EINVAL);
	b.flags = COOP_ST_JOIN_LEAF;
	b.count = 1000;
	ASSERT_EQ(leaf.ask(COOP_ST_JOIN, b), 0);
	const std::uint32_t node = leaf.got.node_id;
	ASSERT_NE(node, 0u);
	ASSERT_EQ(leaf.open(file_, 1), 0);
	EXPECT_EQ(leaf.count(COOP_ST_ROLES), 1u);
	EXPECT_TRUE(eventually([&] { return a->members(version) == 2; }));
	EXPECT_EQ(server_->files().audiences.leaves(), 1u);
	const auto roles = a->latest(version);
	for (const coop_st_parents &p : roles->roles.colours)
		EXPECT_EQ(p.parent, 0u) << "the other one is the root of all colours";
	plain_client old(port_, 8, 8, 'o');
	EXPECT_EQ(old.ask(COOP_ST_JOIN, b), EOPNOTSUPP);
}

TEST_F(daemon_roles, a_session_that_comes_back_is_a_member_again)
{
	serve();
	auto a = come(1);
	const std::uint64_t version = open_by(*a, file_).attr.version;
	auto first = std::make_unique<plain_client>(port_, 8, 8, 's');
	ASSERT_EQ(first->enroll(5), 0);
	ASSERT_EQ(first->open(file_, 1), 0);
	EXPECT_EQ(first->count(COOP_ST_ROLES), 1u);
	EXPECT_TRUE(eventually([&] { return a->members(version) == 2; }));
	first->cut();
	EXPECT_TRUE(eventually([&] { return a->members(version) == 1; }));
	plain_client second(port_, 8, 8, 's');
	ASSERT_EQ(second.enroll(6), 0);
	EXPECT_TRUE(eventually([&] { return a->members(version) == 2; }));
	EXPECT_TRUE(eventually(
		[&] { return !second.ask(COOP_ST_PING, {}) && second.count(COOP_ST_ROLES); }));
}

TEST_F(daemon_roles, a_push_in_place_of_a_request_and_hostile_bodies_are_refused)
{
	serve();
	plain_client c(port_, 8, 8, 'h');
	EXPECT_EQ(c.ask(COOP_ST_ROLES, {}), EOPNOTSUPP);
	std::uint8_t buf[COOP_ST_HEADER + 300] = {};
	coop_st_header h{COOP_ST_ROLES, 0, 300, 0, 0, 99};
	coop_st_header_put(&h, buf);
	ASSERT_EQ(::send(c.fd(), buf, sizeof(buf), MSG_NOSIGNAL),
		  static_cast<ssize_t>(sizeof(buf)));
	ASSERT_EQ(::recv(c.fd(), buf, COOP_ST_HEADER, MSG_WAITALL), COOP_ST_HEADER);
	ASSERT_EQ(coop_st_header_get(&h, buf), 0);
	EXPECT_EQ(h.status, EOPNOTSUPP + 0u);
	// The same open many times over, and closes of open ids that are none.
	ASSERT_EQ(c.enroll(1), 0);
	ASSERT_EQ(c.open(file_, 1), 0);
	EXPECT_EQ(c.open(file_, 1), EEXIST);
	coop_st_body b{};
	b.fh = {reinterpret_cast<const u8 *>(file_.fh.data()), static_cast<u32>(file_.fh.size())};
	b.open_id = 2;
	EXPECT_EQ(c.ask(COOP_ST_CLOSE, b), EBADF);
	EXPECT_EQ(server_->files().audiences.size(), 1u);
	b.open_id = 1;
	EXPECT_EQ(c.ask(COOP_ST_CLOSE, b), 0);
	EXPECT_EQ(server_->files().audiences.size(), 0u);
	EXPECT_EQ(c.ask(COOP_ST_CLOSE, b), EBADF);
}
