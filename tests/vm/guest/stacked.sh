# SPDX-License-Identifier: MIT
# Users of a mount of coopfs.ko inside the kernel: knfsd, which exports it to an NFS client on the
# same machine, and overlayfs, which has it as its lower layer. No mountd runs: this script writes
# the export tables of the kernel itself.
#
#: programs coopfsd coopfs coop-pattern coop-posix mkfs.ext4 setpriv unshare
#: modules crc32_generic libcrc32c hmac sha256_generic ib_core loop ext4 crc32c_generic nfsd nfsv4 overlay
#: files $KO/coopfs.ko
#: deadline 300
#: long nfs

server=127.0.0.1

setup()
{
	insmod /lab/files/coopfs.ko
	mkdir -p /srv /mnt/a /mnt/b /mnt/c /mnt/nfs /mnt/merged /mnt/layer
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
	tell
	echo 1000 >/proc/sys/user/max_pid_namespaces
	umount -f /mnt/nfs
	umount /mnt/merged
	umount /mnt/layer
	echo 0 >/proc/fs/nfsd/threads
	clear_up
	up
} 2>&1

# nfsd_up DIRECTORY: exports it by NFSv4 only, which needs neither rpcbind nor mountd
nfsd_up()
{
	mounted /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
	mkdir -p /var/lib/nfs/v4recovery
	# Seconds. No client of an earlier server exists, so the grace period may be short.
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	echo "-2 -3 +4 +4.2" >/proc/fs/nfsd/versions
	_never=2147483647
	# Insecure ports, no subtree check, file system 0: the root of the export.
	echo "nfsd $server $_never all" >/proc/net/rpc/auth.unix.ip/channel
	echo "all 1 \\x00000000 $_never $1" >/proc/net/rpc/nfsd.fh/channel
	echo "all $1 $_never 9218 65534 65534 0" >/proc/net/rpc/nfsd.export/channel
	echo 4 >/proc/fs/nfsd/threads
}

# nfsd_down: makes nfsd release the mount
nfsd_down()
{
	echo 0 >/proc/fs/nfsd/threads
	nfsd_forget
}

nfsd_forget()
{
	for _table in nfsd.export nfsd.fh auth.unix.ip; do
		date +%s >/proc/net/rpc/$_table/flush
	done
}

nfs_mount() { mount -i -t nfs4 -o "vers=4.2,addr=$server,clientaddr=$server,sec=sys,timeo=100" "$server:/" /mnt/nfs; }

forget() { echo 3 >/proc/sys/vm/drop_caches; }

test_nfs()
{
	mkdir -p /srv/d/e/f
	coop-pattern write /mnt/b 1 4 1048576 1
	echo deep >/mnt/b/d/e/f/deep
	nfsd_up /mnt/a
	nfs_mount || die "NFS: $?"
	coop-pattern check /mnt/nfs 1 4 1048576 1
	coop-pattern -m direct check /mnt/nfs 1 4 1048576 1
	[ "$(cat /mnt/nfs/d/e/f/deep)" = deep ] || die "the deep file was not read"
	# A node's next open sees what an NFS client wrote, and the reverse.
	coop-pattern -f write /mnt/nfs 5 8 1048576 1
	coop-pattern check /mnt/b 5 8 1048576 1
	coop-pattern write /mnt/b 5 8 1048576 2
	# The NFS server asks for attributes like any program; its client caches them for some seconds.
	until_true 90 "the NFS client sees version 2" coop-pattern check /mnt/nfs 5 8 1048576 2
	mkdir /mnt/nfs/made
	echo one >/mnt/nfs/made/one
	mv /mnt/nfs/made/one /mnt/nfs/d/two
	ln /mnt/nfs/d/two /mnt/nfs/d/three
	ln -s two /mnt/nfs/d/four
	[ "$(cat /mnt/b/d/four)" = one ] || die "names made by NFS are missing"
	rm /mnt/nfs/d/three /mnt/nfs/d/four
	rmdir /mnt/nfs/made
	[ ! -e /srv/made ] || die "the directory is still there"

	# The client's handles stay valid after the server has dropped its caches.
	exec 7</mnt/nfs/d/e/f/deep
	cd /mnt/nfs/d/e/f
	nfsd_down
	down a
	kmount a $server readahead=64
	forget
	nfsd_up /mnt/a
	[ "$(cat deep)" = deep ] || die "an earlier handle is stale"
	[ "$(cat <&7)" = deep ] || die "an earlier open file is stale"
	exec 7<&-
	[ "$(cd .. && pwd)" = /mnt/nfs/d/e ] || die "the directory lost its place"
	echo more >>deep
	cd /
	until_true 30 "b sees the write" grep -q more /mnt/b/d/e/f/deep
	umount /mnt/nfs
	nfsd_down
	down a
	kmount a $server readahead=64
}

test_overlay()
{
	mkdir -p /srv/low/d /tmp/upper /tmp/work
	coop-pattern write /mnt/b/low 1 3 1048576 1
	echo kept >/srv/low/d/kept
	echo gone >/srv/low/d/gone
	chmod 640 /srv/low/d/kept
	mount -t overlay overlay -o lowerdir=/mnt/a/low,upperdir=/tmp/upper,workdir=/tmp/work /mnt/merged
	coop-pattern check /mnt/merged 1 3 1048576 1
	coop-pattern -m mmap check /mnt/merged 1 3 1048576 1
	coop-pattern -m direct check /mnt/merged 1 3 1048576 1
	coop-pattern write /mnt/merged 2 2 1048576 2
	coop-pattern check /mnt/merged 2 2 1048576 2
	coop-pattern check /mnt/b/low 1 3 1048576 1
	echo more >>/mnt/merged/d/kept
	[ "$(cat /mnt/merged/d/kept)" = "kept
more" ] || die "the file was not copied up"
	[ "$(stat -c %a /mnt/merged/d/kept)" = 640 ] || die "the mode was not copied up"
	rm /mnt/merged/d/gone
	mv /mnt/merged/d/kept /mnt/merged/moved
	[ -z "$(ls /mnt/merged/d)" ] || die "removed names are still there"
	[ "$(cat /srv/low/d/kept)" = kept ] && [ -e /srv/low/d/gone ] || die "the layer has changed"
	umount /mnt/merged
}

# as USER COMMAND...: runs it as that user
as()
{
	_user=$1
	shift
	/usr/bin/setpriv "--reuid=$_user" "--regid=$_user" --clear-groups "$@"
}

# overlay_of NAME: mounts an overlay of /mnt/layer with its own upper layer
overlay_of()
{
	mkdir -p "/tmp/$1/upper" "/tmp/$1/work"
	mount -t overlay overlay -o "lowerdir=/mnt/layer,upperdir=/tmp/$1/upper,workdir=/tmp/$1/work" /mnt/merged
}

export_of() { echo "all $1 2147483647 9218 65534 65534 0" >/proc/net/rpc/nfsd.export/channel; }

test_idmapped()
{
	mkdir -p /srv/mapped/d
	for each in five zero d/deep; do
		echo $each >/srv/mapped/$each
		chmod 600 /srv/mapped/$each
	done
	chmod 700 /srv/mapped/d
	chown 5:5 /srv/mapped/five /srv/mapped/d /srv/mapped/d/deep
	# Root, which mounts, is root at storage too; ids 5 and up map to 105 and up.
	coop-posix --mapped "0 0 1
5 105 900" /mnt/a/mapped /mnt/layer
	overlay_of shifted
	[ "$(stat -c %u:%g /mnt/merged/five /mnt/merged/d)" = "105:105
105:105" ] || die "owners: $(stat -c %u:%g /mnt/merged/five /mnt/merged/d)"
	[ "$(as 105 cat /mnt/merged/five /mnt/merged/d/deep)" = "five
d/deep" ] || die "the owner does not read it"
	[ "$(as 105 ls /mnt/merged/d)" = deep ] || die "the owner does not list it"
	! as 5 cat /mnt/merged/five || die "the unmapped owner reads it"
	! as 5 ls /mnt/merged/d || die "the unmapped owner lists it"
	! as 105 cat /mnt/merged/zero || die "another user reads root's file"
	as 105 sh -c 'echo more >>/mnt/merged/five'
	[ "$(stat -c %u /tmp/shifted/upper/five)" = 105 ] || die "the copy has another owner"
	[ "$(as 105 cat /mnt/merged/five)" = "five
more" ] || die "the file was not copied up"
	! as 5 cat /mnt/merged/five || die "the unmapped owner reads the copy"
	[ "$(cat /srv/mapped/five)" = five ] && [ "$(stat -c %u /srv/mapped/five)" = 5 ] ||
		die "the layer has changed"
	umount /mnt/merged

	mounted /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
	echo "nfsd $server 2147483647 all" >/proc/net/rpc/auth.unix.ip/channel
	export_of /mnt/a || die "the plain mount cannot be exported"
	! export_of /mnt/layer || die "an id-mapped mount can be exported"
	nfsd_forget
	umount /mnt/layer

	# A mounter that the layer does not map has no rights there, and gives none to others.
	coop-posix --mapped "5 105 900" /mnt/a/mapped /mnt/layer
	if overlay_of closed; then
		! as 105 cat /mnt/merged/five || die "a user reads through an unmapped mounter"
		! cat /mnt/merged/five || die "an unmapped mounter reads"
		umount /mnt/merged
	fi
	umount /mnt/layer
}

# who_reads_twice USER FILE: the first read looks names up, the second finds them cached
who_reads_twice()
{
	for _time in first second; do
		[ "$(as "$1" cat "/mnt/merged/$2")" = "$2" ] || die "user $1 does not read $2 the $_time time"
	done
}

test_idmapped_walk()
{
	mkdir -p /srv/walked/low /srv/walked/both /tmp/walk/upper/both /tmp/walk/work
	for each in low both; do
		echo $each/f >/srv/walked/$each/f
		chmod 644 /srv/walked/$each/f
		echo closed >/srv/walked/$each/closed
		chmod 600 /srv/walked/$each/closed
	done
	chmod 700 /srv/walked/both
	# The client checks each cached name with storage, each time.
	kmount c $server nolease,strict
	coop-posix --mapped "0 0 1
5 105 900" /mnt/c/walked /mnt/layer
	overlay_of walk
	# Users mapped or not: a read by the mounter just before gives them no permission.
	for user in 2000 105 0; do
		cat /mnt/merged/low/closed /mnt/merged/both/closed >/dev/null
		who_reads_twice $user low/f
		who_reads_twice $user both/f
	done
	for user in 2000 105; do
		! as $user cat /mnt/merged/low/closed || die "user $user reads the mounter's file in low"
		! as $user cat /mnt/merged/both/closed || die "user $user reads the mounter's file in both"
	done
	rm /srv/walked/low/f
	! as 2000 cat /mnt/merged/low/f || die "a removed file is read"
	umount /mnt/merged
	umount /mnt/layer
	down c
}

# in_new_pids COMMAND...: runs it in its own pid namespace, which the client's notes about it keep alive
in_new_pids() { /usr/bin/unshare --pid --fork "$@"; }

test_idmapped_ended()
{
	mkdir -p /srv/ended
	echo text >/srv/ended/f
	coop-posix --mapped "0 0 1" /mnt/a/ended /mnt/layer
	most=$(cat /proc/sys/user/max_pid_namespaces)
	echo 1 >/proc/sys/user/max_pid_namespaces
	[ "$(in_new_pids cat /mnt/layer/f)" = text ] || die "the read in a new namespace failed"
	until_true 100 "the namespace of an ended task is free" in_new_pids true
	echo "$most" >/proc/sys/user/max_pid_namespaces
	umount /mnt/layer
}
