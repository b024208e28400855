# What the fabric transport decodes, where its addresses are, and how it finds operations.
if(TARGET coop_net AND TARGET PkgConfig::FABRIC)
	coop_test(net_fabric SOURCES net_fabric.cc LIBS coop_net)
endif()
