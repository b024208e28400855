/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* compat.h - differences between the kernels that the device is built for. */
#ifndef COOP_MSG_COMPAT_H
#define COOP_MSG_COMPAT_H

#include <linux/mm.h>

#ifndef COOP_HAVE_VM_FLAGS_SET
static inline void coop_vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}
#else
#define coop_vm_flags_set vm_flags_set
#endif

#endif /* COOP_MSG_COMPAT_H */
