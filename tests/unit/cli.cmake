# SPDX-License-Identifier: MIT
if(TARGET cli_core)
	foreach(noun control format frame json mount_options mounts)
		coop_test(cli_${noun} SOURCES cli_${noun}.cc LIBS cli_core)
	endforeach()
endif()
