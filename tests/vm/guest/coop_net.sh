# SPDX-License-Identifier: MIT
# /dev/coop-net by its raw interface: machines on the Soft-RoCE devices rxe0 and rxe1, joined by a
# wire. The areas are those of coop-netdev (tests/vm/netdev).
#
#: programs coop-netdev ip rdma tc
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth sch_netem
#: files $KO/coopfs.ko $KO/vm/coop_lab.ko
#: memory 1536
#: deadline 2400
#: short text messages bulk states operations fork fuzz
#: long here ranges bounds revoked
#: long refused_bulk setup buffers memlock charged strangers late_admission indices nothing_lost overtaken waits polls awake close exec killed nobody removal
#: long quota rights rdma_charged peers mapping many bad_wire unload fuzz_long

lab=/sys/module/coop_lab/parameters
parameters=/sys/module/coopfs/parameters

setup()
{
	wired
	until_true 10 "the device is there" [ -c /dev/coop-net ]
}

# area NAME: also, all its machines and their queue pairs are gone afterwards
area()
{
	_before=$(queue_pairs)
	PATIENCE=$patience timeout $((${limit:-250} * patience)) coop-netdev "$1" 2>/tmp/said ||
		die "$(tail -n 12 /tmp/said | tr '\n' ';')"
	cat /tmp/said
	until_true 20 "all queue pairs are destroyed" as_many_pairs "$_before"
	until_true 20 "no machine is left" no_machine
}

as_many_pairs() { [ "$(queue_pairs)" = "$1" ]; }

no_machine() { ! grep ^pid /proc/fs/coopfs/net; }

after_failure()
{
	cat /tmp/said /tmp/*.said
	cat /proc/fs/coopfs/net
	[ ! -e /sys/kernel/debug/failslab ] || in_interrupts 0
	rmdir /tmp/groups/net 2>/dev/null || true
	[ ! -e $parameters ] || echo 32 >$parameters/net_machines
	[ ! -e $parameters ] || echo 1024 >$parameters/net_queue_pairs
	umount /tmp/groups 2>/dev/null || true
	[ ! -e $lab ] || echo 0 >$lab/hold_sends
	for _j in holder remover; do
		[ ! -e "/tmp/$_j.job" ] || kill -9 "$(cat "/tmp/$_j.job")"
		rm -f "/tmp/$_j.job"
	done
	grep -q '^coopfs ' /proc/modules || insmod /lab/files/coopfs.ko
	[ -e /sys/class/infiniband/rxe0 ] || rxe rxe0 va
	for _d in va vb; do
		tc qdisc del dev $_d root 2>/dev/null || true
	done
} 2>&1

test_text() { area text; }
test_messages() { area messages; }
test_here() { area here; }
test_bulk() { area bulk; }
test_refused_bulk() { area refused_bulk; }
test_ranges() { area ranges; }
test_bounds() { area bounds; }

# coop_lab.ko keeps sends back while an offer ends.
test_revoked()
{
	[ -e $lab ] || insmod /lab/files/coop_lab.ko device=rxe0
	limit=600 ROUNDS=$(few 24) area revoked
}

test_states() { area states; }
test_setup() { area setup; }
test_buffers() { area buffers; }
test_memlock() { area memlock; }
# As many machines as by default, as the parameter says, and as the queue pairs allow: 4 each.
test_quota()
{
	area quota
	echo 3 >$parameters/net_machines
	MACHINES=3 area quota
	echo 32 >$parameters/net_machines
	echo 23 >$parameters/net_queue_pairs
	MACHINES=5 area quota
	echo 1024 >$parameters/net_queue_pairs
}

test_rights() { area rights; }

test_rdma_charged()
{
	mkdir -p /tmp/groups
	mount -t cgroup2 groups /tmp/groups || skip "the kernel has no control groups"
	echo +rdma >/tmp/groups/cgroup.subtree_control || skip "the kernel has no rdma groups"
	mkdir /tmp/groups/net
	GROUP=/tmp/groups/net area rdma_charged
	rmdir /tmp/groups/net
	umount /tmp/groups
}

test_charged()
{
	mkdir -p /tmp/groups
	mount -t cgroup2 groups /tmp/groups || skip "the kernel has no control groups"
	echo +memory >/tmp/groups/cgroup.subtree_control || skip "the kernel has no memory groups"
	mkdir /tmp/groups/net
	GROUP=/tmp/groups/net area charged
	rmdir /tmp/groups/net
	umount /tmp/groups
}
test_peers() { area peers; }
test_strangers() { area strangers; }
test_late_admission() { area late_admission; }
test_operations() { area operations; }

test_indices() { area indices; }
test_nothing_lost() { ROUNDS=$(few 20000) area nothing_lost; }
test_nothing_lost_long() { limit=600 ROUNDS=$(few 100000) area nothing_lost; }
test_overtaken() { area overtaken; }
test_waits() { area waits; }
test_polls() { area polls; }
test_awake() { area awake; }
test_mapping() { area mapping; }

test_close() { area close; }
test_fork() { area fork; }
test_exec() { area exec; }
test_killed() { area killed; }
test_many() { area many; }
test_nobody() { area nobody; }

# The wire loses, duplicates and delays what both directions carry.
test_bad_wire()
{
	for _d in va vb; do
		tc qdisc add dev $_d root netem limit 100000 delay 2ms 2ms loss 1% duplicate 1%
	done
	area bulk
	area messages
	for _d in va vb; do
		tc qdisc del dev $_d root
	done
}

# interactive NAME AREA: a job; &6 is its input
interactive()
{
	rm -f "/tmp/$1.in" "/tmp/$1.out"
	mkfifo "/tmp/$1.in"
	exec 6<>"/tmp/$1.in"
	PATIENCE=$patience job "$1" sh -c "exec coop-netdev $2 </tmp/$1.in >/tmp/$1.out"
	until_true 60 "$1 is ready" grep -q ready "/tmp/$1.out"
}

test_removal()
{
	interactive remover removal
	timeout $((60 * patience)) /usr/bin/rdma link delete rxe0 || die "rxe0 is still held"
	until_true 60 "the process knows" grep -q gone /tmp/remover.out
	rxe rxe0 va
	echo >&6
	job_ends 60 remover
	until_true 20 "no machine is left" no_machine
}

test_unload()
{
	interactive holder hold
	grep -q "^pid $(cat /tmp/holder.job) " /proc/fs/coopfs/net || die "the holder is not listed"
	_said=$(unshare -p -f --mount-proc cat /proc/fs/coopfs/net | cut -d ' ' -f 1-2 | sort -u)
	[ "$_said" = "pid 0" ] || die "another PID namespace sees $_said"
	rmmod coopfs && die "the module went under its user"
	grep -q '^coopfs ' /proc/modules || die "the module is not there"
	[ -c /dev/coop-net ] || die "the device is not there"
	kill -9 "$(cat /tmp/holder.job)"
	job_ends 30 holder 137
	until_true 20 "no machine is left" no_machine
	nothing_left
	area text
}

test_fuzz() { ROUNDS=$(few 16) area fuzz; }
test_fuzz_long()
{
	limit=600 SEED=1000 ROUNDS=$(few 400) area fuzz
	nothing_left
}

# One in a hundred allocations in interrupts and of workers fails.
test_fuzz_scarce()
{
	failing slab
	in_interrupts 1
	limit=600 SCARCE=1 SEED=5000 ROUNDS=$(few 160) area fuzz
	in_interrupts 0
	area text
	nothing_left
}

test_scarce()
{
	for kind in slab page; do
		failing $kind
		area scarce
	done
	nothing_left
}
