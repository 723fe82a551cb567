"""What the background of a channel has of the call that set it off: nothing."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from random import Random

import pytest

import lbclient
from lbclient.background.tasks import Alarm, Tasks
from lbclient.core.call_hints import KeysAndCost, current
from lbclient.log import PREFIX, Log, set_subject

started_by: ContextVar[str] = ContextVar("started_by", default="nobody")


async def seen_by(
    tasks: Tasks, look: Callable[[], object]
) -> tuple[list[object], list[object]]:
    """What a task and a timer see that begin where the caller is."""
    in_task: list[object] = []
    in_timer: list[object] = []

    async def job() -> None:
        in_task.append(look())
        await asyncio.Event().wait()

    tasks.keep("job", job)
    Alarm(tasks, lambda: in_timer.append(look())).set(0.1)
    await asyncio.sleep(1.0)
    await tasks.close()
    return in_task, in_timer


async def test_a_channels_tasks_and_timers_have_no_key_of_a_caller() -> None:
    with lbclient.key("session-42"):
        seen = await seen_by(Tasks("test", Random(7), channel="test"), current)
        assert current() == KeysAndCost(("session-42",), 1.0)
    assert seen == ([None], [None])


async def test_a_servers_tasks_have_the_context_of_its_start() -> None:
    started_by.set("main")
    seen = await seen_by(Tasks("server", Random(7)), started_by.get)
    assert seen == (["main"], ["main"])


async def test_what_is_logged_there_has_its_subject(
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_subject(channel="c", backend="b:1")
    log = Log("test")
    await seen_by(Tasks("test", Random(7), channel="c"), lambda: log.warning("late"))
    said = [record for record in caplog.records if record.getMessage() == "late"]
    assert [vars(record)[f"{PREFIX}backend"] for record in said] == ["b:1"] * 2
