# SPDX-License-Identifier: MIT
# One node per machine, as in a cluster: the daemon runs in the first machine, each has its
# own Soft-RoCE device, and pages cross the wire. First with FUSE nodes, then with the
# module; at the end a machine dies while it serves.
#
#: programs coopfsd coopfs-fuse coopfs coop-pattern ip rdma ibv_ud_pingpong
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe ib_uverbs fuse
#: files $KO/coopfs.ko
#: memory 768
#: machines 3
#: deadline 360

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
		for n in 1 2 3; do
			new "fuse.$n" 2 1048571
			new "module.$n" 2 1048571
			new "greeting.$n" 4 196608
		done
		new mixed 2 1048571
		new killed 4 2097152
		new killed.fuse 4 2097152
		serve $server /srv
	fi
	barrier served
}

after_failure()
{
	for n in m f; do
		! mounted /mnt/$n || cat /mnt/$n/.coopfs/peers /mnt/$n/.coopfs/stats
	done
	! mounted /mnt/m || cat "$(proc m)/info" "$(proc m)/peers" "$(proc m)/stats" "$(proc m)/requests"
	cat /tmp/*.log
	fuse_end f
	for j in /tmp/*.job; do
		[ ! -e "$j" ] || kill -9 "$(cat "$j")"
	done
	! mounted /mnt/m || umount -l /mnt/m
} 2>&1

fuse_up() { fuse_mount f $server $with,cache_size=64M; }

fuse_knows() { [ "$(grep -c ^peer /mnt/f/.coopfs/peers)" = "$1" ]; }

pingpong() { timeout $((60 * patience)) ibv_ud_pingpong -d rxe0 -g 1 -n 200 -s 2048 "$@"; }

# greet NODE: each machine reads a little from each, to learn the round-trip time. On a debug kernel
# a first answer takes seconds: a requester without a measured time asks again, or asks storage, and
# then late pages of the first attempt land in the places of others.
greet()
{
	right "$1" "greeting.$node" 4 196608
	barrier warm
	for n in 1 2 3; do
		right "$1" "greeting.$n" 4 196608
	done
	barrier greeted
}

# Two machines exchange datagrams.
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
	fuse_up
	barrier mounted
	until_true 30 "the node knows the other two" fuse_knows 2
	right f "fuse.$node" 2 1048571
	greet f
	before=$(stat_of f source peer bytes)
	for n in 1 2 3; do
		right f fuse.$n 2 1048571
	done
	got=$(($(stat_of f source peer bytes) - before))
	[ "$got" -gt 3000000 ] || die "$got bytes came from peers"
	barrier read
	[ "$(stat_of f serve pages)" -gt 0 ] || die "the node served nothing"
	cat /mnt/f/.coopfs/peers
	barrier looked
	fuse_unmount f
}

test_module_each_from_each()
{
	kmount m $server $with
	barrier mounted
	until_true 30 "the node knows the other two" knows m 2
	right m "module.$node" 2 1048571
	greet m
	# The first answers of a debug kernel may come after the requester has asked again.
	[ "$patience" -gt 1 ] || in_place m
	copied=$(of m read copied_bytes)
	retries=$(of m fetch retries)
	before=$(of m source peer bytes)
	for n in 1 2 3; do
		right m module.$n 2 1048571
	done
	got=$(($(of m source peer bytes) - before))
	[ "$got" -gt 3000000 ] || die "$got bytes came from peers"
	copied=$(($(of m read copied_bytes) - copied))
	retries=$(($(of m fetch retries) - retries))
	# Late data of one attempt lands where the next expects its own: at most 64 pages then change
	# places. After an answer in time there is no next attempt.
	[ "$copied" -le $((retries * 64 * 4096)) ] || die "$copied bytes were copied, $retries retries"
	[ "$patience" -gt 1 ] || [ "$copied" = 0 ] || die "$copied bytes were copied"
	barrier read
	[ "$(of m serve pages)" -gt 0 ] || die "the node served nothing"
	cat "$(proc m)/peers"
	barrier looked
	down m
}

# Pages go from user-space verbs on one machine to the module on the next, and on to user space.
test_module_and_fuse()
{
	case $node in
	2) kmount m $server $with ;;
	*) fuse_up ;;
	esac
	barrier mounted
	case $node in
	1) right f mixed 2 1048571 ;;
	2) until_true 30 "the node knows the others" knows m 2 ;;
	3) until_true 30 "the node knows the others" fuse_knows 2 ;;
	esac
	barrier first
	if [ "$node" = 2 ]; then
		right m mixed 2 1048571
		[ "$(of m source peer bytes)" -gt 1500000 ] || die "little came from user space"
	fi
	barrier second
	if [ "$node" = 3 ]; then
		right f mixed 2 1048571
		[ "$(stat_of f source peer bytes)" -gt 1500000 ] || die "little came from the others"
	fi
	barrier third
	case $node in
	2) down m ;;
	*) fuse_unmount f ;;
	esac
}

# Machine 3 dies while a module and a FUSE node of machine 2 read from it: they go on over
# storage and read the right bytes. No later test has machine 3.
test_machine_killed()
{
	[ "$node" = 1 ] || kmount m $server $with
	[ "$node" != 2 ] || fuse_up
	barrier mounted
	case $node in
	3)
		right m killed 4 2097152
		right m killed.fuse 4 2097152
		;;
	2)
		until_true 30 "the module knows machine 3" knows m 2
		until_true 30 "the FUSE node knows machine 3" fuse_knows 2
		;;
	esac
	barrier warm
	if [ "$node" = 2 ]; then
		job reader coop-pattern -d -r 3 check /mnt/m/killed 1 4 2097152 1
		job fuse_reader coop-pattern -d check /mnt/f/killed.fuse 1 4 2097152 1
		until_true 60 "the module reads from machine 3" more_than 64 m source peer pages
		until_true 60 "the FUSE node reads from machine 3" at_least 64 f source peer pages
		kill_machine 3
		job_ends 120 reader
		job_ends 120 fuse_reader
		cat "$(proc m)/peers" /mnt/f/.coopfs/peers
		[ "$(of m source storage bytes)" -gt 0 ] || die "all pages came before machine 3 died"
		right m killed 4 2097152 -d
		fuse_unmount f
		down m
		rmmod coopfs
	fi
	# Machine 3 never gets past this.
	barrier read
}
