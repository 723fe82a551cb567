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
    """Where the endpoints come from."""

    def watch(self) -> AsyncIterator[Endpoints]:
        """Yields a whole snapshot now and after every change, without end.

        Raises `ResolveError` when it cannot tell; it is then asked again, later,
        by a new `watch()`. Closing the iterator ends it.

        Who asks makes a pause before that, longer with each error, unless the resolver
        has a true attribute `paces_itself`: then the new `watch()` waits by itself.
        With an attribute `trouble`, a text, it says what is amiss though it answers.
        """


Subset = Callable[[Endpoints], Iterable[Endpoint]]
"""Puts endpoints in this client's order of preference; pure, and lazy where it can.

The first k are its subset, the next ones the replacements.
"""

Algorithm = Callable[[int, int, int], Iterator[int]]
"""The same for numbers alone: from a client's task number, the number of backends
and the size of a subset to 0..backends-1, each once, in order of preference, lazily.

Nothing else is known to it, so nothing else can cause churn: not how many clients
there are, not who is up.
"""


class Node(Protocol):
    """A live backend or a simulated one, as pickers and pools see it."""

    endpoint: Endpoint
    state: State
    load: Load


N = TypeVar("N", bound=Node)


class Picker(Protocol):
    """Chooses among the ready nodes. One picker serves one channel.

    `ready` is never empty, and it is the same tuple until its members change, so
    `is` tells whether anything derived from it must be built again. The status page
    shows its class attribute `rule`, if it has one, beside its picks.
    """

    def pick(self, ready: Sequence[N], now: float) -> N:
        """Returns a member of `ready`. Never waits. `now` never goes back."""

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        """Returns the share that each node would get, all else equal; mean 1.

        For people to look at. Reads only: asking changes no pick.
        """


class KeyedPicker(Picker, Protocol):
    """A picker that sees the call: its method, keys, criticality and cost.

    A picker that has `pick_for` is asked by it, and never by `pick`. A call without
    keys comes by it, too.
    """

    def pick_for(self, call: CallHints, ready: Sequence[N], now: float) -> N:
        """As `pick`, for this call.

        Of the backends that it was sent to before, `call.tried`, none is to be picked
        if there is another. An attempt may be asked for twice, with the same `call` and
        with fewer `ready`: the first pick then was not used.
        """


class LearningPicker(KeyedPicker, Protocol):
    """A keyed picker that wants to know how soon each call was answered."""

    def answered(
        self, call: CallHints, node: Node, seconds: float | None, now: float
    ) -> None:
        """Takes the seconds from sending a call until its caller had the first message.

        None: the call failed or was cancelled before. `call` is what `pick_for` was
        given. Told once for each attempt.
        """


class ReachingPicker(KeyedPicker, Protocol):
    """A keyed picker for which a key's backend may be outside of the subset.

    Whoever wired it sets `want`, which the picker calls for an endpoint that it would
    pick if it were ready. It is connected if there is room, and is then among `ready`.
    """

    want: Callable[[Endpoint], None]

    def know(self, members: Endpoints) -> None:
        """Takes all members of the fleet; none where the subset has all, or may not
        have others."""


class HomingPicker(KeyedPicker, Protocol):
    """A keyed picker that has one backend for each key, its home."""

    def home_of(self, call: CallHints, ready: Sequence[N], now: float) -> N | None:
        """Who would have the call if nothing were in the way; None: something is, such
        as load, or the home is not ready. Picks nothing.

        A long stream with a key that is elsewhere is asked to move there."""


class ProbingPicker(Picker, Protocol):
    """A picker that would have some backends asked, so that its next pick is wiser.

    After a pick whoever wired it takes what is in `probes`, asks these, each once, and
    tells what they say; no pick waits for that. More may be wanted than are asked. It
    is always the same list.
    """

    probes: list[Node]

    def probed(self, node: Node, report: LoadReport | None, now: float) -> None:
        """Takes an answer; None: there is none. The node's load has it already."""


PickerFactory = Callable[[Random], Picker]
"""Makes a channel's picker; all its chance comes from the given generator."""


class FleetUsage(NamedTuple):
    """What all tasks gave whom, CPU seconds a second, at one moment not long ago."""

    tasks: int
    """How many tasks `total` is of, this one too; 0: nothing is known."""

    own: Mapping[str, float]
    """By customer, what this task gave, as it is in `total`."""

    total: Mapping[str, float]

    again: float = 1.0
    """Seconds until there is more to hear."""

    malformed: int = 0
    """Entries of others that made no sense and were left out."""


class UsageStore(Protocol):
    """A quota store: what the tasks of a fleet tell each other of their customers.

    May be slow, may fail: no request waits for it. One that is made from a URL has
    `async def close(self)`, too.
    """

    async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
        """Takes what this task gave lately, by customer; returns what all did.

        `task` is the same each time and no other's. A task that was not heard of for
        some seconds is left out.
        """
