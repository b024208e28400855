# SPDX-License-Identifier: MIT
# The storage protocol's codec; a daemon in the test's own process and its clients.
coop_test(store_codec SOURCES store_codec.cc LIBS coop_engine)
if(TARGET coop_client AND TARGET coop_daemon)
	foreach(part operations versions session hostile stability limits locks leases leases_opens
		event_loop)
		coop_test(daemon_${part} SOURCES daemon_${part}.cc LIBS coop_client coop_daemon)
	endforeach()
endif()
