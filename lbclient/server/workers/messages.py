"""The messages between a supervisor and its workers.

Each message is complete in itself. A message is lost if its reader is frozen and the
pipe is full. Usage is sent again each second, and ports at each change. The others are
sent once: what a lost one asks for happens when the worker's period is over.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from lbclient.core.errors import ConfigError
from lbclient.server.warmup import Warmup

MakeServer: TypeAlias = Callable[[], Any]
"""Makes a worker's server. A function without arguments that returns one, or a
coroutine function, or one that returns an asynchronous context manager for one."""

Ports: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""By shared port, the own port of each worker in the order of their numbers; 0 if that
worker does not serve now. So the end of a worker changes only its own place."""


class Assignment(NamedTuple):
    """What a worker is started with.

    `number`, from 1, is that of the worker's place; a replacement gets the same.
    `group` is one number for all workers of the task. `slot` is a number that no other
    living worker has. `workers` is how many there are to be. `address` is where all of
    them listen, besides the ports that `make_server` adds; None: nowhere. `made` is
    called with the server, `describe` when the supervisor asks for a `Description`.
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


# --- from a worker to its supervisor ----------------------------------------------


class Ready(NamedTuple):
    """The worker serves.

    `ports` are pairs of a shared port and the worker's own port, `period` is how many
    seconds it may take to leave, `listening` are the addresses that it shares.
    """

    ports: tuple[tuple[int, int], ...]
    period: float
    listening: tuple[str, ...]


class ShownValue(str):
    """The `repr` of a value in the process that has it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class WorkerFailed(NamedTuple):
    """The worker failed before it was ready.

    `mistake` is the error if it is a ConfigError, without any object of the program's
    own classes, which the supervisor cannot unpickle. `why` is the error's text, and
    `story` its traceback.
    """

    mistake: ConfigError | None
    why: str
    story: str


class Leaving(NamedTuple):
    """The worker leaves, as its supervisor or somebody else asked it to."""


class Quiet(NamedTuple):
    """The worker leaves, and no client that watches its health calls any more."""


class UsageTold(NamedTuple):
    """What customers used lately of one of the worker's servers, which has these
    limits: CPU seconds per second, by customer."""

    limits: str
    server: str
    usage: dict[str, float]


class Description(NamedTuple):
    """What the status page or a scrape shows of the worker's process."""

    data: bytes


# --- from the supervisor to a worker ----------------------------------------------


class ServingPorts(NamedTuple):
    """The ports of all workers that serve, the receiver included. `pids` are all
    processes of the task but its supervisor. `serving` is how many serve; 0 once the
    task leaves."""

    ports: Ports
    pids: tuple[int, ...]
    serving: int


class UsageHeard(NamedTuple):
    """What customers used lately of so many servers (`tasks`) of the task together."""

    server: str
    tasks: int
    total: dict[str, float]


class DescriptionWanted(NamedTuple):
    """The worker is to send a `Description`."""


class AllQuiet(NamedTuple):
    """All workers that leave together with the receiver are `Quiet`."""


class Hurry(NamedTuple):
    """The worker is to stop without waiting for its requests."""
