"""Sends the probes that a picker wants, as Prequal does, in the background.

A picker wants probes: no call waits for them, and answers are for later picks.
"""

from functools import partial
from typing import TYPE_CHECKING, cast

from lbclient import wire
from lbclient.background.tasks import is_fatal
from lbclient.client.backends.health_calls import HealthCalls
from lbclient.core.counting.line_limit import LineLimit
from lbclient.core.protocols import Clock, Picker, ProbingPicker
from lbclient.log import Log

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

logger = Log(__name__)


class Probing:
    """Sends the probes that a picker wants. Owned by a balancer. `wanted` is the
    picker's own list; while it is empty nobody need call `ask`."""

    def __init__(self, label: str, picker: Picker, clock: Clock) -> None:
        self.serve(picker)
        self.sent = 0
        self._label = label
        self._clock = clock
        self._calls = HealthCalls()
        self._limit = LineLimit()

    def serve(self, picker: Picker) -> None:
        """Asks for this picker from now on."""
        self.wanted: list[Backend] = getattr(picker, "probes", [])
        self._picker = cast(ProbingPicker, picker)

    def ask(self) -> None:
        """Takes who is wanted; servers that are not ours would have no answer."""
        wanted = [backend for backend in self.wanted if backend.reported.is_ours]
        self.wanted.clear()
        for backend in wanted:
            answered = partial(self._answered, backend)
            self.sent += self._calls.ask(backend.channel, answered=answered)

    def _answered(self, backend: "Backend", health: wire.Health | None) -> None:
        report = None if health is None else health.report
        now = self._clock()
        if report is not None:
            if backend.load.ready_at is None:
                return  # it left meanwhile, and what it said went with it
            backend.load.observe(report, now)
        try:
            self._picker.probed(backend, report, now)
        except BaseException as error:  # of a picker that is not ours, perhaps
            if is_fatal(error):
                raise
            if self._limit.take(now) is not None:
                label, words = self._label, "%s: picker raised; probing continues"
                address = backend.endpoint.address
                logger.exception(
                    words, label, channel=label, backend=address, reason=error
                )

    def close(self) -> None:
        self._calls.close()

    def __repr__(self) -> str:
        return f"<{self.sent} probes, {len(self._calls)} not answered>"
