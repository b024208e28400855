# SPDX-License-Identifier: MIT
# Machine 1 has read a file from storage, and is the only node that has it. Then other files fill
# its memory, so the kernel reclaims pages. Machine 2, which has the daemon, reads the file last.
#
#: programs coopfsd coopfs coop-pattern ip rdma mkfs.ext4
#: modules crc32_generic libcrc32c crc32c_generic hmac sha256_generic rdma_rxe loop ext4
#: files $KO/coopfs.ko
#: memory 512
#: checks off
#: machines 2
#: deadline 480

server=10.9.0.2
with=ib,ib_devname=rxe0,peer_timeout_ms=8000

MIB=1048576
FILE=$((100 * MIB))
HOT=$((48 * MIB))

setup()
{
	insmod /lab/files/coopfs.ko
	rxe rxe0 eth0
	mkdir -p /srv /mnt/m /mnt/n /mnt/local /tmp/fill
	cluster_key
	if [ "$node" = 2 ]; then
		mount -t tmpfs -o size=90% srv /srv
		new file 1 $FILE
		new hot 1 $HOT
		truncate -s 1G /srv/big
		serve $server /srv
	else
		# A file without blocks: to read it fills memory, and needs no other.
		truncate -s 64M /tmp/disk
		mkfs.ext4 -q /tmp/disk
		losetup /dev/loop0 /tmp/disk
		mount /dev/loop0 /mnt/local
		truncate -s 2G /mnt/local/big
	fi
	barrier served
}

after_failure()
{
	! mounted /mnt/m || cat "$(proc m)/info" "$(proc m)/peers" "$(proc m)/stats" "$(proc m)/requests"
	cat /proc/meminfo /proc/vmstat /tmp/*.log
	for d in /mnt/m /mnt/n /tmp/fill; do
		! mounted $d || umount -l $d
	done
} 2>&1

# up: machine 1 knows the other node, and has nothing cached
up()
{
	kmount m $server $with
	barrier mounted
	until_true 30 "the node knows the other" knows m 1
	echo 3 >/proc/sys/vm/drop_caches
}

vm() { awk -v k="$1" '$1 == k { print $2 }' /proc/vmstat; }

reclaimed() { echo $(($(vm pgsteal_kswapd) + $(vm pgsteal_direct))); }

# from_storage MOST: machine 2 reads the file, and gets at most so many bytes of it from storage
from_storage()
{
	right m file 1 $FILE
	got=$(of m source storage bytes)
	say "note $got of $FILE bytes came from storage"
	[ "$got" -le "$1" ] || die "$got of $FILE bytes came from storage"
}

# Three times the memory is read once. Machine 1 still has the file then.
test_only_copy()
{
	up
	if [ "$node" = 1 ]; then
		right m file 1 $FILE
		before=$(reclaimed)
		dd if=/mnt/local/big of=/dev/null bs=1M count=1500 2>/tmp/said || die "$(cat /tmp/said)"
		[ $(($(reclaimed) - before)) -gt $((1000 * 256)) ] || die "there was memory for all files"
	fi
	barrier full
	[ "$node" = 1 ] || from_storage $((FILE / 100))
	barrier "done"
	down m
}

# What programs read again and again stays, while they read more than the memory once, from storage.
# The first file is on a mount without ib, so that nothing but its use keeps it.
test_working_set()
{
	kmount n $server readahead=512
	up
	if [ "$node" = 1 ]; then
		right n hot 1 $HOT -r 6
		before=$(of n source storage bytes)
		dd if=/mnt/m/big of=/dev/null bs=1M count=480 2>/tmp/said || die "$(cat /tmp/said)"
		right n hot 1 $HOT
		missed=$(($(of n source storage bytes) - before))
		[ "$missed" -le $((HOT / 100)) ] || die "$missed of $HOT bytes came from storage again"
	fi
	barrier "done"
	down m n
}

# Programs need the memory: all goes, and nobody fails.
test_shortage()
{
	up
	if [ "$node" = 1 ]; then
		right m file 1 $FILE
		kills=$(vm oom_kill)
		mount -t tmpfs -o size=100% fill /tmp/fill
		left=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) - 48 }' /proc/meminfo)
		dd if=/dev/zero of=/tmp/fill/all bs=1M count="$left" 2>/tmp/said || die "$(cat /tmp/said)"
		right m file 1 $FILE
		[ "$(vm oom_kill)" = "$kills" ] || die "the kernel killed programs"
	fi
	barrier short
	[ "$node" = 1 ] || from_storage $FILE
	barrier "done"
	[ "$node" = 2 ] || umount /tmp/fill
	down m
}
