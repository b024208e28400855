// SPDX-License-Identifier: MIT
// provider.cpp - see provider.hpp.
#include "provider.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "ports.hpp"

namespace coop::net::fabric
{

namespace
{

constexpr std::uint32_t api = FI_VERSION(1, 17);
constexpr std::size_t pieces_most = 8;

info_ptr hints(const std::string &name, fi_ep_type type)
{
	info_ptr h(fi_allocinfo());
	if (!h)
		throw std::bad_alloc();
	h->caps = FI_MSG | FI_RMA;
	// Without FI_RX_CQ_DATA verbs does not support words.
	h->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
	h->ep_attr->type = type;
	h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	// The lock of a transfer machine guards its domain, but regions of buffers, which a
	// provider with local keys needs, are opened and closed on any thread.
	h->domain_attr->threading = FI_THREAD_SAFE;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->fabric_attr->prov_name = ::strdup(name.c_str());
	return h;
}

info_ptr ask(const char *node, const char *service, std::uint64_t flags, const fi_info &hints)
{
	fi_info *list = nullptr;
	if (fi_getinfo(api, node, service, flags, &hints, &list))
		return nullptr;
	return info_ptr(list);
}

bool usable(const fi_info &i)
{
	if (i.domain_attr->cq_data_size < 4)
		return false;
	// We use reliable datagrams only between processes of one host.
	return i.ep_attr->type == FI_EP_MSG
		       ? i.domain_attr->max_ep_srx_ctx != 0
		       : i.ep_attr->type == FI_EP_RDM && i.addr_format == FI_ADDR_STR;
}

info_ptr find_usable(const std::string &name)
{
	// If asked for end points of one type, verbs resolves this host's own name, which not every
	// host can.
	for (fi_ep_type type : {FI_EP_MSG, FI_EP_RDM, FI_EP_UNSPEC}) {
		info_ptr i = ask(nullptr, nullptr, 0, *hints(name, type));
		while (i && !usable(*i))
			i.reset(std::exchange(i->next, nullptr));
		if (i)
			return i;
	}
	return nullptr;
}

// The possible values of `provider=` here.
std::string usable_names()
{
	std::string text;
	fi_info *list = nullptr;
	if (fi_getinfo(api, nullptr, nullptr, 0, nullptr, &list))
		return "none";
	const info_ptr all(list);
	std::vector<std::string> names;
	for (const fi_info *i = list; i; i = i->next) {
		const std::string name = i->fabric_attr->prov_name;
		if (std::find(names.begin(), names.end(), name) == names.end())
			names.push_back(name);
	}
	for (const std::string &name : names)
		if (find_usable(name))
			text += (text.empty() ? "" : ", ") + name;
	return text.empty() ? "none" : text;
}

} // namespace

provider::provider(const std::string &names, bool local_keys)
{
	for (std::size_t at = 0; at <= names.size();) {
		const std::size_t end = std::min(names.find(',', at), names.size());
		name_ = names.substr(at, end - at);
		at = end + 1;
		if (name_.empty())
			continue;
		info_ = find_usable(name_);
		if (info_) {
			local_keys_ = local_keys || info_->domain_attr->mr_mode & FI_MR_LOCAL;
			return;
		}
	}
	const char *only = std::getenv("FI_PROVIDER");
	throw std::system_error(
		ENODEV, std::generic_category(),
		"libfabric has none of the providers " + names +
			(only ? std::string(" (FI_PROVIDER is ") + only + ")" : "") +
			"; of those available these serve: " + usable_names());
}

bool provider::ordered_writes() const
{
	return info_->tx_attr->msg_order & FI_ORDER_WAW &&
	       (info_->caps & FI_RMA_EVENT || words_take_receives());
}

std::size_t provider::pieces() const
{
	return std::min({info_->tx_attr->iov_limit, pieces_most});
}

info_ptr provider::at(const address &own) const
{
	info_ptr h = hints(name_, FI_EP_MSG);
	return ask(ip_text(own).c_str(), "0", FI_SOURCE | FI_NUMERICHOST, *h);
}

} // namespace coop::net::fabric
