# SPDX-License-Identifier: MIT
# Many nodes read one file: four mounts of the module in one machine, each with a Soft-RoCE device
# on one switch, and one daemon. Storage sends each byte about once.
#
#: programs coopfsd coopfs coop-between coop-pattern ip tc rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth bridge sch_netem
#: files $KO/coopfs.ko
#: memory 1536
#: deadline 900
#: short in_step read_through

server=10.77.0.1
nodes="a b c d"

setup()
{
	insmod /lab/files/coopfs.ko
	switch va 10.77.0.1 vb 10.77.0.2 vc 10.77.0.3 vd 10.77.0.4
	for n in $nodes; do
		rxe "rxe$n" "v$n"
		mkdir -p "/mnt/$n"
	done
	mkdir -p /srv
	mount -t tmpfs srv /srv
	serve $server /srv
}

after_failure()
{
	exec 3<&- 4<&- 5<&- 6<&-
	for n in writer reader; do
		[ ! -e "/tmp/$n.job" ] || kill -9 "$(cat "/tmp/$n.job")"
	done
	[ ! -e /tmp/between.pid ] || between go
	tell
	for n in $nodes; do
		! mounted "/mnt/$n" || umount -l "/mnt/$n"
	done
}

# all_up [OPTIONS]: mounts all nodes and waits until each knows the others
all_up()
{
	for n in $nodes; do
		kmount "$n" $server \
			"ib,ib_devname=rxe$n,ib_num_srpc=32,ib_num_rrpc=32,wait_timeout_ms=9000,$(peer_time)${1:-}"
	done
	for n in $nodes; do
		until_true 30 "$n knows the others" knows "$n" 3
	done
}

# new_file NAME MIB: a file whose version storage can prove; with 4 letters it has exactly that size
new_file() { pattern "/srv/$1" "$2" "$1"; coop-pattern settle "/srv/$1"; }

# open_all FILE: every node opens it, as descriptor 3, 4, 5 or 6
open_all() { exec 3<"/mnt/a/$1" 4<"/mnt/b/$1" 5<"/mnt/c/$1" 6<"/mnt/d/$1"; }
close_all() { exec 3<&- 4<&- 5<&- 6<&-; }

# piece DESCRIPTOR NODE: reads the next 512 KiB of the open file
piece()
{
	dd bs=128k count=4 <&"$1" >>"/tmp/$2.read" 2>/dev/null
}

# pieces DESCRIPTOR NODE...: the next piece of each, at the same time
pieces()
{
	_jobs=
	while [ $# -gt 0 ]; do
		piece "$1" "$2" &
		_jobs="$_jobs $!"
		shift 2
	done
	wait $_jobs
}

# in_step PIECES: all nodes read piece after piece; each waits for the others before the next
in_step()
{
	rm -f /tmp/?.read
	_i=0
	while [ $_i -lt "$1" ]; do
		pieces 3 a 4 b 5 c 6 d
		_i=$((_i + 1))
	done
}

# sum_of KIND NAME [FIELD]: over all nodes
sum_of()
{
	_sum=0
	for _n in $nodes; do
		_sum=$((_sum + $(of "$_n" "$@")))
	done
	echo $_sum
}

# about_once FILE: all nodes together took at most 1.10 times the file from storage, and read it right
about_once()
{
	_size=$(stat -c %s "/srv/$1") _took=$(sum_of source storage bytes)
	say "note forest: storage sent $_took bytes of $_size; relayed $(sum_of read relayed_pages) pages, waits $(sum_of fetch waits)"
	for _n in $nodes; do
		cmp "/srv/$1" "/tmp/$_n.read" || die "node $_n read $1 wrongly"
	done
	[ $((_took * 100)) -le $((_size * 110)) ] || die "storage sent $_took bytes of $_size"
}

# tree_has NODE FILE MEMBERS
tree_has() { coopfs tree "/mnt/$1/$2" | grep ": $3 nodes have it open"; }

# roles NODE: files, leaf, and trees in which it is carrier and substitute
roles()
{
	echo "$(of "$1" forest files) $(of "$1" forest leaf) $(of "$1" forest carrier) $(of "$1" forest substitute)"
}
no_roles() { [ "$(roles "$1")" = "0 0 0 0" ]; }

test_in_step()
{
	new_file step 8
	all_up
	open_all step
	in_step 16
	close_all
	about_once step
	open_all step
	# The daemon learns of files opened under a lease within a second.
	until_true 30 "b's tree has four nodes" tree_has b step 4
	[ "$(roles b)" = "1 0 4 4" ] || die "b's roles are $(roles b)"
	close_all
	until_true 30 "b has no roles" no_roles b
	[ "$(sum_of fetch waits)" -gt 0 ] || die "no fetch waited for a parent"
	down $nodes
}

# One node reads what the others only have open: those load it for the reader.
test_read_through()
{
	new_file hand 4
	all_up
	open_all hand
	rm -f /tmp/?.read
	for i in 1 2 3 4 5 6 7 8; do
		piece 3 a
	done
	[ "$(sum_of read relayed_pages)" -gt 0 ] || die "nothing was loaded for a"
	[ "$(of a source peer bytes)" -gt 0 ] || die "a got nothing from its parents"
	for i in 1 2 3 4 5 6 7 8; do
		piece 4 b
		piece 5 c
		piece 6 d
	done
	close_all
	about_once hand
	down $nodes
}

# A node whose parents take no part reads from storage, and so does one that has no role.
test_tree_off()
{
	new_file none 2
	all_up ,tree=off
	open_all none
	in_step 4
	close_all
	for n in $nodes; do
		cmp /srv/none "/tmp/$n.read" || die "node $n read wrongly"
	done
	[ "$(sum_of read relayed_pages)" = 0 ] || die "pages were loaded for others"
	[ "$(sum_of fetch waits)" = 0 ] || die "a fetch waited"
	down $nodes
}

# Parents end while their children wait for them, and the device of one is removed.
test_parents_go()
{
	new_file gone 8
	all_up
	open_all gone
	in_step 4
	rdma link del rxeb
	exec 5<&-
	umount /mnt/c
	for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
		pieces 3 a 4 b 6 d
	done
	close_all
	for n in a b d; do
		cmp /srv/gone "/tmp/$n.read" || die "node $n read wrongly"
	done
	down a b d
	rxe rxeb vb
}

# netem NODE ARGUMENTS: towards that node; storage is reached over the loopback device
netem()
{
	_to=pv$1
	shift
	tc qdisc replace dev "$_to" root netem limit 100000 "$@"
}

# Parents in some colours, c and d, hear nothing. What they do not deliver to a comes from storage,
# which names a to b.
test_redirected()
{
	new_file away 4
	all_up
	exec 4</mnt/b/away
	exec 3</mnt/a/away
	exec 5</mnt/c/away 6</mnt/d/away
	until_true 30 "b's tree has four nodes" tree_has b away 4
	netem c loss 100%
	netem d loss 100%
	rm -f /tmp/?.read
	for i in 1 2 3 4 5 6 7 8; do
		piece 3 a
	done
	for i in 1 2 3 4 5 6 7 8; do
		piece 4 b
	done
	netem c loss 0%
	netem d loss 0%
	close_all
	for n in a b; do
		cmp /srv/away "/tmp/$n.read" || die "node $n read wrongly"
	done
	_took=$(sum_of source storage bytes)
	say "note forest: storage sent $_took bytes, named nodes for $(of b read redirected_pages) pages"
	[ "$(of b read redirected_pages)" -gt 0 ] || die "storage named no nodes"
	[ $((_took * 100)) -le $((4 * 1048576 * 110)) ] || die "storage sent $_took bytes"
	down $nodes
}

# pages_up NAME BYTES: all nodes, and a file of coop-pattern
pages_up()
{
	mkdir "/srv/$1"
	coop-pattern write "/srv/$1" 0 0 "$2" 1
	coop-pattern settle "/srv/$1/0"
	all_up
}

# A reader without readahead asks peers for each page.
test_random()
{
	pages_up random 524288
	coop-pattern check /mnt/a/random 0 0 524288 1
	coop-pattern -m random check /mnt/b/random 0 0 524288 1
	[ "$(of b source storage bytes)" = 0 ] || die "b took $(of b source storage bytes) bytes from storage"
	down $nodes
}

# All nodes map the file and touch every page: readers lock each page when it has arrived, just when
# it is to be sent to children that wait for it. No page is lost for that.
test_mapped()
{
	more=/sys/kernel/debug/tracing/events/coopfs/coopfs_serve_more
	echo >/sys/kernel/debug/tracing/trace
	echo 1 >$more/enable
	pages_up mapped 8388608
	for n in $nodes; do
		job "map_$n" coop-pattern -m mmap check "/mnt/$n/mapped" 0 0 8388608 1
	done
	for n in $nodes; do
		job_ends 120 "map_$n"
	done
	echo 0 >$more/enable
	grep coopfs_serve_more /sys/kernel/debug/tracing/trace >/tmp/more || true
	_took=$(sum_of source storage bytes) _lost=$(grep -vc lost=0x0 /tmp/more || true)
	say "note forest: storage sent $_took bytes of 8388608; of $(wc -l </tmp/more) arrivals $_lost had lost pages"
	grep -v lost=0x0 /tmp/more | head -n 20 || true
	[ "$_lost" = 0 ] || die "waits lost pages"
	[ $((_took * 100)) -le $((8388608 * 110)) ] || die "storage sent $_took bytes"
	down $nodes
}

# a waits for pages that b relays, and storage's reply to b is held back. Meanwhile a can be unmounted,
# and a writer of b's can close.
test_held()
{
	new_file held 1
	stand_between
	kmount b 127.0.0.2 "ib,ib_devname=rxeb,wait_timeout_ms=60000,$(peer_time)"
	kmount a $server "ib,ib_devname=rxea,wait_timeout_ms=60000,$(peer_time)"
	until_true 30 "a knows b" knows a 1
	until_true 30 "b knows a" knows b 1
	exec 4</mnt/b/held
	rm -f /tmp/open
	job writer sh -c 'exec 8<>/mnt/b/held; : >/tmp/open; exec sleep 600'
	until_true 30 "b's writer has it open" test -e /tmp/open
	exec 3</mnt/a/held
	until_true 30 "a's tree has two nodes" tree_has a held 2
	between hold read_shared
	between hold close
	job reader sh -c 'exec cat <&3 >/dev/null'
	until_true 60 "b reads for a" grep -q "^held read_shared" /tmp/between.log
	kill -9 "$(cat /tmp/reader.job)"
	job_ends 30 reader 137
	exec 3<&-
	job ending umount /mnt/a
	job_ends 40 ending
	[ "$(of b serve waiting)" -gt 0 ] || die "a's unmount waited for b"
	kill "$(cat /tmp/writer.job)"
	job_ends 30 writer 143
	until_true 30 "the writer is closed" grep -q "^held close" /tmp/between.log
	between go
	exec 4<&-
	down b
}

test_unload()
{
	rmmod coopfs
	insmod /lab/files/coopfs.ko
}
