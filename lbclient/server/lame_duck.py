"""How a task leaves: it goes on serving until its clients have gone elsewhere.

Clients learn of it within a round trip, but what they had sent by then still
arrives; so a moment without a request is not the end, only a quiet while is (SRE
book, ch. 20).
"""

import asyncio

from lbclient.protocols import Clock
from lbclient.server.monitor import LoadMonitor

POLL_INTERVAL = 0.02  # seconds; fine enough for any sensible lame_duck_quiet


async def until_quiet(
    monitor: LoadMonitor, quiet: float, period: float, clock: Clock
) -> bool:
    """Waits until there was no request for `quiet`, at most for `period`.

    False if the time ran out.
    """
    now = quiet_since = clock()
    give_up_at = now + period
    begun = monitor.begun
    while monitor.active or now - quiet_since < quiet:
        if now >= give_up_at:
            return False
        await asyncio.sleep(min(POLL_INTERVAL, give_up_at - now))
        now = clock()
        if monitor.active or monitor.begun != begun:
            begun = monitor.begun
            quiet_since = now
    return True
