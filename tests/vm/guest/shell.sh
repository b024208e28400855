# SPDX-License-Identifier: MIT
# An interactive machine: a daemon and two FUSE nodes on a Soft-RoCE device each.
#
#: programs coopfsd coopfs-fuse coopfs ip tc rdma ibv_devinfo
#: modules crc32_generic rdma_rxe ib_uverbs veth bridge sch_netem fuse
#: memory 1536

setup()
{
	switch va 10.77.0.1 vb 10.77.0.2
	rxe rxe0 va
	rxe rxe1 vb
	mkdir -p /srv
	mount -t tmpfs srv /srv
	pattern /srv/pattern.bin 8 pat
	serve 10.77.0.1 /srv
	fuse_mount a 10.77.0.1 ib,ib_devname=rxe0,peer_timeout_ms=4000,cache_size=128M
	fuse_mount b 10.77.0.1 ib,ib_devname=rxe1,peer_timeout_ms=4000,cache_size=128M
	set +x
}

motd()
{
	cat <<-'END'

	coopfs: /srv is exported by coopfsd; /mnt/a (rxe0) and /mnt/b (rxe1) are two nodes.
	  cat /mnt/a/pattern.bin >/dev/null; cat /mnt/b/pattern.bin >/dev/null
	  coopfs stats /mnt/b               where the bytes came from
	  tc qdisc add dev va root netem loss 1%
	Leave: exit, or Ctrl-A x at any time.

	END
}
