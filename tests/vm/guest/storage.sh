# SPDX-License-Identifier: MIT
# coopfs.ko and a daemon that is hard to reach: one that is away, one that says nothing,
# connections that break while it goes on. That it is killed in the middle of reads and
# writes is in kernel_faults.
#
#: programs coopfsd coopfs coop-pattern ip rdma ss
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth tcp_diag
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
	kill -CONT "$(cat /tmp/coopfsd.pid)"
	tell
	clear_up
} 2>&1

# soft: an error comes in time; what comes after the daemon's return is right.
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

# It takes what is sent and says nothing. Who is told not to wait for ever gets an error, who
# waits can be killed, and the others go on where they were.
test_silent_daemon()
{
	new silent 4 65536
	kmount a $server hard
	kmount b $server soft,timeo=20
	right a silent 1 65536
	right b silent 1 65536
	kill -STOP "$(cat /tmp/coopfsd.pid)"
	job patient coop-pattern -d check /mnt/a/silent 1 4 65536 1
	job doomed coop-pattern -d check /mnt/a/silent 2 4 65536 1
	job hasty coop-pattern -e -d check /mnt/b/silent 2 4 65536 1
	job_ends 60 hasty 3
	running patient || die "it did not wait: $(cat /tmp/patient.said)"
	running doomed || die "it did not wait: $(cat /tmp/doomed.said)"
	kill -9 "$(cat /tmp/doomed.job)"
	job_ends 30 doomed 137
	kill -CONT "$(cat /tmp/coopfsd.pid)"
	job_ends 60 patient
	until_true 60 "storage answers again" coop-pattern check /mnt/b/silent 1 4 65536 1
	down a b
}

# The TCP connections of both nodes to the daemon: those that are no more are told.
hang_up() { ss -HKt "dport = :17430" | grep 17430; }

# Connections break while the daemon goes on: its sessions live, and so does what is open in them.
test_connection_lost()
{
	up
	new lost 8 262144
	mkdir -p /srv/lost.w
	coop-pattern write /srv/lost.w 1 4 65536 0
	right a lost 1 262144
	if ! hang_up; then
		ss -Ht "dport = :17430" | grep 17430 || die "no connection is seen"
		down a b
		skip "this kernel closes no connections of others"
	fi
	rm -f /tmp/state
	job reader coop-pattern -d -r 100000 check /mnt/a/lost 1 8 262144 1
	job writer coop-pattern -r "$(few 40)" rewrite /mnt/a/lost.w 1 4 65536 /tmp/state
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
