# SPDX-License-Identifier: MIT
"""_abi - the declarations of coop/net.h, and the library that has them.

The text below is that of the header, without comments; the tests compare the two. The library is
the one that COOP_NET_LIBRARY names, the one installed with this package, or one that the dynamic
linker finds.
"""
import os
import pathlib
from typing import Any

import cffi

SONAME = "libcoop-net.so.0"

DECLARATIONS = """
typedef struct coop_net_domain coop_net_domain;
typedef struct coop_net_rpc coop_net_rpc;
typedef struct coop_net_request coop_net_request;
typedef struct coop_net_offer coop_net_offer;
struct coop_net_limits {
    size_t size;
    size_t max_message;
    size_t max_segment;
    size_t max_descriptor;
};
struct coop_net_options {
    size_t size;
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
    size_t size;
    uint64_t calls;
    uint64_t served;
    uint64_t refused;
    uint64_t repeated;
    uint64_t late;
    uint64_t malformed;
    uint64_t unsent;
};
const char *coop_net_version(void);
const char *coop_net_error(void);
int coop_net_domain_open(const char *transport, const char *const *parameters,
             coop_net_domain **out);
int coop_net_domain_close(coop_net_domain *);
int coop_net_domain_limits(const coop_net_domain *, struct coop_net_limits *out);
int coop_net_rpc_create(coop_net_domain *, const struct coop_net_options *options,
            coop_net_rpc **out);
int coop_net_rpc_close(coop_net_rpc *);
typedef void coop_net_receive_fn(void *context, const char *from, const void *bytes, size_t length);
int coop_net_rpc_start(coop_net_rpc *, const char *address, coop_net_receive_fn *receive,
               void *context);
int coop_net_rpc_stop(coop_net_rpc *);
int coop_net_rpc_address(const coop_net_rpc *, char *text, size_t size);
int coop_net_rpc_stats(const coop_net_rpc *, struct coop_net_stats *out);
size_t coop_net_rpc_max_message(const coop_net_rpc *);
int coop_net_send(coop_net_rpc *, const char *to, const void *bytes, size_t length,
          int64_t timeout_ms);
typedef void coop_net_done_fn(void *context, int status);
int coop_net_post(coop_net_rpc *, const char *to, const void *bytes, size_t length,
          coop_net_done_fn *done, void *context, int64_t timeout_ms);
int coop_net_send_high(coop_net_rpc *, const char *to, const void *bytes, size_t length,
            int64_t timeout_ms);
int coop_net_post_high(coop_net_rpc *, const char *to, const void *bytes, size_t length,
            coop_net_done_fn *done, void *context, int64_t timeout_ms);
typedef void coop_net_result_fn(void *context, int status, int remote, const void *bytes,
                size_t length);
int coop_net_call(coop_net_rpc *, const char *to, uint32_t method, const void *bytes, size_t length,
          coop_net_result_fn *result, void *context, int64_t timeout_ms);
int coop_net_call_wait(coop_net_rpc *, const char *to, uint32_t method, const void *bytes,
               size_t length, int64_t timeout_ms, void **result, size_t *result_length);
void coop_net_free(void *);
typedef void coop_net_method_fn(void *context, coop_net_request *);
int coop_net_serve(coop_net_rpc *, uint32_t method, coop_net_method_fn *, void *context);
const void *coop_net_request_bytes(const coop_net_request *, size_t *length);
const char *coop_net_request_from(const coop_net_request *);
uint32_t coop_net_request_method(const coop_net_request *);
int64_t coop_net_request_time_left(const coop_net_request *);
int coop_net_answer(coop_net_request *, const void *bytes, size_t length);
int coop_net_fail(coop_net_request *, int status);
void coop_net_request_free(coop_net_request *);
int coop_net_offer_make(coop_net_rpc *, void *memory, size_t length, int writable,
            int64_t timeout_ms, coop_net_offer **out);
int coop_net_offer_share(coop_net_rpc *, void *memory, size_t length, int writable,
             int64_t timeout_ms, coop_net_offer **out);
const void *coop_net_offer_descriptor(const coop_net_offer *, size_t *length);
int coop_net_offer_wait(coop_net_offer *);
int coop_net_offer_end(coop_net_offer *);
int coop_net_read(coop_net_rpc *, const void *descriptor, size_t descriptor_length, void *memory,
          size_t length, int64_t timeout_ms, size_t *got);
int coop_net_write(coop_net_rpc *, const void *descriptor, size_t descriptor_length,
           const void *memory, size_t length, int64_t timeout_ms);
int coop_net_read_at(coop_net_rpc *, const void *descriptor, size_t descriptor_length,
             uint64_t offset, void *memory, size_t length, int64_t timeout_ms);
int coop_net_write_at(coop_net_rpc *, const void *descriptor, size_t descriptor_length,
              uint64_t offset, const void *memory, size_t length, int64_t timeout_ms);
"""

ffi: Any = cffi.FFI()
ffi.cdef(DECLARATIONS)


def _load() -> Any:
    beside = pathlib.Path(__file__).resolve().parents[3] / SONAME
    name = os.environ.get("COOP_NET_LIBRARY") or (str(beside) if beside.exists() else SONAME)
    return ffi.dlopen(name)


lib: Any = _load()

OPTIONS = tuple(name for name, _ in ffi.typeof("struct coop_net_options").fields if name != "size")
