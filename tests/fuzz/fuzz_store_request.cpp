// SPDX-License-Identifier: MIT
// fuzz_store_request.cpp - messages of an admitted client: a stream of them goes through the
// daemon's decoding and operations, on a directory made for the test.
//
// Handles cannot be guessed (they carry a MAC), so one-byte handles stand for the root and for
// the entries that earlier messages of the input made; otherwise no input would pass the check.
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

#include "check.hpp"
#include "tests/lib/scratch.hpp"
#include "userland/daemon/service.hpp"

using namespace coop::daemon;

namespace
{

struct world {
	test::scratch dir{"coopfsd-fuzz"};
	const std::filesystem::path base = dir.path(), tree = base / "tree";
	const std::filesystem::path state = base / "state";
	std::unique_ptr<state_directory> kept;
	std::unique_ptr<service> files;
	const exported *in;
	std::string root;

	world()
	{
		std::filesystem::create_directory(tree);
		std::filesystem::create_directory(state);
		std::ofstream(base / "outside") << "secret";
		std::vector<std::unique_ptr<exported>> e;
		e.push_back(std::make_unique<exported>(export_spec{"d", tree.string()},
						       coop::digest{}, false));
		in = e[0].get();
		kept = std::make_unique<state_directory>(state.string());
		files = std::make_unique<service>(std::move(e), 64, state_directory(state.string()),
						  "");
		reply r;
		FUZZ_CHECK(!files->root(*in, r));
		root = r.text;
	}
	void clear()
	{
		for (const auto &e : std::filesystem::directory_iterator(tree))
			std::filesystem::remove_all(e.path());
	}
};

void known_handle(coop_st_bytes &b, const std::vector<std::string> &known)
{
	if (b.len != 1)
		return;
	const std::string &h = known[b.p[0] % known.size()];
	b = {reinterpret_cast<const u8 *>(h.data()), static_cast<u32>(h.size())};
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
	static world w;
	constexpr unsigned messages = 32;
	std::vector<std::string> known{w.root};
	const auto s = std::make_shared<session>("fuzz"); // leases and locks refer to it
	for (unsigned i = 0; i < messages && size >= COOP_ST_HEADER; i++) {
		request r;
		if (coop_st_header_get(&r.head, data))
			break;
		data += COOP_ST_HEADER;
		size -= COOP_ST_HEADER;
		const std::size_t body = r.head.body_len;
		const std::size_t extra = r.head.op == COOP_ST_WRITE ? r.head.data_len : 0;
		if (size < body + extra || !coop_st_op_known(r.head.op))
			break;
		r.raw.assign(data, data + body);
		r.data.assign(data + body, data + body + extra);
		data += body + extra;
		size -= body + extra;
		if (coop_st_body_get(&r.body, coop_st_request_fields(r.head.op), r.raw.data(),
				     static_cast<u32>(r.raw.size())))
			continue;
		known_handle(r.body.fh, known);
		known_handle(r.body.fh2, known);
		// Sizes that fill a disk and ids that fill quotas teach nothing.
		r.body.offset %= 1u << 20;
		r.body.set.size %= 1u << 20;
		reply out;
		w.files->execute(*w.in, *s, r, out);
		FUZZ_CHECK(out.data.size() <= COOP_ST_IO_MAX && out.count <= COOP_ST_IO_MAX);
		if (out.status)
			continue;
		std::uint8_t buf[COOP_ST_BODY_MAX];
		FUZZ_CHECK(coop_st_body_put(&out.body, coop_st_reply_fields(r.head.op), buf,
					    sizeof(buf)) >= 0);
		if (out.body.fh.len)
			known.emplace_back(view(out.body.fh));
	}
	w.files->ended(*s);
	struct stat st;
	FUZZ_CHECK(!::stat((w.base / "outside").c_str(), &st) && st.st_size == 6 &&
		   st.st_nlink == 1);
	FUZZ_CHECK(std::distance(std::filesystem::directory_iterator(w.base), {}) == 3);
	w.clear();
	return 0;
}
