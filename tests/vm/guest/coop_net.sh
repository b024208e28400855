# SPDX-License-Identifier: MIT
# /dev/coop-net by its raw interface: two machines on the Soft-RoCE devices rxe0 and rxe1, joined
# by a wire. The areas are those of coop-netdev (tests/vm/netdev).
#
#: programs coop-netdev ip rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth
#: files $KO/coopfs.ko
#: memory 1536
#: deadline 600
#: short text messages bulk refused_bulk

setup()
{
	wired
	until_true 10 "the device is there" [ -c /dev/coop-net ]
}

area() { PATIENCE=$patience timeout $((200 * patience)) coop-netdev "$@" 2>/tmp/said || die "$(tail -n 12 /tmp/said | tr '\n' ';')"; }

after_failure()
{
	cat /tmp/said
	[ ! -e /proc/fs/coopfs/net ] || cat /proc/fs/coopfs/net
} 2>&1

test_text() { area text; }
test_messages() { area messages; }
test_bulk() { area bulk; }
test_refused_bulk() { area refused_bulk; }
