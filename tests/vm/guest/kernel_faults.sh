# SPDX-License-Identifier: MIT
# coopfs.ko when things go wrong: two mounts a and b in one machine, their Soft-RoCE
# devices joined by a wire that loses, doubles, delays and reorders; peers that go in
# the middle of a read; a daemon that is killed and comes back; readers that are killed;
# little memory; allocations that fail. Storage is reached over the loopback device, so
# that the faults of the wire are the fabric's alone.
#
# Every 8 bytes of a file name the file, the version and the place (coop-pattern), so a
# wrong page tells where it came from.
#
#: programs coopfsd coopfs coop-pattern ip tc rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth sch_netem
#: files $KO/coopfs.ko
#: memory 1536
#: deadline 480
#: short worst_line daemon_returns peer_dies

server=127.0.0.1

setup()
{
	insmod /lab/files/coopfs.ko
	wire va 10.77.0.1 vb 10.77.0.2
	rxe rxe0 va
	rxe rxe1 vb
	mkdir -p /srv /mnt/a /mnt/b
	mount -t tmpfs srv /srv
	serve $server /srv
}

after_failure()
{
	for n in a b; do
		mounted "/mnt/$n" || continue
		cat "$(proc $n)/info" "$(proc $n)/peers" "$(proc $n)/stats" "$(proc $n)/requests"
	done
	tail -n 20 /tmp/coopfsd.log
	perfect
	for j in /tmp/*.job; do
		[ ! -e "$j" ] || kill -9 "$(cat "$j")"
	done
	gone "$(cat /tmp/coopfsd.pid)" && serve $server /srv
	ip link set va up
	own_routes va 10.77.0.1
	for n in a b; do
		! mounted "/mnt/$n" || umount "/mnt/$n" || umount -l "/mnt/$n"
	done
} 2>&1

# few N: as many, or fewer on a kernel that checks itself
few() { echo $((($1 + patience - 1) / patience)); }

# up [OPTIONS]: both nodes, that know each other
up()
{
	kmount a $server "$(options a)${1:-}"
	kmount b $server "$(options b)${1:-}"
	acquainted
}

acquainted()
{
	until_true 30 "a knows b" knows a 1
	until_true 30 "b knows a" knows b 1
}

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

# new DIRECTORY FILES BYTES: below the export, of version 1
new()
{
	mkdir -p "/srv/$1"
	coop-pattern write "/srv/$1" 1 "$2" "$3" 1
}

# job NAME COMMAND...: in the background; its status is waited for by job_ends
job()
{
	_job=$1
	shift
	rm -f "/tmp/$_job.status"
	(
		set +ex
		"$@" 2>"/tmp/$_job.said" &
		echo $! >"/tmp/$_job.job"
		wait $!
		echo $? >"/tmp/$_job.status"
	) &
	until_true 10 "$_job has begun" test -s "/tmp/$_job.job"
}

# job_ends SECONDS NAME [STATUS]
job_ends()
{
	until_true "$1" "$2 ends" test -s "/tmp/$2.status"
	rm -f "/tmp/$2.job"
	[ "$(cat "/tmp/$2.status")" = "${3:-0}" ] ||
		die "$2 ended with $(cat "/tmp/$2.status"): $(cat "/tmp/$2.said")"
}

running() { [ ! -s "/tmp/$1.status" ]; }

# right NODE DIRECTORY FILES BYTES [OPTIONS]: of version 1
right()
{
	_node=$1 _dir=$2 _files=$3 _bytes=$4
	shift 4
	coop-pattern "$@" check "/mnt/$_node/$_dir" 1 "$_files" "$_bytes" 1 2>/tmp/said ||
		die "node $_node: $(cat /tmp/said)"
}

peer_pages() { of "$1" source peer pages; }

# came NODE BEFORE LEAST: so many pages came from the peer since then
came()
{
	_got=$(($(peer_pages "$1") - $2))
	[ "$_got" -ge "$3" ] || die "node $1 got $_got pages from its peer, not $3"
}

# Many short reads over a bad wire, then some over a good one: no page is wrong, none is
# refused to its reader, and the peer still serves all when the wire is good again.
# rounds NAME COUNT [OPTIONS]; the wire is set up by netem before
rounds()
{
	new "$1.small" 60 12281
	new "$1.large" 4 1048571
	right a "$1.small" 60 12281
	right a "$1.large" 4 1048571
	before=$(peer_pages b)
	right b "$1.small" 60 12281 -d -r "$2"
	right b "$1.large" 4 1048571 -d -r "$2"
	cat "$(proc b)/stats"
	came b "$before" $(((180 + 1024) * $2 / 2))
	perfect
	before=$(peer_pages b)
	right b "$1.small" 60 12281 -d
	right b "$1.large" 4 1048571 -d
	came b "$before" 1100
}

test_loss()
{
	up
	netem loss 1%
	rounds loss "$(few 4)"
	down a b
}

test_duplicate()
{
	up
	netem duplicate 1%
	rounds duplicate "$(few 4)"
	down a b
}

test_reorder()
{
	up
	netem delay 1ms 1ms
	rounds reorder "$(few 4)"
	down a b
}

test_worst_line()
{
	up
	netem delay 6ms 6ms loss 1% duplicate 1%
	rounds worst "$(few 2)"
	down a b
}

test_worst_line_copied()
{
	up ,ib_copy,page_crc=1
	netem delay 6ms 6ms loss 1% duplicate 1%
	rounds copied "$(few 3)"
	[ "$(of b read copied_bytes)" -gt 0 ] || die "nothing was copied"
	down a b
}

# Readers and a writer wait for the daemon and go on.
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
		kill -9 "$(cat /tmp/coopfsd.pid)"
		until_true 30 "coopfsd has ended" gone "$(cat /tmp/coopfsd.pid)"
		running writer || break
		serve $server /srv
		until_true 60 "storage is read again" more_than "$before" a traffic storage rx_bytes
	done
	job_ends 120 reader
	job_ends 120 writer
	job_ends 120 watcher
	down a b
}

more_than()
{
	_least=$1
	shift
	[ "$(of "$@")" -gt "$_least" ]
}

# soft: an error comes in time; what comes after the daemon's return is right.
test_soft()
{
	new soft 2 65536
	kmount a $server soft,timeo=20
	right a soft 1 65536
	kill -9 "$(cat /tmp/coopfsd.pid)"
	until_true 30 "coopfsd has ended" gone "$(cat /tmp/coopfsd.pid)"
	job reader coop-pattern -e -d check /mnt/a/soft 2 2 65536 1
	job_ends 30 reader 3
	cat /tmp/reader.said
	serve $server /srv
	until_true 60 "storage answers again" coop-pattern check /mnt/a/soft 1 2 65536 1
	down a
}

# a's mount goes, or its wire, under b's reads.
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

# What was closed on one node is what an open on the other one shows, and no page
# mixes two versions.
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

# Readers die in the middle of reads; the mount can go at once.
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

# Files larger than the memory that is left: pages are taken while they are read, served
# and written.
test_little_memory()
{
	up
	new memory 3 33554432
	mkdir -p /tmp/hog
	mount -t tmpfs -o size=100% hog /tmp/hog
	dd if=/dev/zero of=/tmp/hog/1 bs=1M count=$(($(available) - 64)) 2>/dev/null
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

queue_pairs() { rdma resource show | awk '{ for (i = 1; i < NF; i++) if ($i == "qp") n += $(i + 1) } END { print n + 0 }'; }

# After all of that: it is in use while it is mounted, and nothing of it stays.
test_unload()
{
	before=$(queue_pairs)
	up
	if rmmod coopfs; then die "it was unloaded while it was mounted"; fi
	[ "$(queue_pairs)" -gt "$before" ] || die "no queue pairs are seen"
	down a b
	[ "$(queue_pairs)" = "$before" ] || die "queue pairs are left: $(rdma resource show)"
	rmmod coopfs
	[ ! -e /proc/fs/coopfs ] || die "/proc/fs/coopfs is still there"
	grep '^coop' /proc/slabinfo && die "there are caches left"
	insmod /lab/files/coopfs.ko
}

# injection KIND: allocations of the kernel's workers fail now and then, and those of who asks
# for it (failing)
injection()
{
	_kind=/sys/kernel/debug/$1
	[ -e "$_kind" ] || skip "this kernel injects no failures"
	echo Y >"$_kind/task-filter"
	echo -1 >"$_kind/times"
	echo 0 >"$_kind/verbose"
	echo N >"$_kind/ignore-gfp-wait"
	[ "$1" != fail_page_alloc ] || echo 0 >"$_kind/min-order"
	for _p in /proc/[0-9]*; do
		case $(cat "$_p/comm") in
		kworker*) echo 1 >"$_p/make-it-fail" ;;
		esac
	done
}

# failing N COMMAND...: every Nth allocation fails, of those of the workers and the command
# together. What became of it is not asked here, but for wrong bytes.
failing()
{
	echo "$1" >"$_kind/interval"
	echo 100 >"$_kind/probability"
	shift
	_status=0
	(
		echo 1 >/proc/self/make-it-fail
		exec "$@"
	) 2>/tmp/said || _status=$?
	echo 0 >"$_kind/probability"
	cat /tmp/said
	[ "$1" != coop-pattern ] || [ $_status != 1 ] || die "$(cat /tmp/said)"
}

# Mounts that fail half-way leave nothing; reads and writes may fail but tell nothing wrong;
# serving and unmounting go on. A command makes a hundred allocations before it reaches us.
allocations_fail()
{
	small=ib_num_srpc=4,ib_num_rrpc=4
	injection "$1"
	new "$1" 8 262144
	cp -r "/srv/$1" "/srv/$1.w"
	for i in $(seq 12); do
		failing $((97 + i * 53)) coopfs mount -t coopfs \
			-o "key=/tmp/key,$(options a),$small" $server:/data /mnt/a
		! mounted /mnt/a || umount /mnt/a
	done
	up ",$small"
	right a "$1" 8 262144
	for i in $(seq 5); do
		failing $((13 + i * 41)) coop-pattern -d check "/mnt/b/$1" 1 8 262144 1
		failing $((17 + i * 41)) coop-pattern write "/mnt/b/$1.w" 1 2 65536 $i
		failing $((11 + i * 7)) umount /mnt/b
		mounted /mnt/b || kmount b $server "$(options b),$small"
	done
	acquainted
	right b "$1" 8 262144 -d
	right a "$1" 8 262144
	coop-pattern write "/mnt/b/$1.w" 1 2 65536 99
	coop-pattern check "/srv/$1.w" 1 2 65536 99
	down a b
	rmmod coopfs
	insmod /lab/files/coopfs.ko
}

test_slab_allocations_fail() { allocations_fail failslab; }

test_page_allocations_fail() { allocations_fail fail_page_alloc; }
