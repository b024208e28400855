# SPDX-License-Identifier: MIT
# coopfs.ko: one file under every kind of access at once, by many threads of one node
# (coop-coherence). It runs on the export itself first, which tests the oracle.
#
#: programs coopfsd coopfs coop-coherence ip rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth
#: files $KO/coopfs.ko
#: cpus 2
#: deadline 600
#: short blocks

SEED=1
server=127.0.0.1

setup()
{
	wired
	stored $server
}

after_failure()
{
	tell
	clear_up
} 2>&1

# oracle SECONDS FILE ARGUMENTS...
oracle()
{
	_limit=$1
	_file=$2
	shift 2
	job oracle sh -c 'exec coop-coherence "$@" >&2' sh -s $SEED "$@" "$_file"
	job_ends "$_limit" oracle
}

test_below()
{
	oracle 60 /srv/below -m 2 -d 3 blocks
	oracle 60 /srv/below -m 1 words
}

test_blocks()
{
	kmount a $server readahead=32
	oracle 120 /mnt/a/blocks -m 2 -d 5 blocks
	down a
}

test_words()
{
	kmount a $server readahead=32
	oracle 120 /mnt/a/words -m 1 -r 1 words
	down a
}

test_direct()
{
	kmount a $server readahead=32
	oracle 120 /mnt/a/direct -m 5 -b 655360 -t 1 -d 20 -w aio,uring -R pread blocks
	down a
}

# Meanwhile the node serves the file's pages to a peer.
test_long()
{
	up
	oracle 300 /mnt/a/long -m 4 -d 60 -r 4 blocks
	oracle 240 /mnt/a/long -m 2 -r 1 words
	down a b
}
