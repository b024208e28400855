# SPDX-License-Identifier: MIT
# libcoop-net over Soft-RoCE devices: the conformance suite on the transports that use
# devices, and coopnet between rxe0, rxe1 and soft RoCE v2 in user space. On rxe0 and rxe1 the
# kernel's transport (/dev/coop-net) and ud speak with each other.
#
#: programs coopnet ip rdma tc
#: optional net_conformance conformance-peer coop-rails
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe ib_uverbs rdma_ucm veth bridge sch_netem
#: files $KO/coopfs.ko
#: memory 1536
#: deadline 3600
#: short ud_between_devices kernel_asks_ud
#: long fabric_between_devices ud_bulk ud_asks_kernel kernel_machines kernel_buffers kernel_messages kernel_bulk kernel_faults
#: long kernel_port_moves ud_port_moves ud_rails ud_rail_lost kernel_rails kernel_rail_lost kernel_rails_bulk kernel_priority kernel_reusable kernel_stopped ud_reusable every_group kernel_bad_wire

setup()
{
	switch va 10.77.0.1 vb 10.77.0.2 soft/vc 10.77.0.3 vd 10.77.0.4 ve 10.77.0.6
	rxe rxe0 va
	rxe rxe1 vb
	insmod /lab/files/coopfs.ko
	until_true 10 "the device is there" [ -c /dev/coop-net ]
}

# The enemy's packets come over the wire: the device's own port does not see what the loopback carries.
export COOP_CONFORMANCE_DEVICE=rxe0 COOP_CONFORMANCE_IP=10.77.0.1 COOP_CONFORMANCE_ENEMY=10.77.0.2

# suite LABEL GROUPS: runs groups of the suite's tests on one transport, and prints why tests were skipped
suite()
{
	set -- "$1" "$(echo "$2" | sed "s,\*,*/$1*,g")"
	# An emulated processor is slow, and shares one of a busy machine.
	export COOP_CONFORMANCE_PATIENCE=$((4 * patience))
	ulimit -n 8192
	# Print output at once, to show a test that hangs.
	rm -f /tmp/gtest
	mkfifo /tmp/gtest
	tee /tmp/gtest.log </tmp/gtest &
	_tee=$!
	job suite net_conformance --gtest_color=no --gtest_filter="$2" >/tmp/gtest
	until_ended
	wait $_tee
	rm -f /tmp/suite.job
	cat /tmp/suite.said
	grep -A1 ': Skipped$' /tmp/gtest.log | grep -v -e ': Skipped$' -e '^--$' | sort | uniq -c |
		while read -r _times _why; do
			say "note $1: $_times skipped: $_why"
		done
	! grep -q FAILED /tmp/gtest.log ||
		die "$(grep -m1 -A1 Failure /tmp/gtest.log | tr '\n' ' ')"
	grep -q 'PASSED.* [1-9]' /tmp/gtest.log || die "the suite did not end"
}

# until_ended: waits for the suite. A test fails when it has waited for 400 s; one that says nothing for
# longer than that hangs. Where its threads are is shown before either.
until_ended()
{
	{ set +x; } 2>/dev/null
	_size=0 _since=$(cut -d. -f1 /proc/uptime) _shown=
	while running suite; do
		sleep 1
		_now=$(cut -d. -f1 /proc/uptime)
		if [ "$(wc -c </tmp/gtest.log)" != "$_size" ]; then
			_size=$(wc -c </tmp/gtest.log) _since=$_now _shown=
		elif [ $((_now - _since)) -gt $((1200 * patience)) ]; then
			die "the suite hangs after: $(tail -n 1 /tmp/gtest.log)"
		elif [ ! "$_shown" ] && [ $((_now - _since)) -gt $((300 * patience)) ]; then
			_shown=1
			stacks "$(cat /tmp/suite.job)"
			rdma resource show qp || true
			grep . /sys/class/infiniband/rxe*/ports/1/hw_counters/*
		fi
	done
	set -x
}

# Emulated processors are slow, and a transfer that waits for another one makes no progress.
ud="-t ud -o bulk_patience=60000"

# serve_net OPTIONS ADDRESS: in the namespace $in, if that is set
in=
serve_net()
{
	job serve ${in:+nsenter "--net=/run/netns/$in"} coopnet serve "$@" >/tmp/serve.out
	until_true 60 "it serves" grep -q . /tmp/serve.out
}

# ask OPTIONS ADDRESS: exchanges and compares messages of every kind, reads and writes memory
ask()
{
	${in:+nsenter "--net=/run/netns/$in"} coopnet ping --check -n 20 --seconds 60 \
		--timeout 60 -s 8,700,4k,100k "$@"
	${in:+nsenter "--net=/run/netns/$in"} coopnet bulk -n 10 --seconds 60 \
		--timeout 60 --depth 2 -s 4k,100001,400k "$@"
}

served()
{
	kill "$(cat /tmp/serve.job)"
	job_ends 30 serve
}

after_failure()
{
	cat /tmp/serve.out /tmp/*.said
	for _j in serve client pair suite; do
		[ -e "/tmp/$_j.job" ] || continue
		kill -9 "$(cat "/tmp/$_j.job")"
		(until_true 30 "$_j has ended" test -s "/tmp/$_j.status")
		rm -f "/tmp/$_j.job"
	done
	good_wire
	! ip addr show dev va | grep -q 10.77.0.7 || move_port va 10.77.0.7 10.77.0.1
	! ip addr show dev vb | grep -q 10.77.0.5 || move_port vb 10.77.0.5 10.77.0.2
	[ -e /sys/class/infiniband/rxe0 ] || rxe rxe0 va
	[ -e /sys/class/infiniband/rxe1 ] || rxe rxe1 vb
} 2>&1

test_ud_between_devices()
{
	serve_net $ud -o device=rxe1 10.77.0.2
	ask $ud -o device=rxe0 --from 10.77.0.1 10.77.0.2
	served
}

test_fabric_between_devices()
{
	serve_net -t fabric -o provider=verbs 10.77.0.2
	ask -t fabric -o provider=verbs --from 10.77.0.1 10.77.0.2
	served
}

# kernel, and options as those of ud
kernel="-t kernel -o bulk_patience=60000"

test_kernel_between_devices()
{
	serve_net $kernel -o device=rxe1 10.77.0.2
	ask $kernel -o device=rxe0 --from 10.77.0.1 10.77.0.2
	served
}

# The wire is one.
test_kernel_asks_ud()
{
	serve_net $ud -o device=rxe1 10.77.0.2
	ask $kernel -o device=rxe0 --from 10.77.0.1 10.77.0.2
	served
}

test_ud_asks_kernel()
{
	serve_net $kernel -o device=rxe1 10.77.0.2
	ask $ud -o device=rxe0 --from 10.77.0.1 10.77.0.2
	served
}

test_device_asks_soft()
{
	in=soft
	serve_net $ud -o udp_port=4791 10.77.0.3
	in=
	ask $ud -o device=rxe0 --from 10.77.0.1 10.77.0.3
	served
}

test_soft_asks_device()
{
	serve_net $ud -o device=rxe0 10.77.0.1
	in=soft
	ask $ud -o udp_port=4791 10.77.0.1
	served
}

# In every pairing, while the wire loses, duplicates and reorders what both directions carry.
test_kernel_bad_wire()
{
	for _d in va vb; do
		tc qdisc add dev $_d root netem limit 100000 delay 2ms 2ms loss 2% duplicate 1%
	done
	test_kernel_between_devices
	test_kernel_asks_ud
	test_ud_asks_kernel
	good_wire
}

good_wire()
{
	for _d in va vb; do
		tc qdisc del dev $_d root 2>/dev/null || true
	done
}

# A machine's address is not that of its device, so only the port's address changes.
test_port_moves()
{
	ip addr replace 10.88.0.1/32 dev lo
	ip addr replace 10.88.0.2/32 dev lo
	serve_net $ud -o device=rxe1 10.88.0.2
	ask $ud -o device=rxe0 --from 10.88.0.1 10.88.0.2
	move_port vb 10.77.0.2 10.77.0.5
	until_true 20 "rxe1 has the new address" \
		grep -q 0a4d:0005 /sys/class/infiniband/rxe1/ports/1/gids/*
	ask $ud -o device=rxe0 --from 10.88.0.1 10.88.0.2
	served
	move_port vb 10.77.0.5 10.77.0.2
	until_true 20 "rxe1 has its address again" \
		grep -q 0a4d:0002 /sys/class/infiniband/rxe1/ports/1/gids/*
}

# The ports of two machines get other addresses, one after the other, again and again, while the
# first reads and writes: nothing fails.
ports_move() # TRANSPORT OTHER
{
	ip addr replace 10.88.0.1/32 dev lo
	ip addr replace 10.88.0.2/32 dev lo
	job pair coop-rails "$1" rxe0 - 10.88.0.1 "$2" rxe1 - 10.88.0.2 >/tmp/pair.out
	pair_moves 2
	for _n in $(seq 8); do
		move_port va 10.77.0.1 10.77.0.7
		pair_moves 2
		move_port vb 10.77.0.2 10.77.0.5
		pair_moves 2
		move_port va 10.77.0.7 10.77.0.1
		pair_moves 2
		move_port vb 10.77.0.5 10.77.0.2
		pair_moves 2
	done
	pair_ends
}

test_kernel_port_moves()
{
	ports_move kernel kernel
	ports_move kernel ud
}

test_ud_port_moves()
{
	ports_move ud ud
	ports_move ud kernel
}

packets() { [ "$(cat /sys/class/infiniband/rxe1/ports/1/hw_counters/rcvd_pkts)" -gt "$1" ]; }

# at_work COMMAND OPTIONS...: starts a client of the server on rxe1, which would run for an hour, and
# waits until they exchange packets
at_work()
{
	_before=$(cat /sys/class/infiniband/rxe1/ports/1/hw_counters/rcvd_pkts)
	job client coopnet "$@" $ud -o device=rxe0 --from 10.77.0.1 -n 100000000 \
		--seconds 3600 --timeout 20 10.77.0.2 >/tmp/client.out
	until_true 60 "they exchange packets" packets $((_before + 500))
}

# says NAME PATTERN: the job has printed one line, which matches
says()
{
	[ "$(wc -l <"/tmp/$1.said")" = 1 ] || die "$1 said: $(cat "/tmp/$1.said")"
	grep -q "^coopnet: .*$2" "/tmp/$1.said" || die "$1 said: $(cat "/tmp/$1.said")"
}

# loses DEVICE: removes it under its users; the removal waits until all have closed it
loses() { timeout $((60 * patience)) /usr/bin/rdma link delete "$1" || die "$1 is still held"; }

# The server has lost its device, reports it and ends; its client gets no more answers.
test_ud_device_lost()
{
	for _progress in block poll; do
		serve_net $ud -o device=rxe1 --progress $_progress 10.77.0.2
		at_work ping -s 8
		loses rxe1
		job_ends 60 serve 1
		says serve '10.77.0.2.*RDMA device rxe1 was removed'
		job_ends 120 client 1
		says client '10.77.0.2'
		rxe rxe1 vb
	done
}

# The client loses its own device during bulk transfers: it must not report that the server is gone.
test_ud_own_device_lost()
{
	for _progress in block poll; do
		serve_net $ud -o device=rxe1 10.77.0.2
		at_work bulk -s 100k --depth 4 --progress $_progress
		loses rxe0
		job_ends 60 client 1
		says client '10.77.0.1.*RDMA device rxe0 was removed'
		rxe rxe0 va
		served
	done
}

# Each side has two devices, and both carry data in both directions.
test_ud_rails()
{
	rxe rxe2 vd
	rxe rxe3 ve
	serve_net $ud -o device=rxe1 -o rails=rxe3 10.77.0.2
	ask $ud -o device=rxe0 -o rails=rxe2 --from 10.77.0.1 10.77.0.2
	coopnet bulk $ud -o device=rxe0 -o rails=rxe2 --from 10.77.0.1 -n 40 --seconds 60 \
		--timeout 60 --depth 2 -s 1m 10.77.0.2 | tee /tmp/rails
	[ "$(grep -c '^rail .* [1-9][0-9.]* read in' /tmp/rails)" = 2 ] || die "a rail carried nothing"
	served
	[ "$(grep -c '^rail .* [1-9][0-9.]* read in' /tmp/serve.out)" = 2 ] ||
		die "a rail of the server carried nothing"
	rdma link delete rxe2
	rdma link delete rxe3
}

# The devices of a rail are removed under traffic, those of the first as well: no transfer fails.
test_ud_rail_lost()
{
	for _lost in rxe2 rxe0; do
		[ -e /sys/class/infiniband/rxe2 ] || rxe rxe2 vd
		[ -e /sys/class/infiniband/rxe3 ] || rxe rxe3 ve
		serve_net $ud -o device=rxe1 -o rails=rxe3 10.77.0.2
		for _d in rxe1 rxe3; do arrived $_d >/tmp/before.$_d; done
		job client coopnet bulk $ud -o device=rxe0 -o rails=rxe2 --from 10.77.0.1 -n 100000000 \
			--seconds 20 --timeout 60 --depth 2 -s 1m 10.77.0.2 >/tmp/client.out
		until_true 60 "both rails carry data" carried rxe1 rxe3
		loses $_lost
		job_ends 180 client
		served
		grep -q ' 0 failed,' /tmp/serve.out || die "$(cat /tmp/serve.out)"
	done
	rdma link delete rxe2
	rdma link delete rxe3
	[ -e /sys/class/infiniband/rxe0 ] || rxe rxe0 va
}

# pair_with_rails FIRST RAILS SECOND RAILS: coop-rails between the first on rxe0 and the second on rxe1
pair_with_rails()
{
	[ -e /sys/class/infiniband/rxe2 ] || rxe rxe2 vd
	[ -e /sys/class/infiniband/rxe3 ] || rxe rxe3 ve
	for _d in rxe0 rxe1 rxe2 rxe3; do arrived $_d >/tmp/before.$_d; done
	job pair coop-rails $1 rxe0 $2 10.77.0.1 $3 rxe1 $4 10.77.0.2 >/tmp/pair.out
}

pair_works() { running pair && [ "$(grep -c '^[0-9]' /tmp/pair.out)" -ge "$1" ]; }

# pair_moves ROUNDS: so many further rounds are compared
pair_moves()
{
	running pair || die "coop-rails: $(cat /tmp/pair.said)"
	until_true 120 "data move" pair_works $(($(grep -c '^[0-9]' /tmp/pair.out) + $1))
}

pair_ends()
{
	kill "$(cat /tmp/pair.job)"
	job_ends 120 pair
	cat /tmp/pair.out | grep -v '^[0-9]' >/tmp/pair.rails || true
	tr '\n' ' ' </tmp/pair.rails
}

# Data go over both rails in both directions, and over the first if one side has no other.
test_kernel_rails()
{
	for _two in "kernel kernel" "kernel ud" "ud kernel"; do
		pair_with_rails ${_two% *} rxe2 ${_two#* } rxe3
		pair_moves 10
		pair_ends
		[ "$(grep -c ' [1-9][0-9]*$' /tmp/pair.rails)" = 4 ] || die "a rail carried nothing"
		pair_with_rails ${_two% *} rxe2 ${_two#* } -
		pair_moves 3
		pair_ends
		[ "$(grep -c ' [1-9][0-9]*$' /tmp/pair.rails)" = 2 ] || die "rails of one side only were used"
	done
	rdma link delete rxe2
	rdma link delete rxe3
}

# A rail beside the first is interrupted, and comes back; then its device is removed. The peer sees a
# rail that is silent.
test_kernel_rail_lost()
{
	for _two in "kernel kernel" "kernel ud" "ud kernel"; do
		pair_with_rails ${_two% *} rxe2 ${_two#* } rxe3
		until_true 120 "both rails carry data" carried rxe1 rxe3
		[ "$_two" != "kernel kernel" ] || interrupt_rail
		loses rxe2
		pair_moves 5
		pair_ends
		[ "$(grep -c . /tmp/pair.rails)" = 3 ] || die "the rail is not gone"
	done
	rdma link delete rxe3
}

interrupt_rail()
{
	ip link set vd down
	pair_moves 2
	arrived rxe3 >/tmp/before.rxe3
	pair_moves 8
	! carried rxe3 || die "data go over a link that is down"
	ip link set vd up
	own_routes vd 10.77.0.4
	for _d in rxe2 rxe3; do arrived $_d >/tmp/before.$_d; done
	until_true 120 "the rail carries data again" carried rxe2 rxe3
}

arrived() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/rcvd_pkts"; }

# carried DEVICE...: each has received some hundred packets since /tmp/before.DEVICE was written
carried()
{
	for _d in "$@"; do
		[ "$(arrived $_d)" -gt $(($(cat /tmp/before.$_d) + 500)) ] || return 1
	done
}

test_fabric_machines() { suite fabric_verbs 'on/machines*'; }
test_fabric_buffers() { suite fabric_verbs 'on/buffers*:on/pools*'; }
test_fabric_messages() { suite fabric_verbs 'on/messages*:on/endpoints*:on/synchronous*'; }
test_fabric_priority() { suite fabric_verbs 'on/message_priority*'; }
test_fabric_bulk() { suite fabric_verbs 'on/bulk*'; }
test_fabric_reusable() { suite fabric_verbs 'on/reusable*'; }
test_fabric_faults() { suite fabric_verbs 'on/fault*'; }
test_fabric_stopped() { suite fabric_verbs 'on/stopped*'; }
test_ud_machines() { suite ud_verbs 'on/machines*'; }
test_ud_buffers() { suite ud_verbs 'on/buffers*:on/pools*'; }
test_ud_messages() { suite ud_verbs 'on/messages*:on/endpoints*:on/synchronous*'; }
test_ud_priority() { suite ud_verbs 'on/message_priority*'; }
test_ud_bulk() { suite ud_verbs 'on/bulk*'; }
test_ud_reusable() { suite ud_verbs 'on/reusable*'; }
test_ud_faults() { suite ud_verbs 'on/fault*'; }
test_ud_stopped() { suite ud_verbs 'on/stopped*'; }
test_kernel_machines() { suite kernel 'on/machines*'; }
test_kernel_buffers() { suite kernel 'on/buffers*:on/pools*'; }
test_kernel_messages() { suite kernel 'on/messages*:on/endpoints*:on/synchronous*'; }
test_kernel_priority() { suite kernel 'on/message_priority*'; }
test_kernel_bulk() { suite kernel 'on/bulk*'; }
test_kernel_reusable() { suite kernel 'on/reusable*'; }
test_kernel_faults() { suite kernel 'on/fault*'; }
test_kernel_stopped() { suite kernel 'on/stopped*'; }

# Several rails, as one.
test_kernel_rails_bulk()
{
	rxe rxe2 vd
	export COOP_CONFORMANCE_RAILS=rxe2
	suite kernel_rails 'on/bulk*:on/reusable*'
	unset COOP_CONFORMANCE_RAILS
	rdma link delete rxe2
}

# Each group of the suite is in a test of each transport above.
test_every_group()
{
	net_conformance --gtest_list_tests | sed -n 's,^\(on/.*\)\.$,\1,p' >/tmp/groups
	grep -q on/machines /tmp/groups || die "the suite lists no groups"
	set -f
	for _label in fabric_verbs ud_verbs kernel; do
		sed -n "s/^test_.*{ suite $_label '\(.*\)'; }$/\1/p" /lab/topic.sh | tr ':' '\n' >/tmp/globs
		while read -r _group; do
			_in=
			while read -r _glob; do
				# shellcheck disable=SC2254 # a pattern
				case $_group in $_glob) _in=1 ;; esac
			done </tmp/globs
			[ "$_in" ] || die "no test of $_label runs $_group"
		done </tmp/groups
	done
}
