// SPDX-License-Identifier: MIT
// paths.cpp - the device's file, for programs that look for it before they ask for the device.
//
// UCX takes a device only if /dev/infiniband has its file. There is none, since nothing is in the
// kernel; in programs that coop-verbs runs, questions about just that path are answered as for
// /dev/null. All other paths reach the kernel unchanged.
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace
{

const char *real(const char *path)
{
	return path && !std::strcmp(path, "/dev/infiniband/ntrdma0") ? "/dev/null" : path;
}

} // namespace

extern "C" __attribute__((visibility("default"))) int stat(const char *path, struct stat *out)
{
	return fstatat(AT_FDCWD, real(path), out, 0);
}

extern "C" __attribute__((visibility("default"))) int access(const char *path, int mode)
{
	return static_cast<int>(syscall(SYS_faccessat, AT_FDCWD, real(path), mode));
}
