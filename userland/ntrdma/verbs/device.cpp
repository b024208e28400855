// SPDX-License-Identifier: MIT
// device.cpp - the one device of the stand-in libibverbs: listing, opening, its attributes.
//
// Every program of a user sees the same device, coop0, with one InfiniBand port of LID 1. What the
// device does not offer is zero or absent in its attributes, and its calls say EOPNOTSUPP.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

#include <endian.h>
#include <pthread.h>
#include <unistd.h>

#include "userland/ntrdma/verbs/datagrams.hpp"

#undef ibv_query_port

using namespace coop::ntrdma;
using coop::ntrdma::verbs::of;

namespace
{

constexpr std::uint64_t guid = 0x02c0'0bff'fe00'0001; // locally administered
constexpr std::uint64_t gid_prefix = 0xfe80'0000'0000'0000;

ibv_device the_device = [] {
	ibv_device d{};
	d.node_type = IBV_NODE_CA;
	d.transport_type = IBV_TRANSPORT_IB;
	std::strcpy(d.name, "coop0");
	std::strcpy(d.dev_name, "ntrdma0");
	return d;
}();

std::timed_mutex opening;
constexpr std::chrono::milliseconds opening_most{20};
node *the_node;
unsigned contexts;
pid_t node_process;

/// The node of this process. After a fork the child makes its own; the parent's stays with it.
node *take_node()
{
	std::scoped_lock held{opening};
	if (the_node && node_process != getpid())
		the_node = nullptr, contexts = 0;
	if (!the_node) {
		verbs::forget_all_news();
		the_node = new node{verbs::events(), verbs::addresses_changed};
		node_process = getpid();
		auto news = the_node->hold();
		verbs::begin_all_news();
	}
	contexts++;
	return the_node;
}

/// False in a child of fork, to which the node's objects do not belong.
bool has_node(const node *n)
{
	std::scoped_lock held{opening};
	return n == the_node && node_process == getpid();
}

void give_node(node *n)
{
	std::scoped_lock held{opening};
	if (n != the_node || node_process != getpid() || --contexts)
		return;
	verbs::end_datagrams(the_node);
	delete the_node;
	the_node = nullptr;
	verbs::end_all_news();
}

thread_local bool held_for_fork = false; // `opening`

/// The process may be about to end. Holds `opening`. Does not wait long for it: a signal may have
/// interrupted the thread that has it.
void send_answers(bool last)
{
	held_for_fork = opening.try_lock_for(opening_most);
	if (held_for_fork && the_node && node_process == getpid())
		the_node->send_answers(last);
}

void let_opening_go()
{
	if (std::exchange(held_for_fork, false))
		opening.unlock();
}

// The parent may end by _exit(), as that of daemon() does. The child gets `opening` free.
[[gnu::constructor]] void at_fork()
{
	static constexpr auto after = [] {
		verbs::let_addresses_go();
		let_opening_go();
	};
	pthread_atfork(
		[] {
			send_answers(false);
			verbs::hold_addresses();
		},
		after, after);
}

// After exit() has run the program's own handlers, and before it ends other threads.
[[gnu::destructor]] void at_exit()
{
	send_answers(true);
	let_opening_go();
}

} // namespace

namespace coop::ntrdma::verbs
{

context *of(ibv_context *c)
{
	return reinterpret_cast<context *>(reinterpret_cast<char *>(c) -
					   offsetof(verbs_context, context));
}

} // namespace coop::ntrdma::verbs

COOP_VERB ibv_device **ibv_get_device_list(int *count)
{
	auto **list = static_cast<ibv_device **>(std::calloc(2, sizeof(ibv_device *)));
	if (!list) {
		errno = ENOMEM;
		return nullptr;
	}
	list[0] = &the_device;
	if (count)
		*count = 1;
	return list;
}

COOP_VERB void ibv_free_device_list(ibv_device **list)
{
	std::free(list);
}
COOP_VERB const char *ibv_get_device_name(ibv_device *d)
{
	return d->name;
}
COOP_VERB __be64 ibv_get_device_guid(ibv_device *)
{
	return htobe64(guid);
}
COOP_VERB int ibv_get_device_index(ibv_device *)
{
	return 0;
}

/// Nothing is extended but the count of ports, which the plain attributes cannot tell above 255.
/// `size`: of the program's attributes; those of older programs end sooner.
static int query_extended(ibv_context *c, const ibv_query_device_ex_input *,
			  ibv_device_attr_ex *out, std::size_t size)
{
	ibv_device_attr_ex a{};
	if (size < sizeof(a.orig_attr))
		return EINVAL;
	ibv_query_device(c, &a.orig_attr);
	a.phys_port_cnt_ex = a.orig_attr.phys_port_cnt;
	std::memset(out, 0, size);
	std::memcpy(out, &a, std::min(size, sizeof(a)));
	return 0;
}

COOP_VERB ibv_context *ibv_open_device(ibv_device *device)
{
	if (device != &the_device) {
		errno = ENODEV;
		return nullptr;
	}
	node *n;
	try {
		n = take_node();
	} catch (const std::system_error &e) {
		std::fprintf(stderr, "coop-verbs: %s\n", e.what());
		errno = e.code().value();
		return nullptr;
	}
	auto *c = new verbs::context{};
	c->device = n;
	c->v.sz = sizeof(verbs_context);
	ibv_context *handle = c->handle();
	handle->abi_compat = __VERBS_ABI_IS_EXTENDED;
	handle->device = device;
	handle->num_comp_vectors = 1;
	handle->cmd_fd = -1;
	handle->async_fd = coop::event_count::open();
	pthread_mutex_init(&handle->mutex, nullptr);
	c->v.query_device_ex = query_extended;
	handle->ops.poll_cq = verbs::poll_cq;
	handle->ops.req_notify_cq = verbs::req_notify_cq;
	handle->ops.post_send = verbs::post_send;
	handle->ops.post_recv = verbs::post_recv;
	handle->ops.post_srq_recv = verbs::post_srq_recv;
	auto held = n->hold();
	verbs::begin_news(c);
	return handle;
}

COOP_VERB int ibv_close_device(ibv_context *handle)
{
	verbs::context *c = of(handle);
	// As the kernel does for a device. The structures stay the program's.
	if (has_node(c->device)) {
		auto held = c->device->hold();
		verbs::end_news(c);
		while (!c->pairs.empty())
			verbs::end_pair(*c->pairs.begin());
	}
	close(handle->async_fd);
	give_node(c->device);
	delete c;
	return 0;
}

COOP_VERB int ibv_query_device(ibv_context *, ibv_device_attr *a)
{
	*a = {};
	std::strcpy(a->fw_ver, "1.0.0");
	a->node_guid = a->sys_image_guid = htobe64(guid);
	a->max_mr_size = UINT64_MAX;
	a->page_size_cap = 4096;
	a->vendor_id = 0x0c00;
	a->vendor_part_id = 1;
	a->hw_ver = 1;
	a->max_qp = static_cast<int>(pairs_most);
	a->max_qp_wr = static_cast<int>(max_depth);
	a->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_CURR_QP_STATE_MOD;
	a->max_sge = a->max_sge_rd = a->max_srq_sge = static_cast<int>(max_segments);
	a->max_cq = 1 << 16;
	a->max_cqe = 1 << 22;
	a->max_mr = static_cast<int>(region_table::most) - 1;
	a->max_pd = 1 << 16;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = 128;
	a->max_res_rd_atom = a->max_qp * a->max_qp_rd_atom;
	a->atomic_cap = IBV_ATOMIC_GLOB; // they are the processor's own
	a->max_srq = 1 << 14;
	a->max_srq_wr = static_cast<int>(max_depth);
	a->max_pkeys = 1;
	a->max_ah = 1 << 16;
	a->phys_port_cnt = 1;
	return 0;
}

// Programs of today pass their whole ibv_port_attr, older ones one that ends before
// port_cap_flags2.
COOP_VERB int ibv_query_port(ibv_context *, std::uint8_t port, _compat_ibv_port_attr *out)
{
	if (port != 1)
		return EINVAL;
	ibv_port_attr a{};
	a.state = IBV_PORT_ACTIVE;
	a.max_mtu = a.active_mtu = IBV_MTU_4096;
	a.gid_tbl_len = static_cast<int>(verbs::own_addresses().size());
	a.max_msg_sz = max_message;
	a.pkey_tbl_len = 1;
	a.lid = a.sm_lid = verbs::own_lid;
	a.max_vl_num = 1;
	a.active_width = 2;  // 4x
	a.active_speed = 64; // HDR: the nearest to what memory does
	a.phys_state = 5;    // link up
	a.link_layer = IBV_LINK_LAYER_INFINIBAND;
	std::memcpy(out, &a, offsetof(ibv_port_attr, port_cap_flags2));
	return 0;
}

COOP_VERB int ibv_query_gid(ibv_context *, std::uint8_t port, int index, ibv_gid *gid)
{
	if (port == 1 && index > 0)
		if (auto own = verbs::own_addresses();
		    static_cast<std::size_t>(index) < own.size()) {
			std::memcpy(gid, own[static_cast<std::size_t>(index)].data(), sizeof(*gid));
			return 0;
		}
	if (port != 1 || index != 0) {
		errno = EINVAL;
		return -1;
	}
	gid->global.subnet_prefix = htobe64(gid_prefix);
	gid->global.interface_id = htobe64(guid);
	return 0;
}

COOP_VERB int _ibv_query_gid_ex(ibv_context *c, std::uint32_t port, std::uint32_t index,
				ibv_gid_entry *entry, std::uint32_t flags, std::size_t size)
{
	if (flags)
		return EOPNOTSUPP;
	if (size < sizeof(*entry))
		return EINVAL;
	*entry = {};
	if (port != 1 || ibv_query_gid(c, 1, static_cast<int>(index), &entry->gid))
		return EINVAL;
	verbs::gid_bytes ip;
	std::memcpy(ip.data(), &entry->gid, sizeof(ip));
	if (verbs::is_empty(ip))
		return ENODATA;
	entry->gid_index = index;
	entry->port_num = 1;
	entry->gid_type = index ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB;
	return 0;
}

COOP_VERB ssize_t _ibv_query_gid_table(ibv_context *c, ibv_gid_entry *entries, std::size_t most,
				       std::uint32_t flags, std::size_t size)
{
	if (flags)
		return -EOPNOTSUPP;
	if (size < sizeof(*entries))
		return -EINVAL;
	std::size_t n = 0;
	auto length = static_cast<std::uint32_t>(verbs::own_addresses().size());
	for (std::uint32_t index = 0; index < length; index++) {
		ibv_gid_entry e;
		if (_ibv_query_gid_ex(c, 1, index, &e, 0, sizeof(e)))
			continue;
		if (n == most)
			return -EINVAL; // as the kernel: all, or none
		// A newer program's entries are longer.
		auto *to = reinterpret_cast<std::uint8_t *>(entries) + n++ * size;
		std::memset(to, 0, size);
		std::memcpy(to, &e, sizeof(e));
	}
	return static_cast<ssize_t>(n);
}

/// Of the private interface; perftest calls it. 0 is IB or RoCE v1, 1 is RoCE v2.
COOP_VERB int ibv_query_gid_type(ibv_context *, std::uint8_t port, unsigned index, int *type)
{
	if (port != 1 || index >= verbs::own_addresses().size()) {
		errno = EINVAL;
		return -1;
	}
	*type = index != 0;
	return 0;
}

COOP_VERB int ibv_query_pkey(ibv_context *, std::uint8_t port, int index, __be16 *pkey)
{
	if (port != 1 || index != 0) {
		errno = EINVAL;
		return -1;
	}
	*pkey = htobe16(0xffff);
	return 0;
}

COOP_VERB int ibv_get_pkey_index(ibv_context *, std::uint8_t port, __be16 pkey)
{
	return port == 1 && pkey == htobe16(0xffff) ? 0 : -1;
}
