# SPDX-License-Identifier: MIT
# What the fabric transport decodes, where its addresses are, and how it finds operations.
if(TARGET coop_net AND fabric IN_LIST COOP_NET_TRANSPORTS)
	coop_test(net_fabric SOURCES net_fabric.cc net_fabric_hostile.cc net_fabric_polled.cc net_fabric_inet6.cc net_fabric_greeting.cc net_fabric_lent.cc ../conformance/fabric_enemy.cc LIBS coop_net)
	# libfabric is the fuzzers'.
	coop_test(net_fabric_device SOURCES net_fabric_device.cc ../fuzz/fake_fabric.cc LIBS coop_net)
endif()
