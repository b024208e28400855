# SPDX-License-Identifier: MIT
# What stands on a mount of coopfs.ko: knfsd, which exports it to an NFS client of the same
# machine, and overlayfs, of which it is the lower layer. Nobody but the kernel is needed for
# the export: what mountd would tell it is written into its tables here.
#
#: programs coopfsd coopfs coop-pattern coop-posix mkfs.ext4 setpriv unshare
#: modules crc32_generic libcrc32c hmac sha256_generic ib_core loop ext4 crc32c_generic nfsd nfsv4 overlay
#: files $KO/coopfs.ko
#: deadline 300
#: short nfs

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

# nfsd_up DIRECTORY: NFSv4 alone, which needs neither rpcbind nor mountd
nfsd_up()
{
	mounted /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
	mkdir -p /var/lib/nfs/v4recovery
	# Seconds; nobody is left of a server before, so nobody has to be waited for longer.
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	echo "-2 -3 +4 +4.2" >/proc/fs/nfsd/versions
	_never=2147483647
	# Insecure ports, no subtree check, file system 0: the root of what is exported.
	echo "nfsd $server $_never all" >/proc/net/rpc/auth.unix.ip/channel
	echo "all 1 \\x00000000 $_never $1" >/proc/net/rpc/nfsd.fh/channel
	echo "all $1 $_never 9218 65534 65534 0" >/proc/net/rpc/nfsd.export/channel
	echo 4 >/proc/fs/nfsd/threads
}

# nfsd_down: it lets go of the mount
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
	[ "$(cat /mnt/nfs/d/e/f/deep)" = deep ] || die "what is deep was not read"
	# What an NFS client writes is seen by a node that opens it then, and the other way round.
	coop-pattern -f write /mnt/nfs 5 8 1048576 1
	coop-pattern check /mnt/b 5 8 1048576 1
	coop-pattern write /mnt/b 5 8 1048576 2
	# The server asks for attributes as any program does, the client believes it for some seconds.
	until_true 90 "the NFS client sees version 2" coop-pattern check /mnt/nfs 5 8 1048576 2
	mkdir /mnt/nfs/made
	echo one >/mnt/nfs/made/one
	mv /mnt/nfs/made/one /mnt/nfs/d/two
	ln /mnt/nfs/d/two /mnt/nfs/d/three
	ln -s two /mnt/nfs/d/four
	[ "$(cat /mnt/b/d/four)" = one ] || die "names made by NFS are not there"
	rm /mnt/nfs/d/three /mnt/nfs/d/four
	rmdir /mnt/nfs/made
	[ ! -e /srv/made ] || die "the directory is still there"

	# Handles that the client has are good when the server has forgotten all it knew.
	exec 7</mnt/nfs/d/e/f/deep
	cd /mnt/nfs/d/e/f
	nfsd_down
	down a
	kmount a $server readahead=64
	forget
	nfsd_up /mnt/a
	[ "$(cat deep)" = deep ] || die "by a handle of before"
	[ "$(cat <&7)" = deep ] || die "by an open file of before"
	exec 7<&-
	[ "$(cd .. && pwd)" = /mnt/nfs/d/e ] || die "the directory lost its place"
	echo more >>deep
	cd /
	until_true 30 "b sees it" grep -q more /mnt/b/d/e/f/deep
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
more" ] || die "it was not copied up"
	[ "$(stat -c %a /mnt/merged/d/kept)" = 640 ] || die "its mode was not"
	rm /mnt/merged/d/gone
	mv /mnt/merged/d/kept /mnt/merged/moved
	[ -z "$(ls /mnt/merged/d)" ] || die "there are names that were removed"
	[ "$(cat /srv/low/d/kept)" = kept ] && [ -e /srv/low/d/gone ] || die "the layer has changed"
	umount /mnt/merged
}

# as USER COMMAND...
as()
{
	_user=$1
	shift
	/usr/bin/setpriv "--reuid=$_user" "--regid=$_user" --clear-groups "$@"
}

# overlay_of NAME: /mnt/layer, with an upper layer of its own
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
	# The mounter is root below, too; 5 and up are 105 and up.
	coop-posix --mapped "0 0 1
5 105 900" /mnt/a/mapped /mnt/layer
	overlay_of shifted
	[ "$(stat -c %u:%g /mnt/merged/five /mnt/merged/d)" = "105:105
105:105" ] || die "owners: $(stat -c %u:%g /mnt/merged/five /mnt/merged/d)"
	[ "$(as 105 cat /mnt/merged/five /mnt/merged/d/deep)" = "five
d/deep" ] || die "the owner does not read it"
	[ "$(as 105 ls /mnt/merged/d)" = deep ] || die "the owner does not list it"
	! as 5 cat /mnt/merged/five || die "who is the owner at storage reads it"
	! as 5 ls /mnt/merged/d || die "who is the owner at storage lists it"
	! as 105 cat /mnt/merged/zero || die "another reads what is root's"
	as 105 sh -c 'echo more >>/mnt/merged/five'
	[ "$(stat -c %u /tmp/shifted/upper/five)" = 105 ] || die "it was copied up for another"
	[ "$(as 105 cat /mnt/merged/five)" = "five
more" ] || die "it was not copied up"
	! as 5 cat /mnt/merged/five || die "who is the owner at storage reads the copy"
	[ "$(cat /srv/mapped/five)" = five ] && [ "$(stat -c %u /srv/mapped/five)" = 5 ] ||
		die "the layer has changed"
	umount /mnt/merged

	mounted /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
	echo "nfsd $server 2147483647 all" >/proc/net/rpc/auth.unix.ip/channel
	export_of /mnt/a || die "the plain mount cannot be exported"
	! export_of /mnt/layer || die "an id-mapped mount can be exported"
	nfsd_forget
	umount /mnt/layer

	# A mounter whom the layer does not map is nobody there: not for others either.
	coop-posix --mapped "5 105 900" /mnt/a/mapped /mnt/layer
	if overlay_of closed; then
		! as 105 cat /mnt/merged/five || die "read as a mounter whom the layer does not map"
		! cat /mnt/merged/five || die "read by a mounter whom the layer does not map"
		umount /mnt/merged
	fi
	umount /mnt/layer
}

# who_reads_twice USER FILE: names are looked up the first time, and found again the second
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
	# Storage is asked about each name that is found again, each time.
	kmount c $server nolease,strict
	coop-posix --mapped "0 0 1
5 105 900" /mnt/c/walked /mnt/layer
	overlay_of walk
	# Mapped or not; what the mounter has just read is no leave for the others.
	for user in 2000 105 0; do
		cat /mnt/merged/low/closed /mnt/merged/both/closed >/dev/null
		who_reads_twice $user low/f
		who_reads_twice $user both/f
	done
	for user in 2000 105; do
		! as $user cat /mnt/merged/low/closed || die "user $user reads what is the mounter's in low"
		! as $user cat /mnt/merged/both/closed || die "user $user reads what is the mounter's in both"
	done
	rm /srv/walked/low/f
	! as 2000 cat /mnt/merged/low/f || die "what was removed is read"
	umount /mnt/merged
	umount /mnt/layer
	down c
}

# in_new_pids COMMAND...: its notes hold the namespace of its process id
in_new_pids() { /usr/bin/unshare --pid --fork "$@"; }

test_idmapped_ended()
{
	mkdir -p /srv/ended
	echo text >/srv/ended/f
	coop-posix --mapped "0 0 1" /mnt/a/ended /mnt/layer
	most=$(cat /proc/sys/user/max_pid_namespaces)
	echo 1 >/proc/sys/user/max_pid_namespaces
	[ "$(in_new_pids cat /mnt/layer/f)" = text ] || die "it was not read in a namespace of its own"
	until_true 100 "what a task that has ended held is free" in_new_pids true
	echo "$most" >/proc/sys/user/max_pid_namespaces
	umount /mnt/layer
}
