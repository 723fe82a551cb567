"""Reaps processes that nobody else waits for, as the first process of a container must.

Children of a worker that has died become children of the container's first process.
"""

import os
from collections.abc import Callable, Collection
from contextlib import suppress

INIT = 1


def is_init() -> bool:
    return os.getpid() == INIT


def reap(own: Callable[[], Collection[int]]) -> int:
    """Reaps all children that have ended, but for those of `own`; returns how many.

    One of `own` that has ended hides others until it is reaped: then call it again.
    """
    reaped = 0
    with suppress(ChildProcessError):  # there is none
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own():
                break
            os.waitpid(ended.si_pid, 0)
            reaped += 1
    return reaped
