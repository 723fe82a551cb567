"""A candidate: one backend, and what its score consists of."""

from math import inf

from lbclient.core.load import Load
from lbclient.pickers.missed_reports import ReportGaps

ABSENT = -1  # the index of one that is not ready, or not compared


class Candidate:
    """A backend, and what its score consists of. Owned by the picker.

    score = base + extra * exp((epoch - now) / horizon). Epoch and horizon are the same
    for all candidates, so one exponential ages all scores. Among many each has an epoch
    of its own, `told_at`. The picker updates a candidate after its load was written.
    """

    __slots__ = (
        "answers",
        "base",
        "credit",
        "doubted_until",
        "extra",
        "index",
        "load",
        "looked_at",
        "made_up_at",
        "more",
        "others",
        "paid",
        "report_gaps",
        "reported_at",
        "share",
        "slot",
        "started",
        "step_at",
        "suspected_at",
        "told_at",
        "turn",
        "turn_cost",
        "turns",
        "waits",
        "weight",
    )

    def __init__(self, load: Load, turns: float, credit: float) -> None:
        self.load = load
        self.turns = turns  # what its picks have cost; see the picker
        # All three as of when it was last looked at.
        self.turn_cost = 1.0  # what one turn costs
        self.turn = 1.0  # what a pick adds to `turns`: that, over its weight
        self.more = 2.0  # what a pick adds to its score
        self.looked_at = -inf
        self.paid = 0.0  # for its errors, in turns that another one had
        self.made_up_at = -inf  # of all picks, its last one that made up for a turn
        self.index = ABSENT
        self.slot = ABSENT  # where its score is; it has none in slow start
        self.share = 1.0  # see `SlowStart`
        self.credit = credit  # picks that it may have, while its share is below 1
        self.weight = 1.0
        self.base = 0.0
        self.extra = 0.0
        self.reported_at = -inf
        self.told_at = -inf  # `extra`, which is its own or drawn by lot
        self.waits = False  # to be ranked again, see `Ranking`
        self.doubted_until = -inf  # its counts are old
        self.suspected_at = -inf
        self.others: int | None = None  # requests of other clients, as last told
        self.report_gaps = ReportGaps()
        self.step_at = -inf  # its weight may be moved from then on
        self.answers = 0  # ever, when its last report came
        self.started = load.started  # when last looked at for a floor

    def __repr__(self) -> str:
        return f"<candidate of weight {self.weight:.2f}: {self.load!r}>"
