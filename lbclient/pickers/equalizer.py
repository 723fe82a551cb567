"""Weights that make utilization equal: the slow loop around a picker.

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
"""

from collections.abc import Collection, Sequence
from math import exp, log

from lbclient.core.load import Load
from lbclient.core.median import median
from lbclient.core.protocols import Node

NONSENSE = 1e6  # no utilization is; the bound keeps what is computed finite
ENOUGH = 10  # requests of ours tell their mean within a third
# Of a change, in gains. Without it a gain of 2 swings for a minute if reports are
# smoothed over 10 s; with 1.0 it never settles if over 1 s and there is one client.
LEAD = 0.5
# With a small gain there is room for more: up to this, and to so many gains. It brought
# S4_heavy@0.5 from a max/mean of 1.059 to 1.034.
AT_ONCE = 0.6  # of a change
MOST_LEAD = 2.0  # gains


class Weight:
    """The weight of one address, as the control set it. Written by `Equalizer.step`."""

    __slots__ = ("difference", "log", "reported_at", "used_at")

    def __init__(self, log: float) -> None:
        self.log = log
        self.difference: float | None = None  # of the last step, to the others' level
        self.reported_at = -1.0  # of the last report that moved it
        self.used_at = 0.0

    def change(self, difference: float) -> float:
        """By how much it has moved since the last step; takes it as the last."""
        before = difference if self.difference is None else self.difference
        self.difference = difference
        return difference - before


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
        if count < ENOUGH or now <= self.looked_at or not load.latency:
            return False
        mean = count * load.latency / (now - self.looked_at)
        self.height = log(mean * (1.0 + load.failure_ratio(now)))
        self.finished = finished
        self.looked_at = now
        return True


class Equalizer:
    """Keeps a weight for each address, and moves it at each new report.

    Owned by one picker.
    """

    def __init__(
        self, gain: float, bound: float, blackout: float, expiration: float
    ) -> None:
        self._gain = gain
        self._at_once = min(MOST_LEAD * gain, max(LEAD * gain, AT_ONCE))
        self._bound = bound
        self._blackout = blackout
        self._expiration = expiration
        self._weights: dict[str, Weight] = {}
        self._own: dict[str, Own] = {}

    def step(
        self, ready: Sequence[Node], now: float, missed: Collection[Load] = ()
    ) -> None:
        """Moves the weights of those that reported since the last step; and of those
        whose reports are missed, as of who reports nothing.

        The same report is never used twice: it does not say what the last step did,
        and would drive the weight to its bound.
        """
        known: list[tuple[Weight, float, float]] = []
        silent: list[Node] = []
        mean = _mean_told(ready)
        for node in ready:
            utilization = self._utilization(node.load, now)
            if utilization and node.load not in missed:
                weight = self._weight(node, mean, now)
                known.append((weight, log(utilization), node.load.reported_at))
            elif self._is_settled(node.load, now):
                silent.append(node)
        if known:
            level = median([height for _, height, _ in known])  # deaf to one liar
            for weight, height, reported_at in known:
                if weight.reported_at != reported_at:
                    weight.reported_at = reported_at
                    difference = level - height
                    self._move(weight, difference, weight.change(difference))
        moved = self._step_silent(ready, silent, mean, now) if silent else []
        if centre := [weight for weight, _, _ in known] or moved:
            # Only differences matter: kept around 0, or one liar at its bound would
            # drive all others to the opposite one.
            middle = sum(weight.log for weight in centre) / len(centre)
            for weight in centre:
                weight.log -= middle
        self._weights = {
            # Full, or restarting, a backend is not ready and yet has not changed.
            address: weight
            for address, weight in self._weights.items()
            if now - weight.used_at < self._expiration
        }

    def _step_silent(
        self, ready: Sequence[Node], silent: list[Node], mean: float, now: float
    ) -> list[Weight]:
        """Moves who says nothing towards as many of our requests as others have, for
        what the resolver says that it is worth."""
        before, self._own = self._own, {}
        heights: dict[str, float] = {}
        fresh: set[str] = set()
        for node in ready:
            address, load = node.endpoint.address, node.load
            own = before.get(address) or Own(load.started - load.in_flight, now)
            self._own[address] = own
            if own.has_enough(load, now):
                fresh.add(address)
            if own.height is not None:
                heights[address] = own.height - log(node.endpoint.weight)
        if not heights:
            return []
        mute = {node.endpoint.address for node in silent}
        others = [height for each, height in heights.items() if each not in mute]
        level = median(others or [*heights.values()])
        weights = []
        for node in silent:
            weight = self._weight(node, mean, now)
            weights.append(weight)
            weight.difference = None  # no change is seen from before it fell silent
            if (address := node.endpoint.address) in fresh:
                self._move(weight, level - heights[address])
        return weights

    def _weight(self, node: Node, mean: float, now: float) -> Weight:
        address = node.endpoint.address
        weight = self._weights.get(address)
        if weight is None:
            begin = log(node.endpoint.weight / mean)
            weight = Weight(max(-self._bound, min(self._bound, begin)))
            self._weights[address] = weight
        weight.used_at = now
        return weight

    def _move(self, weight: Weight, difference: float, change: float = 0.0) -> None:
        moved = weight.log + self._gain * difference + self._at_once * change
        weight.log = max(-self._bound, min(self._bound, moved))

    def _is_settled(self, load: Load, now: float) -> bool:
        return load.ready_at is not None and now - load.ready_at >= self._blackout

    def weights(self, ready: Sequence[Node]) -> list[float]:
        """Of each node, the unknown ones having the mean of the known, times what the
        resolver says that they are worth; mean 1."""
        told = _mean_told(ready)
        logs = [self._weights.get(node.endpoint.address) for node in ready]
        known = [exp(weight.log) for weight in logs if weight]
        mean = sum(known) / len(known) if known else 1.0
        return [
            exp(weight.log) / mean if weight else node.endpoint.weight / told
            for weight, node in zip(logs, ready, strict=True)
        ]

    def _utilization(self, load: Load, now: float) -> float:
        """What the backend says, failures counting as much; 0.0 if unknown."""
        report, utilization = load.report, load.utilization()
        if (
            report is None
            or not 0.0 < utilization < NONSENSE
            or not self._is_settled(load, now)
            or now - load.reported_at >= self._expiration
        ):
            return 0.0
        failing = min(1.0, report.eps / report.qps) if report.qps > 0.0 else 0.0
        return utilization + max(failing, load.failure_ratio(now))

    def __repr__(self) -> str:
        return f"<equalizer of {len(self._weights)} weights>"


def _mean_told(ready: Sequence[Node]) -> float:
    return sum(node.endpoint.weight for node in ready) / len(ready)
