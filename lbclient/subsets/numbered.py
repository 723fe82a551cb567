"""Chooses a channel's subset algorithm and gives its endpoints their numbers.

The algorithms know numbers only. A backend's number is what the resolver says, else
the end of its host name (`search-7.prod:50051`), else its place in the sorted list:
a poor one, as all that sort behind a backend that comes or goes get another number.
Hence "auto" never goes by place but takes rendezvous, which needs no numbers.

Decided anew for each snapshot: a fleet may get its numbers while we look.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from lbclient.core.errors import ConfigError
from lbclient.core.model import Endpoint, Endpoints, Identity
from lbclient.subsets import job_offset, order
from lbclient.subsets.rendezvous import Rendezvous
from lbclient.subsets.rocksteadier import LOT
from lbclient.subsets.workers import by_chance, by_turns

AUTO = "auto"
ROCKSTEADIER = "rocksteadier"  # what auto takes where both sides have numbers
RENDEZVOUS = "rendezvous"  # and where not
NEED_NO_NUMBER = frozenset({AUTO, RENDEZVOUS, "random", "whole"})  # of the client

Order = Callable[[], Iterable[Endpoint]]

# The first label of a host name ends in a number.
NAMED = re.compile(
    r"(?P<host>(?P<job>[^.:/]+)-(?P<task>[0-9]{1,9})(?:\.[^:/]*)?)(?::[0-9]+)?"
)
MACHINE = re.compile("(^|-)[0-9]+-[0-9]+-[0-9]+$")  # as the job of ip-10-0-0-3

# Numbers may have holes, as a restart leaves, but few: each costs a step.
MOST_HOLES, SOME_HOLES = 4, 10


class Numbering(NamedTuple):
    """A snapshot by number; `why_not` says why these numbers are but places.

    `backends[n]` is task n, None where that is missing. `spare` are the further
    addresses of tasks that have several.
    """

    backends: Sequence[Endpoint | None]
    spare: Sequence[Endpoint] = ()
    why_not: str = ""

    def endpoints_of(self, numbers: Iterator[int]) -> Iterator[Endpoint]:
        """The endpoints of these numbers, without those that are missing."""
        for number in numbers:
            endpoint = self.backends[number]
            if endpoint is not None:
                yield endpoint
        yield from self.spare

    def __str__(self) -> str:
        if self.why_not:
            count = len(self.backends)
            return f"{count} {_backends(count)} numbered by position: {self.why_not}"
        missing = self.backends.count(None)
        holes = f" ({missing} missing)" if missing else ""
        count = len(self.backends) - missing
        return f"{count} numbered {_backends(count)}{holes}"


def number(endpoints: Endpoints) -> Numbering:
    """Goes by task numbers if every endpoint has one, else by position.

    Holes stay holes, so that a task that is missing moves nobody else.

    >>> str(number((Endpoint("b-0:1"), Endpoint("b-2:1"))))
    '2 numbered backends (1 missing)'
    >>> str(number((Endpoint("10.0.0.1:1"),)))
    '1 backend numbered by position: backends have no task numbers'
    """
    tasks: dict[int, Endpoint] = {}
    spare: list[Endpoint] = []
    hosts: dict[int, str] = {}  # of the numbers that are read from names
    jobs: dict[str, None] = {}
    clashes = False
    for endpoint in endpoints:
        task = endpoint.task
        if task is None and (name := NAMED.fullmatch(endpoint.address)):
            task = int(name["task"])
            jobs[name["job"]] = None
            host = name["host"]
            clashes = clashes or hosts.setdefault(task, host) != host
        if task is None:
            continue
        if tasks.setdefault(task, endpoint) is not endpoint:
            spare.append(endpoint)
    why_not = _why_not(len(endpoints), tasks, len(spare))
    if any(map(MACHINE.search, jobs)):
        why_not = "the names of backends are those of machines"
    elif not why_not and (clashes or len(jobs) > 1):
        # Task 0 of one job is no further address of task 0 of another.
        why_not = "the names of backends are of several jobs"
    if why_not:
        return Numbering(endpoints, why_not=why_not)
    return Numbering([tasks.get(task) for task in range(max(tasks) + 1)], spare)


def with_tasks(endpoints: Endpoints, members: Endpoints) -> Endpoints:
    """The endpoints for people to look at, with numbers that were read from names if
    subsets of these members go by them.

    >>> some = Endpoint("b-0:1"), Endpoint("b-2:1")
    >>> [each.task for each in with_tasks(some, some)]
    [0, 2]
    """
    if number(members).why_not:
        return endpoints
    return tuple(map(_with_task, endpoints))


def _with_task(endpoint: Endpoint) -> Endpoint:
    name = NAMED.fullmatch(endpoint.address)
    if endpoint.task is not None or name is None:
        return endpoint
    return replace(endpoint, task=int(name["task"]))


def _backends(count: int) -> str:
    return "backend" if count == 1 else "backends"


def _why_not(count: int, tasks: dict[int, Endpoint], spare: int) -> str:
    """What is wrong with the task numbers of `count` endpoints; empty: nothing."""
    if not tasks:
        return "backends have no task numbers"
    if unknown := count - len(tasks) - spare:
        return f"{unknown} of {count} backends have no task number"
    if 2 * len(tasks) < count:
        return f"{count} backends have only {len(tasks)} task numbers"
    if max(tasks) >= MOST_HOLES * len(tasks) + SOME_HOLES:
        return f"{len(tasks)} backends have task numbers up to {max(tasks)}"
    return ""


class Choice:
    """A channel's `Subset`: the algorithm of that name, or "auto".

    `algorithm` is what the last snapshot got, `repr` a sentence that tells it and why.
    `goes_by_place` tells whether its numbers are places, which causes churn, and
    `is_random` whether backends have more clients or fewer by chance, which "auto" does
    not want.

    Raises ConfigError for an algorithm that needs the client's task number, where
    that is not known.
    """

    def __init__(
        self, name: str, size: int, identity: Identity, client_id: str, client_job: str
    ) -> None:
        unknown = f" ({identity.source})" if identity.source else ""
        if identity.index is None and name not in NEED_NO_NUMBER:
            want = (
                f"this client's number in its job for subset={name!r}: set"
                f" LBCLIENT_TASK_INDEX to 0 or more, or use subset='auto'{unknown}"
            )
            raise ConfigError("task_index", None, want)
        self.goes_by_place = self.is_random = False
        self._name = name
        self._size = size
        self._client_id = client_id
        self._rendezvous = Rendezvous(client_id)  # knows who drew what before
        self._offset = job_offset(client_job)
        self._why_not = ""
        if identity.index is None:
            self._client = _hashed(client_id)
            self._who = repr(client_id)
            if name == AUTO:
                self._why_not = f"the client has no task number{unknown}"
        else:
            self._client = identity.index
            job = f" of {client_job!r}" if client_job else ""
            self._who = f"{identity.index}{job} ({identity.source})"
        self.algorithm = ""
        self._words = f"{name}, no endpoints yet"
        self._endpoints: Endpoints = ()
        self._order: Order = tuple
        self._numbers: dict[str, int] = {}  # of tasks by address, if they have any

    def __call__(self, endpoints: Endpoints) -> Iterable[Endpoint]:
        """The members in order of preference. What takes O(N) is done once a
        snapshot."""
        if not endpoints:
            return ()
        if endpoints != self._endpoints:
            self._order = self._choose(endpoints)
            self._endpoints = endpoints
        return self._order()

    def _choose(self, endpoints: Endpoints) -> Order:
        why_not = self._why_not
        if self._name != RENDEZVOUS and not why_not:
            numbering = number(endpoints)
            if self._name != AUTO or not numbering.why_not:
                return self._by_number(numbering)
            why_not = numbering.why_not
        because = f": {why_not}" if why_not else ""
        self._numbers = {}
        self.algorithm = RENDEZVOUS
        self.is_random = self._name == AUTO
        self._words = f"{RENDEZVOUS} as client {self._client_id!r}{because}"
        preferred: Sequence[Endpoint] = self._rendezvous(endpoints)
        return lambda: preferred

    def _by_number(self, numbering: Numbering) -> Order:
        name = ROCKSTEADIER if self._name == AUTO else self._name
        self.algorithm = name
        self.is_random = False
        self._words = f"{name} as client {self._who} of {numbering}"
        self.goes_by_place = bool(numbering.why_not) and name != "whole"
        if self.goes_by_place:
            self._words += "; each that comes or goes moves others"
        backends = len(numbering.backends)
        self._numbers = {}
        if not numbering.why_not:
            self._numbers = {
                each.address: place
                for place, each in enumerate(numbering.backends)
                if each is not None
            }
        return lambda: numbering.endpoints_of(
            order(name, self._client, backends, self._size, offset=self._offset)
        )

    def workers(self, task: Endpoint, count: int) -> Sequence[int]:
        """The numbers of a task's workers in this client's order of preference."""
        number = self._numbers.get(task.address)
        if number is None or self.algorithm != ROCKSTEADIER:
            return by_chance(self._rendezvous, task, count)
        return by_turns(self._client + LOT * self._offset, number, count)

    def __repr__(self) -> str:
        return self._words


def _hashed(client_id: str) -> int:
    """A client's number where any will do, as long as clients differ in it."""
    name = client_id.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=8).digest())
