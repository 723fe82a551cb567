"""Which workers the tasks of a channel have, and whether their own ports are reached.

A task's workers share the address that the resolver gives, and each has a port of its
own on the same host. One of them tells of all, so a channel connects to the shared
address first, then to each worker. While none of a task's workers is reached the shared
address stays beside them; when it alone answers, the task goes on as one backend.

A server at an own port is a worker if it tells the same group: a port of a virtual
address or behind a port mapping may be anybody's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lbclient.core.backoff import Backoff
from lbclient.core.model import Endpoint, Endpoints, State

# Seconds in which a connection to an own port is made, or fails, before the shared
# port is used; the first is where every one of them is refused.
REFUSED_AFTER, SILENT_AFTER = 0.5, 5.0

LOOK_EVERY = 0.5  # seconds, while own ports are tried

# Seconds until own ports that could not be reached are tried again: a network policy
# changes seldom, and each try costs some connections.
RETRIES = Backoff(60.0, 3600.0)

REACHED = frozenset({State.READY, State.INACTIVE, State.LAME_DUCK, State.STARTING})


class ToldWorkers(NamedTuple):
    """What a worker tells of its task: by shared port, the own port of each worker by
    its number; 0 where that one does not serve now."""

    group: int
    ports: tuple[tuple[int, tuple[int, ...]], ...]

    def at(self, port: int) -> tuple[int, ...]:
        """The own ports for that shared one. A port mapping may have given it another
        number: if there is one shared port, it is that.

        >>> ToldWorkers(7, ((50051, (40000, 40001)),)).at(80)
        (40000, 40001)
        """
        by_shared = dict(self.ports)
        if port not in by_shared and len(by_shared) == 1:
            [own] = by_shared.values()
            return own
        return by_shared.get(port, ())


@dataclass(slots=True)
class WorkingTask:
    """What is known of one task. `own` are the ports that it has `told`, 0 where the
    address is listed as a task of its own. `tried_at` is since when its workers are
    tried, while they are not `is_reached`; None: not before `retry_at`."""

    group: int
    told: tuple[int, ...]
    own: tuple[int, ...]
    tried_at: float | None
    is_reached: bool = False
    failures: int = 0
    retry_at: float = 0.0


class TaskWorkers:
    """Knows the workers behind a channel's endpoints. Owned by its connections.

    All that changes what `expand` returns says so: True.
    """

    def __init__(
        self, order: Callable[[Endpoint, int], Sequence[int]] = lambda _, n: range(n)
    ) -> None:
        """`order` has the numbers of a task's workers in the client's order of
        preference, of as many as there are."""
        self._order = order
        self._tasks: dict[str, WorkingTask] = {}  # by the shared address
        self._task_of: dict[str, str] = {}  # by the address of a worker
        self._listed: set[str] = set()  # what the resolver names

    # --- what is asked ----------------------------------------------------------

    def expand(self, endpoint: Endpoint) -> Endpoints:
        """The endpoints that stand for a task: its workers in this client's order of
        preference, or the shared address. That comes first while both are there."""
        task = self._tasks.get(endpoint.address)
        if task is None or (task.tried_at is None and not task.is_reached):
            return (endpoint,)
        count = len(task.own)
        ports = [task.own[n] for n in self._order(endpoint, count) if task.own[n]]
        weight = endpoint.weight / len(ports)
        workers = tuple(
            replace(endpoint, address=at(endpoint.address, port), weight=weight)
            for port in ports
        )
        return workers if task.is_reached else (endpoint, *workers)

    def task_of(self, address: str) -> str:
        """The shared address of a worker's task; of others their own."""
        return self._task_of.get(address, address)

    def is_stranger(self, address: str, group: int) -> bool:
        """Whether who tells that group is not the worker that is awaited there."""
        task = self._tasks.get(self._task_of.get(address, ""))
        return task is not None and task.group != group

    def counts(self) -> tuple[int, int]:
        """How many tasks are reached by their workers' own ports, and how many not;
        also from another thread."""
        tasks = list(self._tasks.values())
        reached = sum(task.is_reached for task in tasks)
        given_up = sum(task.tried_at is None and not task.is_reached for task in tasks)
        return reached, given_up

    # --- what is learned ----------------------------------------------------------

    def learn(self, address: str, told: ToldWorkers, now: float) -> bool:
        """Takes what the server at this address, shared or a worker's, tells."""
        shared = self.task_of(address)
        if not (port := _port(shared)):
            return False  # a path, beside which there are no ports
        ports = told.at(port)
        own = self._unlisted(shared, ports)
        if not any(own):
            return False  # all leave, or have no own port
        task = self._tasks.get(shared)
        if task is None or (task.group != told.group and address == shared):
            self._tasks[shared] = WorkingTask(told.group, ports, own, now)
        elif task.group != told.group or task.told == ports:
            return False
        else:
            task.told, task.own = ports, own
            if task.tried_at is not None:
                task.tried_at = now  # others are tried from now on
        self._index()
        return True

    def forget(self, shared: str) -> bool:
        """Several tasks answer at this address, each with workers of its own."""
        is_known = self._tasks.pop(shared, None) is not None
        self._index()
        return is_known

    def keep(self, endpoints: Endpoints) -> None:
        """Takes what the resolver names: other tasks are forgotten, and none of these
        is a worker of another one."""
        listed = {endpoint.address for endpoint in endpoints}
        if listed == self._listed and self._tasks.keys() <= listed:
            return
        self._listed = listed
        kept = {}
        for shared, task in self._tasks.items():
            task.own = self._unlisted(shared, task.told)
            if shared in listed and any(task.own):
                kept[shared] = task
        self._tasks = kept
        self._index()

    def _unlisted(self, shared: str, ports: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(0 if at(shared, port) in self._listed else port for port in ports)

    def reached(self, address: str) -> bool:
        """A worker of a task answers at its own port."""
        task = self._tasks.get(self._task_of.get(address, ""))
        if task is None or task.is_reached:
            return False
        task.is_reached, task.tried_at, task.failures = True, None, 0
        return True

    def review(
        self, state_of: Callable[[str], State | None], now: float
    ) -> tuple[bool, list[str]]:
        """Whether time or states change anything, and the tasks that are given up:
        their own ports cannot be reached, and their shared one can. `state_of` an
        address is None where there is no connection to be."""
        changed, given_up = False, []
        for shared, task in self._tasks.items():
            states = [state_of(at(shared, port)) for port in task.own if port]
            known = [state for state in states if state is not None]
            if task.is_reached:
                if known and REACHED.isdisjoint(known):
                    task.is_reached, task.tried_at = False, now
                    changed = True
            elif task.tried_at is None:
                if now >= task.retry_at:
                    task.tried_at = now
                    changed = True
            elif state_of(shared) is not State.READY:
                task.tried_at = now  # nothing is known of ports while the task is gone
            elif known:
                is_refused = all(state is State.REFUSING for state in known)
                patience = REFUSED_AFTER if is_refused else SILENT_AFTER
                if now >= task.tried_at + patience:
                    task.failures += 1
                    task.retry_at = now + RETRIES.after(task.failures)
                    task.tried_at = None
                    given_up.append(shared)
        return changed or bool(given_up), given_up

    def review_in(self, now: float) -> float | None:
        """Seconds until time alone may change anything; None: it never does."""
        pauses = [
            LOOK_EVERY if task.tried_at is not None else max(0.0, task.retry_at - now)
            for task in self._tasks.values()
            if not task.is_reached
        ]
        return min(pauses, default=None)

    def _index(self) -> None:
        self._task_of = {
            at(shared, port): shared
            for shared, task in self._tasks.items()
            for port in task.own
            if port
        }

    def __repr__(self) -> str:
        reached, given_up = self.counts()
        return f"<{len(self._tasks)} tasks, {reached} by own ports, {given_up} not>"


def at(shared: str, port: int) -> str:
    """
    >>> at("[::1]:50051", 40000)
    '[::1]:40000'
    """
    return f"{shared.rpartition(':')[0]}:{port}"


def _port(address: str) -> int:
    """0: it is a path, as of `unix:`."""
    scheme, _, text = address.rpartition(":")
    if scheme in ("unix", "unix-abstract"):
        return 0
    return int(text) if text.isdecimal() and len(text) < 6 else 0


def alone(endpoint: Endpoint) -> Endpoints:
    """Of a task of one process, as far as anybody knows."""
    return (endpoint,)
