# SPDX-License-Identifier: MIT
# coopfs.ko over a file system below that can more than the usual one: it shares blocks between
# files.
#
#: programs coopfsd coopfs coop-posix mkfs.xfs
#: modules crc32_generic libcrc32c hmac sha256_generic ib_core loop crc32c_generic xfs
#: files $KO/coopfs.ko
#: deadline 240

server=127.0.0.1

setup()
{
	insmod /lab/files/coopfs.ko
	mkdir -p /srv /mnt/a /mnt/b
}

# exports SIZE MKFS OPTIONS: a new file system on $device at /srv, and a daemon that exports it
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
}

after_failure()
{
	tell
	clear_up
	! mounted /srv || umount -l /srv
	losetup -d "$device"
} 2>&1

area() { coop-posix "$1" "$2" "$3" 2>/tmp/said || die "$2: $(cat /tmp/said | tr '\n' ';')"; }

# The kernel's FUSE has no such operation: nothing for a FUSE node to pass on.
test_clone()
{
	exports 320M "mkfs.xfs -q -f" defaults
	BELOW=/srv
	export BELOW
	area clone /srv /srv
	area clone /mnt/a /mnt/b
	ends
}
