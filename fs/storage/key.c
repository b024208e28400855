// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * key.c - keys derived from the cluster key.
 *
 * The cluster key is used for derivation only, with one label for each purpose, so
 * that no proof is valid for another purpose. The derived storage key stays in the
 * transform for the life of the mount, because a reconnect must not need to
 * allocate; the cluster key stays with the mount's options.
 */
#include <crypto/hash.h>
#include <linux/module.h>

#include "fs/storage/impl.h"

MODULE_SOFTDEP("pre: hmac sha256");

#define DIGEST 32

int coop_key_init(struct coop_key *key, const u8 *cluster_key, u32 len)
{
	static const char for_fabric[] = "coopfs fabric 1", for_storage[] = "coopfs storage 1";
	u8 digest[DIGEST];
	int err;

	memset(key, 0, sizeof(*key));
	if (!cluster_key)
		return 0;
	key->tfm = crypto_alloc_shash("hmac(sha256)", 0, 0);
	if (IS_ERR(key->tfm)) {
		err = PTR_ERR(key->tfm);
		key->tfm = NULL;
		return err;
	}
	err = crypto_shash_setkey(key->tfm, cluster_key, len);
	if (!err)
		err = crypto_shash_tfm_digest(key->tfm, for_fabric, sizeof(for_fabric) - 1, digest);
	if (err)
		goto err_tfm;
	memcpy(key->fabric, digest, sizeof(key->fabric));
	err = crypto_shash_tfm_digest(key->tfm, for_storage, sizeof(for_storage) - 1, digest);
	if (!err)
		err = crypto_shash_setkey(key->tfm, digest, sizeof(digest));
	if (err)
		goto err_tfm;
	memzero_explicit(digest, sizeof(digest));
	return 0;

err_tfm:
	memzero_explicit(digest, sizeof(digest));
	coop_key_free(key);
	return err;
}

void coop_key_free(struct coop_key *key)
{
	crypto_free_shash(key->tfm); /* wipes it; NULL is fine */
	memzero_explicit(key, sizeof(*key));
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
