// SPDX-License-Identifier: MIT
// own_replies.cpp - callers that take their replies from the socket themselves, beside others,
// beside pushes, and while the connection breaks.
#include "relay.hpp"

#include <future>

using namespace rig;

namespace
{

class daemon_own_replies : public daemon_test
{
protected:
	static constexpr int files = 8;
	static std::string name(int i) { return "f" + std::to_string(i); }
	static std::string text(int i)
	{
		return std::string(100 + 50 * static_cast<std::size_t>(i),
				   static_cast<char>('a' + i));
	}
	void SetUp() override
	{
		daemon_test::SetUp();
		for (int i = 0; i < files; i++)
			put(name(i), text(i));
	}
	storage_options leased()
	{
		storage_options o = client_options();
		o.leases = true;
		return o;
	}
	// Each asks about its own file and reads it, by a call of either kind.
	static int work(storage &s, int i, int rounds)
	{
		int wrong = 0;
		for (int r = 0; r < rounds; r++) {
			entry e;
			open_result o{};
			struct statvfs v {
			};
			if (s.lookup(me(), s.root().fh, name(i), e) ||
			    s.open(me(), e.fh, O_RDONLY, r % 2 ? 4096 : 0, o)) {
				wrong++;
				continue;
			}
			std::string bytes(text(i).size(), '.');
			std::promise<coop::client::storage::read_result> got;
			s.read(e.fh, o.open_id, 0, {{bytes.data(), bytes.size()}}, 0,
			       [&](const coop::client::storage::read_result &x) {
				       got.set_value(x);
			       });
			wrong += s.statfs(me(), e.fh, v) != 0; // its reply comes behind the bytes
			wrong += got.get_future().get().err != 0;
			wrong += e.attr.st.st_size != static_cast<off_t>(text(i).size()) ||
				 bytes != text(i) ||
				 (!o.inline_data.empty() && o.inline_data != text(i));
			s.close_reader(e.fh, o.open_id);
		}
		return wrong;
	}
	static int many(storage &s, int rounds)
	{
		std::vector<std::future<int>> all;
		int wrong = 0;
		for (int i = 0; i < files; i++)
			all.push_back(std::async(std::launch::async,
						 [&s, i, rounds] { return work(s, i, rounds); }));
		for (auto &f : all)
			wrong += f.get();
		return wrong;
	}
};

} // namespace

TEST_F(daemon_own_replies, a_lone_caller_takes_its_reply)
{
	up();
	EXPECT_TRUE(eventually([&] {
		(void)find(name(0));
		return client_->stats().taken > 0;
	}));
	EXPECT_LE(client_->stats().taken, client_->stats().calls);
}

TEST_F(daemon_own_replies, each_of_many_gets_its_own)
{
	up();
	EXPECT_EQ(work(*client_, 1, 200), 0);
	EXPECT_EQ(many(*client_, 200), 0);
	EXPECT_EQ(work(*client_, 2, 200), 0);
}

TEST_F(daemon_own_replies, a_broken_connection_loses_none)
{
	start();
	relay wire(port_);
	storage_options o = client_options();
	o.port = wire.port;
	client_ = storage::connect(o);
	for (int lonely = 0; lonely < 2; lonely++) {
		std::atomic<bool> over{false};
		auto working = std::async(std::launch::async, [&] {
			const int wrong = lonely ? work(*client_, 3, 80) : many(*client_, 20);
			over = true;
			return wrong;
		});
		while (!over) {
			const auto done = client_->stats().calls;
			EXPECT_TRUE(eventually(
				[&] { return over || client_->stats().calls > done + 20; }));
			const unsigned before = wire.connections;
			wire.cut = true;
			EXPECT_TRUE(eventually([&] { return over || wire.connections > before; }));
		}
		EXPECT_EQ(working.get(), 0);
	}
	EXPECT_GT(client_->stats().reconnects, 0u);
}

// The connection's thread must see them at once: another client waits.
TEST_F(daemon_own_replies, a_recall_comes_through_a_caller_that_listens)
{
	start();
	const auto a = storage::connect(leased()), b = storage::connect(leased());
	std::atomic<bool> over{false};
	auto busy = std::async(std::launch::async, [&] {
		struct statvfs v {
		};
		int wrong = 0;
		while (!over)
			wrong += a->statfs(me(), a->root().fh, v) != 0;
		return wrong;
	});
	for (int r = 1; r <= 40; r++) {
		entry here, there;
		ASSERT_EQ(a->lookup(me(), a->root().fh, name(0), here), 0);
		ASSERT_EQ(b->lookup(me(), b->root().fh, name(0), there), 0);
		coop::client::storage::setattr_request q{};
		q.valid = coop::client::storage::set_size;
		q.size = static_cast<std::uint64_t>(r);
		write_result w{};
		ASSERT_EQ(b->setattr(me(), there.fh, q, w), 0);
		attributes seen;
		ASSERT_EQ(a->getattr(me(), here.fh, seen), 0);
		EXPECT_EQ(seen.st.st_size, r);
	}
	over = true;
	EXPECT_EQ(busy.get(), 0);
	EXPECT_GT(a->leases().recalls, 0u);
}
