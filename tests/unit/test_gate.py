"""What a server's signals and a request's metadata do at its gate."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import StatusCode

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.criticality import Criticality, current
from lbclient.core.errors import ConfigError
from lbclient.core.model import TaskState
from lbclient.core.overload.admission import LOAD, QUEUE_NAME
from lbclient.core.overload.overload_signals import TUNING as OVERLOAD_SIGNALS
from lbclient.core.overload.queue_delay import TUNING as QUEUE_DELAY
from lbclient.core.quotas.customer import current as paying
from lbclient.core.report.load_monitor import LoadMonitor
from lbclient.core.retries.retry import RATIO
from lbclient.core.retries.stock_budget import BURST
from lbclient.server.meters.cpu import available_cpus
from lbclient.server.meters.user_signals import UserSignals
from lbclient.server.overload.degradation import degraded
from lbclient.server.overload.gate import Gate
from lbclient.server.overload.intake import EACH_LONG, EACH_TURN
from lbclient.server.overload.refusal_status import LATE, RefusalStatus
from lbclient.server.overload.run_queue import TUNING as RUN_QUEUE
from lbclient.server.quotas.cpu_timing import account
from lbclient.server.requests.context import ContextlessRequest
from lbclient.server.statistics import ServerStatistics
from lbclient.wire import propagation

MANY = 400


class Task:
    """A gate whose signals are numbers."""

    def __init__(
        self, *, is_sampled: bool = True, pool: Executor | None = None, **config: Any
    ) -> None:
        self.now = 0.0
        self.runnable = 0
        self.memory = 0.0
        self.memory_reads = 0
        config.setdefault("runnable", lambda: self.runnable)
        settings = ServerConfig(**config)
        self.own = UserSignals(settings)
        self.gate = Gate(
            settings,
            LoadMonitor(1.0),
            lambda: self.now,
            self.own,
            Random(1),
            self._read_memory,
            pool=pool,
        )
        if is_sampled:
            self.sample()

    def _read_memory(self, now: float) -> float:
        self.memory_reads += 1
        return self.memory

    def sample(self, cpu: float = 0.0) -> None:
        self.now += 0.1
        self.gate.sample(self.now, cpu)

    def overload(self) -> None:
        """So long that patience is gone, and so much that nobody gets in."""
        self.runnable = 10**9
        for _ in range(100):
            self.sample()

    def refused(self, *metadata: tuple[str, str]) -> float:
        """The share of many such requests."""
        answers = [self.ask(*metadata) for _ in range(MANY)]
        return sum(answer is not None for answer in answers) / MANY

    def ask(self, *metadata: tuple[str, str]) -> RefusalStatus | None:
        return copy_context().run(self.gate.refuses, metadata)


# In calm requests are admitted without a decision; where `runnable` tells, never.
ALL_WAYS_IN = pytest.mark.parametrize("config", [{}, {"runnable": None}])


def in_request(
    task: Task, *metadata: tuple[str, str], ask: Callable[[], object]
) -> object:
    """What a handler of such a request is told."""

    def serve() -> object:
        assert task.gate.refuses(metadata) is None
        propagation.enter(ContextlessRequest(task.gate))
        return ask()

    return copy_context().run(serve)


def test_an_idle_task_refuses_nobody() -> None:
    task = Task()
    assert task.refused() == 0.0
    assert not any(sum(by.values()) for by in task.gate.refused.values())


def test_an_overloaded_task_says_why_and_that_nothing_was_executed() -> None:
    task = Task()
    task.overload()
    answer = task.ask()
    assert answer is not None
    assert answer.code is StatusCode.UNAVAILABLE
    assert answer.trailers == ((wire.REFUSAL_KEY, "overloaded"),)
    assert "load is" in answer.details
    assert f"the limit {LOAD.target:g}" in answer.details


def test_a_last_attempt_is_told_not_to_retry_in_words_of_stock_clients_too() -> None:
    task = Task()
    task.overload()
    answer = task.ask((wire.ATTEMPT_KEY, "2"))
    assert answer is not None
    assert answer.trailers == (
        (wire.REFUSAL_KEY, "overloaded-dont-retry"),
        (wire.PUSHBACK_KEY, "-1"),
    )
    assert task.gate.refused["overloaded-dont-retry"]["CRITICAL"] == 1


def test_last_attempts_take_nothing_of_the_budget_of_stock_clients() -> None:
    task = Task()
    task.overload()
    answers = [task.ask((wire.ATTEMPT_KEY, "2")) for _ in range(MANY)]
    told = {dict(one.trailers)[wire.REFUSAL_KEY] for one in answers if one}
    assert told == {"overloaded-dont-retry"}
    assert task.gate.attempts().withheld == 0


def test_stock_retries_are_counted_and_the_last_is_told_not_to_retry() -> None:
    task = Task()
    task.overload()
    answer = task.ask((wire.STOCK_ATTEMPT_KEY, "2"))
    assert answer is not None
    assert (wire.PUSHBACK_KEY, "-1") in answer.trailers
    seen = task.gate.attempts()
    assert seen.requests == {"0": 0, "1": 0, "2": 1}
    assert task.gate.refused["overloaded-dont-retry"]["CRITICAL"] == 1


def test_beyond_a_tenth_of_requests_only_our_channels_are_told_to_retry() -> None:
    """Stock clients obey the pushback, ours the word."""
    task = Task()
    task.overload()
    trailers = [dict(answer.trailers) for answer in refusals(task, MANY)]
    told = Counter(each.get(wire.PUSHBACK_KEY) for each in trailers)
    assert told[None] == pytest.approx(BURST + RATIO * MANY, abs=1)
    assert {each[wire.REFUSAL_KEY] for each in trailers} == {"overloaded"}
    assert task.gate.attempts().withheld == told["-1"]


def refusals(task: Task, times: int) -> list[RefusalStatus]:
    answers = [task.ask() for _ in range(times)]
    return [answer for answer in answers if answer is not None]


def test_a_refusal_for_want_of_a_place_says_whether_to_retry_too() -> None:
    task = Task()
    assert task.gate.full().trailers == ((wire.REFUSAL_KEY, "overloaded"),)
    assert dict(task.gate.full(2).trailers)[wire.PUSHBACK_KEY] == "-1"
    late = [task.gate.too_late(True) for _ in range(10)]
    assert dict(late[0].trailers)[wire.REFUSAL_KEY] == "overloaded"
    assert (wire.PUSHBACK_KEY, "-1") in late[-1].trailers


def test_what_comes_in_calm_brings_stock_clients_their_retries() -> None:
    """A limit of requests refuses in calm. Five retries were granted, and then none."""
    task = Task(runnable=None)
    granted = 0
    for _ in range(MANY):
        assert task.ask() is None
        granted += wire.PUSHBACK_KEY not in dict(task.gate.full().trailers)
    assert granted == pytest.approx(BURST + RATIO * MANY, abs=1)


@pytest.mark.parametrize("count", [1, 10])
def test_what_comes_in_calm_is_in_the_histogram_of_attempts(count: int) -> None:
    task = Task(runnable=None)
    for _ in range(count):
        assert task.ask() is None
    task.gate.let_by()
    assert task.ask((wire.STOCK_ATTEMPT_KEY, "1")) is None
    for _ in range(5):
        assert task.ask() is None
    assert task.gate.attempts().requests == {"0": count + 5, "1": 1, "2": 0}


def test_who_is_out_of_quota_is_in_the_histogram_of_attempts() -> None:
    """But not in the recent shares, where a flood would hide the others' retries."""
    task = Task(quotas={"wild": 0.0})
    task.overload()
    customer = (wire.CUSTOMER_KEY, "wild")
    for attempt in ("0", "1", "1", "9"):
        assert task.ask(customer, (wire.ATTEMPT_KEY, attempt)) is not None
    seen = task.gate.attempts()
    assert seen.requests == {"0": 1, "1": 2, "2": 1}
    assert seen.recent == {"0": 1.0, "1": 0.0, "2": 0.0}


def test_who_is_out_of_quota_brings_stock_clients_no_retries() -> None:
    task = Task(quotas={"wild": 0.0})
    task.overload()
    granted = 0
    for _ in range(MANY):
        task.ask((wire.CUSTOMER_KEY, "wild"))
        granted += wire.PUSHBACK_KEY not in dict(task.gate.full().trailers)
    assert granted == BURST


def test_what_is_sheddable_goes_first() -> None:
    task = Task(signals={"mine": lambda: 1.0 + 2 * OVERLOAD_SIGNALS.user_width})
    task.sample()
    key = wire.CRITICALITY_KEY
    low = [task.ask((key, "SHEDDABLE")) is None for _ in range(MANY)]
    high = [task.ask((key, "CRITICAL_PLUS")) is None for _ in range(MANY)]
    assert sum(low) < sum(high)


def test_what_is_cheaper_waits_until_nothing_above_it_is_refused() -> None:
    task = Task()
    task.overload()
    critical, sheddable = (
        (wire.CRITICALITY_KEY, name) for name in ("CRITICAL", "SHEDDABLE")
    )
    assert task.ask(critical) is not None
    task.runnable = 0  # its load swings
    task.sample()
    assert task.ask(critical) is None
    answer = task.ask(sheddable)
    assert answer is not None
    assert "more critical was refused" in answer.details
    last = task.ask(sheddable, (wire.ATTEMPT_KEY, "2"))
    assert last is not None
    assert dict(last.trailers)[wire.REFUSAL_KEY] == "overloaded-dont-retry"
    task.now += 2 * OVERLOAD_SIGNALS.yields
    assert task.ask(sheddable) is None


def test_who_gives_way_is_refused_as_overloaded_and_so_are_its_likes() -> None:
    task = Task()
    task.overload()
    task.runnable = 0
    task.sample()
    for level in ("SHEDDABLE_PLUS", "CRITICAL"):
        metadata = (wire.CRITICALITY_KEY, level)
        answer = in_request(task, metadata, ask=task.gate.overtaken)
        assert isinstance(answer, RefusalStatus)
        assert dict(answer.trailers)[wire.REFUSAL_KEY] == "overloaded"
        assert task.gate.refused["overloaded"][level] == 1
    assert task.ask((wire.CRITICALITY_KEY, "SHEDDABLE")) is not None


def test_in_a_flood_whoever_is_not_dropped_is_let_in() -> None:
    """It is decided on once: else a share of a share would get in."""
    task = Task()
    task.overload()
    named = (wire.CRITICALITY_KEY, "CRITICAL")
    assert task.ask(named) is not None
    task.gate._shedding.is_choosing = True
    assert task.ask(named) is None
    assert task.ask() is not None


def drops(task: Task, criticality: Criticality) -> bool:
    """As in a flood in which nobody less critical waits."""
    is_let_in = task.gate._lets_in(criticality)
    if not is_let_in:
        task.gate._count_dropped((), criticality)
    return not is_let_in


async def test_in_a_flood_so_many_wait_as_their_criticality_may() -> None:
    """Those that grpcio has wait, too, for their turns. But streams that go on have
    turns of their own, and who is more critical takes the turns of who is less."""
    task = Task()
    asked: list[tuple[int, int]] = []
    gate = task.gate
    gate.core.delay.has_room = lambda *of: asked.append(of[:2])  # type: ignore
    gate.core.intake._waiting.extend(range(3))
    turns = [gate.queue._new.wait(of) for of in Criticality]
    for _ in range(10):
        gate.queue._going_on.wait()
    for of in Criticality:
        gate._lets_in(of)
    assert asked == [(of, 3 + 4 - of) for of in Criticality]
    turns[Criticality.SHEDDABLE].cancel()
    await asyncio.sleep(0)  # its callback
    gate._lets_in(Criticality.CRITICAL_PLUS)
    assert asked[-1] == (Criticality.CRITICAL_PLUS, 4)
    assert len(gate.queue._new) == 3


async def test_in_a_flood_each_less_critical_one_is_room_for_one() -> None:
    task = Task()
    gate = task.gate
    gate.core.delay.has_room = lambda _, waiting, __: waiting < 2  # type: ignore
    gate.core.intake._waiting.append("one")
    turn = gate.queue._new.wait(Criticality.CRITICAL)
    assert not gate._lets_in(Criticality.CRITICAL)
    assert gate._lets_in(Criticality.CRITICAL_PLUS)
    gate.core.intake._waiting.append("let in")
    assert not gate._lets_in(Criticality.CRITICAL_PLUS)
    assert not gate._is_overloaded()
    gate._shedding.is_choosing = True
    assert gate._is_overloaded()
    gate.core.intake._waiting.pop()  # grpcio has it
    gate.queue._new.wait(Criticality.CRITICAL_PLUS, overtakes=True)
    assert await turn is False
    assert not gate._lets_in(Criticality.CRITICAL_PLUS)


def test_a_request_that_keeps_its_thread_takes_no_retry_from_the_budget() -> None:
    """It had just got it when a more critical request wanted its place."""

    class Keeps:
        def lose_place(self, refuse: Callable[[], RefusalStatus]) -> bool:
            return False

    with ThreadPoolExecutor(1) as pool:
        task = Task(pool=pool)
        gate = task.gate
        task.overload()
        gate.threads.queue(Keeps(), task.now, Criticality.SHEDDABLE)
        gate.threads.running.add("another")
        refused = gate.refused
        for _ in range(2 * int(BURST)):
            gate.make_way()
        assert gate.refused == refused
        assert gate.attempts().withheld == 0
        full = [gate.full() for _ in range(int(BURST))]
    assert not any(wire.PUSHBACK_KEY in dict(answer.trailers) for answer in full)


def test_what_is_dropped_is_counted_as_what_is_refused() -> None:
    task = Task()
    assert task.gate._lets_in(Criticality.SHEDDABLE)
    task.overload()
    before = task.gate.attempts().requests["0"]
    assert drops(task, Criticality.SHEDDABLE)
    assert task.gate.refused["unanswered"]["SHEDDABLE"] == 1
    assert task.gate.queue.arrived == 1
    assert task.gate.attempts().requests["0"] == before + 1


@pytest.mark.parametrize("customer", ["wild", "w" * 1000])
def test_what_is_dropped_beyond_a_quota_is_a_refusal_for_it(customer: str) -> None:
    """Of one who is not listed, and has no account of its own, too."""
    task = Task(quotas={"wild": 0.0}, default_quota=0.0)
    gate, level = task.gate, Criticality.CRITICAL
    wild, calm = (
        ((wire.CUSTOMER_KEY, name), (wire.CRITICALITY_KEY, level.name))
        for name in (customer, "calm")
    )
    assert not gate._has_used_up(wild, level)  # nobody has asked for it
    assert task.ask(*wild) is not None
    assert gate._has_used_up(wild, level)
    assert not gate._has_used_up(calm, level)
    before = gate.attempts().requests["0"]
    gate._count_used_up(wild, level)
    assert gate.refused["quota"]["CRITICAL"] == 2
    assert not any(gate.refused["unanswered"].values())
    assert gate.queue.arrived == 2
    assert gate.attempts().requests["0"] == before + 1
    task.sample()
    assert not any(gate.refused_shares.percents)


def test_what_is_dropped_and_refused_is_told_as_a_share_of_what_came() -> None:
    """Health checks are none of it."""
    key = wire.CRITICALITY_KEY
    task = Task()
    for refused in (False, True):
        task.runnable = 10**9 * refused
        for _ in range(20):
            assert drops(task, Criticality.SHEDDABLE) is refused
            assert (task.ask((key, "SHEDDABLE_PLUS")) is not None) is refused
            assert (task.ask((key, "CRITICAL")) is not None) is refused
            if not refused:
                task.ask((key, "SHEDDABLE"))  # as only what is dropped is counted
            task.gate.let_by()
    task.sample()
    assert task.gate.refused_shares.percents == (50, 50, 50)


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_comes_is_prompt_where_wake_ups_are_read_together(is_alone: bool) -> None:
    task = Task()
    seen: list[bool] = []
    task.gate.core.sample = lambda *of, **_: seen.append(of[2])  # type: ignore
    task.sample()
    wakeups = SimpleNamespace(is_alone=lambda: is_alone)
    task.gate._wakeups = wakeups  # type: ignore[assignment]
    task.sample()
    assert seen == [False, is_alone]


async def test_who_waits_for_a_turn_waits_but_for_long_handlers() -> None:
    """Those are a load of their own."""
    task = Task()
    seen: list[tuple[int, bool]] = []
    core = task.gate.core

    def sample(*_: object, in_line: int, **__: object) -> None:
        seen.append((in_line, core.has_long_handlers))

    core.sample = sample  # type: ignore[assignment, method-assign]
    for _ in range(3):
        task.gate.queue._new.wait()
    task.gate.queue._going_on.wait()  # a stream
    task.sample()
    task.gate.queue._costs.cpu = RUN_QUEUE.for_long
    task.sample()
    assert seen == [(3, False), (3, True)]


async def test_of_long_handlers_fewer_begin_in_a_turn_of_the_loop() -> None:
    """What has begun is load only when it waits for its turn, after some turns."""
    task = Task()
    gate = task.gate
    task.sample()
    assert gate.intake.each_turn == EACH_TURN
    gate.queue._costs.cpu = RUN_QUEUE.for_long
    task.sample()
    assert gate.intake.each_turn == EACH_LONG


def test_a_loop_whose_use_is_unknown_is_taken_to_be_busy() -> None:
    task = Task()
    seen: list[float] = []
    task.gate.core.sample = lambda *_, busy, **__: seen.append(busy)  # type: ignore
    for read in 0.25, None:
        task.gate._loop_meter.read = lambda read=read: read  # type: ignore
        task.sample()
    assert seen == [0.25, 1.0]


def test_what_came_and_was_never_seen_is_known() -> None:
    task = Task()
    task.gate.count_unseen_by(lambda: 3, most=600)
    task.ask()
    assert task.gate.count_unseen() == 2


def wait_in_core(task: Task, samples: int) -> None:
    """Five hundred wait, of which a hundred are taken in each sample, for 0.5 s."""
    task.gate.core.intake.was_behind = lambda: True  # type: ignore[method-assign]
    task.gate.core.unseen.count_by(lambda: task.gate.core.intake.taken + 500, most=1000)
    for _ in range(samples):
        task.gate.core.intake.taken += 100
        task.sample()


def test_what_waits_unseen_for_a_part_of_its_time_is_too_much() -> None:
    task = Task()
    task.gate.core.deadlines.observe(1.0)
    wait_in_core(task, samples=20)
    assert 0.4 < task.refused() < 1.0
    answer = next(answer for answer in (task.ask() for _ in range(MANY)) if answer)
    target = task.gate.core.delay.target
    assert f"queue delay is 0.50 s, the limit {target:.2g} s" in answer.details
    assert target >= QUEUE_DELAY.share
    key = wire.CRITICALITY_KEY
    low = high = 0
    for _ in range(MANY):
        low += task.ask((key, "SHEDDABLE")) is None
        high += task.ask((key, "CRITICAL_PLUS")) is None
    assert high > 10 * low
    seen = {one.name: one for one in task.gate.signals()}[QUEUE_NAME]
    assert seen.value == pytest.approx(0.5, rel=0.01)
    assert seen.target == task.gate.core.delay.target


def test_who_has_a_minute_may_wait_a_second() -> None:
    task = Task()
    task.gate.core.deadlines.observe(60.0)
    wait_in_core(task, samples=20)
    assert task.refused() == 0.0


def test_who_wants_no_admission_by_load_waits_in_the_core() -> None:
    task = Task(max_load=0)
    task.gate.core.deadlines.observe(1.0)
    wait_in_core(task, samples=20)
    assert task.refused() == 0.0


def test_few_that_take_long_are_too_many_where_deadlines_are_short() -> None:
    def load(deadline: float, **config: Any) -> float:
        task = Task(runnable=None, **config)
        for _ in range(100):
            task.gate.core.deadlines.observe(deadline)
        task.gate.queue.wait = lambda: 0.3  # type: ignore[method-assign]
        return task.gate.load(task.now)

    assert load(2.0) == pytest.approx(LOAD.target, rel=0.01)
    assert load(1.0) == pytest.approx(2.0 * LOAD.target, rel=0.01)
    assert load(60.0) < 1.0
    assert load(1.0, max_load=4.0) == pytest.approx(8.0, rel=0.01)
    assert load(1.0, max_load=0) == 0.0


def test_signals_of_ones_own_do_not_go_by_the_names_of_a_servers() -> None:
    full = Task(max_cpu=0.8, max_memory=0.9)
    for signal in full.gate.signals():
        with pytest.raises(ConfigError, match="want another name: 'load'"):
            Task(signals={signal.name: lambda: 0.5})


def test_each_signal_refuses_by_itself() -> None:
    task = Task(max_memory=0.9)
    task.memory = 1.5
    task.sample()
    assert task.refused() > 0.9
    assert task.gate.pressure.admission.worst == "memory"

    task = Task(max_cpu=0.8)
    for _ in range(100):
        task.sample(cpu=2.0)
    assert task.refused() > 0.9
    assert task.gate.pressure.admission.worst == "CPU utilization"

    mine = [0.5]
    task = Task(signals={"disk": lambda: mine[0]})
    task.sample()
    assert task.refused() == 0.0
    mine[0] = 3.0
    task.sample()
    assert task.refused() > 0.9
    answer = task.ask()
    assert answer is not None
    assert "disk is 3.00, the limit 1" in answer.details


def test_a_combination_refuses_where_none_of_its_parts_would() -> None:
    cpu, disk = [0.7], [0.7]
    parts = {"cpu": lambda: cpu[0], "disk": lambda: disk[0]}
    task = Task(signals=parts)
    task.sample()
    assert task.refused() == 0.0
    both = {"cpu and disk": lambda: (cpu[0] ** 2 + disk[0] ** 2) / 0.5}
    task = Task(signals={**parts, **both})
    task.sample()
    assert task.refused() > 0.9
    assert task.gate.pressure.admission.worst == "cpu and disk"
    disk[0] = 0.0
    task.sample()
    assert task.refused() == 0.0


def test_signals_that_are_off_refuse_nobody() -> None:
    task = Task(max_load=0, max_memory=0, max_cpu=0)
    task.memory = 5.0
    task.overload()
    task.sample(cpu=5.0)
    assert task.refused() == 0.0


@pytest.mark.parametrize("nonsense", [float("nan"), -1.0, float("inf"), "much", None])
def test_a_signal_that_makes_no_sense_is_not_used(nonsense: Any) -> None:
    task = Task(signals={"mine": lambda: nonsense})
    task.sample()
    assert task.refused() == 0.0
    assert task.own.complained == {"signals['mine']"}


def test_a_signal_that_raises_is_not_used() -> None:
    def fail() -> float:
        raise OSError("no sensor")

    task = Task(signals={"mine": fail})
    assert task.refused() == 0.0
    assert task.own.complained


@ALL_WAYS_IN
def test_a_handler_is_told_its_requests_criticality(config: dict[str, Any]) -> None:
    task = Task(**config)
    key = wire.CRITICALITY_KEY
    assert in_request(task, (key, "SHEDDABLE"), ask=current) is Criticality.SHEDDABLE
    assert in_request(task, ask=current) is None


@pytest.mark.parametrize("value", ["urgent!", "", "CRITICAL ", "x" * 10_000])
def test_an_unknown_criticality_is_the_default_and_is_counted(value: str) -> None:
    task = Task()
    assert in_request(task, (wire.CRITICALITY_KEY, value), ask=current) is None
    assert task.gate._metadata.misread[wire.CRITICALITY_KEY] == 1


@pytest.mark.parametrize("value", ["-1", "100", "one", "", "9" * 10_000, "٣"])
def test_an_absurd_attempt_is_the_first_and_is_counted(value: str) -> None:
    task = Task()
    task.overload()
    answer = task.ask((wire.ATTEMPT_KEY, value))
    assert answer is not None
    assert answer.trailers == ((wire.REFUSAL_KEY, "overloaded"),)
    assert task.gate._metadata.misread[wire.ATTEMPT_KEY] == 1


def test_a_cheaper_answer_is_wanted_before_anything_is_refused() -> None:
    task = Task()
    assert in_request(task, ask=degraded) is False
    busy = Task()
    busy.runnable = int(0.9 * LOAD.target * available_cpus()) + 1
    assert in_request(busy, ask=degraded) is True
    assert busy.refused() == 0.0


@pytest.mark.parametrize(
    ("signal", "half"), [("cpu", 0.4), ("memory", 0.81), ("mine", 0.5), ("limit", 4)]
)
def test_at_half_of_any_signals_target_a_cheaper_answer_is_wanted(
    signal: str, half: float
) -> None:
    """At 0.95 of its target it was not. Of memory it is nine tenths."""
    mine = [0.0]
    task = Task(max_cpu=0.8, max_memory=0.9, signals={"mine": lambda: mine[0]})
    if signal == "limit":
        task.gate.limit(8)

    def tell(value: float) -> None:
        mine[0] = value if signal == "mine" else 0.0
        task.memory = value if signal == "memory" else 0.0
        if signal == "limit":
            task.gate._monitor.active += 1
        for _ in range(100):  # as CPU is smoothed
            task.sample(value if signal == "cpu" else 0.0)

    if signal == "limit":
        for _ in range(4):
            tell(0.0)
    else:
        tell(0.98 * half)
    assert in_request(task, ask=degraded) is False
    tell(1.05 * half)
    assert in_request(task, ask=degraded) is True
    assert task.refused() == 0.0


def test_outside_of_a_request_nothing_is_degraded() -> None:
    assert degraded() is False


def test_the_last_places_are_kept_for_what_is_more_critical_and_comes() -> None:
    task = Task(runnable=None)
    task.gate.limit(8)
    for _ in range(7):
        task.gate._monitor.active += 1
    assert task.refused() == 0.0
    key = wire.CRITICALITY_KEY
    for level, is_refused in (("SHEDDABLE", True), ("CRITICAL", False)):
        answer = task.ask((key, level))
        assert (answer is not None) is is_refused
        assert answer is None or answer.code is StatusCode.RESOURCE_EXHAUSTED
    assert task.ask() is None, "in calm, too"
    assert task.gate.refused["concurrency"]["SHEDDABLE"] == 1
    for _ in range(64):
        task.ask((key, "CRITICAL_PLUS"))
    task.sample()
    answer = task.ask()
    assert answer is not None
    assert answer.trailers == ((wire.REFUSAL_KEY, "overloaded"),)
    (signal,) = [one for one in task.gate.signals() if one.name == "concurrency"]
    assert signal.value == 7 / 8 > signal.target


def test_where_all_places_are_taken_nobody_gets_as_far_as_a_handler() -> None:
    """To refuse there takes a quarter more, and the request is read first."""
    task = Task(runnable=None)
    task.gate.limit(8)
    task.gate._monitor.active = 8
    task.sample()
    answer = task.ask()
    assert answer is not None
    assert answer.code is StatusCode.RESOURCE_EXHAUSTED
    assert task.gate.refused["concurrency"]["CRITICAL"] == 1
    task.gate._monitor.active = 7
    assert task.ask() is None


def test_without_a_limit_there_is_no_signal_of_it() -> None:
    assert "concurrency" not in [signal.name for signal in Task().gate.signals()]


def test_what_came_in_calm_is_known_when_it_ends() -> None:
    """Requests that were let in without asking are part of the mix all the same."""
    load = [0.0]
    task = Task(runnable=None, signals={"mine": lambda: load[0]})
    assert task.refused() == 0.0
    load[0] = 1.0 + OVERLOAD_SIGNALS.user_width
    task.sample()
    task.ask()
    offered = task.gate.pressure.admission.mix.counts
    assert offered[Criticality.CRITICAL] > 0.9 * sum(offered)


def test_whoever_is_out_of_quota_hears_that_and_not_of_the_load() -> None:
    task = Task(quotas={"wild": 0.0, "calm": 1.0})
    task.overload()
    answer = task.ask((wire.CUSTOMER_KEY, "wild"))
    assert answer is not None
    assert answer.trailers == ((wire.REFUSAL_KEY, "quota"), (wire.PUSHBACK_KEY, "-1"))
    answer = task.ask((wire.CUSTOMER_KEY, "calm"))
    assert answer is not None
    assert (wire.REFUSAL_KEY, "overloaded") in answer.trailers


def test_a_default_quota_may_be_less_for_what_is_sheddable() -> None:
    task = Task(default_quota={"total": 1.0, "SHEDDABLE": 0.0})
    for level, is_refused in (("SHEDDABLE", True), ("SHEDDABLE_PLUS", False)):
        metadata = ((wire.CUSTOMER_KEY, "anybody"), (wire.CRITICALITY_KEY, level))
        assert (task.ask(*metadata) is not None) is is_refused
    assert task.gate.refused["quota"]["SHEDDABLE"] == 1


def test_where_who_pays_is_known_later_the_load_comes_first() -> None:
    asked = []
    task = Task(default_quota=0.0, customer=lambda context: asked.append(context))
    assert task.ask() is None
    assert task.gate.charging.asks("context") is not None
    task.overload()
    answer = task.ask()
    assert answer is not None
    assert (wire.REFUSAL_KEY, "overloaded") in answer.trailers
    assert asked == ["context"]


def test_what_is_none_of_the_requests_is_in_no_mix() -> None:
    """Health checks and unknown methods. They counted as CRITICAL first attempts."""
    task = Task()
    retried = [(wire.CRITICALITY_KEY, "SHEDDABLE"), (wire.ATTEMPT_KEY, "1")]
    for _ in range(400):
        for _ in range(3):
            task.gate.let_by()
        copy_context().run(task.gate.refuses, retried)
    assert task.gate.queue.arrived == 1600
    assert task.gate.pressure.admission.mix.counts[Criticality.CRITICAL] < 1.0
    assert task.gate.pressure.admission.attempts.is_in_vain()


def test_what_the_load_refuses_is_not_charged() -> None:
    task = Task(quotas={"calm": 1.0})
    quotas = task.gate.charging.quotas
    assert quotas is not None

    def serve() -> bool:
        if task.gate.refuses([(wire.CUSTOMER_KEY, "calm")]) is not None:
            return False
        charge = account.get()
        assert charge is not None
        charge.pay(0.1)
        return True

    for _ in range(5):
        copy_context().run(serve)
        task.sample()
    task.overload()
    assert task.refused((wire.CUSTOMER_KEY, "calm")) == 1.0
    task.runnable = 0
    assert copy_context().run(serve)


def test_in_calm_who_pays_is_asked_all_the_same() -> None:
    task = Task(runnable=None, quotas={"batch": 0.0})
    assert task.ask() is None
    for key, is_refused in ((wire.CUSTOMER_KEY, True), ("x-customer", False)):
        answer = task.ask((key, "batch"))
        assert (answer is not None) is is_refused
        assert answer is None or answer.code is StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(("is_for_load", "told"), [(True, (0, 0, 100)), (False, (0,))])
def test_who_has_too_short_a_deadline_is_not_told_to_all_clients_as_load(
    is_for_load: bool, told: tuple[int, ...]
) -> None:
    """Else one client with deadlines too short would have all others throttled."""
    task = Task()
    for _ in range(20):
        task.ask()
        task.gate.count(LATE, Criticality.CRITICAL, is_for_load)
    task.sample()
    assert task.gate.refused["too-late"]["CRITICAL"] == 20
    assert task.gate.refused_shares.percents == told


def test_what_is_refused_for_a_quota_is_not_told_to_all_clients_as_load() -> None:
    task = Task(runnable=None, default_quota=0.0)
    assert task.refused((wire.CUSTOMER_KEY, "acme")) > 0.5
    task.sample()
    assert task.gate.refused_shares.percents == (0,)


# What is known before a sample, and between two


def test_before_the_first_sample_requests_are_decided_on() -> None:
    task = Task(is_sampled=False)
    task.runnable = 10**9
    assert task.ask() is not None


def test_what_an_application_counts_itself_is_asked_for_each_request() -> None:
    task = Task()
    assert task.gate.load(task.now) == 0.0
    task.runnable = 10**9
    assert task.ask() is not None


def test_a_limit_holds_from_the_moment_it_is_set() -> None:
    task = Task(runnable=None)
    task.gate._monitor.active = 8
    assert task.ask() is None
    task.gate.limit(8)
    assert task.gate.without_place() == 0
    answer = task.ask()
    assert answer is not None
    assert answer.code is StatusCode.RESOURCE_EXHAUSTED
    assert task.gate.without_place() == 1


def test_who_waits_for_a_turn_or_a_thread_ends_the_calm_at_once() -> None:
    turns = Task(runnable=None)
    turns.gate.queue.is_closed = True
    turns.gate.queue.wait = lambda: 100.0  # type: ignore[method-assign]
    assert turns.refused() > 0.9

    threads = Task(runnable=None)
    for request in range(1000):
        threads.gate.threads.queue(request, threads.now - 10.0)
    assert threads.refused() > 0.9


def test_what_was_read_for_a_sample_is_not_read_again() -> None:
    """The server reads it in a thread, as it takes long."""
    task = Task()
    before = task.memory_reads
    task.now += 0.1
    task.gate.sample_system(task.now)
    task.gate.sample(task.now, 0.0)
    assert task.memory_reads == before + 1


# What reports and statistics tell


def test_reports_tell_signals_over_their_targets_if_these_are_known() -> None:
    task = Task(max_load=0, max_memory=0.9, signals={"mine": lambda: 0.3})
    assert "memory" not in task.gate._monitor.signals.read()
    task.memory = 0.45
    task.sample()
    told = task.gate._monitor.signals.read()
    assert told["memory"] == pytest.approx(0.5)
    assert told["mine"] == pytest.approx(0.3)
    assert "load" not in told, "it has no target"
    assert task.gate._monitor.memory == 0.45

    def fail() -> float:
        raise OSError("no sensor")

    task = Task(signals={"mine": fail})
    assert set(task.gate._monitor.signals.read()) == {"load", QUEUE_NAME}


def test_statistics_have_what_the_gate_knows() -> None:
    task = Task(signals={"mine": lambda: -1.0})
    task.overload()
    task.ask((wire.CRITICALITY_KEY, "urgent!"))
    seen = task.gate.complete(empty())
    assert seen.signal_failures == 101
    assert seen.load == task.runnable / available_cpus()
    assert seen.refused["overloaded"]["CRITICAL"] == 1
    assert {signal.name for signal in seen.signals} == {
        *("load", "memory", "mine"),
        QUEUE_NAME,
    }
    assert seen.admitted["SHEDDABLE"] == 0.0
    assert Task().gate.complete(empty()).admitted["SHEDDABLE"] == 1.0
    assert seen.attempts.requests == {"0": 1, "1": 0, "2": 0}
    assert seen.misread[wire.CRITICALITY_KEY] == 1


def empty() -> ServerStatistics:
    return ServerStatistics(
        state=TaskState.SERVING,
        utilization=0.0,
        qps=0.0,
        eps=0.0,
        active=0,
        requests={},
        watchers=0,
        latency_bounds=(),
        latency_counts=(),
        latency_sum=0.0,
    )


def test_threads_that_run_requests_are_used() -> None:
    with ThreadPoolExecutor(max_workers=4) as pool:
        task = Task(pool=pool)
        assert task.gate.threads_used() == 0.0
        task.gate.threads.running.add("a request")
        assert task.gate.threads_used() == 0.25


# Streams


def test_new_streams_are_refused_by_criticality_while_too_many_want_to_go_on() -> None:
    def refused(task: Task, *metadata: tuple[str, str]) -> RefusalStatus | None:
        answer = in_request(task, *metadata, ask=task.gate.refuses_stream)
        assert answer is None or isinstance(answer, RefusalStatus)
        return answer

    task = Task(runnable=None)
    sheddable = (wire.CRITICALITY_KEY, "SHEDDABLE")
    assert refused(task, sheddable) is None
    task.gate.queue.of_streams = lambda: 20.0  # type: ignore[method-assign]
    assert refused(task) is None
    answer = refused(task, sheddable)
    assert answer is not None
    assert answer.code is StatusCode.UNAVAILABLE
    assert answer.trailers == ((wire.REFUSAL_KEY, "overloaded"),)
    assert "20.00 streams want to go on, the limit is 8" in answer.details
    assert task.gate.refused["overloaded"]["SHEDDABLE"] == 1
    task.gate.queue.of_streams = lambda: 30.0  # type: ignore[method-assign]
    answer = refused(task)
    assert answer is not None
    assert "the limit is 24" in answer.details
    assert task.gate.refused["overloaded"]["CRITICAL"] == 1


def test_where_the_application_counts_streams_are_not_counted_for_it() -> None:
    task = Task()
    task.gate.queue.of_streams = lambda: 100.0  # type: ignore[method-assign]
    assert task.gate.refuses_stream() is None


# Who pays


@ALL_WAYS_IN
def test_a_handler_is_told_who_pays_but_for_a_mere_claim(
    config: dict[str, Any],
) -> None:
    claim = (wire.CUSTOMER_KEY, "acme")
    assert in_request(Task(**config), claim, ask=paying) == "acme"
    known_later = Task(customer=lambda context: None, **config)
    assert in_request(known_later, claim, ask=paying) is None


@ALL_WAYS_IN
@pytest.mark.parametrize("charges", [{"quotas": {"acme": 1.0}}, {"request_cost": True}])
def test_a_request_is_charged_once_and_a_quota_with_it(
    charges: dict[str, Any], config: dict[str, Any]
) -> None:
    task = Task(cpu_factor=1.0, **charges, **config)
    claim = (wire.CUSTOMER_KEY, "acme")

    def serve() -> RefusalStatus | None:
        task.now += 0.1
        if (answer := task.gate.refuses([claim])) is None:
            charge = account.get()
            assert charge is not None
            charge.pay(1.0)
        return answer

    answers = [copy_context().run(serve) for _ in range(MANY)]
    charged = task.gate.complete(empty()).customer_costs["acme"]
    assert charged == answers.count(None)
    told = {answer.code for answer in answers if answer is not None}
    assert told == ({StatusCode.RESOURCE_EXHAUSTED} if "quotas" in charges else set())


# The adaptive limit


@pytest.mark.parametrize("metadata", [(), ((wire.CRITICALITY_KEY, "CRITICAL"),)])
async def test_beyond_the_adaptive_limit_requests_find_no_place(
    metadata: tuple[tuple[str, str], ...],
) -> None:
    """In calm, where nothing is decided on but that, and otherwise."""
    task = Task(runnable=None, adaptive_concurrency=True)
    gate, adaptive = task.gate, task.gate.adaptive
    assert adaptive is not None
    method, ends = adaptive.method("/a/B"), asyncio.Event()
    answers = list[RefusalStatus | None]()

    async def serve() -> None:
        answers.append(gate.refuses(metadata, method))
        if answers[-1] is None:
            await ends.wait()

    async def come(count: int) -> list[asyncio.Task[None]]:
        served = [asyncio.create_task(serve()) for _ in range(count)]
        await asyncio.sleep(0)
        return served

    method.observe(0.1)
    adaptive.limit.limit = 8.0
    served = await come(4)
    assert not gate.is_strained
    served += await come(1)
    assert gate.is_strained
    gate.limit(100)
    gate._monitor.active = 60
    (seen,) = [one for one in gate.signals() if one.name == "concurrency"]
    assert seen.value == 5 / 8, "of two limits the one that is fuller, for its target"
    gate._monitor.active = 0
    task.sample()
    served += await come(3)
    assert answers == [None] * 8
    assert gate.without_place() == 0
    served += await come(1)
    assert answers[8] is not None
    assert answers[8].code is StatusCode.RESOURCE_EXHAUSTED
    assert gate.refused["concurrency"]["CRITICAL"] == 1
    ends.set()
    await asyncio.gather(*served)
    assert adaptive.taken == 0.0


def test_the_adaptive_limit_knows_how_long_requests_have() -> None:
    task = Task(adaptive_concurrency=True)
    task.gate.core.deadlines.observe(5.0)
    task.sample()
    assert task.gate.adaptive is not None
    assert task.gate.adaptive.limit.time == pytest.approx(5.0)
