# SPDX-License-Identifier: MIT
# coopfs.ko, random reads, writes, mappings, cuts and reopenings against a copy in memory
# (coop-fsx): on one node, on two nodes that hand the file to each other, while the
# daemon is killed and comes back. The seed of a run is in the log; SEED below replays it.
#
#: programs coopfsd coopfs coop-fsx coop-pattern ip rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth
#: files $KO/coopfs.ko
#: memory 1024
#: deadline 600
#: short few_on_two_nodes

SEED=
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
	for j in /tmp/*.job; do
		[ ! -e "$j" ] || kill -9 "$(cat "$j")"
	done
	gone "$(cat /tmp/coopfsd.pid)" && serve $server /srv
	for n in a b; do
		! mounted "/mnt/$n" || umount "/mnt/$n" || umount -l "/mnt/$n"
	done
} 2>&1

# up [OPTIONS]: both nodes, that know each other
up()
{
	kmount a $server "$(options a)${1:-}"
	kmount b $server "$(options b)${1:-}"
	until_true 30 "a knows b" knows a 1
	until_true 30 "b knows a" knows b 1
}

# fsx NAME ARGUMENTS...: in the background
fsx()
{
	_run=$1
	shift
	job "$_run" coop-fsx ${SEED:+-s $SEED} "$@"
}

# Both sides had pages from each other, or nothing was tried.
exchanged()
{
	for _n in a b; do
		[ "$(of $_n source peer pages)" -gt "$1" ] ||
			die "$_n had $(of $_n source peer pages) pages from its peer"
	done
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
	fsx few -n "$(few 300)" -l 100000 /mnt/a/few /mnt/b/few
	job_ends 120 few
	exchanged 0
	down a b
}

test_two_nodes()
{
	up
	fsx two -n "$(few 2000)" /mnt/a/two /mnt/b/two
	job_ends 300 two
	exchanged 20
	[ "$(of a read copied_bytes)" = 0 ] || die "pages were copied"
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

away()
{
	kill -9 "$(cat /tmp/coopfsd.pid)"
	until_true 30 "coopfsd has ended" gone "$(cat /tmp/coopfsd.pid)"
}

reconnected() { grep -q connected "$(proc "$1")/info"; }

# Files are open for reading and writing, mapped, dirty, all the time: a hard mount
# waits and goes on, and no byte is lost. An append may be done twice by a daemon that comes
# back (rpc/STORAGE.md), so there are none.
test_daemon_returns()
{
	up
	fsx one -a -n "$(few 800)" /mnt/a/r.one
	fsx two -a -n "$(few 800)" /mnt/a/r.two /mnt/b/r.two
	for i in 1 2 3 4 5 6; do
		running one || running two || break
		away
		serve $server /srv
		until_true 60 "a is connected" reconnected a
		until_true 60 "b is connected" reconnected b
		sleep 2
	done
	[ $i -gt 2 ] || die "they had ended before the daemon was away"
	job_ends 240 one
	job_ends 120 two
	down a b
}

# Opens and creations whose answers the daemon gave just before it was killed.
test_opens_meet_restart()
{
	kmount a $server readahead=32
	new opens 8 4096
	for j in 1 2 3 4; do
		job "open$j" coop-pattern -r 100000 check /mnt/a/opens $((2 * j - 1)) $((2 * j)) 4096 1
		mkdir "/srv/made$j"
		job "make$j" sh -c "i=0; while [ ! -e /tmp/enough ]; do
			rm -f /mnt/a/made$j/f && echo line >/mnt/a/made$j/f || exit 1
			read -r l </mnt/a/made$j/f && [ \"\$l\" = line ] || exit 1; done"
	done
	for i in 1 2 3 4 5 6 7 8; do
		sleep 0.7
		away
		serve $server /srv
		until_true 60 "a is connected" reconnected a
	done
	for j in 1 2 3 4; do
		running "open$j" || job_ends 1 "open$j"
		kill -9 "$(cat "/tmp/open$j.job")"
	done
	touch /tmp/enough
	for j in 1 2 3 4; do
		job_ends 60 "make$j"
		job_ends 60 "open$j" 137
	done
	rm /tmp/enough
	down a
}

# A soft mount's writer hears of it, and what fsync had said is stored stays so.
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
	sync -d /mnt/a/soft || true # tells of what was lost, once
	exec 7>&-
	[ "$(head -c 4 /srv/soft)" = kept ] || die "what was stored is lost"
	[ "$(tail -c 4 /srv/soft)" = more ] || die "the mount did not go on"
	down a
}
