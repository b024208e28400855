# SPDX-License-Identifier: MIT
"""Processes that end when the demo does, whichever way that is.

Every process is a child that is known by its handle and asks the kernel for a
signal should the demo die without a word. Servers run in sessions of their own: a
Ctrl-C reaches only the demo, which then takes things down in order.
"""
import contextlib
import ctypes
import os
import signal
import subprocess

from failure import Failure

PR_SET_PDEATHSIG = 1
STOP_S = 10

_libc = ctypes.CDLL(None, use_errno=True)


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def undisturbed():
    """Ending signals wait. Around what must not stop half way: to start something and write down
    that it is there, and to take it away again."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent(number=signal.SIGKILL):
    """A preexec_fn: this signal when the parent ends. None is blocked, whatever the parent does."""
    def prepare():
        _libc.prctl(PR_SET_PDEATHSIG, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    return prepare


def tail(path, lines=8):
    with open(path, encoding="utf-8", errors="replace") as log:
        return "".join("    " + line for line in log.readlines()[-lines:]).rstrip()


class Child:
    """A process with a log, ended by SIGTERM and then, if it must be, SIGKILL."""

    def __init__(self, argv, log, pass_fds=()):
        self.name = os.path.splitext(os.path.basename(log))[0]
        self.log = log
        with open(log, "wb") as out:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                             start_new_session=True, preexec_fn=follow_parent(signal.SIGTERM),
                                             pass_fds=pass_fds)

    def check(self):
        status = self._process.poll()
        if status is not None:
            raise Failure(f"{self.name} ended with status {status}; its last words ({self.log}):\n{tail(self.log)}")

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
                return
