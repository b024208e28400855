// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * key.c - keys derived from the cluster key.
 *
 * The cluster key is used for derivation only, with one label for each purpose, so
 * that no proof is valid for another purpose. The transforms, one with the cluster
 * key and one with the storage key, live as long as the mount, because a
 * reconnect must not need to allocate.
 */
#include <crypto/hash.h>
#include <linux/module.h>
#include <linux/random.h>

#include "fs/storage/impl.h"

MODULE_SOFTDEP("pre: hmac sha256");

#define DIGEST 32

/* An HMAC-SHA256 with this key, or an error. */
static struct crypto_shash *keyed(const u8 *key, u32 len)
{
	struct crypto_shash *tfm = crypto_alloc_shash("hmac(sha256)", 0, 0);
	int err;

	if (IS_ERR(tfm))
		return tfm;
	err = crypto_shash_setkey(tfm, key, len);
	if (!err)
		return tfm;
	crypto_free_shash(tfm);
	return ERR_PTR(err);
}

int coop_key_init(struct coop_key *key, const u8 *cluster_key, u32 len)
{
	static const char for_storage[] = "coopfs storage 1";
	static const u8 none[DIGEST];
	struct crypto_shash *tfm;
	u8 digest[DIGEST];
	int err;

	memset(key, 0, sizeof(*key));
	tfm = cluster_key ? keyed(cluster_key, len) : keyed(none, sizeof(none));
	if (IS_ERR(tfm))
		return PTR_ERR(tfm);
	key->fabric = tfm;
	if (!cluster_key)
		return 0;
	err = crypto_shash_tfm_digest(key->fabric, for_storage, sizeof(for_storage) - 1, digest);
	tfm = err ? ERR_PTR(err) : keyed(digest, sizeof(digest));
	memzero_explicit(digest, sizeof(digest));
	if (IS_ERR(tfm)) {
		coop_key_free(key);
		return PTR_ERR(tfm);
	}
	key->tfm = tfm;
	return 0;
}

void coop_key_free(struct coop_key *key)
{
	crypto_free_shash(key->tfm); /* wipes it; NULL is fine */
	crypto_free_shash(key->fabric);
	memset(key, 0, sizeof(*key));
}

int coop_key_fabric(struct coop_storage *s)
{
	static const char label[] = "coopfs fabric 2", old_label[] = "coopfs fabric 1";
	SHASH_DESC_ON_STACK(desc, s->key.fabric);
	u8 digest[DIGEST];
	int err = 0;

	desc->tfm = s->key.fabric;
	if (s->version >= coop_st_op_since(COOP_ST_RUN)) {
		err = crypto_shash_init(desc);
		if (!err)
			err = crypto_shash_update(desc, label, sizeof(label) - 1);
		if (!err)
			err = crypto_shash_finup(desc, s->run_nonce, sizeof(s->run_nonce), digest);
	} else if (s->key.tfm) {
		err = crypto_shash_digest(desc, old_label, sizeof(old_label) - 1, digest);
	} else {
		/*
		 * Nodes of an older daemon have no secret without a cluster key. So this one takes
		 * a key that nobody else has, and asks and serves nobody.
		 */
		get_random_bytes(digest, sizeof(digest));
	}
	if (!err) {
		spin_lock_bh(&s->lock);
		memcpy(s->fabric_key, digest, sizeof(s->fabric_key));
		spin_unlock_bh(&s->lock);
	}
	memzero_explicit(digest, sizeof(digest));
	shash_desc_zero(desc);
	return err;
}

int coop_key_proof(const struct coop_key *key, const char *role, const struct coop_transcript *t,
		   u8 proof[COOP_ST_PROOF])
{
	const __le16 numbers[] = {cpu_to_le16(t->version_min), cpu_to_le16(t->version_max),
				  cpu_to_le16(t->version), cpu_to_le16((u16)t->flags)};
	const struct {
		const void *p;
		size_t len;
	} parts[] = {
		{role, strlen(role) + 1}, /* with its NUL */
		{t->client_nonce, sizeof(t->client_nonce)},
		{t->server_nonce, sizeof(t->server_nonce)},
		{t->session, sizeof(t->session)},
		{numbers, sizeof(numbers)},
		{t->export_name, strlen(t->export_name)},
	};
	SHASH_DESC_ON_STACK(desc, key->tfm);
	size_t i;
	int err;

	static_assert(DIGEST == COOP_ST_PROOF);
	desc->tfm = key->tfm;
	err = crypto_shash_init(desc);
	for (i = 0; !err && i < ARRAY_SIZE(parts); i++)
		err = crypto_shash_update(desc, parts[i].p, parts[i].len);
	if (!err)
		err = crypto_shash_final(desc, proof);
	shash_desc_zero(desc);
	return err;
}
