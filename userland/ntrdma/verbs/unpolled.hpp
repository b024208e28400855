// SPDX-License-Identifier: MIT
// unpolled.hpp - what the stand-in librdmacm asks that libibverbs does not offer.
#pragma once

#include <infiniband/verbs.h>

/// Not 0: the program has not polled all completions of the queue pair, with those of what its peer
/// has stored by now. A pointer to a queue pair that was destroyed has none.
extern "C" __attribute__((visibility("default"))) int coop_verbs_unpolled(ibv_context *,
									  const ibv_qp *);
