// SPDX-License-Identifier: MIT
// fake_shm.cpp - the part of libfabric's shm that a port uses: names and a table of them.
//
// A table is small, so that it is full at times. It checks that a removed name was in it, and
// that it is empty when it is closed.
#include <cstdlib>
#include <cstring>
#include <map>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <string>

#include "tests/fuzz/check.hpp"

namespace
{

constexpr std::size_t names_most = 6;

// Each object is the first member of one of these.
struct fake_table {
	fid_av av{};
	std::map<fi_addr_t, std::string> names;
	fi_addr_t next = 1;
};
struct fake_ep {
	fid_ep ep{};
	std::string name;
};

template <class object> int close_one(fid *f)
{
	delete reinterpret_cast<object *>(f);
	return 0;
}

int close_table(fid *f)
{
	FUZZ_CHECK(reinterpret_cast<fake_table *>(f)->names.empty());
	return close_one<fake_table>(f);
}

int nothing(fid *, fid *, uint64_t)
{
	return 0;
}

int control(fid *, int, void *)
{
	return 0;
}

template <int (*close)(fid *)> fi_ops *ops()
{
	static fi_ops the{};
	the.size = sizeof(the);
	the.close = close;
	the.bind = nothing;
	the.control = control;
	return &the;
}

int insert(fid_av *av, const void *name, size_t count, fi_addr_t *out, uint64_t, void *)
{
	auto &t = *reinterpret_cast<fake_table *>(av);
	FUZZ_CHECK(count == 1);
	if (t.names.size() == names_most)
		return 0;
	*out = t.next++;
	t.names[*out] = static_cast<const char *>(name);
	return 1;
}

int take_out(fid_av *av, fi_addr_t *at, size_t count, uint64_t)
{
	FUZZ_CHECK(count == 1 && reinterpret_cast<fake_table *>(av)->names.erase(*at));
	return 0;
}

int get_name(fid *f, void *out, size_t *size)
{
	const std::string &name = reinterpret_cast<fake_ep *>(f)->name;
	FUZZ_CHECK(name.size() < *size);
	std::memcpy(out, name.c_str(), name.size() + 1);
	*size = name.size() + 1;
	return 0;
}

int open_table(fid_domain *, fi_av_attr *, fid_av **out, void *)
{
	static fi_ops_av av_ops{};
	av_ops.size = sizeof(av_ops);
	av_ops.insert = insert;
	av_ops.remove = take_out;
	auto *t = new fake_table;
	t->av.fid = {FI_CLASS_AV, nullptr, ops<close_table>()};
	t->av.ops = &av_ops;
	*out = &t->av;
	return 0;
}

int open_ep(fid_domain *, fi_info *info, fid_ep **out, void *)
{
	static fi_ops_cm cm{};
	cm.size = sizeof(cm);
	cm.getname = get_name;
	auto *e = new fake_ep;
	e->name = static_cast<const char *>(info->src_addr);
	e->ep.fid = {FI_CLASS_EP, nullptr, ops<close_one<fake_ep>>()};
	e->ep.cm = &cm;
	*out = &e->ep;
	return 0;
}

int open_queue(fid_domain *, fi_cq_attr *, fid_cq **out, void *)
{
	auto *q = new fid_cq{};
	q->fid = {FI_CLASS_CQ, nullptr, ops<close_one<fid_cq>>()};
	*out = q;
	return 0;
}

int open_domain(fid_fabric *, fi_info *, fid_domain **out, void *)
{
	static fi_ops_domain domain_ops{};
	domain_ops.size = sizeof(domain_ops);
	domain_ops.av_open = open_table;
	domain_ops.cq_open = open_queue;
	domain_ops.endpoint = open_ep;
	auto *d = new fid_domain{};
	d->fid = {FI_CLASS_DOMAIN, nullptr, ops<close_one<fid_domain>>()};
	d->ops = &domain_ops;
	*out = d;
	return 0;
}

} // namespace

// In place of libfabric's own: the linker finds these first.
extern "C" int fi_getinfo(uint32_t, const char *, const char *, uint64_t, const fi_info *hints,
			  fi_info **out)
{
	if (hints->ep_attr->type != FI_EP_RDM)
		return -FI_ENODATA;
	fi_info *i = fi_dupinfo(hints);
	i->addr_format = FI_ADDR_STR;
	i->domain_attr->cq_data_size = 8;
	*out = i;
	return 0;
}

extern "C" int fi_fabric(fi_fabric_attr *, fid_fabric **out, void *)
{
	static fi_ops_fabric fabric_ops{};
	fabric_ops.size = sizeof(fabric_ops);
	fabric_ops.domain = open_domain;
	auto *f = new fid_fabric{};
	f->fid = {FI_CLASS_FABRIC, nullptr, ops<close_one<fid_fabric>>()};
	f->ops = &fabric_ops;
	*out = f;
	return 0;
}
