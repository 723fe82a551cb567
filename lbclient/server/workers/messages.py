"""What a supervisor and its workers tell each other.

Each message is whole. One that is lost, as its reader is frozen, is made good by the
next of its kind where there is one: usage is told each second, ports at each change.
The others are told once, and what they ask for then comes with the worker's period.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from lbclient.core.errors import ConfigError
from lbclient.server.warmup import Warmup

MakeServer: TypeAlias = Callable[[], Any]
"""Makes a worker's server. A function without arguments that returns one, or a
coroutine function, or one that returns an asynchronous context manager for one."""

Ports: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""By shared port: the own port of each worker by its number, 0 where it does not serve
now. So what one worker's end changes is its own place alone."""


class Assignment(NamedTuple):
    """What a worker is started with.

    `number` stays with the worker's place, from 1. `group` is the same number in all
    workers of the task. `slot` is free of other workers as long as it lives. `workers`
    is how many there are to be. `address` is where all of them listen, besides what
    `make_server` says; None: nowhere. `made` is called with the server,
    `describe` when the supervisor asks for what a page shows of the process.
    """

    make_server: MakeServer | str
    warmup: Warmup | None
    number: int
    group: int
    slot: int
    workers: int
    address: str | None = None
    log_level: str | None = None
    made: Callable[[Any], object] | None = None
    describe: Callable[[], bytes] | None = None


# --- of a worker ------------------------------------------------------------------


class Ready(NamedTuple):
    """It serves. `ports` are its own by shared port, `period` is how many seconds it
    may take to leave, `listening` are the addresses that it shares."""

    ports: tuple[tuple[int, int], ...]
    period: float
    listening: tuple[str, ...]


class ShownValue(str):
    """How a value looked in the process that has it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class WorkerFailed(NamedTuple):
    """It has not come so far. `mistake` is the caller's, if it is one; errors of the
    program's own classes do not travel."""

    mistake: ConfigError | None
    why: str
    story: str


class Leaving(NamedTuple):
    """It was told to leave, by its supervisor or by somebody else."""


class Quiet(NamedTuple):
    """A leaving one: no client that watches its health calls any more."""


class UsageTold(NamedTuple):
    """What one of its servers, with these limits, gave of late: CPU seconds a second,
    by customer."""

    limits: str
    server: str
    usage: dict[str, float]


class Description(NamedTuple):
    """What a page shows of the process."""

    data: bytes


# --- to a worker ------------------------------------------------------------------


class ServingPorts(NamedTuple):
    """All workers that serve, itself included. `pids` are all processes of the task
    but its supervisor. `serving` is how many serve; 0 once the task leaves."""

    ports: Ports
    pids: tuple[int, ...]
    serving: int


class UsageHeard(NamedTuple):
    """What so many servers of the task gave together."""

    server: str
    tasks: int
    total: dict[str, float]


class DescriptionWanted(NamedTuple):
    """It is to send a description."""


class AllQuiet(NamedTuple):
    """Every worker that leaves together with this one is quiet."""


class Hurry(NamedTuple):
    """It is not to wait for its requests any more."""
