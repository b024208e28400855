# SPDX-License-Identifier: MIT
# Functions that topics share. The guest's init sources this file; $node is the number
# of this machine and $machines their count.
#
# A test passes if all its commands succeed (set -e). die and skip give the reason that
# the lab shows.

say() { printf '\n@@ %s\n' "$*" >&9; }

die()
{
	echo "$*" >/tmp/why
	exit 1
}

skip()
{
	echo "$*" >/tmp/why
	exit 77
}

# until_true SECONDS WHAT COMMAND...: waits for a condition, fails at the deadline.
until_true()
{
	case $- in *x*) _trace=x ;; *) _trace= ;; esac
	{ set +x; } 2>/dev/null
	_end=$(($(cut -d. -f1 /proc/uptime) + $1 * patience))
	_what=$2
	shift 2
	while ! "$@" >/dev/null 2>&1; do
		[ "$(cut -d. -f1 /proc/uptime)" -lt "$_end" ] || die "not in time: $_what"
		sleep 0.05
	done
	[ -z "$_trace" ] || set -x
}

# barrier NAME: waits until all machines are here
barrier()
{
	[ "$machines" -gt 1 ] || return 0
	say "barrier $1"
	read -r _go <&9
	[ "$_go" = "go $1" ] || die "another machine failed before $1"
}

# kill_machine NUMBER: cuts its power, for the rest of the topic. Not for machine 1, through which
# all packets pass.
kill_machine() { say "kill $1"; }

# switch PORT...: one switch in this machine. "va 10.77.0.1" is a port in the initial
# namespace, "soft/vc 10.77.0.3" one in the namespace "soft". Even ports of the initial
# namespace reach each other over the wire, as two machines do: each has its own routing
# table, which comes before the local table.
switch()
{
	ip link add br0 type bridge forward_delay 0 mcast_snooping 0
	ip link set br0 mtu 4500 up
	while [ $# -gt 0 ]; do
		_dev=${1#*/} _ns= _ip=$2
		case $1 in */*) _ns=${1%/*} ;; esac
		shift 2
		ip link add "$_dev" mtu 4500 type veth peer name "p$_dev" mtu 4500
		ip link set "p$_dev" master br0 up
		if [ -n "$_ns" ]; then
			ip netns add "$_ns"
			ip link set "$_dev" netns "$_ns"
			ip -n "$_ns" link set lo up
			ip -n "$_ns" addr add "$_ip/24" dev "$_dev"
			ip -n "$_ns" link set "$_dev" up
			continue
		fi
		local_port "$_dev" "$_ip"
	done
	local_table_last
}

# wire PORT ADDRESS PORT ADDRESS: two ports of the initial namespace, joined directly.
wire()
{
	ip link add "$1" mtu 4500 type veth peer name "$3" mtu 4500
	local_port "$1" "$2"
	local_port "$3" "$4"
	local_table_last
}

local_port()
{
	for _d in "$1" all; do
		_p=/proc/sys/net/ipv4/conf/$_d
		echo 1 >$_p/accept_local
		echo 0 >$_p/rp_filter
		echo 1 >$_p/arp_ignore
		echo 2 >$_p/arp_announce
	done
	ip addr add "$2/24" dev "$1"
	ip link set "$1" up
	own_routes "$1" "$2"
}

local_table_last()
{
	ip rule add pref 1000 lookup local
	ip rule del pref 0
}

# own_routes PORT ADDRESS: fills its routing table, whose number is the address's last byte.
own_routes()
{
	_table=$((100 + ${2##*.}))
	ip route replace local "$2" dev "$1" table $_table
	ip route replace "${2%.*}.0/24" dev "$1" src "$2" table $_table
	ip rule del pref $_table 2>/dev/null || true
	ip rule add pref $_table iif lo from "$2" to "${2%.*}.0/24" lookup $_table
}

# move_port PORT OLD NEW: the port gets another address.
move_port()
{
	ip addr del "$2/24" dev "$1"
	ip rule del pref $((100 + ${2##*.}))
	ip addr add "$3/24" dev "$1"
	own_routes "$1" "$3"
}

# rxe NAME NETDEV: makes a Soft-RoCE device and waits until it is ready for use.
rxe()
{
	rdma link add "$1" type rxe netdev "$2"
	until_true 20 "$1 is active" grep -q ACTIVE "/sys/class/infiniband/$1/ports/1/state"
	until_true 20 "$1 has an IPv4 GID" \
		grep -q 0000:0000:0000:0000:0000:ffff "/sys/class/infiniband/$1/ports/1/gids/1"
}

# pattern FILE MIB SEED: writes bytes that name their offset and file.
pattern()
{
	awk -v n="$2" -v s="$3" 'BEGIN { for (i = 0; i < n * 16384; i++) printf "%s%059x\n", s, i }' >"$1"
}

# serve ADDRESS DIRECTORY: a storage daemon that listens on port 17430. Every machine
# of the lab has the same key.
cluster_key() { (umask 077 && printf '%064d' 17430 >/tmp/key); }

serve()
{
	cluster_key
	rm -f /tmp/coopfsd.ready
	coopfsd --listen "$1:17430" --export "data=$2" --key /tmp/key --log-level debug \
		--ready-fd 7 7>/tmp/coopfsd.ready >/tmp/coopfsd.log 2>&1 &
	echo $! >/tmp/coopfsd.pid
	until_true 30 "coopfsd listens" listens
}

listens()
{
	gone "$(cat /tmp/coopfsd.pid)" && die "coopfsd: $(cat /tmp/coopfsd.log)"
	[ -s /tmp/coopfsd.ready ]
}

end_serve()
{
	kill "$(cat /tmp/coopfsd.pid)"
	until_true 30 "coopfsd has ended" gone "$(cat /tmp/coopfsd.pid)"
}

# away: kills the daemon, as if its machine had failed
away()
{
	kill -9 "$(cat /tmp/coopfsd.pid)"
	until_true 30 "coopfsd has ended" gone "$(cat /tmp/coopfsd.pid)"
}

# stand_between: makes 127.0.0.2 lead to the daemon through a program that holds messages back when
# told to (tests/vm/between.c)
stand_between()
{
	[ ! -e /tmp/between.pid ] || return 0
	rm -f /tmp/between /tmp/between.log
	mkfifo /tmp/between
	: >/tmp/between.log
	coop-between 127.0.0.2 "$server" /tmp/between /tmp/between.log >/tmp/between.said 2>&1 &
	echo $! >/tmp/between.pid
	until_true 30 "coop-between listens" grep -q ^ready /tmp/between.log
}

# between ORDER: gives the program an order and waits until it is done; said WHAT: how often the
# program has printed this
said() { grep -cx "$*" /tmp/between.log || true; }

between()
{
	_times=$(said "done $*")
	echo "$*" >/tmp/between
	until_true 30 "coop-between does: $*" said_more "$_times" "done $*"
}

# said_more TIMES WHAT
said_more()
{
	_than=$1
	shift
	[ "$(said "$*")" -gt "$_than" ]
}

gone() { ! kill -0 "$1" 2>/dev/null; }

mounted() { grep -q " $1 " /proc/mounts; }

# fuse_mount NAME SERVER OPTIONS [NAMESPACE]: a FUSE node at /mnt/NAME.
fuse_mount()
{
	mkdir -p "/mnt/$1"
	[ -e /tmp/key ] || cluster_key
	if [ -n "${4:-}" ]; then
		set -- "$1" "$2" "$3" "/usr/bin/nsenter --net=/run/netns/$4"
	else
		set -- "$1" "$2" "$3" ""
	fi
	$4 coopfs-fuse "$2:/data" "/mnt/$1" -f -o "key=/tmp/key,$3" >"/tmp/$1.log" 2>&1 &
	echo $! >"/tmp/$1.pid"
	until_true 60 "/mnt/$1 is mounted" usable "$1"
}

usable()
{
	if gone "$(cat "/tmp/$1.pid")"; then
		wait "$(cat "/tmp/$1.pid")" || die "coopfs-fuse ended with $?: $(cat "/tmp/$1.log")"
	fi
	mounted "/mnt/$1" && [ -e "/mnt/$1/.coopfs/info" ]
}

# fuse_end NAME...: ends what is left of these nodes after a test that failed.
fuse_end()
{
	for _n in "$@"; do
		[ -e "/tmp/$_n.pid" ] || continue
		gone "$(cat "/tmp/$_n.pid")" || kill -9 "$(cat "/tmp/$_n.pid")"
		! mounted "/mnt/$_n" || umount -l "/mnt/$_n"
	done
}

fuse_unmount()
{
	kill "$(cat "/tmp/$1.pid")"
	until_true 60 "the node $1 has ended" gone "$(cat "/tmp/$1.pid")"
	! mounted "/mnt/$1" || die "/mnt/$1 is still mounted"
}

# stat NODE KIND NAME [FIELD]: one number of .coopfs/stats.
stat_of()
{
	awk -v k="$2" -v n="$3" -v f="${4:-}" '$1 == k && $2 == n {
		if (f == "") { print $3; exit }
		for (i = 3; i < NF; i++) if ($i == f) { print $(i + 1); exit }
	}' "/mnt/$1/.coopfs/stats"
}

# at_least NUMBER KEY...: stat_of KEY... has reached the number.
at_least()
{
	_least=$1
	shift
	[ "$(stat_of "$@")" -ge "$_least" ]
}

# is_number NUMBER KEY...: stat_of KEY... is the number.
is_number()
{
	_number=$1
	shift
	[ "$(stat_of "$@")" = "$_number" ]
}

sum() { sha256sum <"$1" | cut -c1-64; }

# same NODE FILE: the node reads the bytes that storage has
same() { [ "$(sum "/mnt/$1/$2")" = "$(sum "/srv/$2")" ] || die "node $1 read $2 wrongly"; }

# leaks: objects that kmemleak reports lost both now and a moment ago, except those that the kernel
# itself loses when it fails to make a slab cache.
leaks()
{
	[ -e /sys/kernel/debug/kmemleak ] || return 0
	echo scan >/sys/kernel/debug/kmemleak
	echo scan >/sys/kernel/debug/kmemleak
	awk 'function tell() { if (record !~ /sysfs_slab_add/) printf "%s", record; record = "" }
		/^unreferenced object/ { tell() }
		{ record = record $0 "\n" }
		END { tell() }' /sys/kernel/debug/kmemleak
}

# ---- allocations that fail ----

# failing KIND: the kind of allocations that coop-fail-nth makes fail, in tasks of its choice
failing()
{
	_debug=/sys/kernel/debug
	[ -e $_debug/failslab ] && [ -e /proc/self/fail-nth ] || skip "this kernel injects no failures"
	for _k in failslab fail_page_alloc; do
		echo 0 >$_debug/$_k/probability
		echo 0 >$_debug/$_k/verbose
		echo N >$_debug/$_k/ignore-gfp-wait
	done
	echo N >$_debug/fail_page_alloc/ignore-gfp-highmem
	case $1 in
	slab) # page allocations never reach this order
		echo N >$_debug/failslab/cache-filter
		echo 20 >$_debug/fail_page_alloc/min-order
		;;
	page) # no cache is marked for the filter
		echo Y >$_debug/failslab/cache-filter
		echo 0 >$_debug/fail_page_alloc/min-order
		;;
	esac
}

# in_interrupts PERCENT: makes this share of atomic allocations fail, among them the device's for
# datagrams; the queue pair of such a send enters the error state
in_interrupts()
{
	_debug=/sys/kernel/debug/failslab
	echo 0 >$_debug/probability
	echo 0 >$_debug/verbose
	echo N >$_debug/task-filter
	echo Y >$_debug/ignore-gfp-wait
	echo N >$_debug/cache-filter
	echo 1 >$_debug/interval
	echo -1 >$_debug/times
	echo "$1" >$_debug/probability
}

# The module leaves nothing behind, and loads again. kmemleak ignores objects younger than five
# seconds.
nothing_left()
{
	rmmod coopfs || die "the module is still in use"
	[ ! -e /proc/fs/coopfs ] || die "/proc/fs/coopfs is still there"
	grep '^coop' /proc/slabinfo && die "there are caches left"
	insmod /lab/files/coopfs.ko
	sleep 6
	leaks >/tmp/leaks
	[ ! -s /tmp/leaks ] || die "leaks: $(head -n 20 /tmp/leaks)"
}

# ---- background jobs ----

# few N: N, or fewer on a debug kernel
few() { echo $((($1 + patience - 1) / patience)); }

# peer_time: a fetch's time for peers, as a mount option. An emulated processor is an order of
# magnitude slower than a real one, and a debug kernel needs the longest time allowed.
peer_time() { echo "peer_timeout_ms=$((patience > 1 ? 10000 : 4000))"; }

# job NAME COMMAND...: runs the command in the background; job_ends waits for its status
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

# sniff INTERFACE: counts its RoCE v2 packets until sniff_ends
sniff()
{
	rm -f /tmp/sniff.in
	mkfifo /tmp/sniff.in
	job sniff sh -c "exec coop-sniff $1 </tmp/sniff.in >/tmp/sniffed"
	exec 6>/tmp/sniff.in
	until_true 20 "coop-sniff listens" grep -q listening /tmp/sniff.said
}

sniff_ends()
{
	exec 6>&-
	job_ends 20 sniff
}

# in_class ADDRESS TCLASS: packets had that source, all of them this traffic class. Several datagrams
# of soft RoCE may count as one.
in_class()
{
	_good=$(awk -v a="$1" -v t="$2" '$1 == a && $2 == t { n += $4 } END { print n + 0 }' /tmp/sniffed)
	_other=$(awk -v a="$1" -v t="$2" '$1 == a && $2 != t { n += $4 } END { print n + 0 }' /tmp/sniffed)
	[ "$_good" -gt 20 ] || die "$1 sent $_good packets of class $2"
	[ "$_other" = 0 ] || die "$1 sent $_other packets of other classes than $2"
}

running() { [ ! -s "/tmp/$1.status" ]; }

# stacks PID: where its threads are
stacks()
{
	for _t in "/proc/$1/task"/*; do
		echo "-- $(cat "$_t/comm") $(cat "$_t/wchan") $(cat "$_t/syscall")"
		cat "$_t/stack"
	done
} 2>&1

# waits NAME [FUNCTION]: the job is inside the module, in that function
waits() { grep -q "${2:-coopfs}" "/proc/$(cat "/tmp/$1.job")/stack"; }

# ---- nodes of the module: a on rxe0, b on rxe1, at /mnt/NODE ----

# wired: loads the module, and makes the devices of a and b with a wire between them
wired()
{
	insmod /lab/files/coopfs.ko
	wire va 10.77.0.1 vb 10.77.0.2
	rxe rxe0 va
	rxe rxe1 vb
}

# stored SERVER: starts a daemon that exports /srv, a tmpfs, and makes the mount points of a and b
stored()
{
	mkdir -p /srv /mnt/a /mnt/b
	mount -t tmpfs srv /srv
	serve "$1" /srv
}

# proc NODE: its directory below /proc/fs/coopfs
proc() { echo "/proc/fs/coopfs/$(stat -c %d "/mnt/$1" | awk '{ print $1 % 256 + int($1 / 1048576) * 256 }')"; }

# kmount NODE SERVER OPTIONS
kmount() { coopfs mount -t coopfs -o "key=/tmp/key,$3" "$2:/data" "/mnt/$1" || die "mount of $1: $?"; }

# in_place NODE: it has copied no fetched page
in_place() { [ "$(of "$1" read copied_bytes)" = 0 ] || die "pages of $1 were copied"; }

# options NODE: the mount options for its device
options()
{
	case $1 in
	a) echo "ib,ib_devname=rxe0,$(peer_time)" ;;
	b) echo "ib,ib_devname=rxe1,$(peer_time)" ;;
	esac
}

# up [OPTIONS]: mounts both nodes and waits until they know each other; topics with other nodes define
# their own
up()
{
	kmount a "$server" "$(options a)${1:-}"
	kmount b "$server" "$(options b)${1:-}"
	acquainted
}

acquainted()
{
	until_true 30 "a knows b" knows a 1
	until_true 30 "b knows a" knows b 1
}

down() { for _n in "$@"; do umount "/mnt/$_n" || die "umount of $_n"; done; }

# port_is NODE up|down
up_or_down() { awk '$1 == "endpoint" { print $NF == "down" ? "down" : "up" }' "$(proc "$1")/info"; }
port_is() { [ "$(up_or_down "$1")" = "$2" ]; }

knows() { [ "$(grep -c ^peer "$(proc "$1")/peers")" = "$2" ]; }

# of NODE KIND NAME [FIELD]: one number of stats
of()
{
	awk -v k="$2" -v n="$3" -v f="${4:-}" '$1 == k && $2 == n {
		if (f == "") { print $3; exit }
		for (i = 3; i < NF; i++) if ($i == f) { print $(i + 1); exit }
	}' "$(proc "$1")/stats"
}

# queue_pairs: the count on all devices
queue_pairs() { rdma resource show | awk '{ for (i = 1; i < NF; i++) if ($i == "qp") n += $(i + 1) } END { print n + 0 }'; }

# more_than NUMBER KEY...: of KEY... exceeds the number
more_than()
{
	_least=$1
	shift
	[ "$(of "$@")" -gt "$_least" ]
}

# For after_failure: prints the state of nodes and daemon. It does not touch the mounts: they may hang.
tell()
{
	for _d in /proc/fs/coopfs/*; do
		[ ! -d "$_d" ] || cat "$_d/info" "$_d/peers" "$_d/stats" "$_d/requests"
	done
	tail -n 20 /tmp/coopfsd.log
}

# For after_failure: ends jobs and nodes, which takes a daemon.
clear_up()
{
	for _j in /tmp/*.job; do
		[ ! -e "$_j" ] || kill -9 "$(cat "$_j")"
	done
	kill -CONT "$(cat /tmp/coopfsd.pid)" || serve "$server" /srv
	for _n in a b; do
		! mounted "/mnt/$_n" || umount "/mnt/$_n" || umount -l "/mnt/$_n"
	done
}

# ---- files of coop-pattern ----

# new DIRECTORY FILES BYTES: makes files of version 1 below the export. Storage can prove their
# versions; without that nodes do not exchange pages.
new()
{
	mkdir -p "/srv/$1"
	coop-pattern write "/srv/$1" 1 "$2" "$3" 1
	coop-pattern settle "/srv/$1"/*
}

# right NODE DIRECTORY FILES BYTES [OPTIONS]: checks on the node that they are of version 1
right()
{
	_node=$1 _dir=$2 _files=$3 _bytes=$4
	shift 4
	coop-pattern "$@" check "/mnt/$_node/$_dir" 1 "$_files" "$_bytes" 1 2>/tmp/said ||
		die "node $_node: $(cat /tmp/said)"
}
