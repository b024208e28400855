# SPDX-License-Identifier: MIT
# coopfs.ko as administrators meet it: mount(8) and umount(8) of util-linux with the helper
# mount.coopfs, lines of /etc/fstab, and a module that modprobe finds and loads.
#
#: programs coopfsd coopfs mount umount modprobe depmod ip rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth
#: files $KO/coopfs.ko
#: memory 1024
#: deadline 180

server=10.77.0.1
installed=/lib/modules/$(uname -r)/extra/coopfs.ko

setup()
{
	wire va 10.77.0.1 vb 10.77.0.2
	rxe rxe0 va
	rxe rxe1 vb
	stored $server
	for n in a b; do
		pattern "/srv/$n.bin" 2 "$n.bin"
	done
	mkdir -p /sbin "$(dirname "$installed")"
	ln -s /usr/bin/coopfs /sbin/mount.coopfs
	ln -s /usr/bin/modprobe /sbin/modprobe
}

after_failure()
{
	tell
	clear_up
	cat /tmp/said
} 2>&1

install()
{
	[ -e "$installed" ] || cp /lab/files/coopfs.ko "$installed"
	depmod
}

loaded() { grep -q '^coopfs ' /proc/modules; }

# has NODE WORD: the node's options in /proc/mounts have it
has() { grep " /mnt/$1 coopfs " /proc/mounts | cut -d' ' -f4 | tr , '\n' | grep -qx "$2"; }

# The message says what to do, and the status is that of mount(8) for a mount that failed.
test_no_module()
{
	mount -t coopfs -o key=/tmp/key $server:/data /mnt/a 2>/tmp/said && die "mounted without a module"
	status=$?
	[ $status = 32 ] || die "mount(8) ended with $status"
	grep -q 'modprobe finds none.*dkms-install' /tmp/said || die "$(cat /tmp/said)"
}

# The first mount loads the module; after the last umount it can be removed.
test_module_is_loaded()
{
	install
	! loaded || die "the module is loaded already"
	mount -t coopfs -o "key=/tmp/key,$(options a)" $server:/data /mnt/a
	loaded || die "no module was loaded"
	same a a.bin
	modprobe -r coopfs 2>/tmp/said && die "the module was removed under a mount"
	umount /mnt/a
	modprobe -r coopfs
	! loaded || die "the module is still loaded"
}

# mount needs nothing but a line in /etc/fstab, here and at boot; each option of the line has an effect.
test_lines()
{
	install
	cat >/etc/fstab <<-END
		$server:/data /mnt/a coopfs key=/tmp/key,$(options a),ro,nosuid,noatime,readahead=64,_netdev 0 0
		$server:/data /mnt/b coopfs noauto,key=/tmp/key,$(options b),nofail 0 0
	END
	mount -a -t coopfs
	mounted /mnt/a || die "a is not mounted"
	! mounted /mnt/b || die "noauto had no effect"
	for word in ro nosuid noatime readahead=64; do
		has a "$word" || die "a is mounted without $word"
	done
	touch /mnt/a/new 2>/dev/null && die "ro had no effect"
	mount /mnt/b
	until_true 20 "b knows a" knows b 1
	same a a.bin
	same b a.bin
	[ "$(of b source peer bytes)" -gt 1500000 ] || die "b got nothing from a"
	mount -a -t coopfs # again: mounts stay as they are
	[ "$(grep -c ' coopfs ' /proc/mounts)" = 2 ] || die "mounted twice"
	umount -a -t coopfs
	! grep -q ' coopfs ' /proc/mounts || die "still mounted"
}

# mount(8) hands the helper the line's options and the new ones.
test_remount()
{
	install
	echo "$server:/data /mnt/a coopfs key=/tmp/key,$(options a),readahead=64 0 0" >/etc/fstab
	mount /mnt/a
	mount -o remount,readahead=32,ro /mnt/a
	has a readahead=32 || die "readahead did not change"
	has a ro || die "the mount is still writable"
	mount -o remount,rw /mnt/a
	has a rw || die "the mount is not writable"
	echo word >/mnt/a/written
	[ "$(cat /srv/written)" = word ] || die "not written"
	if mount -o remount,ib_mtu=1024 /mnt/a 2>/tmp/said; then die "ib_mtu was changed"; fi
	grep -q 'ib_mtu.*unmount' /tmp/said || die "$(cat /tmp/said)"
	umount /mnt/a
}

# Options of every file system are taken from mount(8) and, by the kernel, from a mount program that
# leaves them to it; so is a remount that repeats all options.
test_every_option()
{
	install
	words="key=/tmp/key,$(options a),readahead=64,defaults,nodiratime,strictatime,lazytime,iversion,relatime"
	modprobe coopfs
	for by in mount "busybox mount -i"; do
		$by -t coopfs -o "$words" $server:/data /mnt/a 2>/tmp/said || die "$by: $(cat /tmp/said)"
		$by -t coopfs -o "remount,$words" $server:/data /mnt/a 2>/tmp/said || die "$by, remount: $(cat /tmp/said)"
		has a readahead=64 || die "$by: readahead changed"
		umount /mnt/a
	done
	: >/etc/fstab
	mount -t coopfs -o "$words,nosymfollow" $server:/data /mnt/a
	mount -o remount,ro /mnt/a # this repeats what the table of mounts has
	has a nosymfollow || die "nosymfollow is gone"
	has a ro || die "the mount is still writable"
	umount /mnt/a
}

# A mistake in the command line is named in the message, and nothing is mounted.
test_what_is_wrong()
{
	install
	while read -r what options is expected; do
		mount -t coopfs -o "$options" "$what" /mnt/a 2>/tmp/said && die "$what was mounted with $options"
		status=$?
		[ $status = "$is" ] || die "$what: mount(8) ended with $status"
		grep -q "$expected" /tmp/said || die "$what, $options: $(cat /tmp/said)"
	done <<-END
		$server:/other key=/tmp/key 32 other
		$server:1:/data key=/tmp/key,soft,timeo=10 32 $server
		nobody.invalid:/data key=/tmp/key 32 nobody.invalid
		$server:/data key=/tmp/nothing 32 /tmp/nothing
		$server:/data key=/tmp/key,reedahead=1 1 reedahead
		$server:/data key=/tmp/key,ib,ib_devname=rxe9 32 rxe9
	END
	! mounted /mnt/a || die "something is mounted"
}
