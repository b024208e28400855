// SPDX-License-Identifier: MIT
// assert.cpp - a broken invariant of the engine fails the test.
#include <gtest/gtest.h>

#include "rpc/base/host.h"

extern "C" void coop_assert_failed(const char *what, const char *file, int line)
{
	ADD_FAILURE_AT(file, line) << "engine invariant: " << what;
}
