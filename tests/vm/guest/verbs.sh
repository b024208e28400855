# SPDX-License-Identifier: MIT
# The user-space verbs end point on a Soft-RoCE device, and soft RoCE v2 in user
# space against the device in both directions, which proves the packets on the wire.
#
#: programs ud_verbs ip rdma
#: modules crc32_generic rdma_rxe ib_uverbs veth bridge
#: memory 768
#: long pages stop completion_queues preferred inline senders_told_apart soft_roce

setup()
{
	switch va 10.77.0.1 soft/vc 10.77.0.3
	rxe rxe0 va
	export COOP_UD_NETNS=/run/netns/soft COOP_UD_IP=10.77.0.3
}

gtest()
{
	export COOP_UD_NETNS=/run/netns/soft COOP_UD_IP=10.77.0.3
	ud_verbs --gtest_color=no --gtest_filter="$1" >/tmp/gtest.log 2>&1 || {
		cat /tmp/gtest.log
		die "$(grep -m1 -A1 Failure /tmp/gtest.log | tr '\n' ' ')"
	}
	cat /tmp/gtest.log
	! grep -q SKIPPED /tmp/gtest.log || skip "$(grep -m1 -A1 Skipped /tmp/gtest.log | tail -n 1)"
	grep -q 'PASSED.* [1-9]' /tmp/gtest.log || die "no test has this name"
}

test_pages() { gtest Verbs.CarriesPages; }
test_stop() { gtest 'Verbs.StopFlushes*'; }
test_too_long() { gtest 'Verbs.DatagramLonger*'; }
test_lent_memory() { gtest 'Verbs.LentMemory*'; }
test_over_mtu() { gtest 'Verbs.OverTheMtu*'; }
test_completion_queues() { gtest 'Verbs.CompletionQueues*'; }
test_preferred() { gtest 'Verbs.*Preferred*'; }
test_inline() { gtest 'Verbs.SmallSends*'; }
test_refusal() { gtest 'Verbs.SaysWhatTheDevice*'; }
test_senders_told_apart() { gtest 'Verbs.SendersAreToldApart*'; }
test_error_texts() { gtest 'VerbsOpen.*'; }
test_soft_roce() { gtest 'Verbs.SoftRoce*'; }
