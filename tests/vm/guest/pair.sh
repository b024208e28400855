# SPDX-License-Identifier: MIT
# Two machines with the module, the daemon in the first one. At the end the second machine
# dies while the first serves it: the first must release all pages of these serves.
#
#: programs coopfsd coopfs coop-pattern ip rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe
#: files $KO/coopfs.ko
#: memory 768
#: machines 2
#: deadline 240

server=10.9.0.1
with=ib,ib_devname=rxe0,peer_timeout_ms=8000

setup()
{
	insmod /lab/files/coopfs.ko
	rxe rxe0 eth0
	mkdir -p /mnt/m
	cluster_key
	if [ "$node" = 1 ]; then
		mkdir -p /srv
		mount -t tmpfs srv /srv
		new 1 4 1048571
		new 2 4 1048571
		serve $server /srv
	fi
	barrier served
}

after_failure()
{
	! mounted /mnt/m || cat "$(proc m)/info" "$(proc m)/peers" "$(proc m)/stats" "$(proc m)/requests"
	cat /tmp/*.log
	for j in /tmp/*.job; do
		[ ! -e "$j" ] || kill -9 "$(cat "$j")"
	done
	! mounted /mnt/m || umount -l /mnt/m
} 2>&1

up()
{
	kmount m $server "$with${1:-}"
	barrier mounted
	until_true 30 "the node knows the other" knows m 1
}

# both_ways [OPTIONS GID]: each machine reads from the other, by GIDs that start with GID
both_ways()
{
	up "${1:-}"
	[ -z "${2:-}" ] || [ "$(grep -c "gid=$2" "$(proc m)/ibaddr")" = 2 ] || die "not by $2"
	right m "$node" 4 1048571
	barrier warm
	before=$(of m source peer pages)
	right m $((3 - node)) 4 1048571
	got=$(($(of m source peer pages) - before))
	[ "$got" -gt 1000 ] || die "$got of 1024 pages came from the other machine"
	in_place m
	cat "$(proc m)/ibaddr" "$(proc m)/peers"
	barrier read
	down m
}

test_both_ways() { both_ways; }

ipv6_gid() { grep -l '^fd77:' /sys/class/infiniband/rxe0/ports/1/gids/* | sed 's|.*/||' | grep .; }

# The devices have IPv6 addresses.
test_both_ways_ipv6()
{
	ip addr add "fd77::$node/64" dev eth0 nodad
	until_true 20 "rxe0 has a GID of its new address" ipv6_gid
	both_ways ",ib_gid=$(ipv6_gid)" fd77:
	ip addr del "fd77::$node/64" dev eth0
}

# No later test has machine 2.
test_reader_killed()
{
	up
	[ "$node" = 2 ] || right m 1 4 1048571
	barrier warm
	if [ "$node" = 2 ]; then
		job reader coop-pattern -d -r 1000 check /mnt/m/1 1 4 1048571 1
		barrier reads
		barrier dead
	fi
	barrier reads
	until_true 30 "machine 1 serves machine 2" more_than 64 m serve pages
	kill_machine 2
	# Machine 1 gives up the last serves, and the pages are writable again.
	until_true 60 "no serve is left" nothing_lent
	coop-pattern write /mnt/m/1 1 4 1048571 2
	coop-pattern check /srv/1 1 4 1048571 2
	cat "$(proc m)/peers"
	down m
	rmmod coopfs
}

nothing_lent() { ! grep -q serve "$(proc m)/requests"; }
