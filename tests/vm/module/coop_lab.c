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
 *   fail_sends    say of so many successful sends that they failed
 *   keep_qps      refuse so many times to destroy a queue pair: EBUSY
 *   refuse_sends  take so many chains of sends but for the last send: ENOMEM
 *   hold_changes  let so many tasks wait that change the state of a queue pair for datagrams;
 *                 0: all of them go on
 *   max_ah        say that the device has so many address handles, and refuse more; 0: as it was
 *   hold_sends    1: keep chains of datagrams back, and what follows them on their queue pairs;
 *                 0: give them to the device
 *   pin           "ADDRESS PAGES": pin these pages of the writing process, as for a device that
 *                 reads them; "0 0" unpins them
 *
 * All but the last three count down. lost, failed, kept, refused and ah_refused are the totals,
 * held is the number of chains that are kept back now, and changing that of tasks that wait. The
 * module cannot be unloaded, because its functions may be running at any time.
 */
#include <linux/atomic.h>
#include <linux/err.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <rdma/ib_verbs.h>

#define PIN_MOST 64

static char *device = "";
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "name of the verbs device to stand before");

static atomic_t lose_sends, lose_flushes, keep_qps, refuse_sends, lost, kept, refused, held;
static atomic_t n_ah, ah_refused, fail_sends, failed, hold_changes, changing, releases;
static DECLARE_WAIT_QUEUE_HEAD(changes_go_on);
static struct ib_device *lab_device; /* NULL: not there */
static int device_max_ah;

static int (*device_poll_cq)(struct ib_cq *cq, int room, struct ib_wc *wc);
static int (*device_destroy_qp)(struct ib_qp *qp, struct ib_udata *udata);
static int (*device_post_send)(struct ib_qp *qp, const struct ib_send_wr *wr,
			       const struct ib_send_wr **bad);
static int (*device_modify_qp)(struct ib_qp *qp, struct ib_qp_attr *attr, int mask,
			       struct ib_udata *udata);
static int (*device_create_ah)(struct ib_ah *ah, struct rdma_ah_init_attr *attr,
			       struct ib_udata *udata);
static int (*device_destroy_ah)(struct ib_ah *ah, u32 flags);

/* ---- chains that are kept back ----------------------------------------------------- */

struct chain {
	struct list_head link;
	struct ib_qp *qp;     /* not destroyed while the chain is listed */
	struct ib_ud_wr wr[]; /* then their pieces of memory */
};

static DEFINE_SPINLOCK(chains_lock);
static LIST_HEAD(chains); /* in the order in which they were posted */
static bool hold_sends;

/* The poster may use its work requests again; what they point to, it keeps until they complete. */
static struct chain *chain_copy(struct ib_qp *qp, const struct ib_send_wr *wr)
{
	const struct ib_send_wr *each;
	size_t n = 0, pieces = 0;
	struct ib_ud_wr *to;
	struct ib_sge *sge;
	struct chain *c;

	for (each = wr; each; each = each->next, n++)
		pieces += each->num_sge;
	c = kmalloc(struct_size(c, wr, n) + pieces * sizeof(*sge), GFP_ATOMIC);
	if (!c)
		return NULL;
	c->qp = qp;
	to = c->wr;
	sge = (struct ib_sge *)&c->wr[n];
	for (each = wr; each; each = each->next, to++) {
		*to = *ud_wr(each);
		memcpy(sge, each->sg_list, each->num_sge * sizeof(*sge));
		to->wr.sg_list = sge;
		sge += each->num_sge;
		if (each->next)
			to->wr.next = &to[1].wr;
	}
	return c;
}

static bool chain_before(const struct ib_qp *qp)
{
	const struct chain *c;

	list_for_each_entry(c, &chains, link)
		if (c->qp == qp)
			return true;
	return false;
}

/* 0: kept back; 1: the device may have it; or an error. */
static int chain_hold(struct ib_qp *qp, const struct ib_send_wr *wr)
{
	struct chain *c = NULL;
	unsigned long flags;
	int err = 1;

	spin_lock_irqsave(&chains_lock, flags);
	if (hold_sends && qp->qp_type == IB_QPT_UD && (wr->next || chain_before(qp))) {
		c = chain_copy(qp, wr);
		err = c ? 0 : -ENOMEM;
	}
	if (c) {
		list_add_tail(&c->link, &chains);
		atomic_inc(&held);
	}
	spin_unlock_irqrestore(&chains_lock, flags);
	return err;
}

static void chain_end(struct chain *c)
{
	list_del(&c->link);
	atomic_dec(&held);
	kfree(c);
}

/* NULL: all queue pairs. */
static void chains_drop(const struct ib_qp *qp)
{
	struct chain *c, *next;
	unsigned long flags;

	spin_lock_irqsave(&chains_lock, flags);
	list_for_each_entry_safe(c, next, &chains, link)
		if (!qp || c->qp == qp)
			chain_end(c);
	spin_unlock_irqrestore(&chains_lock, flags);
}

static int hold_set(const char *text, const struct kernel_param *param)
{
	const struct ib_send_wr *bad;
	struct chain *c, *next;
	unsigned long flags;
	bool yes;
	int err = kstrtobool(text, &yes);

	if (err)
		return err;
	spin_lock_irqsave(&chains_lock, flags);
	hold_sends = yes;
	if (!yes) {
		list_for_each_entry_safe(c, next, &chains, link) {
			/* Of those that it refuses, no completion comes: they are lost. */
			device_post_send(c->qp, &c->wr[0].wr, &bad);
			chain_end(c);
		}
	}
	spin_unlock_irqrestore(&chains_lock, flags);
	return 0;
}

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

static void fail(struct ib_wc *wc)
{
	if (wc->status != IB_WC_SUCCESS || wc->opcode != IB_WC_SEND ||
	    atomic_dec_if_positive(&fail_sends) < 0)
		return;
	wc->status = IB_WC_GENERAL_ERR;
	atomic_inc(&failed);
}

static int lab_poll_cq(struct ib_cq *cq, int room, struct ib_wc *wc)
{
	const int n = device_poll_cq(cq, room, wc);
	int i, told = 0;

	for (i = 0; i < n; i++) {
		if (is_lost(&wc[i]))
			continue;
		fail(&wc[i]);
		wc[told++] = wc[i];
	}
	return n < 0 ? n : told;
}

static int lab_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask,
			 struct ib_udata *udata)
{
	const int before = atomic_read(&releases);

	if (qp->qp_type == IB_QPT_UD && atomic_dec_if_positive(&hold_changes) >= 0) {
		atomic_inc(&changing);
		wait_event(changes_go_on, atomic_read(&releases) != before);
		atomic_dec(&changing);
	}
	return device_modify_qp(qp, attr, mask, udata);
}

static int lab_destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	if (atomic_dec_if_positive(&keep_qps) >= 0) {
		atomic_inc(&kept);
		return -EBUSY;
	}
	chains_drop(qp);
	return device_destroy_qp(qp, udata);
}

/* Single sends pass. */
static int lab_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			 const struct ib_send_wr **bad)
{
	struct ib_send_wr *before = (struct ib_send_wr *)wr, *last;
	int err = chain_hold(qp, wr);

	if (err <= 0) {
		*bad = wr;
		return err;
	}
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

static int lab_create_ah(struct ib_ah *ah, struct rdma_ah_init_attr *attr, struct ib_udata *udata)
{
	int err = -ENOMEM;

	if (atomic_inc_return(&n_ah) <= ah->device->attrs.max_ah)
		err = device_create_ah(ah, attr, udata);
	else
		atomic_inc(&ah_refused);
	if (err)
		atomic_dec(&n_ah);
	return err;
}

static int lab_destroy_ah(struct ib_ah *ah, u32 flags)
{
	const int err = device_destroy_ah(ah, flags);

	if (!err)
		atomic_dec(&n_ah);
	return err;
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
	device_modify_qp = dev->ops.modify_qp;
	dev->ops.modify_qp = lab_modify_qp;
	device_create_ah = dev->ops.create_ah;
	device_destroy_ah = dev->ops.destroy_ah;
	dev->ops.create_ah = lab_create_ah;
	dev->ops.destroy_ah = lab_destroy_ah;
	device_max_ah = dev->attrs.max_ah;
	lab_device = dev;
	return 0;
}

static void lab_remove(struct ib_device *dev, void *data)
{
	dev->ops.poll_cq = device_poll_cq;
	dev->ops.destroy_qp = device_destroy_qp;
	dev->ops.post_send = device_post_send;
	dev->ops.modify_qp = device_modify_qp;
	dev->ops.create_ah = device_create_ah;
	dev->ops.destroy_ah = device_destroy_ah;
	lab_device = NULL;
	atomic_set(&n_ah, 0);
	chains_drop(NULL);
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
module_param_cb(fail_sends, &number_ops, &fail_sends, 0644);
module_param_cb(keep_qps, &number_ops, &keep_qps, 0644);
module_param_cb(refuse_sends, &number_ops, &refuse_sends, 0644);
module_param_cb(lost, &number_ops, &lost, 0444);
module_param_cb(failed, &number_ops, &failed, 0444);
module_param_cb(changing, &number_ops, &changing, 0444);
module_param_cb(refused, &number_ops, &refused, 0444);
module_param_cb(kept, &number_ops, &kept, 0444);
module_param_cb(held, &number_ops, &held, 0444);
module_param_cb(ah_refused, &number_ops, &ah_refused, 0444);

static int changes_set(const char *text, const struct kernel_param *param)
{
	int n, err = kstrtoint(text, 0, &n);

	if (err)
		return err;
	atomic_set(&hold_changes, n);
	if (!n) {
		atomic_inc(&releases);
		wake_up_all(&changes_go_on);
	}
	return 0;
}

static const struct kernel_param_ops changes_ops = {.set = changes_set, .get = number_get};

module_param_cb(hold_changes, &changes_ops, &hold_changes, 0644);

static int max_ah_set(const char *text, const struct kernel_param *param)
{
	int n, err = kstrtoint(text, 0, &n);

	if (!err && lab_device)
		lab_device->attrs.max_ah = n ? n : device_max_ah;
	return err;
}

static const struct kernel_param_ops max_ah_ops = {.set = max_ah_set};
module_param_cb(max_ah, &max_ah_ops, NULL, 0200);

static const struct kernel_param_ops hold_ops = {.set = hold_set};

module_param_cb(hold_sends, &hold_ops, NULL, 0200);

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
