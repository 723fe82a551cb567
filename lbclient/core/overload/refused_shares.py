"""What share of its recent requests a task refuses for its load, by criticality.

Clients that send too few requests to find out themselves throttle by it, so it is
quick: it forgets in seconds what a throttle remembers for minutes. It needs a few
requests, or it would be chance; but once no signal is near its target it falls without
them. Refusals for a quota do not count, nor those of requests whose deadline was too
short or had passed: one client with short deadlines would make an idle task look
overloaded to all others.
"""

from collections.abc import Sequence
from math import exp

from lbclient.core.criticality import DEFAULT, Criticality

MEMORY = 2.0  # seconds; as servers smooth what they report of errors
# Requests. Fewer are kept for longer: with this many a share of a half is off by a
# tenth, as a rule.
ENOUGH, LONG_MEMORY = 20.0, 60.0
LEAST = 4.0  # requests: one refused of one is chance
# Seconds without a refusal, all signals well below their targets, after which refusals
# are forgotten as fast as if many requests came.
CALM = 2.0
# A share that falls from REFUSING to RECOVERED is told to all clients at once. Ours:
# a throttle with K = 1.1 keeps the share at 0.09.
REFUSING, RECOVERED = 0.08, 0.02
NEWS_GAP = 5.0  # seconds; a report takes 0.06 ms for each stream


class RefusedShares:
    """Measures the share of recent requests refused for load, by criticality. Owned by
    the gate, which calls `sample` ten times a second.

    `percents` are listed from SHEDDABLE on; zeros at the end are left out, except the
    first. `is_news` is True from the sample in which a criticality recovered to the
    next sample.
    """

    def __init__(self) -> None:
        self.percents: tuple[int, ...] = (0,)
        self.is_news = False
        self._arrived = [0.0] * len(Criticality)  # fading
        self._refused = [0.0] * len(Criticality)
        self._seen: list[Sequence[int]] = []  # as of the last sample
        self._lost = 0
        self._is_refusing = [False] * len(Criticality)
        self._sampled_at = self._refused_at = 0.0  # or was not calm
        self._told_at = float("-inf")

    def sample(
        self,
        now: float,
        arrived: Sequence[int],
        refused: Sequence[int],
        lost: int,
        is_calm: bool,
    ) -> None:
        """Takes how many requests ever arrived and were refused, by criticality.

        `lost` ended before anybody saw their criticality. `is_calm`: no signal is near
        its target.
        """
        before = self._seen or [[0] * len(Criticality)] * 2
        came = [new - old for new, old in zip(arrived, before[0], strict=True)]
        gone = [new - old for new, old in zip(refused, before[1], strict=True)]
        unseen = lost - self._lost
        self._seen, self._lost = [list(arrived), list(refused)], lost
        elapsed, self._sampled_at = max(0.0, now - self._sampled_at), now
        if unseen or any(gone) or not is_calm:
            self._refused_at = now
        elif now - self._refused_at >= CALM:
            # By time alone, as few requests may come: clients hold them back.
            quick = exp(-elapsed / MEMORY)
            self._refused = [count * quick for count in self._refused]
        if unseen and not any(came):
            came[DEFAULT] = gone[DEFAULT] = unseen
            unseen = 0
        # Requests that nobody saw are shared out in proportion to the others.
        unseen_each = unseen / max(1, sum(came))
        for one in Criticality:
            kept = _kept(elapsed, self._arrived[one])
            extra = came[one] * unseen_each
            self._arrived[one] = self._arrived[one] * kept + came[one] + extra
            self._refused[one] = self._refused[one] * kept + gone[one] + extra
        self._tell(now)

    def shares(self) -> list[float]:
        """The refused shares by criticality, from 0 to 1."""
        pairs = zip(self._refused, self._arrived, strict=True)
        # A request may be refused some time after it was counted.
        return [min(1.0, refused / max(LEAST, came)) for refused, came in pairs]

    def _tell(self, now: float) -> None:
        shares = self.shares()
        percents = [round(100.0 * share) for share in shares]
        while len(percents) > 1 and not percents[-1]:
            percents.pop()
        self.percents = tuple(percents)
        self.is_news = False
        may_tell = now - self._told_at >= NEWS_GAP
        for one, share in enumerate(shares):
            if share >= REFUSING:
                self._is_refusing[one] = True
            elif share < RECOVERED and self._is_refusing[one] and may_tell:
                self._is_refusing[one] = False
                self.is_news, self._told_at = True, now

    def __repr__(self) -> str:
        pairs = zip(Criticality, self.shares(), strict=True)
        told = ", ".join(f"{share:.0%} of {one.name}" for one, share in pairs if share)
        return f"<refuses {told or 'nothing'}>"


def _kept(elapsed: float, count: float) -> float:
    """What `elapsed` seconds leave of a fading count."""
    quick = exp(-elapsed / MEMORY)
    if not count:
        return quick
    return max(quick, min(exp(-elapsed / LONG_MEMORY), ENOUGH / count))
