// SPDX-License-Identifier: GPL-2.0 OR MIT
/* trace.c - the bodies of the tracepoints that trace.h declares. */
#define CREATE_TRACE_POINTS
#include "ib/trace.h"
