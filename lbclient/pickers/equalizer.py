"""Weights for a picker under which all backends report the same utilization.

Integral control: at every step a backend that reports more than the others loses
weight, and one that reports less gains weight, until all report the same. The cause of
the difference does not matter: slow machines, neighbours, other clients. Part of each
change counts at once; reports are smoothed and late, so a large gain would oscillate
otherwise.

A backend that does not report gets weight until it has as many of our requests in
flight, on average, as the backends that report; if none reports, as the other backends.
Least-loaded picking aims at the same, but cannot reach it while a client has less than
one request on each backend. For requests that compute this means equal utilization; for
requests that only wait it means equal shares.

Of many backends each is moved when it reports, and the level is that of the last ones
that did.

A full backend reports 1 whatever is asked of it, so its difference to the others says
too little. After a while its step is a larger one.

Weights have a bound, for what a backend that lies can do. Where it holds nearly all
backends, and who has more answers sooner, no few lie, but sizes differ by more: it gets
wider.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import exp, inf, log

from lbclient.core.counting.median import median
from lbclient.core.load import Load
from lbclient.core.protocols import Node
from lbclient.pickers.objective import Objective, Speed


@dataclass(frozen=True, slots=True)
class EqualizerTuning:
    """The numbers of `Equalizer`. Ours, by simulation: `lbclient sim` plays them."""

    nonsense: float = 1e6  # no utilization is; the bound keeps what is computed finite
    enough: int = 10  # requests of ours tell their mean within a third
    # Of a change, in gains. Without it a gain of 2 swings for a minute if reports are
    # smoothed over 10 s; with 1.0 it never settles if over 1 s and there is one client.
    lead: float = 0.5
    # With a small gain there is room for more: up to this, and to so many gains. It
    # brought S4_heavy@0.5 from a max/mean of 1.059 to 1.034.
    at_once: float = 0.6  # of a change
    most_lead: float = 2.0  # gains
    # Requests a second, which one request is in the 2 s over which servers smooth. Of
    # less the ratio of errors would last for ever, though both numbers fade to nothing.
    least_rate: float = 0.5
    # Of a median utilization below this, most is not due to requests: it says nothing
    # about weights, and does not show whom they starve. They fade over so many seconds,
    # or more the closer it is to this.
    idle: float = 0.1
    memory: float = 30.0
    # The bound of weights gets wider by so much a second, to so many times what it was
    # and the widest that can be asked for, while this share of those that report stands
    # at it, and those above answer in this part of the time of those below. A third
    # that lie, and half the others that are slow, are two thirds.
    widening: float = 0.1
    most_wide: float = 3.0
    widest: float = 3.0
    held: float = 0.8
    sooner: float = 0.9
    rounding: float = 1e-6
    # Who reports this utilization, up to 1, for so many seconds and steps, while the
    # level is below it, may be asked for any more than it can do. Its steps are those
    # of so large a difference of logarithms. Who reports more than 1 tells how much it
    # is. After two steps noise did it: three that report at random had unequal shares.
    full: float = 0.95
    full_for: float = 2.5
    full_steps: int = 4
    too_much: float = 0.8
    # Reports; their median is within a tenth of their deviation of that of all.
    last: int = 128


TUNING = EqualizerTuning()


class Weight:
    """The weight of one address, as the control set it. Written by `Equalizer.step`."""

    __slots__ = (
        "difference", "faded_at", "full_since", "full_steps", "is_told", "log",
        "reported_at", "speed", "used_at",
    )  # fmt: skip

    def __init__(self, log: float, now: float) -> None:
        self.log = log
        self.faded_at = now
        self.difference: float | None = None  # of the last step, to the others' level
        # By its reports, while the others' level is below; and in so many steps.
        self.full_since, self.full_steps = inf, 0
        self.reported_at = -1.0  # of the last report that moved it
        self.used_at = 0.0
        self.speed = Speed()
        self.is_told = False  # else it is moved by our own requests


class Own:
    """This client's mean requests in flight at one address.

    By Little's law: requests that finish in a second, times how long each took. Written
    by `Equalizer.step`.
    """

    __slots__ = ("finished", "height", "looked_at")

    def __init__(self, finished: int, now: float) -> None:
        self.finished = finished
        self.looked_at = now
        self.height: float | None = None  # log of the mean; None: too few as yet

    def has_enough(self, load: Load, now: float) -> bool:
        """Whether there were enough since the last time to tell."""
        finished = load.started - load.in_flight
        count = finished - self.finished
        if count < 0:  # a new connection, which counts anew
            self.finished, self.looked_at = finished, now
        if count < TUNING.enough or now <= self.looked_at or not load.latency:
            return False
        mean = count * load.latency / (now - self.looked_at)
        self.height = log(mean * (1.0 + load.failure_ratio(now)))
        self.finished = finished
        self.looked_at = now
        return True


class RoundSums:
    """What a round found in the weights of all. Owned by an equalizer.

    Of the `told` ones so many are `held` at the bound, or `beyond` the narrowest.
    """

    __slots__ = (
        "_all", "_bound", "_exps", "_from", "_high", "_low", "_narrowest", "_told",
        "beyond", "moved", "nodes", "told", "worth",
    )  # fmt: skip

    def __init__(self, centre: float, bound: float, narrowest: float) -> None:
        self._from = centre
        self._bound = bound - TUNING.rounding
        self._narrowest = narrowest - TUNING.rounding
        self._high: list[float] = []  # latencies of those that are held above ...
        self._low: list[float] = []  # ... and below
        self.beyond = 0
        self._all = self._told = self._exps = 0.0  # logs, those of `told`, and weights
        self.nodes = self.moved = self.told = 0
        self.worth = 0.0

    @property
    def held(self) -> int:
        return len(self._high) + len(self._low)

    def agree(self) -> bool:
        """Whether those that are held above answer sooner than those below."""
        high, low = self._high, self._low
        if not high or not low:
            return False
        return sum(high) / len(high) < TUNING.sooner * sum(low) / len(low)

    def add(self, weight: Weight, latency: float) -> None:
        self.moved += 1
        self._all += weight.log
        self._exps += exp(weight.log - self._from)
        if weight.is_told:
            self.told += 1
            self._told += weight.log
            apart = weight.log - self._from
            self.beyond += abs(apart) >= self._narrowest
            if abs(apart) >= self._bound:
                (self._high if apart > 0.0 else self._low).append(latency)

    def centre_and_mean(self) -> tuple[float, float]:
        """The mean log of those that report, or of all, and the mean weight from it."""
        centre = self._told / self.told if self.told else self._all / self.moved
        return centre, exp(self._from - centre) * self._exps / self.moved

    def __repr__(self) -> str:
        return f"<sums of {self.moved} weights>"


class Equalizer:
    """Keeps a weight for each address, and moves it at each new report.

    Owned by one picker, which calls `step` for all backends at once. If they are many
    it calls `step_one` for each that reports, `step_part` for each part of them, and
    `end_round` after the last part.
    """

    def __init__(
        self,
        gain: float,
        bound: float,
        blackout: float,
        expiration: float,
        objective: Objective | None = None,
    ) -> None:
        self._gain = gain
        at_once = max(TUNING.lead * gain, TUNING.at_once)
        self._at_once = min(TUNING.most_lead * gain, at_once)
        self._bound = self._narrowest = bound
        self._widest = min(TUNING.widest, TUNING.most_wide * bound)
        self._widened_at = inf
        self._blackout = blackout
        self._expiration = expiration
        self._objective = objective
        self._weights: dict[str, Weight] = {}
        self._own: dict[str, Own] = {}
        self._heights: deque[float] = deque(maxlen=TUNING.last)  # logs of utilizations
        self._level: float | None = None  # their median
        self._own_heights: deque[tuple[float, bool]] = deque(maxlen=TUNING.last)
        # Only differences matter: the bound is around the centre, or one liar at it
        # would drive all others to the opposite one.
        self._centre = 0.0
        self._mean = 1.0  # of weights, and of what the resolver says, as of a round ago
        self._mean_worth = 1.0
        self._has_silent = False
        self._sums = self._new_sums()  # of the round so far, where there are many

    def step(
        self, ready: Sequence[Node], now: float, missed: Collection[Load] = ()
    ) -> None:
        """Moves the weights of those that reported since the last step; and of those
        whose reports are missed, as of who reports nothing.

        The same report is never used twice: it does not say what the last step did,
        and would drive the weight to its bound.
        """
        self._own_heights.clear()
        self._mean_worth = _mean_worth(ready)
        known: list[tuple[Weight, float, Load]] = []
        silent: list[Node] = []
        for node in ready:
            utilization = self._utilization(node.load, now)
            if utilization and node.load not in missed:
                weight = self._weight(node, now)
                height = self._height(weight, node.load, utilization)
                known.append((weight, height, node.load))
            elif self._is_settled(node.load, now):
                silent.append(node)
        if known:
            level = median([height for _, height, _ in known])  # deaf to one liar
            for weight, height, load in known:
                if weight.reported_at != load.reported_at:
                    weight.reported_at = load.reported_at
                    self._approach(weight, level - height, load)
            if self._objective is not None:
                self._objective.learn(level, now)
            self._fade(ready, exp(level), now)
        if silent:
            self._step_silent(ready, silent, now)
        self._sums = self._new_sums()  # of many, if they were, until now
        self.end_round(ready, now)

    def step_one(self, node: Node, now: float) -> float:
        """Moves the weight of one of many, which has just reported; returns it."""
        utilization = self._utilization(node.load, now)
        if not utilization:
            return self.weights_of([node])[0]
        weight = self._weight(node, now)
        height = self._height(weight, node.load, utilization)
        self._heights.append(height)
        weight.reported_at = node.load.reported_at
        if self._level is not None:
            self._approach(weight, self._level - height, node.load)
        return exp(weight.log - self._centre) / self._mean

    def step_part(
        self, part: Sequence[Node], now: float, missed: Collection[Load]
    ) -> None:
        """Moves the weights of some of many: of those that report nothing."""
        if self._heights:
            self._level = median(self._heights)
            if self._objective is not None:
                self._objective.learn(self._level, now)
            self._fade(part, exp(self._level), now)
        silent = [
            node
            for node in part
            if (node.load in missed or not node.load.utilization())
            and self._is_settled(node.load, now)
        ]
        self._has_silent = self._has_silent or bool(silent)
        if self._has_silent:
            self._step_silent(part, silent, now)

    def sum_up(self, part: Sequence[Node], *, begins: bool) -> None:
        """Adds a part of many to what `end_round` needs: else that would take long.
        `begins`: it is the first one of a round."""
        if begins:
            self._sums = self._new_sums()
        sums, weights = self._sums, self._weights
        for node in part:
            sums.nodes += 1
            sums.worth += node.endpoint.weight
            if weight := weights.get(node.endpoint.address):
                sums.add(weight, node.load.latency)

    def end_round(self, ready: Sequence[Node], now: float) -> None:
        """All have been looked at: what is common to all weights may be known anew."""
        sums, self._sums = self._sums, self._new_sums()
        if sums.nodes != len(ready):
            self.sum_up(ready, begins=True)
            sums, self._sums = self._sums, self._new_sums()
        self._mean_worth = sums.worth / len(ready)
        weights = self._weights
        self._widen(sums, now)
        if sums.moved:
            self._centre, self._mean = sums.centre_and_mean()
        if len(weights) > sums.moved:
            self._weights = {
                # Full, or restarting, a backend is not ready and yet has not changed.
                address: weight
                for address, weight in weights.items()
                if now - weight.used_at < self._expiration
            }
        if len(self._own) > len(ready):
            addresses = {node.endpoint.address for node in ready}
            self._own = {a: own for a, own in self._own.items() if a in addresses}
        self._has_silent = 0 < sums.told < sums.moved

    def _new_sums(self) -> RoundSums:
        return RoundSums(self._centre, self._bound, self._narrowest)

    def _widen(self, sums: RoundSums, now: float) -> None:
        """Widens the bound while it holds nearly all backends, and narrows it again
        where most would be within the narrowest."""
        by = TUNING.widening * max(0.0, now - self._widened_at)
        self._widened_at = now
        told = sums.told
        if sums.held >= TUNING.held * told and sums.agree():
            self._bound = min(self._widest, self._bound + by)
        elif 2 * sums.beyond <= told:
            self._bound = max(self._narrowest, self._bound - by)

    def _mean_of(self, weights: list[Weight]) -> float:
        centre = self._centre
        return sum([exp(each.log - centre) for each in weights]) / len(weights)

    def _step_silent(
        self, part: Sequence[Node], silent: list[Node], now: float
    ) -> None:
        """Moves who says nothing towards as many of our requests as others have, for
        what the resolver says that it is worth."""
        mute = {node.endpoint.address for node in silent}
        heights: dict[str, float] = {}
        fresh: set[str] = set()
        for node in part:
            address, load = node.endpoint.address, node.load
            own = self._own.get(address)
            if own is None:
                own = self._own[address] = Own(load.started - load.in_flight, now)
            if own.has_enough(load, now):
                fresh.add(address)
            if own.height is not None:
                height = heights[address] = own.height - log(node.endpoint.weight)
                self._own_heights.append((height, address in mute))
        if not self._own_heights:
            return
        others = [height for height, is_mute in self._own_heights if not is_mute]
        level = median(others or [height for height, _ in self._own_heights])
        for node in silent:
            weight = self._weight(node, now)
            weight.is_told = False
            weight.difference = None  # no change is seen from before it fell silent
            if (address := node.endpoint.address) in fresh:
                self._move(weight, self._gain * (level - heights[address]))

    def _weight(self, node: Node, now: float) -> Weight:
        address = node.endpoint.address
        weight = self._weights.get(address)
        if weight is None:
            weight = self._weights[address] = Weight(self._begin(node), now)
        weight.used_at = now
        weight.is_told = True
        return weight

    def _begin(self, node: Node) -> float:
        """The weight of which nothing is known but what the resolver says."""
        begin = log(node.endpoint.weight / self._mean_worth)
        return self._centre + max(-self._bound, min(self._bound, begin))

    def _approach(self, weight: Weight, difference: float, load: Load) -> None:
        before, weight.difference = weight.difference, difference
        by = self._gain * difference
        is_full = TUNING.full <= load.utilization() <= 1.0 + TUNING.rounding
        if not is_full or difference > log(TUNING.full):
            weight.full_since, weight.full_steps = inf, 0
        else:
            weight.full_since = min(weight.full_since, load.reported_at)
            weight.full_steps += 1
            is_long = load.reported_at - weight.full_since >= TUNING.full_for
            if is_long and weight.full_steps >= TUNING.full_steps:
                by = min(by, -self._gain * TUNING.too_much)
        if before is not None:
            by += self._at_once * (difference - before)
        self._move(weight, by)

    def _move(self, weight: Weight, by: float) -> None:
        least, most = self._centre - self._bound, self._centre + self._bound
        weight.log = max(least, min(most, weight.log + by))

    def _height(self, weight: Weight, load: Load, utilization: float) -> float:
        """Log of a utilization, relative to what this backend is to have."""
        if self._objective is None:
            return log(utilization)
        if weight.reported_at != load.reported_at and load.report is not None:
            weight.speed.observe(load.report, load.utilization())
        return log(utilization) - self._objective.extra(weight.speed)

    def _fade(self, nodes: Sequence[Node], utilization: float, now: float) -> None:
        """Brings weights nearer to where they began, while there is next to nothing to
        do."""
        idle = max(0.0, 1.0 - utilization / TUNING.idle)
        for node in nodes:
            if weight := self._weights.get(node.endpoint.address):
                passed, weight.faded_at = now - weight.faded_at, now
                if idle:
                    kept = exp(-idle * max(0.0, passed) / TUNING.memory)
                    begin = self._begin(node)
                    weight.log = begin + kept * (weight.log - begin)

    def _is_settled(self, load: Load, now: float) -> bool:
        return load.ready_at is not None and now - load.ready_at >= self._blackout

    def weights(self, ready: Sequence[Node]) -> list[float]:
        """Of each node, the unknown ones having the mean of the known, times what the
        resolver says that they are worth; mean 1."""
        found = [self._weights.get(node.endpoint.address) for node in ready]
        known = [weight for weight in found if weight]
        mean = self._mean_of(known) if known else 1.0
        return self._scale(ready, found, mean, _mean_worth(ready))

    def weights_of(self, part: Sequence[Node]) -> list[float]:
        """The same for some of many."""
        found = [self._weights.get(node.endpoint.address) for node in part]
        return self._scale(part, found, self._mean, self._mean_worth)

    def _scale(
        self,
        nodes: Sequence[Node],
        found: list[Weight | None],
        mean: float,
        mean_worth: float,
    ) -> list[float]:
        return [
            exp(weight.log - self._centre) / mean
            if weight
            else node.endpoint.weight / mean_worth
            for weight, node in zip(found, nodes, strict=True)
        ]

    def _utilization(self, load: Load, now: float) -> float:
        """What the backend says, failures counting as much; 0.0 if unknown."""
        report, utilization = load.report, load.utilization()
        if (
            report is None
            or not 0.0 < utilization < TUNING.nonsense
            or not self._is_settled(load, now)
            or now - load.reported_at >= self._expiration
        ):
            return 0.0
        failing = 0.0
        if report.qps > 0.0:  # else nobody knows of how many
            failing = min(1.0, report.eps / max(report.qps, TUNING.least_rate))
        return utilization + max(failing, load.failure_ratio(now))

    def __repr__(self) -> str:
        return f"<equalizer of {len(self._weights)} weights>"


def _mean_worth(ready: Sequence[Node]) -> float:
    return sum([node.endpoint.weight for node in ready]) / len(ready)
