// SPDX-License-Identifier: MIT
// providers.cpp - which offers of libfabric the transport takes, among made-up ones.
//
// The hosts that run this have tcp at most. What other providers offer is written down here, from
// their descriptions of themselves (fi_info -v) and their man pages.
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <initializer_list>
#include <string>
#include <system_error>

#include "userland/net/fabric/provider.hpp"

namespace
{

using namespace coop::net::fabric;

struct offer {
	const char *name;
	fi_ep_type type;
	std::uint64_t caps =
		FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	std::uint64_t mode = 0;
	int mr_mode = 0;
	std::size_t word = 8;
	std::uint64_t order = FI_ORDER_SAS;
	fi_resource_mgmt rm = FI_RM_ENABLED;
	std::size_t shared_receives = 0;
	fi_threading threading = FI_THREAD_SAFE;
};

info_ptr list(std::initializer_list<offer> offers)
{
	info_ptr first;
	fi_info **next = nullptr;
	for (const offer &o : offers) {
		fi_info *i = fi_allocinfo();
		i->caps = o.caps;
		i->mode = o.mode;
		i->ep_attr->type = o.type;
		i->tx_attr->msg_order = i->rx_attr->msg_order = o.order;
		i->domain_attr->mr_mode = o.mr_mode;
		i->domain_attr->cq_data_size = o.word;
		i->domain_attr->resource_mgmt = o.rm;
		i->domain_attr->max_ep_srx_ctx = o.shared_receives;
		i->domain_attr->threading = o.threading;
		i->fabric_attr->prov_name = ::strdup(o.name);
		if (next)
			*next = i;
		else
			first.reset(i);
		next = &i->next;
	}
	return first;
}

constexpr int of_hardware = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

const offer tcp{.name = "tcp", .type = FI_EP_MSG, .shared_receives = 1};
const offer rxm{.name = "tcp;ofi_rxm", .type = FI_EP_RDM};
const offer verbs{.name = "verbs",
		  .type = FI_EP_MSG,
		  .mode = FI_RX_CQ_DATA,
		  .mr_mode = of_hardware,
		  .word = 4,
		  .shared_receives = 1};
const offer efa{.name = "efa",
		.type = FI_EP_RDM,
		.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
		.word = 4};
const offer psm3{.name = "psm3", .type = FI_EP_RDM, .mode = FI_CONTEXT, .word = 4};
const offer opx{.name = "opx",
		.type = FI_EP_RDM,
		.mode = FI_CONTEXT2,
		.word = 4,
		.threading = FI_THREAD_DOMAIN};

class fabric_providers_serve : public testing::TestWithParam<offer>
{
};

TEST_P(fabric_providers_serve, with_what_they_have)
{
	const info_ptr one = list({GetParam()});
	EXPECT_EQ(refusal(*one), nullptr);
	EXPECT_EQ(choose(one.get()), one.get());
	EXPECT_EQ(refusal_of(one.get()), nullptr);
}

INSTANTIATE_TEST_SUITE_P(such_as, fabric_providers_serve,
			 testing::Values(tcp, rxm, verbs, efa, psm3, opx), [](const auto &i) {
				 const std::string name = i.param.name;
				 return name.substr(0, name.find(';')) +
					(name.find(';') == name.npos ? "" : "_rxm");
			 });

bool nameless = false; // this host, for verbs

TEST(fabric_providers, that_connect_come_first)
{
	const info_ptr both = list({rxm, tcp});
	EXPECT_EQ(choose(both.get()), both->next);
	EXPECT_EQ(choose(nullptr), nullptr);
}

// verbs then does not answer a search for end points that connect, and ofi_rxd offers datagrams.
TEST(fabric_providers, that_connect_come_first_on_a_host_without_a_name)
{
	nameless = true;
	const provider p("verbs");
	nameless = false;
	EXPECT_EQ(p.name(), "verbs");
	EXPECT_TRUE(p.connected());
}

// Each lacks one thing; the reason is that, and no other offer is hidden by it.
TEST(fabric_providers, that_lack_something_say_what)
{
	const auto without = [](offer o, auto change) {
		change(o);
		return o;
	};
	const std::pair<offer, const char *> cases[] = {
		{{.name = "shm", .type = FI_EP_RDM}, "ntrdma"},
		{without(rxm, [](offer &o) { o.type = FI_EP_DGRAM; }), "datagrams"},
		{without(rxm, [](offer &o) { o.caps &= ~FI_RMA; }), "RMA"},
		{without(rxm, [](offer &o) { o.word = 0; }), "cq_data_size"},
		{without(rxm, [](offer &o) { o.order = FI_ORDER_SAW; }), "FI_ORDER_SAS"},
		{without(rxm, [](offer &o) { o.rm = FI_RM_DISABLED; }), "FI_RM_ENABLED"},
		{without(tcp, [](offer &o) { o.shared_receives = 0; }), "max_ep_srx_ctx"},
		{without(rxm, [](offer &o) { o.mode = FI_MSG_PREFIX; }), "FI_MSG_PREFIX"},
		{without(rxm, [](offer &o) { o.mr_mode = FI_MR_ENDPOINT; }), "mr_mode"},
		{without(efa,
			 [](offer &o) {
				 o.mr_mode |= FI_MR_LOCAL;
				 o.threading = FI_THREAD_DOMAIN;
			 }),
		 "FI_THREAD_SAFE"},
	};
	for (const auto &[o, reason] : cases) {
		const info_ptr alone = list({o}), among = list({o, psm3});
		EXPECT_EQ(choose(alone.get()), nullptr) << reason;
		ASSERT_NE(refusal_of(alone.get()), nullptr) << reason;
		EXPECT_NE(std::string(refusal_of(alone.get())).find(reason), std::string::npos)
			<< refusal_of(alone.get());
		EXPECT_EQ(choose(among.get()), among->next) << reason;
	}
	// The machine's lock is enough if nothing is registered on other threads.
	EXPECT_EQ(refusal(*list({without(rxm, [](offer &o) { o.threading = FI_THREAD_DOMAIN; })})),
		  nullptr);
}

// psm3 offers one kind without words first; efa another one without order (efa-direct).
TEST(fabric_providers, that_have_several_offers_are_taken_by_the_one_that_serves)
{
	offer tags = psm3, direct = efa;
	tags.word = 0;
	direct.order = 0;
	direct.mode = FI_CONTEXT2;
	const info_ptr of_psm3 = list({tags, psm3}), of_efa = list({direct, efa});
	EXPECT_EQ(choose(of_psm3.get()), of_psm3->next);
	EXPECT_EQ(choose(of_efa.get()), of_efa->next);
}

// The offer with most of what is needed explains more than the first one.
TEST(fabric_providers, give_the_reason_of_the_offer_that_comes_closest)
{
	const info_ptr all = list({{.name = "efa", .type = FI_EP_DGRAM},
				   {.name = "efa", .type = FI_EP_RDM, .rm = FI_RM_DISABLED}});
	EXPECT_NE(std::string(refusal_of(all.get())).find("FI_RM_ENABLED"), std::string::npos);
}

// libfabric's own, on this host.
TEST(fabric_providers, that_are_refused_are_named_with_the_reason)
{
	try {
		const provider p("no-such,shm");
		FAIL() << "it took " << p.name();
	} catch (const std::system_error &e) {
		const std::string text = e.what();
		EXPECT_EQ(e.code().value(), ENODEV);
		EXPECT_NE(text.find("no-such: not available"), std::string::npos) << text;
		EXPECT_NE(text.find("shm: use the transport ntrdma"), std::string::npos) << text;
	}
	EXPECT_FALSE(provider("tcp;ofi_rxm").connected());
	EXPECT_TRUE(provider("no-such,tcp").connected());
	EXPECT_EQ(provider("no-such,tcp").name(), "tcp");
	// libfabric adds what makes reliable datagrams of others.
	EXPECT_EQ(provider("udp").name(), "udp;ofi_rxd");
}

} // namespace

// Before libfabric's.
extern "C" int fi_getinfo(std::uint32_t version, const char *node, const char *service,
			  std::uint64_t flags, const fi_info *hints, fi_info **info)
{
	static const auto real =
		reinterpret_cast<decltype(&fi_getinfo)>(::dlsym(RTLD_NEXT, "fi_getinfo"));
	if (!nameless)
		return real(version, node, service, flags, hints, info);
	const offer rxd{.name = "verbs;ofi_rxd", .type = FI_EP_RDM};
	info_ptr found;
	if (hints->ep_attr->type == FI_EP_UNSPEC)
		found = list({rxd, verbs});
	else if (hints->ep_attr->type == FI_EP_RDM)
		found = list({rxd});
	*info = found.release();
	return *info ? 0 : -FI_ENODATA;
}
