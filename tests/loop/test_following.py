"""Resolvers that raise, end, never wait or never stop: followed for ever all the same.

And the mechanism below: tasks and timers that fail live again.
"""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from lbclient.background import tasks as tasks_module
from lbclient.background.tasks import PAUSE, Alarm, Tasks
from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoint, Endpoints
from lbclient.resolvers import listing
from lbclient.resolvers.following import BURST, MOST, PERIOD, Following

ANSWER = (Endpoint("a:1"),)


class Odd(BaseException):
    """As of a library that has its own way to end what runs."""


class Fixture:
    """Follows one resolver, and notes what came of that."""

    def __init__(
        self, watch: Callable[[], Any], seed: int = 7, **attributes: object
    ) -> None:
        self.tasks = Tasks("test", Random(7))
        self.taken: list[Endpoints] = []
        self.complaints: list[str] = []
        resolver: Any = type("Resolver", (), {**attributes, "watch": lambda _: watch()})
        self.following = Following(
            "test",
            resolver(),
            self.taken.append,
            self.complaints.append,
            self.tasks,
            Random(seed),
            longest_pause=30.0,
        )
        self.tasks.keep("resolver", self.following.follow)

    async def run(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.tasks.close()


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError("mine"),
        GeneratorExit("mine"),
        Odd("mine"),
        ValueError("mine"),
    ],
)
async def test_a_resolver_is_asked_again_whatever_it_raises(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    asked = 0

    async def watch() -> AsyncIterator[Endpoints]:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise error
        yield ANSWER
        await asyncio.Event().wait()

    fixture = Fixture(watch)
    await fixture.run(10.0)
    assert fixture.taken == [ANSWER]
    assert len(fixture.complaints) == 2
    for complaint in fixture.complaints:
        assert complaint.startswith("the resolver failed: ")
        assert type(error).__name__ in complaint
    assert fixture.tasks.failures == 2
    assert caplog.text.count("test: the resolver failed") == 2
    assert type(error).__name__ in caplog.text


@pytest.mark.parametrize("answers", [0, 2])
async def test_one_that_took_a_cancel_for_its_own_is_asked_again(answers: int) -> None:
    """Whatever else it does: its task is not ours."""
    asked = 0

    async def watch() -> AsyncIterator[Endpoints]:
        nonlocal asked
        asked += 1
        await take_a_cancel_for_its_own()
        for _ in range(answers):
            yield ANSWER
        if asked % 2:
            raise asyncio.CancelledError

    fixture = Fixture(watch)
    await fixture.run(60.0)
    assert asked > 3
    assert len(fixture.complaints) == asked
    assert fixture.tasks.failures == (asked + 1) // 2
    assert len(fixture.taken) >= min(answers, 1) * asked
    before = asked
    await asyncio.sleep(60.0)
    assert asked == before


async def test_one_that_answers_its_cancel_is_left() -> None:
    fixture = Fixture(answer_for_ever)
    await fixture.run(10.0)
    taken = list(fixture.taken)
    assert taken
    await asyncio.sleep(60.0)
    assert fixture.taken == taken
    assert fixture.tasks.failures == 0


async def test_one_that_always_fails_is_asked_less_and_less_often() -> None:
    async def watch() -> AsyncIterator[Endpoints]:
        raise asyncio.CancelledError
        yield ANSWER

    fixture = Fixture(watch)
    await fixture.run(600.0)
    assert 20 < fixture.tasks.failures < 35  # once in 30 s, after 1, 2, 4, ...


async def failed_at(seed: int, answers_after: int) -> list[float]:
    """When it was asked, in 60 s; it fails each time, once after it has answered."""
    asked_at = list[float]()

    async def watch() -> AsyncIterator[Endpoints]:
        asked_at.append(asyncio.get_running_loop().time())
        if len(asked_at) == answers_after:
            yield ANSWER
        raise ResolveError("down")

    fixture = Fixture(watch, seed=seed)
    await fixture.run(60.0)
    return [at - asked_at[0] for at in asked_at]


async def test_pauses_double_and_begin_anew_after_an_answer() -> None:
    """Each is up to a quarter longer or shorter."""
    times = await failed_at(7, answers_after=4)
    pauses = [later - at for at, later in pairwise(times)]
    for pause, expected in zip(pauses[:6], [1.0, 2.0, 4.0, 1.0, 2.0, 4.0], strict=True):
        assert 0.75 * expected <= pause <= 1.25 * expected, pauses


async def test_clients_whose_resolvers_fail_together_do_not_ask_together() -> None:
    second = [(await failed_at(seed, answers_after=0))[1] for seed in range(20)]
    assert len({round(at, 2) for at in second}) > 10
    assert max(second) - min(second) > 0.3


async def test_one_that_is_no_iterator_or_ends_is_asked_again() -> None:
    async def ends() -> AsyncIterator[Endpoints]:
        yield ANSWER

    for watch in (lambda: None, ends):
        fixture = Fixture(watch)
        await fixture.run(10.0)
        assert len(fixture.complaints) > 2
        assert (fixture.tasks.failures > 2) is (watch is not ends)


async def test_one_that_never_waits_starves_nobody_and_its_last_answer_wins() -> None:
    given = 0

    async def watch() -> AsyncIterator[Endpoints]:
        nonlocal given
        while True:
            given += 1
            yield (Endpoint(f"b{given}:1"),)

    fixture = Fixture(watch)
    for _ in range(10):
        await asyncio.sleep(0)  # returns
    assert given <= 11
    await fixture.run(10.0)
    assert MOST <= given <= (10.0 / PERIOD + 1) * MOST
    assert len(fixture.taken) <= 10.0 / PERIOD + 1 + BURST
    last = int(fixture.taken[-1][0].address.partition(":")[0][1:])
    assert given - last <= 2 * MOST


async def test_of_answers_in_a_burst_the_first_and_the_last_take_effect() -> None:
    async def watch() -> AsyncIterator[Endpoints]:
        for number in range(1000):
            yield (Endpoint(f"b{number}:1"),)
        await asyncio.Event().wait()

    fixture = Fixture(watch)
    await fixture.run(5.0)
    first, last = fixture.taken[0], fixture.taken[-1]
    assert [first[0].address, last[0].address] == ["b0:1", "b999:1"]
    assert len(fixture.taken) <= 2 * BURST + 2


async def test_what_is_no_list_of_endpoints_is_told_though_it_came_in_a_burst(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def watch() -> AsyncIterator[Any]:
        for _ in range(BURST + 1):
            yield ANSWER
        yield 7
        await asyncio.sleep(2.0)
        yield ANSWER
        await asyncio.Event().wait()

    fixture = Fixture(watch)
    await fixture.run(5.0)
    assert fixture.taken == [ANSWER] * (BURST + 1)
    [complaint] = fixture.complaints
    assert "endpoints = 7: want a tuple of Endpoints" in complaint


async def test_of_endpoints_without_end_some_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "MAX_ENDPOINTS", 100)
    read = 0

    def endless() -> Iterator[Endpoint]:
        nonlocal read
        while read < 10_000:  # or the loop would stand still
            read += 1
            yield Endpoint(f"b{read // 2:05}:1")  # each but the first comes twice

    async def watch() -> AsyncIterator[Any]:
        yield endless()
        await asyncio.Event().wait()

    fixture = Fixture(watch)
    await fixture.run(5.0)
    assert fixture.complaints == []
    assert read == 200
    [taken] = fixture.taken
    assert [endpoint.address for endpoint in taken] == [
        f"b{n:05}:1" for n in range(100)
    ]


async def test_a_resolver_that_says_that_it_paces_itself_and_does_not_is_paced() -> (
    None
):
    async def watch() -> AsyncIterator[Endpoints]:
        raise ResolveError("no file")
        yield ANSWER

    fixture = Fixture(watch, paces_itself=True)
    await fixture.run(60.0)
    assert 3 < len(fixture.complaints) < 15
    assert fixture.tasks.failures == 0  # it is in order to say so


async def test_closing_waits_for_no_resolver_that_takes_a_cancel_for_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_over = False

    async def watch() -> AsyncIterator[Endpoints]:
        while not is_over:
            try:
                await asyncio.sleep(1.0)
            except asyncio.CancelledError:
                continue
        yield ANSWER

    fixture = Fixture(watch)
    await fixture.run(3.0)
    assert "'resolver' goes on though it was cancelled" in caplog.text
    is_over = True
    await asyncio.sleep(2.0)


@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_still_does(fatal: type[BaseException]) -> None:
    async def watch() -> AsyncIterator[Endpoints]:
        raise fatal
        yield ANSWER

    async def main() -> None:
        Fixture(watch)
        await asyncio.sleep(5.0)

    with pytest.raises(fatal):
        asyncio.run(main())


# --- tasks and alarms ---------------------------------------------------------


ENDS = [asyncio.CancelledError(), GeneratorExit(), Odd(), OSError(), None]


@pytest.mark.parametrize("error", ENDS)
async def test_a_task_lives_again_after_a_pause_whatever_it_died_of(
    error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    tasks, began_at = Tasks("test", Random(7)), list[float]()

    async def job() -> None:
        began_at.append(asyncio.get_running_loop().time())
        if len(began_at) < 3:
            if error is not None:
                raise error
            return
        await asyncio.Event().wait()

    tasks.keep("job", job)
    await asyncio.sleep(20.0)
    assert len(began_at) == 3
    assert began_at[1] - began_at[0] >= PAUSE / 2
    assert tasks.failures == 2
    assert "ended" if error is None else f"{type(error).__name__}" in caplog.text
    assert caplog.text.count("test: 'job' ") == 1  # a line in 10 s
    assert "starting it again" in caplog.text
    await tasks.close()
    assert len(began_at) == 3


async def take_a_cancel_for_its_own() -> None:
    """Without `uncancel`: its task counts as cancelled for ever."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert task.cancelling() == 1


@pytest.mark.parametrize("error", ENDS)
async def test_a_task_lives_again_though_it_once_cancelled_itself(
    error: BaseException | None,
) -> None:
    tasks, begun = Tasks("test", Random(7)), 0

    async def job() -> None:
        nonlocal begun
        begun += 1
        await take_a_cancel_for_its_own()
        if begun < 4:
            if error is not None:
                raise error
            return
        await asyncio.Event().wait()

    tasks.keep("job", job)
    await asyncio.sleep(30.0)
    assert (begun, tasks.failures) == (4, 3)
    await tasks.close()
    await asyncio.sleep(60.0)
    assert (begun, tasks.failures) == (4, 3)


async def test_a_job_that_is_dropped_before_it_begins_leaves_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    tasks = Tasks("test", Random(7))

    async def job() -> None:
        await asyncio.Event().wait()

    for turns in range(4):
        tasks.keep("job", job)
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks.drop("job")
        await asyncio.sleep(5.0)
    gc.collect()
    assert (tasks.failures, list(recwarn)) == (0, [])


@pytest.mark.parametrize("swallows", [False, True])
def test_the_end_of_the_loop_ends_tasks_that_nobody_closed(swallows: bool) -> None:
    """`asyncio.run` cancels all there are, and waits for them."""
    tasks, begun = Tasks("test", Random(7)), 0

    async def job() -> None:
        nonlocal begun
        begun += 1
        await take_a_cancel_for_its_own()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise

    async def main() -> None:
        tasks.keep("job", job)
        Fixture(answer_for_ever)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert (begun, tasks.failures) == (1, 0)


async def answer_for_ever() -> AsyncIterator[Endpoints]:
    await take_a_cancel_for_its_own()
    while True:
        yield ANSWER
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def test_a_timeout_of_its_own_is_no_cancel() -> None:
    tasks, ended = Tasks("test", Random(7)), 0

    async def job() -> None:
        nonlocal ended
        try:
            async with asyncio.timeout(1.0):
                await asyncio.Event().wait()
        finally:
            ended += 1

    tasks.keep("job", job)
    await asyncio.sleep(30.0)
    assert ended == tasks.failures > 3
    await tasks.close()


async def test_a_task_that_takes_its_cancel_for_its_own_affair_ends() -> None:
    tasks, begun = Tasks("test", Random(7)), 0

    async def job() -> None:
        nonlocal begun
        begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    tasks.keep("job", job)
    await asyncio.sleep(1.0)
    tasks.drop("job")
    await asyncio.sleep(10.0)
    assert (begun, tasks.failures) == (1, 0)


async def test_a_thousand_failures_of_a_kind_are_a_line_and_all_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = Tasks("test", Random(7))

    def fail() -> None:
        raise OSError("no file descriptors")

    for _ in range(1000):
        tasks.attempt(fail)
    assert tasks.failures == 1000
    assert len(caplog.records) == 1
    await asyncio.sleep(tasks_module.LOG_EVERY)
    tasks.attempt(fail)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()])
async def test_an_alarm_whose_ring_fails_rings_again(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    tasks, rang = Tasks("test", Random(7)), list[float]()

    def ring() -> None:
        rang.append(asyncio.get_running_loop().time())
        if len(rang) < 3:
            raise error

    alarm = Alarm(tasks, ring)
    began_at = asyncio.get_running_loop().time()
    alarm.set(1.0)
    await asyncio.sleep(60.0)
    assert [at - began_at for at in rang] == pytest.approx([1.0, 2.0, 3.0])
    assert tasks.failures == 2
    tasks.cancel()
    alarm.set(1.0)
    assert not alarm.is_set()
