// SPDX-License-Identifier: MIT
// provider.cpp - see provider.hpp.
#include "provider.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "ports.hpp"

namespace coop::net::fabric
{

namespace
{

constexpr std::uint32_t api = FI_VERSION(1, 17);
constexpr std::size_t pieces_most = 8;

// What this transport does if a provider asks for it. Without FI_RX_CQ_DATA verbs does not support
// words.
constexpr std::uint64_t modes = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
constexpr int mr_modes = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

info_ptr hints(const std::string &name, fi_ep_type type, fi_threading threading)
{
	info_ptr h(fi_allocinfo());
	if (!h)
		throw std::bad_alloc();
	h->caps = FI_MSG | FI_RMA;
	h->mode = modes;
	h->ep_attr->type = type;
	h->domain_attr->mr_mode = mr_modes;
	h->domain_attr->threading = threading;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->fabric_attr->prov_name = ::strdup(name.c_str());
	return h;
}

// Everything that a provider of this name offers.
info_ptr anything(const std::string &name)
{
	info_ptr h(fi_allocinfo());
	if (!h)
		throw std::bad_alloc();
	h->mode = ~std::uint64_t{0};
	h->domain_attr->mode = ~std::uint64_t{0};
	h->domain_attr->mr_mode = ~(FI_MR_BASIC | FI_MR_SCALABLE); // the modes of old
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

// The lock of a transfer machine guards its domain, but regions of buffers, which a provider with
// local keys needs, are opened and closed on any thread.
info_ptr find_usable(const std::string &name, fi_threading &threading)
{
	// If asked for end points of one type, verbs resolves this host's own name, which not every
	// host can. So ask for any type before RDM: on such a host that would find ofi_rxd over
	// datagrams of verbs, and libfabric 1.17 waits forever when it closes those.
	for (fi_threading t : {FI_THREAD_SAFE, FI_THREAD_DOMAIN})
		for (fi_ep_type type : {FI_EP_MSG, FI_EP_UNSPEC, FI_EP_RDM}) {
			const info_ptr list = ask(nullptr, nullptr, 0, *hints(name, type, t));
			if (const fi_info *i = choose(list.get())) {
				threading = t;
				return info_ptr(fi_dupinfo(i));
			}
		}
	return nullptr;
}

std::string why_not(const std::string &name)
{
	const info_ptr list = ask(nullptr, nullptr, 0, *anything(name));
	const char *why = refusal_of(list.get());
	return name + ": " + (why ? why : "not available");
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
	fi_threading threading;
	for (const std::string &name : names)
		if (find_usable(name, threading))
			text += (text.empty() ? "" : ", ") + name;
	return text.empty() ? "none" : text;
}

struct requirement {
	const char *text; // what is missing if it is not met
	bool (*met)(const fi_info &);
};

bool is_shm(const fi_info &i)
{
	const char *name = i.fabric_attr->prov_name;
	return name && std::strncmp(name, "shm", 3) == 0;
}

// In this order the first one that is not met is the reason. Each is needed:
constexpr requirement required[] = {
	{"use the transport ntrdma between processes of a host",
	 [](const fi_info &i) { return !is_shm(i); }},
	{"it has unreliable datagrams only",
	 [](const fi_info &i) {
		 return i.ep_attr->type == FI_EP_MSG || i.ep_attr->type == FI_EP_RDM;
	 }},
	// Data land where they belong.
	{"it has no messages or no RMA (FI_MSG, FI_RMA)",
	 [](const fi_info &i) { return (i.caps & FI_MSG) && (i.caps & FI_RMA); }},
	// A word names the link of a message.
	{"its messages carry no word of 32 bits (cq_data_size)",
	 [](const fi_info &i) { return i.domain_attr->cq_data_size >= 4; }},
	// Credits and answers rely on it.
	{"its messages do not stay in order (FI_ORDER_SAS)",
	 [](const fi_info &i) {
		 return (i.tx_attr->msg_order & FI_ORDER_SAS) &&
			(i.rx_attr->msg_order & FI_ORDER_SAS);
	 }},
	// All peers share the posted receives, so a message may find none: it has to wait.
	{"a message without a posted receive may be lost (FI_RM_ENABLED)",
	 [](const fi_info &i) { return i.domain_attr->resource_mgmt == FI_RM_ENABLED; }},
	{"its connections share no receives (max_ep_srx_ctx)",
	 [](const fi_info &i) {
		 return i.ep_attr->type != FI_EP_MSG || i.domain_attr->max_ep_srx_ctx != 0;
	 }},
	{"it requires a mode that this transport does not support (FI_MSG_PREFIX or another)",
	 [](const fi_info &i) { return !(i.mode & ~modes); }},
	{"it requires memory registration of a kind that this transport does not support "
	 "(mr_mode)",
	 [](const fi_info &i) { return !(i.domain_attr->mr_mode & ~mr_modes); }},
	// Memory of buffers is registered on any thread.
	{"its domains are for one thread at a time (FI_THREAD_SAFE)",
	 [](const fi_info &i) {
		 return !(i.domain_attr->mr_mode & FI_MR_LOCAL) ||
			i.domain_attr->threading == FI_THREAD_SAFE;
	 }},
};

std::size_t requirements_met(const fi_info &i)
{
	std::size_t n = 0;
	while (n < std::size(required) && required[n].met(i))
		n++;
	return n;
}

} // namespace

const char *refusal(const fi_info &i)
{
	const std::size_t n = requirements_met(i);
	return n < std::size(required) ? required[n].text : nullptr;
}

const fi_info *choose(const fi_info *list)
{
	for (const fi_ep_type type : {FI_EP_MSG, FI_EP_RDM})
		for (const fi_info *i = list; i; i = i->next)
			if (i->ep_attr->type == type && !refusal(*i))
				return i;
	return nullptr;
}

const char *refusal_of(const fi_info *list)
{
	const fi_info *closest = list;
	for (const fi_info *i = list; i; i = i->next)
		if (requirements_met(*i) > requirements_met(*closest))
			closest = i;
	return closest ? refusal(*closest) : nullptr;
}

provider::provider(const std::string &names, bool local_keys)
{
	std::string reasons;
	for (std::size_t at = 0; at <= names.size();) {
		const std::size_t end = std::min(names.find(',', at), names.size());
		name_ = names.substr(at, end - at);
		at = end + 1;
		if (name_.empty())
			continue;
		info_ = find_usable(name_, asked_);
		if (info_) {
			name_ = info_->fabric_attr->prov_name; // perhaps with a layer added
			local_keys_ = local_keys || info_->domain_attr->mr_mode & FI_MR_LOCAL;
			return;
		}
		reasons += (reasons.empty() ? "" : ", ") + why_not(name_);
	}
	const char *only = std::getenv("FI_PROVIDER");
	throw std::system_error(ENODEV, std::generic_category(),
				"no provider of libfabric can be used (" + reasons + ")" +
					(only ? std::string("; FI_PROVIDER is ") + only : "") +
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

// Where addresses are not of the IP, a machine uses the first device there is: the IP address is
// that of the TCP connections beside it.
info_ptr provider::at(const address &own) const
{
	const std::uint32_t format = info_->addr_format;
	if (!connected() && format != FI_SOCKADDR && format != FI_SOCKADDR_IN &&
	    format != FI_SOCKADDR_IN6)
		return info_ptr(fi_dupinfo(info_.get()));
	const info_ptr h = hints(name_, info_->ep_attr->type, asked_);
	const info_ptr list = ask(ip_text(own).c_str(), "0", FI_SOURCE | FI_NUMERICHOST, *h);
	const fi_info *i = choose(list.get());
	return info_ptr(i ? fi_dupinfo(i) : nullptr);
}

} // namespace coop::net::fabric
