# SPDX-License-Identifier: MIT
# coopfs-fuse over verbs: nodes a and b with a Soft-RoCE device each, node c with
# soft RoCE v2 in user space, one daemon, all on one switch.
#
#: programs coopfsd coopfs-fuse coopfs coop-sniff ip rdma
#: modules crc32_generic rdma_rxe ib_uverbs veth bridge fuse
#: memory 1536
#: deadline 600
#: short both_ways
#: long removed_while_read append_beside_reader device_removal

server=10.77.0.1
nodes="a b c"
files="a b class before after back down up gone1 gone2 gone3 later c"

setup()
{
	switch va 10.77.0.1 vb 10.77.0.2 soft/vc 10.77.0.3
	rxe rxe0 va
	rxe rxe1 vb
	mkdir -p /srv
	mount -t tmpfs srv /srv
	# Write all files now: a recently written file has a provisional version, and an opener
	# that comes later does not ask for pages cached under it.
	for n in $files; do
		pattern "/srv/$n.bin" 2 "$n.bin"
	done
	serve $server /srv
}

after_failure()
{
	for n in $nodes; do
		! mounted /mnt/$n || timeout 10 cat /mnt/$n/.coopfs/ibaddr /mnt/$n/.coopfs/peers \
			/mnt/$n/.coopfs/requests /mnt/$n/.coopfs/stats
	done
	fuse_end $nodes
	cat /tmp/[abc].log /tmp/coopfsd.log
}

options() # of node
{
	case $1 in
	a) echo "ib,ib_devname=rxe0,$(peer_time),cache_size=64M" ;;
	b) echo "ib,ib_devname=rxe1,$(peer_time),cache_size=64M" ;;
	c) echo "ib,addr=10.77.0.3,$(peer_time),cache_size=64M" ;;
	esac
}

up() # NODE...
{
	for _n in "$@"; do
		case $_n in
		c) fuse_mount c $server "$(options c)" soft ;;
		*) fuse_mount "$_n" $server "$(options "$_n")" ;;
		esac
	done
}

down() { for _n in "$@"; do fuse_unmount "$_n"; done; }

knows() { [ "$(grep -c ^peer "/mnt/$1/.coopfs/peers")" = "$2" ]; }

# peer_bytes NODE: bytes that it has read from peers so far
peer_bytes() { stat_of "$1" source peer bytes; }

# from_peers NODE FILE [BYTES]: reads the file; nearly all of it must come from other nodes
from_peers()
{
	_before=$(peer_bytes "$1")
	same "$1" "$2"
	_got=$(($(peer_bytes "$1") - _before))
	[ "$_got" -ge "${3:-1500000}" ] || die "node $1 got $_got bytes of $2 from peers"
}

# rm -r removes names while it reads them: before Linux 6.6, tmpfs finds its place in a directory
# by counting the names that are left.
removed_while_read()
{
	mkdir /srv/many
	for _i in $(seq 400); do
		: >"/srv/many/$_i"
	done
	[ -z "$1" ] || ls -lR /mnt/c/many | wc -l # so that the client knows all names
	rm -r /mnt/c/many || die "names were left out: $(ls /srv/many | wc -l)"
	! [ -e /srv/many ] || die "the directory is still there"
}
test_removed_while_read()
{
	up c
	removed_while_read ""
	removed_while_read listed
	down c
}

# The kernel sends what a program appends past its cached pages: readers of the last page see it.
test_append_beside_reader()
{
	up c
	echo first >/mnt/c/log
	exec 3</mnt/c/log 4>>/mnt/c/log 5<>/mnt/c/log
	[ "$(cat <&3)" = first ] || die "the file is not as it was written"
	for _word in second third fourth; do
		echo $_word >&4
		_got=$(cat <&3)
		[ "$_got" = $_word ] || die "a reader got '$_got' for '$_word'"
	done
	exec 3<&- 4>&- 5<&-
	echo fifth >>/mnt/c/log
	[ "$(cat /mnt/c/log | tr '\n' ' ')" = "first second third fourth fifth " ] ||
		die "the file has $(cat /mnt/c/log)"
	down c
	rm /srv/log
}

# Every node reads its own file from storage, then the others read it from that node.
test_both_ways()
{
	up $nodes
	for n in $nodes; do
		until_true 20 "node $n knows the other two" knows "$n" 2
	done
	for n in $nodes; do
		same "$n" "$n.bin"
	done
	for n in $nodes; do
		for m in $nodes; do
			[ "$m" = "$n" ] || from_peers "$m" "$n.bin"
		done
	done
	for n in $nodes; do
		cat "/mnt/$n/.coopfs/peers" "/mnt/$n/.coopfs/stats"
		[ "$(stat_of "$n" serve pages)" -gt 0 ] || die "node $n served nothing"
	done
	down $nodes
}

# A small path MTU multiplies the work requests, so that the default number of queue pairs needs
# more completions than one completion queue of this device holds. On a debug kernel a datagram
# takes milliseconds: a megabyte of readahead would take longer than the time for peers.
small_mtu()
{
	_ahead=$((patience > 1 ? 16 : 256))
	fuse_mount a $server "$(options a),ib_mtu=$1,readahead=$_ahead"
	fuse_mount b $server "$(options b),ib_mtu=$1,readahead=$_ahead"
	until_true 20 "a knows b" knows a 1
	until_true 20 "b knows a" knows b 1
	same a a.bin
	from_peers b a.bin 1000000
	same b b.bin
	from_peers a b.bin 1000000
	down a b
}

# ib_tclass= of a device, and of soft RoCE, is that of each packet.
test_traffic_class()
{
	fuse_mount a $server "$(options a),ib_tclass=104"
	fuse_mount c $server "$(options c),ib_tclass=40" soft
	until_true 30 "a knows c" knows a 1
	until_true 30 "c knows a" knows c 1
	sniff va
	same a a.bin
	from_peers c a.bin
	same c class.bin
	from_peers a class.bin
	sniff_ends
	in_class 10.77.0.1 104
	in_class 10.77.0.3 40
	down a c
}

test_mtu_1024() { small_mtu 1024; }
test_mtu_256() { small_mtu 256; }

# Another address replaces that of b's port under the running mount: the daemon tells the
# other nodes, and pages flow again in both directions.
test_gid_change()
{
	up a b
	until_true 20 "a knows b" knows a 1
	until_true 20 "b knows a" knows b 1
	same b before.bin
	from_peers a before.bin

	move_port vb 10.77.0.2 10.77.0.9
	until_true 30 "b has its new address" grep -q 10.77.0.9 /mnt/b/.coopfs/ibaddr
	until_true 30 "a knows b's new address" grep -q 10.77.0.9 /mnt/a/.coopfs/peers
	until_true 30 "a has forgotten b's old address" knows a 1
	same b after.bin
	from_peers a after.bin
	same a back.bin
	from_peers b back.bin
	grep -q 'own address is now' /tmp/b.log || die "the log says nothing"

	down a b
	move_port vb 10.77.0.9 10.77.0.2
}

# The port goes down and comes back: storage serves meanwhile, peers afterwards. The node leaves the
# fabric and joins it again on one connection to storage, so it keeps its leases.
test_port_down()
{
	up a b
	until_true 20 "a knows b" knows a 1
	same b later.bin
	held=$(stat_of b lease held)
	[ "$held" -gt 0 ] || die "b has no lease"
	ip link set vb down
	until_true 30 "b sees its port down" is_number 0 b endpoint port_up
	until_true 30 "a forgets b" knows a 0
	until_true 30 "b forgets a" knows b 0
	same b down.bin
	[ "$(peer_bytes b)" = 0 ] || die "b got pages over a port that is down"
	ip link set vb up
	own_routes vb 10.77.0.2
	until_true 30 "b sees its port up" is_number 1 b endpoint port_up
	until_true 30 "a knows b again" knows a 1
	until_true 30 "b knows a again" knows b 1
	is_number 0 b storage reconnects || die "b has connected to storage again"
	[ "$(stat_of b lease held)" -ge "$held" ] || die "b had $held leases, and has $(stat_of b lease held)"
	same a up.bin
	from_peers b up.bin
	down a b
}

# The device is removed while fetches are under way: the removal completes, no read hangs or
# returns wrong bytes, and the mount goes on over storage.
test_device_removal()
{
	up a b
	until_true 20 "a knows b" knows a 1
	until_true 20 "b knows a" knows b 1
	for i in 1 2 3; do
		same a "gone$i.bin"
	done
	(
		set +x
		for i in 1 2 3; do
			sum "/mnt/b/gone$i.bin" >"/tmp/gone$i.sum"
		done
		touch /tmp/gone.done
	) &
	until_true 30 "b fetches from a" at_least 1 b fetch fetches
	timeout $((60 * patience)) /usr/bin/rdma link delete rxe1 || die "the device is still held"
	until_true 60 "the reader has ended" test -e /tmp/gone.done
	for i in 1 2 3; do
		[ "$(cat "/tmp/gone$i.sum")" = "$(sum "/srv/gone$i.bin")" ] ||
			die "a read of gone$i.bin returned wrong bytes"
	done
	until_true 30 "b reports that its device is gone" is_number 1 b endpoint device_lost
	until_true 30 "a forgets b" knows a 0
	is_number 0 b storage reconnects || die "b has connected to storage again"
	grep -q 'device is gone' /tmp/b.log || die "the log says nothing"
	[ ! -s /mnt/b/.coopfs/requests ] || die "stuck: $(cat /mnt/b/.coopfs/requests)"
	same b later.bin
	down a b
	rxe rxe1 vb
}
