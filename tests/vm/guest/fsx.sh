# SPDX-License-Identifier: MIT
# coopfs.ko: random reads, writes, mapped accesses, truncations and reopenings against a copy in
# memory (coop-fsx): on one node, on two nodes that take turns at the file, and while the daemon
# is killed and restarted. The log has the seed of a run; SEED below replays it.
#
#: programs coopfsd coopfs coop-fsx coop-pattern chrt ip rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth
#: files $KO/coopfs.ko
#: memory 1024
#: deadline 600
#: short few_on_two_nodes

SEED=
server=127.0.0.1

setup()
{
	wired
	stored $server
}

after_failure()
{
	tell
	clear_up
} 2>&1

# fsx NAME ARGUMENTS...: in the background
fsx()
{
	_run=$1
	shift
	job "$_run" coop-fsx ${SEED:+-s $SEED} "$@"
}

# left_out NUMBER: the node, if any, that got at most this many pages from its peer
left_out()
{
	for _n in a b; do
		[ "$(of $_n source peer pages)" -gt "$1" ] || { echo $_n && return; }
	done
}

# exchanged NUMBER: both nodes got more pages from each other, else the run proves nothing
exchanged()
{
	_lonely=$(left_out "$1")
	[ -z "$_lonely" ] ||
		die "$_lonely got $(of "$_lonely" source peer pages) pages from its peer"
}

test_one_node()
{
	kmount a $server readahead=32
	fsx one -n "$(few 2000)" /mnt/a/one
	fsx small -n "$(few 1000)" -l 9000 /mnt/a/small
	job_ends 240 one
	job_ends 60 small
	down a
}

test_few_on_two_nodes()
{
	up
	# About one in a hundred such runs has no read that the other's pages could serve.
	for _run_again in 1 2 3; do
		fsx few -n 300 -l 100000 /mnt/a/few /mnt/b/few
		job_ends 120 few
		[ -n "$(left_out 0)" ] || break
	done
	exchanged 0
	down a b
}

test_two_nodes()
{
	up
	fsx two -n "$(few 2000)" /mnt/a/two /mnt/b/two
	job_ends 300 two
	exchanged 20
	in_place a
	down a b
}

# Several files at once, which share connections, queue pairs and memory.
test_side_by_side()
{
	up
	fsx first -n "$(few 700)" /mnt/a/first /mnt/b/first
	fsx second -n "$(few 700)" -l 30000 /mnt/b/second /mnt/a/second
	fsx third -n "$(few 700)" -l 1000000 /mnt/a/third /mnt/b/third
	job_ends 300 first
	job_ends 120 second
	job_ends 120 third
	exchanged 20
	down a b
}

test_copied()
{
	up ,ib_copy,page_crc=1
	fsx copied -n "$(few 500)" /mnt/a/copied /mnt/b/copied
	job_ends 200 copied
	[ "$(of a read copied_bytes)" -gt 0 ] || die "nothing was copied"
	down a b
}

reconnected() { grep -q connected "$(proc "$1")/info"; }

# Files stay open for reading and writing, mapped and dirty: a hard mount waits and goes on,
# and no byte is lost. The runs create exclusively and append, which happens once although requests
# are repeated (rpc/storage/STORAGE.md).
test_daemon_returns()
{
	up
	fsx one -n 1000000000 /mnt/a/r.one
	fsx two -n 1000000000 /mnt/a/r.two /mnt/b/r.two
	for round in 1 2 3 4 5 6; do
		away
		serve $server /srv
		for _n in a b; do
			until_true 60 "$_n is connected" reconnected $_n
			_calls=$(of $_n storage calls)
			until_true 60 "$_n goes on after $round" more_than $((_calls + $(few 200))) $_n storage calls
		done
	done
	for _j in one two; do
		! running $_j || kill -TERM "$(cat /tmp/$_j.job)"
		job_ends 240 $_j
	done
	down a b
}

state() { awk '{ print $3 }' "/proc/$(cat "/tmp/$1.job")/stat"; }

is_state() { [ "$(state "$1")" = "$2" ]; }

# caught NAME FUNCTION: stops the daemon; true if the job waits for it in the function
caught()
{
	kill -STOP "$(cat /tmp/coopfsd.pid)"
	while running "$1" && ! is_state "$1" D; do :; done
	waits "$1" "$2" && ! waits "$1" coop_name_check_end && return
	kill -CONT "$(cat /tmp/coopfsd.pid)"
	false
}

# count_of DIR NAME: as of(), without a request to the mount
count_of() { awk -v n="$2" '$2 == n { print $3 }' "$1/stats"; }

# goes_on NAME DIR NUMBER: the job has ended, or the mount's calls exceed the number
goes_on() { ! running "$1" || [ "$(count_of "$2" calls)" -gt "$3" ]; }

connected_again() { [ "$(count_of "$1" reconnects)" -gt "$2" ]; }

# The daemon answers an open or a creation and is killed. The next daemon starts, and the client
# reports its open files to it, before the opener continues: it shares the second processor with
# a task of higher priority, and everything else runs on the first.
test_opens_meet_restart()
{
	read -r self _ </proc/self/stat
	taskset -p 1 "$self"
	echo 1 >/sys/devices/virtual/workqueue/cpumask
	echo -1 >/proc/sys/kernel/sched_rt_runtime_us
	away
	serve $server /srv
	kmount a $server readahead=32,nolease # or its opens ask nobody
	info=$(proc a)
	new opens 1 262144
	mkdir /srv/made
	for way in coop_open coop_atomic_open; do
		case $way in
		coop_open) set -- -d -r 1000000 check /mnt/a/opens 1 1 262144 1 ;;
		coop_atomic_open) set -- -x -r 1000000 write /mnt/a/made 1 1 4096 1 ;;
		esac
		job opener taskset 2 coop-pattern "$@"
		until_true 60 "the opener waits in $way" caught opener $way
		before=$(count_of "$info" reconnects)
		rm -f /tmp/taken
		job hog taskset 2 chrt -f 1 sh -c 'echo >/tmp/taken; while :; do :; done'
		until_true 20 "the processor is taken" test -e /tmp/taken
		kill -CONT "$(cat /tmp/coopfsd.pid)"
		until_true 20 "the open is answered" is_state opener R
		away
		serve $server /srv
		until_true 20 "the next daemon is connected" connected_again "$info" "$before"
		calls=$(count_of "$info" calls)
		kill -9 "$(cat /tmp/hog.job)"
		job_ends 20 hog 137
		until_true 30 "the opener goes on" goes_on opener "$info" $((calls + 50))
		running opener || job_ends 1 opener
		kill -9 "$(cat /tmp/opener.job)"
		job_ends 20 opener 137
	done
	echo 950000 >/proc/sys/kernel/sched_rt_runtime_us
	echo 3 >/sys/devices/virtual/workqueue/cpumask
	down a
}

# A soft mount's writer gets the error, and data that fsync reported stored stays stored.
test_soft_writer()
{
	kmount a $server soft,timeo=20
	exec 7<>/mnt/a/soft
	printf kept >&7
	sync -d /mnt/a/soft
	away
	job writer sh -c 'printf lost >&7; sync /mnt/a/soft'
	job_ends 60 writer 1
	cat /tmp/writer.said
	[ "$(head -c 4 /srv/soft)" = kept ] || die "what was stored is lost"
	serve $server /srv
	until_true 60 "a is connected" reconnected a
	printf more >&7
	sync -d /mnt/a/soft || true # reports the lost bytes, once
	exec 7>&-
	[ "$(head -c 4 /srv/soft)" = kept ] || die "what was stored is lost"
	[ "$(tail -c 4 /srv/soft)" = more ] || die "the mount did not go on"
	down a
}
