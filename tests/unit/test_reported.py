"""What a backend's tasks say of themselves, and where they are asked by UDP."""

from collections.abc import Callable
from random import Random

import pytest

from lbclient import wire
from lbclient.client.driver import Driver
from lbclient.client.reported import Reported
from lbclient.core.backends.condition import Condition
from lbclient.core.backends.lifecycle import Lifecycle
from lbclient.core.backends.shared_address import MEMORY
from lbclient.core.load import Load
from lbclient.core.model import LoadReport, TaskState
from lbclient.wire.datagram import Seal

PORT = 4711
SESSION = wire.UdpSession(PORT + 1, Seal(bytes(32), 7))


class Backend:
    """The parts of one, whose clock is a number."""

    def __init__(self, takes_sessions: bool = True) -> None:
        self.now = 100.0
        load, life = Load(), Lifecycle(2.0, Random(7))
        driver = Driver(life, load, self.clock, lambda _: None, lambda _: None)
        condition = Condition(self.now)
        self.reported = Reported(
            "c", "b:1", driver, load, condition, self.clock, takes_sessions
        )

    def clock(self) -> float:
        return self.now

    def answer_by_turns(self) -> None:
        """Two tasks answer calls."""
        for task in (1, 2, 1):
            self.now += 1.0
            report = LoadReport(state=TaskState.SERVING, task_id=task)
            self.reported.hear_answer(report, self.now - 0.5, self.now)


def told_by_stream(backend: Backend) -> None:
    backend.reported.note_server(is_ours=True, udp_port=PORT)


def seen_without_connection(backend: Backend) -> None:
    health = wire.Health(TaskState.SERVING, udp_port=PORT)
    backend.reported.seen(health, backend.now)


def given_by_stream(backend: Backend) -> None:
    backend.reported.note_server(is_ours=True, udp_port=PORT, udp_session=SESSION)


def given_without_connection(backend: Backend) -> None:
    health = wire.Health(TaskState.SERVING, udp_port=PORT, udp_session=SESSION)
    backend.reported.seen(health, backend.now)


@pytest.mark.parametrize("learn", [given_by_stream, given_without_connection])
def test_a_session_is_taken_where_the_channel_has_no_secret(
    learn: Callable[[Backend], None],
) -> None:
    """A secret is what servers must know, and who gives sessions does not know it."""
    one, with_secret = Backend(), Backend(takes_sessions=False)
    for backend, udp in ((one, tuple(SESSION)), (with_secret, (PORT, None))):
        learn(backend)
        assert (backend.reported.udp_port, backend.reported.udp_seal) == udp
    told_by_stream(one)
    assert (one.reported.udp_port, one.reported.udp_seal) == (PORT, None)


@pytest.mark.parametrize("learn", [given_by_stream, given_without_connection])
def test_of_several_tasks_behind_one_address_no_session_is_used(
    learn: Callable[[Backend], None],
) -> None:
    several = Backend()
    several.answer_by_turns()
    learn(several)
    assert several.reported.udp_port == 0


@pytest.mark.parametrize("learn", [told_by_stream, seen_without_connection])
def test_several_tasks_behind_one_address_are_not_asked_by_udp(
    learn: Callable[[Backend], None],
) -> None:
    """Nobody knows to which of them a probe would go, if it went to any."""
    one, several = Backend(), Backend()
    learn(one)
    assert one.reported.udp_port == PORT
    several.answer_by_turns()
    learn(several)
    assert several.reported.udp_port == 0
    several.now += MEMORY  # it is not known to be shared any more
    assert several.reported.udp_port == PORT


def test_an_address_that_turns_out_to_be_shared_is_not_asked_by_udp_any_more() -> None:
    backend = Backend()
    told_by_stream(backend)
    backend.answer_by_turns()
    assert backend.reported.udp_port == 0
