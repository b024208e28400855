# SPDX-License-Identifier: MIT
# coopfs.ko and leases: what a mount knows costs no request, the next system call still sees
# another node's change, and no open file is lost.
#
#: programs coopfsd coopfs coop-between coop-pattern coop-posix ip mkfs.ext4 nsenter tc
#: modules crc32_generic libcrc32c hmac sha256_generic ib_core loop ext4 crc32c_generic veth sch_netem
#: files $KO/coopfs.ko
#: deadline 600
#: short changes
#: long warm

server=127.0.0.1

setup()
{
	insmod /lab/files/coopfs.ko
	mkdir -p /srv /mnt/a /mnt/b
	truncate -s 192M /tmp/disk
	mkfs.ext4 -q -F -b 4096 -I 512 -N 16384 /tmp/disk
	mount -o loop /tmp/disk /srv
	rmdir /srv/lost+found
	serve $server /srv
	up
}

up()
{
	kmount a $server "readahead=64${1:-}"
	kmount b $server "readahead=64${1:-}"
}

after_failure()
{
	exec 5<&- 6>&-
	[ ! -e /tmp/between.pid ] || between go
	tc qdisc del dev sa root
	umount /mnt/c
	if [ -e /run/netns/far ]; then
		away
		ip netns del far
	fi
	tell
	clear_up
	up
} 2>&1

# tree NAME: three directories of four files, below the export
tree()
{
	for _d in one two three; do
		mkdir -p "/srv/$1/$_d"
		for _f in 1 2 3 4; do echo "$_d $_f" >"/srv/$1/$_d/$_f"; done
	done
	ln -s one "/srv/$1/link"
}

# walk NODE NAME: prints names, attributes and contents of a tree
walk()
{
	ls -lR "/mnt/$1/$2" >/tmp/walk
	cat "/mnt/$1/$2"/*/* >/tmp/bytes
	stat "/mnt/$1/$2"/*/* "/mnt/$1/$2/link" >/tmp/stats
	for _n in absent no_more one/5; do [ ! -e "/mnt/$1/$2/$_n" ] || return 1; done
	[ -r "/mnt/$1/$2/link/1" ] && [ -x "/mnt/$1/$2/two" ]
}

# free COMMAND...: the command costs no request
free()
{
	_before=$(of a storage calls)
	"$@" || die "failed: $*"
	[ "$(of a storage calls)" = "$_before" ]
}

# leased PATH: the path exists, and a lease answers the lookup
leased()
{
	_lookups=$(of a lease lookups)
	[ -e "$1" ] && [ "$(of a lease lookups)" -ge $((_lookups + 2)) ]
}

# A second look costs no request.
test_warm()
{
	tree warm
	free walk a warm && die "the first walk asked nothing"
	until_true 30 "a walk asks nothing" free walk a warm
	[ "$(wc -l </tmp/bytes)" = 16 ] || die "bytes are missing"
	for _f in lookups attributes opens listings; do
		[ "$(of a lease $_f)" -gt 0 ] || die "no $_f were counted"
	done
	[ "$(of a lease held)" -ge 16 ] || die "$(of a lease held) leases are held"
	# A node also knows the names that it made or removed itself.
	echo more >/mnt/a/warm/one/5
	rm /mnt/a/warm/one/4
	walk_changed() { [ -e /mnt/a/warm/one/5 ] && [ ! -e /mnt/a/warm/one/4 ]; }
	walk_changed || die "a does not see its own change"
	until_true 30 "own changes cost nothing" free walk_changed
	[ "$(ls /mnt/a/warm/one | tr '\n' ' ')" = "1 2 3 5 " ] || die "an old listing"
}

# held DIRECTORY: waits until a has leases of everything in it
held() { until_true 30 "a knows $1" free know "$1"; }
know()
{
	cat "/mnt/a/$1"/* >/dev/null && stat "/mnt/a/$1" "/mnt/a/$1"/* >/dev/null && ls -l "/mnt/a/$1" >/dev/null
	[ ! -e "/mnt/a/$1/new" ]
}

# a sees what b has changed, whatever a had cached.
test_changes()
{
	mkdir /srv/ch
	for n in $(seq "$(few 6)"); do
		rm -rf /srv/ch/*
		until_true 30 "a sees the export's own change" test ! -e /mnt/a/ch/f
		echo "begin $n" >/mnt/b/ch/f
		echo "other $n" >/mnt/b/ch/g
		held ch
		before=$(of a lease recalls)
		echo "more $n" >>/mnt/b/ch/f
		[ "$(tail -n 1 /mnt/a/ch/f)" = "more $n" ] || die "$n: old bytes"
		[ "$(of a lease recalls)" -gt "$before" ] || die "$n: nothing was recalled"
		held ch
		echo "still more $n" >>/mnt/b/ch/f
		[ "$(stat -c %s /mnt/a/ch/f)" = "$(stat -c %s /srv/ch/f)" ] || die "$n: an old size"
		held ch
		chmod 604 /mnt/b/ch/f
		[ "$(stat -c %a /mnt/a/ch/f)" = 604 ] || die "$n: an old mode"
		held ch
		: >/mnt/b/ch/new
		[ -e /mnt/a/ch/new ] || die "$n: new is not seen"
		# A lookup before storage has acknowledged the lease's return counts for a second only.
		until_true 30 "a knows new by its lease" leased /mnt/a/ch/new
		rm /mnt/b/ch/new
		[ ! -e /mnt/a/ch/new ] || die "$n: new is still seen"
		held ch
		mv /mnt/b/ch/g /mnt/b/ch/f
		[ "$(cat /mnt/a/ch/f)" = "other $n" ] || die "$n: f is the old file"
		[ ! -e /mnt/a/ch/g ] || die "$n: the old name is still seen"
		[ "$(ls /mnt/a/ch)" = f ] || die "$n: an old listing"
		held ch
		rm /mnt/b/ch/f
		! cat /mnt/a/ch/f 2>/dev/null || die "$n: a removed file was opened"
	done
}

# opened FILE: a opens it as descriptor 5, without a request to storage
opened()
{
	held "$(dirname "$1")"
	until_true 30 "$1 is opened within a lease" quietly "$1"
}

quietly()
{
	_opens=$(of a lease opens)
	exec 5<"/mnt/a/$1"
	[ "$(of a lease opens)" -gt "$_opens" ]
}

# A client reports an open file to storage before it returns the lease, and before its own change.
test_open()
{
	mkdir /srv/open
	for change in "rm -f" "mv /mnt/b/open/other" "chmod 0" "a rm -f" "a mv /mnt/a/open/other" "a chmod 0"; do
		node=b
		[ "${change#a }" = "$change" ] || node=a
		change=${change#a }
		head -c 300000 /dev/urandom >/srv/open/f
		cp /srv/open/f /tmp/f.is
		echo other >/srv/open/other
		opened open/f
		$change "/mnt/$node/open/f"
		echo 1 >/proc/sys/vm/drop_caches
		cmp /tmp/f.is - <&5 || die "$node: $change: the contents changed"
		exec 5<&-
		rm -f /mnt/b/open/f
	done
}

# The client also reports a file that has been open for a second, so that no restart loses it.
test_told_late()
{
	mkdir /srv/late
	head -c 200000 /dev/urandom >/srv/late/f
	cp /srv/late/f /tmp/f.is
	opened late/f
	before=$(of a storage calls)
	until_true 30 "storage is told" more_than "$before" a storage calls
	down b
	kmount b $server readahead=64
	rm /mnt/b/late/f
	away
	serve $server /srv
	echo 1 >/proc/sys/vm/drop_caches
	cmp /tmp/f.is - <&5 || die "the open file is lost"
	exec 5<&-
}

# After a restart of the daemon no lease of before counts.
test_restart()
{
	mkdir /srv/re
	for n in $(seq "$(few 3)"); do
		echo "one $n" >/mnt/b/re/f
		held re
		away
		serve $server /srv
		echo "two $n" >/mnt/b/re/f
		until_true 60 "a is connected" more_than $((n - 1)) a storage reconnects
		[ "$(cat /mnt/a/re/f)" = "two $n" ] || die "$n: old bytes"
		held re
		echo "three $n" >>/mnt/b/re/f
		[ "$(tail -n 1 /mnt/a/re/f)" = "three $n" ] || die "$n: no lease protects it"
	done
}

# mode_is MODE FILE
mode_is() { [ "$(stat -c %a "$2")" = "$1" ]; }

# A node that is cut off stops trusting its leases before others stop waiting for it.
test_cut_off()
{
	ip netns add far
	ip link add sa type veth peer name sb netns far
	ip addr add 10.78.0.1/24 dev sa
	ip link set sa up
	ip -n far addr add 10.78.0.2/24 dev sb
	ip -n far link set sb up
	ip -n far link set lo up
	away
	coopfsd() { exec nsenter --net=/run/netns/far /usr/bin/coopfsd "$@"; }
	serve 10.78.0.2 /srv
	unset -f coopfsd
	down a b
	kmount a 10.78.0.2 readahead=64
	mkdir -p /mnt/c
	nsenter --net=/run/netns/far coopfs mount -t coopfs -o key=/tmp/key 10.78.0.2:/data /mnt/c
	mkdir /srv/cut
	echo cut >/srv/cut/f
	chmod 644 /srv/cut/f
	held cut
	stats=$(proc a)/stats
	tc qdisc replace dev sa root netem loss 100%
	# For a while they still count.
	mode_is 644 /mnt/a/cut/f
	chmod 600 /mnt/c/cut/f
	job late stat -c %a /mnt/a/cut/f
	until_true 30 "a asks" waits late
	tc qdisc del dev sa root
	job_ends 120 late
	mode_is 600 /mnt/a/cut/f || die "an old mode"
	umount /mnt/c
	down a
	away
	ip netns del far
	serve $server /srv
	up
}

# late: mounts a through a program that holds messages back
late()
{
	stand_between
	down a
	kmount a 127.0.0.2 readahead=64
	rm -f /tmp/lines
	mkfifo /tmp/lines
	exec 6<>/tmp/lines
}

# in_time: mounts a directly again
in_time()
{
	exec 6>&-
	down a
	kmount a $server readahead=64
}

# opener_waits: a has opened mv/f under a lease, and its report to storage has no answer yet
opener_waits()
{
	know mv || true
	between hold open
	_times=$(said "held open 0")
	job opener sh -c 'exec 7</mnt/a/mv/f; read _ </tmp/lines'
	until_true 60 "storage is told" said_more "$_times" "held open 0"
	[ ! -e "/proc/$(cat /tmp/opener.job)/fd/7" ] || return 0
	between go
	echo >&6
	job_ends 30 opener
	return 1
}

# A rename waits until storage knows that the replaced file is open. Its caller is killed meanwhile:
# the rename was not sent, so the leases of the directory stay valid.
test_rename_unsent()
{
	late
	mkdir /srv/mv /srv/mv.from
	echo old >/srv/mv/f
	echo new >/srv/mv.from/f
	held mv
	tries=1
	until opener_waits; do
		[ $tries -lt 20 ] || die "f is not opened within a lease"
		tries=$((tries + 1))
	done
	job mover mv /mnt/a/mv.from/f /mnt/a/mv/f
	until_true 30 "the rename waits" waits mover coop_unsaid_tell_inode
	kill -9 "$(cat /tmp/mover.job)"
	job_ends 30 mover 137
	between go
	echo >&6
	job_ends 30 opener
	[ "$(cat /mnt/a/mv/f)" = old ] || die "the rename happened"
	held mv
	in_time
}

# A direct read names its open file to storage, so storage must know it.
test_direct()
{
	mkdir /srv/direct
	coop-pattern write /mnt/b/direct 1 3 65536 1
	for _n in 1 2; do coop-pattern check /mnt/a/direct 1 3 65536 1; done
	before=$(of a lease opens)
	coop-pattern -m direct check /mnt/a/direct 1 3 65536 1
	[ "$(of a lease opens)" -gt "$before" ] || die "none was opened within a lease"
}

# When the kernel evicts an inode, the client returns its leases.
test_evicted()
{
	tree gone
	walk a gone
	until_true 30 "a walk asks nothing" free walk a gone
	[ "$(of a lease held)" -ge 16 ] || die "$(of a lease held) leases are held"
	until_true 30 "the leases of evicted inodes are returned" dropped 6
	before=$(of a lease recalls)
	echo changed >/mnt/b/gone/two/3
	[ "$(cat /mnt/a/gone/two/3)" = changed ] || die "old bytes"
	walk a gone
}

# dropped MOST: at most so many leases are held after the caches are dropped. The first drop spares
# inodes used lately, and those with pages.
dropped()
{
	echo 3 >/proc/sys/vm/drop_caches
	at_most "$1" a lease held
}

at_most()
{
	_most=$1
	shift
	[ "$(of "$@")" -le "$_most" ]
}

# More files than a client may have leases of: it returns leases that it does not use.
test_many()
{
	echo 65536 >/proc/sys/fs/inotify/max_user_watches # the daemon needs one per lease
	mkdir /srv/many
	(cd /srv/many && seq 1 9600 | xargs touch)
	ls -l /mnt/a/many >/tmp/walk
	[ "$(wc -l </tmp/walk)" = 9601 ] || die "names are missing"
	[ "$(of a lease held)" -gt 8900 ] || die "$(of a lease held) are held"
	until_true 60 "some go back" at_most 9000 a lease held
	chmod 600 /mnt/b/many/1 /mnt/b/many/9600
	mode_is 600 /mnt/a/many/1 && mode_is 600 /mnt/a/many/9600 || die "an old mode"
}

links_of_9() { [ "$(stat -L -c %h /proc/self/fd/9)" = "$1" ]; }

# A working directory that another node has removed is as on a local file system.
in_removed_directory()
{
	cd /mnt/a/gone/below
	exec 9<.
	rm -r /mnt/b/gone
	until_true 60 "no name is left" links_of_9 0
	for _call in "cat x" "mkdir x" "touch x" "rm x" "rmdir x" "mkfifo x" "ln -s x y" "mv x y" "cat ../x"; do
		_said=$($_call 2>&1) && die "'$_call' succeeded in a removed directory"
		case $_said in
		*"No such file"*) ;;
		*) die "'$_call' in a removed directory: $_said" ;;
		esac
	done
	_said=$(ls . 2>&1) || die "'ls .' in a removed directory: $_said"
	[ -z "$_said" ] || die "names in a removed directory: $_said"
	[ -d . ] && [ -r . ] || die "the directory cannot be looked at"
	sync . || die "fsync of a removed directory"
	# Another one of that name is another directory, also for the next walk.
	mkdir -p /mnt/b/gone/below
	echo new >/mnt/b/gone/below/x
	[ "$(cat /mnt/a/gone/below/x)" = new ] || die "the new directory was not found"
	links_of_9 0 || die "the old directory has links again"
	if cat x 2>/dev/null; then die "the old directory has names"; fi
}
test_removed_directory()
{
	mkdir -p /mnt/a/gone/below
	stat /mnt/b/gone/below
	(in_removed_directory)
	rm -r /mnt/a/gone
}

# nolease: the client asks storage each time.
test_nolease()
{
	down a b
	up ,nolease
	grep ' /mnt/a .*[,]nolease' /proc/mounts
	grep '^nolease' "$(proc a)/options"
	tree none
	walk a none
	walk a none
	! free walk a none || die "a walk asked nothing"
	for _f in held recalls lookups attributes opens listings; do
		[ "$(of a lease $_f)" = 0 ] || die "$_f: $(of a lease $_f)"
	done
	down a b
	up
}

# The module unloads although leases were held and files were opened under one.
test_unmount()
{
	tree last
	until_true 30 "a walk asks nothing" free walk a last
	walk b last
	down a b
	rmmod coopfs
	insmod /lab/files/coopfs.ko
	up
	walk a last
}
