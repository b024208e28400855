# SPDX-License-Identifier: MIT
# coopfs.ko when things go wrong: two mounts a and b in one machine, their Soft-RoCE
# devices joined by a wire that loses, duplicates, delays and reorders; peers that vanish
# in the middle of a read; a daemon that is killed and restarted; readers that are killed;
# little memory; allocations that fail. Nodes reach storage over the loopback device, so
# that the wire's faults affect the fabric only.
#
# Every 8 bytes of a file name the file, the version and the offset (coop-pattern), so a
# wrong page shows where it came from.
#
#: programs coopfsd coopfs coop-pattern coop-fail-nth ip tc rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth sch_netem
#: files $KO/coopfs.ko
#: memory 1536
#: deadline 900
#: short worst_line
#: long daemon_returns peer_dies

server=127.0.0.1

setup()
{
	wired
	stored $server
}

after_failure()
{
	[ ! -e /sys/kernel/debug/failslab ] || in_interrupts 0
	tell
	perfect
	ip link set va up
	own_routes va 10.77.0.1
	neighbours_known
	clear_up
	grep -q '^coopfs ' /proc/modules || insmod /lab/files/coopfs.ko
} 2>&1

# netem ARGUMENTS: in both directions
netem()
{
	for _d in va vb; do
		tc qdisc replace dev $_d root netem limit 100000 "$@"
	done
}

perfect()
{
	for _d in va vb; do
		tc qdisc del dev $_d root 2>/dev/null || true
	done
}

peer_pages() { of "$1" source peer pages; }

# came NODE BEFORE LEAST: at least LEAST pages came from the peer since its counter was BEFORE
came()
{
	_got=$(($(peer_pages "$1") - $2))
	[ "$_got" -ge "$3" ] || { cat "$(proc $1)/stats" "$(proc $1)/peers"; false; } ||
		die "node $1 got $_got pages from its peer, not $3"
}

# trusted NODE FILES: its peer is healthy; if not, reads a file, because only a fetch restores health
trusted()
{
	! grep -q "^peer.*state=healthy" "$(proc "$1")/peers" || return 0
	right "$1" "$2" 1 786427 -d
	return 1
}

# picks NAME PICKS: two readers on b and one on a, which serve each other, pick PICKS ranges in
# all over the wire that netem set up: no page is wrong, and no read fails. Then b reads whole
# files, and over a good wire its peer still serves them all.
picks()
{
	new "$1.a" 4 786427
	new "$1.b" 2 786427
	right a "$1.a" 4 786427
	right b "$1.b" 2 786427
	before=$(peer_pages b)
	before_a=$(peer_pages a)
	job pick1 coop-pattern -s 11 -r $(($2 / 3)) pick "/mnt/b/$1.a" 1 2 786427 1
	job pick2 coop-pattern -s 22 -r $(($2 / 3)) pick "/mnt/b/$1.a" 3 4 786427 1
	job pick3 coop-pattern -s 33 -r $(($2 - $2 / 3 * 2)) pick "/mnt/a/$1.b" 1 2 786427 1
	for _j in 1 2 3; do
		job_ends 200 pick$_j
	done
	cat "$(proc b)/stats"
	came b "$before" $(($2 * 2))
	came a "$before_a" "$2"
	right b "$1.a" 1 786427 -d
	perfect
	# A peer that the bad wire made suspect is healthy again after the first success.
	until_true 30 "b trusts its peer again" trusted b "$1.a"
	before=$(peer_pages b)
	right b "$1.a" 4 786427 -d
	came b "$before" 740
}

test_loss()
{
	up
	netem loss 1%
	picks loss "$(few 2000)"
	[ "$(of a serve copied_bytes)" -gt 0 ] || die "a served nothing from copies"
	down a b
}

# Of several engines: a QUERY and a later attempt reach the one that has the record.
test_engines_loss()
{
	up ,ib_engines=4
	netem loss 1%
	picks enginesloss "$(few 2000)"
	down a b
}

test_duplicate()
{
	up
	netem duplicate 2%
	picks duplicate "$(few 2000)"
	down a b
}

# All datagrams are late by the same time: none overtakes another.
test_delay()
{
	up
	netem delay 4ms
	picks delay "$(few 2000)"
	down a b
}

# Delays differ: datagrams of one fetch, and of several, overtake each other.
test_reorder()
{
	up
	netem delay 1ms 1ms
	picks reorder "$(few 2000)"
	down a b
}

test_worst_line()
{
	up
	netem delay 6ms 6ms loss 1% duplicate 1%
	picks worst 60
	down a b
}

# One queue pair serves all: only the generation tells a late datagram of the last fetch from
# those of this one.
test_worst_line_long()
{
	up ,ib_num_rrpc=1,ib_num_srpc=2
	netem delay 6ms 6ms loss 1% duplicate 1%
	picks worst_long "$(few 1000)"
	down a b
}

test_worst_line_copied()
{
	up ,ib_copy,page_crc=1
	netem delay 6ms 6ms loss 1% duplicate 1%
	picks copied "$(few 500)"
	[ "$(of b read copied_bytes)" -gt 0 ] || die "nothing was copied"
	down a b
}

# Readers and a writer wait for the daemon, then go on.
test_daemon_returns()
{
	up
	new back 8 262144
	mkdir -p /srv/back.w
	coop-pattern write /srv/back.w 1 4 65536 0
	rm -f /tmp/state
	job reader coop-pattern -d -r "$(few 10)" check /mnt/a/back 1 8 262144 1
	job writer coop-pattern -r "$(few 40)" rewrite /mnt/a/back.w 1 4 65536 /tmp/state
	job watcher coop-pattern watch /mnt/b/back.w 1 4 65536 /tmp/state
	for i in 1 2 3; do
		running writer || break
		before=$(of a traffic storage rx_bytes)
		away
		running writer || break
		serve $server /srv
		until_true 60 "storage is read again" more_than "$before" a traffic storage rx_bytes
	done
	job_ends 120 reader
	job_ends 120 writer
	job_ends 120 watcher
	down a b
}

# a's mount or its wire vanishes during b's reads.
test_peer_dies()
{
	new dies 4 2097152
	for way in unmount unplug; do
		up
		right a dies 4 2097152
		before=$(peer_pages b)
		job reader coop-pattern -d -r 3 check /mnt/b/dies 1 4 2097152 1
		until_true 30 "b reads from a" more_than $((before + 64)) b source peer pages
		case $way in
		unmount) umount /mnt/a ;;
		unplug) ip link set va down ;;
		esac
		job_ends 120 reader
		cat "$(proc b)/peers"
		if [ $way = unplug ]; then
			ip link set va up
			own_routes va 10.77.0.1
			acquainted
			right b dies 4 2097152 -d
			down a
		fi
		down b
	done
}

# b sends a REQUEST and a QUERY before a has resolved b's link address. a answers the first, and b
# sends no other REQUEST, although completions of this device report no service level. A round in
# which a gave up resolving, after a second, proves nothing. b's QUERY comes after a quarter of its
# peer_timeout_ms, and another REQUEST after half of it: later than that second, also if the machine
# is slow.
test_neighbour_found_late()
{
	new late 6 16384
	for round in 1 2 3 4 5 6; do
		kmount a $server "$(options a),ib_sl=3"
		kmount b $server "ib,ib_devname=rxe1,peer_timeout_ms=2400,ib_sl=3"
		acquainted
		right a late 6 16384
		ip neigh replace 10.77.0.1 lladdr "$(cat /sys/class/net/va/address)" dev vb nud permanent
		ip neigh del 10.77.0.2 dev va || true
		echo 8 >/proc/sys/net/ipv4/conf/vb/arp_ignore
		job reader cat /mnt/b/late/$round
		until_true 30 "a has both datagrams, or gives up" both_wait
		ip neigh replace 10.77.0.2 lladdr "$(cat /sys/class/net/vb/address)" dev va nud permanent
		job_ends 60 reader
		cat "$(proc b)/stats"
		late=$(of a endpoint ah_failed) again=$(of b fetch retries) got=$(peer_pages b)
		neighbours_known
		down a b
		if [ "$late" = 0 ]; then
			[ "$again $got" = "0 4" ] || die "b asked again $again times and got $got pages"
			return 0
		fi
	done
	skip "this machine is too slow"
}

neighbours_known()
{
	echo 1 >/proc/sys/net/ipv4/conf/vb/arp_ignore
	ip neigh flush dev va nud permanent
	ip neigh flush dev vb nud permanent
}

both_wait()
{
	[ "$(of a endpoint ah_failed)" != 0 ] ||
		{ more_than 0 b fetch queries && more_than 1 a endpoint ah_waited; }
}

# After a close on one node an open on the other sees the new contents, and no page mixes two
# versions.
test_versions()
{
	up
	mkdir -p /srv/versions
	coop-pattern write /srv/versions 1 6 40000 0
	rm -f /tmp/state
	job writer coop-pattern -r "$(few 25)" rewrite /mnt/a/versions 1 6 40000 /tmp/state
	job watcher coop-pattern watch /mnt/b/versions 1 6 40000 /tmp/state
	job_ends 180 writer
	job_ends 60 watcher
	version=100
	last=$((version + $(few 20)))
	while [ $version -lt $last ]; do
		case $((version % 2)) in
		0) here=a there=b ;;
		1) here=b there=a ;;
		esac
		coop-pattern write /mnt/$here/versions 1 3 40000 $version
		coop-pattern check /mnt/$there/versions 1 3 40000 $version 2>/tmp/said ||
			die "$there does not see version $version: $(cat /tmp/said)"
		version=$((version + 1))
	done
	coop-pattern check /srv/versions 1 3 40000 $((last - 1))
	down a b
}

introduced()
{
	head -n 1 "$(proc "$1")/ibaddr" >"$(proc "$2")/ibaddr"
	until_true 20 "$2 knows $1 by hand" grep -q origin=hand "$(proc "$2")/peers"
}

# A node asks a peer introduced by hand for every file, also for one that changed at storage after
# the peer read it: no reader gets pages of the earlier version.
test_stale_peers()
{
	up
	introduced a b
	introduced b a
	mkdir -p /srv/stale
	for version in 1 2 3 4 5 6; do
		coop-pattern write /srv/stale 1 2 262144 $version
		for n in a b; do
			[ $((version % 2)) = 0 ] || n=$(echo $n | tr ab ba)
			coop-pattern check /mnt/$n/stale 1 2 262144 $version 2>/tmp/said ||
				die "node $n, version $version: $(cat /tmp/said)"
		done
	done
	[ "$(of a serve misses)" -gt 0 ] && [ "$(of b serve misses)" -gt 0 ] || die "a node was not asked"
	down a b
}

test_mapped()
{
	up
	mkdir -p /srv/mapped
	coop-pattern write /srv/mapped 1 4 300000 0
	for version in 1 2 3 4 5 6; do
		coop-pattern -m mmap write /mnt/a/mapped 1 4 300000 $version
		coop-pattern -m mmap check /mnt/b/mapped 1 4 300000 $version 2>/tmp/said ||
			die "b: $(cat /tmp/said)"
		coop-pattern check /srv/mapped 1 4 300000 $version 2>/tmp/said ||
			die "storage: $(cat /tmp/said)"
	done
	coop-pattern -m direct write /mnt/b/mapped 1 4 299008 7
	coop-pattern -m direct check /mnt/a/mapped 1 4 299008 7 2>/tmp/said || die "a: $(cat /tmp/said)"
	coop-pattern check /mnt/a/mapped 1 4 299008 7 2>/tmp/said || die "a: $(cat /tmp/said)"
	down a b
}

# Readers die in the middle of reads; umount succeeds at once.
test_killed_readers()
{
	new killed 6 1048576
	for i in $(seq "$(few 3)"); do
		up
		right a killed 6 1048576
		before=$(peer_pages b)
		for j in 1 2 3; do
			job "reader$j" coop-pattern -d -r 10000 check /mnt/b/killed $j $((j + 3)) 1048576 1
		done
		until_true 30 "b reads from a" more_than $((before + 64 * i)) b source peer pages
		for j in 1 2 3; do
			kill -9 "$(cat "/tmp/reader$j.job")"
		done
		for j in 1 2 3; do
			job_ends 30 "reader$j" 137
		done
		down b a
	done
}

available() { awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo; }

# Files larger than the free memory: the kernel reclaims pages while they are read, served and
# written.
test_little_memory()
{
	up
	new memory 3 33554432
	mkdir -p /tmp/hog
	mount -t tmpfs -o size=100% hog /tmp/hog
	# A debug kernel needs more memory for the same work, and would kill the daemon.
	_left=64
	[ "$patience" = 1 ] || _left=192
	dd if=/dev/zero of=/tmp/hog/1 bs=1M count=$(($(available) - _left)) 2>/dev/null
	available
	job reader_a coop-pattern -r 2 check /mnt/a/memory 1 3 33554432 1
	job reader_b coop-pattern -r 2 check /mnt/b/memory 1 3 33554432 1
	job_ends 200 reader_a
	job_ends 200 reader_b
	rm /srv/memory/3
	job writer coop-pattern -f write /mnt/a/memory 1 2 33554432 2
	job_ends 200 writer
	coop-pattern check /srv/memory 1 2 33554432 2 2>/tmp/said || die "storage: $(cat /tmp/said)"
	coop-pattern check /mnt/b/memory 1 2 33554432 2 2>/tmp/said || die "b: $(cat /tmp/said)"
	umount /tmp/hog
	rm -r /srv/memory
	down a b
}

# Pages in the per-CPU lists, thousands at times, are free too.
free_pages()
{
	awk '/^MemFree/ { n += $2 / 4 } $1 == "count:" { n += $2 } END { print int(n) }' \
		/proc/meminfo /proc/zoneinfo
}

# Pages read from a peer, served to one, and written are all free again afterwards.
test_memory_comes_back()
{
	new memory.back 8 4194304
	# A first round, after which the daemon and the slabs have what they keep.
	up
	right a memory.back 8 4194304
	right b memory.back 8 4194304
	down a b
	echo 3 >/proc/sys/vm/drop_caches
	before=$(free_pages)
	up
	right a memory.back 8 4194304
	right b memory.back 8 4194304
	coop-pattern write /mnt/b/memory.back 1 4 4194304 2
	coop-pattern check /mnt/a/memory.back 1 4 4194304 2
	down a b
	until_true 20 "all but a few of 8192 pages are free again" lost_less_than 1500
	echo "$before pages were free, $(free_pages) are"
	rm -r /srv/memory.back
}

lost_less_than() { echo 3 >/proc/sys/vm/drop_caches && [ $((before - $(free_pages))) -lt "$1" ]; }

# Pages of files, and pages of removed files that still have references.
file_pages() { awk '/^(Active|Inactive)\(file\):/ { n += $2 } END { print n / 4 }' /proc/meminfo; }

no_file_pages_but()
{
	echo 3 >/proc/sys/vm/drop_caches
	[ "$(file_pages)" -le "$1" ]
}

# A page to which its node keeps a reference after serving it would outlive its file. b asks for all
# pages again and again, over a good wire and over one that makes it ask for lost ones once more.
test_served_pages_are_given_back()
{
	new given 1 16777216
	echo 3 >/proc/sys/vm/drop_caches
	before=$(file_pages)
	up
	right a given 1 16777216
	right b given 1 16777216 -d -r "$(few 4)"
	netem loss 1%
	right b given 1 16777216 -d -r "$(few 4)"
	perfect
	serves=$(of a serve serves)
	[ "$serves" -ge $(($(few 4) * 2 * 64)) ] || die "a served only $serves times"
	down a b
	until_true 20 "pages are freed with their files" no_file_pages_but $((before + serves / 8))
	rm -r /srv/given
}

# has_open NAME FILE: the job has the file open
has_open() { ls -l "/proc/$(cat "/tmp/$1.job")/fd" | grep -q "$2\$"; }

serving() { grep -q '^serve.*state=\(send\|drain\)' "$(proc "$1")/requests"; }

# A program on the serving node overwrites pages while they are in flight, on a wire that stands
# nearly still until then, for b's peer_timeout_ms at most. No writeback happens meanwhile: the reader
# gets the bytes that storage has.
test_changed_while_served()
{
	kmount a $server ib,ib_devname=rxe0,peer_timeout_ms=10000
	kmount b $server ib,ib_devname=rxe1,peer_timeout_ms=10000,ib_mtu=1024,readahead=64
	acquainted
	echo 360000 >/proc/sys/vm/dirty_writeback_centisecs
	rm -f /tmp/lines
	mkfifo /tmp/lines
	exec 6<>/tmp/lines
	for how in read mmap; do
		new "under.$how" 1 262144
		right a "under.$how" 1 262144
		before=$(of a serve changed)
		job writer sh -c "exec coop-pattern -m $how hold /mnt/a/under.$how 1 1 262144 2 </tmp/lines"
		until_true 20 "the writer has opened the file" has_open writer "/mnt/a/under.$how/1"
		# Rate-limit like a slow port: a mere delay would let the sends complete.
		tc qdisc replace dev va root netem limit 100000 slot 200ms packets 1
		job reader coop-pattern check /mnt/b/under.$how 1 1 262144 1
		until_true 20 "a serves" serving a
		echo >&6
		until_true 20 "the pages are written over" grep -q '^written' /tmp/writer.said
		serving a || die "a has already served all pages"
		tc qdisc change dev va root netem limit 100000 slot 20ms packets 16
		job_ends 60 reader
		perfect
		coop-pattern check "/srv/under.$how" 1 1 262144 1 || die "the new bytes are stored already"
		[ "$(of a serve changed)" -gt "$before" ] || die "no page changed while it was served"
		echo >&6
		job_ends 20 writer
		coop-pattern check "/mnt/b/under.$how" 1 1 262144 2 || die "the new version is not seen"
	done
	exec 6>&-
	echo 500 >/proc/sys/vm/dirty_writeback_centisecs
	down a b
}

# After all of this: the module is in use while it is mounted, and leaves nothing behind.
test_unload()
{
	before=$(queue_pairs)
	up
	if rmmod coopfs; then die "the module was unloaded under a mount"; fi
	[ "$(queue_pairs)" -gt "$before" ] || die "no queue pairs are seen"
	down a b
	[ "$(queue_pairs)" = "$before" ] || die "queue pairs are left: $(rdma resource show)"
	rmmod coopfs
	[ ! -e /proc/fs/coopfs ] || die "/proc/fs/coopfs is still there"
	grep '^coop' /proc/slabinfo && die "there are caches left"
	insmod /lab/files/coopfs.ko
}

# ---- allocations that fail ----

fail_nth()
{
	coop-fail-nth "$@" 2>/tmp/said || die "$(tail -n 2 /tmp/said)"
	cat /tmp/said
}

few_slots=ib_num_srpc=2,ib_num_rrpc=2

# by_hand NODE: options for mount(2), which resolves no names
by_hand() { echo "key=/tmp/key,$(options "$1"),$few_slots"; }

# With -s coop-fail-nth fails the first twenty allocations, then ever sparser ones.
test_allocations_fail_in_load()
{
	rmmod coopfs
	for kind in slab page; do
		failing $kind
		fail_nth -s 5 load /lab/files/coopfs.ko
		fail_nth -s 5 unload /lab/files/coopfs.ko
	done
	insmod /lab/files/coopfs.ko
	nothing_left
}

test_allocations_fail_in_mount()
{
	for kind in slab page; do
		failing $kind
		fail_nth mount $server:/data /mnt/a key=/tmp/key
		fail_nth -s 4 mount $server:/data /mnt/a "$(by_hand a)"
	done
	nothing_left
}

test_allocations_fail_in_umount()
{
	for kind in slab page; do
		failing $kind
		fail_nth -s 4 umount $server:/data /mnt/a "$(by_hand a)"
	done
	nothing_left
}

recycled() { of "$1" endpoint qp_recycled; }

# The sending queue pairs, for control and for serves, keep dying on both nodes. No page is wrong and
# no read fails; each queue pair comes back, and after the last has, peers serve all as before.
test_queue_pairs_die()
{
	failing slab
	up
	new dying 4 786427
	right a dying 4 786427
	before_a=$(recycled a)
	before_b=$(recycled b)
	in_interrupts 1
	job reader coop-pattern -d -r 100000 check /mnt/b/dying 1 4 786427 1
	until_true 100 "queue pairs of the server came back" \
		more_than $((before_a + 10)) a endpoint qp_recycled
	until_true 100 "queue pairs of the reader came back" \
		more_than $((before_b + 2)) b endpoint qp_recycled
	in_interrupts 0
	kill "$(cat /tmp/reader.job)"
	job_ends 30 reader 143
	grep -v '^$' /tmp/reader.said && die "a read failed"
	right b dying 4 786427 -d
	until_true 60 "b trusts its peer again" trusted b dying
	before=$(peer_pages b)
	right b dying 4 786427 -d
	came b "$before" 740
	down a b
	nothing_left
}

# up_with FILE: mounts both nodes; a has all of "FILE/1" in its cache
up_with()
{
	up ",$few_slots"
	new "$1" 2 163840
	right a "$1" 1 163840
}

test_allocations_fail_in_read()
{
	up_with failread
	for kind in slab page; do
		failing $kind
		before=$(peer_pages b)
		fail_nth read /mnt/b/failread/1 /srv/failread/1
		came b "$before" 100
		fail_nth read /mnt/b/failread/2 /srv/failread/2
	done
	down a b
	nothing_left
}

# The workers' allocations fail on both nodes: a serves, b receives. No read fails.
test_allocations_fail_in_serve()
{
	up_with failserve
	for kind in slab page; do
		failing $kind
		before=$(peer_pages b)
		fail_nth -w read /mnt/b/failserve/1 /srv/failserve/1
		came b "$before" 40 # in the last run, if in no other
		fail_nth -w read /mnt/b/failserve/2 /srv/failserve/2
	done
	down a b
	nothing_left
}

test_allocations_fail_in_write()
{
	up_with failwrite
	for kind in slab page; do
		failing $kind
		fail_nth write /mnt/a/failwrite/1 /srv/failwrite/1
		fail_nth -w write /mnt/b/failwrite/1 /srv/failwrite/1
	done
	down a b
	nothing_left
}

# The number of removed files that the daemon has open. It keeps a file that was removed behind its
# back, as other tests do, until it needs the descriptor.
unnamed() { ls -l "/proc/$(cat /tmp/coopfsd.pid)/fd" | grep -c deleted || true; }

no_more_unnamed() { [ "$(unnamed)" -le "$1" ]; }

# A file that storage has created, but whose creation fails on the node, does not stay open.
test_allocations_fail_in_create()
{
	kmount a $server readahead=32
	before=$(unnamed)
	for kind in slab page; do
		failing $kind
		fail_nth create /mnt/a/failcreate
	done
	until_true 5 "the removed files are closed" no_more_unnamed "$before"
	down a
	nothing_left
}
