# SPDX-License-Identifier: MIT
# coopfs.ko under fio(1), which writes at random with a checksum in every block and reads
# it back: by read and write, mappings, and O_DIRECT with several requests in flight. The
# other node then verifies the blocks, with pages from the first one.
#
#: programs coopfsd coopfs coop-pattern fio ip rdma
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth
#: files $KO/coopfs.ko
#: memory 1536
#: deadline 480

server=127.0.0.1

setup()
{
	wired
	stored $server
	up
}

after_failure() { tell; } 2>&1

# run_fio FILE ARGUMENTS...
run_fio()
{
	_file=$1
	shift
	timeout $((120 * patience)) /usr/bin/fio --name=job --filename="$_file" --thread \
		--verify=crc32c --verify_fatal=1 --randseed=17430 --fallocate=none \
		--aux-path=/tmp --size=4m "$@" >/tmp/fio.out 2>&1 || {
		tail -n 40 /tmp/fio.out
		die "fio $*: $(grep -m 1 -E 'verify|error|err=' /tmp/fio.out)"
	}
	if grep -E 'verify:|err= *[1-9]' /tmp/fio.out; then die "fio $*: it reported errors"; fi
}

# written_here NAME ARGUMENTS...: a writes and verifies, b verifies; then the reverse, over the
# same file.
written_here()
{
	_name=$1
	shift
	run_fio "/mnt/a/$_name" --rw=randwrite --do_verify=1 "$@"
	coop-pattern settle "/srv/$_name"
	run_fio "/mnt/b/$_name" --rw=randwrite --verify_only "$@"
	run_fio "/mnt/b/$_name" --rw=randwrite --do_verify=1 "$@"
	coop-pattern settle "/srv/$_name"
	run_fio "/mnt/a/$_name" --rw=randwrite --verify_only "$@"
}

test_psync()
{
	written_here psync --ioengine=psync --bsrange=512-16k --bs_unaligned
	run_fio /mnt/a/psync.rw --rw=randrw --ioengine=psync --bs=4k --do_verify=1 --fsync=32
}

test_mmap()
{
	written_here mmap --ioengine=mmap --bs=4k
}

test_libaio_direct()
{
	written_here aio --ioengine=libaio --direct=1 --iodepth=16 --bs=16k
	run_fio /mnt/a/aio.rw --rw=randrw --ioengine=libaio --direct=1 --iodepth=16 --bs=16k --do_verify=1
}

# A large request of one caller becomes several at storage.
test_large_direct()
{
	run_fio /mnt/a/large --rw=write --ioengine=psync --direct=1 --bs=4m --size=16m --do_verify=1
	run_fio /mnt/b/large --rw=write --ioengine=psync --direct=1 --bs=4m --size=16m --verify_only
}

# Several writers on one node write one file, each its own part; the other node verifies.
test_jobs()
{
	run_fio /mnt/a/jobs --rw=randwrite --ioengine=psync --bs=8k --size=2m --numjobs=4 \
		--offset_increment=2m --do_verify=1
	run_fio /mnt/b/jobs --rw=randwrite --ioengine=psync --bs=8k --size=2m --numjobs=4 \
		--offset_increment=2m --verify_only
	[ "$(of b source peer pages)" -gt 0 ] || die "b got nothing from a"
}

test_unmount() { down a b; }
