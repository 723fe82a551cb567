"""Which addresses are taken for those of several tasks, and what their load is."""

from itertools import count

import pytest

from lbclient.model import LoadReport
from lbclient.shared_address import MEMORY, MOST, RECENT, SharedAddress

A, B, C = 11, 22, 33


def told(task: int, utilization: float = 0.5, active: int | None = 2) -> LoadReport:
    return LoadReport(utilization=utilization, active=active, task_id=task)


def hear(address: SharedAddress, *tasks: int, since: float = 0.0) -> bool:
    """One call after the other, each sent when the last one was answered."""
    for at, task in enumerate(tasks):
        address.observe(told(task), since + at, since + at + 0.5)
    return address.is_shared(since + len(tasks))


@pytest.mark.parametrize("tasks", [(A, B, A), (A, B, C, A), (A, A, B, B, C, B)])
def test_numbers_that_come_back_are_several_tasks(tasks: tuple[int, ...]) -> None:
    assert hear(SharedAddress(), *tasks)


@pytest.mark.parametrize("tasks", [(A,), (A, A), (A, B), (A, B, B, C), (0, A, 0, A)])
def test_numbers_that_do_not_come_back_are_one_task_after_the_other(
    tasks: tuple[int, ...],
) -> None:
    assert not hear(SharedAddress(), *tasks)


def test_a_restart_is_no_front_though_an_old_answer_comes_late() -> None:
    address = SharedAddress()
    address.observe(told(A), sent_at=0.0, now=0.1)
    address.observe(told(B), sent_at=1.0, now=1.1)
    address.observe(told(A), sent_at=0.5, now=2.0)  # sent before B was heard
    assert not address.is_shared(2.0)


def test_a_new_connection_has_a_new_task() -> None:
    address = SharedAddress()
    hear(address, A, B)
    address.connected()
    assert not hear(address, A, since=10.0)


def test_an_address_stays_a_front_for_a_while() -> None:
    address = SharedAddress()
    hear(address, A, B, A)
    address.connected()
    assert address.is_shared(100.0)
    assert not address.is_shared(10.0 + MEMORY)


def test_the_load_is_the_mean_of_what_the_tasks_said_of_late() -> None:
    address = SharedAddress()
    address.observe(told(C, 0.9, 9), 0.0, 0.0)
    now = RECENT + 1
    address.observe(told(A, 0.2, 1), now - 0.3, now - 0.2)
    address.observe(told(B, 0.6, 4), now - 0.2, now - 0.1)
    address.observe(told(A, 0.4, 2), now - 0.1, now)
    mean = address.mean(now)
    assert mean is not None
    assert mean.utilization == pytest.approx(0.5)
    assert mean.active == 3
    assert mean.state is None
    assert address.tasks(now) == 2


def test_no_more_tasks_are_remembered_than_that() -> None:
    address = SharedAddress()
    for task, at in zip(range(1, 10 * MOST), count(), strict=False):
        address.observe(told(task), at, at)
    assert len(address._first) == len(address._last) == MOST
