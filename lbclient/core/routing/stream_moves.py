"""Which long streams are asked to move, how many of them, and when.

A stream stays on its backend for its life, so after a fleet has grown the new backends
are idle and the old ones are not (grpc/grpc-java#12575: 1,000 streams, 150 servers).
Streams that can be resumed are asked to move until each backend has its share:

- Only what is above the share moves, so no stream moves in vain: at most the least
  number that makes the fleet even.
- An imbalance must be there in `patience` looks before anybody is asked, and it must
  exceed `slack`. From then on streams are asked until it is gone.
- Those of the oldest imbalance are asked first, among equals those of the largest.
- A budget, `rate`, bounds how many are asked a second, and `outstanding` how many are
  asked and not gone yet. Backends that leave are emptied within `leaves_within`.
- If asking does not help, because streams come back, there is a pause of `hold`.

Many clients decide for themselves. One with many streams evens out its own. One with
few goes by what backends report of all clients, and asks its own part of the surplus,
with a probability where that is less than one stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor, inf, sqrt
from random import Random
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")

MOVE_RATE = 0.02  # of a channel's streams, a second: a fleet that doubles takes 25 s


@dataclass(frozen=True, slots=True)
class StreamMovesTuning:
    """When streams are asked to move. Ours: tests/laws/test_stream_moves.py and
    `benchmarks.streams` play them."""

    patience: int = 3  # looks, of a second each; requests come and go meanwhile
    slack: float = 1.05  # of a share; less, and ...
    few: float = 1.0  # ... so many streams beyond, is no imbalance
    enough: float = 3.0  # own streams a backend, by which a client evens out its own
    # Of the surplus that reports tell, in a look: they are a second or two old.
    gain: float = 0.25
    outstanding: float = 5.0  # seconds of the budget that may be asked and not gone
    leaves_within: float = 2.0  # seconds; lame ducks serve longer (`lame_duck_period`)
    in_vain: float = 2.0  # surpluses asked, and the imbalance is still there ...
    hold: float = 60.0  # ... seconds until streams are asked again


TUNING = StreamMovesTuning()


class BackendStreams(NamedTuple):
    """The streams of one backend: `own` are this client's, of which `movable` can be
    asked. `told` are all requests there, of all clients; None: unknown. `worth` is the
    share that it should have, relative to others; 0.0: none. `leaves`: it is about to
    go."""

    own: int
    movable: int
    told: float | None = None
    worth: float = 1.0
    leaves: bool = False


@dataclass(slots=True)
class _Imbalance:
    """Of one backend. `since` is when streams were first asked because of it. `draw`
    rounds its share: were all clients to round up, the old backends would keep most."""

    draw: float
    surpluses: list[float] = field(default_factory=list)
    since: float = inf

    def add(self, surplus: float, is_beyond: bool, now: float) -> float:
        """Returns what lasts: the least of the latest surpluses."""
        del self.surpluses[: max(0, len(self.surpluses) - TUNING.patience + 1)]
        self.surpluses.append(surplus)
        lasting = min(self.surpluses) if len(self.surpluses) == TUNING.patience else 0.0
        if not lasting:
            self.since = inf
        elif is_beyond and self.since == inf:
            self.since = now
        return lasting if self.since < inf else 0.0


class StreamMoves(Generic[K]):
    """Decides which backends' streams are asked to move. Owned by one client, which
    looks about once a second."""

    def __init__(self, rng: Random, rate: float, now: float) -> None:
        """`rate` is the share of the client's streams that may be asked a second."""
        self._rng = rng
        self._rate = rate
        self._looked_at = now
        self._imbalances: dict[K, _Imbalance] = {}
        self._leaves_at: dict[K, float] = {}
        self._asked = self._worth_asking = 0.0
        self._hold_until = -inf
        self._left = 0.0  # of the budget, after this look

    def to_ask(
        self, seen: Mapping[K, BackendStreams], outstanding: int, now: float
    ) -> dict[K, int]:
        """How many streams of each backend are asked now. `outstanding` were asked
        and are still there."""
        elapsed = min(2.0, max(0.0, now - self._looked_at))
        self._looked_at = now
        asked = self._of_leaving(seen, elapsed, now)
        surpluses = self._lasting(seen, now)
        own = sum(each.own for each in seen.values())
        budget = self._rate * own * elapsed
        room = max(1.0, TUNING.outstanding * self._rate * own) - outstanding
        self._left = min(budget, room)
        if self._is_in_vain(sum(surpluses.values()), now) or not own:
            return asked
        part = {
            key: _own_part(surplus, seen[key], by_reports=not goes_by_own(seen))
            for key, surplus in surpluses.items()
        }
        count = self._rounded(min(budget, room, sum(part.values())))
        for _ in range(count):
            key = min(part, key=lambda one: (part[one] <= 0.0, *self._turn(one, part)))
            if asked.get(key, 0) >= seen[key].movable:
                part[key] = 0.0
                continue
            part[key] -= 1.0
            asked[key] = asked.get(key, 0) + 1
            self._asked += 1.0
            self._left -= 1.0
        return asked

    def room(self) -> int:
        """How many more the budget lets ask now, for another reason."""
        return self._rounded(self._left)

    def _turn(self, key: K, part: Mapping[K, float]) -> tuple[float, float, float]:
        """The oldest imbalance first, then the largest; clients differ beyond that."""
        one = self._imbalances[key]
        return one.since, -part[key], one.draw

    def _of_leaving(
        self, seen: Mapping[K, BackendStreams], elapsed: float, now: float
    ) -> dict[K, int]:
        leaving = [key for key, each in seen.items() if each.leaves]
        self._leaves_at = {
            key: self._leaves_at.get(key, now + TUNING.leaves_within) for key in leaving
        }
        asked = {}
        if any(each.worth and not each.leaves for each in seen.values()):
            for key in leaving:
                left = max(self._leaves_at[key] - now, elapsed, 1e-9)
                part = seen[key].movable * min(1.0, elapsed / left)
                asked[key] = min(self._rounded(part), seen[key].movable)
        return {key: count for key, count in asked.items() if count}

    def _lasting(self, seen: Mapping[K, BackendStreams], now: float) -> dict[K, float]:
        """What lasts of each backend's surplus, if there is any."""
        staying = {key: each for key, each in seen.items() if not each.leaves}
        self._imbalances = {
            key: self._imbalances.get(key) or _Imbalance(self._rng.random())
            for key in staying
        }
        draws = {key: one.draw for key, one in self._imbalances.items()}
        by_reports = not goes_by_own(staying)
        found = {}
        for key, (count, share, surplus) in _surpluses(
            staying, draws, by_reports
        ).items():
            chance = sqrt(share) if by_reports else 0.0
            is_beyond = count > TUNING.slack * share + TUNING.few + chance
            lasting = self._imbalances[key].add(surplus, is_beyond, now)
            if lasting:
                found[key] = lasting
        return found

    def _is_in_vain(self, surplus: float, now: float) -> bool:
        if not surplus:
            self._asked = self._worth_asking = 0.0
            return True
        self._worth_asking = max(self._worth_asking, surplus)
        if self._asked > TUNING.in_vain * self._worth_asking + TUNING.few:
            self._hold_until = now + TUNING.hold
            self._asked = self._worth_asking = 0.0
        return now < self._hold_until

    def _rounded(self, number: float) -> int:
        """To a whole number, by chance, so that the mean of many clients is right."""
        return floor(max(0.0, number) + self._rng.random())

    def __repr__(self) -> str:
        moving = sum(one.since < inf for one in self._imbalances.values())
        return f"<{moving} of {len(self._imbalances)} backends have too many streams>"


def goes_by_own(seen: Mapping[K, BackendStreams]) -> bool:
    """Whether a client evens out its own streams: it has many, or knows no others.

    >>> goes_by_own({"a": BackendStreams(5, 5, 9.0), "b": BackendStreams(3, 3, 9.0)})
    True
    >>> goes_by_own({"a": BackendStreams(1, 1, 9.0), "b": BackendStreams(0, 0, 9.0)})
    False
    """
    own = sum(each.own for each in seen.values())
    return own >= TUNING.enough * len(seen) or any(
        each.told is None for each in seen.values() if each.worth
    )


def _surpluses(
    seen: Mapping[K, BackendStreams], draws: Mapping[K, float], by_reports: bool
) -> dict[K, tuple[float, float, float]]:
    """Of each backend its streams, its share of all, and how many should move.

    >>> draws = {"a": 0.1, "b": 0.5, "c": 0.5}
    >>> even = BackendStreams(4, 4)
    >>> _surpluses({"a": BackendStreams(6, 6), "b": even, "c": even}, draws, False)["a"]
    (6.0, 4.666666666666667, 2.0)
    """
    counts = {key: _count(each, by_reports) for key, each in seen.items()}
    found = shares(counts, {key: each.worth for key, each in seen.items()})
    target = {
        key: max(float(each.worth > 0.0), floor(found[key] + draws[key]))
        for key, each in seen.items()
    }
    # Where one more would have as many as the one that is left, no stream moves.
    emptiest = min(
        ((counts[key] + 1.0) / each.worth for key, each in seen.items() if each.worth),
        default=0.0,
    )
    over = {
        key: max(0.0, counts[key] - target[key])
        for key, each in seen.items()
        if counts[key] > emptiest * each.worth + 1e-9
    }
    room = sum(max(0.0, target[key] - counts[key]) for key in seen)
    total = sum(over.values())
    part = min(1.0, room / total) if total else 0.0
    return {key: (counts[key], found[key], over.get(key, 0.0) * part) for key in seen}


def _count(each: BackendStreams, by_reports: bool) -> float:
    if by_reports and each.told is not None:
        return max(each.told, float(each.own))
    return float(each.own)


def _own_part(surplus: float, each: BackendStreams, by_reports: bool) -> float:
    if not by_reports:
        return min(surplus, each.movable)
    part = TUNING.gain * surplus * each.own / max(1.0, _count(each, by_reports))
    return min(part, each.movable)


def shares(counts: Mapping[K, float], worth: Mapping[K, float]) -> dict[K, float]:
    """Divides all by what each is worth.

    >>> shares({"a": 6.0, "b": 0.0}, {"a": 1.0, "b": 2.0})
    {'a': 2.0, 'b': 4.0}
    """
    total, all_worth = sum(counts.values()), sum(worth.values())
    if not all_worth:
        return {key: float(count) for key, count in counts.items()}
    return {key: total * worth[key] / all_worth for key in counts}
