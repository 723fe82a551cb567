"""Who used how much CPU, and what happens to those who use more than they may."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from threading import current_thread
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.quotas.costs import RequestCost, Total
from lbclient.server import Server
from lbclient.server.quotas import cpu_timing
from lbclient.server.quotas.cpu_timing import (
    CpuTiming,
    Nesting,
    Steps,
    bill_to,
    billed,
)
from tests import needs
from tests.hosts import PATH, Host, method_handler
from tests.waiting import stands_still

PART = 0.01  # CPU seconds
ROUNDS = 32

burned: list[float] = []  # CPU seconds: what handlers have used at least


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    burned.append(seconds)


async def hosted(
    host: Host, behavior: Any, arity: str = "unary_unary", **options: Any
) -> tuple[Server, Any]:
    """Hosts one function; returns the server, and a way for customers to ask it."""
    server, _, channel = await host(method_handler(arity, behavior), **options)
    method = getattr(channel, arity)(PATH)

    async def ask(customer: str = "", *more: Any, **options: Any) -> Any:
        metadata = ((wire.CUSTOMER_KEY, customer), *more) if customer else ()
        request = b"a" if arity.startswith("unary") else iter([b"a"])
        call = method(request, metadata=metadata, **options)
        if arity.endswith("stream"):
            return [message async for message in call]
        return await call

    return server, ask


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(2)
    yield pool
    await asyncio.to_thread(pool.shutdown)


class Clock:
    """Stands still unless told, so rates are sums over a time that is known."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def nested(depth: int) -> None:
    burn(PART)
    await asyncio.sleep(0)
    burn(PART)
    if depth:
        await asyncio.gather(nested(depth - 1), asyncio.to_thread(burn, PART))


async def respond(_request: bytes, context: Any) -> bytes:
    burn(PART)
    await asyncio.create_task(nested(2))
    await asyncio.gather(nested(0), nested(0))
    return b"done"


async def write(_request: bytes, context: Any) -> None:
    for _ in range(3):
        burn(2 * PART)
        await context.write(b"more")


async def generate(_request: bytes, context: Any) -> AsyncIterator[bytes]:
    for _ in range(3):
        burn(2 * PART)
        yield b"more"


def respond_in_thread(_request: bytes, context: Any) -> bytes:
    burn(6 * PART)
    return b"done"


def generate_in_thread(_request: bytes, context: Any) -> Iterator[bytes]:
    for _ in range(3):
        burn(2 * PART)
        yield b"more"


IN_THREADS = [
    ("unary_unary", respond_in_thread),
    ("stream_unary", respond_in_thread),
    ("unary_stream", generate_in_thread),
]
HANDLERS = [
    ("unary_unary", respond),
    ("stream_unary", respond),
    ("unary_stream", write),
    ("stream_stream", generate),
    *IN_THREADS,
]


def used(server: Server, clock: Clock, customer: str = "") -> float:
    """CPU seconds of a customer since the clock was set forward by a day before."""
    quotas = server._gate.charging.quotas
    assert quotas is not None
    account = quotas.quota._accounts.get(customer) or quotas.quota._known[""]
    return sum(payer.cpu for payer in account.payers)


@pytest.mark.parametrize(
    ("arity", "handler", "own_pool"),
    [(*each, False) for each in HANDLERS] + [(*each, True) for each in IN_THREADS],
)
async def test_what_is_accounted_is_what_the_process_used(
    host: Host,
    pool: ThreadPoolExecutor,
    eventually: Any,
    arity: str,
    handler: Any,
    own_pool: bool,
) -> None:
    """Within a tenth, of which gRPC itself takes the most, client and server: more on a
    busy machine, so some rounds may be worse. No less than what handlers burned, and no
    more than all, in any.
    """
    clock = Clock()
    server, ask = await hosted(
        host,
        handler,
        arity,
        config=ServerConfig(default_quota=1000.0, cpu_factor=1.0),
        clock=clock,
        migration_thread_pool=pool if own_pool else None,
    )
    await ask("a")
    parts: list[float] = []
    while len(parts) < ROUNDS and max(parts, default=0.0) < 0.9:
        burned.clear()
        before, began_at = used(server, clock, "a"), time.process_time()
        await asyncio.gather(*(ask("a") for _ in range(4)))
        # A thread tells the loop, perhaps after its client has the answer.
        least = before + sum(burned)
        await eventually(lambda least=least: used(server, clock, "a") >= least)
        accounted = used(server, clock, "a") - before
        spent = time.process_time() - began_at
        assert accounted <= spent
        parts.append(accounted / spent)
    assert max(parts) >= 0.9


async def test_each_customer_pays_for_its_own(host: Host) -> None:
    async def work(request: bytes, context: Any) -> bytes:
        metadata = dict(context.invocation_metadata())
        parts = 3 if metadata[wire.CUSTOMER_KEY] == "b" else 1
        for _ in range(10):
            burn(PART / 10 * parts)
            await asyncio.sleep(0)  # so that they take turns on the loop
        return b""

    clock = Clock()
    server, ask = await hosted(
        host,
        work,
        config=ServerConfig(default_quota=1000.0, cpu_factor=1.0),
        clock=clock,
    )
    await asyncio.gather(*(ask(name) for name in "ababab"))
    assert 3 * PART <= used(server, clock, "a") < 4.5 * PART
    assert 9 * PART <= used(server, clock, "b") < 10.5 * PART


async def test_without_quotas_nothing_is_timed(host: Host) -> None:
    loop = asyncio.get_running_loop()

    async def look(request: bytes, context: Any) -> bytes:
        return repr((loop.get_task_factory(), billed())).encode()

    _, ask = await hosted(host, look)
    assert await ask() == b"(None, None)"


async def test_a_context_that_is_kept_keeps_no_response(host: Host) -> None:
    kept: list[Any] = []

    async def keep(request: bytes, context: Any) -> bytes:
        kept.append(context)
        return b"large"

    _, ask = await hosted(host, keep, config=ServerConfig(default_quota=1000.0))
    assert await ask("a") == b"large"
    assert kept[0].response is None


async def test_the_loop_is_left_as_it_was(host: Host) -> None:
    loop = asyncio.get_running_loop()
    server, ask = await hosted(host, respond, config=ServerConfig(default_quota=1000.0))
    await ask("a")
    assert loop.get_task_factory() is not None
    await server.stop(None)
    assert loop.get_task_factory() is None


@pytest.mark.parametrize("first", [0, 1])
async def test_of_two_servers_on_a_loop_the_last_leaves_it_as_it_was(
    host: Host, first: int
) -> None:
    def burn() -> None:
        began_at = time.thread_time()
        while time.thread_time() - began_at < 0.02:
            pass

    async def work(_request: bytes, _context: Any) -> bytes:
        await asyncio.gather(asyncio.to_thread(burn))
        return b""

    loop = asyncio.get_running_loop()
    config = ServerConfig(default_quota=1000.0)
    two = [await hosted(host, work, config=config) for _ in range(2)]
    await two[first][0].stop(None)
    server, ask = two[1 - first]
    await ask("a")
    await asyncio.sleep(0)
    assert server.statistics().usage["a"] > 0.001
    await server.stop(None)
    assert loop.get_task_factory() is None
    assert "run_in_executor" not in vars(loop)


def test_the_loops_attributes_stay_quick() -> None:
    """They are held by the loop itself until somebody asks for its `__dict__`."""

    def is_quick(loop: asyncio.AbstractEventLoop) -> bool:
        referents = gc.get_referents(loop)
        return not any(type(it) is dict and "_ready" in it for it in referents)

    class Loop(asyncio.SelectorEventLoop):
        """Nobody has put anything into those of this class."""

    with closing(Loop()) as loop, closing(Loop()) as slow:
        vars(slow)
        if not is_quick(loop) or is_quick(slow):
            needs.skip("to this Python it is all the same")
        cpu_timing = CpuTiming()
        cpu_timing.install(loop)
        assert is_quick(loop)
        cpu_timing.remove()
        assert is_quick(loop)


LOOPS = ["asyncio", "uvloop"]


def loop_of(kind: str) -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = needs.module(kind).new_event_loop()
    return loop


def run(loop: asyncio.AbstractEventLoop, work: Awaitable[Any]) -> Any:
    async def finite() -> Any:
        return await asyncio.wait_for(work, 20)

    return loop.run_until_complete(finite())


async def paid(payer: RequestCost) -> str:
    """Hands work over as a request does; returns the name of its thread."""

    def work() -> str:
        burn(PART)
        return current_thread().name

    bill_to(payer)
    return await asyncio.to_thread(work)


@pytest.mark.parametrize("kind", LOOPS)
def test_a_default_executor_of_the_users_stays_and_its_work_is_accounted(
    kind: str,
) -> None:
    """Of uvloop's nobody sees which one that is: it was replaced, and for good."""
    loop, cpu_timing = loop_of(kind), CpuTiming()
    payer = RequestCost(Total())
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as executor:
        loop.set_default_executor(executor)
        cpu_timing.install(loop)
        assert run(loop, paid(payer)).startswith("mine")
        cpu_timing.remove()
        assert run(loop, paid(RequestCost(Total()))).startswith("mine")
        assert vars(executor).keys() == vars(ThreadPoolExecutor(1)).keys()
    loop.close()
    assert payer.cpu >= PART


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("kind", LOOPS)
def test_loops_that_share_an_executor_come_and_go_in_any_order(
    kind: str, first: int
) -> None:
    """To remove the second raised AttributeError, within the stop of its server."""
    with ThreadPoolExecutor(2) as executor:
        two = [(loop_of(kind), CpuTiming()) for _ in range(2)]
        for loop, cpu_timing in two:
            loop.set_default_executor(executor)
            cpu_timing.install(loop)
        two[first][1].remove()
        payers = [RequestCost(Total()), RequestCost(Total())]
        for (loop, _), payer in zip(two, payers, strict=True):
            run(loop, paid(payer))
            run(loop, asyncio.sleep(0))  # what threads tell the loop
        assert payers[first].cpu == 0.0
        assert PART <= payers[1 - first].cpu < 2 * PART
        two[1 - first][1].remove()
        two[1 - first][1].remove()
        for loop, _ in two:
            assert "run_in_executor" not in vars(loop)
            loop.close()


@pytest.mark.parametrize("kind", LOOPS)
def test_work_may_be_handed_over_by_name(kind: str) -> None:
    loop, cpu_timing, payer = loop_of(kind), CpuTiming(), RequestCost(Total())

    async def hand_over() -> None:
        bill_to(payer)
        await loop.run_in_executor(executor=None, func=partial(burn, PART))
        await asyncio.sleep(0)  # what the thread tells the loop

    cpu_timing.install(loop)
    run(loop, hand_over())
    cpu_timing.remove()
    run(loop, loop.shutdown_default_executor())
    loop.close()
    assert payer.cpu >= PART


def test_who_watches_a_loops_executor_before_or_after_us_goes_on() -> None:
    seen: list[str] = []

    def watch(loop: Any, name: str) -> Any:
        inner = loop.run_in_executor

        def run_in_executor(*arguments: Any) -> Any:
            seen.append(name)
            return inner(*arguments)

        loop.run_in_executor = run_in_executor
        return run_in_executor

    loop, cpu_timing = loop_of("asyncio"), CpuTiming()
    before = watch(loop, "before")
    cpu_timing.install(loop)
    cpu_timing.remove()
    assert loop.run_in_executor is before
    cpu_timing.install(loop)
    after = watch(loop, "after")
    cpu_timing.remove()
    assert loop.run_in_executor is after
    run(loop, paid(RequestCost(Total())))
    assert seen == ["after", "before"]
    run(loop, loop.shutdown_default_executor())
    loop.close()


def test_who_watches_all_loops_goes_on() -> None:
    """By something callable that is no function, and so no method of the loop."""

    def run_in_executor(*arguments: Any) -> Any:
        seen.append(arguments)
        done = loop.create_future()
        done.set_result(None)
        return done

    class Loop(asyncio.SelectorEventLoop):
        pass

    seen: list[Any] = []
    # Static, as a partial will be a method, too.
    Loop.run_in_executor = staticmethod(partial(run_in_executor))  # type: ignore[assignment]
    with closing(Loop()) as loop:
        cpu_timing = CpuTiming()
        cpu_timing.install(loop)
        run(loop, paid(RequestCost(Total())))
        cpu_timing.remove()
        assert "run_in_executor" not in vars(loop)
    assert len(seen) == 1


async def test_whoever_looks_at_a_timed_task_sees_the_users_coroutine(
    host: Host,
) -> None:
    async def named() -> None:
        pass

    async def look(request: bytes, context: Any) -> bytes:
        task = asyncio.create_task(named())
        said = repr(task)
        await task
        return said.encode()

    _, ask = await hosted(host, look, config=ServerConfig(default_quota=1000.0))
    assert b"named" in await ask("a")


async def test_a_task_that_is_cancelled_before_its_first_step_leaves_no_warning(
    host: Host,
) -> None:
    async def work(request: bytes, context: Any) -> bytes:
        task = asyncio.create_task(nested(0))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return str(task.cancelled()).encode()

    _, ask = await hosted(host, work, config=ServerConfig(default_quota=1000.0))
    assert await ask("a") == b"True"


async def test_steps_are_a_coroutine_like_any_other() -> None:
    spent: list[float] = []

    class Counting(RequestCost):
        def pay(self, cpu: float) -> None:
            spent.append(cpu)

    payer, nesting = Counting(Total()), Nesting()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await Steps(fail(), payer, nesting)
    assert len(spent) >= 2
    with pytest.raises(KeyError, match="mine"):
        await asyncio.create_task(Steps(fail(), payer, nesting))
    assert len(spent) >= 4


async def test_time_within_a_timed_step_counts_once() -> None:
    outer, inner, nesting = RequestCost(Total()), RequestCost(Total()), Nesting()

    async def work() -> None:
        burn(PART)

    async def around() -> None:
        burn(PART)
        await Steps(work(), inner, nesting)

    await Steps(around(), outer, nesting)
    assert inner.cpu == pytest.approx(PART, rel=0.2)
    assert outer.cpu == pytest.approx(PART, rel=0.2)


async def served_as(ask: Any, customer: str, metadata: Any) -> bool:
    try:
        await ask(customer, *metadata)
    except grpc.aio.AioRpcError as error:
        if error.code() is not StatusCode.RESOURCE_EXHAUSTED:
            raise
        return False
    return True


QUOTAS = ServerConfig(quotas={"greedy": 0.1, "modest": 0.1}, cpu_factor=1.0)


async def spend(
    host: Host, clock: Clock, config: ServerConfig, behavior: Any = None
) -> tuple[Server, dict[str, list[StatusCode]], Any]:
    """For 20 s, by the clock, one customer wants four times its quota."""

    async def work(request: bytes, context: Any) -> bytes:
        burn(0.004)
        return b""

    server, ask = await hosted(host, behavior or work, config=config, clock=clock)
    codes: dict[str, list[StatusCode]] = {"greedy": [], "modest": []}
    refusals: list[Any] = []
    for turn in range(2000):
        clock.now += 0.01
        customers = ["greedy", "modest"] if turn % 10 == 0 else ["greedy"]
        for customer in customers:
            try:
                await ask(customer)
            except grpc.aio.AioRpcError as error:
                codes[customer].append(error.code())
                refusals.append(error)
            else:
                codes[customer].append(StatusCode.OK)
        if len(refusals) > 100:
            break
    return server, codes, refusals


async def test_whoever_uses_more_than_allowed_is_refused_and_nobody_else(
    host: Host,
) -> None:
    server, codes, refusals = await spend(host, Clock(), QUOTAS)
    assert set(codes["greedy"]) == {StatusCode.OK, StatusCode.RESOURCE_EXHAUSTED}
    assert set(codes["modest"]) == {StatusCode.OK}
    trailers = refusals[0].trailing_metadata()
    assert trailers[wire.REFUSAL_KEY] == "quota"
    assert wire.find_report(trailers) is not None
    assert "used what it may" in refusals[0].details()
    seen = server.statistics()
    assert seen.refused["quota"]["CRITICAL"] == len(refusals)
    assert seen.usage["greedy"] > seen.usage["modest"] > 0.0


async def test_a_cpu_second_is_worth_what_the_machine_is(host: Host) -> None:
    """A customer that has as much CPU on a machine four times as fast pays fourfold."""
    paid = []
    for factor in (1.0, 4.0):
        clock = Clock()
        config = ServerConfig(default_quota=1000.0, cpu_factor=factor)
        server, ask = await hosted(host, respond, config=config, clock=clock)
        await ask("a")
        burned.clear()
        before = used(server, clock, "a")
        await ask("a")
        # Until threads have told the loop all of it.
        until_now = await stands_still(partial(used, server, clock, "a"))
        paid.append((until_now - before) / sum(burned))
    assert 1.0 <= paid[0] < 1.5
    assert 4.0 <= paid[1] < 6.0


@pytest.mark.parametrize("share", [2.5, 0.5])
async def test_a_criticality_is_refused_only_where_all_below_it_are(
    host: Host, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is that many times what the critical requests of a customer want.

    CPU time is a fake, and what is wanted is well above twice the limit: just there,
    where it begins to be a flood, what a machine adds to a cost decided.
    """
    cpu = Clock()
    monkeypatch.setattr(cpu_timing, "thread_time", cpu)
    cost = 0.0005

    async def work(request: bytes, context: Any) -> bytes:
        cpu.now += cost
        return b""

    clock = Clock()
    limit = share * 20 * cost
    server, ask = await hosted(
        host,
        work,
        config=ServerConfig(quotas={"a": limit}, cpu_factor=1.0),
        clock=clock,
    )
    kinds = {"CRITICAL": 20, "SHEDDABLE_PLUS": 40, "SHEDDABLE": 80}  # a second
    served: dict[str, int] = dict.fromkeys(kinds, 0)
    asked: dict[str, int] = dict.fromkeys(kinds, 0)
    for tenth in range(100):
        for kind, rate in kinds.items():
            for _ in range(rate // 10):
                clock.now += 1 / sum(kinds.values())
                metadata = ((wire.CRITICALITY_KEY, kind),)
                is_served = await served_as(ask, "a", metadata)
                if tenth > 50:
                    asked[kind] += 1
                    served[kind] += is_served
    part = {kind: served[kind] / asked[kind] for kind in kinds}
    assert server.statistics().refused["quota"]["SHEDDABLE"] > 0
    if share > 1.0:
        assert part["CRITICAL"] == 1.0, part
        assert 0.1 < part["SHEDDABLE_PLUS"] < 1.0, part
    else:
        assert 0.2 < part["CRITICAL"] < 1.0, part
        assert part["SHEDDABLE_PLUS"] < 0.02, part
    assert part["SHEDDABLE"] < 0.02, part


async def test_the_customer_may_be_told_by_the_requests_context(host: Host) -> None:
    asked = []

    def customer(context: Any) -> str:
        asked.append(context.peer())
        return "greedy"

    config = ServerConfig(quotas={"greedy": 0.01}, customer=customer)
    server, codes, _ = await spend(host, Clock(), config)
    assert asked[0].startswith("ipv4:127.0.0.1")
    assert StatusCode.RESOURCE_EXHAUSTED in codes["modest"], "as it is greedy, too"
    assert "modest" not in server.statistics().usage


@pytest.mark.parametrize(("arity", "handler"), HANDLERS)
async def test_a_customer_that_cannot_be_told_is_one_of_the_others(
    host: Host, arity: str, handler: Any
) -> None:
    def customer(context: Any) -> str:
        raise LookupError("no certificate")

    config = ServerConfig(default_quota=1000.0, customer=customer)
    server, ask = await hosted(host, handler, arity, config=config)
    await ask("a")
    assert server.statistics().signal_failures == 1
    await asyncio.sleep(0)
    assert list(server.statistics().usage) == [""]


@pytest.mark.parametrize(
    ("said", "customer", "failures"),
    [
        (None, "", 0),
        (b"acme", "acme", 0),
        ("a\udcffb", "a?b", 0),  # which no store could be told
        (7, "", 1),
    ],
)
async def test_whatever_a_callable_says_is_a_name_that_can_be_told(
    host: Host, said: Any, customer: str, failures: int
) -> None:
    config = ServerConfig(default_quota=1000.0, customer=lambda _: said)
    server, ask = await hosted(host, respond, config=config)
    await ask("a")
    assert set(server.statistics().usage) == {"", customer}
    assert server.statistics().signal_failures == failures


async def test_names_without_end_share_one_account(host: Host) -> None:
    async def work(request: bytes, context: Any) -> bytes:
        return b""

    server, ask = await hosted(host, work, config=ServerConfig(default_quota=1000.0))
    for customer in ("x" * 5000, "y" * 101, "", "z" * 100):
        await ask(customer)
    seen = server.statistics()
    assert list(seen.usage) == ["", "z" * 100]
    assert seen.quotas.pooled == 2, "who names nobody has that account by right"


@pytest.mark.parametrize("size", [10_000, 20_000])
async def test_a_name_beyond_what_grpc_takes_harms_nobody(
    host: Host, size: int
) -> None:
    """Beyond 8 KB of metadata gRPC refuses some requests, and all beyond 16 KB."""

    async def work(request: bytes, context: Any) -> bytes:
        return b"done"

    server, ask = await hosted(host, work, config=ServerConfig(default_quota=1000.0))
    refusals: list[grpc.aio.AioRpcError] = []
    for _ in range(20):
        try:
            assert await ask("x" * size, timeout=20) == b"done"
        except grpc.aio.AioRpcError as error:
            refusals.append(error)
        assert await ask("short", timeout=20) == b"done"
    for refusal in refusals:
        assert refusal.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "received metadata size exceeds" in str(refusal.details())
    seen = server.statistics()
    assert seen.requests == {"OK": 40 - len(refusals)}
    assert seen.active == 0
    if size == 20_000:
        assert len(refusals) == 20
    else:  # some of those that gRPC refuses are looked up all the same
        assert 20 - len(refusals) <= seen.quotas.pooled <= 20
