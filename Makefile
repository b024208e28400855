# SPDX-License-Identifier: MIT
# The one entry. `make help` lists the targets.
#
# User space is built by CMake into build/<kind>; kernel objects by kbuild into
# build/kernel-<version>. Nothing is ever built inside the source tree.

SHELL := /bin/bash
B := build
JOBS ?= $(shell nproc)
# The kernel that the module is for: the newest with headers here that it knows.
export LIB_MODULES ?= /lib/modules
KVER ?= $(shell LIB_MODULES=$(LIB_MODULES) tools/kernels default 2>/dev/null)
PREFIX ?= /usr/local

.DEFAULT_GOAL := all

help: ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps-%:
	@tools/install-deps $(subst +, ,$*)

# build/release: what is installed and measured. It has what the packages of the named sets
# allow, so it is configured again when those of another set have come. build/check: the same
# and the fuzzers, by clang under AddressSanitizer and UBSan.
CONFIGURE = echo "configuring $(@D)"; cmake -G Ninja -S . -B $(@D) -DCMAKE_BUILD_TYPE=RelWithDebInfo
$(B)/release/for-demo: | deps-demo
	@$(CONFIGURE) >/dev/null && touch $@
$(B)/release/for-build: | deps-build
	@$(CONFIGURE) >/dev/null && touch $@
$(B)/release/for-check: | deps-build+check
	@$(CONFIGURE) >/dev/null && touch $@
$(B)/check/for-check: | deps-build+check
	@$(CONFIGURE) -DCOOP_CHECK=ON -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14 >/dev/null && touch $@

$(B)/%/build.ninja: $(B)/%/for-check ;

# Says how far it is: in one line on a terminal, in one a step elsewhere.
BUILD = NINJA_STATUS='building %f of %t: ' ninja -C $(B)/release -j $(JOBS)

all: user ## programs of user space, in build/release/bin

user: $(B)/release/for-build ## coopfsd, coopfs-fuse, coopfs, libcoop-net, coopnet and coop-verbs
	@$(BUILD) coopfsd coopfs-fuse coopfs coop_net_install coopnet coop-verbs

demo: $(B)/release/for-demo ## a daemon and three nodes on this machine: watch data go from peer to peer
	@$(BUILD) coopfsd coopfs-fuse coopfs
	@COOP_BIN=$(CURDIR)/$(B)/release/bin tools/demo

# Without the packages of the set vm only its suite is skipped.
deps-optional-vm:
	@tools/install-deps vm || echo "check: nothing will run in emulated machines" >&2

# Without PostgreSQL and Open MPI their tests are skipped.
deps-optional-programs:
	@tools/install-deps programs || echo "check: PostgreSQL and Open MPI will not be run" >&2

check: deps-build+run+check deps-optional-vm deps-optional-programs ## every suite in its short form; ends with "N passed, N failed"
	@tests/run

check-long: deps-build+run+check deps-optional-vm deps-optional-programs ## every suite in its long form, and what takes minutes
	@tests/run --long

check-e2e: deps-optional-programs
check-vm: deps-optional-vm
check-%: deps-build+run+check ## one suite of tests/run: unit, sim, fuzz, lint, kernel, e2e, vm (LONG=1: its long form)
	@tests/run $(if $(LONG),--long) $*

vm-programs: deps-build+check+vm $(B)/release/for-check vm-module
	@$(BUILD) coopfsd coopfs-fuse coopfs ud_verbs coopnet net_conformance conformance-peer coop-pattern coop-fail-nth coop-posix coop-fsx coop-coherence coop-pin coop-sniff coop-between coop-netdev coop-rails coop-verbs

# Empty, if it is the default for modules of installed kernels.
ASKED_KVER = $(if $(filter file,$(origin KVER)),,$(KVER))

vm-check: vm-programs $(if $(filter debug,$(KERNEL)),deps-debug) ## everything in emulated machines (VM="fuse/*" selects; KVER=...; KERNEL=debug: on a kernel that checks itself)
ifeq ($(KERNEL),debug)
	@kernel=$$(tests/vm/debug-kernel $(ASKED_KVER)) && \
	$(MAKE) -s vm-module KDIR=$$kernel KTREE=$(abspath $(B))/kernel-debug$(ASKED_KVER:%=-%) && \
	tests/vm/run --kernel $$kernel --ko $(B)/kernel-debug$(ASKED_KVER:%=-%) --patience 8 $(foreach v,$(VM),'$(v)')
else
	@tests/vm/run --ko $(KTREE) $(foreach v,$(VM),'$(v)')
endif

debug-kernel: deps-debug ## a kernel with KASAN, lockdep and the like, for vm-check KERNEL=debug, of the series of KVER (6.1); ten minutes once
	@tests/vm/debug-kernel $(ASKED_KVER)

vm-shell: vm-programs ## an interactive machine: a daemon, two mounts by the module, one by FUSE
	@tests/vm/run --shell --ko $(KTREE)

vm-demo: vm-programs ## the module before your eyes: a daemon and three mounts in an emulated machine
	@tests/vm/run --topics bench/vm/guest --ko $(KTREE) --logs $(B)/vm-logs demo

vm-bench: deps-run+vmbench vm-programs ## two emulated machines: pages from a peer against the raw link, NFS and 9p; table, JSON, plots
	@bench/vm/run --ko $(KTREE) --out $(B)/bench-vm $(BENCH_ARGS)

sim-long: $(B)/release/for-build ## ten million simulated fetches, 60 rounds of messages (SEED=n replays)
	@$(BUILD) coop-sim coop-sim-chan
	@$(B)/release/bin/coop-sim --fetches 10000000 $(if $(SEED),--seed $(SEED))
	@$(B)/release/bin/coop-sim-chan --rounds 60 $(if $(SEED),--seed $(SEED))

sim-scale: deps-run $(B)/release/for-build ## 64 to 10,000 simulated nodes read the same files at once: table, JSON, plots in build/sim-scale (NODES=64,512)
	@$(BUILD) coop-sim-scale
	@tests/sim/scale/run --out $(B)/sim-scale $(if $(NODES),--nodes $(NODES)) $(if $(SEED),--seed $(SEED)) $(B)/release/bin/coop-sim-scale

fuzz: deps-build+check $(B)/check/for-check ## every fuzzer for FUZZ_SECONDS (default 60), growing build/check/corpus
	@tests/run --fuzz-seconds $(or $(FUZZ_SECONDS),60) fuzz

lint: deps-build+check ## arrows, symbols, headers, format
	@tests/run lint

rooms: deps-run ## the tree's rooms and who includes whom, as a table and in build/rooms.svg
	@mkdir -p $(B)
	@tests/lint/rooms --svg $(B)/rooms.svg

checkpatch: deps-debug ## the kernel's own style checker over what is built into coopfs.ko
	@tools/checkpatch

format: deps-check ## clang-format over the tree
	@git ls-files '*.c' '*.h' '*.cpp' '*.hpp' | xargs clang-format-14 -i

bench: deps-build+run+bench $(B)/release/for-build ## fio against passthrough, sshfs and Gfarm; JSON and plots in build/bench
	@$(BUILD) coopfsd coopfs-fuse coopfs node-bench ud-bench
	@COOP_BIN=$(CURDIR)/$(B)/release/bin bench/fio/run $(BENCH_ARGS)

bench-start: deps-build+run+bench $(B)/release/for-build ## requests of 64 nodes that start a program of 5,000 files, over those of one (START_ARGS="NODES FILES DIRECTORIES")
	@$(BUILD) start-bench
	@$(B)/release/bin/start-bench $(START_ARGS)

bench-step: deps-build+run+bench $(B)/release/for-build ## copies that storage sends to 32 nodes, in network namespaces, that read one file in step; as root (BENCH_ARGS)
	@$(BUILD) coopfsd coopfs-fuse
	@COOP_BIN=$(CURDIR)/$(B)/release/bin bench/step/run $(BENCH_ARGS)

bench-net: deps-build+run+bench $(B)/release/for-build ## libcoop-net and coop-verbs against fi_pingpong and ucx_perftest; JSON and plots in build/bench-net
	@$(BUILD) coopnet coop-verbs
	@COOP_BIN=$(CURDIR)/$(B)/release/bin bench/net/run --out $(B)/bench-net $(BENCH_ARGS)

bench-ether: deps-build+run+bench $(B)/release/for-build ## one TCP stream of iperf3 over coop-verbs ether and over a veth pair, by turns; as root (BENCH_ARGS)
	@$(BUILD) coop-verbs
	@COOP_BIN=$(CURDIR)/$(B)/release/bin bench/ether/run --out $(B)/bench-ether $(BENCH_ARGS)

docs: deps-docs ## reference of libcoop-net from its headers, in build/docs
	@mkdir -p $(B)/docs
	@{ cat docs/Doxyfile; echo "OUTPUT_DIRECTORY = $(B)/docs"; echo "PROJECT_NUMBER = $(VERSION)"; } | doxygen -
	@echo "reference: $(B)/docs/html/index.html"

# kbuild writes beside its sources, so it gets a tree of links of its own.
KTREE = $(abspath $(B))/kernel-$(KVER)
KDIR = $(LIB_MODULES)/$(KVER)/build
KDIRS := rpc/base rpc/fetch rpc/chan rpc/storage stats ib msg proc fs fs/storage
# Its lines begin with +: they are make's, which shares its jobs with them.
KMAKE = $(MAKE) -s -C $(KDIR) M=$(KTREE) W=1 $(KFLAGS)
kernel-tree:
ifneq ($(origin KDIR),command line)
	@tools/kernels $(if $(KVER),check $(KVER),default)
ifeq ($(origin KVER),file)
	@tools/kernels others
endif
	@[ -d $(KDIR)/ ] || { echo "no headers of $(KVER) below $(LIB_MODULES); install linux-headers-$(KVER)" >&2; exit 1; }
endif
	@mkdir -p $(addprefix $(KTREE)/,$(KDIRS))
	@find $(KTREE) -type l -delete
	@ln -sf $(CURDIR)/Kbuild $(KTREE)/Kbuild
	@for d in $(KDIRS); do ln -sf $(CURDIR)/$$d/*.[ch] $(KTREE)/$$d/; done

kernel-objects: kernel-tree ## compile the engines for the kernel with W=1 (KVER=...)
	@+$(KMAKE) $(patsubst %.c,%.o,$(wildcard $(filter rpc/%,$(KDIRS:%=%/*.c))))

# build/kernel leads to the tree that was built last.
module: kernel-tree ## coopfs.ko, in build/kernel-<version> (KVER=...: another than the newest)
	@+$(KMAKE) modules
ifneq ($(origin KTREE),command line)
	@rm -rf $(B)/kernel && ln -s kernel-$(KVER) $(B)/kernel
endif
	@echo "$(KTREE)/coopfs.ko, built against $(KDIR)"

# What the lab's machines load besides, in vm/ of the same directory; it is never installed.
vm-module: module
	@mkdir -p $(KTREE)/vm
	@ln -sf $(CURDIR)/tests/vm/module/* $(KTREE)/vm/
	@$(MAKE) -s -C $(KDIR) M=$(KTREE)/vm W=1 $(KFLAGS) modules

VERSION := $(shell awk '/^project/ { print $$3 }' CMakeLists.txt)
DKMS_SRC = /usr/src/coopfs-$(VERSION)
UDEV_RULES = /etc/udev/rules.d/60-coopfs.rules
# Every kernel with headers here, or the one that was named.
DKMS_KERNELS = $(if $(filter file,$(origin KVER)),$(patsubst $(LIB_MODULES)/%/build/,%,$(wildcard $(LIB_MODULES)/*/build/)),$(KVER))
dkms-install: deps-dkms ## build coopfs.ko for the kernels here and for those installed later (DKMS; KVER=...: for one)
	@dkms status coopfs/$(VERSION) | grep -q . && dkms remove coopfs/$(VERSION) --all >/dev/null || true
	@rm -rf $(DKMS_SRC)
	@install -d $(addprefix $(DKMS_SRC)/,$(KDIRS))
	@install -m 644 Kbuild $(DKMS_SRC)/
	@for d in $(KDIRS); do install -m 644 $$d/*.[ch] $(DKMS_SRC)/$$d/; done
	@sed "s/@VERSION@/$(VERSION)/; s/@KERNELS@/$$(tools/kernels regex | sed 's/[\\|]/\\&/g')/" tools/dkms.conf > $(DKMS_SRC)/dkms.conf
	@install -D -m 644 tools/60-coopfs.rules $(UDEV_RULES)
	@dkms add coopfs/$(VERSION) >/dev/null
	@some=; for kernel in $(DKMS_KERNELS); do \
		tools/kernels check $$kernel || continue; \
		dkms install coopfs/$(VERSION) -k $$kernel || exit 1; \
		echo "coopfs.ko is installed for $$kernel"; some=yes; \
	done; \
	[ "$$some" ] || { echo "coopfs.ko is installed for no kernel" >&2; exit 1; }; \
	if dkms status coopfs/$(VERSION) -k $$(uname -r) | grep -q installed; then echo "\`modprobe coopfs\` loads it"; \
	else echo "$$(uname -r), which runs, is none of these kernels: boot one of them"; fi

dkms-remove: ## take the module and its sources out again
	@if dkms status coopfs/$(VERSION) 2>/dev/null | grep -q .; then dkms remove coopfs/$(VERSION) --all; \
	else echo "DKMS has no coopfs/$(VERSION): nothing to take out"; fi
	@rm -rf $(DKMS_SRC) $(UDEV_RULES)

install-net: $(B)/release/for-build ## of these only libcoop-net and coopnet
	@$(BUILD) coop_net_install coopnet
	@DESTDIR=$(DESTDIR) cmake --install $(B)/release --prefix $(PREFIX) --component net >/dev/null
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig
	@echo "libcoop-net and coopnet are installed below $(DESTDIR)$(PREFIX)"

install: user ## programs, libcoop-net and mount helper below PREFIX (default /usr/local)
	@DESTDIR=$(DESTDIR) cmake --install $(B)/release --prefix $(PREFIX) >/dev/null
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig
	@echo "installed below $(DESTDIR)$(PREFIX)"

clean: ## remove build/
	@rm -rf $(B)

.PHONY: help all user demo check check-long deps-optional-vm deps-optional-programs vm-programs vm-check vm-shell vm-demo vm-bench debug-kernel sim-long sim-scale fuzz lint rooms checkpatch format bench bench-start bench-step bench-net bench-ether docs kernel-tree kernel-objects module vm-module dkms-install dkms-remove install install-net clean
