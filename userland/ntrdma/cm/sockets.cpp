// SPDX-License-Identifier: MIT
// sockets.cpp - rsockets, which are not offered: each call fails with EOPNOTSUPP.
//
// The names are here because programs are linked with them, also those that never call them.
#include <cerrno>

#include "userland/ntrdma/cm/manager.hpp"

namespace
{

extern "C" long coop_rsocket_refused()
{
	errno = EOPNOTSUPP;
	return -1;
}

} // namespace

#define REFUSED(name) \
	extern "C" __attribute__((visibility("default"), alias("coop_rsocket_refused"))) long name()
REFUSED(raccept);
REFUSED(rbind);
REFUSED(rclose);
REFUSED(rconnect);
REFUSED(rfcntl);
REFUSED(rgetpeername);
REFUSED(rgetsockname);
REFUSED(rgetsockopt);
REFUSED(riomap);
REFUSED(riounmap);
REFUSED(riowrite);
REFUSED(rlisten);
REFUSED(rpoll);
REFUSED(rread);
REFUSED(rreadv);
REFUSED(rrecv);
REFUSED(rrecvfrom);
REFUSED(rrecvmsg);
REFUSED(rselect);
REFUSED(rsend);
REFUSED(rsendmsg);
REFUSED(rsendto);
REFUSED(rsetsockopt);
REFUSED(rshutdown);
REFUSED(rsocket);
REFUSED(rwrite);
REFUSED(rwritev);
