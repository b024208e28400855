// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * mapping.c - mappings of files.
 *
 * Every way to a page, for loads and for stores, first settles FOREIGN pages. This matters most for
 * stores: the whole page becomes dirty, so a page that another client has changed would carry old
 * bytes over that client's. A page that is already mapped stays so until something settles.
 */
#include <linux/mm.h>

#include "fs/fs.h"

/* Returns 0, or the result of the fault. May wait, for storage too. */
static vm_fault_t mapping_begin(const struct vm_fault *vmf)
{
	const struct file *file = vmf->vma->vm_file;

	return coop_file_readable(file) || coop_content_fresh(file_inode(file)) ? VM_FAULT_SIGBUS
										: 0;
}

static vm_fault_t coop_fault(struct vm_fault *vmf)
{
	vm_fault_t result = mapping_begin(vmf);

	if (result)
		return result;
	result = filemap_fault(vmf);
	if (result & VM_FAULT_LOCKED)
		coop_account_read(file_inode(vmf->vma->vm_file), PAGE_SIZE, 0);
	return result;
}

/* Maps cached pages around the address without waiting; 0: coop_fault() has to do it. */
static vm_fault_t coop_map_pages(struct vm_fault *vmf, pgoff_t from, pgoff_t to)
{
	const struct file *file = vmf->vma->vm_file;

	if (coop_file_not_lost(file) || coop_locks_doubted(file) ||
	    test_bit(COOP_I_STALE, &coop_i(file_inode(file))->flags))
		return 0;
	return filemap_map_pages(vmf, from, to);
}

/*
 * If settling drops the page, coop_page_mkwrite() finds it without a mapping, and the store faults
 * again. If others keep it from being dropped, it is stored to as write(2) would.
 */
static vm_fault_t coop_mkwrite(struct vm_fault *vmf)
{
	return mapping_begin(vmf) ?: coop_page_mkwrite(vmf);
}

static const struct vm_operations_struct coop_vm_ops = {
	.fault = coop_fault,
	.map_pages = coop_map_pages,
	.page_mkwrite = coop_mkwrite,
};

int coop_mmap(struct file *file, struct vm_area_struct *vma)
{
	int err = coop_file_readable(file) ?: coop_content_fresh(file_inode(file));

	if (!err && vma->vm_flags & VM_SHARED && file->f_mode & FMODE_WRITE)
		err = coop_file_plain(file->private_data);
	if (err)
		return err;
	vma->vm_ops = &coop_vm_ops;
	return 0;
}
