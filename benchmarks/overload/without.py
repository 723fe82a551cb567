"""What a server of ours does against overload, each thing to be switched off alone.

No setting does this: in the process of the server under test a variable of the module
that does it is replaced, before the server is made.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, TypeVar

from lbclient.core.overload.admission import Admission
from lbclient.core.overload.queue_delay import QueueDelay
from lbclient.server import grpc_server
from lbclient.server.overload import gate, run_queue
from lbclient.server.overload.shedding import Shedding
from lbclient.server.requests import handler

T = TypeVar("T")


def put(owner: Any, name: str, value: Any) -> None:
    """Replaces a name of a module or class. Raises AttributeError if it has none."""
    getattr(owner, name)
    setattr(owner, name, value)


def leave_in_core() -> None:
    """Servers of this process take requests one by one, as grpcio does."""

    def make_as_it_is(
        make: Callable[[Any], T], _queue: object, ours: Any, others: Sequence[Any]
    ) -> tuple[T, bool]:
        return make((ours, *others) if others else None), bool(others)

    put(grpc_server, "with_queue", make_as_it_is)


def wake_one_by_one() -> None:
    """The loop reads one of grpcio's wake-ups a turn, and so nothing is dropped."""
    put(gate, "read_together", lambda *_: None)


def forget_the_core() -> None:
    """How long requests wait in gRPC's core refuses nobody."""
    put(QueueDelay, "sample", lambda *_, **__: None)


def answer_all() -> None:
    """Nothing is dropped: every refusal is answered."""
    put(Shedding, "is_flood", lambda *_: False)


def run_at_once() -> None:
    """Handlers do not take turns: they begin as soon as they are looked up."""
    put(run_queue, "TUNING", replace(run_queue.TUNING, slice=inf))


def serve_the_late() -> None:
    """Handlers begin however little time their requests have left."""
    put(handler.Wrapped, "_too_late", lambda *_: None)


def admit_all() -> None:
    """No signal refuses anybody."""
    put(Admission, "refuses", lambda *_: None)


MECHANISMS: dict[str, Callable[[], None]] = {
    "intake": leave_in_core,
    "wake-ups": wake_one_by_one,
    "queue-delay": forget_the_core,
    "dropping": answer_all,
    "run-queue": run_at_once,
    "too-late": serve_the_late,
    "admission": admit_all,
}
