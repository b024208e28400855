# SPDX-License-Identifier: MIT
# Machine 1 holds a file: in storage (coopfsd, knfsd, diod, one tmpfs behind all), and
# in the page cache of its own coopfs mount. Machine 2 reads it over the same link in each
# way, cold and then warm. The raw limit of the link is measured first.
#
# Each figure is a line "@@ KIND ..." that the program on the host collects. A test that
# cannot be set up is skipped; the rest runs.
#
#: programs coopfsd coopfs coopfs-fuse ip rdma fio ib_send_bw ibv_ud_pingpong
#: optional diod rpc.mountd exportfs perf coopnet
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe ib_uverbs
#: modules nfsd nfsv4 rpcrdma 9p 9pnet_fd fuse
#: files $KO/coopfs.ko /etc/protocols /etc/services /etc/netconfig
#: memory 2048
#: machines 2
#: cpus 1
#: checks off
#: deadline 4000

server=10.9.0.1
size=64 # MiB
file=big.bin
readahead_kb=1024 # of every mount

setup()
{
	rxe rxe0 eth0
	insmod /lab/files/coopfs.ko
	mkdir -p /srv /mnt/m /etc
	cp /lab/files/protocols /lab/files/services /lab/files/netconfig /etc/
	cluster_key
	if [ "$node" = 1 ]; then
		mount -t tmpfs -o size=128m srv /srv
		dd if=/dev/urandom of=/srv/$file bs=1M count=$size
		serve $server /srv
		nfs_server >/tmp/nfs.log 2>&1 || cat /tmp/nfs.log
		diod_server >/tmp/diod.log 2>&1 || cat /tmp/diod.log
	fi
	barrier served
	if [ "$node" = 1 ]; then
		coop_mount ib,ib_devname=rxe0,peer_timeout_ms=10000
		cat /mnt/m/$file >/dev/null
	fi
	barrier held
}

# Starts knfsd without rpc.nfsd: the kernel makes the sockets that are written to its files.
nfs_server()
{
	[ -x /usr/bin/rpc.mountd ] && [ -x /usr/bin/exportfs ] || return 1
	mkdir -p /var/lib/nfs/v4recovery /proc/fs/nfsd
	: >/var/lib/nfs/etab
	: >/var/lib/nfs/rmtab
	mount -t nfsd nfsd /proc/fs/nfsd
	echo "/srv *(rw,sync,fsid=0,no_root_squash,no_subtree_check,insecure)" >/etc/exports
	echo 10 >/proc/fs/nfsd/nfsv4leasetime
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	rpc.mountd -N 3 || return 1
	exportfs -ra || return 1
	echo "-3 +4 +4.1 +4.2" >/proc/fs/nfsd/versions
	echo "tcp 2049" >/proc/fs/nfsd/portlist || return 1
	echo "rdma 20049" >/proc/fs/nfsd/portlist || echo "no RDMA"
	echo 4 >/proc/fs/nfsd/threads || return 1
	touch /tmp/nfs.up
	echo Y >/proc/fs/nfsd/v4_end_grace || true
}

diod_server()
{
	[ -x /usr/bin/diod ] || return 1
	# diod looks up its clients' names, and would ask a name server.
	echo "hosts: files" >/etc/nsswitch.conf
	printf '127.0.0.1 localhost\n10.9.0.1 holder\n10.9.0.2 reader\n' >/etc/hosts
	diod -f -n -U root -e /srv -l $server:564 &
	until_true 120 "diod listens" grep -qi ":0234 00000000:0000 0A" /proc/net/tcp
	touch /tmp/diod.up
}

coop_mount() # OPTIONS
{
	coopfs mount -t coopfs -o "key=/tmp/key,$1" $server:/data /mnt/m ||
		die "mount: $?"
}

proc()
{
	echo "/proc/fs/coopfs/$(stat -c %d /mnt/m | awk '{ print $1 % 256 + int($1 / 1048576) * 256 }')"
}

knows_one() { [ "$(grep -c ^peer "$(proc)/peers")" = 1 ]; }

stats() { say "stats $1 $(tr '\n' ';' <"$(proc)/stats")"; }

# readahead KIB: sets that of the mount; its bdi is named by device number or by kind.
readahead()
{
	_dev=$(stat -c %d /mnt/m | awk '{ print "0:" $1 % 256 + int($1 / 1048576) * 256 }')
	[ -e "/sys/class/bdi/$_dev" ] ||
		_dev=$(ls /sys/class/bdi | grep -E '^(coopfs|9p|nfs)-[0-9]+$' | tail -n 1)
	echo "$1" >"/sys/class/bdi/$_dev/read_ahead_kb"
}

cold()
{
	! mounted /mnt/m || umount /mnt/m
	echo 3 >/proc/sys/vm/drop_caches
}

# run_fio SYSTEM CASE STATE OPTIONS...
run_fio()
{
	_what="$1 $2 $3"
	shift 3
	timeout 600 /usr/bin/fio --name=read --filename=/mnt/m/$file --readonly --invalidate=0 --thread \
		--ioengine=psync --size=${size}m --minimal --terse-version=3 --randseed=1 \
		"$@" >/tmp/fio.out 2>/tmp/fio.err || { cat /tmp/fio.out /tmp/fio.err; die "fio: $_what"; }
	say "fio $_what $(grep '^3;' /tmp/fio.out)"
}

# Warm reads are fast, so fio repeats them to take measurable time.
sequential()
{
	_loops=1
	[ "$2" = cold ] || _loops=8
	run_fio "$1" seq128k "$2" --rw=read --bs=128k --loops=$_loops
}

random_4k()
{
	_bytes=8m
	[ "$2" = cold ] || _bytes=192m
	run_fio "$1" rand4k "$2" --rw=randread --bs=4k --io_size=$_bytes --runtime=4
}

# An emulator translates code at its first run, and its host provides memory at its first touch:
# without a rehearsal the first measurement would pay for all.
rehearsal()
{
	cat /mnt/m/$file >/dev/null
	run_fio "$1" rehearsal cold --rw=randread --bs=4k --io_size=1m 9>/dev/null
}

# ways SYSTEM MOUNT-COMMAND...: measures each case cold, and the sequential one warm too.
ways()
{
	_system=$1
	shift
	cold
	"$@"
	rehearsal "$_system"
	cold
	"$@"
	readahead $readahead_kb
	sequential "$_system" cold
	! [ -e "$(proc)/stats" ] || stats "$_system"
	sequential "$_system" warm
	random_4k "$_system" warm
	cold
	"$@"
	random_4k "$_system" cold
	cold
}

reader() # TEST COMMAND...: machine 2 runs it; machine 1 waits
{
	_test=$1
	shift
	[ "$node" = 1 ] || "$@"
	barrier "$_test"
}

# ---- the raw limit -------------------------------------------------------------------

# bandwidth DEPTH OPTION...: the received MB/s of a sender with so many sends in flight. On a single
# processor a receiver that polls starves the stack below it, so one that sleeps is measured too; and
# a sender that does not pace itself makes it lose datagrams.
bandwidth()
{
	_depth=$1
	shift
	if [ "$node" = 1 ]; then
		timeout 60 ib_send_bw "$@" >/tmp/bw.out 2>&1 || { cat /tmp/bw.out; die "ib_send_bw"; }
		say "raw $(awk '$1 == 4096 { print $4 }' /tmp/bw.out)"
	else
		until_true 30 "ib_send_bw answers" timeout 60 ib_send_bw "$@" -t "$_depth" $server
	fi
}

raw_link() # MARK
{
	bandwidth 64 -c UD -d rxe0 -x 1 -s 4096 -r 2000 -D 3 -F
	barrier "$1-polled"
	for depth in 64 16; do
		bandwidth $depth -c UD -d rxe0 -x 1 -s 4096 -r 2000 -n 10000 -F -e
		barrier "$1-slept-$depth"
	done
	for bytes in 4096 256; do
		set -- "$1" ibv_ud_pingpong -d rxe0 -g 1 -n 500 -e -s $bytes
		pingpong "$@"
		barrier "$1-pong$bytes"
	done
}

pingpong() # MARK COMMAND...
{
	shift
	if [ "$node" = 1 ]; then
		timeout 60 "$@"
		return
	fi
	pong() { timeout 30 "$@" $server >/tmp/pong.out 2>&1; }
	until_true 30 "ibv_ud_pingpong answers" pong "$@"
	say "pingpong $bytes $(awk '/usec\/iter/ { print $(NF - 1) }' /tmp/pong.out)"
}

test_raw() { raw_link before; }

# ---- coopfs --------------------------------------------------------------------------

test_coopfs_storage() { reader storage ways coopfs-storage coop_mount readahead=256; }

with_peer() # OPTIONS
{
	coop_mount "ib,ib_devname=rxe0,peer_timeout_ms=10000$1"
	until_true 120 "the reader knows the holder" knows_one
}

# The time of a fetch by the tracepoint, and how busy both processors are meanwhile.
test_coopfs_peer()
{
	reader peer ways coopfs-peer with_peer ""
	busy_between peer_timed
}

ticks() { awk '/^cpu / { print $5 + $6, $2 + $3 + $4 + $5 + $6 + $7 + $8 }' /proc/stat; }

busy_between()
{
	_tracing=/sys/kernel/debug/tracing
	if [ "$node" = 2 ]; then
		cold
		with_peer ""
		readahead $readahead_kb
		echo 1 >$_tracing/events/coopfs/coopfs_fetch_done/enable
	fi
	barrier "$1-begin"
	_before=$(ticks)
	if [ "$node" = 2 ]; then
		_begun=$(cut -d' ' -f1 /proc/uptime)
		cat /mnt/m/$file >/dev/null
		say "timed $(cut -d' ' -f1 /proc/uptime | awk -v b="$_begun" -v s=$size '{ print s * 1.048576 / ($1 - b) }')"
	fi
	barrier "$1-end"
	say "busy $node $(ticks | awk -v b="$_before" '{ split(b, o, " "); print 1 - ($1 - o[1]) / ($2 - o[2]) }')"
	if [ "$node" = 2 ]; then
		say "fetches $(awk '/coopfs_fetch_done/ {
			for (i = 1; i <= NF; i++) { split($i, p, "="); v[p[1]] = p[2] }
			n++; pages += v["pages"]; us += v["us"]
		} END { print n + 0, pages + 0, us + 0 }' $_tracing/trace)"
		echo 0 >$_tracing/events/coopfs/coopfs_fetch_done/enable
		cold
	fi
}

# Measure the limit again right after, so that other load on the host does not decide it.
test_raw_again() { raw_link after; }

# One readahead of 128 KiB at a time.
latency()
{
	cold
	with_peer ,readahead=32
	run_fio coopfs-peer rand128k cold --rw=randread --bs=128k --io_size=24m
	stats latency
	cold
}
test_coopfs_latency() { reader latency latency; }

test_coopfs_copy() { reader copy ways coopfs-copy with_peer ,ib_copy; }

# Where the processors' time goes while pages come from the peer. Both machines start to record
# before the first request, and record until the last page has arrived.
test_profile()
{
	[ -x /usr/bin/perf ] || skip "no perf"
	if [ "$node" = 2 ]; then
		cold
		with_peer ""
		readahead $readahead_kb
	fi
	cat >/tmp/recorded.sh <<-EOF
		machines=$machines
		. /lab/lib.sh
		barrier record
		[ $node = 1 ] || dd if=/mnt/m/$file of=/dev/null bs=128k
		barrier recorded
	EOF
	timeout 600 perf record -q -a -e cpu-clock -F 500 -o /tmp/perf.data -- sh -eu /tmp/recorded.sh
	[ "$node" = 1 ] || umount /mnt/m
	# perf attributes a module's symbols to the kernel, because the module's file is not here.
	timeout 600 perf report -i /tmp/perf.data --stdio --sort dso,symbol 2>/dev/null |
		awk 'NR == FNR { if (NF > 3) module[$3] = $4; next }
			/%/ && $1 !~ /#/ && n++ < 300 { if ($4 in module) $2 = module[$4]; print }' \
			/proc/kallsyms - >/tmp/perf.txt
	cat /tmp/perf.txt
	while read -r share dso _ symbol; do
		say "profile $node ${share%\%} $dso $symbol"
	done </tmp/perf.txt
}

# ---- the others ----------------------------------------------------------------------

nfs()
{
	mount -t nfs4 -o "addr=$server,clientaddr=10.9.0.2,vers=4.1,rsize=1048576,$1" $server:/ /mnt/m ||
		die "mount of NFS, $1: $?"
}

served() # MARK WHY: skips the test unless machine 1 has the mark
{
	[ "$node" = 2 ] || [ -e "$1" ] || skip "$2"
	barrier "has-$2"
}

test_nfs_tcp()
{
	served /tmp/nfs.up knfsd
	reader nfs_tcp ways nfs-tcp nfs proto=tcp,port=2049
}

test_nfs_rdma()
{
	served /tmp/nfs.up knfsd
	reader nfs_rdma ways nfs-rdma nfs proto=rdma,port=20049
}

# Mounts with the largest messages that both sides accept.
nine_p()
{
	for msize in 1048576 262144 65536; do
		! mount -t 9p -o trans=tcp,port=564,version=9p2000.L,msize=$msize,cache=loose,uname=root,access=any,aname=/srv,ro \
			$server /mnt/m || return 0
	done
	die "9p cannot be mounted"
}

test_9p()
{
	served /tmp/diod.up diod
	reader 9p ways 9p-tcp nine_p
}

# ---- many small files, written -------------------------------------------------------

files=400 # of 2 KiB, 100 per directory

archive()
{
	mkdir -p /tmp/untar
	for _i in $(seq 0 $((files - 1))); do
		mkdir -p "/tmp/untar/$((_i / 100))"
		head -c 2048 /dev/urandom >"/tmp/untar/$((_i / 100))/$_i"
	done
	tar -cf /tmp/untar.tar -C /tmp/untar .
}

fuse_mount() # OPTIONS
{
	coopfs mount -t fuse.coopfs -o "key=/tmp/key,allow_other,$1" $server:/data /mnt/m || die "mount of FUSE: $?"
}

# unpack SYSTEM MOUNT-COMMAND...: times tar and the writeback that is left when it ends.
unpack()
{
	_system=$1
	shift
	cold
	"$@"
	mkdir -p "/mnt/m/untar-$_system"
	_begun=$(cut -d' ' -f1 /proc/uptime)
	tar -xf /tmp/untar.tar -C "/mnt/m/untar-$_system"
	sync
	say "untar $_system $(cut -d' ' -f1 /proc/uptime | awk -v b="$_begun" -v n=$files '{ print n / ($1 - b) }')"
	cold
	"$@"
	diff -r /tmp/untar "/mnt/m/untar-$_system" || die "$_system: other bytes"
	rm -r "/mnt/m/untar-$_system"
	cold
}

# Take turns, so that other load on this machine affects all systems.
unpack_all()
{
	archive
	for _turn in 1 2 3; do
		unpack coopfs coop_mount readahead=256
		unpack coopfs-no-commit coop_mount readahead=256,commit_on_close=0
		unpack coopfs-fuse fuse_mount readahead=256
		unpack coopfs-fuse-no-commit fuse_mount readahead=256,commit_on_close=0
		unpack nfs-tcp nfs proto=tcp,port=2049
	done
}

test_untar()
{
	served /tmp/nfs.up knfsd
	reader untar unpack_all
}

# ---- messages ------------------------------------------------------------------------

entries=/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter

# of this machine so far: changes of context, datagrams sent
done_here()
{
	echo "$(awk '/^ctxt/ { print $2 }' /proc/stat) $(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)"
}

# exchanges COUNT OPTIONS...: sends 8 bytes there and back so often; sets trip (us, median of half a
# round trip), count (round trips measured), and spent: the client's system calls, and what
# done_here() counts
exchanges()
{
	_count=$1
	shift
	_before=$(done_here)
	echo hist:keys=common_pid.execname >$entries/trigger
	timeout 300 coopnet ping -s 8 --seconds 60 --json -n "$_count" "$@" $server >/tmp/ping.out 2>&1 ||
		{ cat /tmp/ping.out; die "coopnet ping $*"; }
	spent="$(awk -F: '/common_pid: *coop-?net / { n += $NF } END { print n + 0 }' $entries/hist)"
	spent="$spent $(echo "$_before $(done_here)" | awk '{ print $3 - $1, $4 - $2 }')"
	echo '!hist:keys=common_pid.execname' >$entries/trigger
	trip=$(sed -n 's/.*"p50": *\([0-9.]*\).*/\1/p' /tmp/ping.out | head -n 1)
	count=$(sed -n 's/.*"count": *\([0-9]*\).*/\1/p' /tmp/ping.out | head -n 1)
}

# What the start costs is what a short exchange costs. Each message is half a round trip.
messages() # TRANSPORT PROGRESS
{
	_what="$1 $2"
	set -- -t "$1" -o device=rxe0 --progress "$2" --from 10.9.0.2
	exchanges 200 "$@"
	_start="$spent $count"
	exchanges 2200 "$@"
	say "message $_what $trip $(echo "$_start $spent $count" |
		awk '{ n = ($8 - $4) * 2; print ($5 - $1) / n, ($6 - $2) / n, ($7 - $3) / n * 2 }')"
}

# One transport after the other, three times, because the host's other load comes and goes.
test_messages()
{
	command -v coopnet || skip "no coopnet"
	for _turn in 1 2 3; do
		for _progress in block poll; do
			for _transport in ud kernel; do
				if [ "$node" = 1 ]; then
					job server coopnet serve -t $_transport -o device=rxe0 \
						--progress $_progress $server >/tmp/server.out
					until_true 300 "it serves" grep -q . /tmp/server.out
				fi
				barrier "messages-$_turn-$_progress-$_transport"
				[ "$node" = 1 ] || messages $_transport $_progress
				barrier "messages-$_turn-$_progress-$_transport-over"
				if [ "$node" = 1 ]; then
					kill "$(cat /tmp/server.job)"
					job_ends 300 server
				fi
			done
		done
	done
}

test_unmount()
{
	! mounted /mnt/m || umount /mnt/m
	rmmod coopfs
	barrier unloaded
}

after_failure()
{
	! [ -e /tmp/coopfsd.log ] || cat /tmp/coopfsd.log /tmp/diod.log /tmp/nfs.log
	[ "$node" = 1 ] || ! mounted /mnt/m || umount -l /mnt/m
	dmesg | tail -n 20
}
