"""Protocols of replaceable parts: resolver, subset, picker, quota store.

Read this first. A seam is a protocol, not a base class: any object or function of
the right shape will do, and the channel takes it as an argument.
"""

from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from random import Random
from typing import NamedTuple, Protocol, TypeVar

from lbclient.core.call_hints import CallHints
from lbclient.core.load import Load
from lbclient.core.model import Endpoint, Endpoints, LoadReport, State

Clock = Callable[[], float]
"""Monotonic seconds; only differences mean anything."""


class Resolver(Protocol):
    """Where the endpoints come from.

    Two attributes are optional. With `paces_itself = True` a resolver makes its own
    pauses after errors. `trouble` is a text that says what is wrong although the
    resolver answers, empty if nothing is.
    """

    def watch(self) -> AsyncIterator[Endpoints]:
        """Yields a whole snapshot now and after every change, without end.

        Raises `ResolveError` if the lookup failed. The channel then calls `watch()`
        again after a pause, which grows with each error, or at once if the resolver
        `paces_itself`. Closing the iterator ends it.
        """


Subset = Callable[[Endpoints], Iterable[Endpoint]]
"""Puts endpoints in this client's order of preference. Pure, and lazy if possible.

The first k endpoints are the client's subset, the next ones its replacements.
"""

Algorithm = Callable[[int, int, int], Iterator[int]]
"""A `Subset` on numbers. Takes a client's task number, the number of backends and the
size of a subset; yields 0..backends-1, each once, in order of preference, lazily.

It does not know how many clients there are or which backends are up, so changes of
these cause no churn.
"""


class Node(Protocol):
    """A live backend or a simulated one, as pickers and pools see it."""

    endpoint: Endpoint
    state: State
    load: Load


N = TypeVar("N", bound=Node)


class Picker(Protocol):
    """Chooses among the ready nodes. One picker serves one channel.

    `ready` is never empty. It is the same tuple until its members change, so `is` tells
    whether what was derived from it must be built again. A picker may have a class
    attribute `rule`, a sentence that the status page shows beside its picks.
    """

    def pick(self, ready: Sequence[N], now: float) -> N:
        """Returns a member of `ready`. Never waits. `now` never goes back."""

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        """Returns the share that each node would get, all else equal; mean 1.

        For display. It only reads: calling it changes no pick.
        """


class KeyedPicker(Picker, Protocol):
    """A picker that sees the call: its method, keys, criticality and cost.

    If a picker has `pick_for`, every call is picked by it, also one without keys.
    `pick` is then never called.
    """

    def pick_for(self, call: CallHints, ready: Sequence[N], now: float) -> N:
        """As `pick`, for this call.

        Must not pick a backend that the call was sent to before (`call.tried`) if there
        is another. If a pick turns out to have lost its connection it is not used, and
        `pick_for` is called again with the same `call` and fewer `ready`.
        """


class LearningPicker(KeyedPicker, Protocol):
    """A keyed picker that wants to know how soon each call was answered."""

    def answered(
        self, call: CallHints, node: Node, seconds: float | None, now: float
    ) -> None:
        """Called once for each attempt, with the seconds from sending the call until
        its caller had the first message.

        None: the attempt failed or was cancelled before. `call` is what `pick_for` was
        given.
        """


class ReachingPicker(KeyedPicker, Protocol):
    """A keyed picker for which a key's backend may be outside of the subset.

    The channel sets `want`. The picker calls it with an endpoint that it would pick if
    that were ready. The channel connects to the endpoint if there is room, and it is
    then among `ready`.
    """

    want: Callable[[Endpoint], None]

    def know(self, members: Endpoints) -> None:
        """Called with all endpoints of the fleet; empty if the subset has all of them,
        or may have no others."""


class HomingPicker(KeyedPicker, Protocol):
    """A keyed picker that has one backend for each key, its home."""

    def home_of(self, call: CallHints, ready: Sequence[N], now: float) -> N | None:
        """Returns the home of the call's key. None: the home is not ready, or too
        loaded to get the call now. Picks nothing.

        A long stream whose key has its home elsewhere is asked to move there.
        """


class ProbingPicker(Picker, Protocol):
    """A picker that wants some backends probed before its next picks, as Prequal does.

    `probes` is one list, which the picker fills. After a pick the channel empties it
    and probes each backend in it once, or fewer if they are too many. No pick waits for
    a probe; the answers are passed to `probed`.
    """

    probes: list[Node]

    def probed(self, node: Node, report: LoadReport | None, now: float) -> None:
        """Called with the answer to a probe; None: there was no answer. The node's
        `load` has taken the report already."""


PickerFactory = Callable[[Random], Picker]
"""Makes a channel's picker. The generator is its only source of randomness."""


class FleetUsage(NamedTuple):
    """What each customer used lately of all tasks, in CPU seconds per second."""

    tasks: int
    """Number of tasks in `total`, including this one; 0: nothing is known."""

    own: Mapping[str, float]
    """By customer, the part of `total` that this task served."""

    total: Mapping[str, float]
    """By customer, the sum over all tasks."""

    again: float = 1.0
    """Seconds until the next exchange is worth it."""

    malformed: int = 0
    """Entries of other tasks that could not be parsed and were left out."""


class UsageStore(Protocol):
    """A quota store: shares the usage by customer among the tasks of a fleet.

    It may be slow and it may fail: no request waits for it. A store that is made from a
    URL also has `async def close(self)`.
    """

    async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
        """Stores what customers used of this task lately; returns the usage of all.

        `task` identifies the task and stays the same. The store leaves out tasks that
        have not called for some seconds.
        """
