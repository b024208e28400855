# SPDX-License-Identifier: MIT
# Runs in the emulated machines of tests/vm.
add_executable(coop-fail-nth ../vm/fail_nth.c)
set_target_properties(coop-fail-nth PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
