# SPDX-License-Identifier: MIT
# A machine a node, as in a cluster: the daemon runs in the first one, every one
# has a FUSE node on a Soft-RoCE device of its own, pages cross the wire.
#
#: programs coopfsd coopfs-fuse ip rdma ibv_ud_pingpong
#: modules crc32_generic rdma_rxe ib_uverbs fuse
#: memory 768
#: machines 3
#: deadline 240

server=10.9.0.1

setup()
{
	rxe rxe0 eth0
	if [ "$node" = 1 ]; then
		mkdir -p /srv
		mount -t tmpfs srv /srv
		for n in 1 2 3; do
			pattern "/srv/$n.bin" 2 "$n.bin"
			sum "/srv/$n.bin" >"/srv/$n.sum"
		done
		serve $server /srv
	fi
	barrier served
	fuse_mount m $server ib,ib_devname=rxe0,peer_timeout_ms=8000,cache_size=64M
	barrier mounted
}

after_failure()
{
	cat /tmp/m.log /mnt/m/.coopfs/peers /mnt/m/.coopfs/stats
}

knows_two() { [ "$(grep -c ^peer /mnt/m/.coopfs/peers)" = 2 ]; }

same() { [ "$(sum "/mnt/m/$1.bin")" = "$(cat "/mnt/m/$1.sum")" ] || die "$1.bin was read wrongly"; }

pingpong() { timeout 60 ibv_ud_pingpong -d rxe0 -g 1 -n 200 -s 2048 "$@"; }

# Datagrams cross between two machines at all.
test_raw_ud()
{
	case $node in
	1) pingpong ;;
	2) until_true 30 "the other machine answers" pingpong $server ;;
	esac
	barrier ponged
}

test_each_from_each()
{
	until_true 30 "the other two are known" knows_two
	same "$node"
	barrier warm
	before=$(stat_of m source peer bytes)
	for n in 1 2 3; do
		same $n
	done
	got=$(($(stat_of m source peer bytes) - before))
	[ "$got" -gt 3000000 ] || die "$got bytes came from peers"
	barrier read
	[ "$(stat_of m serve pages)" -gt 0 ] || die "nothing was served to anybody"
	cat /mnt/m/.coopfs/peers
	barrier looked
}
