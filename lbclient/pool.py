"""Who is in this client's subset, and which of them may get a call now.

`observe` is the one door for every state change, `begin` and `finish` for every
call. All are synchronous and do no I/O: `reconcile` returns the connections that
its caller is to open and to drain.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from lbclient.model import Endpoint, Endpoints, Outcome, State
from lbclient.protocols import Node, Subset

N = TypeVar("N", bound=Node)

# What may be worth waiting for. A refusing backend is not: the caller of a call
# that fails fast wants to know, as with gRPC's TRANSIENT_FAILURE.
PROMISING = frozenset({State.CONNECTING, State.STARTING, State.READY, State.LAME_DUCK})

LOST = frozenset({State.CONNECTING, State.REFUSING})


class Change(NamedTuple, Generic[N]):
    """The I/O that a new snapshot calls for."""

    opened: tuple[N, ...]
    drained: tuple[N, ...]


class Pool(Generic[N]):
    """The nodes of one client's subset. Owned and written by its balancer alone.

    `ready` is what a picker chooses from. The tuple is replaced when its members
    change and never mutated; empty means that a call must wait or fail.
    """

    def __init__(
        self,
        make: Callable[[Endpoint], N],
        subset: Subset,
        subset_size: int,
        active_limit: int,
    ) -> None:
        self._make = make
        self._subset = subset
        self._subset_size = subset_size
        self._active_limit = active_limit
        self.endpoints: Endpoints = ()
        self.nodes: dict[str, N] = {}  # by address, in order of preference
        self.ready: tuple[N, ...] = ()

    def reconcile(self, endpoints: Endpoints) -> Change[N]:
        """Takes a whole snapshot: nodes of old and new subset live on as they are."""
        before = dict(self.nodes)
        nodes: dict[str, N] = {}  # replaced whole: another thread may be reading
        opened: list[N] = []
        for endpoint in islice(self._subset(endpoints), self._subset_size):
            node = before.pop(endpoint.address, None)
            if node is None:
                node = self._make(endpoint)
                opened.append(node)
            node.endpoint = endpoint
            nodes[endpoint.address] = node
        self.endpoints = endpoints
        self.nodes = nodes
        self._publish()
        return Change(tuple(opened), tuple(before.values()))

    def observe(self, node: N, state: State, now: float) -> bool:
        """Records a node's state; False if that is no news."""
        if node.state is state:
            return False
        if state is State.READY:
            node.load.enter_ready(now)
        elif node.state is State.READY or state in LOST:
            node.load.leave_ready()
        node.state = state
        self._publish()
        return True

    def begin(self, node: N) -> None:
        """A call goes to `node`, which leaves `ready` when that fills it."""
        node.load.begin()
        if node.load.in_flight == self._active_limit:
            self._publish()

    def finish(self, node: N, outcome: Outcome, now: float) -> None:
        node.load.finish(outcome, now)
        if node.load.in_flight == self._active_limit - 1:
            self._publish()

    def _publish(self) -> None:
        nodes = self.nodes.values()
        usable = [node for node in nodes if node.state is State.READY]
        if not usable:
            # A lame duck "still serves, but asks not to": better than an error.
            usable = [node for node in nodes if node.state is State.LAME_DUCK]
        limit = self._active_limit
        ready = tuple(node for node in usable if node.load.in_flight < limit)
        if ready != self.ready:
            self.ready = ready

    def is_promising(self) -> bool:
        """Whether a call that cannot be sent now may yet be."""
        return any(node.state in PROMISING for node in self.nodes.values())

    def full(self) -> int:
        """How many backends would take calls but are at their active limit."""
        limit = self._active_limit
        usable = (State.READY, State.LAME_DUCK)
        return sum(
            node.state in usable and node.load.in_flight >= limit
            for node in self.nodes.values()
        )

    def __repr__(self) -> str:
        counts = Counter(node.state for node in self.nodes.values())
        ready = counts.pop(State.READY, 0)
        text = f"{ready} of {len(self.nodes)} backends ready"
        rest = [f"{counts[state]} {state.value}" for state in State if counts[state]]
        if full := self.full():
            rest.append(f"{full} full with {self._active_limit} calls each")
        return f"{text}: {', '.join(rest)}" if rest else text
