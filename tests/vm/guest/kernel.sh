# SPDX-License-Identifier: MIT
# coopfs.ko: two mounts in one machine, a and b, with a Soft-RoCE device each, and a FUSE
# node c with soft RoCE in user space; one daemon, all on one switch. Pages between c and
# the others pass between two implementations of the wire format.
#
#: programs coopfsd coopfs-fuse coopfs coop-pattern ip tc rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth bridge fuse sch_netem
#: files $KO/coopfs.ko
#: memory 1536
#: deadline 800
#: short mount both_ways unload
#: long with_fuse device_removal

server=10.77.0.1

setup()
{
	insmod /lab/files/coopfs.ko
	switch va 10.77.0.1 vb 10.77.0.2 soft/vc 10.77.0.3
	rxe rxe0 va
	rxe rxe1 vb
	mkdir -p /srv /mnt/a /mnt/b
	mount -t tmpfs srv /srv
	for n in a b c; do
		pattern "/srv/$n.bin" 2 "$n.bin"
	done
	serve $server /srv
}

after_failure()
{
	echo 0 >/sys/kernel/debug/tracing/events/coopfs/enable
	for n in a b; do # before any mount goes, which would change the others' peers
		! mounted "/mnt/$n" || cat "$(proc $n)/info" "$(proc $n)/peers" "$(proc $n)/stats" "$(proc $n)/requests"
	done
	for n in a b; do
		! mounted "/mnt/$n" || umount -l "/mnt/$n"
	done
	fuse_end c
	cat /tmp/coopfsd.log
}

up()
{
	for _n in "$@"; do
		kmount "$_n" $server "$(options "$_n")"
	done
}

# from_peers NODE FILE: reads the file; nearly all of it must come from other nodes
from_peers()
{
	_before=$(of "$1" source peer bytes)
	same "$1" "$2"
	_got=$(($(of "$1" source peer bytes) - _before))
	[ "$_got" -gt 1500000 ] || die "node $1 got $_got bytes of $2 from peers"
}

# A file whose version storage can prove.
new_file() { pattern "/srv/$1" 2 "$1"; coop-pattern settle "/srv/$1"; }

# Storage alone: names, attributes, bytes, /proc.
test_mount()
{
	kmount a $server readahead=64
	grep -q "coopfs" /proc/mounts
	ls -l /mnt/a
	same a a.bin
	cmp /mnt/a/b.bin /srv/b.bin
	for f in ibaddr peers stats options requests info; do
		cat "$(proc a)/$f"
	done
	size=$(stat -c %s /srv/a.bin)
	[ "$(of a source storage bytes)" = $((2 * size)) ] || die "storage bytes"
	same a a.bin
	[ "$(of a source buffer bytes)" = "$size" ] || die "buffer bytes"
	coopfs stats /mnt/a
	echo x >"$(proc a)/stats"
	[ "$(of a source storage bytes)" = 0 ] || die "writing stats resets"
	down a
}

# Tracepoints show a fetch of b, from its window to its pages.
test_tracepoints()
{
	tracing=/sys/kernel/debug/tracing
	[ -e $tracing/events/coopfs ] || die "there are no tracepoints"
	up a b
	until_true 20 "b knows a" knows b 1
	new_file traced.bin
	same a traced.bin
	echo 1 >$tracing/events/coopfs/enable
	from_peers b traced.bin
	echo 0 >$tracing/events/coopfs/enable
	for event in coopfs_read: coopfs_fetch_post: 'coopfs_ctrl_send: .*REQUEST' \
		'coopfs_ctrl_receive: .*REQUEST' coopfs_serve: coopfs_serve_send: \
		'coopfs_ctrl_send: .*COMMIT' coopfs_segment: coopfs_fetch_done:; do
		grep -m 2 "$event" $tracing/trace || die "no $event"
	done
	echo >$tracing/trace
	down a b
}

# a reads from storage, b from a; then the reverse. Neither makes or destroys a queue pair.
test_both_ways()
{
	up a b
	until_true 20 "a knows b" knows a 1
	until_true 20 "b knows a" knows b 1
	before=$(queue_pairs)
	[ "$before" -gt 200 ] || die "two nodes have $before queue pairs"
	same a a.bin
	from_peers b a.bin
	same b b.bin
	from_peers a b.bin
	cat "$(proc b)/peers" "$(proc b)/stats"
	in_place b
	[ "$(queue_pairs)" = "$before" ] || die "there were $before queue pairs, now there are $(queue_pairs)"
	down a b
}

# files_pass FROM TO NAME: eight files, so chunks of all engines, go from one node to the other
files_pass()
{
	for _f in 1 2 3 4 5 6 7 8; do
		new_file "$3$_f.bin"
		same "$1" "$3$_f.bin"
		from_peers "$2" "$3$_f.bin"
	done
}

# Several engines behind one address, on both sides and on one; the device goes and comes back.
test_engines()
{
	kmount a $server "$(options a),ib_engines=4"
	kmount b $server "$(options b),ib_engines=3"
	until_true 20 "a knows b" knows a 1
	until_true 20 "b knows a" knows b 1
	grep -q "engines 4" "$(proc a)/info" || die "info does not show the engines"
	files_pass a b four
	files_pass b a three
	timeout $((60 * patience)) /usr/bin/rdma link delete rxe1 || die "the device is still held"
	until_true 20 "a has forgotten b" knows a 0
	grep -q "no device" "$(proc b)/info" || die "info does not say that the device is gone"
	new_file alone.bin
	same b alone.bin
	rxe rxe1 vb
	until_true 20 "a knows b again" knows a 1
	until_true 20 "b knows a again" knows b 1
	files_pass a b again
	down b
	until_true 20 "a has forgotten b again" knows a 0
	up b
	until_true 20 "a knows b of one engine" knows a 1
	until_true 20 "b of one engine knows a" knows b 1
	files_pass a b toone
	files_pass b a ofone
	down a b
}

# ib_copy: the same protocol through private buffers.
test_copy()
{
	kmount a $server "$(options a)"
	kmount b $server "$(options b),ib_copy,page_crc=1"
	until_true 20 "a knows b" knows a 1
	until_true 20 "b knows a" knows b 1
	new_file copy.bin
	same a copy.bin
	from_peers b copy.bin
	[ "$(of b read copied_bytes)" -gt 1500000 ] || die "nothing was copied"
	down a b
}

# A node with small datagrams asks one with large ones for whole windows of 64 pages, up to 1024
# datagrams each. The other asks it too, if its datagrams are at least a quarter as large.
test_datagram_sizes()
{
	kmount a $server "$(options a)"
	for mtu in 256 512 1024 2048; do
		kmount b $server "$(options b),ib_mtu=$mtu,readahead=64,ib_num_srpc=16"
		until_true 20 "a knows b" knows a 1
		until_true 20 "b knows a" knows b 1
		new_file "there$mtu.bin"
		same a "there$mtu.bin"
		from_peers b "there$mtu.bin"
		if [ $mtu -ge 1024 ]; then
			new_file "back$mtu.bin"
			same b "back$mtu.bin"
			from_peers a "back$mtu.bin"
		fi
		for n in a b; do
			[ "$(of $n serve tx_errors)" = 0 ] || die "node $n could not send all"
		done
		down b
		until_true 20 "a has forgotten b" knows a 0
	done
	down a
}

# The MTU of the network interface under a's device shrinks, then grows again.
test_mtu_changes()
{
	up a b
	until_true 20 "b knows a" knows b 1
	for step in "2200 2048" "4500 4096"; do
		mtu=${step% *}
		ip link set va mtu "$mtu"
		until_true 20 "a has noticed" grep -q "mtu ${step#* }" "$(proc a)/info"
		until_true 20 "a knows b" knows a 1
		until_true 20 "b knows a" knows b 1
		new_file "less$mtu.bin"
		new_file "back$mtu.bin"
		same a "less$mtu.bin"
		from_peers b "less$mtu.bin"
		same b "back$mtu.bin"
		from_peers a "back$mtu.bin"
	done
	down a b
}

# Another network device's MTU changes: this device's address handles stay valid.
test_other_mtu()
{
	up a b
	until_true 20 "b knows a" knows b 1
	new_file other.bin
	same a other.bin
	from_peers b other.bin
	made=$(of b endpoint ah_created)
	ip link add other0 type veth peer name other1
	for mtu in 1400 1300 1200 1100 1000; do
		ip link set other0 mtu $mtu
		new_file "other$mtu.bin"
		same a "other$mtu.bin"
		from_peers b "other$mtu.bin"
	done
	ip link del other0
	[ "$(of b endpoint ah_created)" = "$made" ] || die "b made its address handles again"
	down a b
}

# what_counts STATS: the keys, except those that only one kind of end point can count, or one kind of cache.
# The module neither offers blocks nor takes them. It does not count different parents, nor the trees of each:
# that would take a set of them for each look.
what_counts()
{
	awk '$1 !~ /^(endpoint|cache|offer|store)$/ { print $1, $2 }' "$1" |
		grep -vx -e "read taken_pages" -e "forest parents" | sort
}

# A program that reads the files of the FUSE variant can read the module's, which have more keys.
same_text()
{
	for _f in stats peers options requests ibaddr info; do
		[ -r "$(proc a)/$_f" ] && [ -r "/mnt/c/.coopfs/$_f" ] || die "one variant has no file $_f"
	done
	what_counts "$(proc a)/stats" >/tmp/a.keys
	what_counts /mnt/c/.coopfs/stats >/tmp/c.keys
	while read -r _key; do
		grep -qx "$_key" /tmp/a.keys || die "the module does not print '$_key'"
	done </tmp/c.keys
	for _f in peers ibaddr; do
		for _p in "$(proc a)" /mnt/c/.coopfs; do
			sed 's/=[^ ]*//g; s/ parent_trees$//' "$_p/$_f" | sort -u >"/tmp/$(basename "$_p").form"
		done
		cmp "/tmp/$(basename "$(proc a)").form" /tmp/.coopfs.form || die "$_f has two forms"
	done
}

# The FUSE node speaks RoCE v2 from user space, in the same wire format.
test_with_fuse()
{
	up a
	fuse_mount c $server "ib,addr=10.77.0.3,$(peer_time),cache_size=64M" soft
	until_true 20 "a knows c" knows a 1
	new_file k.bin
	new_file f.bin
	same a k.bin
	same c k.bin
	[ "$(stat_of c source peer bytes)" -gt 1500000 ] || die "c got nothing from a"
	same c f.bin
	from_peers a f.bin
	same_text
	fuse_unmount c
	down a
}

# Keyed hashes of pages, between two modules and between module and FUSE: in large fetches, and in
# small ones, whose COMMIT comes with the data.
test_page_mac()
{
	kmount a $server "$(options a),page_mac=1"
	kmount b $server "$(options b),page_mac=1"
	fuse_mount c $server "ib,addr=10.77.0.3,$(peer_time),cache_size=64M,page_mac=1" soft
	for n in a b; do
		until_true 20 "$n knows the others" knows $n 2
		grep -qx page_mac=1 "$(proc $n)/options" || die "$n does not show it"
	done
	new_file mac.bin
	new_file back.bin
	head -c 9000 /srv/mac.bin >/srv/few.bin
	coop-pattern settle /srv/few.bin
	same a mac.bin
	from_peers b mac.bin
	in_place b
	same c mac.bin
	[ "$(stat_of c source peer bytes)" -gt 1500000 ] || die "c got nothing from the module"
	same c back.bin
	from_peers a back.bin
	before=$(of b source peer pages)
	stored=$(of b source storage pages)
	for n in a b c; do
		cmp /mnt/$n/few.bin /srv/few.bin
	done
	[ "$(of b source storage pages)" = "$stored" ] || die "b read few.bin from storage"
	# Three of the file, or in its place those of a bundle that has it, or both.
	[ "$(of b source peer pages)" -ge $((before + 3)) ] || die "b got few.bin from nobody"
	for n in a b; do
		for figure in tag_bad commits_bad; do
			[ "$(of $n fetch $figure)" = 0 ] || die "$n: $figure"
		done
	done
	[ "$(stat_of c fetch tag_bad)" = 0 ] || die "c: tag_bad"
	fuse_unmount c
	down a b
}

test_device_removal()
{
	up a b
	until_true 20 "b knows a" knows b 1
	window=$(of b fetch window_bytes)
	new gone 4 524288
	right a gone 4 524288
	job reader coop-pattern -d -r 1000000 check /mnt/b/gone 1 4 524288 1
	until_true 30 "b reads from a" more_than 64 b source peer pages
	running reader || die "the reader has ended: $(cat /tmp/reader.said)"
	timeout $((60 * patience)) /usr/bin/rdma link delete rxe1 || die "the device is still held"
	before=$(of b source storage pages)
	until_true 60 "b reads from storage" more_than $((before + 64)) b source storage pages
	kill "$(cat /tmp/reader.job)"
	job_ends 30 reader 143
	[ "$(of b endpoint device_removals)" = 1 ] || die "the removal was not counted"
	grep -q "no device" "$(proc b)/info" || die "info does not say that the device is gone"
	new_file later.bin
	same b later.bin
	rxe rxe1 vb
	until_true 20 "a knows b again" knows a 1
	until_true 20 "b knows a again" knows b 1
	[ "$(of b fetch window_bytes)" = "$window" ] || die "its window was $window, now it is $(of b fetch window_bytes)"
	new_file again.bin
	same b again.bin
	from_peers a again.bin
	down a b
}

# Many stat(2)s of a file are one request to storage; a stat sees another node's change without an open.
test_attributes_are_kept()
{
	new_file kept.bin
	kmount a $server readahead=64
	kmount b $server readahead=64
	stats=$(proc a)/stats
	calls() { awk '$1 == "storage" && $2 == "calls" { print $3 }' "$stats"; }
	f=/mnt/a/kept.bin
	stat -c %s $f
	before=$(calls)
	stat -c %s $f $f $f $f $f $f $f $f $f $f $f $f $f $f $f $f $f $f $f $f
	[ $(($(calls) - before)) -le 3 ] || die "20 stats were $(($(calls) - before)) requests"
	echo more >>/mnt/b/kept.bin
	new_size() { [ "$(stat -c %s /srv/kept.bin)" = "$(stat -c %s "$f")" ]; }
	until_true 60 "a sees the new size" new_size
	down a b
}

test_bad_options()
{
	for o in readahead=x nonsense ib_port=1 ib_mtu=100,ib ra_async=2 ib,ib_devname=none0; do
		if coopfs mount -t coopfs -o "key=/tmp/key,$o" $server:/data /mnt/a 2>/tmp/said; then
			die "$o was taken"
		fi
		cat /tmp/said
		[ "$(wc -c </tmp/said)" -gt 20 ] || die "$o: there was no message"
	done
	if coopfs mount -t coopfs $server:/data /mnt/a 2>/tmp/said; then die "no key was needed"; fi
	cat /tmp/said
	if coopfs mount -t coopfs -o key=/tmp/key $server:/none /mnt/a 2>/tmp/said; then die "/none was found"; fi
	cat /tmp/said
}

test_remount()
{
	up a
	mount -o remount,readahead=32,peer_timeout_ms=1000 /mnt/a
	grep -q '^readahead=32$' "$(proc a)/options" || die "readahead"
	grep -q 'readahead=32' /proc/mounts || die "show_options"
	if mount -o remount,ib_mtu=1024 /mnt/a; then die "ib_mtu was changed"; fi
	down a
}

test_by_hand()
{
	up a b
	until_true 20 "b knows a" knows b 1
	line=$(head -n 1 "$(proc a)/ibaddr")
	echo "$line" >"$(proc b)/ibaddr"
	grep -q origin=hand,daemon "$(proc b)/peers" || die "not by hand"
	if echo "gid=nonsense" >"$(proc b)/ibaddr"; then die "a malformed line was taken"; fi
	if echo "${line% sl=*} sl=99" >"$(proc b)/ibaddr"; then die "sl=99 was taken"; fi
	down a b
}

# The coopfs command reads /proc for the module as it reads .coopfs/ for FUSE; mount(8) finds its helper.
test_cli()
{
	ln -sf /usr/bin/coopfs /tmp/mount.coopfs
	/tmp/mount.coopfs $server:/data /mnt/a -o "rw,noatime,key=/tmp/key,$(options a)" || die "mount.coopfs"
	grep ' /mnt/a ' /proc/mounts | grep -q noatime || die "noatime"
	up b
	until_true 20 "b knows a" knows b 1
	same a a.bin
	same b a.bin
	coopfs stats /mnt/b >/tmp/said
	cat /tmp/said
	grep -q peer /tmp/said || die "stats"
	coopfs stats --json /mnt/b | grep -q '"storage"' || die "stats --json"
	coopfs peers /mnt/b | tee /tmp/said
	grep -q 10.77.0.1 /tmp/said || die "peers"
	coopfs peers --introduce /mnt/a /mnt/b || die "introduce"
	grep -q origin=hand,daemon "$(proc a)/peers" || die "not introduced"
	coopfs top --once | tee /tmp/said
	grep -q /mnt/a /tmp/said || die "top"
	coopfs stats --reset /mnt/b
	[ "$(of b source peer bytes)" = 0 ] || die "reset"
	coopfs umount /mnt/b || die "coopfs umount"
	! mounted /mnt/b || die "still mounted"
	down a
}

test_unload()
{
	rmmod coopfs
	insmod /lab/files/coopfs.ko
	up a b
	same a a.bin
	down a b
	rmmod coopfs
	[ ! -e /proc/fs/coopfs ] || die "/proc/fs/coopfs is still there"
	insmod /lab/files/coopfs.ko
}
