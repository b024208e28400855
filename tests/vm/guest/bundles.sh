# SPDX-License-Identifier: MIT
# Bundles of directories in coopfs.ko: three mounts in one machine, each with a Soft-RoCE device on one
# switch, and one daemon. What a node knows from a bundle costs no request, and is never old.
#
#: programs coopfsd coopfs coopfs-fuse coop-between coop-pattern ip rdma setpriv
#: modules crc32_generic libcrc32c hmac sha256_generic rdma_rxe veth bridge fuse
#: files $KO/coopfs.ko
#: memory 1536
#: deadline 900
#: short second
#: long peers held others_rights

server=10.77.0.1
nodes="a b c"
dirs=6 files=30

setup()
{
	insmod /lab/files/coopfs.ko
	switch va 10.77.0.1 vb 10.77.0.2 vc 10.77.0.3
	for n in $nodes; do
		rxe "rxe$n" "v$n"
		mkdir -p "/mnt/$n"
	done
	mkdir -p /srv
	mount -t tmpfs srv /srv
	serve $server /srv
}

after_failure()
{
	[ ! -e /tmp/between.pid ] || between go
	tell
	fuse_end f
	for n in $nodes; do
		! mounted "/mnt/$n" || umount -l "/mnt/$n"
	done
}

# node NAME [OPTIONS] [SERVER]
node()
{
	kmount "$1" "${3:-$server}" "ib,ib_devname=rxe$1,wait_timeout_ms=9000,$(peer_time)${2:-}"
}

# tree NAME [DIRECTORIES]: directories of small files, and a link in each, below the export
tree()
{
	_d=0
	while [ $_d -lt "${2:-$dirs}" ]; do
		mkdir -p "/srv/$1/p$_d"
		_f=0
		while [ $_f -lt $files ]; do
			awk -v n="$1 $_d $_f" -v lines=$((_f * _f)) \
				'BEGIN { for (i = 0; i <= lines; i++) print n, i }' >"/srv/$1/p$_d/f$_f"
			_f=$((_f + 1))
		done
		ln -s f0 "/srv/$1/p$_d/link"
		_d=$((_d + 1))
	done
	coop-pattern settle "/srv/$1/p$((_d - 1))/f$((_f - 1))"
}

# look NODE NAME [DIRECTORIES]: looks at every file of the tree by its name, beside each at one that
# is not there, and compares all bytes
look()
{
	_d=0
	while [ $_d -lt "${3:-$dirs}" ]; do
		_f=0 _p=$2/p$_d _list=
		while [ $_f -lt $files ]; do
			[ ! -e "/mnt/$1/$_p/f$_f.absent" ] || die "$1: $_p/f$_f.absent is there"
			[ -s "/mnt/$1/$_p/f$_f" ] || die "$1: $_p/f$_f is not there"
			_list="$_list f$_f"
			_f=$((_f + 1))
		done
		[ "$(readlink "/mnt/$1/$_p/link")" = f0 ] || die "$1: $_p/link leads elsewhere"
		(cd "/srv/$_p" && cat $_list) >/tmp/right
		(cd "/mnt/$1/$_p" && cat $_list) >"/tmp/look_$1" || die "$1: $_p cannot be read"
		cmp /tmp/right "/tmp/look_$1" || die "$1: bytes of $_p are wrong"
		_d=$((_d + 1))
	done
}

# calls NODE COMMAND...: runs the command and sets $cost to the requests that the node sent for it, without
# those that keep its leases: one in five seconds
calls()
{
	_asker=$1
	shift
	_calls=$(of "$_asker" storage calls) _since=$(cut -d. -f1 /proc/uptime)
	"$@"
	cost=$(($(of "$_asker" storage calls) - _calls - ($(cut -d. -f1 /proc/uptime) - _since) / 5))
}

# figures NODE: bundles asked, of use, files in them
figures()
{
	echo "$(of "$1" lease bundles_asked) $(of "$1" lease bundles) $(of "$1" lease bundled_files)"
}

# A second node needs few requests, a third one no bytes of storage. The first asks for no bundle.
test_second()
{
	tree second
	node a
	calls a look a second
	first=$cost
	[ "$(figures a)" = "0 0 0" ] || die "a alone asked for bundles: $(figures a)"
	node b
	until_true 30 "b knows a" knows b 1
	calls b look b second
	say "note bundles: a alone $first requests, b $cost, bundles of b $(figures b)"
	[ "$(of b lease bundled_files)" -ge $((dirs * files)) ] || die "b's bundles: $(figures b)"
	[ $((cost * 5)) -lt "$first" ] || die "b sent $cost requests, a $first"
	calls b look b second
	[ "$cost" -le 4 ] || die "b's second look cost $cost requests"
	calls b ls -lR /mnt/b/second >/dev/null
	[ "$cost" -le 6 ] || die "a listing on b cost $cost requests"
	down a b
}

# few_files NODE NAME: a bundle is fetched
few_files()
{
	cat "/mnt/$1/$2/p0/f1" "/mnt/$1/$2/p0/f2" "/mnt/$1/$2/p0/f3" "/mnt/$1/$2/p0/f29" >"/tmp/few_$1"
	(cd "/srv/$2/p0" && cat f1 f2 f3 f29) | cmp - "/tmp/few_$1" || die "$1 reads wrongly"
	[ "$(of "$1" lease bundles)" -gt 0 ] || die "$1 got no bundle"
}

# A node reads a bundle from one that has it open, which is for some seconds.
test_peers()
{
	tree peers 1
	for n in $nodes; do node "$n"; done
	for n in $nodes; do until_true 30 "$n knows the others" knows "$n" 2; done
	look a peers 1
	few_files b peers
	few_files c peers
	say "note bundles: c took $(of c source peer bytes) bytes from peers, $(of c source storage bytes) from storage"
	[ "$(of c source peer bytes)" -gt 100000 ] || die "c took its bundle from storage"
	[ "$(of c source storage bytes)" -lt 20000 ] || die "c took its bundle from storage"
	down $nodes
}

# Without bundles, the same.
test_off()
{
	tree off 1
	node a
	look a off 1
	node b ,bundles=off
	grep -q bundles=off /proc/mounts || die "the option is not shown"
	look b off 1
	[ "$(figures b)" = "0 0 0" ] || die "b asked for bundles: $(figures b)"
	down a b
}

# known: b knows the tree by a bundle, and looks at it without requests
known()
{
	until_true 60 "b knows $1" free_look b "$1" 1
	[ "$(of b lease bundles)" -gt 0 ] || die "b got no bundle"
}
free_look()
{
	calls "$1" look "$1" "$2" "$3"
	[ "$cost" -le 0 ]
}

# What another node changes, and what changes on the export itself.
test_changes()
{
	tree ch 1
	node a
	node b
	look a ch 1
	look b ch 1
	for by in /mnt/a /srv; do
		known ch
		echo "by $by" >$by/ch/p0/f3
		seen() { cmp -s /srv/ch/p0/f3 /mnt/b/ch/p0/f3; }
		[ $by = /srv ] || seen || die "b reads old bytes of f3"
		until_true 30 "b reads the new bytes" seen
		[ "$(stat -c %s /mnt/b/ch/p0/f3)" = "$(stat -c %s /srv/ch/p0/f3)" ] || die "an old size"
		: >$by/ch/p0/f3.absent
		seen() { [ -e /mnt/b/ch/p0/f3.absent ]; }
		[ $by = /srv ] || seen || die "b does not see the new name"
		until_true 30 "b sees the new name" seen
		rm $by/ch/p0/f3.absent
		seen() { [ ! -e /mnt/b/ch/p0/f3.absent ]; }
		[ $by = /srv ] || seen || die "b sees the old name"
		until_true 30 "b does not see the old name" seen
		mv $by/ch/p0/f4 $by/ch/p0/moved
		mv $by/ch/p0/f5 $by/ch/p0/f4
		mv $by/ch/p0/moved $by/ch/p0/f5
		seen() { cmp -s /srv/ch/p0/f4 /mnt/b/ch/p0/f4 && cmp -s /srv/ch/p0/f5 /mnt/b/ch/p0/f5; }
		[ $by = /srv ] || seen || die "b reads the old files"
		until_true 30 "b reads the renamed files" seen
		chmod 600 $by/ch/p0/f6
		seen() { [ "$(stat -c %a /mnt/b/ch/p0/f6)" = 600 ]; }
		[ $by = /srv ] || seen || die "b sees the old mode"
		until_true 30 "b sees the new mode" seen
		chmod 644 /srv/ch/p0/f6
		coop-pattern settle /srv/ch/p0/f3
	done
	# What b changes itself.
	known ch
	echo own >/mnt/b/ch/p0/f7
	: >/mnt/b/ch/p0/f7.absent
	[ -e /mnt/b/ch/p0/f7.absent ] && [ "$(cat /mnt/b/ch/p0/f7)" = own ] || die "b does not see its own change"
	mv /mnt/b/ch/p0/f7.absent /mnt/b/ch/p0/f8
	[ ! -s /mnt/b/ch/p0/f8 ] && [ ! -e /mnt/b/ch/p0/f7.absent ] || die "b does not see its own rename"
	rm /mnt/b/ch/p0/f8
	[ ! -e /mnt/b/ch/p0/f8 ] || die "b sees what it has removed"
	down a b
}

# A change between BUNDLE and the end of its use: what has been recalled since is not believed.
test_held()
{
	tree held 1
	stand_between
	node a
	look a held 1
	node b "" 127.0.0.2
	between hold bundle
	job looker sh -c 'for i in 0 1 2 3; do cat /mnt/b/held/p0/f$i; done >/dev/null'
	until_true 30 "b asks for a bundle" grep -q "^held bundle" /tmp/between.log
	echo changed >/mnt/a/held/p0/f9
	: >/mnt/a/held/p0/f9.absent
	mv /mnt/a/held/p0/f11 /mnt/a/held/p0/f12
	between go
	job_ends 60 looker
	[ "$(cat /mnt/b/held/p0/f9)" = changed ] || die "b believes an old file"
	[ -e /mnt/b/held/p0/f9.absent ] || die "b believes old names"
	[ ! -e /mnt/b/held/p0/f11 ] || die "b believes an old name"
	cmp /srv/held/p0/f12 /mnt/b/held/p0/f12 || die "b believes an old file of a name"
	[ "$(of b lease bundles_asked)" -gt 0 ] || die "b asked for no bundle"
	# Nor is a bundle whose task was killed.
	between hold bundle
	coop-pattern settle /srv/held/p0/f9
	down a
	node a
	cat /mnt/a/held/p0/* >/dev/null
	down b
	node b "" 127.0.0.2
	job looker sh -c 'for i in 0 1 2 3; do cat /mnt/b/held/p0/f$i; done >/dev/null'
	until_true 30 "b asks for a bundle again" more_than 0 b lease bundles_asked
	until_true 30 "its reply is held" said_more 1 "held bundle 0"
	kill -9 "$(cat /tmp/looker.job)"
	between go
	until_true 30 "no task is left" no_looker
	[ "$(cat /mnt/b/held/p0/f9)" = changed ] || die "b reads wrongly after that"
	rm -f /tmp/looker.job
	down a b
}
no_looker() { ! ps | grep -v grep | grep -q /mnt/b/held; }

# A bundle that cannot be read, after storage has given its leases: the node goes on without it.
test_unreadable()
{
	tree torn 1
	stand_between
	node a
	look a torn 1
	node b "" 127.0.0.2
	between refuse read 5
	between refuse read_shared 5
	look b torn 1
	[ "$(of b lease bundles_asked)" -gt 0 ] || die "b asked for no bundle"
	[ "$(of b lease bundles)" = 0 ] || die "b read a bundle"
	between go
	until_true 60 "b has leases again" free_look b torn 1
	down a b
}

# as USER COMMAND...
as()
{
	_user=$1
	shift
	/usr/bin/setpriv "--reuid=$_user" "--regid=$_user" --clear-groups "$@"
}

# A bundle belongs to its user. Storage squashes root, whom this node would let read everything.
test_others_rights()
{
	tree mine 1
	chown -R 4000:4000 /srv/mine
	chmod 600 /srv/mine/p0/f*
	coop-pattern settle /srv/mine/p0/f0
	end_serve
	coopfsd --listen "$server:17430" --export "data,root_squash=/srv" --key /tmp/key --log-level debug \
		--ready-fd 7 7>/tmp/coopfsd.ready >/tmp/coopfsd.log 2>&1 &
	echo $! >/tmp/coopfsd.pid
	until_true 30 "coopfsd listens" listens
	node a
	as 4000 sh -c 'cat /mnt/a/mine/p0/f?' >/dev/null
	node b
	as 4000 sh -c 'cat /mnt/b/mine/p0/f1 /mnt/b/mine/p0/f2 /mnt/b/mine/p0/f3' >/dev/null
	[ "$(of b lease bundled_files)" -ge $files ] || die "the user got no bundle: $(figures b)"
	calls b as 4000 cat /mnt/b/mine/p0/f7 >/tmp/mine
	cmp /tmp/mine /srv/mine/p0/f7 || die "the user reads wrongly"
	[ "$cost" -le 0 ] || die "the user's read cost $cost requests"
	! cat /mnt/b/mine/p0/f7 >/dev/null 2>&1 || die "root reads with the rights of the user"
	! as 4001 cat /mnt/b/mine/p0/f7 >/dev/null 2>&1 || die "another user reads with the rights of the user"
	! /usr/bin/setpriv --reuid=4000 --regid=4002 --clear-groups cat /mnt/b/mine/p0/none 2>/dev/null ||
		die "a name that is not there"
	down a b
	end_serve
	serve $server /srv
}

# The module reads bundles that a FUSE node has, and FUSE those of the module.
test_with_fuse()
{
	tree mixed 2
	node a
	look a mixed 2
	fuse_mount f $server "ib,ib_devname=rxec,$(peer_time)"
	look f mixed 2
	[ "$(stat_of f lease bundles)" -gt 0 ] || die "FUSE got no bundle"
	node b
	until_true 30 "b knows the others" knows b 2
	look b mixed 2
	[ "$(of b lease bundles)" -gt 0 ] || die "b got no bundle"
	say "note bundles: with FUSE b took $(of b source peer bytes) bytes from peers, $(of b source storage bytes) from storage"
	fuse_unmount f
	down a b
}

# The daemon fails while bundles are open, and the mount ends while they are.
test_restart()
{
	tree again 2
	node a
	look a again 2
	node b
	look b again 2
	[ "$(of b lease bundles)" -gt 0 ] || die "b got no bundle"
	away
	serve $server /srv
	look b again 2
	echo new >/mnt/a/again/p1/f2
	[ "$(cat /mnt/b/again/p1/f2)" = new ] || die "b reads old bytes"
	down b
	node b
	look_some() { cat /mnt/b/again/p0/f1 /mnt/b/again/p0/f2 /mnt/b/again/p0/f3 >/dev/null; }
	look_some
	down a b
}

test_unload()
{
	rmmod coopfs
	insmod /lab/files/coopfs.ko
}
