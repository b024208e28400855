# SPDX-License-Identifier: MIT
# coopfs.ko with less memory than files: two nodes whose programs run in memory groups of
# 24 MiB write, read, map and exchange at least twice as much. The kernel reclaims pages
# while they are read, served and written; no byte may be wrong, and no call may hang.
#
#: programs coopfsd coopfs coop-pattern coop-fsx ip rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth
#: files $KO/coopfs.ko
#: memory 768
#: deadline 480

server=127.0.0.1
LIMIT=24 # MiB

setup()
{
	mkdir /tmp/groups
	mount -t cgroup2 groups /tmp/groups || skip "the kernel has no control groups"
	echo +memory >/tmp/groups/cgroup.subtree_control || skip "the kernel has no memory groups"
	for g in a b; do
		mkdir /tmp/groups/$g
		echo ${LIMIT}M >/tmp/groups/$g/memory.max
	done
	wired
	stored $server
}

after_failure()
{
	cat /tmp/groups/*/memory.stat /tmp/groups/*/memory.events
	tell
	clear_up
	rm -rf /srv/*
} 2>&1

# inside GROUP COMMAND...: runs it in that memory group
inside() { (echo 0 >"/tmp/groups/$1/cgroup.procs" && shift && exec "$@"); }

# pressed GROUP...: the groups hit their limits, so the kernel reclaimed pages
pressed()
{
	for _g in "$@"; do
		[ "$(awk '$1 == "max" { print $2 }' /tmp/groups/$_g/memory.events)" -gt 0 ] ||
			die "group $_g had enough memory"
		[ "$(awk '$1 == "oom_kill" { print $2 }' /tmp/groups/$_g/memory.events)" = 0 ] ||
			die "group $_g had too little memory"
	done
}

BYTES=$((LIMIT * 1048576)) # of each of two files

# Each node writes twice its memory, then reads what the other wrote.
test_write_and_read()
{
	up
	mkdir /srv/wr.a /srv/wr.b
	job write_a inside a coop-pattern -f write /mnt/a/wr.a 1 2 $BYTES 1
	job write_b inside b coop-pattern write /mnt/b/wr.b 1 2 $BYTES 1
	job_ends 180 write_a
	job_ends 60 write_b
	job read_a inside a coop-pattern check /mnt/a/wr.b 1 2 $BYTES 1
	job read_b inside b coop-pattern check /mnt/b/wr.a 1 2 $BYTES 1
	job_ends 180 read_a
	job_ends 60 read_b
	coop-pattern check /srv/wr.a 1 2 $BYTES 1
	coop-pattern check /srv/wr.b 1 2 $BYTES 1
	pressed a b
	rm -r /srv/wr.a /srv/wr.b
	down a b
}

# The same through mappings: writeback runs while programs store to the pages.
test_mapped()
{
	up
	mkdir /srv/m
	job write_a inside a coop-pattern -m mmap write /mnt/a/m 1 2 $BYTES 1
	job_ends 180 write_a
	job read_b inside b coop-pattern -m mmap check /mnt/b/m 1 2 $BYTES 1
	job again_a inside a coop-pattern -m mmap check /mnt/a/m 1 2 $BYTES 1
	job_ends 180 read_b
	job_ends 60 again_a
	coop-pattern check /srv/m 1 2 $BYTES 1
	pressed a b
	rm -r /srv/m
	down a b
}

# Both nodes read from each other while both also write.
test_exchange()
{
	up
	new x 2 $BYTES
	mkdir /srv/x.w
	coop-pattern write /srv/x.w 1 2 4194304 0
	rm -f /tmp/state
	job read_a inside a coop-pattern -r "$(few 2)" check /mnt/a/x 1 2 $BYTES 1
	job read_b inside b coop-pattern -r "$(few 2)" check /mnt/b/x 1 2 $BYTES 1
	job writer inside a coop-pattern -r "$(few 6)" rewrite /mnt/a/x.w 1 2 4194304 /tmp/state
	job watcher inside b coop-pattern watch /mnt/b/x.w 1 2 4194304 /tmp/state
	job_ends 240 read_a
	job_ends 120 read_b
	job_ends 120 writer
	job_ends 120 watcher
	pressed a b
	# The node that is ahead reads from storage and the other from it; either may be ahead.
	got=$(($(of a source peer pages) + $(of b source peer pages)))
	[ $got -gt 64 ] || die "they got $got pages from each other"
	# After all that a serves b.
	new x.after 1 65536
	coop-pattern settle /srv/x.after/1
	right a x.after 1 65536
	before=$(of b source peer pages)
	right b x.after 1 65536
	[ "$(of b source peer pages)" -gt "$before" ] || die "b got nothing from a"
	rm -r /srv/x.after /srv/x /srv/x.w
	down a b
}
