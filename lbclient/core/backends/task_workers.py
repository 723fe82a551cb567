"""Which workers the tasks of a channel have, and whether their own ports are reached.

A task's workers share the address that the resolver gives, and each has a port of its
own on the same host. One of them tells of all, so a channel connects to the shared
address first, then to each worker. While none of a task's workers is reached the shared
address stays beside them. When it alone answers there are several connections to it:
the kernel gives each of them to some worker, and one that lands where another one is
already is made again, until each has a worker of its own or `MOST_DIALS` is met.

A server at an own port is a worker if it tells the same group: a port of a virtual
address or behind a port mapping may be anybody's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import NamedTuple

from lbclient.core.backends.address import another, dialled
from lbclient.core.backends.connection_state import WELL
from lbclient.core.backoff import Backoff
from lbclient.core.model import Endpoint, Endpoints, State

# Seconds in which a connection to an own port is made, or fails, before the shared
# port is used; the first is where every one of them is refused.
REFUSED_AFTER, SILENT_AFTER = 0.5, 5.0

LOOK_EVERY = 0.5  # seconds, while own ports are tried

# Seconds until own ports that could not be reached are tried again: a network policy
# changes seldom, and each try costs some connections.
RETRIES = Backoff(60.0, 3600.0)

# How often connections to the shared port are made again for each of a task's workers,
# until each has a worker of its own. To find all N by chance with a probability of
# 99 % takes N ln N + 4.6 N connections: 6 N for N = 4, 8 N for N = 30.
MOST_DIALS = 8

REACHED = frozenset({State.READY, State.INACTIVE, State.LAME_DUCK, State.STARTING})


WorkerAt = Callable[[str], int]
"""Who answers on the connection of that address, by the number of its reports; 0: that
is not known, or there is no connection."""


class Landing(Enum):
    """Where a connection to a shared port has come."""

    ALONE = "alone"  # at a worker that no other one has
    AGAIN = "again"  # where another one is, and it is to be made again
    DROPPED = "dropped"  # the same, once too often: it is not wanted any more
    LEAVING = "leaving"  # it was dropped before


class ToldWorkers(NamedTuple):
    """What a worker tells of its task: by shared port, the own port of each worker by
    its number; 0 where that one does not serve now. `serving` is how many serve, also
    where they have no ports of their own."""

    group: int
    ports: tuple[tuple[int, tuple[int, ...]], ...]
    serving: int = 0

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


NO_WORKERS = ToldWorkers(0, ())  # of a task of one process


@dataclass(slots=True)
class WorkingTask:
    """What is known of one task. All times are on the clock."""

    group: int
    told: tuple[int, ...]  # own ports of its workers, as it said
    # Those of them that are used; 0 where the address is listed as a task of its own.
    own: tuple[int, ...]
    # Since when its workers are tried, while they are not reached; None: not before
    # `retry_at`.
    tried_at: float | None
    is_reached: bool = False
    failures: int = 0
    retry_at: float = 0.0
    # The numbers of its connections to the shared port, once its workers were given up.
    shared: tuple[int, ...] = (1,)
    # How often one of these was made again, since each last had a worker of its own,
    # and how often `MOST_DIALS` was reached, so that some were dropped.
    dials: int = 0
    drops: int = 0
    restore_at: float | None = None  # when those are tried again; None: there are none
    # Own ports that are not reached though others are, and when that is to be said;
    # inf: it was.
    missed: dict[int, float] = field(default_factory=dict)
    portless: int = 0  # workers, which have no ports of their own

    def serving(self) -> int:
        return self.portless or sum(map(bool, self.own))

    def share(self, has_worker: Callable[[int], bool] = lambda _: True) -> None:
        """As many connections as there are workers. Those that have none go first, but
        for number 1: while others have all workers it is one more than there are."""
        count, self.dials, self.restore_at = max(1, self.serving()), 0, None
        first = sorted(self.shared[1:], key=lambda n: not has_worker(n))
        new = (n for n in range(2, count + 1) if n not in self.shared)
        is_beside = not has_worker(1) and sum(map(has_worker, first)) >= count
        others = count if is_beside else count - 1
        self.shared = (1, *sorted((*first, *new)[:others]))

    def next_at(self) -> float:
        """When something is tried again, or is to be said, while nothing is tried."""
        if self.is_reached:
            return min(self.missed.values(), default=inf)
        restore_at = inf if self.restore_at is None else self.restore_at
        return min(self.retry_at, restore_at)

    def tries_again(self, now: float, rests: bool) -> bool:
        """Whether own ports, or else connections that were dropped, are tried again
        after a pause. Not while it `rests`: nobody calls, and nothing would be learned
        of them."""
        if self.restore_at is None and len(self.shared) < self.serving():
            self.drops += 1
            self.restore_at = now + RETRIES.after(self.drops)
        if now < self.next_at():
            return False
        if rests:
            later = now + RETRIES.first
            self.retry_at = max(self.retry_at, later)
            if self.restore_at is not None:
                self.restore_at = max(self.restore_at, later)
            return False
        if now >= self.retry_at:
            self.tried_at = now
        else:
            self.share()
        return True


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
        preference, or connections to the shared address. These come first while both
        are there."""
        task = self._tasks.get(endpoint.address)
        if task is None:
            return (endpoint,)
        if task.is_reached:
            return self._workers(endpoint, task)
        count = len(task.shared)
        first = endpoint if count == 1 else _share_of(endpoint, 1, count)
        shared = (first, *(_share_of(endpoint, n, count) for n in task.shared[1:]))
        if task.tried_at is None:
            return shared
        return (*shared, *self._workers(endpoint, task))

    def _workers(self, endpoint: Endpoint, task: WorkingTask) -> Endpoints:
        count = len(task.own)
        ports = [task.own[n] for n in self._order(endpoint, count) if task.own[n]]
        whole = endpoint.weight
        part = replace(endpoint, weight=whole / len(ports), task_weight=whole)
        return tuple(
            replace(part, address=at(endpoint.address, port)) for port in ports
        )

    def task_of(self, address: str) -> str:
        """The shared address of a worker's task; of others their own."""
        return self._task_of.get(address) or dialled(address)

    def is_stranger(self, address: str, group: int) -> bool:
        """Whether who tells that group is not the worker that is awaited there."""
        task = self._tasks.get(self._task_of.get(address, ""))
        return task is not None and task.group != group

    def shared_of(self, shared: str) -> tuple[str, ...]:
        """The addresses of the connections to a task's shared port."""
        task = self._tasks.get(shared)
        return tuple(another(shared, n) for n in (task.shared if task else ()))

    def counts(self) -> tuple[int, int, int]:
        """How many tasks are reached by their workers' own ports, how many not, and how
        many connections there are to the shared ports of the latter; also from another
        thread."""
        tasks = list(self._tasks.values())
        reached = sum(task.is_reached for task in tasks)
        given_up = [t for t in tasks if t.tried_at is None and not t.is_reached]
        return reached, len(given_up), sum(len(task.shared) for task in given_up)

    # --- what is learned ----------------------------------------------------------

    def learn(
        self,
        address: str,
        told: ToldWorkers,
        now: float,
        worker_at: WorkerAt = lambda _: 0,
    ) -> bool:
        """Takes what the server at this address, shared or a worker's, tells."""
        shared = self.task_of(address)
        if not (port := _port(shared)):
            return False  # a path, beside which there are no ports
        ports = told.at(port)
        own = self._unlisted(shared, ports)
        if not any(own):
            # All leave, or have no own port.
            return not told.ports and self._learn_portless(address, told, worker_at)
        task = self._tasks.get(shared)
        if task is None or (task.group != told.group and address == shared):
            new = WorkingTask(told.group, ports, own, now)
            if task is not None and not task.is_reached and task.failures:
                # Of a new task at the same address, or another one behind it, the own
                # ports are most likely not to be reached either.
                new.failures, new.shared, new.tried_at = 1, task.shared, task.tried_at
                new.retry_at = min(task.retry_at, now + RETRIES.after(1))
                new.share()
            self._tasks[shared] = new
        elif task.group != told.group or task.told == ports:
            return False
        else:
            task.told, task.own = ports, own
            if task.tried_at is not None:
                task.tried_at = now  # others are tried from now on
            if task.failures:
                task.share(lambda n: worker_at(another(shared, n)) != 0)
        self._index()
        return True

    def _learn_portless(
        self, address: str, told: ToldWorkers, worker_at: WorkerAt
    ) -> bool:
        shared = dialled(address)
        task = self._tasks.get(shared)
        if not told.serving or address in self._task_of:
            return False  # all leave, or it is a worker's own port
        if told.serving == 1 and task is None:
            return False
        if task is not None and task.portless == told.serving:
            return False
        if task is None or task.group != told.group:
            if task is not None and address != shared:
                return False  # of another task behind a virtual address
            task = self._tasks[shared] = WorkingTask(told.group, (), (), None)
            task.retry_at = inf  # there is nothing to try
        task.portless = told.serving
        task.share(lambda n: worker_at(another(shared, n)) != 0)
        return True

    def forget(self, address: str) -> bool:
        """Several tasks answer at this shared address, each with workers of its own."""
        is_known = self._tasks.pop(dialled(address), None) is not None
        self._index()
        return is_known

    def has_none(self, address: str) -> bool:
        """The task at this address serves and tells of no workers: it has none. A
        worker's own port tells nothing of the task, nor does the shared one of a task
        whose workers are reached."""
        task = self._tasks.get(dialled(address))
        return task is not None and not task.is_reached and self.forget(address)

    def lands(self, address: str, worker: int, worker_at: WorkerAt) -> Landing:
        """A connection to a shared port is made, and this one answers: whether another
        connection has that one."""
        shared = dialled(address)
        task = self._tasks.get(shared)
        if task is None or task.is_reached or not worker:
            return Landing.ALONE
        of_number = {n: another(shared, n) for n in task.shared}
        if address not in of_number.values():
            return Landing.LEAVING
        same = [
            n
            for n, other in of_number.items()
            if other != address and worker_at(other) == worker
        ]
        if not same:
            others = [worker_at(n) for n in of_number.values() if n != address]
            if len({worker, *others} - {0}) == len(of_number):
                task.dials = 0
                if len(of_number) >= task.serving():
                    task.drops = 0
            return Landing.ALONE
        is_beside = len(of_number) > task.serving()
        if not is_beside and task.dials < MOST_DIALS * task.serving():
            task.dials += 1
            return Landing.AGAIN
        last = max(same) if address == shared else int(address.rpartition("#")[2])
        task.shared = tuple(n for n in task.shared if n != last)
        return Landing.ALONE if address == shared else Landing.DROPPED

    def doubles(self, worker_at: WorkerAt) -> list[str]:
        """The connections to shared ports whose worker one before them has.

        There are some where a worker is replaced so fast that the connection which was
        to go is wanted again: nobody looked where the others had landed meanwhile.
        """
        found = []
        for shared in self._tasks:
            taken = set[int]()
            for one in self.shared_of(shared):
                worker = worker_at(one)
                if worker and worker in taken:
                    found.append(one)
                taken.add(worker)
        return found

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
            if shared in listed and task.serving():
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
        task.shared = (1,)
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
                continue
            there = {state_of(one) for one in self.shared_of(shared)}
            if task.tried_at is None:
                rests = State.INACTIVE in there and State.READY not in there
                changed |= task.tries_again(now, rests)
            elif there.isdisjoint(WELL):
                task.tried_at = now  # nothing is known of ports while the task is gone
            elif known:
                is_refused = all(state is State.REFUSING for state in known)
                patience = REFUSED_AFTER if is_refused else SILENT_AFTER
                if now >= task.tried_at + patience:
                    task.failures += 1
                    task.retry_at = now + RETRIES.after(task.failures)
                    task.tried_at = None
                    task.share()
                    given_up.append(shared)
        return changed or bool(given_up), given_up

    def review_in(self, now: float) -> float | None:
        """Seconds until time alone may change anything; None: it never does."""
        pauses = [
            LOOK_EVERY if task.tried_at is not None else max(0.0, task.next_at() - now)
            for task in self._tasks.values()
            if task.next_at() < inf
        ]
        return min(pauses, default=None)

    def missed(self, state_of: Callable[[str], State | None], now: float) -> list[str]:
        """The workers whose own ports have not been reached for SILENT_AFTER though
        others of their task are; each one once."""
        found = []
        for shared, task in self._tasks.items():
            states = {port: state_of(at(shared, port)) for port in task.own if port}
            before, task.missed = task.missed, {}
            if not task.is_reached or State.READY not in states.values():
                continue
            for port, state in states.items():
                if state is None or state in REACHED:
                    continue
                task.missed[port] = before.get(port, now + SILENT_AFTER)
                if now >= task.missed[port]:
                    task.missed[port] = inf
                    found.append(at(shared, port))
        return found

    def _index(self) -> None:
        self._task_of = {
            at(shared, port): shared
            for shared, task in self._tasks.items()
            for port in task.own
            if port
        }

    def __repr__(self) -> str:
        reached, given_up, _ = self.counts()
        return f"<{len(self._tasks)} tasks, {reached} by own ports, {given_up} not>"


def _share_of(endpoint: Endpoint, number: int, count: int) -> Endpoint:
    address, whole = another(endpoint.address, number), endpoint.weight
    return replace(endpoint, address=address, weight=whole / count, task_weight=whole)


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
