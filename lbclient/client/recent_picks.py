"""Records why calls went where they went, and how long they took, for the status page.

`recent` is None while nobody looks at the page: a call then costs two comparisons.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from lbclient.core.model import Outcome, Verdict
from lbclient.core.outliers.outliers import Outliers
from lbclient.core.protocols import Clock, Picker
from lbclient.core.routing.keyed_picks import PickerForCall
from lbclient.core.routing.spillover import Spillover
from lbclient.core.statistics.recent import Recent
from lbclient.pickers.fewest_streams import FewestStreams

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

TRIAL = "a trial call: it is ejected for this method"
STREAM = f"a resumable stream: {FewestStreams.rule}"
WITH_KEY = "a call with a key"
ZONE = " of its zone and priority"
FALLBACK = "in turn, as the picker raised an error"
ANOTHER = "another than the attempt before, the less loaded of two"

# An enum looks its members up in Python up to 3.11.
UNANSWERED = (Verdict.ABANDONED, Verdict.DECLINED)


class RecentPicks:
    """Keeps recent picks and outcomes for the status page, while somebody looks. Owned
    by a balancer, which tells it of them."""

    def __init__(self, clock: Clock, outliers: Outliers["Backend"]) -> None:
        self.recent: Recent | None = None  # as long as somebody looks
        self._clock = clock
        self._outliers = outliers

    def keep(self) -> Recent:
        """Returns recent picks and latencies, and keeps them for a minute."""
        self.recent = Recent.keep(self.recent, self._clock())
        return self.recent

    def chosen(
        self,
        backend: "Backend",
        key: int,
        now: float,
        picker: Picker,
        has_raised: bool,
    ) -> None:
        """The backend was picked for a call of the method with this key in `Outliers`.
        If the picker `has_raised`, round robin picked it instead."""
        because = ""
        if has_raised:
            because = FALLBACK
        elif self._outliers.is_ejected(key, backend):
            because = TRIAL
        self.picked(backend, self._outliers.allowed(key), now, because, picker)

    def picked(
        self,
        backend: "Backend",
        allowed: Sequence["Backend"],
        now: float,
        because: str,
        picker: Picker | None = None,
    ) -> None:
        """A backend was picked among those `allowed`. `because` is the reason; if it is
        empty the picker had its own.

        `picker` tells the weights, and why the backend is in another zone or priority.
        """
        if self.recent is not None:
            words, where = [], ""
            if isinstance(picker, FewestStreams):
                words.append(STREAM)
            if isinstance(picker, PickerForCall):
                if picker.has_keys():
                    words.append(WITH_KEY)
                picker = picker.picker
            if isinstance(picker, Spillover):
                words.append(picker.why_spilled(backend))
                rivals = picker.rivals(backend, allowed)
                if len(rivals) < len(allowed):
                    allowed, where = rivals, ZONE
            how = "; ".join(filter(None, words))
            weigh = partial(_weights, picker, allowed, now)
            self.recent.picked(backend, allowed, now, because, how, where, weigh)

    def finished(self, backend: "Backend", outcome: Outcome, now: float) -> None:
        """An attempt is over."""
        recent = self.recent
        if recent is None or recent.is_over(now):
            self.recent = None
        elif outcome.verdict not in UNANSWERED:
            recent.finished(backend.endpoint.address, outcome.latency, now)

    def __repr__(self) -> str:
        return f"<{'kept' if self.recent is not None else 'not kept'}>"


def _weights(
    picker: Picker | None, allowed: Sequence["Backend"], now: float
) -> Sequence[float]:
    """The picker's weights; none if it raises, as a user's own may: a call goes on."""
    try:
        return () if picker is None else picker.weights(allowed, now)
    except Exception:
        return ()
