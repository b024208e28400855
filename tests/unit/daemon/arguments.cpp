// SPDX-License-Identifier: MIT
// arguments.cpp - coopfsd's command line, its configuration file, and which of them counts.
#include "userland/daemon/arguments.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <unistd.h>

using coop::daemon::arguments;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;
using testing::StartsWith;

namespace
{

struct file {
	explicit file(const std::string &text)
	{
		const int fd = ::mkstemp(path.data());
		EXPECT_GE(fd, 0);
		::close(fd);
		std::ofstream(path) << text;
	}
	~file() { ::unlink(path.c_str()); }
	std::string path = ::testing::TempDir() + "coopfsd-config-XXXXXX";
};

std::optional<int> read(std::vector<std::string> words, arguments &out)
{
	words.insert(words.begin(), "coopfsd");
	std::vector<char *> argv;
	for (std::string &word : words)
		argv.push_back(word.data());
	argv.push_back(nullptr);
	return coop::daemon::read_command_line(static_cast<int>(words.size()), argv.data(), out);
}

std::string refusal_of(const std::string &path)
{
	arguments a;
	a.config = path;
	try {
		coop::daemon::read_config(a);
	} catch (const std::runtime_error &e) {
		return e.what();
	}
	return "";
}

std::string refusal(const std::string &text)
{
	return refusal_of(file(text).path);
}

} // namespace

TEST(daemon_arguments, command_line)
{
	arguments a;
	EXPECT_EQ(read({"--export", "a=/srv/a", "--export", "b,ro=/srv/b", "--listen", "::1",
			"--threads", "3", "--ready-fd", "7"},
		       a),
		  std::nullopt);
	EXPECT_THAT(a.exports, ElementsAre("a=/srv/a", "b,ro=/srv/b"));
	EXPECT_EQ(a.listen, "::1");
	EXPECT_EQ(a.threads, 3u);
	EXPECT_EQ(a.max_connections, std::nullopt);
	EXPECT_EQ(a.ready_fd, 7);
}

TEST(daemon_arguments, command_line_that_ends_the_program)
{
	arguments a;
	EXPECT_EQ(read({"--help"}, a), 0);
	EXPECT_EQ(read({"--version"}, a), 0);
	EXPECT_EQ(read({"--threads", "0"}, a), 2);
	EXPECT_EQ(read({"--no-such"}, a), 2);
}

TEST(daemon_arguments, the_command_line_overrides_the_file)
{
	const file config("listen = \"127.0.0.1:1\"\nkey = \"/file\"\nthreads = 5\n"
			  "max-connections = 6\n[export]\nc = \"/srv/c\"\n\"d,ro\" = \"/srv/d\"\n");
	arguments a;
	ASSERT_EQ(read({"--config", config.path, "--listen", "::1", "--threads", "3", "--export",
			"a=/srv/a"},
		       a),
		  std::nullopt);
	coop::daemon::read_config(a);
	EXPECT_EQ(a.listen, "::1");
	EXPECT_EQ(a.key_file, "/file");
	EXPECT_EQ(a.threads, 3u);
	EXPECT_EQ(a.max_connections, 6u);
	EXPECT_THAT(a.exports, ElementsAre("a=/srv/a"));
	EXPECT_THAT(a.configured_exports, ElementsAre(Pair("c", "/srv/c"), Pair("d,ro", "/srv/d")));
}

TEST(daemon_arguments, a_file_that_is_wrong_is_explained)
{
	EXPECT_THAT(refusal("listen = 1\nlisten"), HasSubstr("line 2"));
	EXPECT_THAT(refusal("speed = 1\n"), HasSubstr("unknown setting 'speed'"));
	EXPECT_THAT(refusal("export = 1\n"), HasSubstr("'export' is a table"));
	EXPECT_THAT(refusal("[export]\na = 1\n"), HasSubstr("export a: the path is a string"));
	EXPECT_THAT(refusal("listen = 17430\n"), HasSubstr("'listen' is a string"));
	for (const char *text : {"threads = \"many\"\n", "threads = 0\n", "threads = 1025\n"})
		EXPECT_THAT(refusal(text), HasSubstr("'threads' is a number from 1 to 1024"));
	EXPECT_THAT(refusal("max-connections = -1\n"), HasSubstr("a number from 1 to 65536"));
	EXPECT_EQ(refusal("threads = 5\n"), "");
	EXPECT_THAT(refusal_of("/no/such/file"),
		    AllOf(StartsWith("/no/such/file: "), Not(HasSubstr("line"))));
}
