// SPDX-License-Identifier: MIT
// provider.hpp - which libfabric provider is used, and what has to be known of it.
//
// Connected end points (FI_EP_MSG) with a shared receive context are preferred: over tcp they
// are a layer less than reliable datagrams (ofi_rxm), and a broken connection says so. shm has
// reliable datagrams only; see datagram_port.hpp for what that takes.
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
/// Owns an object of libfabric. Members are declared in the order in which they need each
/// other, so that they are closed in reverse.
template <class object> using handle = std::unique_ptr<object, close_fid>;

struct free_info {
	void operator()(fi_info *i) const noexcept { fi_freeinfo(i); }
};
using info_ptr = std::unique_ptr<fi_info, free_info>;

/// A provider as this transport uses it. Immutable.
class provider
{
public:
	/// The first of `names` (separated by commas) that there is. libfabric itself leaves out
	/// what FI_PROVIDER does not name. `local_keys`: as if it wanted those.
	/// @throw std::system_error ENODEV.
	explicit provider(const std::string &names, bool local_keys = false);

	const std::string &name() const { return name_; }
	bool connected() const { return info_->ep_attr->type == FI_EP_MSG; }
	/// Its memory regions are addressed by pointers and not by offsets.
	bool virtual_addresses() const { return info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR; }
	/// It chooses keys.
	bool own_keys() const { return info_->domain_attr->mr_mode & FI_MR_PROV_KEY; }
	/// Memory that it reads or writes has to be registered, and named by descriptors.
	bool local_keys() const { return local_keys_; }
	/// What is asked of a domain: no locks where the lock of its transfer machine is enough.
	fi_threading threading() const { return local_keys_ ? FI_THREAD_SAFE : FI_THREAD_DOMAIN; }
	/// It does not look at them, so we do.
	bool checks_keys() const
	{
		return local_keys_ && !(info_->domain_attr->mr_mode & FI_MR_LOCAL);
	}
	/// The word of a write uses up a receive of the other side.
	bool words_take_receives() const
	{
		return (info_->mode | info_->rx_attr->mode) & FI_RX_CQ_DATA;
	}
	/// A device: what was posted to an end point that is closed never completes.
	bool forgets() const { return local_keys_ && !checks_keys(); }
	/// Words of 64 bits go along with messages; else of 32.
	bool wide() const { return info_->domain_attr->cq_data_size >= 8; }
	/// Writes arrive in order, the last one's word after all of them.
	bool ordered_writes() const;
	/// Bytes of one write.
	std::size_t write_most() const { return info_->ep_attr->max_msg_size; }
	std::size_t inject_size() const { return info_->tx_attr->inject_size; }
	std::size_t pieces() const; ///< of memory, in one operation
	const fi_info &info() const { return *info_; }

	/// For a transfer machine at an IP address; connected() only. Null: none.
	info_ptr at(const address &own) const;

private:
	std::string name_;
	info_ptr info_;
	bool local_keys_;
};

} // namespace coop::net::fabric
