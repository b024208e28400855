# SPDX-License-Identifier: MIT
# make vm-demo: shows the kernel module at work. One machine, a daemon and three mounts,
# each with its own Soft-RoCE device. Node 1 reads a tree and a large file from storage;
# nodes 2 and 3 read the same from the page caches of nodes that have it. It compares
# every file by checksum, and takes its figures from /proc/fs/coopfs.
#
#: programs coopfsd coopfs ip rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe ib_uverbs veth bridge
#: files $KO/coopfs.ko
#: memory 2048
#: checks off
#: deadline 240

server=10.77.0.1
nodes="node1 node2 node3"
tree=20  # MiB, in files of 64 KiB
large=32 # MiB

setup()
{
	insmod /lab/files/coopfs.ko
	switch v1 10.77.0.1 v2 10.77.0.2 v3 10.77.0.3
	for n in 1 2 3; do
		rxe rxe$n v$n
		mkdir -p /mnt/node$n
	done
	mkdir -p /srv
	mount -t tmpfs srv /srv
	dd if=/dev/urandom of=/srv/large.bin bs=1M count=$large
	dd if=/dev/urandom of=/tmp/tree.bin bs=1M count=$tree
	set +x
	for i in $(seq 0 $((tree * 16 - 1))); do
		mkdir -p /srv/tree/$((i / 40))
		dd if=/tmp/tree.bin of=/srv/tree/$((i / 40))/$i.bin bs=64k count=1 skip=$i 2>/dev/null
	done
	rm /tmp/tree.bin
	(cd /srv && find . -type f | sort | xargs sha256sum >/tmp/sums)
	serve $server /srv
	note "source: $(wc -l </tmp/sums) files, $((tree + large)) MiB; coopfsd listens on $server:17430"
}

note() { say "note $*"; }

after_failure()
{
	for n in $nodes; do
		! mounted /mnt/$n || { cat "$(proc $n)/peers" "$(proc $n)/stats" "$(proc $n)/requests"; umount -l /mnt/$n; }
	done
	cat /tmp/coopfsd.log
}

# proc NODE: its directory below /proc/fs/coopfs
proc() { echo "/proc/fs/coopfs/$(stat -c %d "/mnt/$1" | awk '{ print $1 % 256 + int($1 / 1048576) * 256 }')"; }

knows() { [ "$(grep -c ^peer "$(proc "$1")/peers")" = "$2" ]; }

# bytes NODE SOURCE
bytes() { awk -v s="$2" '$1 == "source" && $2 == s { print $8 }' "$(proc "$1")/stats"; }

# received NODE: file data that came from storage over the network
received() { awk '$1 == "storage" && $2 == "rx_data_bytes" { print $3 }' "$(proc "$1")/stats"; }

mib() { awk -v b="$1" 'BEGIN { printf "%.1f MiB", b / 1048576 }'; }

# read_all NODE: reads everything once, and prints its progress every second.
read_all()
{
	rm -f /tmp/read
	(
		find "/mnt/$1" -type f -print0 | xargs -0 cat >/dev/null || touch /tmp/bad
		touch /tmp/read
	) &
	while [ ! -e /tmp/read ]; do
		sleep 1
		note "$1: from peers $(mib "$(bytes "$1" peer)"), from storage $(mib "$(bytes "$1" storage)")"
	done
	[ ! -e /tmp/bad ] || die "$1 could not read everything"
}

test_three_nodes()
{
	set +x
	: >/tmp/table
	number=0
	for n in $nodes; do
		number=$((number + 1))
		coopfs mount -t coopfs -o "key=/tmp/key,ib,ib_devname=rxe$number,peer_timeout_ms=10000" \
			$server:/data /mnt/$n || die "mount of $n: $?"
	done
	for n in $nodes; do
		until_true 20 "$n knows the other two" knows $n 2
	done
	for n in $nodes; do
		begun=$(cut -d' ' -f1 /proc/uptime)
		read_all $n
		took=$(cut -d' ' -f1 /proc/uptime | awk -v b="$begun" '{ printf "%.1f", $1 - b }')
		peer=$(bytes $n peer) storage=$(bytes $n storage) buffer=$(bytes $n buffer) wire=$(received $n)
		[ "$wire" ] || die "the stats of $n do not say what storage sent"
		note "$n: storage sent $(mib "$wire") of file data over the network"
		verdict=equal
		(cd /mnt/$n && sha256sum -c /tmp/sums >/tmp/compared 2>&1) || verdict=DIFFER
		echo "$n $took $buffer $peer $storage $verdict $wire" >>/tmp/table
	done
	note
	awk 'BEGIN { printf "@@ note %-7s %8s %12s %20s %20s  %s\n\n", "node", "seconds", "own buffer", "peers", "storage", "checksums" }
		function share(b) { return sprintf("%.1f MiB (%.1f %%)", b / 1048576, 100 * b / all) }
		{ all = $3 + $4 + $5; if (!all) all = 1
		  printf "@@ note %-7s %8s %12s %20s %20s  %s\n\n", $1, $2, sprintf("%.1f MiB", $3 / 1048576), share($4), share($5), $6 }' \
		/tmp/table >&9
	note
	note "who served whom: node 1 sent $(mib "$(served node1)"), node 2 $(mib "$(served node2)"), node 3 $(mib "$(served node3)")"
	note "copied on the way into the page cache: $(copied node2) bytes at node 2, $(copied node3) at node 3"
	note "look next: make vm-shell (an interactive lab), make vm-bench (figures), /proc/fs/coopfs/*/{peers,stats,requests}"
	! grep -q DIFFER /tmp/table || die "a checksum differs"
	awk '$1 != "node1" && $7 > 0.01 * ($3 + $4 + $5) { exit 1 }' /tmp/table ||
		die "storage sent node 2 or 3 more than 1 % of what it read"
	for n in $nodes; do
		umount /mnt/$n
	done
	rmmod coopfs
	end_serve
}

served() { awk '$1 == "serve" && $2 == "bytes" { print $3 }' "$(proc "$1")/stats"; }
copied() { awk '$1 == "read" && $2 == "copied_bytes" { print $3 }' "$(proc "$1")/stats"; }
