coop_test(ud_soft_roce SOURCES ud_soft_roce.cc LIBS coop_ud)
