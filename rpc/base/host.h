/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * host.h - the only file of the engines that depends on kernel or user space.
 *
 * The engines are compiled unchanged into coopfs.ko, the user-space programs,
 * the simulator, the unit tests and the fuzzers. This file defines all that
 * differs between them (type names, byte order, the assertion), so that no
 * other file of rpc/ includes a system header or mentions __KERNEL__.
 *
 * An engine allocates nothing, takes no lock and reads no clock: a host gives
 * it one block of memory, calls it from one owner at a time, and passes the
 * time in.
 */
#ifndef COOP_HOST_H
#define COOP_HOST_H

#ifdef __KERNEL__

#include <asm/byteorder.h>
#include <linux/bug.h>
#include <linux/build_bug.h>
#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/string.h>
#include <linux/types.h>

#define coop_fallthrough fallthrough

#if defined(CONFIG_ARCH_SUPPORTS_INT128) && defined(__SIZEOF_INT128__)
#define COOP_U128 unsigned __int128
#endif

#else

#include <endian.h>
#include <errno.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef COOP_HOST_TYPES
#define COOP_HOST_TYPES
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;
#endif

#ifndef __force
#define __force
#endif

#define cpu_to_le16(v) ((__le16)htole16(v))
#define cpu_to_le32(v) ((__le32)htole32(v))
#define cpu_to_le64(v) ((__le64)htole64(v))
#define le16_to_cpu(v) le16toh((__u16)(v))
#define le32_to_cpu(v) le32toh((__u32)(v))
#define le64_to_cpu(v) le64toh((__u64)(v))

#if defined(__has_attribute)
#if __has_attribute(fallthrough)
#define coop_fallthrough __attribute__((fallthrough))
#endif
#endif
#ifndef coop_fallthrough
#define coop_fallthrough ((void)0)
#endif

#ifdef __SIZEOF_INT128__
#define COOP_U128 unsigned __int128
#endif

/*
 * A broken engine invariant is our bug, never a peer's. Tests replace the hook
 * with one that fails; programs print the place and continue, as WARN_ON_ONCE()
 * does in a kernel.
 */
#ifdef __cplusplus
extern "C" {
#endif
void coop_assert_failed(const char *what, const char *file, int line);
#ifdef __cplusplus
}
#else
#define WARN_ON_ONCE(cond)                                             \
	({                                                             \
		bool coop_bad_ = !!(cond);                             \
		if (coop_bad_)                                         \
			coop_assert_failed(#cond, __FILE__, __LINE__); \
		coop_bad_;                                             \
	})
#endif

#ifndef __cplusplus
#include <assert.h> /* static_assert */
#endif

#endif /* __KERNEL__ */

#endif /* COOP_HOST_H */
