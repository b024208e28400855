# SPDX-License-Identifier: MIT
# coopfs.ko on devices that break their promises, and beside drivers that pin its pages: two
# mounts a and b in one machine, a wire between their Soft-RoCE devices, and coop_lab.ko
# (tests/vm/module) between b and its device.
#
#: programs coopfsd coopfs coop-pattern coop-pin coop-netdev ip tc rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth sch_netem
#: files $KO/coopfs.ko $KO/vm/coop_lab.ko
#: memory 1536
#: deadline 800
#: long pinned end_meets_removal end_does_not_wait serving_change_waits control_change_waits

server=127.0.0.1
lab=/sys/module/coop_lab/parameters

setup()
{
	wired
	insmod /lab/files/coop_lab.ko device=rxe1
	stored $server
}

after_failure()
{
	cat /tmp/said
	for _p in lose_sends lose_flushes fail_sends keep_qps refuse_sends max_ah hold_changes; do
		echo 0 >$lab/$_p
	done
	tc qdisc del dev va root
	[ -e /sys/class/infiniband/rxe1 ] || rxe rxe1 vb
	ip link set vb up
	own_routes vb 10.77.0.2
	echo >&6
	exec 6>&-
	tell
	clear_up
} 2>&1

peer_pages() { of "$1" source peer pages; }

# all_come NODE NAME: all 64 pages of the file come from the other node
all_come()
{
	_before=$(peer_pages "$1")
	right "$1" "$2" 1 262144 -d
	[ $(($(peer_pages "$1") - _before)) = 64 ]
}

served() { all_come "$@" || die "$(($(peer_pages "$1") - _before)) pages came from the peer"; }

number() { [ "$(cat $lab/$1)" -ge "$2" ]; }

another_number() { [ "$(head -n 1 "$(proc b)/ibaddr")" != "$1" ] && grep -q ^gid= "$(proc b)/ibaddr"; }

# The device does not complete the send of a control message. If nothing else is sent, the queue
# pair ends at its deadline, and another one replaces it and takes all its buffers.
test_lost_completion()
{
	up
	new lost 1 262144
	right a lost 1 262144
	served b lost
	address=$(head -n 1 "$(proc b)/ibaddr")
	errors=$(of b endpoint send_errors)
	lost=$(cat $lab/lost)
	echo 1 >$lab/lose_sends
	right b lost 1 262144 -d
	until_true 20 "a completion is lost" number lost $((lost + 1))
	until_true 60 "the queue pair is replaced" another_number "$address"
	[ "$(of b endpoint send_errors)" -gt "$errors" ] || die "no send counts as failed"
	acquainted
	served b lost
	down a b
}

# The device takes a chain of sends of a machine of /dev/coop-net but for the last one, the only one
# that would be signalled: the queue pair is flushed, and every message still arrives.
test_chain_cut()
{
	refused=$(cat $lab/refused)
	echo 10 >$lab/refuse_sends
	timeout $((250 * patience)) env PATIENCE=$patience coop-netdev messages rxe1 rxe0 2>/tmp/said ||
		die "$(tail -n 12 /tmp/said | tr '\n' ';')"
	number refused $((refused + 10)) || die "$(cat $lab/refused) chains were cut"
	until_true 20 "no machine is left" no_machine
}

# The device of a node that serves takes a part of a batch and does not destroy the queue pair: the pages
# are its own until it does. The reader gets them all the same, and later the node serves again.
test_batch_cut()
{
	up
	new cut 1 262144
	right b cut 1 262144
	refused=$(cat $lab/refused)
	kept=$(cat $lab/kept)
	echo 1000000 >$lab/keep_qps
	echo 1 >$lab/refuse_sends
	right a cut 1 262144 -d
	number refused $((refused + 1)) || die "no batch was cut"
	until_true 60 "the module asks the device again" number kept $((kept + 2))
	echo 0 >$lab/keep_qps
	until_true 60 "b serves again" all_come a cut
	down a b
}

# reads NAME NODE FILE: as right, by a job that must end
reads()
{
	job "$1" coop-pattern -d check "/mnt/$2/$3" 1 1 262144 1
	job_ends 60 "$1"
}

# A queue pair that b serves from has failed, and the device takes its time to change the new one:
# b's readers do not wait for that, nor do others that b serves, but the end of the mount does.
test_serving_change_waits()
{
	up ,ib_num_rrpc=2
	new slow 1 262144
	new other 1 262144
	right b slow 1 262144
	right a other 1 262144
	before=$(peer_pages b)
	refused=$(cat $lab/refused)
	echo 1 >$lab/hold_changes
	echo 1 >$lab/refuse_sends
	right a slow 1 262144 -d
	number refused $((refused + 1)) || die "no batch was cut"
	until_true 60 "a queue pair is being changed" changing_for a slow
	reads reader b other
	[ $(($(peer_pages b) - before)) = 64 ] || die "$(($(peer_pages b) - before)) pages came from the peer"
	until_true 60 "b serves with its other queue pairs" all_come a slow
	number changing 1 || die "the queue pair was changed"
	job unmount umount /mnt/b
	until_true 20 "the mount waits for the change" waits unmount coop_node_detach
	running unmount || die "the mount has ended, and its queue pair is being changed"
	echo 0 >$lab/hold_changes
	job_ends 60 unmount
	down a
}

# changing_for NODE FILE: the node has asked for the file once more, and a queue pair is being changed
changing_for()
{
	right "$1" "$2" 1 262144 -d
	number changing 1
}

# The device keeps more than half of a node's queue pairs to serve from, each with a batch of sends:
# what they have takes no room from the one that is left.
test_serving_kept()
{
	up ,ib_num_rrpc=4
	new kept 1 262144
	right b kept 1 262144
	refused=$(cat $lab/refused)
	kept=$(cat $lab/kept)
	echo 1000000 >$lab/keep_qps
	echo 3 >$lab/refuse_sends
	until_true 60 "three batches are cut" cut_for a kept $((refused + 3))
	until_true 60 "b serves with the queue pair that is left" all_come a kept
	number keep_qps 1 || die "the device keeps none any more"
	number kept $((kept + 3)) || die "the device was asked for $(($(cat $lab/kept) - kept)) of them"
	echo 0 >$lab/keep_qps
	until_true 60 "b serves again" all_come a kept
	down a b
}

# cut_for NODE FILE NUMBER: the node has asked for the file once more, and so many batches were cut
cut_for()
{
	right "$1" "$2" 1 262144 -d
	number refused "$3"
}

# The control queue pair has failed, and the device takes its time: it sends nothing meanwhile, so
# readers get their pages from storage. The port goes down and up during the change, which is noticed.
test_control_change_waits()
{
	up
	new word 1 262144
	new other 1 262144
	new later 1 262144
	right a word 1 262144
	right a other 1 262144
	failed=$(cat $lab/failed)
	echo 1 >$lab/hold_changes
	echo 1 >$lab/fail_sends
	reads first b word
	until_true 20 "a send fails" number failed $((failed + 1))
	until_true 20 "a queue pair is being changed" number changing 1
	reads reader b other
	number changing 1 || die "the queue pair was changed"
	ip link set vb down
	until_true 20 "b sees its port down" port_is b down
	until_true 60 "a forgets b" knows a 0
	until_true 60 "b forgets a" knows b 0
	ip link set vb up
	own_routes vb 10.77.0.2
	until_true 20 "b sees its port up" port_is b up
	number changing 1 || die "the queue pair was changed"
	echo 0 >$lab/hold_changes
	acquainted
	right a later 1 262144
	until_true 60 "b asks its peer again" all_come b later
	down a b
}

# The device of a node that serves has fewer address handles than there are flows to the reader: the node
# asks for no more than it has, and data take the flows that there are.
test_few_address_handles()
{
	ah_refused=$(cat $lab/ah_refused)
	for most in 1 3; do
		echo $most >$lab/max_ah
		up
		new few$most 1 262144
		right b few$most 1 262144
		for _i in 1 2 3; do served a few$most; done
		down a b
		[ "$(cat $lab/ah_refused)" = "$ah_refused" ] || die "of $most handles, one too many was asked for"
	done
	echo 0 >$lab/max_ah
}

no_machine() { ! grep ^pid /proc/fs/coopfs/net; }

# The device completes no flushed receive and does not destroy the queue pair: until it does, it may
# write to the pages, so their reader waits. Then the reader gets the right bytes.
test_queue_pair_stays()
{
	up
	new stays 1 262144
	right a stays 1 262144
	served b stays
	kept=$(cat $lab/kept)
	tc qdisc replace dev va root netem limit 100000 loss 100%
	echo 1000000 >$lab/keep_qps
	echo 1000000 >$lab/lose_flushes
	job reader coop-pattern -d check /mnt/b/stays 1 1 262144 1
	# Twice, because the module tries again.
	until_true 60 "the module asks the device to destroy the queue pair" number kept $((kept + 2))
	running reader || die "the reader got pages that the device may still write to"
	echo 0 >$lab/lose_flushes
	echo 0 >$lab/keep_qps
	job_ends 60 reader
	tc qdisc del dev va root
	until_true 60 "b trusts its peer again" trusted
	served b stays
	down a b
}

trusted()
{
	! grep -q "^peer.*state=healthy" "$(proc b)/peers" || return 0
	right b stays 1 262144 -d
	return 1
}

# At umount too the device refuses for some seconds to destroy queue pairs. The mount's memory stays
# the device's until then, so umount waits.
test_unmount_waits()
{
	before=$(queue_pairs)
	up
	down a
	kept=$(cat $lab/kept)
	echo 1000000 >$lab/keep_qps
	job unmount umount /mnt/b
	until_true 60 "the module asks the device again and again" number kept $((kept + 2000))
	running unmount || die "the mount has ended, and the device may write to its memory"
	echo 0 >$lab/keep_qps
	job_ends 60 unmount
	[ "$(queue_pairs)" = "$before" ] || die "queue pairs are left: $(rdma resource show)"
}

# The removal of a device waits too, and other mounts come and go meanwhile.
test_removal_waits()
{
	rmmod coopfs
	insmod /lab/files/coopfs.ko # behind coop_lab, so its part of a removal comes first
	up
	kept=$(cat $lab/kept)
	echo 1000000 >$lab/keep_qps
	job remover /usr/bin/rdma link delete rxe1
	until_true 60 "the module asks the device again and again" number kept $((kept + 2000))
	job unmount umount /mnt/a
	job_ends 60 unmount
	running remover || die "the device has gone, and may write to memory"
	echo 0 >$lab/keep_qps
	job_ends 60 remover
	down b
	rxe rxe1 vb
}

# A node serves no page that a driver has pinned: its device may write to it at any time.
test_pinned()
{
	up
	new pinned 1 262144
	right a pinned 1 262144
	served b pinned
	rm -f /tmp/lines
	mkfifo /tmp/lines
	exec 6<>/tmp/lines
	job pinner sh -c 'exec coop-pin /mnt/a/pinned/1 16 </tmp/lines'
	until_true 20 "the pages are pinned" grep -q ^pinned /tmp/pinner.said
	before=$(peer_pages b)
	right b pinned 1 262144 -d
	[ $(($(peer_pages b) - before)) = 48 ] || die "$(($(peer_pages b) - before)) of 48 pages came from the peer"
	echo >&6
	job_ends 20 pinner
	exec 6>&-
	served b pinned
	down a b
}

# stuck: a process fetches by /dev/coop-net, and the device completes nothing and destroys no queue pair
stuck()
{
	rm -f /tmp/lines
	mkfifo /tmp/lines
	exec 6<>/tmp/lines
	PATIENCE=$patience job user sh -c 'exec coop-netdev unmapped </tmp/lines >/tmp/user.out'
	until_true 60 "the process is ready" grep -q ready /tmp/user.out
	kept=$(cat $lab/kept)
	tc qdisc replace dev va root netem limit 100000 loss 100%
	echo 1000000 >$lab/keep_qps
	echo 1000000 >$lab/lose_flushes
	echo >&6
	until_true 60 "the fetch does not end" number kept $((kept + 1))
}

works_again()
{
	echo 0 >$lab/keep_qps
	echo 0 >$lab/lose_flushes
	tc qdisc del dev va root
	exec 6>&-
}

# machine_keeps_pages: one that is over has pages still
machine_keeps_pages() { grep -q '^pid .* over pinned [1-9]' /proc/fs/coopfs/net; }

# pages that anyone has pinned
pins() { awk '/^nr_foll_pin_acquired/ { n += $2 } /^nr_foll_pin_released/ { n -= $2 } END { print n + 0 }' /proc/vmstat; }

as_many_pins() { [ "$(pins)" = "$1" ]; }

# Neither munmap() nor a killed process waits for the device; close() does, until its process is
# killed. The pages stay pinned all the while, until the queue pairs are destroyed, and until then the
# module stays.
test_end_does_not_wait()
{
	before=$(pins)
	pairs=$(queue_pairs)
	for when in running unmapped closing; do
		stuck
		if [ $when != running ]; then
			echo >&6
			until_true 60 "the rings are unmapped" grep -q unmapped /tmp/user.out
		fi
		if [ $when = closing ]; then
			echo >&6
			until_true 60 "close() waits" waits user net_flush
			running user || die "close() returned, and the device may write to the pages"
		fi
		kill -9 "$(cat /tmp/user.job)"
		job_ends 60 user 137
		until_true 60 "a worker asks the device" number kept $((kept + 100))
		machine_keeps_pages || die "$when: $(cat /proc/fs/coopfs/net)"
		[ "$(pins)" -gt "$before" ] || die "$when: the pages are unpinned, and the device may write to them"
		if [ $when = closing ]; then
			job unloader rmmod coopfs
			until_true 60 "the module waits" waits unloader coop_net_exit
			machine_keeps_pages || die "the module does not show what it waits for"
		fi
		works_again
		until_true 60 "the queue pairs are destroyed" as_many_pairs "$pairs"
		until_true 60 "the pages are unpinned" as_many_pins "$before"
	done
	job_ends 60 unloader
	insmod /lab/files/coopfs.ko
}

as_many_pairs() { [ "$(queue_pairs)" = "$1" ]; }

# Rings are unmapped while the removal of their device waits for a fetch, of which the device completes
# nothing: close() returns, and the pages are given back, when the queue pairs are destroyed.
test_end_meets_removal()
{
	rmmod coopfs
	insmod /lab/files/coopfs.ko # behind coop_lab, so its part of a removal comes first
	stuck
	job remover /usr/bin/rdma link delete rxe1
	until_true 60 "the removal waits for the fetch" waits remover coop_node_detach
	echo >&6
	until_true 60 "the rings are unmapped" grep -q unmapped /tmp/user.out
	kept=$(cat $lab/kept)
	echo 10 >$lab/keep_qps
	echo >&6
	until_true 60 "the file is closed" grep -q closed /tmp/user.out
	number kept $((kept + 10)) || die "the pages are unpinned, and the device may write to them"
	job_ends 60 remover
	echo >&6
	job_ends 60 user
	works_again
	rxe rxe1 vb
}

test_unload()
{
	rmmod coopfs
	[ ! -e /proc/fs/coopfs ] || die "/proc/fs/coopfs is still there"
	insmod /lab/files/coopfs.ko
}
