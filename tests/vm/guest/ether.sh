# SPDX-License-Identifier: MIT
# NFS over coop-verbs ether. knfsd serves a directory in the network namespace "right", and the one
# named "left" mounts it over the Ethernet link between the two, which no other link joins. Most machines
# that build this project have no nfsd in their kernel, so this runs here. No mountd runs: the script
# writes the export tables of the kernel itself. TCP as such, ssh and the like are in tests/e2e/test_ether.py.
#
#: programs coop-pattern coop-verbs ip nsenter
#: modules tun nfsd nfsv4
#: deadline 600
#: long nfs

left=10.77.0.1 right=10.77.0.2
file=67108864

# in_ns NAME COMMAND...
in_ns()
{
	_ns=$1
	shift
	nsenter "--net=/run/netns/$_ns" "$@"
}

setup()
{
	mkdir -p /srv /mnt/nfs
	mount -t tmpfs srv /srv
	for _ns in left right; do
		ip netns add $_ns
		ip -n $_ns link set lo up
	done
	ether left
	ether right
	linked
	in_ns right /bin/sh -euxc "$(cat <<-END
		mount -t nfsd nfsd /proc/fs/nfsd
		# Seconds. No client of an earlier server exists, so the grace period may be short.
		echo 10 >/proc/fs/nfsd/nfsv4gracetime
		echo "-2 -3 +4 +4.2" >/proc/fs/nfsd/versions
		# Insecure ports, no squashed root, no subtree check, file system 0: the root of the export.
		echo "nfsd $left 2147483647 all" >/proc/net/rpc/auth.unix.ip/channel
		echo "all 1 \\\\x00000000 2147483647 /srv" >/proc/net/rpc/nfsd.fh/channel
		echo "all /srv 2147483647 9218 65534 65534 0" >/proc/net/rpc/nfsd.export/channel
		echo 4 >/proc/fs/nfsd/threads
	END
	)" || die "nfsd does not start"
}

# ether NAME: the process of one end, a job of that name
ether()
{
	eval "_ip=\$$1"
	job "$1" /usr/bin/nsenter "--net=/run/netns/$1" coop-verbs ether --path /tmp/link0 --name e0 \
		--address "$_ip/24" >>"/tmp/$1.out"
}

carrier() { ip -n "$1" link show dev e0 | grep -q LOWER_UP; }

linked()
{
	for _ns in left right; do
		until_true 20 "the link is up at the $_ns" carrier $_ns
	done
}

# passed: bytes that the interface at the left has received and sent
passed() { in_ns left awk '/e0:/ { print $2 + $10 }' /proc/net/dev; }

# passed_more BYTES: than $_before
passed_more() { [ $(($(passed) - _before)) -gt "$1" ]; }

nfs_mount()
{
	in_ns left /usr/bin/busybox mount -i -t nfs4 \
		-o "vers=4.2,addr=$right,clientaddr=$left,sec=sys,hard,timeo=50,rsize=1048576,wsize=1048576" \
		"$right:/" /mnt/nfs || die "mount of NFS: $?"
}

forget() { echo 3 >/proc/sys/vm/drop_caches; }

# compared VERSION: file 1 has the bytes of this version, here and at the server, each by its own sum
compared()
{
	forget
	coop-pattern -d check /mnt/nfs 1 1 $file "$1"
	coop-pattern -m direct check /mnt/nfs 1 1 $file "$1"
	coop-pattern check /srv 1 1 $file "$1"
	forget
	[ "$(sum /mnt/nfs/1)" = "$(sum /srv/1)" ] || die "the sums differ"
}

after_failure()
{
	cat /tmp/left.out /tmp/right.out /tmp/left.said /tmp/right.said
	umount -f /mnt/nfs || umount -l /mnt/nfs
	for _ns in left right; do
		! gone "$(cat /tmp/$_ns.job)" || ether $_ns
	done
	linked
} 2>&1

test_nfs()
{
	_before=$(passed)
	nfs_mount
	coop-pattern -f write /mnt/nfs 1 1 $file 1
	compared 1
	# In place, past the client's cache.
	coop-pattern -f -m direct write /mnt/nfs 1 1 $file 2
	compared 2
	mkdir /mnt/nfs/made
	coop-pattern write /mnt/nfs/made 1 50 5000 3
	coop-pattern check /srv/made 1 50 5000 3
	umount /mnt/nfs
	# It went this way: written twice, read three times after each.
	passed_more $((6 * file)) || die "the bytes did not pass the link"
	rm -r /srv/*
}
