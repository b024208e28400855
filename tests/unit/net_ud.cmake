coop_test(net_ud SOURCES net_ud.cc LIBS coop_net)
