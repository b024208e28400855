# SPDX-License-Identifier: MIT
# The fabric transport needs libfabric, whose providers are found when the program runs.
pkg_check_modules(FABRIC REQUIRED IMPORTED_TARGET libfabric)
list(APPEND COOP_NET_LINK PkgConfig::FABRIC)
list(APPEND COOP_NET_PRIVATE -lfabric)
