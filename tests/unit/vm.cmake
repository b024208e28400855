# Runs in the emulated machines of tests/vm.
add_executable(coop-pattern ../vm/pattern.c)
set_target_properties(coop-pattern PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
