# SPDX-License-Identifier: MIT
# coopfs.ko and the FUSE program over exported file systems that offer more than the usual one,
# or grant less: one shares blocks between files, one has quotas, one has no handles.
#
#: programs coopfsd coopfs coopfs-fuse coop-posix mkfs.ext4 mkfs.xfs
#: modules crc32_generic libcrc32c hmac sha256_generic ib_core loop ext4 crc32c_generic quota_v2 xfs fuse
#: files $KO/coopfs.ko
#: deadline 240

server=127.0.0.1
device=

setup()
{
	insmod /lab/files/coopfs.ko
	mkdir -p /srv /mnt/a /mnt/b
}

# exports SIZE MKFS OPTIONS: makes a file system on $device, mounts it at /srv and exports it
exports()
{
	rm -f /tmp/disk
	truncate -s "$1" /tmp/disk
	$2 /tmp/disk >/tmp/said 2>&1 || die "$(cat /tmp/said)"
	device=$(losetup -f)
	losetup "$device" /tmp/disk
	mount -o "$3" "$device" /srv
	serve $server /srv
	kmount a $server readahead=64
	kmount b $server readahead=64
}

ends()
{
	down a b
	end_serve
	umount /srv
	losetup -d "$device"
	device=
}

after_failure()
{
	tell
	fuse_end f g
	clear_up
	# The next test makes its own file system and starts its own daemon.
	end_serve
	! mounted /srv || umount -l /srv
	[ -z "$device" ] || losetup -d "$device"
} 2>&1

area() { coop-posix "$1" "$2" "$3" 2>/tmp/said || die "$2: $(cat /tmp/said | tr '\n' ';')"; }

# The kernel's FUSE has no such operation, so a FUSE node cannot pass it on.
test_clone()
{
	exports 320M "mkfs.xfs -q -f" defaults
	BELOW=/srv
	export BELOW
	area clone /srv /srv
	area clone /mnt/a /mnt/b
	ends
}

test_quota()
{
	exports 64M "mkfs.ext4 -q -F -O quota" usrquota
	QUOTA_DEVICE=$device
	export QUOTA_DEVICE
	area quota /srv /srv
	area quota /mnt/a /mnt/b
	fuse_mount f $server allow_other
	area quota /mnt/f /mnt/a
	fuse_unmount f
	ends
}

# A file system without handles is exported by paths, and a restart of the daemon forgets long ones.
# A directory that storage does not find any more, but has, must not seem to be removed and empty.
in_lost_directory()
{
	cd "/mnt/a/$long/kept"
	end_serve
	(cd / && serve $server /srv) # else the daemon would work there, too
	# The look-ups that ask whether it was removed show storage its path again.
	for _right in "x:ls ." "text:cat x" ":touch x" "2:stat -c %h ." "x:ls ."; do
		_said=$(${_right#*:} 2>&1) && [ "$_said" = "${_right%%:*}" ] && continue
		case $_said in
		*[Ss]tale*) ;;
		*) die "'${_right#*:}' without a handle: $_said" ;;
		esac
	done
	[ "$(cat "/mnt/a/$long/kept/x")" = text ] || die "the path does not lead there any more"
	[ "$(cat x) $(ls .)" = "text x" ] || die "the names are not back"
	# Moved by another node, it is not found by the last known name either.
	mkdir /mnt/b/elsewhere
	mv "/mnt/b/$long/kept" /mnt/b/elsewhere/kept
	end_serve
	(cd / && serve $server /srv)
	for _call in "ls ." "cat x" "touch y" "stat -c %h ." "sync ." "ls ."; do
		_said=$($_call 2>&1) && die "'$_call' of a moved directory without a handle: $_said"
		case $_said in
		*[Ss]tale*) ;;
		*) die "'$_call' of a moved directory without a handle: $_said" ;;
		esac
	done
	[ "$(cat /mnt/a/elsewhere/kept/x)" = text ] || die "the new path does not lead there"
	[ "$(cat x) $(ls .)" = "text x" ] || die "the names are not back after the move"
}
test_lost_handle()
{
	mount -t ramfs srv /srv
	serve $server /srv
	kmount a $server readahead=64
	kmount b $server readahead=64
	long=$(printf '%0120d' 0)
	mkdir -p "/mnt/a/$long/kept"
	echo text >"/mnt/a/$long/kept/x"
	(in_lost_directory)
	down a b
	end_serve
	umount /srv
}
