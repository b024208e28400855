// SPDX-License-Identifier: MIT
// fake_objects.hpp - the objects of fake_fabric.hpp.
//
// Objects of libfabric are structs that begin with tables of functions; here each is the first
// member of a larger one.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/fuzz/check.hpp"
#include "tests/fuzz/fake_fabric.hpp"

namespace fuzz_net
{

template <class outer, class inner> outer *whole(inner *p)
{
	return reinterpret_cast<outer *>(p);
}

struct wait_object {
	int fd = ::eventfd(0, EFD_CLOEXEC);
	~wait_object() { ::close(fd); }
};

struct completion {
	fi_cq_data_entry good;
	int error;
};

struct fake_cq {
	fid_cq cq{};
	fake_node *node;
	wait_object wait;
	std::deque<completion> done;
};

struct event {
	u32 what;
	fid *of;
	fi_info *info;
	std::vector<u8> text;
	int error;
};

struct fake_eq {
	fid_eq eq{};
	fake_node *node;
	wait_object wait;
	std::deque<event> events;
};

struct fake_mr {
	fid_mr mr{};
	fake_node *node;
	u8 *base;
	std::size_t length;
	u64 access;
};

struct receive {
	void *buffer;
	std::size_t length;
	void *context;
};

struct fake_srx {
	fid_ep ep{};
	fake_node *node;
};

struct fake_pep {
	fid_pep pep{};
	fake_node *node;
	std::pair<u32, u16> where;
	bool listens = false;
};

// A fabric with its domain: one per machine.
struct fake_node {
	fid_fabric fabric{};
	fid_domain domain{};
	fi_info *info = nullptr;
	fake_cq *cq = nullptr;
	fake_eq *eq = nullptr;
	fake_pep *pep = nullptr;
	std::deque<receive> receives;
	std::map<u64, fake_mr *> regions;

	static fake_node *of(fid_domain *d) { return static_cast<fake_node *>(d->fid.context); }
	void complete(void *context, u64 flags, std::size_t length, u64 data, int error)
	{
		if (cq)
			cq->done.push_back({{context, flags, length, nullptr, data}, error});
	}
	void tell(u32 what, fid *of, std::vector<u8> text = {}, fi_info *with = nullptr)
	{
		if (eq)
			eq->events.push_back({what, of, with, std::move(text), 0});
		else if (with)
			fi_freeinfo(with);
	}
	void tell_error(fid *of, int error)
	{
		if (eq)
			eq->events.push_back({0, of, nullptr, {}, error});
	}
};

struct fake_ep {
	fid_ep ep{};
	fake_node *node;
	std::shared_ptr<connection> link;
	unsigned side = 0;
};

} // namespace fuzz_net
