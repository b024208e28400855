// SPDX-License-Identifier: MIT
// half.hpp - the shared layout of a link: two halves, each written by one side only.
//
// A half carries what its writer tells the other: as a requester the work queue entries (WQEs) and
// the bytes that go with them, as a responder the completion entries (CQEs) and the bytes of reads.
// All indices of a half are in one cache line. They are free-running, so `prod - cons` is a fill
// level after any wrap. The reader polls two others: that of the virtual doorbell, and the next
// WQE's, which carries its own index and how many of the reader's WQEs were carried out. So a small
// message and its answer take one cache line each way; the doorbell tells of all else.
//
// The writer stores data first, then indices, then the doorbell (release); of a WQE it stores
// `turn` last. The reader loads the doorbell (acquire), then indices, then data. It copies each
// entry once and validates the copy, because its peer may lie; for the same reason no side reads
// back what it wrote itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace coop::ntrdma
{

constexpr std::uint32_t ring_entries = 1024;
constexpr std::uint32_t stream_bytes = 256u << 10;
constexpr std::uint64_t stream_piece = 32u << 10; // copied at a time
constexpr std::uint32_t large_least = 16u << 10;  // of messages whose way is measured

/// How the bytes of a WQE travel.
enum class carriage : std::uint8_t {
	none,   // it has none: reads, atomics, empty messages
	within, // in `body`
	stream, // in the request stream, in order of the WQEs
	pull,   // `body` has wire_segments, which the responder reads
};

/// A piece of the requester's memory, in its own address space.
struct wire_segment {
	std::uint64_t addr;
	std::uint64_t length;
};

constexpr std::uint32_t body_bytes = 160;

struct wqe {
	std::uint32_t turn; // its index + 1, stored last: the entry is there
	std::uint32_t cons; // the writer's wqe_cons; failed requests are never among these
	std::uint8_t op;
	std::uint8_t flags; // send_flag::solicited
	std::uint8_t how;   // carriage
	std::uint8_t segments;
	std::uint32_t imm;
	std::uint32_t length;
	std::uint32_t rkey;
	std::uint64_t remote;
	std::uint8_t body[body_bytes]; // atomics: wire_operands
};
static_assert(sizeof(wqe) == 192 && offsetof(wqe, body) == 32);

struct wire_operands {
	std::uint64_t compare_add, swap;
};

/// Stored only for atomics, for reads that are granted, and for a request that failed.
struct cqe {
	std::uint32_t result; // status
	std::uint32_t zero;
	std::uint64_t value; // atomics: the old value; granted reads: where the data is
};
static_assert(sizeof(cqe) == 16);

/// Plain copies of a half's indices.
struct indices {
	std::uint32_t wqe_prod = 0;    // WQEs stored; `turn` tells the reader
	std::uint32_t read_ack = 0;    // granted reads that were pulled
	std::uint64_t stream_prod = 0; // bytes stored in the request stream
	std::uint64_t answer_cons = 0; // bytes taken from the peer's answer stream
	std::uint32_t wqe_cons = 0;    // the peer's WQEs carried out; their CQEs are stored
	std::uint32_t read_grant = 0;  // reads whose data the peer may pull
	std::uint64_t stream_cons = 0; // bytes taken from the peer's request stream
	std::uint64_t answer_prod = 0; // bytes stored in the answer stream
	std::uint32_t recv_post = 0;   // receives posted, all told
};

enum class link_word : std::uint32_t {
	open = 0,
	closed = 1, // in good order: the queue pair was reset or destroyed
	failed = 2, // after an error
};

struct half {
	// Sequence number: changes with every batch in which WQEs do not tell everything.
	alignas(64) std::atomic<std::uint32_t> bell;
	std::atomic<std::uint32_t> word;    // link_word
	std::atomic<std::uint32_t> refused; // 1: the last request of wqe_cons failed
	// 1: large messages reach its writer sooner by the stream than by its pulling. Advice only.
	std::atomic<std::uint32_t> streams;
	alignas(64) std::atomic<std::uint32_t> wqe_prod;
	std::atomic<std::uint32_t> wqe_cons;
	std::atomic<std::uint32_t> read_ack;
	std::atomic<std::uint32_t> read_grant;
	std::atomic<std::uint32_t> recv_post;
	std::atomic<std::uint32_t> spare;
	std::atomic<std::uint64_t> stream_prod;
	std::atomic<std::uint64_t> stream_cons;
	std::atomic<std::uint64_t> answer_prod;
	std::atomic<std::uint64_t> answer_cons;
	alignas(64) std::atomic<std::uint32_t> waiting; // its writer sleeps: wake it after ringing
	std::atomic<std::uint32_t> ping, pong;
	alignas(64) wqe wqes[ring_entries];
	cqe cqes[ring_entries];
	std::uint8_t stream[stream_bytes];
	std::uint8_t answer[stream_bytes];
};
static_assert(offsetof(half, wqe_prod) == 64 && offsetof(half, waiting) == 128 &&
	      offsetof(half, wqes) == 192);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// True if the WQE with that index is there.
inline bool is_there(const wqe &w, std::uint32_t index)
{
	return __atomic_load_n(&w.turn, __ATOMIC_ACQUIRE) == index + 1;
}

/// One copy of an entry that the peer may change meanwhile; only the copy is judged.
template <typename T> T copy_once(const T &shared)
{
	T mine;
	std::memcpy(&mine, &shared, sizeof(mine));
	std::atomic_signal_fence(std::memory_order_seq_cst);
	return mine;
}

} // namespace coop::ntrdma
