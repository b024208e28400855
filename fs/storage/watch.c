// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * watch.c - time: deadlines of calls, calls that the daemon put off, and its silence.
 *
 * The watch is a work that runs while there are calls. It ends those of a soft mount
 * whose time is over, sends calls again that got EAGAIN, asks a silent daemon for a
 * word, and replaces the connection of one that gives none.
 *
 * A deadline never ends CLOSE and UNLOCK: storage would keep the file open, or the lock,
 * until the session ends. Nor does it end a LOCK that storage may have: it may be granted
 * later, and only an UNLOCK after its reply surely releases it. A task that waits is told,
 * and the call stays until it is answered. Its memory is bounded: that of a CLOSE was
 * allocated with the open file, or for one of the OPENs in flight, and LOCKs and UNLOCKs are
 * counted.
 *
 * umount -f does the same to all calls at once, on any mount. The end of the mount ends all calls.
 */
#include <linux/sched/mm.h>

#include "fs/storage/impl.h"

#define SILENCE_TO_PING  (15 * HZ) /* while calls are in flight */
#define SILENCE_TO_RETRY (60 * HZ)
#define FORCED_MS        2000 /* after umount -f */
#define KEPT_MOST        4096 /* LOCKs and UNLOCKs beyond their deadline, of 4 KiB each */

/* ---- deadlines ------------------------------------------------------------ */

static bool outlives_deadline(const struct coop_call *call)
{
	switch (call->op) {
	case COOP_ST_CLOSE:
	case COOP_ST_UNLOCK:
		return true;
	case COOP_ST_LOCK:
		/* One of a reopen() ends, as other calls wait for it; so does one not sent yet. */
		return !call->again && (call->state != COOP_CALL_QUEUED || call->repeated);
	default:
		return false;
	}
}

/* Keeps a call beyond its deadline, and tells its task. False: the call may end. */
static bool keep_locked(struct coop_storage *s, struct coop_call *call, int error)
{
	lockdep_assert_held(&s->lock);
	if (call->late)
		return true;
	if (!outlives_deadline(call))
		return false;
	if (call->op != COOP_ST_CLOSE) {
		if (s->kept >= KEPT_MOST)
			return false;
		call->kept = true;
		s->kept++;
	}
	WRITE_ONCE(call->late, error);
	complete_all(&call->finished);
	return true;
}

static struct coop_call *begun_before_locked(struct coop_storage *s, struct list_head *list, u64 us,
					     int late)
{
	struct coop_call *call;

	list_for_each_entry(call, list, link) {
		if (call->begun_us < us && !call->internal && call->state != COOP_CALL_ABANDONED &&
		    (!late || !keep_locked(s, call, late)))
			return call;
	}
	return NULL;
}

/*
 * A call with a submitter that began before that time; a reference. late: the error of a deadline,
 * which keeps some calls; 0: all calls end.
 */
static struct coop_call *find_begun_before(struct coop_storage *s, u64 us, int late)
{
	struct list_head *const waiting[] = {&s->queue, &s->first, &s->later, &s->early};
	struct coop_call *found = NULL;
	u32 i;

	spin_lock_bh(&s->lock);
	for (i = 0; i < ARRAY_SIZE(waiting) && !found; i++)
		found = begun_before_locked(s, waiting[i], us, late);
	for (i = 0; i < COOP_WIRE_BUCKETS && !found; i++)
		found = begun_before_locked(s, &s->wire[i], us, late);
	if (found)
		refcount_inc(&found->refs);
	spin_unlock_bh(&s->lock);
	return found;
}

static void end_begun_before(struct coop_storage *s, u64 us, int error, bool deadline)
{
	struct coop_call *call;

	while ((call = find_begun_before(s, us, deadline ? error : 0))) {
		coop_call_abandon(call, error);
		coop_call_put(call);
		cond_resched();
	}
}

void coop_calls_end_all(struct coop_storage *s, int error)
{
	end_begun_before(s, U64_MAX, error, false);
}

/* Queues calls again that the daemon answered with EAGAIN. True: some still wait. */
static bool watch_later(struct coop_storage *s)
{
	struct coop_call *call, *next;
	bool wait;

	spin_lock_bh(&s->lock);
	wait = !list_empty(&s->later);
	if (wait && time_after_eq(jiffies, s->later_at)) {
		list_for_each_entry_safe(call, next, &s->later, link)
			list_move_tail(&call->link, call->again ? &s->first : &s->queue);
		coop_tx_kick(s);
		wait = false;
	}
	spin_unlock_bh(&s->lock);
	return wait;
}

static void ask_for_word(struct coop_storage *s)
{
	struct coop_call *ping = coop_call_alloc(s, COOP_ST_PING);

	if (!ping)
		return;
	ping->internal = true;
	coop_call_submit_first(ping);
	coop_call_put(ping);
}

/* ---- leases: has the daemon answered lately? ----------------------------------- */

#define TRUST_NS ((u64)COOP_ST_LEASE_TRUST_MS * NSEC_PER_MSEC)

void coop_vouch_work(struct work_struct *work)
{
	struct coop_storage *s = container_of(work, struct coop_storage, vouch_work);
	const unsigned int nofs = memalloc_nofs_save();

	ask_for_word(s);
	memalloc_nofs_restore(nofs);
}

bool coop_storage_trusted(struct coop_storage *s)
{
	const u64 vouched = READ_ONCE(s->vouched), asked = READ_ONCE(s->vouch_asked);
	const u64 early = vouched + TRUST_NS / 2, now = ktime_get_boottime_ns();

	if (!vouched || now >= vouched + TRUST_NS)
		return false; /* the caller then asks storage, and the reply renews the trust */
	if (now < early)
		return true;
	if (asked < early && cmpxchg64(&s->vouch_asked, asked, now) == asked)
		queue_work(s->wq, &s->vouch_work);
	return true;
}

bool coop_storage_keep(struct coop_storage *s)
{
	const u64 vouched = READ_ONCE(s->vouched), asked = READ_ONCE(s->vouch_asked);
	const u64 now = ktime_get_boottime_ns();

	if (now >= vouched + TRUST_NS / 2 && now >= asked + TRUST_NS / 2 &&
	    cmpxchg64(&s->vouch_asked, asked, now) == asked)
		queue_work(s->wq, &s->vouch_work);
	return vouched && now < vouched + TRUST_NS;
}

/* ---- silence --------------------------------------------------------------------- */

/* If a connected daemon is silent, sends a PING, later replaces the connection. */
static void watch_silence(struct coop_storage *s)
{
	unsigned long since, silence = 0;
	bool ask = false;

	spin_lock_bh(&s->lock);
	if (s->state == COOP_STORAGE_UP && s->in_flight) {
		since = READ_ONCE(s->heard);
		if (time_after(s->busy_since, since))
			since = s->busy_since;
		silence = jiffies - since;
		ask = silence >= SILENCE_TO_PING && time_before(s->pinged, since);
		if (ask)
			s->pinged = jiffies;
	}
	spin_unlock_bh(&s->lock);
	if (silence >= SILENCE_TO_RETRY)
		coop_storage_lost(s, "no word from it for 60 s");
	else if (ask)
		ask_for_word(s);
}

/* As coop_storage_patience(), in milliseconds. */
static u32 patience_ms(struct coop_storage *s, int *error)
{
	u32 ms;

	spin_lock_bh(&s->lock);
	if (s->state == COOP_STORAGE_UP && time_after_eq(READ_ONCE(s->heard), s->forced_at))
		s->forced = false;
	ms = s->soft ? max(s->timeo_ms, 1U) : 0;
	*error = -ETIMEDOUT;
	if (s->forced && (!ms || ms > FORCED_MS)) {
		ms = FORCED_MS;
		*error = -EIO;
	}
	spin_unlock_bh(&s->lock);
	return ms;
}

unsigned long coop_storage_patience(struct coop_storage *s, int *error)
{
	return msecs_to_jiffies(patience_ms(s, error));
}

void coop_watch_work(struct work_struct *work)
{
	struct coop_storage *s = container_of(work, struct coop_storage, watch.work);
	const unsigned int nofs = memalloc_nofs_save();
	unsigned long next = COOP_WATCH_MOST;
	int error;
	const u32 most_ms = patience_ms(s, &error);
	bool more;

	if (most_ms) {
		const u64 now = ktime_to_us(ktime_get()), time = (u64)most_ms * USEC_PER_MSEC;

		if (now > time)
			end_begun_before(s, now - time, error, true);
		next = clamp(msecs_to_jiffies(most_ms) / 8, 1UL, next);
	}
	watch_silence(s);
	if (watch_later(s))
		next = min_t(unsigned long, next, COOP_LATER_TIME);
	spin_lock_bh(&s->lock);
	more = s->state != COOP_STORAGE_CLOSED &&
	       (s->in_flight || !list_empty(&s->queue) || !list_empty(&s->first) ||
		!list_empty(&s->later));
	spin_unlock_bh(&s->lock);
	if (more)
		queue_delayed_work(s->wq, &s->watch, next);
	memalloc_nofs_restore(nofs);
}

void coop_storage_gate(struct coop_storage *s, bool hold)
{
	spin_lock_bh(&s->lock);
	s->gate += hold ? 1 : -1;
	spin_unlock_bh(&s->lock);
	if (!hold)
		coop_tx_kick(s);
}

void coop_storage_abort(struct coop_storage *s)
{
	coop_calls_end_all(s, -EIO);
}

void coop_storage_force(struct coop_storage *s)
{
	bool up;

	spin_lock_bh(&s->lock);
	s->forced = true;
	s->forced_at = jiffies;
	if (READ_ONCE(s->heard) == s->forced_at) /* only bytes from now on count */
		WRITE_ONCE(s->heard, s->forced_at - 1);
	up = s->state == COOP_STORAGE_UP;
	spin_unlock_bh(&s->lock);
	/*
	 * End only calls that began before now: on a busy mount the rest would never end. If the
	 * umount fails, storage must still get the CLOSEs and UNLOCKs, so they end with the mount.
	 */
	end_begun_before(s, ktime_to_us(ktime_get()) + 1, -EIO, true);
	if (up) /* if the daemon answers, later calls have no short limit */
		ask_for_word(s);
}

void coop_storage_tune(struct coop_storage *s, bool soft, u32 timeo_ms)
{
	spin_lock_bh(&s->lock);
	s->forced = false;
	s->soft = soft;
	s->timeo_ms = timeo_ms;
	spin_unlock_bh(&s->lock);
	mod_delayed_work(s->wq, &s->watch, 0);
}
