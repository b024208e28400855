# SPDX-License-Identifier: MIT
# A machine a node, as in a cluster: the daemon runs in the first one, every one has a
# Soft-RoCE device of its own, pages cross the wire. First with FUSE nodes, then with the
# module; at the end a machine dies in the middle of what it does.
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

pingpong() { timeout 60 ibv_ud_pingpong -d rxe0 -g 1 -n 200 -s 2048 "$@"; }

# greet NODE: each machine reads a little from each, so that how long a round takes is known. On a
# checking kernel a first answer takes seconds: who has nothing to go by asks anew, or storage, and
# pages that come for the question before lie in another's place.
greet()
{
	right "$1" "greeting.$node" 4 196608
	barrier warm
	for n in 1 2 3; do
		right "$1" "greeting.$n" 4 196608
	done
	barrier greeted
}

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
	fuse_up
	barrier mounted
	until_true 30 "the other two are known" fuse_knows 2
	right f "fuse.$node" 2 1048571
	greet f
	before=$(stat_of f source peer bytes)
	for n in 1 2 3; do
		right f fuse.$n 2 1048571
	done
	got=$(($(stat_of f source peer bytes) - before))
	[ "$got" -gt 3000000 ] || die "$got bytes came from peers"
	barrier read
	[ "$(stat_of f serve pages)" -gt 0 ] || die "nothing was served to anybody"
	cat /mnt/f/.coopfs/peers
	barrier looked
	fuse_unmount f
}

test_module_each_from_each()
{
	kmount m $server $with
	barrier mounted
	until_true 30 "the other two are known" knows m 2
	right m "module.$node" 2 1048571
	greet m
	# First answers of a checking kernel may be to a question that was asked again since.
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
	# What comes late for one attempt lies where the next expects its own: 64 pages at most then
	# change places. A machine that answers in time has no next attempt.
	[ "$copied" -le $((retries * 64 * 4096)) ] || die "$copied bytes were copied, $retries retries"
	[ "$patience" -gt 1 ] || [ "$copied" = 0 ] || die "$copied bytes were copied"
	barrier read
	[ "$(of m serve pages)" -gt 0 ] || die "nothing was served to anybody"
	cat "$(proc m)/peers"
	barrier looked
	down m
}

# Over verbs of one machine's user space to the module of the next, and on to user space.
test_module_and_fuse()
{
	case $node in
	2) kmount m $server $with ;;
	*) fuse_up ;;
	esac
	barrier mounted
	case $node in
	1) right f mixed 2 1048571 ;;
	2) until_true 30 "the others are known" knows m 2 ;;
	3) until_true 30 "the others are known" fuse_knows 2 ;;
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
# storage, and what they read is right. No test after this one has machine 3.
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
		until_true 30 "machine 3 is known" knows m 2
		until_true 30 "machine 3 is known to both" fuse_knows 2
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
		[ "$(of m source storage bytes)" -gt 0 ] || die "all of it came before machine 3 died"
		right m killed 4 2097152 -d
		fuse_unmount f
		down m
		rmmod coopfs
	fi
	# Machine 3 gets no further than this.
	barrier read
}
