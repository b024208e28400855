# SPDX-License-Identifier: MIT
coop_test(client_options SOURCES client_options.cc LIBS coop_client)
coop_test(client_files SOURCES client_files.cc LIBS coop_client)
coop_test(client_commit SOURCES client_commit.cc LIBS coop_client)
coop_test(client_leases SOURCES client_leases.cc LIBS coop_client)
