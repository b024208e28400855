# SPDX-License-Identifier: MIT
# An interactive machine: a daemon, two mounts by the kernel module with a Soft-RoCE device
# each, and one by FUSE with a socket.
#
#: programs coopfsd coopfs-fuse coopfs coop-pattern ip tc rdma ibv_devinfo
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe ib_uverbs veth bridge sch_netem fuse
#: files $KO/coopfs.ko
#: memory 1536

setup()
{
	insmod /lab/files/coopfs.ko
	switch va 10.77.0.1 vb 10.77.0.2 soft/vc 10.77.0.3
	rxe rxe0 va
	rxe rxe1 vb
	mkdir -p /srv /mnt/a /mnt/b
	mount -t tmpfs srv /srv
	pattern /srv/pattern.bin 8 pat
	serve 10.77.0.1 /srv
	for n in a b; do
		kmount $n 10.77.0.1 "$(options $n)"
	done
	fuse_mount c 10.77.0.1 ib,addr=10.77.0.3,peer_timeout_ms=4000,cache_size=128M soft
	set +x
}

motd()
{
	cat <<-'END'

	coopfs: coopfsd exports /srv; /mnt/a (rxe0) and /mnt/b (rxe1) are mounts by the module,
	/mnt/c is coopfs-fuse.
	  cat /mnt/a/pattern.bin >/dev/null; cat /mnt/b/pattern.bin >/dev/null
	  coopfs stats /mnt/b               where the bytes came from
	  cat /proc/fs/coopfs/*/peers       what the module knows of the others
	  dmesg | tail                      what it has said
	  tc qdisc add dev va root netem loss 1%
	  umount /mnt/a /mnt/b; kill $(cat /tmp/c.pid); rmmod coopfs
	Leave: exit, or Ctrl-A x at any time.

	END
}
