// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * socket.c - the TCP socket under the storage client.
 *
 * Normal operation: the socket's callbacks only queue the receiver's or the
 * sender's work, which then moves bytes without waiting. Only the handshake waits,
 * with the socket's own timeouts; no other task uses the socket at that time.
 *
 * Recovery: keepalive detects a daemon that is gone while we send nothing,
 * TCP_USER_TIMEOUT one that no longer acknowledges. Both cause a state change,
 * which wakes the receiver, which then sees the error.
 *
 * The socket allocates with GFP_NOFS, because dirty pages may wait for it. Page
 * faults use it in the middle of other sockets' sends, so it stays off the task's
 * page fragment.
 */
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/tcp.h>
#include <net/sock.h>

#include "fs/compat.h"
#include "fs/storage/impl.h"

#define CONNECT_TIME      (5 * HZ)
#define REPLY_TIME        (10 * HZ) /* of one message in the handshake */
#define KEEPALIVE_IDLE_S  10
#define KEEPALIVE_EVERY_S 5
#define KEEPALIVE_COUNT   3
#define USER_TIMEOUT_MS   30000

static void data_ready(struct sock *sk)
{
	struct coop_storage *s;

	read_lock_bh(&sk->sk_callback_lock);
	s = sk->sk_user_data;
	if (s)
		queue_work(s->wq, &s->rx_work);
	read_unlock_bh(&sk->sk_callback_lock);
}

static void write_space(struct sock *sk)
{
	struct coop_storage *s;

	read_lock_bh(&sk->sk_callback_lock);
	s = sk->sk_user_data;
	if (s && sk_stream_is_writeable(sk)) {
		clear_bit(SOCK_NOSPACE, &sk->sk_socket->flags);
		coop_tx_kick(s);
	}
	read_unlock_bh(&sk->sk_callback_lock);
}

/* The connection has ended, or one direction of it: the receiver finds out. */
static void state_change(struct sock *sk)
{
	data_ready(sk);
}

/*
 * No task locks our sockets while it faults in user pages, so lockdep must not apply the order of
 * user sockets (socket, mmap_lock, page cache) to them.
 */
static void own_lock_class(struct sock *sk)
{
	static struct lock_class_key key[2], slock_key[2];
	const bool v6 = sk->sk_family == AF_INET6;

	if (!sock_allow_reclassification(sk))
		return;
	if (v6)
		sock_lock_init_class_and_name(sk, "slock-AF_INET6-COOPFS", &slock_key[1],
					      "sk_lock-AF_INET6-COOPFS", &key[1]);
	else
		sock_lock_init_class_and_name(sk, "slock-AF_INET-COOPFS", &slock_key[0],
					      "sk_lock-AF_INET-COOPFS", &key[0]);
}

int coop_sock_dial(struct coop_storage *s, const struct sockaddr_storage *to, struct socket **out)
{
	const int len = to->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
						  : sizeof(struct sockaddr_in);
	struct sockaddr_storage addr = *to;
	struct socket *sock;
	int err;

	err = sock_create_kern(s->net, to->ss_family, SOCK_STREAM, IPPROTO_TCP, &sock);
	if (err)
		return err;
	own_lock_class(sock->sk);
	coop_sock_hold_net(sock->sk);
	sock->sk->sk_allocation = GFP_NOFS;
	coop_sock_own_frag(sock->sk);
	sock->sk->sk_sndtimeo = CONNECT_TIME;
	sock->sk->sk_rcvtimeo = REPLY_TIME;
	sock_set_keepalive(sock->sk);
	tcp_sock_set_keepidle(sock->sk, KEEPALIVE_IDLE_S);
	tcp_sock_set_keepintvl(sock->sk, KEEPALIVE_EVERY_S);
	tcp_sock_set_keepcnt(sock->sk, KEEPALIVE_COUNT);
	tcp_sock_set_user_timeout(sock->sk, USER_TIMEOUT_MS);
	tcp_sock_set_nodelay(sock->sk);
	mutex_lock(&s->dial_mutex);
	s->dialing = sock;
	mutex_unlock(&s->dial_mutex);
	if (READ_ONCE(s->state) == COOP_STORAGE_CLOSED)
		err = -ESHUTDOWN;
	else
		err = kernel_connect(sock, (struct sockaddr *)&addr, len, 0);
	if (!err) {
		*out = sock;
		return 0;
	}
	mutex_lock(&s->dial_mutex);
	s->dialing = NULL;
	mutex_unlock(&s->dial_mutex);
	sock_release(sock);
	return err == -EINPROGRESS ? -ETIMEDOUT : err;
}

void coop_sock_attach(struct coop_storage *s, struct socket *sock)
{
	struct sock *sk = sock->sk;

	write_lock_bh(&sk->sk_callback_lock);
	s->born.data_ready = sk->sk_data_ready;
	s->born.write_space = sk->sk_write_space;
	s->born.state_change = sk->sk_state_change;
	sk->sk_user_data = s;
	sk->sk_data_ready = data_ready;
	sk->sk_write_space = write_space;
	sk->sk_state_change = state_change;
	write_unlock_bh(&sk->sk_callback_lock);
}

void coop_sock_release(struct coop_storage *s, struct socket *sock)
{
	struct sock *sk = sock->sk;

	write_lock_bh(&sk->sk_callback_lock);
	if (sk->sk_user_data == s) {
		sk->sk_user_data = NULL;
		sk->sk_data_ready = s->born.data_ready;
		sk->sk_write_space = s->born.write_space;
		sk->sk_state_change = s->born.state_change;
	}
	write_unlock_bh(&sk->sk_callback_lock);
	kernel_sock_shutdown(sock, SHUT_RDWR);
	sock_release(sock);
}

int coop_sock_send(struct coop_storage *s, struct socket *sock, struct iov_iter *iter, int flags)
{
	struct msghdr msg = {.msg_flags = flags | MSG_NOSIGNAL, .msg_iter = *iter};
	int n = sock_sendmsg(sock, &msg);

	if (n > 0) {
		iov_iter_advance(iter, n);
		coop_count(s->stats, COOP_C_STORAGE_TX_BYTES, n);
	}
	return n;
}

int coop_sock_recv(struct coop_storage *s, struct socket *sock, struct iov_iter *iter, int flags)
{
	struct msghdr msg = {.msg_flags = flags | MSG_NOSIGNAL, .msg_iter = *iter};
	int n = sock_recvmsg(sock, &msg, msg.msg_flags);

	if (n > 0) {
		iov_iter_advance(iter, n);
		coop_count(s->stats, COOP_C_STORAGE_RX_BYTES, n);
	}
	return n;
}
