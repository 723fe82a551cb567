"""Which addresses are taken for those of several tasks, and what their load is."""

from itertools import count

import pytest

from lbclient.core.backends.shared_address import (
    MEMORY,
    MOST,
    MOST_TASKS,
    RECENT,
    SharedAddress,
)
from lbclient.core.model import LoadReport, TaskState
from tests.held import held_by

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


def test_what_a_task_does_not_tell_is_not_in_the_mean() -> None:
    """One of two told nothing, and the address seemed to be half as busy."""
    address = SharedAddress()
    metrics = {"named_metrics.pool": 0.7}
    report = LoadReport(0.8, 40.0, 2.0, 4, latency=0.2, task_id=A, metrics=metrics)
    for at, said in enumerate((report, LoadReport(task_id=B), report)):
        address.observe(said, at, at)
    assert address.mean(2.0) == report._replace(task_id=0)
    silent = SharedAddress()
    silent.observe(LoadReport(qps=9.0, task_id=A), 0.0, 0.0)
    assert silent.mean(0.0) == LoadReport(qps=9.0)


def test_a_task_without_requests_that_wait_tells_only_all_of_them() -> None:
    address = SharedAddress()
    for at, (task, active, runnable) in enumerate([(A, 30, 2), (B, 4, None)] * 2):
        report = LoadReport(active=active, runnable=runnable, task_id=task)
        address.observe(report, at, at)
    mean = address.mean(3.0)
    assert mean is not None
    assert (mean.active, mean.runnable) == (17, 3)


def test_the_mean_of_one_report_has_all_its_numbers() -> None:
    refused = (0.75, 0.5, 0.25, 0.0)
    told = {"named_metrics.pool": 0.5}
    report = LoadReport(
        0.5, 30.0, 1.0, 4, 2, latency=0.25, refused=refused, metrics=told
    )
    unlike = {
        name
        for name, default in LoadReport._field_defaults.items()
        if getattr(report, name) == default
    }
    assert unlike == {"state", "task_id"}  # of one task, not of several
    address = SharedAddress()
    for now in range(4):
        report = report._replace(task_id=1 + now % 2)
        address.observe(report, float(now), float(now))
    assert address.mean(4.0) == report._replace(task_id=0)


def test_no_more_tasks_are_remembered_than_that() -> None:
    address = SharedAddress()
    for task, at in zip(range(1, 10 * MOST), count(), strict=False):
        address.observe(told(task), at, at)
    assert len(held_by(address, LoadReport)) == MOST


@pytest.mark.parametrize("tasks", [MOST, MOST + 1, 3 * MOST, 100 * MOST])
def test_more_tasks_by_turns_than_are_remembered_are_recognized(tasks: int) -> None:
    address = SharedAddress()
    turns = (1 + number % tasks for number in range(3 * MOST))
    assert hear(address, *turns)


def test_a_task_that_restarts_now_and_then_is_never_shared() -> None:
    """Behind a proxy, which keeps the client's connection."""
    address, now = SharedAddress(), 0.0
    for task in range(1, 10 * MOST):
        for _ in range(10):
            now += MEMORY / MOST / 8
            address.observe(told(task), now, now)
            assert not address.is_shared(now)


def test_an_address_that_is_one_task_again_is_not_shared_for_ever() -> None:
    """Two tasks behind a proxy, of which one has gone."""
    address = SharedAddress()
    assert hear(address, A, B, A)
    now = 3.0
    while now < 3.0 + MEMORY:
        address.observe(told(A), now, now)
        now += 1.0
    assert not address.is_shared(now)
    assert address.tasks(now) == 0


def test_an_address_stays_shared_as_long_as_tasks_take_turns() -> None:
    address = SharedAddress()
    hear(address, A, B, A)
    for at in range(10, int(10 * MEMORY), int(MEMORY / 2)):
        hear(address, A, B, since=at)
        assert address.is_shared(at + 2.0)


def test_many_calls_in_flight_at_two_tasks_are_evidence() -> None:
    """Each answer is to a call that was sent before several others were answered."""
    address = SharedAddress()
    for at in range(100):
        address.observe(told((A, B)[at % 2]), at - 20.0, at)
    assert address.is_shared(100.0)


def test_tasks_are_counted_that_answered_of_late_and_no_others() -> None:
    address = SharedAddress()
    hear(address, A, B, C, A)
    assert address.tasks(4.0) == 3
    address.observe(told(B), 20.0, 20.0)
    assert address.tasks(20.0) == 1
    assert address.tasks(20.0 + RECENT) == 0


# --- which states are believed ------------------------------------------------

SERVING, OTHERS = TaskState.SERVING, [TaskState.LAME_DUCK, TaskState.STARTING]


@pytest.mark.parametrize("state", OTHERS)
def test_the_state_of_a_single_task_is_believed(state: TaskState) -> None:
    address = SharedAddress()
    assert address.believes(state, 0.0)
    assert address.believes(SERVING, 0.0)


@pytest.mark.parametrize("state", OTHERS)
def test_of_a_shared_address_it_is_believed_if_several_in_a_row_say_so(
    state: TaskState,
) -> None:
    address = SharedAddress()
    hear(address, A, B, A)
    for _ in range(2):
        said = [address.believes(state, 4.0) for _ in range(MOST_TASKS + 2)]
        assert said == [False] * MOST_TASKS + [True] * 2
        assert address.believes(SERVING, 4.0)


def test_an_answer_of_a_task_that_serves_ends_the_row() -> None:
    address = SharedAddress()
    hear(address, A, B, A)
    for _ in range(10 * MOST_TASKS):
        assert not address.believes(TaskState.LAME_DUCK, 4.0)
        address.observe(LoadReport(state=SERVING, task_id=B), 4.0, 4.0)
