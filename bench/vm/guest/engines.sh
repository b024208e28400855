# SPDX-License-Identifier: MIT
# What more engines of a mount do (ib_engines=): machine 1 has four files in the page cache of its
# mount. Machine 2 reads pieces of 128 KiB of them at random, with one reader and with four, over one
# engine and over four on each side. It prints how many pieces came a second, and how often a task
# found a mutex of the kernel taken meanwhile.
#
#: programs coopfsd coopfs ip rdma fio
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe
#: files $KO/coopfs.ko
#: memory 1536
#: machines 2
#: cpus 4
#: checks off
#: deadline 2400

server=10.9.0.1
tracing=/sys/kernel/debug/tracing

setup()
{
	rxe rxe0 eth0
	insmod /lab/files/coopfs.ko
	mkdir -p /srv /mnt/m
	cluster_key
	if [ "$node" = 1 ]; then
		mount -t tmpfs -o size=300m srv /srv
		for f in 0 1 2 3; do
			dd if=/dev/urandom of=/srv/$f.bin bs=1M count=32
		done
		serve $server /srv
	fi
	barrier served
}

coop_mount() # ENGINES
{
	coopfs mount -t coopfs -o "key=/tmp/key,ib,ib_devname=rxe0,peer_timeout_ms=10000,readahead=32,ib_engines=$1" \
		$server:/data /mnt/m || die "mount: $?"
}

proc()
{
	echo "/proc/fs/coopfs/$(stat -c %d /mnt/m | awk '{ print $1 % 256 + int($1 / 1048576) * 256 }')"
}

knows_one() { [ "$(grep -c ^peer "$(proc)/peers")" = 1 ]; }

# Mutexes that a task found taken, since they were last asked for.
contended()
{
	awk '/hitcount/ { sub(/.*hitcount: */, ""); n += $1 } END { print n + 0 }' \
		$tracing/events/lock/contention_begin/hist
}

watch() # on | off
{
	_not=""
	[ "$1" = on ] || _not="!"
	# The flag of mutexes; 6.1 and later have it.
	echo "${_not}hist:keys=flags if flags & 32" >$tracing/events/lock/contention_begin/trigger ||
		true
}

read_with() # ENGINES READERS
{
	coop_mount "$1"
	until_true 120 "the reader knows the holder" knows_one
	watch on
	timeout 600 /usr/bin/fio --name=read --directory=/mnt/m --filename_format='$jobnum.bin' --readonly \
		--invalidate=0 --thread --ioengine=psync --rw=randread --bs=128k --size=32m --io_size=8m --numjobs="$2" \
		--group_reporting --minimal --terse-version=3 --randseed=1 >/tmp/fio.out 2>/tmp/fio.err ||
		{ cat /tmp/fio.out /tmp/fio.err; die "fio"; }
	say "engines $1 readers $2 pieces_s $(awk -F';' '/^3;/ { print $8 }' /tmp/fio.out) mutexes $(contended) from_storage $(
		awk '$1 == "source" && $2 == "storage" { print $NF }' "$(proc)/stats")"
	watch off
	umount /mnt/m
	echo 3 >/proc/sys/vm/drop_caches
}

turns() # ENGINES
{
	if [ "$node" = 1 ]; then
		coop_mount "$1"
		cat /mnt/m/*.bin >/dev/null
	fi
	barrier "held-$1"
	if [ "$node" = 2 ]; then
		read_with "$1" 1 # a rehearsal: an emulator translates code at its first run
		for _turn in 1 2 3; do
			read_with "$1" 1
			read_with "$1" 4
		done
	fi
	barrier "read-$1"
	[ "$node" = 2 ] || umount /mnt/m
}

test_one() { turns 1; }

test_four() { turns 4; }
