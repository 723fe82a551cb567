"""What a server of ours does against overload, each thing to be switched off alone.

No setting does this: in the process of the server under test a variable of the module
that does it is replaced, before the server is made.
"""

from collections.abc import Callable
from math import inf
from typing import Any, TypeVar

from lbclient.admission import Admission
from lbclient.server import grpc_server, handlers, intake, run_queue

T = TypeVar("T")


def leave_in_core() -> None:
    """Servers of this process take requests one by one, as grpcio does."""

    def make_as_it_is(make: Callable[[], T], _queue: object) -> T:
        return make()

    vars(grpc_server)["with_queue"] = make_as_it_is


def let_none_go() -> None:
    """Requests wait in the server's own queue however stale they are."""
    vars(intake)["STANDING"] = inf


def run_at_once() -> None:
    """Handlers do not take turns: they begin as soon as they are looked up.

    So nobody sees that they have the loop for long, and 16 requests at most are taken
    out of gRPC's core ahead of time.
    """
    vars(run_queue)["SLICE"] = inf


def take_few() -> None:
    """16 requests at most are taken out of gRPC's core ahead of time."""
    vars(run_queue)["EAGER"] = inf


def serve_the_late() -> None:
    """Handlers begin however little time their requests have left."""
    wrapped: Any = handlers._Wrapped
    wrapped._is_too_late = lambda *_: False


def admit_all() -> None:
    """No signal refuses anybody."""
    admission: Any = Admission
    admission.refuses = lambda *_: None


MECHANISMS: dict[str, Callable[[], None]] = {
    "intake": leave_in_core,
    "eager-intake": take_few,
    "letting-go": let_none_go,
    "run-queue": run_at_once,
    "too-late": serve_the_late,
    "admission": admit_all,
}
