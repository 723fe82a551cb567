"""Paces new connections: a channel begins only a few handshakes at a time.

A client that starts, or whose resolver returns a new fleet, opens its whole subset, and
its siblings do so at the same time. A handshake costs a backend more than a request.
"""

import asyncio
from random import Random

from lbclient.core.backoff import jittered

AT_ONCE = 8  # connections begun together; a subset of 20 is begun within 0.2 s
HOLD = 0.1  # seconds, jittered by a half; most handshakes take less


class ConnectPacer:
    """Begins at most `AT_ONCE` connections in `HOLD`. One for each channel.

    A turn is over after that time however the connection fares: eight backends that
    do not answer must not keep the others waiting.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def wait_turn(self) -> None:
        await self._turns.acquire()
        hold = jittered(HOLD, self._rng)
        asyncio.get_running_loop().call_later(hold, self._turns.release)
