// SPDX-License-Identifier: MIT
// provider.hpp - the choice of a libfabric provider, and its properties.
//
// Connected end points (FI_EP_MSG) with a shared receive context are preferred: over tcp they have
// one layer less than reliable datagrams (ofi_rxm), and a broken connection is reported.
// Providers that have reliable datagrams only (psm3, efa, opx, and all with ;ofi_rxm) serve too;
// datagram_port.hpp says what that requires. A provider that lacks something is refused with the
// reason.
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

/// Why this transport cannot use an offer of a provider; null: it can.
const char *refusal(const fi_info &);
/// The first usable one of a list, connected end points before others; null: none.
const fi_info *choose(const fi_info *list);
/// The reason for refusing a whole list: that of the offer that comes closest. Null: it is empty.
const char *refusal_of(const fi_info *list);

/// The properties of a provider that this transport uses. Immutable.
class provider
{
public:
	/// Chooses the first available of `names` (separated by commas). libfabric itself hides
	/// providers that FI_PROVIDER does not name. `local_keys`: as if the provider needed them.
	/// @throw std::system_error ENODEV; the text says why each cannot be used.
	explicit provider(const std::string &names, bool local_keys = false);

	/// As libfabric calls it, with the layers that make reliable datagrams of it.
	const std::string &name() const { return name_; }
	bool connected() const { return info_->ep_attr->type == FI_EP_MSG; }
	/// Its memory regions are addressed by pointers, not by offsets.
	bool virtual_addresses() const { return info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR; }
	/// The bits of a key that we choose. (With FI_MR_PROV_KEY the provider does.)
	std::uint64_t key_mask() const
	{
		const std::size_t size = info_->domain_attr->mr_key_size;
		return size == 0 || size >= 8 ? ~std::uint64_t{0}
					      : (std::uint64_t{1} << 8 * size) - 1;
	}
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
	/// For a write that a message of this side follows: it must not arrive before the data.
	std::uint64_t write_flags() const
	{
		return info_->tx_attr->msg_order & FI_ORDER_SAW ? 0 : FI_DELIVERY_COMPLETE;
	}
	/// It reads remote memory, and lets peers read ours.
	bool reads() const
	{
		return (info_->caps & (FI_READ | FI_REMOTE_READ)) == (FI_READ | FI_REMOTE_READ);
	}
	/// Most bytes of one write or read.
	std::size_t write_most() const { return info_->ep_attr->max_msg_size; }
	std::size_t inject_size() const { return info_->tx_attr->inject_size; }
	std::size_t pieces() const; ///< most pieces of memory in one operation

	/// For a transfer machine at an IP address. Null: none.
	info_ptr at(const address &own) const;

private:
	std::string name_;
	fi_threading asked_ = FI_THREAD_SAFE; ///< threading level that it was asked for
	info_ptr info_;
	bool local_keys_;
};

} // namespace coop::net::fabric
