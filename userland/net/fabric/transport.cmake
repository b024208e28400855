# SPDX-License-Identifier: MIT
# The fabric transport needs libfabric, whose providers are found when the program runs.
pkg_check_modules(FABRIC IMPORTED_TARGET libfabric)
if(FABRIC_FOUND)
	list(APPEND COOP_NET_LINK PkgConfig::FABRIC)
	list(APPEND COOP_NET_PRIVATE -lfabric)
else()
	message(NOTICE "libcoop-net will lack the transport fabric: libfabric-dev is not installed")
	set(COOP_NET_OFF TRUE)
endif()
