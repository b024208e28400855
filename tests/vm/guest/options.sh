# SPDX-License-Identifier: MIT
# coopfs.ko: what a mount makes of its servers, options and remounts, of changes of its port, and of a
# daemon that begins another run.
# Two mounts in one machine, a and b, with a Soft-RoCE device each.
#
#: programs coopfsd coopfs coop-sniff ip rdma setpriv
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth
#: files $KO/coopfs.ko
#: memory 1024
#: deadline 240

server=10.77.0.1

setup()
{
	wired
	stored $server
	for n in a b c; do
		pattern "/srv/$n.bin" 2 "$n.bin"
	done
	echo '10.77.0.1 storage' >/etc/hosts
	echo 'hosts: files' >/etc/nsswitch.conf
}

after_failure()
{
	tell
	clear_up
} 2>&1

from_peers()
{
	_before=$(of "$1" source peer bytes)
	same "$1" "$2"
	_got=$(($(of "$1" source peer bytes) - _before))
	[ "$_got" -gt 1500000 ] || die "node $1 got $_got bytes of $2 from peers"
}

try() { coopfs mount -t coopfs "$@" 2>/tmp/said; } # COMMAND-LINE...

# A mount uses the first server that answers, and another when that is gone, without an error.
test_servers()
{
	try -o key=/tmp/key 10.77.0.2,$server:/data /mnt/a || die "$(cat /tmp/said)"
	same a a.bin
	away
	serve 10.77.0.2 /srv
	same a b.bin
	away
	serve $server /srv
	same a c.bin
	down a
	if try -o key=/tmp/key 10.77.0.1,10.77.0.2,10.77.0.3,10.77.0.4,10.77.0.5:/data /mnt/a; then
		die "five servers were taken"
	fi
	grep -q '4 at most' /tmp/said || die "$(cat /tmp/said)"
}

connected() { [ "$(of "$1" storage connected)" = 1 ]; }

refused_twice() { [ "$(grep -c 'closed by the client' /tmp/coopfsd.log)" -ge 2 ]; }

# A server that has another directory under the name is refused, also if no other answers: a file that
# it has is not read from it.
test_another_root()
{
	mkdir -p /srv/other
	pattern /srv/other/b.bin 2 other
	try -o key=/tmp/key,soft,timeo=20 $server,10.77.0.2:/data /mnt/a || die "$(cat /tmp/said)"
	same a a.bin
	away
	serve 10.77.0.2 /srv/other
	until_true 60 "a refuses it twice" refused_twice
	! connected a || die "a is connected to it"
	if cat /mnt/a/b.bin >/dev/null 2>&1; then die "a file was read"; fi
	away
	serve $server /srv
	until_true 60 "a is connected" connected a
	same a b.bin
	down a
}

test_names()
{
	try -o key=/tmp/key storage:17430:/data /mnt/a || die "$(cat /tmp/said)"
	grep -q '^storage:17430:/data /mnt/a ' /proc/mounts || die "$(grep coopfs /proc/mounts)"
	same a a.bin
	down a
	if try -o key=/tmp/key nowhere.invalid:/data /mnt/a; then die "nowhere was found"; fi
	grep -q nowhere.invalid /tmp/said || die "$(cat /tmp/said)"
}

test_keys()
{
	(umask 077 && printf '%064d' 1 >/tmp/wrong)
	if try -o key=/tmp/wrong $server:/data /mnt/a; then die "another key was taken"; fi
	grep -q key /tmp/said || die "the message is: $(cat /tmp/said)"
	if try -o key=/tmp/none $server:/data /mnt/a; then die "no key was taken"; fi
	grep -q /tmp/none /tmp/said || die "the message is: $(cat /tmp/said)"
	! mounted /mnt/a || die "something is mounted"
}

# refused WORD OPTIONS...: a mount of a with each of these fails, and its message has the word
refused()
{
	_word=$1
	shift
	for _o in "$@"; do
		if try -o "key=/tmp/key,$_o" $server:/data /mnt/a; then die "$_o was taken"; fi
		grep -q -e "$_word" /tmp/said || die "$_o: the message is: $(cat /tmp/said)"
	done
}

# ra_async=0 and its alias ra_sync=0: the reader waits for the pages of the window that it starts.
test_readahead()
{
	for o in readahead=64 readahead=64,ra_async=0 readahead=64,ra_sync=0; do
		case $o in *=0) async=0 ;; *) async=1 ;; esac
		kmount a $server "$(options a)"
		kmount b $server "$(options b),$o"
		acquainted
		[ "$(cat "/sys/class/bdi/$(last_bdi)/read_ahead_kb")" = 256 ] || die "$o: the bdi's readahead"
		same a a.bin
		from_peers b a.bin
		in_place b
		grep -q '^readahead=64$' "$(proc b)/options" || die "$o: readahead"
		grep -q "^ra_async=$async\$" "$(proc b)/options" || die "$o: ra_async"
		down a b
	done
	# No readahead: all 520 pages come from storage one by one. Then the largest readahead.
	kmount a $server "$(options a)"
	kmount b $server "$(options b),readahead=0"
	acquainted
	same a b.bin
	same b b.bin
	[ "$(of b source peer pages) $(of b source storage pages)" = "0 520" ] || die "without readahead"
	down b
	kmount b $server "$(options b),readahead=65536"
	acquainted
	same b b.bin
	[ "$(of b source peer bytes)" -gt 1500000 ] || die "with all readahead"
	down a b
}

last_bdi() { ls /sys/class/bdi | grep '^coopfs-' | sort -t - -k 2 -n | tail -n 1; }

# The options of the end point, by each of their names. (No program may send with a Q_Key whose top
# bit is set.)
test_port()
{
	kmount a $server "$(options a),ib_port=1,ib_gid=1,ib_sl=3,ib_tclass=104,ib_qkey=0x1234,ib_pkey=0xffff,serve_mbps=1000"
	kmount b $server "$(options b),ib_mtu=2048,ib_num_rrpc=4,ib_num_srpc=4"
	acquainted
	grep -q 'qkey=0x80001234.*sl=3' "$(proc a)/ibaddr" || die "$(cat "$(proc a)/ibaddr")"
	grep -q ',ib_tclass=104,' /proc/mounts || die 'no ib_tclass in /proc/mounts'
	! grep -q ib_qkey /proc/mounts || die 'all users can read the Q_Key'
	for o in ib_port=1 ib_gid=1 ib_sl=3 ib_tclass=104 ib_qkey=0x00001234 ib_pkey=0x0000ffff serve_mbps=1000; do
		grep -q "^$o\$" "$(proc a)/options" || die "no $o"
	done
	same a a.bin
	from_peers b a.bin
	same b b.bin
	from_peers a b.bin
	down a b
	refused GID "$(options a),ib_gid=200" "$(options a),ib_gid=1,addr=10.77.0.1"
	refused 'port' "$(options a),ib_port=9"
	refused ib_sl "$(options a),ib_sl=16"
	refused ib_tclass "$(options a),ib_tclass=256"
	refused 'not a member of that partition' "$(options a),ib_pkey=0x8001"
	refused ib_pkey "$(options a),ib_pkey=0" "$(options a),ib_pkey=0x10000"
	refused 10.77.0.99 "$(options a),addr=10.77.0.99"
	refused ib_num_srpc "$(options a),ib_num_srpc=1024" "$(options a),ib_mtu=256"
}

# ib_tclass= is that of each packet, of messages and of data; other nodes have their own.
test_traffic_class()
{
	kmount a $server "$(options a),ib_tclass=104"
	kmount b $server "$(options b)"
	sniff va
	acquainted
	same a a.bin
	from_peers b a.bin
	same b b.bin
	from_peers a b.bin
	sniff_ends
	in_class 10.77.0.1 104
	in_class 10.77.0.2 0
	down a b
}

user() { /usr/bin/setpriv --reuid=4000 --regid=4000 --clear-groups "$@"; }

# cached_of COMMAND...: bytes of the cache, in the stats of a that the command prints
cached_of() { "$@" "$(proc a)/stats" | awk '$1 == "cache" { print $5 }'; }

user_sees_it() { [ "$(cached_of user cat)" -ge 2097152 ]; }

# Other users than root read what costs little. They see the cache as it was counted lately.
test_proc()
{
	kmount a $server "$(options a)"
	[ "$(cached_of user cat)" -lt 2097152 ] || die "the cache is not empty"
	same a a.bin
	[ "$(cached_of cat)" -ge 2097152 ] || die "root sees $(cached_of cat) bytes"
	until_true 30 "another user sees them" user_sees_it
	for f in ibaddr peers requests options; do
		cat "$(proc a)/$f" >/dev/null
		! user cat "$(proc a)/$f" >/dev/null 2>&1 || die "any user reads $f"
	done
	user cat "$(proc a)/info" >/dev/null
	! user cat /proc/fs/coopfs/net >/dev/null 2>&1 || die "any user reads net"
	down a
}

# This node's address chooses the device's GID.
test_address()
{
	ip addr add fd77::1/64 dev va nodad
	for addr in 10.77.0.1 fd77::1; do
		kmount a $server "$(options a),addr=$addr"
		case $addr in *.*) gid=::ffff:$addr ;; *) gid=$addr ;; esac
		[ "$(head -n 1 "$(proc a)/ibaddr" | grep -c "gid=$gid ")" = 1 ] || die "$(cat "$(proc a)/ibaddr")"
		grep -q "^addr=$addr\$" "$(proc a)/options" || die "addr is not shown"
		down a
	done
	ip addr del fd77::1/64 dev va
}

# serve_mbps limits what a node serves, also after a remount; the rest comes from storage.
test_limit()
{
	kmount a $server "$(options a)"
	kmount b $server ib,ib_devname=rxe1,peer_timeout_ms=200
	acquainted
	same a c.bin
	refused "'timeo' has no effect" remount,timeo=70
	try -o remount,serve_mbps=1,peer_timeout_ms=300 $server:/data /mnt/a || die "$(cat /tmp/said)"
	grep -q '^serve_mbps=1$' "$(proc a)/options" || die "serve_mbps"
	grep -q '^peer_timeout_ms=300$' "$(proc a)/options" || die "peer_timeout_ms"
	same b c.bin
	[ "$(of a serve limited)" -gt 0 ] || die "nothing was limited"
	[ "$(of b source storage bytes)" -gt 500000 ] || die "storage was not asked"
	down a b
	kmount a $server readahead=64
	refused "'serve_mbps' has no effect" remount,serve_mbps=1
	grep -q '^readahead=64$' "$(proc a)/options" || die "a refused remount changed something"
	down a
}

flags() { awk '$2 == "/mnt/a" { print "," $4 "," }' /proc/mounts; }

# A remount as mount(8) does it, with all flags, and by hand, which keeps the other flags.
test_remount()
{
	ln -sf /usr/bin/coopfs /tmp/mount.coopfs
	try -o "key=/tmp/key,nosuid,sync,$(options a)" $server:/data /mnt/a || die "$(cat /tmp/said)"
	flags | grep -q ,sync, || die "sync: $(flags)"
	try -o remount,ro,readahead=16 $server:/data /mnt/a || die "$(cat /tmp/said)"
	flags | grep -q ,ro, || die "ro: $(flags)"
	flags | grep -q ,nosuid, || die "nosuid went: $(flags)"
	grep -q '^readahead=16$' "$(proc a)/options" || die "readahead"
	if echo x >/mnt/a/new; then die "the mount is writable"; fi
	/tmp/mount.coopfs $server:/data /mnt/a -o rw,noexec,noatime,remount || die "mount.coopfs"
	flags | grep -q ,rw, || die "rw: $(flags)"
	flags | grep -q ,noexec, || die "noexec: $(flags)"
	flags | grep -q ,noatime, || die "noatime: $(flags)"
	if flags | grep -q nosuid; then die "nosuid stays: $(flags)"; fi
	if flags | grep -q ,sync,; then die "sync stays: $(flags)"; fi
	echo x >/mnt/a/new
	if try -o remount,ib_mtu=1024 $server:/data /mnt/a; then die "ib_mtu was changed"; fi
	grep -q ib_mtu /tmp/said || die "the message is: $(cat /tmp/said)"
	down a
	if try -o remount,ro $server:/data /mnt/a; then die "a remount without a mount succeeded"; fi
	grep -q 'no coopfs mount' /tmp/said || die "the message is: $(cat /tmp/said)"
	rm /srv/new
}

# The port gets another address: the daemon tells the other nodes, and pages flow again in both
# directions.
test_gid_change()
{
	up
	same a a.bin
	from_peers b a.bin
	move_port vb 10.77.0.2 10.77.0.9
	until_true 60 "b has its new address" grep -q 10.77.0.9 "$(proc b)/ibaddr"
	until_true 60 "a knows b's new address" grep -q 10.77.0.9 "$(proc a)/peers"
	until_true 60 "a has forgotten b's old address" knows a 1
	same b b.bin
	from_peers a b.bin
	same a c.bin
	from_peers b c.bin
	down a b
	move_port vb 10.77.0.9 10.77.0.2
}

# The port goes down and comes back: storage serves meanwhile, peers afterwards. The node leaves the
# fabric and joins it again on one connection to storage, so it keeps its leases.
test_port_down()
{
	up
	same a a.bin
	same b c.bin
	before=$(of b storage reconnects) held=$(of b lease held)
	[ "$held" -gt 0 ] || die "b has no lease"
	ip link set vb down
	until_true 60 "b sees its port down" port_is b down
	until_true 60 "a forgets b" knows a 0
	until_true 60 "b forgets a" knows b 0
	same b a.bin
	[ "$(of b source peer bytes)" = 0 ] || die "pages came through a port that is down"
	ip link set vb up
	own_routes vb 10.77.0.2
	until_true 60 "b sees its port up" port_is b up
	acquainted
	[ "$(of b storage reconnects)" = "$before" ] || die "b has connected to storage again"
	[ "$(of b lease held)" -ge "$held" ] || die "b had $held leases, and has $(of b lease held)"
	same a b.bin
	until_true 60 "pages come from a again" comes_from_a
	down a b
}

comes_from_a()
{
	echo 3 >/proc/sys/vm/drop_caches
	same a b.bin
	same b b.bin
	[ "$(of b source peer bytes)" -gt 1500000 ]
}

# restarted: the daemon begins another run, and both nodes have seen it.
restarted()
{
	_a=$(of a storage reconnects) _b=$(of b storage reconnects)
	away
	serve $server /srv
	until_true 60 "a is connected again" more_than "$_a" a storage reconnects
	until_true 60 "b is connected again" more_than "$_b" b storage reconnects
	acquainted
}

# Nodes have a key of the daemon's present run. Over a restart they take the new one, and exchange pages
# again, also those from before, and with a node that was mounted since, which never had another key.
test_new_run()
{
	up
	same a a.bin
	from_peers b a.bin
	restarted
	same b b.bin
	from_peers a b.bin
	same a c.bin
	from_peers b c.bin
	restarted
	down b
	kmount b $server "$(options b)"
	acquainted
	same a c.bin # the daemon of this run does not know yet who has it
	from_peers b c.bin
	down a b
}

test_unload()
{
	rmmod coopfs
	end_serve
}
