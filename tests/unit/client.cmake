# SPDX-License-Identifier: MIT
# The data path of a user-space node.
coop_test(client_page_store SOURCES client_page_store.cc LIBS coop_client)
coop_test(client_node_ids SOURCES client_node_ids.cc LIBS coop_client)
coop_test(client_reader SOURCES client_reader.cc LIBS coop_client)
coop_test(client_node SOURCES client_node.cc rpc_assert.cc LIBS coop_client)
