"""Runs jobs one by one; others may cancel the present one."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from lbclient.background.tasks import leaving_no_trace, until_one_ends


class Interruptible:
    """Runs jobs one after the other; others may interrupt the present job. Owned by the
    task that runs them."""

    def __init__(self) -> None:
        self._job: asyncio.Task[None] | None = None  # the last one
        self._failure: BaseException | None = None

    def has_begun(self) -> bool:
        """Whether there ever was a job."""
        return self._job is not None

    async def run(self, job: Coroutine[Any, Any, None]) -> None:
        """Returns when it has ended or was interrupted.

        Raises what made it end, or what it was interrupted with. Ends the job if the
        caller is cancelled. A CancelledError that nobody asked for is raised.
        """
        self._job = leaving_no_trace(job)
        try:
            await _until_ended(self._job)
        finally:
            # Also where the job failed by itself: the next one did not cause it.
            failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            failure = None  # or it and this frame would keep each other

    def interrupt(self, failure: BaseException | None = None) -> None:
        """Ends the job that runs, if one does."""
        if failure is not None:
            self._failure = failure
        if self._job is not None:
            self._job.cancel()

    def __repr__(self) -> str:
        is_running = self._job is not None and not self._job.done()
        return f"<{'running' if is_running else 'not running'}>"


async def _until_ended(job: asyncio.Task[None]) -> None:
    try:
        await until_one_ends(job)
    finally:
        if not job.done():
            job.cancel()
            await asyncio.wait((job,))
        if not job.cancelled():
            # Retrieved, also where the caller is cancelled as the job fails: a health
            # check that is due as its connection is closed.
            job.exception()
    if not (job.cancelled() and job.cancelling()):
        job.result()
