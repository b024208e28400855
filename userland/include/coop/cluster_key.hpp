// SPDX-License-Identifier: MIT
// cluster_key.hpp - the shared secret of a cluster and the secrets derived from it.
//
// Daemon and clients must derive the same bytes from the same file, so they share this code. The
// key itself is only used for derivation; each purpose has its own label, so that no proof works
// for another purpose.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <initializer_list>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace coop
{

using digest = std::array<std::uint8_t, 32>;
using secret = std::vector<std::uint8_t>;

constexpr std::size_t cluster_key_min = 32; // bytes
constexpr std::size_t cluster_key_max = 4096;

// The bytes of a digest or secret as a view.
template <class bytes> std::string_view as_view(const bytes &b)
{
	return {reinterpret_cast<const char *>(b.data()), b.size()};
}

// HMAC-SHA256 of the concatenated parts. Throws std::runtime_error if OpenSSL cannot compute it.
inline digest hmac(std::string_view key, std::initializer_list<std::string_view> parts)
{
	std::string text;
	for (std::string_view p : parts)
		text.append(p);
	digest out{};
	unsigned len = 0;
	if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
		  reinterpret_cast<const unsigned char *>(text.data()), text.size(), out.data(),
		  &len) ||
	    len != out.size())
		throw std::runtime_error("HMAC-SHA256 is not available from OpenSSL");
	return out;
}

inline digest sha256(std::string_view text)
{
	digest out;
	SHA256(reinterpret_cast<const unsigned char *>(text.data()), text.size(), out.data());
	return out;
}

// Compares n bytes in constant time.
inline bool equal_secret(const void *a, const void *b, std::size_t n)
{
	return CRYPTO_memcmp(a, b, n) == 0;
}

// Fills n bytes from OpenSSL's generator. Throws std::runtime_error.
inline void random_bytes(void *p, std::size_t n)
{
	if (RAND_bytes(static_cast<unsigned char *>(p), static_cast<int>(n)) != 1)
		throw std::runtime_error("no random bytes from OpenSSL");
}

// Reads the key. Throws with a text that says what to do. The file belongs to root or to the
// caller, and nobody else may access it: another owner would know the key, and could replace it.
inline secret load_cluster_key(const std::string &path)
{
	int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		throw std::runtime_error("cluster key " + path + ": " + std::strerror(errno));
	struct stat st;
	std::string wrong;
	secret key(cluster_key_max + 1);
	ssize_t n = 0;
	if (::fstat(fd, &st) || !S_ISREG(st.st_mode))
		wrong = "is not a regular file";
	else if (st.st_uid != 0 && st.st_uid != ::geteuid())
		wrong = "belongs to another user, " + std::to_string(st.st_uid) +
			": make a file of your own, or chown it";
	else if (st.st_mode & 077)
		wrong = "can be read or changed by others: chmod 600 " + path;
	else if ((n = ::read(fd, key.data(), key.size())) < 0)
		wrong = std::strerror(errno);
	else if (static_cast<std::size_t>(n) < cluster_key_min)
		wrong = "is shorter than 32 bytes: make one with "
			"head -c 32 /dev/urandom > " +
			path;
	else if (static_cast<std::size_t>(n) > cluster_key_max)
		wrong = "is longer than 4096 bytes";
	::close(fd);
	if (!wrong.empty())
		throw std::runtime_error("cluster key " + path + " " + wrong);
	key.resize(static_cast<std::size_t>(n));
	return key;
}

// 16 bytes for the MACs of programs that share nothing but the cluster key, and of clients of the
// storage protocol before version 10; all zero without a cluster key.
inline std::array<std::uint8_t, 16> fabric_key(const secret &cluster)
{
	std::array<std::uint8_t, 16> out{};
	if (!cluster.empty()) {
		digest d = hmac(as_view(cluster), {"coopfs fabric 1"});
		std::memcpy(out.data(), d.data(), out.size());
	}
	return out;
}

// The same for the nodes of one export in one run of its daemon, from the nonce that the daemon
// gave them. Without a cluster key only the nonce is secret.
inline std::array<std::uint8_t, 16> fabric_key(const secret &cluster, std::string_view nonce)
{
	static constexpr char none[cluster_key_min] = {};
	const std::string_view key =
		cluster.empty() ? std::string_view(none, sizeof(none)) : as_view(cluster);
	std::array<std::uint8_t, 16> out{};
	digest d = hmac(key, {"coopfs fabric 2", nonce});
	std::memcpy(out.data(), d.data(), out.size());
	return out;
}

// The handshake of a storage connection: each side proves that it knows the key, over everything
// exchanged so far.
struct handshake {
	std::string client_nonce, server_nonce, session, export_name;
	std::uint16_t version_min, version_max, version;
	std::uint32_t flags;

	// role: "client" or "server", the side that gives this proof.
	digest proof(const secret &cluster, std::string_view role) const
	{
		const std::uint8_t numbers[] = {static_cast<std::uint8_t>(version_min),
						static_cast<std::uint8_t>(version_min >> 8),
						static_cast<std::uint8_t>(version_max),
						static_cast<std::uint8_t>(version_max >> 8),
						static_cast<std::uint8_t>(version),
						static_cast<std::uint8_t>(version >> 8),
						static_cast<std::uint8_t>(flags),
						static_cast<std::uint8_t>(flags >> 8)};
		digest key = hmac(as_view(cluster), {"coopfs storage 1"});
		return hmac(as_view(key),
			    {role,
			     std::string_view("\0", 1),
			     client_nonce,
			     server_nonce,
			     session,
			     {reinterpret_cast<const char *>(numbers), sizeof(numbers)},
			     export_name});
	}
};

} // namespace coop
