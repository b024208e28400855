// SPDX-License-Identifier: MIT
// refused.cpp - calls of libibverbs for what the device does not offer.
//
// The attributes of the device say so beforehand: no multicast, no memory
// windows, no device memory, no objects of other processes. Each call sets EOPNOTSUPP. Drivers of
// real devices, which some programs load besides, find the private interface that they are linked
// with; registering there has no effect, because this library has its one device.
#include <cerrno>
#include <cstddef>

#include "userland/ntrdma/verbs/objects.hpp"

namespace
{

std::nullptr_t refuse()
{
	errno = EOPNOTSUPP;
	return nullptr;
}

} // namespace

COOP_VERB int ibv_attach_mcast(ibv_qp *, const ibv_gid *, std::uint16_t)
{
	return EOPNOTSUPP;
}
COOP_VERB int ibv_detach_mcast(ibv_qp *, const ibv_gid *, std::uint16_t)
{
	return EOPNOTSUPP;
}
COOP_VERB int ibv_rereg_mr(ibv_mr *, int, ibv_pd *, void *, std::size_t, int)
{
	refuse();
	return IBV_REREG_MR_ERR_INPUT; // the region is as it was
}
COOP_VERB ibv_mr *ibv_reg_dmabuf_mr(ibv_pd *, std::uint64_t, std::size_t, std::uint64_t, int, int)
{
	return refuse();
}
COOP_VERB ibv_context *ibv_import_device(int)
{
	return refuse();
}
COOP_VERB ibv_pd *ibv_import_pd(ibv_context *, std::uint32_t)
{
	return refuse();
}
COOP_VERB void ibv_unimport_pd(ibv_pd *)
{
	refuse();
}
COOP_VERB ibv_mr *ibv_import_mr(ibv_pd *, std::uint32_t)
{
	return refuse();
}
COOP_VERB void ibv_unimport_mr(ibv_mr *)
{
	refuse();
}
COOP_VERB ibv_dm *ibv_import_dm(ibv_context *, std::uint32_t)
{
	return refuse();
}
COOP_VERB void ibv_unimport_dm(ibv_dm *)
{
	refuse();
}
COOP_VERB int ibv_set_ece(ibv_qp *, ibv_ece *)
{
	return EOPNOTSUPP;
}
COOP_VERB int ibv_query_ece(ibv_qp *, ibv_ece *)
{
	return EOPNOTSUPP;
}
/// Queue pairs are made without the extended interface of posting.
COOP_VERB ibv_qp_ex *ibv_qp_to_qp_ex(ibv_qp *)
{
	return refuse();
}
COOP_VERB int ibv_query_qp_data_in_order(ibv_qp *, ibv_wr_opcode, std::uint32_t)
{
	return 0;
}
COOP_VERB int ibv_resolve_eth_l2_from_gid(ibv_context *, ibv_ah_attr *, std::uint8_t *,
					  std::uint16_t *)
{
	return EOPNOTSUPP; // the port is no Ethernet
}

COOP_VERB void verbs_register_driver_34(const void *) {}

namespace
{

extern "C" int coop_verbs_refused()
{
	refuse();
	return EOPNOTSUPP;
}

} // namespace

#define REFUSED(name) \
	extern "C" __attribute__((visibility("default"), alias("coop_verbs_refused"))) int name()
REFUSED(__ioctl_final_num_attrs);
REFUSED(__verbs_log);
REFUSED(_verbs_init_and_alloc_context);
REFUSED(execute_ioctl);
REFUSED(ibv_cmd_advise_mr);
REFUSED(ibv_cmd_alloc_dm);
REFUSED(ibv_cmd_alloc_mw);
REFUSED(ibv_cmd_alloc_pd);
REFUSED(ibv_cmd_attach_mcast);
REFUSED(ibv_cmd_close_xrcd);
REFUSED(ibv_cmd_create_ah);
REFUSED(ibv_cmd_create_counters);
REFUSED(ibv_cmd_create_cq);
REFUSED(ibv_cmd_create_cq_ex);
REFUSED(ibv_cmd_create_flow);
REFUSED(ibv_cmd_create_flow_action_esp);
REFUSED(ibv_cmd_create_qp);
REFUSED(ibv_cmd_create_qp_ex);
REFUSED(ibv_cmd_create_qp_ex2);
REFUSED(ibv_cmd_create_rwq_ind_table);
REFUSED(ibv_cmd_create_srq);
REFUSED(ibv_cmd_create_srq_ex);
REFUSED(ibv_cmd_create_wq);
REFUSED(ibv_cmd_dealloc_mw);
REFUSED(ibv_cmd_dealloc_pd);
REFUSED(ibv_cmd_dereg_mr);
REFUSED(ibv_cmd_destroy_ah);
REFUSED(ibv_cmd_destroy_counters);
REFUSED(ibv_cmd_destroy_cq);
REFUSED(ibv_cmd_destroy_flow);
REFUSED(ibv_cmd_destroy_flow_action);
REFUSED(ibv_cmd_destroy_qp);
REFUSED(ibv_cmd_destroy_rwq_ind_table);
REFUSED(ibv_cmd_destroy_srq);
REFUSED(ibv_cmd_destroy_wq);
REFUSED(ibv_cmd_detach_mcast);
REFUSED(ibv_cmd_free_dm);
REFUSED(ibv_cmd_get_context);
REFUSED(ibv_cmd_modify_cq);
REFUSED(ibv_cmd_modify_flow_action_esp);
REFUSED(ibv_cmd_modify_qp);
REFUSED(ibv_cmd_modify_qp_ex);
REFUSED(ibv_cmd_modify_srq);
REFUSED(ibv_cmd_modify_wq);
REFUSED(ibv_cmd_open_qp);
REFUSED(ibv_cmd_open_xrcd);
REFUSED(ibv_cmd_poll_cq);
REFUSED(ibv_cmd_post_recv);
REFUSED(ibv_cmd_post_send);
REFUSED(ibv_cmd_post_srq_recv);
REFUSED(ibv_cmd_query_context);
REFUSED(ibv_cmd_query_device_any);
REFUSED(ibv_cmd_query_mr);
REFUSED(ibv_cmd_query_port);
REFUSED(ibv_cmd_query_qp);
REFUSED(ibv_cmd_query_srq);
REFUSED(ibv_cmd_read_counters);
REFUSED(ibv_cmd_reg_dm_mr);
REFUSED(ibv_cmd_reg_dmabuf_mr);
REFUSED(ibv_cmd_reg_mr);
REFUSED(ibv_cmd_req_notify_cq);
REFUSED(ibv_cmd_rereg_mr);
REFUSED(ibv_cmd_resize_cq);
REFUSED(ibv_read_ibdev_sysfs_file);
REFUSED(verbs_allow_disassociate_destroy);
REFUSED(verbs_init_cq);
REFUSED(verbs_open_device);
REFUSED(verbs_set_ops);
REFUSED(verbs_uninit_context);
