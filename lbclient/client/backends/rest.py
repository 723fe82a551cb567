"""Stops the periodic work of a channel that nobody calls.

Some parts of a channel look at intervals: what its connections are used for, what
requests cost, how large its subset is to be. Without calls they find nothing, and a
process may have a thousand channels. So they stop, and the next call has each of them
look once before it is sent, as if they never had.
"""

from collections.abc import Callable

from lbclient.background.tasks import Tasks


class Rest:
    """Whether a channel rests, as nobody calls it. Owned by a balancer: its next pick
    ends the rest, and so does any change of a backend.

    `Idleness` begins it. The others ask `is_on` before they set their next timer, and
    have given `looks` what is to be done when it ends.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.is_on = False
        self.looks: list[Callable[[], None]] = []
        self._tasks = tasks

    def begin(self) -> None:
        self.is_on = True

    def end(self) -> None:
        """What fails is logged and counted: a call waits for this."""
        self.is_on = False
        for look in self.looks:
            self._tasks.attempt(look)

    def __repr__(self) -> str:
        return f"<{'at rest' if self.is_on else 'in use'}>"
