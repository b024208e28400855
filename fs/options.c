// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * options.c - the mount options, checked before anything is started.
 *
 * One table has a row for each option: its value, the option that it needs, where
 * its value is stored, and whether a remount may change it. Parsing, checking,
 * comparing and listing all use that table, so they cannot disagree. An option that
 * is unknown, out of range, given twice or without effect is refused by name; none
 * is silently ignored. The option names are those of the FUSE variant.
 *
 * The kernel does not resolve host names: mount.coopfs does, passes numeric
 * addresses as server_addr=, and reads the key (key_data, binary). A direct call of
 * mount(2) needs numeric addresses; the key file is then read here, with the
 * caller's rights.
 */
#include <linux/cred.h>
#include <linux/ctype.h>
#include <linux/fs_parser.h>
#include <linux/inet.h>
#include <linux/kernel_read_file.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <net/ipv6.h>

#include "fs/fs.h"

#define COOP_DEFAULT_PORT  17430
#define COOP_KEY_MIN       32
#define COOP_EXPORT_MAX    COOP_ST_TEXT_MAX
#define COOP_READAHEAD_MAX 65536

enum coop_option_kind { NUMBER, BIT, FLAG, TEXT, MTU, ADDRESS, DEVICE, LOCAL, AUTO };

struct coop_option {
	const char *name;
	const char *takes; /* NULL: no value */
	const char *needs;
	u32 min, max;
	u16 offset; /* in coop_options: u32, bool, char * or the type of the kind */
	u8 kind;
	bool value;   /* FLAG: the value that it sets */
	bool tunable; /* a remount may change it */
	bool hidden;  /* an alias: another row shows the value */
	bool secret;  /* not in /proc/mounts, which all users can read */
	bool hex;
	u32 unset; /* NUMBER: do not show this value */
};

struct coop_parsed {
	struct coop_options opt; /* first: fs_private is also used as coop_options */
	u64 given;               /* a bit per row of the table */
	bool remount;
};

#define AT(member)  .offset = offsetof(struct coop_options, member)
#define NEVER_UNSET .unset = U32_MAX

static const struct coop_option table[] = {
	{"readahead", "0 to 65536 pages", NULL, 0, COOP_READAHEAD_MAX, AT(readahead),
	 .kind = NUMBER, .tunable = true, NEVER_UNSET},
	{"commit_on_close", "0 or 1", NULL, 0, 1, AT(commit_on_close), .kind = BIT},
	{"ra_async", "0 or 1", NULL, 0, 1, AT(ra_async), .kind = BIT, .tunable = true},
	{"ra_sync", "0 or 1, as ra_async", NULL, 0, 1, AT(ra_async), .kind = BIT, .tunable = true,
	 .hidden = true},
	{"key", "cluster key file", NULL, 0, 0, AT(key_name), .kind = TEXT},
	{"server_addr", "numeric addresses of the servers, ADDR[:PORT][+ADDR...]", NULL, 0, 0,
	 AT(server_addr), .kind = TEXT},
	{"hard", NULL, NULL, 0, 0, AT(soft), .kind = FLAG, .value = false, .tunable = true},
	{"soft", NULL, NULL, 0, 0, AT(soft), .kind = FLAG, .value = true, .tunable = true},
	{"timeo", "1 to 36000 tenths of a second", "soft", 1, 36000, AT(timeo_ds), .kind = NUMBER,
	 .tunable = true, NEVER_UNSET},
	{"local_lock", "none, flock, posix or all", NULL, 0, 0, AT(local_lock), .kind = LOCAL},
	{"strict", NULL, NULL, 0, 0, AT(strict), .kind = FLAG, .value = true},
	{"nolease", NULL, NULL, 0, 0, AT(nolease), .kind = FLAG, .value = true},
	{"bundles", "auto or off", NULL, 0, 0, AT(bundles), .kind = AUTO},
	{"ib", NULL, NULL, 0, 0, AT(ib), .kind = FLAG, .value = true},
	{"ib_copy", NULL, "ib", 0, 0, AT(node.copy), .kind = FLAG, .value = true},
	{"ib_devname", "RDMA device (default: the first with an active port)", "ib", 0, 0,
	 AT(node.devname), .kind = DEVICE},
	{"ib_port", "1 to 255", "ib_devname", 1, 255, AT(node.port), .kind = NUMBER},
	{"ib_gid", "GID index, 0 to 255", "ib_devname", 0, 255, AT(node.gid_index), .kind = NUMBER,
	 NEVER_UNSET},
	{"ib_sl", "0 to 15", "ib", 0, 15, AT(node.sl), .kind = NUMBER, NEVER_UNSET},
	{"ib_tclass", "0 to 255", "ib", 0, 255, AT(node.tclass), .kind = NUMBER, NEVER_UNSET},
	{"ib_pkey", "the P_Key of a partition, 1 to 0xffff", "ib", 1, 0xffff, AT(node.pkey),
	 .kind = NUMBER, .hex = true},
	{"ib_qkey", "1 to 0xffffffff", "ib", 1, U32_MAX, AT(node.qkey), .kind = NUMBER, .hex = true,
	 .secret = true},
	{"ib_mtu", "256, 512, 1024, 2048 or 4096", "ib", 0, 0, AT(node.mtu), .kind = MTU},
	{"ib_num_rrpc", "1 to 1024 queue pairs to serve peers from", "ib", 1, 1024,
	 AT(node.num_rrpc), .kind = NUMBER},
	{"ib_num_srpc", "1 to 1024 requests in flight", "ib", 1, 1024, AT(node.num_srpc),
	 .kind = NUMBER},
	{"ib_engines", "1 to 8 engines that share the work", "ib", 1, COOP_SHARDS, AT(engines),
	 .kind = NUMBER},
	{"peer_timeout_ms", "1 to 10000", "ib", 1, 10000, AT(node.peer_timeout_ms), .kind = NUMBER,
	 .tunable = true},
	{"tree", "auto or off", "ib", 0, 0, AT(tree), .kind = AUTO},
	{"forward", "0 or 1", "ib", 0, 1, AT(forward), .kind = BIT},
	{"wait_timeout_ms", "1 to 60000", "ib", 1, 60000, AT(wait_timeout_ms), .kind = NUMBER},
	{"addr", "an IPv4 or IPv6 address of this machine: its GID is used", "ib", 0, 0,
	 AT(node.addr), .kind = ADDRESS},
	{"page_crc", "0 or 1", "ib", 0, 1, AT(node.page_crc), .kind = BIT},
	{"page_mac", "0 or 1", "ib", 0, 1, AT(node.page_mac), .kind = BIT},
	{"serve_mbps", "0 to 34359 megabits per second, 0 for no limit", "ib", 0,
	 COOP_SERVE_MBPS_MAX, AT(node.serve_mbps), .kind = NUMBER, .tunable = true, NEVER_UNSET},
};

/* Values of 'local_lock', indexed by their bits (enum coop_local_lock). */
static const char *const local_locks[] = {"none", "flock", "posix", "all"};

/* Options of the FUSE variant without a meaning here. */
static const struct {
	const char *name, *why;
} foreign[] = {
	{"cache_size", "the kernel sizes its page cache itself"},
	{"keep_copies", "there is no other copy than the page cache's"},
	{"allow_other", "a kernel mount admits all users that the file modes permit"},
	{"default_permissions", "the kernel always checks the file modes"},
};

static void *field_of(struct coop_options *opt, const struct coop_option *o)
{
	return (u8 *)opt + o->offset;
}

static size_t field_size(const struct coop_option *o)
{
	switch ((enum coop_option_kind)o->kind) {
	case NUMBER:
	case MTU:
	case LOCAL:
		return sizeof(u32);
	case BIT:
	case FLAG:
	case AUTO:
		return sizeof(bool);
	case ADDRESS:
		return sizeof_field(struct coop_options, node.addr);
	case DEVICE:
		return COOP_DEVNAME_MAX;
	case TEXT:
		break;
	}
	return sizeof(char *);
}

static bool option_in_force(const struct coop_options *opt, const char *needs)
{
	if (!needs)
		return true;
	if (!strcmp(needs, "soft"))
		return opt->soft;
	return opt->ib && (!strcmp(needs, "ib") || opt->node.devname[0]);
}

/* ---- values ---------------------------------------------------------------- */

/* A number, with an optional K, M, G or T (powers of 1024). */
static int parse_number(const struct coop_option *o, const char *text, u32 *out)
{
	char *end;
	u64 n = memparse(text, &end);

	if (!isdigit(*text) || *end || n < o->min || n > o->max)
		return -EINVAL;
	*out = n;
	return 0;
}

static int parse_address(const char *text, size_t len, u8 out[16])
{
	const char *end;

	if (in4_pton(text, len, out + 12, -1, &end) && end == text + len) {
		memset(out, 0, 10);
		out[10] = 0xff;
		out[11] = 0xff;
		return 0;
	}
	return in6_pton(text, len, out, -1, &end) && end == text + len ? 0 : -EINVAL;
}

static int parse_value(const struct coop_option *o, const char *text, struct coop_options *opt)
{
	void *field = field_of(opt, o);
	u32 n;

	switch ((enum coop_option_kind)o->kind) {
	case NUMBER:
		return parse_number(o, text, field);
	case BIT:
		if ((text[0] != '0' && text[0] != '1') || text[1])
			return -EINVAL;
		*(bool *)field = text[0] == '1';
		return 0;
	case FLAG:
		*(bool *)field = o->value;
		return 0;
	case MTU:
		if (kstrtou32(text, 10, &n) || n < 256 || n > 4096 || n & (n - 1))
			return -EINVAL;
		*(u32 *)field = n;
		return 0;
	case LOCAL:
		for (n = 0; n < ARRAY_SIZE(local_locks); n++)
			if (!strcmp(text, local_locks[n])) {
				*(u32 *)field = n;
				return 0;
			}
		return -EINVAL;
	case AUTO:
		*(bool *)field = !strcmp(text, "auto");
		return !strcmp(text, "auto") || !strcmp(text, "off") ? 0 : -EINVAL;
	case ADDRESS:
		return parse_address(text, strlen(text), field);
	case DEVICE:
		return *text && strscpy(field, text, COOP_DEVNAME_MAX) > 0 ? 0 : -EINVAL;
	case TEXT:
		if (!*text)
			return -EINVAL;
		kfree(*(char **)field);
		*(char **)field = kstrdup(text, GFP_KERNEL);
		return *(char **)field ? 0 : -ENOMEM;
	}
	return -EINVAL;
}

static int parse_key_data(struct fs_context *fc, const struct fs_parameter *param,
			  struct coop_options *opt)
{
	if (param->type != fs_value_is_blob || param->size < COOP_KEY_MIN ||
	    param->size > COOP_KEY_MAX)
		return invalfc(fc, "option 'key_data' takes the %u to %u bytes of a key file",
			       COOP_KEY_MIN, COOP_KEY_MAX);
	kfree_sensitive(opt->key);
	opt->key = kmemdup(param->blob, param->size, GFP_KERNEL);
	opt->key_len = opt->key ? param->size : 0;
	return opt->key ? 0 : -ENOMEM;
}

/*
 * Options of every mount that the VFS does not take itself, and that have no effect here: storage
 * keeps the times and versions of files.
 */
static const char *const idle[] = {
	"defaults",    "relatime",      "norelatime", "atime",      "diratime", "nodiratime",
	"strictatime", "nostrictatime", "iversion",   "noiversion", "silent",   "loud",
};

/* Options in fstab that other programs read, or that need nothing. */
static bool is_for_others(const char *name)
{
	return !strcmp(name, "_netdev") || !strncmp(name, "x-", 2) ||
	       match_string(idle, ARRAY_SIZE(idle), name) >= 0;
}

int coop_options_parse(struct fs_context *fc, struct fs_parameter *param)
{
	struct coop_parsed *parsed = fc->fs_private;
	const struct coop_option *o;
	u32 i;
	int err;

	if (!strcmp(param->key, "source"))
		return -ENOPARAM; /* the VFS stores it */
	if (!strcmp(param->key, "key_data"))
		return parse_key_data(fc, param, &parsed->opt);
	if (is_for_others(param->key))
		return 0;
	for (i = 0; i < ARRAY_SIZE(foreign); i++)
		if (!strcmp(param->key, foreign[i].name))
			return invalfc(fc, "option '%s' is not for the kernel module: %s",
				       foreign[i].name, foreign[i].why);
	for (i = 0; i < ARRAY_SIZE(table) && strcmp(table[i].name, param->key); i++)
		;
	if (i == ARRAY_SIZE(table))
		return invalfc(fc, "option '%s' is unknown; coopfs(5) lists all options",
			       param->key);
	o = &table[i];
	/* A remount repeats the present options before the new ones. */
	if (parsed->given & BIT_ULL(i) && !parsed->remount)
		return invalfc(fc, "option '%s' is given twice", o->name);
	parsed->given |= BIT_ULL(i);
	if (!o->takes && param->type != fs_value_is_flag)
		return invalfc(fc, "option '%s' takes no value", o->name);
	if (o->takes && param->type != fs_value_is_string)
		return invalfc(fc, "option '%s' needs a value: %s=%s", o->name, o->name, o->takes);
	err = parse_value(o, param->type == fs_value_is_string ? param->string : "", &parsed->opt);
	if (err == -EINVAL)
		return invalfc(fc, "option '%s': '%s' is invalid, the option takes %s", o->name,
			       param->string, o->takes);
	return err;
}

/* ---- source and servers ----------------------------------------------------- */

static const char *find_last(const char *text, size_t len, char c)
{
	while (len--)
		if (text[len] == c)
			return text + len;
	return NULL;
}

static int server_add(struct coop_options *opt, const char *host, size_t len)
{
	struct sockaddr_storage *to = &opt->server[opt->n_servers];
	const char *port = find_last(host, len, ':'), *close = find_last(host, len, ']');
	char text[INET6_ADDRSTRLEN + 1];
	u16 number = COOP_DEFAULT_PORT;
	u8 addr[16];

	if (opt->n_servers == COOP_SERVERS_MAX)
		return -E2BIG;
	if (close && port < close)
		port = NULL;
	if (port) {
		const size_t digits = host + len - port - 1;

		if (!digits || digits > 5)
			return -EINVAL;
		memcpy(text, port + 1, digits);
		text[digits] = 0;
		if (kstrtou16(text, 10, &number) || !number)
			return -EINVAL;
		len = port - host;
	}
	if (len > 2 && host[0] == '[' && host[len - 1] == ']') {
		host++;
		len -= 2;
	} else if (memchr(host, ':', len)) {
		return -EINVAL;
	}
	if (!len || len >= sizeof(text) || parse_address(host, len, addr))
		return -EINVAL;
	memset(to, 0, sizeof(*to));
	if (ipv6_addr_v4mapped((struct in6_addr *)addr)) {
		struct sockaddr_in *in = (struct sockaddr_in *)to;

		in->sin_family = AF_INET;
		in->sin_port = htons(number);
		memcpy(&in->sin_addr, addr + 12, 4);
	} else {
		struct sockaddr_in6 *in = (struct sockaddr_in6 *)to;

		in->sin6_family = AF_INET6;
		in->sin6_port = htons(number);
		memcpy(&in->sin6_addr, addr, 16);
	}
	opt->n_servers++;
	return 0;
}

static int servers_parse(struct fs_context *fc, struct coop_options *opt, const char *text,
			 size_t len, const char *what)
{
	const char *end = text + len;

	opt->n_servers = 0;
	for (;;) {
		size_t n = 0;
		int err;

		while (text + n < end && text[n] != ',' && text[n] != '+')
			n++;
		err = server_add(opt, text, n);
		if (err == -E2BIG)
			return invalfc(fc, "%s: more than %u servers", what, COOP_SERVERS_MAX);
		if (err)
			return invalfc(fc,
				       "%s: '%.*s' is not ADDR, ADDR:PORT or [IPV6]:PORT; "
				       "mount.coopfs resolves names: install it",
				       what, (int)n, text);
		text += n;
		if (text == end)
			return 0;
		text++;
	}
}

static int source_parse(struct fs_context *fc, struct coop_options *opt)
{
	const char *slash;

	if (!fc->source)
		return invalfc(fc, "no source: write SERVER[:PORT][,SERVER...]:/EXPORT");
	slash = strstr(fc->source, ":/");
	if (!slash || slash == fc->source)
		return invalfc(fc, "source '%s': write SERVER[:PORT][,SERVER...]:/EXPORT",
			       fc->source);
	if (strlen(slash + 1) > COOP_EXPORT_MAX)
		return invalfc(fc, "source: the export's name is longer than %u bytes",
			       COOP_EXPORT_MAX);
	kfree(opt->source);
	kfree(opt->export_name);
	opt->source = kstrdup(fc->source, GFP_KERNEL);
	opt->export_name = kstrdup(slash + 1, GFP_KERNEL);
	if (!opt->source || !opt->export_name)
		return -ENOMEM;
	if (opt->server_addr)
		return servers_parse(fc, opt, opt->server_addr, strlen(opt->server_addr),
				     "option 'server_addr'");
	return servers_parse(fc, opt, fc->source, slash - fc->source, "source");
}

/* ---- the key ---------------------------------------------------------------- */

/* The same rules as in user space: a key that other users can read is refused. */
static const char *key_wrong(const struct inode *inode)
{
	if (!S_ISREG(inode->i_mode))
		return "it is not a regular file";
	if (!uid_eq(inode->i_uid, GLOBAL_ROOT_UID) && !uid_eq(inode->i_uid, current_fsuid()))
		return "it belongs to another user; give it to root";
	if (inode->i_mode & 077)
		return "others can read it; chmod 600 it";
	if (i_size_read(inode) < COOP_KEY_MIN || i_size_read(inode) > COOP_KEY_MAX)
		return "its size must be 32 to 4096 bytes";
	return NULL;
}

static int key_read(struct fs_context *fc, struct coop_options *opt)
{
	struct file *file = filp_open(opt->key_name, O_RDONLY, 0);
	void *buf = NULL;
	const char *wrong;
	ssize_t n;

	if (IS_ERR(file)) {
		errorfc(fc, "option 'key': %s: error %ld", opt->key_name, PTR_ERR(file));
		return PTR_ERR(file);
	}
	wrong = key_wrong(file_inode(file));
	n = wrong ? -EACCES : kernel_read_file(file, 0, &buf, COOP_KEY_MAX, NULL, READING_UNKNOWN);
	fput(file);
	if (!wrong && n >= 0 && n < COOP_KEY_MIN)
		n = -EIO;
	if (n >= 0)
		opt->key = kmemdup(buf, n, GFP_KERNEL);
	if (buf) {
		memzero_explicit(buf, max_t(ssize_t, n, 0));
		vfree(buf);
	}
	if (n < 0) {
		errorfc(fc, "option 'key': %s: %s", opt->key_name, wrong ?: "cannot be read");
		return n;
	}
	opt->key_len = n;
	return opt->key ? 0 : -ENOMEM;
}

/* ---- the whole table -------------------------------------------------------- */

static int dup_text(char **text)
{
	if (*text)
		*text = kstrdup(*text, GFP_KERNEL);
	return *text ? 0 : -ENOMEM;
}

/* now: the present options, for a remount; NULL for a new mount. */
int coop_options_begin(struct fs_context *fc, const struct coop_options *now)
{
	struct coop_parsed *parsed = kzalloc(sizeof(*parsed), GFP_KERNEL);
	struct coop_options *opt;
	int err = 0;

	if (!parsed)
		return -ENOMEM;
	fc->fs_private = parsed;
	opt = &parsed->opt;
	if (!now) {
		opt->readahead = 256;
		opt->ra_async = true;
		opt->commit_on_close = true;
		opt->timeo_ds = 600;
		opt->node.gid_index = -1;
		opt->node.qkey = 0x1c00b;
		opt->node.num_rrpc = 64;
		opt->node.num_srpc = 64;
		opt->engines = 1;
		opt->node.peer_timeout_ms = 200;
		opt->tree = true;
		opt->bundles = true;
		opt->forward = true;
		opt->wait_timeout_ms = 2000;
		return 0;
	}
	parsed->remount = true;
	*opt = *now;
	opt->key = NULL;
	opt->key_len = 0;
	if (dup_text(&opt->source))
		err = -ENOMEM;
	if (dup_text(&opt->export_name))
		err = -ENOMEM;
	if (now->key_name && dup_text(&opt->key_name))
		err = -ENOMEM;
	if (now->server_addr && dup_text(&opt->server_addr))
		err = -ENOMEM;
	return err;
}

int coop_options_end(struct fs_context *fc)
{
	struct coop_parsed *parsed = fc->fs_private;
	struct coop_options *opt = &parsed->opt;
	u32 i;
	int err;

	for (i = 0; i < ARRAY_SIZE(table); i++)
		if (parsed->given & BIT_ULL(i) && !parsed->remount &&
		    !option_in_force(opt, table[i].needs))
			return invalfc(fc, "option '%s' has no effect without '%s'", table[i].name,
				       table[i].needs);
	if (opt->node.gid_index >= 0 && memchr_inv(opt->node.addr, 0, sizeof(opt->node.addr)))
		return invalfc(fc, "options 'addr' and 'ib_gid' both choose the GID: give one");
	if (parsed->remount)
		return 0;
	err = source_parse(fc, opt);
	if (!err && opt->key_name && !opt->key)
		err = key_read(fc, opt);
	return err;
}

int coop_options_compare(struct fs_context *fc, const struct coop_options *old)
{
	struct coop_options *opt = fc->fs_private;
	u32 i;

	for (i = 0; i < ARRAY_SIZE(table); i++) {
		const struct coop_option *o = &table[i];
		const void *a = (const u8 *)old + o->offset, *b = field_of(opt, o);
		bool same;

		if (o->kind == TEXT)
			same = !strcmp(*(char *const *)a ?: "", *(char *const *)b ?: "");
		else
			same = !memcmp(a, b, field_size(o));
		if (same)
			continue;
		if (o->tunable && !option_in_force(opt, o->needs))
			return invalfc(fc, "option '%s' has no effect without '%s'", o->name,
				       o->needs);
		if (!o->tunable)
			return invalfc(fc,
				       "option '%s' cannot be changed by a remount: unmount, and "
				       "mount again",
				       o->name);
	}
	if (opt->key && (opt->key_len != old->key_len || memcmp(opt->key, old->key, opt->key_len)))
		return invalfc(fc,
			       "the key cannot be changed by a remount: unmount, and mount again");
	if (fc->source && strcmp(fc->source, old->source))
		return invalfc(fc, "the source cannot be changed by a remount");
	return 0;
}

static void show_one(struct seq_file *m, const struct coop_option *o,
		     const struct coop_options *opt, char separator)
{
	const void *field = (const u8 *)opt + o->offset;
	const bool lines = separator == '\n';
	char text[INET6_ADDRSTRLEN + 1];
	const char *value = text;
	u32 n;

	text[0] = 0;
	switch ((enum coop_option_kind)o->kind) {
	case NUMBER:
	case MTU:
		n = *(const u32 *)field;
		if (n == o->unset)
			return;
		snprintf(text, sizeof(text), o->hex ? "0x%08x" : "%u", n);
		break;
	case BIT:
		snprintf(text, sizeof(text), "%u", *(const bool *)field);
		break;
	case FLAG:
		if (*(const bool *)field != o->value)
			return;
		value = lines ? "yes" : NULL;
		break;
	case ADDRESS:
		if (!memchr_inv(field, 0, 16))
			return;
		if (ipv6_addr_v4mapped(field))
			snprintf(text, sizeof(text), "%pI4", (const u8 *)field + 12);
		else
			snprintf(text, sizeof(text), "%pI6c", field);
		break;
	case DEVICE:
		value = field;
		break;
	case LOCAL:
		value = local_locks[*(const u32 *)field];
		break;
	case AUTO:
		value = *(const bool *)field ? "auto" : "off";
		break;
	case TEXT:
		value = *(char *const *)field ?: "";
		break;
	}
	if (value && !*value)
		return;
	if (lines)
		seq_printf(m, "%s=%s\n", o->name, value);
	else
		seq_show_option(m, o->name, value);
}

void coop_options_show(struct seq_file *m, const struct coop_options *opt, char separator)
{
	u32 i;

	for (i = 0; i < ARRAY_SIZE(table); i++)
		if (!table[i].hidden && !(table[i].secret && separator == ',') &&
		    option_in_force(opt, table[i].needs))
			show_one(m, &table[i], opt, separator);
}

void coop_options_free(struct coop_options *opt)
{
	kfree(opt->source);
	kfree(opt->export_name);
	kfree(opt->key_name);
	kfree(opt->server_addr);
	kfree_sensitive(opt->key);
	memset(opt, 0, sizeof(*opt));
}
