# SPDX-License-Identifier: MIT
# coopfs.ko: every operation of a file system with its results and errors, on two mounts a
# and b of one export, without peers. The areas are those of coop-posix (tests/vm/posix);
# this script tests mounts as a whole.
#
#: programs coopfsd coopfs coop-between coop-posix coop-pattern mkfs.ext4
#: modules crc32_generic libcrc32c hmac sha256_generic ib_core loop ext4 crc32c_generic
#: files $KO/coopfs.ko
#: deadline 600
#: short create rename read_write mmap direct close_to_open page_parts
#: long readdir permission truncate read_only copy_signalled sent_cold

server=127.0.0.1

setup()
{
	insmod /lab/files/coopfs.ko
	mkdir -p /srv /mnt/a /mnt/b /mnt/c
	# Before Linux 6.6, tmpfs has no user attributes.
	truncate -s 192M /tmp/disk
	mkfs.ext4 -q -F -b 4096 -I 512 /tmp/disk
	mount -o loop /tmp/disk /srv
	rmdir /srv/lost+found
	serve $server /srv
	up
}

up()
{
	kmount a $server readahead=64
	kmount b $server readahead=64
}

after_failure()
{
	[ ! -e /tmp/between.pid ] || { storage_does back; between go; }
	tell
	clear_up
	up
} 2>&1

area() { coop-posix "$1" "${2:-/mnt/a}" "${3:-/mnt/b}" 2>/tmp/said || die "$(cat /tmp/said | tr '\n' ';')"; }

test_create() { area create; }
test_tmpfile() { area tmpfile; }
test_long_names() { area long_names; }
test_mkdir() { area mkdir; }
test_unlink() { area unlink; }
test_rename() { area rename; }
test_link() { area link; }
test_symlink() { area symlink; }
test_special() { area special; }
test_types() { area types; }
test_handles() { area handles; }
test_readdir() { area readdir; }
test_readdir_changes() { area readdir_changes; }
test_seekdir() { area seekdir; }
test_modes() { area modes; }
test_owners() { area owners; }
test_times() { area times; }
test_statx() { BELOW=/srv area statx; }
test_permission() { area permission; }
test_statfs() { area statfs; }
test_set_id() { area set_id; }
test_xattrs() { area xattrs; }
test_capability() { area capability; }
test_capability_squashed()
{
	end_serve
	coopfsd --listen "$server:17430" --export "data,root_squash=/srv" --key /tmp/key --log-level debug \
		--ready-fd 7 7>/tmp/coopfsd.ready >/tmp/coopfsd.log 2>&1 &
	echo $! >/tmp/coopfsd.pid
	until_true 30 "coopfsd listens" listens
	_mode=$(stat -c %a /srv)
	chmod 777 /srv
	BELOW=/srv area capability_squashed
	chmod "$_mode" /srv
	end_serve
	serve $server /srv
}
test_acls() { area acls; }
test_idmapped()
{
	area idmapped
	# The same without leases, and with attributes cached for a second.
	for each in nolease,strict nolease; do
		kmount c $server $each
		area idmapped /mnt/c
		down c
	done
}
test_read_write() { area read_write; }
test_append() { area append; }
test_truncate() { area truncate; }
test_holes() { area holes; }
test_sync() { area sync; }
test_copies() { area copies; }
test_locks() { area locks; }
test_locks_wait() { area locks_wait; }
test_locks_data() { area locks_data; }
test_locks_shared() { area locks_shared; }
test_allocate() { area allocate; }
test_seek() { area seek; }
test_copy() { area copy; }
test_copy_signalled() { area copy_signalled; }
test_mmap() { area mmap; }
test_sent_cold()
{
	before=$(of a storage reconnects)
	area sent_cold
	[ "$(of a storage reconnects)" = "$before" ] || die "storage got something that is no request"
}
test_direct() { area direct; }
test_mixed() { area mixed; }
test_open_memory()
{
	mkdir -p /tmp/cgroup
	mount -t cgroup2 cgroup2 /tmp/cgroup
	echo +memory >/tmp/cgroup/cgroup.subtree_control
	mkdir /tmp/cgroup/open
	CGROUP=/tmp/cgroup/open area open_memory
	rmdir /tmp/cgroup/open
	umount /tmp/cgroup
}
test_dropped_mapped() { area dropped_mapped; }
test_mapped_elsewhere() { area mapped_elsewhere; }
test_close_to_open() { area close_to_open; }
test_unlinked() { area unlinked; }
test_removed_elsewhere() { area removed_elsewhere; }
test_renamed_elsewhere() { area renamed_elsewhere; }
test_both_append() { area both_append; }
test_whole_appends() { area whole_appends; }
test_page_parts() { area page_parts; }

# The same on the exported file system, which tests the tests.
test_below()
{
	for each in special types statx set_id xattrs capability acls idmapped copy_signalled; do
		BELOW=/srv area $each /srv /srv
	done
}

test_in_flight()
{
	DAEMON=$(cat /tmp/coopfsd.pid) INFO=$(proc a)/info
	export DAEMON INFO
	area in_flight
}

# crashing AREA: runs it and plays storage's machine for it (tests/vm/posix/crash.c)
crashing()
{
	WANTED=/tmp/wanted
	export WANTED
	rm -f $WANTED
	job crashing coop-posix "$1" /mnt/a /mnt/b
	while running crashing; do
		until_true 120 "the area wants a crash or ends" wanted_or_ended
		[ ! -e $WANTED ] || { storage_does "$(cat $WANTED)" "/srv/$1/f" && rm $WANTED; }
	done
	job_ends 1 crashing
}

wanted_or_ended() { [ -e $WANTED ] || ! running crashing; }

storage_does()
{
	case $1 in
	save) cp "$2" /tmp/saved ;;
	stop) kill -STOP "$(cat /tmp/coopfsd.pid)" ;;
	cut_off) kill -STOP "$(cat /tmp/between.pid)" ;;
	back) kill -CONT "$(cat /tmp/between.pid)" ;;
	restart)
		away
		serve $server /srv
		;;
	power)
		away
		umount /srv
		mount -o loop /tmp/disk /srv
		rm -rf /var/lib/coopfsd
		serve $server /srv
		;;
	crash)
		away
		cat /tmp/saved >"$2"
		rm -rf /var/lib/coopfsd
		serve $server /srv
		;;
	esac
}

test_written_again()
{
	crashing written_again
	[ "$(of a storage written_again)" -ge 4 ] || die "nothing was written again"
}

# late AREA [OPTIONS [HOW]]: runs it with a program between a and storage that holds messages back
late()
{
	stand_between
	down a
	kmount a 127.0.0.2 "readahead=64${2:-}"
	BETWEEN=/tmp/between INFO=$(proc a)/info STATS=$(proc a)/stats REQUESTS=$(proc a)/requests
	export BETWEEN INFO STATS REQUESTS
	"${3:-area}" "$1"
	down a
	kmount a $server readahead=64
}

test_streamed() { late streamed; }
test_beside_write() { late beside_write; }
test_unlock_unknown() { late unlock_unknown; }
test_behind_end() { late behind_end; }
test_cut_mapped() { late cut_mapped ,strict,nolease; }
test_append_mapped() { late append_mapped ,strict,nolease; }
test_read_grown() { late read_grown ,strict,nolease; }
test_direct_foreign() { late direct_foreign ,strict,nolease; }
test_grown_foreign() { late grown_foreign ,strict,nolease; }
test_write_foreign() { late write_foreign ,strict,nolease; }

test_handed_over() { crashing handed_over; }
asked_by() # COMMAND...: requests that it makes for 60 files
{
	_calls=$(of a storage calls)
	for _i in $(seq 60); do "$@" "/mnt/a/$_i" || die "$*"; done
	echo $(($(of a storage calls) - _calls))
}
put() { dd if=/tmp/bytes of="$1" bs=4 count=1 conv=notrunc 2>/dev/null; }
append() { cat /tmp/bytes >>"$1"; }
look() { : <"$1"; }

# costs OPTIONS: requests to make 60 files, write them in place, and append to them
costs()
{
	down a
	rm -f /mnt/b/[0-9]*
	kmount a "$server" "readahead=64,nolease$1"
	made=$(asked_by put)
	put=$(asked_by put)
	appended=$(asked_by append)
}

# A single WRITE that holds all written bytes commits them itself. Storage chooses the offset of an
# append, so 60 appends take 60 COMMITs: one at each close, or with commit_on_close=0 at the fsync.
test_commit_on_close()
{
	echo bytes >/tmp/bytes
	costs ''
	with="$made $put" with_append=$appended
	costs ,commit_on_close=0
	grep -q '^commit_on_close=0$' "$(proc a)/options" || die "the options lack it"
	for each in $with; do
		[ "$each" -le $((made + 10)) ] || die "requests with $with, without $made $put"
		made=$put
	done
	[ "$with_append" -ge $((appended + 50)) ] ||
		die "requests of appending with $with_append, without $appended"
	looked=$(asked_by look)
	synced=$(asked_by sync)
	[ "$synced" -ge $((looked + 50)) ] || die "requests of readers $looked, with fsync $synced"
	down a
	kmount a "$server" readahead=64
}

test_closed()
{
	BELOW=/srv
	export BELOW
	crashing closed
}

test_lost_for_all() { crashing lost_for_all; }
test_names_lost() { crashing names_lost; }
test_tmpfile_kept() { crashing tmpfile_kept; }
test_locks_lost() { crashing locks_lost; }
test_locks_kept() { crashing locks_kept; }
test_locks_fenced() { late locks_fenced ,nolease crashing; }
test_locks_told() { late locks_told ,nolease crashing; }
test_locks_silent() { late locks_silent ,nolease crashing; }
test_locks_heard() { late locks_heard ,nolease; }
test_locks_killed() { late locks_killed ,nolease; }
test_locks_forced() { late locks_forced ,nolease; }
test_soft_kept()
{
	BELOW=/srv
	export BELOW
	late soft_kept ,nolease,soft,timeo=30
}
test_soft_reopened()
{
	BELOW=/srv
	export BELOW
	# An OPEN has to pass in time, so the time is long.
	late soft_reopened ,nolease,soft,timeo=100 crashing
}

counted() { od -An -tu8 -j4096 -N8 /srv/locks_data/f 2>/dev/null; }
counts_on() { [ "$(counted)" != "$1" ] || ! running counter; }

# The daemon is killed and restarted, again and again, while both nodes count under a lock.
test_locks_restarts()
{
	job counter coop-posix locks_data /mnt/a /mnt/b
	times=0
	while running counter; do
		until_true 60 "they count" counts_on "$(counted)"
		away
		serve $server /srv
		times=$((times + 1))
	done
	job_ends 1 counter
	[ "$times" -ge 5 ] || die "only $times restarts"
}

# Local locks: each node has its own, and they do not exclude the other node.
test_local_locks()
{
	for kind in flock posix all; do
		down a b
		kmount a $server local_lock=$kind
		kmount b $server local_lock=$kind
		grep " /mnt/a .*[,]local_lock=$kind" /proc/mounts
		grep "^local_lock=$kind$" "$(proc a)/options"
		if coop-posix locks /mnt/a /mnt/b 2>/tmp/said; then die "$kind locks exclude other nodes"; fi
		coop-posix locks /mnt/a /mnt/a 2>/tmp/said || die "$(cat /tmp/said)"
	done
	down a b
	up
}

# strict: the next system call here sees what the other node's last one changed, on an open file too.
test_strict()
{
	down a
	kmount a $server strict
	grep ' /mnt/a .*[,]strict' /proc/mounts
	grep '^strict' "$(proc a)/options"
	echo begin >/srv/strict
	exec 5</mnt/a/strict
	read -r line <&5
	n=1
	while [ $n -le 30 ]; do
		[ ! -e "/mnt/a/new$n" ] || die "new$n exists"
		echo "line $n" >>/mnt/b/strict
		mode=$((600 + n % 8))
		chmod $mode /mnt/b/strict
		: >"/mnt/b/new$n"
		read -r line <&5 || die "no line $n in the open file"
		[ "$line" = "line $n" ] || die "line $n is $line"
		[ "$(stat -c %a /mnt/a/strict)" = $mode ] || die "old mode after $n changes"
		[ -e "/mnt/a/new$n" ] || die "new$n is not seen"
		n=$((n + 1))
	done
	exec 5<&-
	down a b
	up
}

# refused WHY COMMAND...: it fails, and its message contains WHY
refused()
{
	_why=$1
	shift
	if "$@" 2>/tmp/said; then die "not refused: $*"; fi
	grep -q "$_why" /tmp/said || die "$*: $(cat /tmp/said), not $_why"
}

test_read_only()
{
	ro='Read-only file system'
	mkdir /srv/ro
	echo here >/srv/ro/f
	down a
	kmount a $server ro
	cd /mnt/a/ro
	[ "$(cat f)" = here ] || die "the file cannot be read"
	refused "$ro" sh -c 'echo x >f'
	refused "$ro" sh -c 'echo x >new'
	refused "$ro" mkdir d
	refused "$ro" rm -f f
	refused "$ro" mv -f f g
	refused "$ro" ln f g
	refused "$ro" ln -s f g
	refused "$ro" chmod 600 f
	refused "$ro" chown 1 f
	refused "$ro" touch f
	refused "$ro" truncate -s 0 f
	cd /
	mount -o remount,rw /mnt/a
	echo more >>/mnt/a/ro/f
	[ "$(cat /srv/ro/f)" = "here
more" ] || die "the written line is missing"
	exec 7>>/mnt/a/ro/f
	if mount -o remount,ro /mnt/a; then die "read-only under a writer"; fi
	exec 7>&-
	mount -o remount,ro /mnt/a
	refused "$ro" touch /mnt/a/ro/f
	mount -o remount,rw /mnt/a
	down a
	kmount a $server readahead=64
}

# A remount changes the options that may change, under open files.
test_remount()
{
	echo text >/mnt/a/remount
	exec 7<>/mnt/a/remount
	mount -o remount,readahead=16,soft,timeo=70 /mnt/a
	grep -q '^readahead=16$' "$(proc a)/options" || die "readahead"
	grep ' /mnt/a ' /proc/mounts | grep -q 'soft,timeo=70' || die "$(grep coopfs /proc/mounts)"
	read -r line <&7
	[ "$line" = text ] || die "read $line"
	echo more >&7
	exec 7>&-
	[ "$(tail -n 1 /srv/remount)" = more ] || die "the write is lost"
	refused "" mount -o remount,key=/tmp/other /mnt/a
	mount -o remount,readahead=64,hard /mnt/a
	grep ' /mnt/a ' /proc/mounts | grep -q soft && die "still soft"
	true
}

test_busy()
{
	echo text >/mnt/a/busy
	exec 7<>/mnt/a/busy
	refused busy umount /mnt/a
	echo again >&7
	exec 7>&-
	[ "$(cat /mnt/a/busy)" = again ] || die "the mount was harmed"
	cd /mnt/a
	refused busy umount /mnt/a
	cd /
	# After a lazy umount the mount lives until the last file is closed, and that file works.
	exec 7>>/mnt/a/busy
	umount -l /mnt/a
	! mounted /mnt/a || die "still mounted"
	echo late >&7
	exec 7>&-
	until_true 20 "the late line is stored" grep -q late /srv/busy
	kmount a $server readahead=64
}

forced_off()
{
	! mounted "/mnt/$1" || umount -f "/mnt/$1"
}

# The daemon is gone for good. Callers that wait for it get an error, and umount -f succeeds: on a
# mount with a reader, and on one with dirty bytes that cannot be stored any more.
test_forced()
{
	coop-pattern write /srv 1 1 1048576 1
	# Only the writer may have this descriptor: any process that ends with a copy writes the bytes back.
	mkfifo /tmp/go
	job writer sh -c 'exec 7<>/mnt/b/dirty; read -r _ </tmp/go; echo lost >&7'
	until_true 10 "the file is open" test -e "/proc/$(cat /tmp/writer.job)/fd/7"
	before=$(proc a) before_b=$(proc b)
	away
	echo >/tmp/go
	job reader cat /mnt/a/1
	until_true 20 "the reader waits" waits reader
	until_true 20 "the writer waits" waits writer
	umount -f /mnt/a || true # busy, unless the reader ends first
	until_true 20 "the reader ends" test -s /tmp/reader.status
	[ "$(cat /tmp/reader.status)" != 0 ] || die "the read succeeded"
	until_true 20 "a is unmounted" forced_off a
	umount -f /mnt/b || true
	until_true 20 "the writer ends" test -s /tmp/writer.status
	until_true 20 "b is unmounted" forced_off b
	[ ! -e "$before" ] && [ ! -e "$before_b" ] || die "/proc still has the mounts"
	serve $server /srv
	up
	coop-pattern check /mnt/a 1 1 1048576 1
}

# A forced umount of a busy mount does no harm while the daemon works.
test_forced_in_vain()
{
	echo one >/mnt/a/vain
	exec 7<>/mnt/a/vain
	umount -f /mnt/a && die "the mount was not busy"
	sleep 3
	kill -STOP "$(cat /tmp/coopfsd.pid)"
	job writer sh -c 'echo two >/mnt/a/vain.2'
	sleep 4
	kill -CONT "$(cat /tmp/coopfsd.pid)"
	job_ends 30 writer
	echo three >&7
	exec 7>&-
	[ "$(cat /srv/vain)" = three ] || die "the write is lost"
}

test_unload()
{
	down a b
	rmmod coopfs
	[ ! -e /proc/fs/coopfs ] || die "/proc/fs/coopfs is still there"
	grep '^coop' /proc/slabinfo && die "there are caches left"
	insmod /lab/files/coopfs.ko
	up
}
