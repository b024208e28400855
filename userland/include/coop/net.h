/* SPDX-License-Identifier: MIT */
/*
 * net.h - messages, calls and bulk data of libcoop-net for C and for other languages.
 *
 * Opaque handles, plain functions, no C++ types. An `int` is 0 or a negative errno value unless
 * said otherwise. Structures begin with their size, so that programs and libraries of different
 * versions fit together: the library reads and writes no byte beyond it, and a field that is not
 * there, or 0, has its default.
 *
 * Times are milliseconds from now; a negative one is no limit. Functions may be called by any
 * thread. Callbacks run on threads of the library, one at a time for an object but for calls that
 * time out; they may call everything that does not wait. What waits, says so, and returns -EDEADLK
 * there. Bytes and texts passed to a callback are valid until it returns. The classes behind it,
 * with all errors, are coop::net::domain and coop::net::rpc.
 */
#ifndef COOP_NET_H
#define COOP_NET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the text of an address, with its end. */
#define COOP_NET_ADDRESS_SIZE 81

#pragma GCC visibility push(default)

/* What follows is also the text that the Python bindings declare. */

typedef struct coop_net_domain coop_net_domain;
typedef struct coop_net_rpc coop_net_rpc;
typedef struct coop_net_request coop_net_request;
typedef struct coop_net_offer coop_net_offer;

struct coop_net_limits {
	size_t size;           /* of this structure; set by the caller */
	size_t max_message;    /* bytes, of a bare message */
	size_t max_segment;    /* bytes, of an offer, a read or a write */
	size_t max_descriptor; /* bytes */
};

struct coop_net_options {
	size_t size; /* of this structure; set by the caller */
	size_t max_message;
	uint32_t send_buffers;
	uint32_t receive_buffers;
	uint64_t poll_us;
	size_t max_body;
	size_t eager;
	size_t bulk_memory;
	uint32_t max_requests;
	uint32_t max_requests_of_peer;
	uint32_t max_calls;
	uint32_t probe_ms;
	uint32_t unread_ms;
};

struct coop_net_stats {
	size_t size; /* of this structure; set by the caller */
	uint64_t calls;
	uint64_t served;
	uint64_t refused;
	uint64_t repeated;
	uint64_t late;
	uint64_t malformed;
	uint64_t unsent;
};

/* The version of the library, as text. */
const char *coop_net_version(void);
/* Why the last function failed that makes an object, in this thread; valid until the next one. */
const char *coop_net_error(void);

/* Opens a transport. parameters: texts "key=value" with a null pointer at their end, or null. */
int coop_net_domain_open(const char *transport, const char *const *parameters,
			 coop_net_domain **out);
/* -EBUSY: an object made from it is left. Null is closed already. */
int coop_net_domain_close(coop_net_domain *);
int coop_net_domain_limits(const coop_net_domain *, struct coop_net_limits *out);

/* options: or null. */
int coop_net_rpc_create(coop_net_domain *, const struct coop_net_options *options,
			coop_net_rpc **out);
/* Stops it, waits until no callback runs, and frees it. -EBUSY: an offer is left. Waits. */
int coop_net_rpc_close(coop_net_rpc *);

typedef void coop_net_receive_fn(void *context, const char *from, const void *bytes, size_t length);
/* Starts at an address. receive: gets messages; or null. Waits. */
int coop_net_rpc_start(coop_net_rpc *, const char *address, coop_net_receive_fn *receive,
		       void *context);
/* Ends all calls and sends; waits, except in a callback. */
int coop_net_rpc_stop(coop_net_rpc *);
/* text: COOP_NET_ADDRESS_SIZE bytes. -EBADFD: not started. */
int coop_net_rpc_address(const coop_net_rpc *, char *text, size_t size);
int coop_net_rpc_stats(const coop_net_rpc *, struct coop_net_stats *out);
/* The longest message of coop_net_send(), in bytes. */
size_t coop_net_rpc_max_message(const coop_net_rpc *);

/* Sends a copy and waits for the end. */
int coop_net_send(coop_net_rpc *, const char *to, const void *bytes, size_t length,
		  int64_t timeout_ms);
typedef void coop_net_done_fn(void *context, int status);
/* Sends a copy without waiting. After 0, done (or null) is called exactly once; else never. */
int coop_net_post(coop_net_rpc *, const char *to, const void *bytes, size_t length,
		  coop_net_done_fn *done, void *context, int64_t timeout_ms);

/* The same two with high priority: before messages that still wait to be sent. */
int coop_net_send_high(coop_net_rpc *, const char *to, const void *bytes, size_t length,
		       int64_t timeout_ms);
int coop_net_post_high(coop_net_rpc *, const char *to, const void *bytes, size_t length,
		       coop_net_done_fn *done, void *context, int64_t timeout_ms);

typedef void coop_net_result_fn(void *context, int status, int remote, const void *bytes,
				size_t length);
/* Calls a method without waiting. After 0, result is called exactly once; else never. */
int coop_net_call(coop_net_rpc *, const char *to, uint32_t method, const void *bytes, size_t length,
		  coop_net_result_fn *result, void *context, int64_t timeout_ms);
/* Calls a method and waits. The result, which coop_net_free() frees, is null after an error. */
int coop_net_call_wait(coop_net_rpc *, const char *to, uint32_t method, const void *bytes,
		       size_t length, int64_t timeout_ms, void **result, size_t *result_length);
void coop_net_free(void *);

/* The method owns the request until it calls coop_net_request_free(), perhaps later. */
typedef void coop_net_method_fn(void *context, coop_net_request *);
/* Serves a method; with null it is served no more. */
int coop_net_serve(coop_net_rpc *, uint32_t method, coop_net_method_fn *, void *context);
/* Valid as long as the request; length or null. */
const void *coop_net_request_bytes(const coop_net_request *, size_t *length);
const char *coop_net_request_from(const coop_net_request *);
uint32_t coop_net_request_method(const coop_net_request *);
/* Milliseconds until the caller gives up, perhaps negative; INT64_MAX: never. */
int64_t coop_net_request_time_left(const coop_net_request *);
int coop_net_answer(coop_net_request *, const void *bytes, size_t length);
int coop_net_fail(coop_net_request *, int status);
/* A request that was not answered then ends with -ECANCELED. */
void coop_net_request_free(coop_net_request *);

/* Lets the holder of the descriptor read the memory, or with `writable` write it, once. The memory
 * must stay until coop_net_offer_wait() or _end() has returned. */
int coop_net_offer_make(coop_net_rpc *, void *memory, size_t length, int writable,
			int64_t timeout_ms, coop_net_offer **out);
/* The same for any number of reads or writes, also at the same time, each of a range. It ends by
 * its time limit (-ETIMEDOUT) or by coop_net_offer_end(). -EOPNOTSUPP: not on this transport. */
int coop_net_offer_share(coop_net_rpc *, void *memory, size_t length, int writable,
			 int64_t timeout_ms, coop_net_offer **out);
/* Valid as long as the offer. */
const void *coop_net_offer_descriptor(const coop_net_offer *, size_t *length);
/* Waits until the offer has been used, or has ended or failed. @return its status. Waits. */
int coop_net_offer_wait(coop_net_offer *);
/* Withdraws and frees it. Waits. */
int coop_net_offer_end(coop_net_offer *);
/* Reads what a descriptor offers. Waits. got: bytes, or null. */
int coop_net_read(coop_net_rpc *, const void *descriptor, size_t descriptor_length, void *memory,
		  size_t length, int64_t timeout_ms, size_t *got);
/* Writes to what a descriptor offers. Waits. */
int coop_net_write(coop_net_rpc *, const void *descriptor, size_t descriptor_length,
		   const void *memory, size_t length, int64_t timeout_ms);
/* The same with `length` bytes from `offset` on of a shared offer. -EFBIG: they leave it. Waits. */
int coop_net_read_at(coop_net_rpc *, const void *descriptor, size_t descriptor_length,
		     uint64_t offset, void *memory, size_t length, int64_t timeout_ms);
int coop_net_write_at(coop_net_rpc *, const void *descriptor, size_t descriptor_length,
		      uint64_t offset, const void *memory, size_t length, int64_t timeout_ms);

/* The end of that text. */

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
