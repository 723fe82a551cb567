"""One deadline for an HTTP request, whatever calls it takes."""

import asyncio
from typing import Annotated

from fastapi import Depends, Header, HTTPException

LONGEST = 2.0  # seconds; a user who waits longer has left


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._clock = asyncio.get_running_loop().time
        self._at = self._clock() + seconds

    def left(self) -> float:
        """Seconds for the next call. Without any the request ends, and calls nobody."""
        left = self._at - self._clock()
        if left <= 0.0:
            raise HTTPException(504, "no time left")
        return left


async def start(
    x_timeout: Annotated[float, Header(gt=0, le=LONGEST)] = LONGEST,
) -> Deadline:
    """From now on; a client may ask for less time by the header X-Timeout."""
    return Deadline(x_timeout)


RequestDeadline = Annotated[Deadline, Depends(start)]
