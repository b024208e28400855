# SPDX-License-Identifier: MIT
coop_test(ud_wire SOURCES ud_wire.cc LIBS coop_ud)
coop_test(ud_receiver SOURCES ud_receiver.cc LIBS coop_ud)
coop_test(ud_soft_roce SOURCES ud_soft_roce.cc LIBS coop_ud)
coop_test(ud_lane SOURCES ud_lane.cc LIBS coop_ud)
coop_test(ud_strict_icrc SOURCES ud_strict_icrc.cc LIBS coop_ud)
coop_test(ud_verbs SOURCES ud_verbs.cc LIBS coop_ud)
