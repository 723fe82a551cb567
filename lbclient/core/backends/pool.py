"""Who is in this client's subset, and which of them may get a call now.

`observe` is the one door for every state change. Calls begin and finish on the `load`
of their node, which tells the pool when that fills it or makes room. All is synchronous
and does no I/O: `reconcile` and `review` return the connections that their caller is to
open and to drain.

A backend is out if it refuses, is silent or is a lame duck. It is replaced by the next
one in order of preference (SRE book, ch. 20: a subset finds temporary stand-ins), until
it has been back for some time. An endpoint that the resolver calls a lame duck is no
member of the fleet: subsets are chosen among the others. A connection that it has stays
open, for calls when there is no other backend.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from lbclient.core.backends.address import dialled
from lbclient.core.backends.task_workers import alone
from lbclient.core.model import Endpoint, Endpoints, State
from lbclient.core.protocols import Node, Subset

N = TypeVar("N", bound=Node)

# States of a backend that is worth waiting for. A refusing one is not: a call that is
# to fail fast does, as with gRPC's TRANSIENT_FAILURE.
PROMISING = frozenset(State) - {State.REFUSING}

# States in which a backend is not replaced: an inactive one can connect at any time.
PRESENT = frozenset({State.READY, State.INACTIVE})

LOST = frozenset({State.CONNECTING, State.REFUSING})


class Limits(NamedTuple):
    """How large a pool is and how fast it changes; `ChannelConfig` explains them."""

    subset_size: int
    active_limit: int
    replace_after: float
    settle_after: float
    max_replacements: int
    max_connections: int = 1_000_000  # to workers of the subset's tasks


class Change(NamedTuple, Generic[N]):
    """The I/O that is due: which nodes to connect, and which to drain and close."""

    opened: tuple[N, ...]
    drained: tuple[N, ...]


class Pool(Generic[N]):
    """The nodes of one client's subset. Owned and written by its balancer alone.

    `ready` is what a picker chooses from. The tuple is replaced when its members
    change and never mutated; empty means that a call must wait or fail. It is made
    when somebody asks for it after a change, so that a thousand changes in one turn
    of the event loop make one tuple. Other threads call `read_ready`.
    """

    def __init__(
        self,
        make: Callable[[Endpoint], N],
        subset: Subset,
        limits: Limits,
        is_away: Callable[[N], bool] = lambda _: False,
        is_expected_back: Callable[[N], bool] = lambda _: False,
        expand: Callable[[Endpoint], Endpoints] = alone,
    ) -> None:
        """`is_away`: a node has no connection, and none is wanted.
        `is_expected_back`: a lame duck may be ready again once it has a new connection.
        `expand` returns the endpoints of a task's workers; those of one task are
        connected together."""
        self._make = make
        self._is_away = is_away
        self._is_expected_back = is_expected_back
        self._subset = subset
        self._limits = limits
        self._active_limit = limits.active_limit
        self._expand = expand
        self._order: list[Endpoint] = []  # of preference: subset, then replacements
        self._size = 0  # how many of these are the subset
        self._task_of: dict[str, str] = {}  # address of the task, by one of its nodes
        self.choices = 0  # nodes that there would be, were all members in the subset
        self._missing_since: dict[N, float] = {}  # those that are or were not ready
        self.endpoints: Endpoints = ()
        self.members: Endpoints = ()  # among whom the subset is chosen
        self._leaving: dict[str, Endpoint] = {}  # no members: lame ducks, by address
        self._invited: dict[str, Endpoint | None] = {}  # by address; None: no member
        self.guests: dict[str, None] = {}  # addresses of nodes that only `invite` wants
        self._avoided: dict[str, None] = {}  # addresses of `members`, in order of time
        self.nodes: dict[str, N] = {}  # by address, in order of preference
        self.counts: Counter[State] = Counter()  # of the states of `nodes`
        self._taking: dict[N, None] = {}  # of `nodes`: ready, and not full
        self._is_in_order = True  # `_taking` has the order of `nodes`
        self._last_ready: tuple[N, ...] = ()
        self._is_fixed = False  # no change of a state changes which nodes are wanted

    # --- members -------------------------------------------------------------

    def reconcile(self, endpoints: Endpoints, now: float) -> Change[N]:
        """Takes a whole snapshot: nodes of old and new subset live on as they are."""
        size, more = self._limits.subset_size, self._limits.max_replacements
        expand = self._expand
        members, leaving = parted(endpoints)
        preferred = self._subset(members) if members else ()
        if self._avoided:
            preferred = list(preferred)
            listed = {each.address: each for each in preferred}
            last = [listed[one] for one in self._avoided if one in listed]
            first = (each for each in preferred if each.address not in self._avoided)
            preferred = chain(first, last)
        tasks = {each.address: each for each in islice(preferred, size + more)}
        self.endpoints, self.members = endpoints, members
        self._leaving = {
            each.address: each for task in leaving.values() for each in expand(task)
        }
        if self._invited:
            listed = {each.address: each for each in members}
            self._invited = {one: listed.get(one) for one in self._invited}
        most = self._limits.max_connections // max(1, min(size, len(tasks)))
        self._set_order(
            [(task.address, few(task, expand(task), most)) for task in tasks.values()]
        )
        return self.review(now)

    def _set_order(self, tasks: list[tuple[str, Endpoints]]) -> None:
        """Sets the order of endpoints from that of tasks, each with its workers."""
        size, more = self._limits.subset_size, self._limits.max_replacements
        self._task_of = {
            each.address: task
            for task, workers in tasks
            if workers[-1].address != task
            for each in workers
        }
        order = {each.address: each for _, workers in tasks for each in workers}
        first = {each.address for _, workers in tasks[:size] for each in workers}
        self._size = len(first)
        self.choices = len(self.members) - len(tasks) + len(order)
        self._order = list(islice(order.values(), self._size + more))  # each once

    def resize(self, size: int, now: float) -> Change[N]:
        """Sets how many nodes the subset has."""
        self._limits = self._limits._replace(subset_size=size)
        return self.reconcile(self.endpoints, now)

    def avoid(self, addresses: Iterable[str], now: float) -> Change[N]:
        """Replaces these members for good: they come last, also once they are back.

        At most half of those that the subset does not need are avoided at a time. For
        one more the first that was is preferred again as before.
        """
        listed = {endpoint.address for endpoint in self.members}
        self._avoided = {one: None for one in self._avoided if one in listed}
        for address in addresses:
            self._avoided[address] = self._avoided.pop(address, None)
        most = max(0, len(self.members) - self._limits.subset_size) // 2
        for address in list(self._avoided)[: max(0, len(self._avoided) - most)]:
            del self._avoided[address]
        return self.reconcile(self.endpoints, now)

    def invite(self, addresses: Iterable[str], now: float) -> Change[N]:
        """Sets which members have a node even outside of the subset: the first ones
        that `max_connections` has room for. Other guests drain."""
        self._invited = dict.fromkeys(addresses)
        return self.reconcile(self.endpoints, now)

    def review(self, now: float) -> Change[N]:
        """Replaces backends that are out, and drops replacements no longer needed.

        To be called after every change of a state, and at `review_at`.
        """
        leaving = dict(self.nodes)
        nodes: dict[str, N] = {}  # replaced whole: another thread may be reading
        opened: list[N] = []
        for endpoint in self._wanted(now):
            node = self._node_of(endpoint, leaving, opened, now)
            nodes[endpoint.address] = node
        for address in self._still_serving(nodes, leaving):
            nodes[address] = leaving.pop(address)
        guests: dict[str, None] = {}  # replaced whole, too
        for endpoint in self._beyond_subset(nodes):
            node = self._node_of(endpoint, leaving, opened, now)
            nodes[endpoint.address] = node
            guests[endpoint.address] = None
        self.guests = guests
        for address in self._last_resorts(leaving):
            node = nodes[address] = leaving.pop(address)
            node.endpoint = self._leaving[address]
        for node in leaving.values():
            self._missing_since.pop(node, None)
        self._enter(nodes)
        return Change(tuple(opened), tuple(leaving.values()))

    def _node_of(
        self, endpoint: Endpoint, leaving: dict[str, N], opened: list[N], now: float
    ) -> N:
        """Takes the endpoint's node out of `leaving`, or makes one and adds it to
        `opened`."""
        node = leaving.pop(endpoint.address, None)
        if node is None:
            node = self._make(endpoint)
            node.load.limit(self._active_limit, partial(self._update_taking, node))
            opened.append(node)
            if node.state not in PRESENT:
                self._missing_since[node] = now
        node.endpoint = endpoint
        return node

    def _beyond_subset(self, nodes: dict[str, N]) -> Iterator[Endpoint]:
        """The invited endpoints that have no node, as many as there is room for."""
        room = self._limits.max_connections - len(nodes)
        there = {self.task_of(address) for address in list(nodes)}
        missing = (
            endpoint
            for address, endpoint in self._invited.items()
            if endpoint is not None and address not in there
        )
        yield from islice(missing, max(0, room))

    def _enter(self, nodes: dict[str, N]) -> None:
        self.nodes = nodes
        self.counts = Counter(node.state for node in nodes.values())
        self._taking = {node: None for node in nodes.values() if self.takes(node)}
        self._is_in_order = True
        # All endpoints have a node and are in the subset: nothing can be replaced.
        all_of_order = len(nodes) == len(self._order)
        self._is_fixed = all_of_order and len(nodes) <= self._size
        self._outdate()

    def wants_review(self) -> bool:
        """Whether a change of a node's state can change which nodes are wanted."""
        return not self._is_fixed

    def review_at(self, now: float) -> float | None:
        """When time alone will next change which nodes are wanted; None: never."""
        if self._is_fixed:
            return None
        limits = self._limits
        due = [
            since + limits.replace_after
            for node, since in self._missing_since.items()
            if node.state not in PRESENT
        ]
        if self.replacements():
            due += [
                node.load.ready_at + limits.settle_after
                for node in self.nodes.values()
                if node.load.ready_at is not None
            ]
        return min((at for at in due if at > now), default=None)

    def _wanted(self, now: float) -> Iterator[Endpoint]:
        """The first endpoints of the order that make a full subset of nodes not out.

        A node that is there already is dropped only when a full subset has settled, so
        a backend that comes and goes causes one replacement only.
        """
        size = self._size
        present = settled = 0
        for endpoint in self._order:
            node = self.nodes.get(endpoint.address)
            if present >= size and endpoint.address in self.guests:
                continue  # a guest does not count as a replacement
            if present >= size and (node is None or settled >= size):
                return
            if present >= size and self.task_of(endpoint.address) in self._avoided:
                return
            yield endpoint
            present += node is None or not self._is_out(node, now)
            settled += node is not None and self._is_settled(node, now)

    def _is_out(self, node: N, now: float) -> bool:
        if node.state in PRESENT:
            return False
        if node.state is State.LAME_DUCK and not self._is_expected_back(node):
            return True  # at once: it has said that it leaves
        since = self._missing_since.get(node)
        return since is not None and now >= since + self._limits.replace_after

    def _is_settled(self, node: N, now: float) -> bool:
        ready_at = node.load.ready_at
        return node.state is State.INACTIVE or (
            ready_at is not None and now >= ready_at + self._limits.settle_after
        )

    def _still_serving(self, nodes: dict[str, N], leaving: dict[str, N]) -> list[str]:
        """Addresses of leaving nodes that stay: one for each new node not ready."""
        missing = min(self._size, len(nodes)) - _count_present(nodes)
        ready = [a for a, node in leaving.items() if node.state is State.READY]
        return ready[: max(0, missing)]

    def _last_resorts(self, leaving: dict[str, N]) -> list[str]:
        """The leaving nodes that are the resolver's lame ducks, not too many."""
        lame_ducks = (
            address
            for address, node in leaving.items()
            if address in self._leaving
            and node.state is State.LAME_DUCK
            and not self._is_away(node)
        )
        return list(islice(lame_ducks, max(self._limits.subset_size, self._size)))

    def has(self, node: N) -> bool:
        """Whether this node is in `nodes`, not only another with its address."""
        return self.nodes.get(node.endpoint.address) is node

    def subset_size(self) -> int:
        """How many nodes the subset has when nobody is out: one for each task, and of
        a task with workers one for each of these."""
        return self._size

    def tasks(self) -> int:
        """How many tasks the subset has when nobody is out."""
        return min(self._limits.subset_size, len(self.members))

    def task_of(self, address: str) -> str:
        """The address of a node's task, which is its own where there are no workers."""
        return self._task_of.get(address, address)

    def is_complete(self, now: float) -> bool:
        """Whether the subset has as many nodes as it is to have, and none is awaited.

        A node that is out is replaced, and is not awaited any more.
        """
        nodes = [self.nodes[one] for one in self.nodes if one not in self.guests]
        missing = [node for node in nodes if node.state not in PRESENT]
        is_awaiting = any(not self._is_out(node, now) for node in missing)
        present = len(nodes) - len(missing)
        return not is_awaiting and present >= self.subset_size()

    def connected_since(self, at: float) -> int:
        """How many nodes have become ready since then, for the first time or again."""
        nodes = self.nodes.items()
        times = [node.load.ready_at for one, node in nodes if one not in self.guests]
        return sum(ready_at is not None and ready_at > at for ready_at in times)

    def places(self) -> dict[str, int]:
        """The place of each address in this client's order of preference, from 0."""
        return {endpoint.address: place for place, endpoint in enumerate(self._order)}

    def replacements(self) -> int:
        """How many nodes there are beyond the subset."""
        return max(0, len(self.nodes) - len(self.guests) - self.subset_size())

    # --- states --------------------------------------------------------------

    def observe(self, node: N, state: State, now: float) -> bool:
        """Records a node's state; False if the node is in that state already."""
        before = node.state
        if before is state:
            return False
        is_member = self.has(node)
        if state not in PRESENT and is_member:
            self._miss(node, now)
        if state is State.READY:
            node.load.enter_ready(now)
        elif before is State.READY or state in LOST:
            node.load.leave_ready()
        node.state = state
        if is_member:
            self.counts[before] -= 1
            self.counts[state] += 1
            self._update_taking(node)
        return True

    def _miss(self, node: N, now: float) -> None:
        """Notes since when a node is missing.

        If it was ready only for a moment, it counts as missing since before that.
        """
        ready_at = node.load.ready_at
        if node.state is State.INACTIVE or (
            ready_at is not None and now >= ready_at + self._limits.replace_after
        ):
            self._missing_since[node] = now
        else:
            self._missing_since.setdefault(node, now)

    def takes(self, node: N) -> bool:
        """Whether it is ready, and not full."""
        return node.state is State.READY and node.load.in_flight < self._active_limit

    def _update_taking(self, node: N) -> None:
        """Updates the set of nodes that take calls, as this node's state or its number
        of calls has changed."""
        if not self.has(node):
            return
        if not self.takes(node):
            self._taking.pop(node, None)
        elif node not in self._taking:
            self._taking[node] = None
            self._is_in_order = False
        self._outdate()

    def _outdate(self) -> None:
        """Discards the cached `ready`, which is built again at the next access."""
        self.__dict__.pop("ready", None)

    @cached_property
    def ready(self) -> tuple[N, ...]:
        if not self._is_in_order:
            nodes, taking = self.nodes.values(), self._taking
            self._taking = {node: None for node in nodes if node in taking}
            self._is_in_order = True
        ready = self._find_ready()
        if ready != self._last_ready:
            self._last_ready = ready
        return self._last_ready

    def read_ready(self) -> tuple[N, ...]:
        """Returns `ready` without writing anything, for other threads."""
        known: tuple[N, ...] | None = self.__dict__.get("ready")
        if known is not None:
            return known
        if self.counts[State.READY]:
            return tuple(node for node in self.nodes.values() if self.takes(node))
        return self._last_resort()

    def _find_ready(self) -> tuple[N, ...]:
        if self.counts[State.READY]:
            return tuple(self._taking)
        return self._last_resort()

    def _last_resort(self) -> tuple[N, ...]:
        """The lame ducks, if no backend is ready, and none is inactive.

        A lame duck "still serves, but asks not to": better than an error, but not
        better than connecting an inactive backend.
        """
        if self.counts[State.INACTIVE] or not self.counts[State.LAME_DUCK]:
            return ()
        limit = self._active_limit
        return tuple(
            node
            for node in self.nodes.values()
            if node.state is State.LAME_DUCK
            and node.load.in_flight < limit
            and not self._is_away(node)
        )

    def is_promising(self) -> bool:
        """Whether a call that cannot be sent now may be sent later."""
        return any(self.counts[state] for state in PROMISING)

    def full(self) -> int:
        """How many backends would take calls but are at their active limit."""
        full = self.counts[State.READY] - len(self._taking)
        if self.counts[State.LAME_DUCK]:
            limit = self._active_limit
            full += sum(
                node.state is State.LAME_DUCK and node.load.in_flight >= limit
                for node in self.nodes.values()
            )
        return full

    def __repr__(self) -> str:
        counts, ready = self.counts, self.counts[State.READY]
        text = f"{ready} of {len(self.nodes)} backends ready"
        others = [state for state in State if state is not State.READY]
        rest = [f"{counts[state]} {state.value}" for state in others if counts[state]]
        if full := self.full():
            rest.append(f"{full} full with {self._active_limit} calls each")
        return f"{text}: {', '.join(rest)}" if rest else text


def parted(endpoints: Endpoints) -> tuple[Endpoints, dict[str, Endpoint]]:
    """Splits endpoints into members and, by address, the resolver's lame ducks.

    If all endpoints are lame ducks, all are members.

    >>> members, leaving = parted((Endpoint("a:1"), Endpoint("b:1", lame_duck=True)))
    >>> [each.address for each in members], list(leaving)
    (['a:1'], ['b:1'])
    """
    leaving = {each.address: each for each in endpoints if each.lame_duck}
    if len(leaving) in (0, len(endpoints)):
        return endpoints, {}
    return tuple(each for each in endpoints if not each.lame_duck), leaving


def few(task: Endpoint, workers: Endpoints, most: int) -> Endpoints:
    """The first workers of a task, at least one, and as many connections to its shared
    address while there are both.

    >>> one, two = Endpoint("a:1"), Endpoint("a:2")
    >>> [len(few(Endpoint("a:1"), workers, 1)) for workers in [(one, two), (two,)]]
    [2, 1]
    """
    if len(workers) == 1:
        return workers
    shared = [each for each in workers if dialled(each.address) == task.address]
    own = workers[len(shared) :]
    return (*shared[: max(1, most)], *own[: max(1, most)])


def _count_present(nodes: dict[str, N]) -> int:
    return sum(node.state in PRESENT for node in nodes.values())
