"""What a channel does where its picker fails: the backends are picked in turn.

A picker of the application may raise, or return what is no backend in `ready`. It is
asked again for the next call, so it may fail thousands of times a second.
"""

from collections.abc import Sequence

from lbclient.core.counting.line_limit import LineLimit
from lbclient.core.protocols import N
from lbclient.core.text import brief
from lbclient.log import Log

logger = Log("lbclient.balancer")  # as documented, for the whole channel


class FailedPicks:
    """Picks in turn where the channel's picker failed, and logs that it did. Owned by
    a balancer."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._turn = 0
        self._limit = LineLimit()

    def pick(self, ready: Sequence[N], now: float) -> N:
        """As a picker."""
        self._turn += 1
        return ready[self._turn % len(ready)]

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        return ()

    def raised(self, error: BaseException, now: float) -> None:
        """The picker raised, or the balancer did for what the picker had returned."""
        if isinstance(error, AttributeError) and _is_of_balancer(error):
            self.returned(error.obj, now)
            return
        self._log("picker raised", error, now, error)

    def returned(self, picked: object, now: float) -> None:
        """The picker returned what is not in `ready`."""
        self._log(f"picker returned {brief(picked)}, which is not in `ready`", "", now)

    def _log(
        self, what: str, reason: object, now: float, error: BaseException | None = None
    ) -> None:
        left_out = self._limit.take(now)
        if left_out is None:
            return
        words = "%s: %s; falling back to round robin"
        arguments: list[object] = [self._label, what]
        if left_out:
            words += "; %d more times since this was last logged"
            arguments.append(left_out)
        label = self._label
        reason = reason or what
        logger.error(words, *arguments, channel=label, reason=reason, exc_info=error)

    def __repr__(self) -> str:
        return f"<failed picks: {self._limit!r}>"


def _is_of_balancer(error: AttributeError) -> bool:
    """Whether this is the balancer's own error, as what was picked has no channel: it
    passed no other function."""
    passed = error.__traceback__
    return error.name == "channel" and passed is not None and passed.tb_next is None
