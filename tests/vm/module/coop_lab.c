// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * coop_lab.c - a verbs device that breaks its promises, and a driver that pins pages.
 *
 * Soft-RoCE completes every work request, destroys every queue pair, and pins no page of a
 * file that is only read. Real devices and their drivers may not. To show in the lab what
 * coopfs does then, this module stands between the verbs and the device that is named when
 * it is loaded. Tests write its parameters:
 *
 *   lose_sends    swallow the completions of so many successful sends
 *   lose_flushes  swallow the completions of so many flushed work requests
 *   keep_qps      refuse so many times to destroy a queue pair: EBUSY
 *   refuse_sends  take so many chains of sends but for the last send: ENOMEM
 *   pin           "ADDRESS PAGES": pin these pages of the writing process, as for a device that
 *                 reads them; "0 0" unpins them
 *
 * All but the last count down. lost, kept and refused are the totals. The module cannot be
 * unloaded, because its functions may be running at any time.
 */
#include <linux/atomic.h>
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>

#define PIN_MOST 64

static char *device = "";
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "name of the verbs device to stand before");

static atomic_t lose_sends, lose_flushes, keep_qps, refuse_sends, lost, kept, refused;

static int (*device_poll_cq)(struct ib_cq *cq, int room, struct ib_wc *wc);
static int (*device_destroy_qp)(struct ib_qp *qp, struct ib_udata *udata);
static int (*device_post_send)(struct ib_qp *qp, const struct ib_send_wr *wr,
			       const struct ib_send_wr **bad);

/* ---- the device ------------------------------------------------------------------ */

static bool is_lost(const struct ib_wc *wc)
{
	bool yes = false;

	if (wc->status == IB_WC_SUCCESS && wc->opcode == IB_WC_SEND)
		yes = atomic_dec_if_positive(&lose_sends) >= 0;
	else if (wc->status == IB_WC_WR_FLUSH_ERR)
		yes = atomic_dec_if_positive(&lose_flushes) >= 0;
	if (yes)
		atomic_inc(&lost);
	return yes;
}

static int lab_poll_cq(struct ib_cq *cq, int room, struct ib_wc *wc)
{
	const int n = device_poll_cq(cq, room, wc);
	int i, told = 0;

	for (i = 0; i < n; i++)
		if (!is_lost(&wc[i]))
			wc[told++] = wc[i];
	return n < 0 ? n : told;
}

static int lab_destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	if (atomic_dec_if_positive(&keep_qps) < 0)
		return device_destroy_qp(qp, udata);
	atomic_inc(&kept);
	return -EBUSY;
}

/* Single sends pass. */
static int lab_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			 const struct ib_send_wr **bad)
{
	struct ib_send_wr *before = (struct ib_send_wr *)wr, *last;
	int err;

	if (!wr->next || atomic_dec_if_positive(&refuse_sends) < 0)
		return device_post_send(qp, wr, bad);
	while (before->next->next)
		before = before->next;
	last = before->next;
	before->next = NULL;
	err = device_post_send(qp, wr, bad);
	before->next = last;
	if (err)
		return err;
	atomic_inc(&refused);
	*bad = last;
	return -ENOMEM;
}

static int lab_add(struct ib_device *dev)
{
	if (strcmp(dev_name(&dev->dev), device))
		return -EOPNOTSUPP;
	device_poll_cq = dev->ops.poll_cq;
	device_destroy_qp = dev->ops.destroy_qp;
	device_post_send = dev->ops.post_send;
	dev->ops.poll_cq = lab_poll_cq;
	dev->ops.destroy_qp = lab_destroy_qp;
	dev->ops.post_send = lab_post_send;
	return 0;
}

static void lab_remove(struct ib_device *dev, void *data)
{
	dev->ops.poll_cq = device_poll_cq;
	dev->ops.destroy_qp = device_destroy_qp;
	dev->ops.post_send = device_post_send;
}

static struct ib_client lab_client = {
	.name = "coop_lab",
	.add = lab_add,
	.remove = lab_remove,
};

/* ---- its parameters -------------------------------------------------------------- */

static int number_set(const char *text, const struct kernel_param *param)
{
	int n, err = kstrtoint(text, 0, &n);

	if (!err)
		atomic_set(param->arg, n);
	return err;
}

static int number_get(char *text, const struct kernel_param *param)
{
	return sysfs_emit(text, "%d\n", atomic_read(param->arg));
}

static const struct kernel_param_ops number_ops = {.set = number_set, .get = number_get};

module_param_cb(lose_sends, &number_ops, &lose_sends, 0644);
module_param_cb(lose_flushes, &number_ops, &lose_flushes, 0644);
module_param_cb(keep_qps, &number_ops, &keep_qps, 0644);
module_param_cb(refuse_sends, &number_ops, &refuse_sends, 0644);
module_param_cb(lost, &number_ops, &lost, 0444);
module_param_cb(refused, &number_ops, &refused, 0444);
module_param_cb(kept, &number_ops, &kept, 0444);

static struct page *pages[PIN_MOST]; /* under the lock of the module's parameters */
static int n_pinned;

static int pin_set(const char *text, const struct kernel_param *param)
{
	unsigned long address;
	int n;

	if (sscanf(text, "%li %i", &address, &n) != 2 || n < 0 || n > PIN_MOST)
		return -EINVAL;
	unpin_user_pages(pages, n_pinned);
	n_pinned = 0;
	if (!n)
		return 0;
	n_pinned = pin_user_pages_fast(address, n, 0, pages);
	if (n_pinned == n)
		return 0;
	if (n_pinned > 0)
		unpin_user_pages(pages, n_pinned);
	n_pinned = 0;
	return -EFAULT;
}

static const struct kernel_param_ops pin_ops = {.set = pin_set};

module_param_cb(pin, &pin_ops, NULL, 0200);

static int __init lab_init(void)
{
	return ib_register_client(&lab_client);
}

module_init(lab_init);
MODULE_DESCRIPTION("Faults of devices for the lab of coopfs");
MODULE_LICENSE("Dual MIT/GPL");
