// SPDX-License-Identifier: MIT
// provider.hpp - the choice of a libfabric provider, and its properties.
//
// Connected end points (FI_EP_MSG) with a shared receive context are preferred: over tcp they have
// one layer less than reliable datagrams (ofi_rxm), and a broken connection is reported. shm has
// reliable datagrams only; datagram_port.hpp says what that requires.
#pragma once

#include <memory>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <string>

#include "coop/net/address.hpp"

namespace coop::net::fabric
{

struct close_fid {
	template <class object> void operator()(object *o) const noexcept { fi_close(&o->fid); }
};
/// Owns an object of libfabric. Declare members in order of dependence, so that they are closed in
/// reverse.
template <class object> using handle = std::unique_ptr<object, close_fid>;

struct free_info {
	void operator()(fi_info *i) const noexcept { fi_freeinfo(i); }
};
using info_ptr = std::unique_ptr<fi_info, free_info>;

/// The properties of a provider that this transport uses. Immutable.
class provider
{
public:
	/// Chooses the first available of `names` (separated by commas). libfabric itself hides
	/// providers that FI_PROVIDER does not name. `local_keys`: as if the provider needed them.
	/// @throw std::system_error ENODEV.
	explicit provider(const std::string &names, bool local_keys = false);

	const std::string &name() const { return name_; }
	bool connected() const { return info_->ep_attr->type == FI_EP_MSG; }
	/// Its memory regions are addressed by pointers, not by offsets.
	bool virtual_addresses() const { return info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR; }
	/// The provider chooses keys.
	bool own_keys() const { return info_->domain_attr->mr_mode & FI_MR_PROV_KEY; }
	/// Memory that it reads or writes must be registered, and named by descriptors.
	bool local_keys() const { return local_keys_; }
	/// Threading level of a domain: no locks if the transfer machine's lock is sufficient.
	fi_threading threading() const { return local_keys_ ? FI_THREAD_SAFE : FI_THREAD_DOMAIN; }
	/// The provider does not check local keys, so we do.
	bool checks_keys() const
	{
		return local_keys_ && !(info_->domain_attr->mr_mode & FI_MR_LOCAL);
	}
	/// The word of a write consumes a receive of the other side.
	bool words_take_receives() const
	{
		return (info_->mode | info_->rx_attr->mode) & FI_RX_CQ_DATA;
	}
	/// A device: sends posted to an end point that is closed never complete.
	bool forgets() const { return local_keys_ && !checks_keys(); }
	/// Words of 64 bits accompany messages; else 32.
	bool wide() const { return info_->domain_attr->cq_data_size >= 8; }
	/// Writes arrive in order, the last one's word after all of them.
	bool ordered_writes() const;
	/// Most bytes of one write.
	std::size_t write_most() const { return info_->ep_attr->max_msg_size; }
	std::size_t inject_size() const { return info_->tx_attr->inject_size; }
	std::size_t pieces() const; ///< most pieces of memory in one operation
	const fi_info &info() const { return *info_; }

	/// For a transfer machine at an IP address; connected() only. Null: none.
	info_ptr at(const address &own) const;

private:
	std::string name_;
	info_ptr info_;
	bool local_keys_;
};

} // namespace coop::net::fabric
