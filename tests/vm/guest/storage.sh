# SPDX-License-Identifier: MIT
# coopfs.ko and a daemon that is hard to reach: it is away, or silent, or connections to it
# break while it runs. kernel_faults kills it in the middle of reads and writes.
#
#: programs coopfsd coopfs coop-fsx coop-pattern ip nsenter rdma ss tc
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth sch_netem tcp_diag
#: files $KO/coopfs.ko
#: memory 1024
#: deadline 300

server=127.0.0.1

setup()
{
	wired
	stored $server
}

after_failure()
{
	: >/tmp/enough
	tc qdisc del dev sa root
	kill -CONT "$(cat /tmp/coopfsd.pid)"
	tell
	clear_up
} 2>&1

# soft: the caller gets an error in time; reads after the daemon's return get the right bytes.
test_soft()
{
	new soft 2 65536
	kmount a $server soft,timeo=20
	right a soft 1 65536
	away
	job reader coop-pattern -e -d check /mnt/a/soft 2 2 65536 1
	job_ends 30 reader 3
	cat /tmp/reader.said
	serve $server /srv
	until_true 60 "storage answers again" coop-pattern check /mnt/a/soft 1 2 65536 1
	down a
}

# The daemon accepts bytes and answers nothing. A soft mount's caller gets an error, a caller that
# waits can be killed, and the others continue afterwards.
test_silent_daemon()
{
	new silent 4 65536
	kmount a $server hard
	kmount b $server soft,timeo=20
	right a silent 1 65536
	right b silent 1 65536
	requests=$(proc a)/requests
	kill -STOP "$(cat /tmp/coopfsd.pid)"
	job patient coop-pattern -d check /mnt/a/silent 1 4 65536 1
	job doomed coop-pattern -d check /mnt/a/silent 2 4 65536 1
	job hasty coop-pattern -e -d check /mnt/b/silent 2 4 65536 1
	job_ends 60 hasty 3
	running patient || die "the patient reader did not wait: $(cat /tmp/patient.said)"
	running doomed || die "the doomed reader did not wait: $(cat /tmp/doomed.said)"
	grep '^call id=[1-9][0-9]* op=[a-z]* state=sent age_us=[1-9][0-9]*$' "$requests"
	grep state=abandoned "$requests" && die "a call is abandoned too early"
	kill -9 "$(cat /tmp/doomed.job)"
	job_ends 30 doomed 137
	grep '^call id=[1-9][0-9]* op=[a-z]* state=abandoned ' "$requests"
	kill -CONT "$(cat /tmp/coopfsd.pid)"
	job_ends 60 patient
	until_true 60 "storage answers again" coop-pattern check /mnt/b/silent 1 4 65536 1
	until_true 30 "all calls have been answered" none_in_flight "$requests"
	down a b
}

# What df(1) and stat(1) do with a mount's top, and those who look at its files below /proc.
look_at()
{
	: <"/mnt/$1"
	[ "$(stat -f -c %b "/mnt/$1")" = "$2" ] || die "other figures"
	[ "$(stat -c %i "/mnt/$1")" = "$3" ] || die "another top"
	df "/mnt/$1"
	for _f in "$(proc "$1")"/*; do cat "$_f"; done
	coopfs stats "/mnt/$1"
}
waiting() { awk '$1 == "calls" { print $2 }' "$(proc "$1")/info"; }
distrusted() { awk -F age_us= '/^call/ && $2 > 11000000 { n++ } END { exit !n }' "$requests"; }

# They are answered while the daemon is silent and other calls at the top wait; nothing else is.
test_silent_top()
{
	touch /srv # attributes that have just changed are not trusted long
	up
	look_at a "$(stat -f -c %b /srv)" "$(stat -c %i /srv)"
	blocks=$(stat -f -c %b /mnt/a) top=$(stat -c %i /mnt/a) requests=$(proc a)/requests
	changed=$(stat -c %y /mnt/a)
	kill -STOP "$(cat /tmp/coopfsd.pid)"
	job maker touch /mnt/a/new
	job seeker ls /mnt/a/none
	until_true 30 "maker waits" waits maker
	until_true 30 "seeker waits" waits seeker
	# Leases answer for ten seconds. After that nothing may.
	until_true 60 "leases are not trusted" distrusted
	for round in 1 2 3; do
		for n in a b; do # nobody has asked for the figures of b
			job looker look_at $n "$blocks" "$top"
			job_ends 60 looker
		done
		# those of maker and seeker, one of each kind, and a PING
		[ "$(waiting a)" -le 5 ] || die "requests pile up: $(cat "$requests")"
	done
	running maker || die "maker did not wait: $(cat /tmp/maker.said)"
	running seeker || die "seeker did not wait: $(cat /tmp/seeker.said)"
	kill -CONT "$(cat /tmp/coopfsd.pid)"
	job_ends 60 maker
	job_ends 60 seeker 1
	[ "$(stat -c %y /mnt/a)" != "$changed" ] || die "old attributes"
	rm /mnt/a/new
	# An overdue request does not keep the mount.
	kill -STOP "$(cat /tmp/coopfsd.pid)"
	job maker touch /mnt/a/new
	until_true 60 "leases are not trusted" distrusted
	stat -f /mnt/a
	kill -9 "$(cat /tmp/maker.job)"
	job_ends 30 maker 137
	umount /mnt/a || die "umount with an overdue request"
	kill -CONT "$(cat /tmp/coopfsd.pid)"
	down b
	rm -f /srv/new
}

# Connections break while the daemon runs: its sessions survive, and so do their open files.
none_in_flight() { ! grep '^call ' "$1"; }

# Breaks both nodes' TCP connections to the daemon, and prints the broken ones.
hang_up() { ss -HKt "dport = :17430" | grep 17430; }

# breakable: mounts both nodes, and skips the test if their connections cannot be broken
breakable()
{
	up
	new lost 8 262144
	right a lost 1 262144
	hang_up && return
	ss -Ht "dport = :17430" | grep 17430 || die "no connection is seen"
	down a b
	skip "this kernel lets ss(8) close no connections"
}

test_connection_lost()
{
	breakable
	mkdir -p /srv/lost.w
	coop-pattern write /srv/lost.w 1 4 65536 0
	rm -f /tmp/state
	job reader coop-pattern -d -r 100000 check /mnt/a/lost 1 8 262144 1
	job writer coop-pattern -r "$((patience > 1 ? 15 : 40))" rewrite /mnt/a/lost.w 1 4 65536 /tmp/state
	job watcher coop-pattern watch /mnt/b/lost.w 1 4 65536 /tmp/state
	times=0
	while running writer; do
		before=$(of a storage reconnects)
		hang_up || true
		until_true 60 "a is connected again" more_than "$before" a storage reconnects
		before=$(of a traffic storage rx_bytes)
		until_true 60 "storage is read again" more_than "$before" a traffic storage rx_bytes
		times=$((times + 1))
	done
	job_ends 120 writer
	job_ends 120 watcher
	kill "$(cat /tmp/reader.job)"
	job_ends 30 reader 143
	[ "$times" -ge 3 ] || die "the connection broke only $times times"
	down a b
}

# is_connected FILE 0|1: by the stats file, without a request to the mount
is_connected() { [ "$(awk '$1 == "storage" && $2 == "connected" { print $3 }' "$1")" = "$2" ]; }

# The daemon's machine vanishes without a word, or its wire does: an idle node notices as well as a
# busy one, and both go on when it is back.
test_wire_cut()
{
	away
	ip netns add far
	ip link add sa type veth peer name sb netns far
	ip addr add 10.78.0.1/24 dev sa
	ip link set sa up
	ip -n far addr add 10.78.0.2/24 dev sb
	ip -n far link set sb up
	coopfsd() { exec nsenter --net=/run/netns/far /usr/bin/coopfsd "$@"; }
	serve 10.78.0.2 /srv
	unset -f coopfsd
	new cut 4 262144
	kmount b 10.78.0.2 readahead=32
	stats=$(proc b)/stats
	right b cut 4 262144
	for load in none some; do
		if [ $load = some ]; then
			job reader coop-pattern -d -r 1000000 check /mnt/b/cut 1 4 262144 1
			job writer coop-fsx -n 1000000000 /mnt/b/cut.fsx
			until_true 30 "b reads" more_than $(($(of b storage calls) + 50)) b storage calls
		fi
		tc qdisc replace dev sa root netem loss 100%
		until_true 90 "b, with $load to do, notices" is_connected "$stats" 0
		tc qdisc del dev sa root
		until_true 60 "b is connected again" is_connected "$stats" 1
	done
	before=$(of b storage calls)
	until_true 60 "b goes on" more_than $((before + 50)) b storage calls
	kill "$(cat /tmp/reader.job)"
	job_ends 30 reader 143
	kill -TERM "$(cat /tmp/writer.job)"
	job_ends 60 writer
	grep '^storage ' "$stats"
	down b
	away
	ip netns del far
	serve $server /srv
}

# names DIRECTORY: makes and removes names there until told to stop; an operation that is done twice,
# or not at all, makes it fail
names()
{
	set -eC
	cd "$1"
	while [ ! -e /tmp/enough ]; do
		mkdir d
		: >d/f
		ln d/f l
		mv d/f g
		ln -s g s
		rm l g s
		rmdir d
	done
}

# The daemon does no operation twice: it remembers its replies for calls that clients repeat on the
# next connection.
test_done_once()
{
	breakable
	rm -f /tmp/enough
	for n in a b; do
		mkdir "/srv/names.$n"
		job "names.$n" names "/mnt/$n/names.$n"
		job "fsx.$n" coop-fsx -n 1000000000 "/mnt/$n/fsx.$n"
	done
	times=0
	until [ $times -ge 20 ] && more_than 0 a storage repeats; do
		[ $times -lt 100 ] || die "no call was in flight in 100 rounds"
		for n in a b; do
			running "names.$n" || die "names on $n: $(cat "/tmp/names.$n.said")"
			running "fsx.$n" || die "fsx on $n: $(cat "/tmp/fsx.$n.said")"
		done
		before=$(of a storage reconnects)
		hang_up || true
		until_true 60 "a is connected again" more_than "$before" a storage reconnects
		before=$(of a storage calls)
		until_true 60 "storage is asked again" more_than $((before + 20)) a storage calls
		times=$((times + 1))
	done
	: >/tmp/enough
	for n in a b; do
		job_ends 60 "names.$n"
		kill -TERM "$(cat "/tmp/fsx.$n.job")"
		job_ends 60 "fsx.$n"
		[ -z "$(ls "/srv/names.$n")" ] || die "left: $(ls "/srv/names.$n")"
		grep '^storage ' "$(proc $n)/stats"
	done
	down a b
}
