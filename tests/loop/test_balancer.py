"""A channel on virtual time: doubt, retries, budget, pauses, waking, silence, GOAWAY.

Each test is one sentence on what a caller sees; nothing here waits for a clock.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import wire
from lbclient.client.backends.waking import WAKE_NEXT
from lbclient.client.calls.attempts import Attempts
from lbclient.core.backends.call_answers import MISSES
from lbclient.core.backends.demand import SEVERAL
from lbclient.core.backends.looks import FIRST_LOOK, LOOK_PERIOD, LOOK_SPREAD
from lbclient.core.backends.silence import UNREAD
from lbclient.core.criticality import Criticality
from lbclient.core.model import State
from lbclient.core.outliers.answer_record import PATIENCE
from lbclient.core.retries.retry import ATTEMPTS, BURST, RATIO
from lbclient.metrics import samples
from lbclient.testing.virtual_loop import VirtualLoop
from lbclient.v1 import load_pb2
from tests.loop.fleet import (
    CHECKS,
    INTERVAL,
    METHOD,
    FakeCall,
    Fleet,
    Server,
)

Code = grpc.StatusCode

MOMENT = 0.001
REFUSED = (wire.REFUSAL_KEY, "overloaded")


def now() -> float:
    return asyncio.get_running_loop().time()


def hold(call: FakeCall) -> None:
    """The call is left in flight."""


def refuse(call: FakeCall) -> None:
    call.fail(Code.UNAVAILABLE, "overloaded", REFUSED)


async def outcomes(calls: Sequence[Any]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def failures(results: Sequence[Any]) -> list[BaseException]:
    return [one for one in results if isinstance(one, BaseException)]


class Insists:
    """A policy with a favourite."""

    def pick(self, ready: Sequence[Any], now: float) -> Any:
        return ready[0]

    def weights(self, ready: Sequence[Any], now: float) -> Sequence[float]:
        return [1.0] * len(ready)


# --- doubt --------------------------------------------------------------------


async def miss_deadlines(fleet: Fleet, count: int) -> set[str]:
    """Every state of the first backend while so many calls to it are not answered."""
    seen = set[str]()
    for _ in range(count):
        call = fleet.call(timeout=0.1)
        await asyncio.sleep(0.1)
        seen.add(fleet.states()[0])
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        seen.add(fleet.states()[0])
    return seen


def be_dumb(server: Server) -> None:
    """It reports on its health stream, and answers neither calls nor questions."""
    server.serve, server.answers_checks = hold, False


async def out(server: Server, how: str) -> None:
    if how == "refusing":
        server.refuse_all()
    else:
        server.enter(load_pb2.LAME_DUCK)
    await asyncio.sleep(1.0)


@pytest.mark.parametrize("how", ["alone", "refusing", "lame duck"])
async def test_the_last_ready_backend_is_never_doubted(how: str) -> None:
    """Nothing may heal it here: it answers no question. Its calls would only wait."""
    async with Fleet(1 if how == "alone" else 2) as fleet:
        if how != "alone":
            await out(fleet.servers[1], how)
            assert fleet.states() == ["ready", how]
        be_dumb(fleet.servers[0])
        assert await miss_deadlines(fleet, 10 * MISSES) == {"ready"}
        assert len(fleet.servers[0].calls) == 10 * MISSES


async def test_of_two_that_answer_nothing_one_stays_ready() -> None:
    async with Fleet(2, picker="round_robin") as fleet:
        for server in fleet.servers:
            be_dumb(server)
        for _ in range(10 * MISSES):
            with pytest.raises(grpc.aio.AioRpcError):
                await fleet.call(timeout=0.1)
            assert "ready" in fleet.states()
        assert "connecting" in fleet.states() or "refusing" in fleet.states()


NO_ANSWER = 4 * FIRST_LOOK  # seconds until a CHECK and a LOOK have none


async def gets(fleet: Fleet, calls: int) -> list[int]:
    """How many of so many calls each server gets."""
    before = [len(server.calls) for server in fleet.servers]
    for _ in range(calls):
        await fleet.call(timeout=1.0)
    return [
        len(server.calls) - count
        for server, count in zip(fleet.servers, before, strict=True)
    ]


@pytest.mark.parametrize("count", [2, 5])
async def test_servers_that_all_hang_health_checks_share_the_calls(count: int) -> None:
    """As they do with grpc.aio. The first to be ready had all of them for ever."""
    fleet = Fleet(count, picker="round_robin", slow_start=0.0)
    for server in fleet.servers:
        server.hang_health_checks()
    async with fleet:
        await asyncio.sleep(NO_ANSWER)
        assert await gets(fleet, 20 * count) == [20] * count
        assert "health checks time out" in fleet.reasons()[0]
        # So does one that comes later, when the others have answered calls.
        fleet.servers[0].lose_all()
        await asyncio.sleep(NO_ANSWER)
        assert await gets(fleet, 20 * count) == [20] * count


async def test_of_those_that_hang_health_checks_none_is_out_for_ever() -> None:
    """It missed deadlines, as handlers may, and can answer no check since."""
    fleet = Fleet(2, picker="round_robin", slow_start=0.0)
    for server in fleet.servers:
        server.hang_health_checks()
    async with fleet:
        await asyncio.sleep(NO_ANSWER)
        slow = fleet.servers[0]
        slow.serve = hold
        await outcomes([fleet.call(timeout=0.1) for _ in range(2 * MISSES)])
        assert fleet.states() == ["connecting", "ready"]
        assert await gets(fleet, 10) == [0, 10]
        slow.serve = FakeCall.serve
        await asyncio.sleep(NO_ANSWER)
        assert await gets(fleet, 10) == [5, 5]


async def test_one_that_hangs_health_checks_gets_no_calls_if_others_answer_them() -> (
    None
):
    fleet = Fleet(3, picker="round_robin", slow_start=0.0)
    fleet.servers[0].hang_health_checks()
    async with fleet:
        await asyncio.sleep(NO_ANSWER)
        assert await gets(fleet, 10) == [0, 5, 5]
        assert fleet.states() == ["connecting", "ready", "ready"]


async def test_who_has_an_inactive_one_beside_it_is_doubted() -> None:
    """That one can be woken."""
    async with Fleet(2, idle_after=10.0) as fleet:
        await asyncio.sleep(60.0)
        assert fleet.states() == ["inactive"] * 2
        await fleet.call()
        await asyncio.sleep(MOMENT)
        assert sorted(fleet.states()) == ["inactive", "ready"]
        awake = fleet.states().index("ready")
        be_dumb(fleet.servers[awake])
        for _ in range(MISSES):
            with pytest.raises(grpc.aio.AioRpcError):
                await fleet.call(timeout=0.1)
        assert fleet.states()[awake] == "connecting"


# --- picks --------------------------------------------------------------------


async def test_a_call_takes_one_turn_also_where_it_is_not_direct() -> None:
    """As with instrumentation's interceptors: of two backends one got all calls."""
    async with Fleet(2, picker="round_robin") as fleet:
        assert await gets(fleet, 20) == [10, 10]


def fail(call: FakeCall) -> None:
    call.fail(Code.UNIMPLEMENTED, "no such method")


async def test_a_trial_that_a_retry_passes_on_to_another_lets_nobody_in() -> None:
    """It was never sent; after its patience the backend had its share again."""
    async with Fleet(3, picker="round_robin") as fleet:
        bad, balancer = fleet.servers[0], fleet.balancer
        bad.serve = fail
        outliers = balancer.outliers
        counts = balancer.counters.by_method.of("unary_unary", METHOD)
        while not outliers.count:
            await outcomes([fleet.call() for _ in range(3)])
            await asyncio.sleep(0.1)
        node = balancer.pool.nodes[bad.address]
        [(_, ejection)] = outliers.of(node)
        await asyncio.sleep(ejection.trial_at - now())
        method: Any = fleet.channel.unary_unary(METHOD)
        attempts = Attempts(balancer, method, b"", Criticality.CRITICAL, {})
        assert attempts.pick(now(), (node,)) is not node
        bad.calls.clear()
        await asyncio.sleep(PATIENCE)
        await outcomes([fleet.call() for _ in range(30)])
        assert len(bad.calls) == 1, "the trial"
        assert outliers.is_ejected(id(counts), node)


# --- retries ------------------------------------------------------------------


async def earn(fleet: Fleet, retries: float) -> None:
    """By calls that are served."""
    for _ in range(round(retries / RATIO)):
        await fleet.call()


async def test_a_retry_goes_to_the_less_loaded_of_the_others() -> None:
    """Where the policy insists on the one that has just refused."""
    async with Fleet(3) as fleet:
        await earn(fleet, 10)
        fleet.balancer.pickers.current = Insists()
        refuses, busy, idle = (fleet.servers[n] for n in (0, 1, 2))
        for server in (busy, idle):
            server.serve = hold
            server.calls.clear()
        backends = dict(fleet.balancer.pool.nodes)
        for _ in range(5):
            backends[busy.address].load.begin()
        refuses.serve = refuse
        for number in range(1, 4):
            call = fleet.call()
            await asyncio.sleep(MOMENT)
            assert (len(busy.calls), idle.in_flight()) == (0, number), "each time"
            call.add_done_callback(lambda _: None)
        for _ in range(5):
            backends[busy.address].load.forget()
        for one in idle.calls:
            one.serve()


async def test_a_retry_goes_to_another_at_the_same_instant() -> None:
    async with Fleet(2) as fleet:
        await earn(fleet, 2)
        fleet.balancer.pickers.current = Insists()
        fleet.servers[0].serve = refuse
        began_at = now()
        await fleet.call(timeout=10.0)
        assert now() == began_at
        assert fleet.channel.statistics().retries == 1


@pytest.mark.parametrize("active_limit", [BURST // 2, 4 * BURST])
async def test_the_budget_grows_with_the_active_limit(active_limit: int) -> None:
    async with Fleet(1, active_limit=active_limit) as fleet:
        await earn(fleet, 2 * max(active_limit, BURST))
        left = fleet.channel.statistics().retries_left
        assert left == max(active_limit, BURST)


async def test_all_that_was_in_flight_when_a_backend_dies_is_retried() -> None:
    """At the active limit; more than the budget of a small client would allow."""
    limit = 4 * BURST
    async with Fleet(2, active_limit=limit, idempotent=(METHOD,)) as fleet:
        await earn(fleet, limit)
        fleet.balancer.pickers.current = Insists()
        fleet.servers[0].serve = hold
        calls = [fleet.call() for _ in range(limit)]
        await asyncio.sleep(MOMENT)
        assert fleet.servers[0].in_flight() == limit
        fleet.servers[0].refuse_all()
        assert failures(await outcomes(calls)) == []
        assert fleet.channel.statistics().retries == limit


async def test_calls_that_pause_are_bounded() -> None:
    most, more = 3, 2
    async with Fleet(1, max_waiting=most) as fleet:
        await earn(fleet, BURST)

        def refuse_for_a_second(call: FakeCall) -> None:
            later = (wire.PUSHBACK_KEY, "1000")
            call.fail(Code.UNAVAILABLE, "not now", REFUSED, later)

        fleet.servers[0].serve = refuse_for_a_second
        calls = [fleet.call() for _ in range(most + more)]
        await asyncio.sleep(0.5)
        assert fleet.channel.statistics().waiting == most
        assert [call.done() for call in calls] == [False] * most + [True] * more
        fleet.servers[0].serve = FakeCall.serve
        results = await outcomes(calls)
        lost = failures(results)
        assert len(lost) == more
        for error in lost:
            assert isinstance(error, grpc.aio.AioRpcError)
            assert error.details() == "not now"
            assert "too many calls wait already" in error.__notes__[0]
        assert fleet.channel.statistics().waiting == 0


async def test_a_pause_ends_when_it_was_told_to() -> None:
    async with Fleet(1) as fleet:
        await earn(fleet, 2)
        server = fleet.servers[0]
        server.serve = lambda call: call.fail(
            Code.UNAVAILABLE, "", REFUSED, (wire.PUSHBACK_KEY, "250")
        )
        before, began_at = len(server.calls), now()
        with pytest.raises(grpc.aio.AioRpcError):
            await fleet.call()
        came = [call.began_at - began_at for call in server.calls[before:]]
        assert came == pytest.approx([0.25 * n for n in range(ATTEMPTS)])


# --- waiting ------------------------------------------------------------------


async def test_a_call_that_waits_is_sent_the_instant_a_backend_is_ready() -> None:
    async with Fleet(1) as fleet:
        server = fleet.servers[0]
        server.enter(load_pb2.STARTING)
        await asyncio.sleep(MOMENT)
        assert fleet.states() == ["starting"]
        call = fleet.call()
        await asyncio.sleep(0.5)
        assert fleet.channel.statistics().waiting == 1
        server.enter(load_pb2.SERVING)
        told_at = now()
        await call
        assert now() == told_at


async def test_a_lame_duck_gets_no_call_from_the_moment_that_it_says_so() -> None:
    async with Fleet(2, picker="round_robin") as fleet:
        leaving, other = fleet.servers
        leaving.enter(load_pb2.LAME_DUCK)
        await asyncio.sleep(MOMENT)
        for _ in range(10):
            await fleet.call()
        assert (len(leaving.calls), len(other.calls)) == (0, 10)


async def test_where_all_are_full_a_call_that_may_not_wait_ends_at_once() -> None:
    async with Fleet(2, active_limit=1, when_full="fail") as fleet:
        for server in fleet.servers:
            server.serve = hold
        running = [fleet.call() for _ in range(2)]
        await asyncio.sleep(MOMENT)
        late, began_at = fleet.call(timeout=60.0), now()
        with pytest.raises(lbclient.BackendsFull, match="2 full with 1 calls each"):
            await late
        assert now() == began_at
        for server in fleet.servers:
            server.calls[0].serve()
        await outcomes(running)


async def test_who_stands_in_for_a_lame_duck_connects_at_the_same_instant() -> None:
    async with Fleet(2, subset="rendezvous", subset_size=1) as fleet:
        first, second = fleet.servers
        assert fleet.states() == ["ready"]
        first.enter(load_pb2.LAME_DUCK)
        told_at = now()
        await asyncio.sleep(1.0)
        assert fleet.states() == ["lame duck", "ready"]
        assert second.dialled_at == [told_at]


def numbered(number: int, criticality: str = "CRITICAL") -> dict[str, Any]:
    """Options of a call that its server knows again."""
    words = ("number", str(number)), (wire.CRITICALITY_KEY, criticality)
    return {"metadata": words}


def numbers(server: Server) -> list[int]:
    """Of the calls that came, in order."""
    return [int(call.metadata["number"]) for call in server.calls]


async def test_who_comes_late_does_not_overtake_who_waits() -> None:
    async with Fleet(1, active_limit=1) as fleet:
        server = fleet.servers[0]
        server.serve = hold
        calls = [fleet.call(**numbered(number)) for number in (1, 2)]
        await asyncio.sleep(MOMENT)
        calls[0].add_done_callback(lambda _: calls.append(fleet.call(**numbered(3))))
        for number in range(3):
            server.calls[number].serve()
            await asyncio.sleep(0)
        assert failures(await outcomes(calls)) == []
        assert numbers(server) == [1, 2, 3]
        assert fleet.channel.statistics().waited == 2
        assert fleet.channel.statistics().waited_seconds == pytest.approx(MOMENT)


def test_a_call_that_ends_between_two_runs_of_the_loop_lets_one_in() -> None:
    """As the caller cancels it there, or as it is collected."""

    async def call_twice() -> tuple[Fleet, Any, Any]:
        fleet = await Fleet(1, picker="prequal", active_limit=1).__aenter__()
        fleet.servers[0].serve = hold
        calls = fleet.call(), fleet.call(timeout=1.0)
        await asyncio.sleep(MOMENT)
        fleet.servers[0].serve = FakeCall.serve
        return fleet, *calls

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        fleet, first, second = runner.run(call_twice())
        assert first.cancel()
        assert not second.done()
        assert failures(runner.run(outcomes([second]))) == []
        runner.run(fleet.__aexit__(None, None, None))


async def test_nor_in_the_turn_in_which_a_backend_becomes_ready() -> None:
    """What follows from a change follows a turn later."""
    async with Fleet(1) as fleet:
        server = fleet.servers[0]
        server.enter(load_pb2.STARTING)
        await asyncio.sleep(MOMENT)
        (backend,) = fleet.balancer.pool.nodes.values()
        calls = [fleet.call(**numbered(1))]
        fleet.balancer.backends.observe(backend, State.READY, "it says serving")
        calls.append(fleet.call(**numbered(2)))
        assert failures(await outcomes(calls)) == []
        assert numbers(server) == [1, 2]


async def test_of_calls_that_wait_the_critical_go_first_others_give_way() -> None:
    async with Fleet(1, active_limit=1, max_waiting=3) as fleet:
        server = fleet.servers[0]
        server.serve = hold
        calls = [fleet.call(**numbered(0))]
        await asyncio.sleep(MOMENT)
        for number, level, over in (
            (1, "SHEDDABLE", set[int]()),
            (2, "SHEDDABLE", set[int]()),
            (3, "CRITICAL", set[int]()),
            (4, "CRITICAL", {2}),  # which makes room
            (5, "SHEDDABLE", {2, 5}),  # for which nobody does
            (6, "CRITICAL_PLUS", {1, 2, 5}),
        ):
            calls.append(fleet.call(**numbered(number, level)))
            assert {n for n, call in enumerate(calls) if call.done()} == over
        while not all(call.done() for call in calls):
            server.calls[-1].serve()
            await asyncio.sleep(0)
        assert numbers(server) == [0, 6, 3, 4]
        lost = failures(await outcomes(calls))
        assert [type(error) for error in lost] == [lbclient.BackendsFull] * 3


async def test_where_all_refuse_a_call_fails_at_once_unless_it_may_wait() -> None:
    async with Fleet(2) as fleet:
        for server in fleet.servers:
            server.refuse_all()
        await asyncio.sleep(1.0)
        began_at, patient = now(), fleet.call(timeout=60.0, wait_for_ready=True)
        with pytest.raises(lbclient.NoBackend, match="2 refusing"):
            await fleet.call(timeout=60.0)
        assert now() == began_at
        await asyncio.sleep(5.0)
        fleet.servers[1].heal()
        await patient
        assert now() == began_at + 5.0


async def test_a_deadline_ends_a_wait_to_the_millisecond() -> None:
    async with Fleet(1) as fleet:
        fleet.servers[0].enter(load_pb2.STARTING)
        await asyncio.sleep(MOMENT)
        began_at = now()
        with pytest.raises(lbclient.DeadlineWhileWaiting):
            await fleet.call(timeout=0.25)
        assert now() == pytest.approx(began_at + 0.25)
        assert fleet.channel.statistics().waiting == 0


@pytest.mark.parametrize("how", ["waits", "pauses"])
async def test_a_call_without_a_backend_ends_with_its_channel(how: str) -> None:
    async with Fleet(1) as fleet:
        server = fleet.servers[0]
        await earn(fleet, 1)
        if how == "waits":
            server.enter(load_pb2.STARTING)
            await asyncio.sleep(MOMENT)
        else:
            later = (wire.PUSHBACK_KEY, "60000")
            server.serve = lambda call: call.fail(Code.UNAVAILABLE, "", REFUSED, later)
        call = fleet.call()
        await asyncio.sleep(MOMENT)
        assert fleet.channel.statistics().waiting == 1
        closed_at = now()
        await fleet.channel.close()
        assert call.cancelled()
        assert now() == closed_at
        assert fleet.channel.statistics().waiting == 0


# --- states -------------------------------------------------------------------


async def test_a_connection_that_a_pick_finds_lost_costs_no_call() -> None:
    """Before anybody has told that it is lost; and the resolver is asked again."""
    async with Fleet(2) as fleet:
        fleet.balancer.pickers.current = Insists()
        first, second = fleet.servers
        tell = first.cut_all()
        found_at = now()
        await fleet.call()
        assert (len(first.calls), len(second.calls)) == (0, 1)
        await asyncio.sleep(MOMENT)
        assert fleet.resolver.hinted_at == [found_at]
        tell()


@pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.INTERNAL])
async def test_an_answer_is_no_missed_deadline_whatever_it_says(code: Code) -> None:
    async with Fleet(2, picker="round_robin") as fleet:
        for server in fleet.servers:
            server.serve = lambda call: call.fail(code, "no")
            server.answers_checks = False
        for _ in range(4 * MISSES):
            assert failures(await outcomes([fleet.call()]))
        await asyncio.sleep(MOMENT)
        assert fleet.states() == ["ready", "ready"]


def leaving() -> tuple[str, bytes]:
    """The trailer of a task that is a lame duck."""
    report = load_pb2.LoadReport(state=load_pb2.LAME_DUCK)
    return wire.LOAD_KEY, report.SerializeToString()


async def test_an_answer_tells_of_a_lame_duck_if_it_is_of_this_task() -> None:
    """What was sent before the backend was ready may be of the task before."""
    async with Fleet(2) as fleet:
        fleet.balancer.pickers.current = Insists()
        server = fleet.servers[0]
        server.serve = hold
        call = fleet.call()
        await asyncio.sleep(MOMENT)
        server.say_goaway()
        await asyncio.sleep(1.0)
        assert fleet.states() == ["ready", "ready"]
        server.calls[0].serve(b"", leaving())
        await call
        assert fleet.states() == ["ready", "ready"]
        server.serve = lambda call: call.serve(b"", leaving())
        await fleet.call()
        assert fleet.states() == ["lame duck", "ready"]


async def test_the_last_lame_duck_is_called_and_the_channel_is_ready() -> None:
    async with Fleet(1) as fleet:
        fleet.servers[0].enter(load_pb2.LAME_DUCK)
        await asyncio.sleep(MOMENT)
        assert fleet.states() == ["lame duck"]
        await fleet.call()
        assert fleet.channel.get_state() is grpc.ChannelConnectivity.READY


async def test_who_stays_away_is_replaced_when_its_time_is_over() -> None:
    config: dict[str, Any] = {"subset": "rendezvous", "subset_size": 1}
    async with Fleet(2, **config, replace_after=5.0) as fleet:
        first, second = fleet.servers
        await asyncio.sleep(10.0)
        first.connects_in = None
        lost_at = now()
        first.lose_all()
        await asyncio.sleep(10.0)
        assert fleet.states() == ["connecting", "ready"]
        assert second.dialled_at == pytest.approx([lost_at + 5.0])


@pytest.mark.parametrize("what", ["picker", "subset"])
async def test_a_policy_that_raises_costs_no_call(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise LookupError("mine")

    async with Fleet(2) as fleet:
        if what == "picker":
            broken: Any = Insists()
            broken.pick = fail
            fleet.balancer.pickers.current = broken
        else:
            fleet.balancer.pool._subset = fail
            fleet.resolver.tell(fleet.endpoints[:1])
            await asyncio.sleep(1.0)
        for _ in range(4):
            await fleet.call()
        assert f": {what} " in caplog.text
        assert " raised; " in caplog.text
        assert fleet.states() == ["ready", "ready"]
        if what == "picker":
            assert [len(server.calls) for server in fleet.servers] == [2, 2]


# --- endpoints ----------------------------------------------------------------

EMPTY_AFTER = 5.0


async def test_an_empty_answer_must_last_before_it_is_believed() -> None:
    async with Fleet(2, empty_after=EMPTY_AFTER) as fleet:
        fleet.resolver.tell(())
        await asyncio.sleep(EMPTY_AFTER - MOMENT)
        assert len(fleet.states()) == 2
        await fleet.call()
        await asyncio.sleep(2 * MOMENT)
        assert fleet.states() == []


@pytest.mark.parametrize("what", ["it fails", "it has some again"])
async def test_an_empty_answer_that_does_not_last_empties_nothing(what: str) -> None:
    async with Fleet(2, empty_after=EMPTY_AFTER) as fleet:
        fleet.resolver.tell(())
        await asyncio.sleep(EMPTY_AFTER - 1.0)
        if what == "it fails":
            fleet.resolver.fail(lbclient.ResolveError("down"))
        else:
            fleet.resolver.tell(fleet.endpoints)
        await asyncio.sleep(10 * EMPTY_AFTER)
        assert fleet.states() == ["ready", "ready"]


async def test_a_backend_that_leaves_is_closed_with_its_last_call() -> None:
    async with Fleet(2) as fleet:
        fleet.balancer.pickers.current = Insists()
        gone, stays = fleet.servers
        gone.serve = hold
        call = fleet.call()
        await asyncio.sleep(MOMENT)
        fleet.resolver.tell(fleet.endpoints[1:])
        await asyncio.sleep(60.0)
        assert (len(gone.channels), fleet.channel.statistics().draining) == (1, 1)
        await fleet.call()
        assert (len(gone.calls), len(stays.calls)) == (1, 1)
        gone.calls[0].serve(b"late")
        assert await call == b"late"
        await asyncio.sleep(MOMENT)
        assert (len(gone.channels), fleet.channel.statistics().draining) == (0, 0)


async def test_a_backend_that_comes_back_while_it_drains_keeps_its_connection() -> None:
    async with Fleet(2) as fleet:
        fleet.balancer.pickers.current = Insists()
        server = fleet.servers[0]
        server.serve = hold
        call = fleet.call()
        await asyncio.sleep(MOMENT)
        for endpoints in (fleet.endpoints[1:], fleet.endpoints):
            fleet.resolver.tell(endpoints)
            await asyncio.sleep(1.0)
        assert fleet.states() == ["ready", "ready"]
        server.calls[0].serve()
        await call
        server.serve = FakeCall.serve
        await fleet.call()
        assert len(server.calls) == 2
        assert len(server.dialled_at) == 1


async def test_a_resolvers_lame_duck_gets_no_calls_until_it_is_wanted_again() -> None:
    async with Fleet(2, picker="round_robin") as fleet:
        first = fleet.servers[0]
        duck = replace(fleet.endpoints[0], lame_duck=True)
        fleet.resolver.tell((duck, fleet.endpoints[1]))
        await asyncio.sleep(1.0)
        assert sorted(fleet.states()) == ["lame duck", "ready"]
        for _ in range(4):
            await fleet.call()
        assert first.calls == []
        fleet.resolver.tell(fleet.endpoints)
        await asyncio.sleep(1.0)
        assert fleet.states() == ["ready", "ready"]


# --- counts -------------------------------------------------------------------


async def test_calls_that_were_never_sent_bring_no_retries() -> None:
    async with Fleet(1) as fleet:
        fleet.servers[0].refuse_all()
        await asyncio.sleep(1.0)
        assert len(failures(await outcomes([fleet.call() for _ in range(100)]))) == 100
        assert fleet.channel.statistics().retries_left == 0.0


async def test_a_client_whose_calls_are_refused_holds_back_and_forgets() -> None:
    async with Fleet(1, max_attempts=1) as fleet:
        server = fleet.servers[0]
        server.serve = refuse
        for _ in range(1000):
            await outcomes([fleet.call()])
        throttled = fleet.channel.statistics().throttled
        assert throttled > 50
        assert fleet.channel.statistics().throttle
        server.serve = FakeCall.serve
        await asyncio.sleep(300.0)
        for _ in range(2):
            await fleet.call()
        assert fleet.channel.statistics().throttle == ()
        assert fleet.channel.statistics().throttled == throttled


async def test_no_counter_ever_falls_whatever_becomes_of_backends() -> None:
    """They leave, come back as they were and as others, are lost, sleep and wake."""
    async with Fleet(3, idle_after=IDLE_AFTER, idempotent=(METHOD,)) as fleet:
        before = dict[Any, float]()

        def look() -> None:
            told = fleet.channel.statistics()
            counts = dict(samples.channel_counts(told, "fleet"))
            for method, code, count in samples.call_counts(told.methods):
                counts[(*method, code)] = count
            fallen = {key for key, count in before.items() if counts[key] < count}
            assert not fallen
            before.update(counts)

        first, second, _ = fleet.servers
        first.serve = refuse
        some, all_ = fleet.endpoints[1:], fleet.endpoints
        events: list[Callable[[], object]] = [
            lambda: None,
            lambda: fleet.resolver.tell(some),
            lambda: fleet.resolver.tell(all_),
            second.lose_all,
            second.refuse_all,
            lambda: fleet.resolver.tell(some),
            second.heal,
            lambda: fleet.resolver.tell(all_),
            lambda: None,
        ]
        for happen in events:
            happen()
            for _ in range(2 * SEVERAL):
                await outcomes([fleet.call(timeout=1.0)])
                look()
            for _ in range(20):
                await asyncio.sleep(IDLE_AFTER / 10)
                look()
        assert before["lbclient_attempts_total", "fleet", "served"] > 50
        assert before["lbclient_attempts_total", "fleet", "rejected"] > 0


# --- waking -------------------------------------------------------------------

IDLE_AFTER = 10.0
# By then each has been looked at, and has told its load.
LOOKED_AT = IDLE_AFTER + LOOK_PERIOD * (1 + LOOK_SPREAD) + FIRST_LOOK


async def sleeping(fleet: Fleet, *utilizations: float) -> None:
    """Until all are inactive, and have told how busy they are."""
    for server, utilization in zip(fleet.servers, utilizations, strict=True):
        server.utilization = utilization
    await asyncio.sleep(2 * LOOKED_AT)
    assert set(fleet.states()) == {"inactive"}


def awake(fleet: Fleet) -> list[int]:
    """Which backends have a connection, or are to have one."""
    away = fleet.balancer.backends.idleness.waking.away
    nodes = fleet.balancer.pool.nodes.values()
    return [number for number, node in enumerate(nodes) if node not in away]


async def test_one_call_wakes_the_one_that_told_least_load() -> None:
    async with Fleet(4, idle_after=IDLE_AFTER) as fleet:
        await sleeping(fleet, 0.9, 0.6, 0.2, 0.7)
        await fleet.call()
        assert awake(fleet) == [2]


async def test_who_tells_no_utilization_is_not_taken_for_idle() -> None:
    async with Fleet(3, idle_after=IDLE_AFTER) as fleet:
        await sleeping(fleet, 0.0, 0.9, 0.0)
        await fleet.call()
        assert awake(fleet) == [1]
        told = [one.utilization for one in fleet.channel.statistics().backends]
        assert told == [None, pytest.approx(0.9), None]


async def test_among_equals_chance_decides_who_is_woken() -> None:
    """Else all clients that heard the same would wake the same backend."""
    woken = set[int]()
    for seed in range(20):
        async with Fleet(3, idle_after=IDLE_AFTER) as fleet:
            await sleeping(fleet, 0.22, 0.18, 0.9)
            fleet.balancer.backends.idleness.waking._rng = Random(seed)
            await fleet.call()
            woken.update(awake(fleet))
    assert woken == {0, 1}


STATES = {"starting": load_pb2.STARTING, "lame duck": load_pb2.LAME_DUCK}


@pytest.mark.parametrize("state", ["starting", "lame duck", "refusing"])
async def test_an_inactive_one_is_woken_before_one_that_is_not_well(state: str) -> None:
    async with Fleet(2, idle_after=IDLE_AFTER) as fleet:
        await sleeping(fleet, 0.1, 0.99)
        first = fleet.servers[0]
        if state == "refusing":
            first.refuse_all()
        else:
            first.state = STATES[state]
        await asyncio.sleep(2 * LOOKED_AT)
        assert fleet.states() == [state, "inactive"]
        await fleet.call()
        assert awake(fleet) == [1]


ORDER = ("starting", "lame duck", "refusing")


@pytest.mark.parametrize(("better", "worse"), [ORDER[:2], ORDER[1:], ORDER[::2]])
async def test_of_those_that_are_not_well_the_best_is_woken(
    better: str, worse: str
) -> None:
    async with Fleet(2, idle_after=IDLE_AFTER) as fleet:
        await sleeping(fleet, 0.1, 0.1)
        for server, state in zip(fleet.servers, (worse, better), strict=True):
            server.is_up = state != "refusing"
            if server.is_up:
                server.state = STATES[state]
        await asyncio.sleep(2 * LOOKED_AT)
        assert fleet.states() == [worse, better]
        call = fleet.call(timeout=0.01, wait_for_ready=True)
        await asyncio.sleep(0)
        assert awake(fleet) == [1]
        await outcomes([call])


async def test_who_told_its_load_is_woken_before_one_that_never_did() -> None:
    async with Fleet(2, idle_after=IDLE_AFTER) as fleet:
        fleet.servers[0].be_a_stranger()
        await sleeping(fleet, 0.0, 0.9)
        await fleet.call()
        assert awake(fleet) == [1]


async def test_to_want_a_connection_wakes_one() -> None:
    async with Fleet(3, idle_after=IDLE_AFTER) as fleet:
        await sleeping(fleet, 0.5, 0.5, 0.5)
        assert fleet.channel.get_state() is grpc.ChannelConnectivity.IDLE
        assert awake(fleet) == []
        fleet.channel.get_state(try_to_connect=True)
        assert len(awake(fleet)) == 1


async def test_where_those_awake_are_full_another_is_woken() -> None:
    async with Fleet(2, idle_after=IDLE_AFTER, active_limit=1, when_full="fail") as (
        fleet
    ):
        await sleeping(fleet, 0.1, 0.9)
        for server in fleet.servers:
            server.serve = hold
        calls = [fleet.call()]
        await asyncio.sleep(MOMENT)
        calls.append(fleet.call())
        await asyncio.sleep(MOMENT)
        assert awake(fleet) == [0, 1]
        for server in fleet.servers:
            server.calls[-1].serve()
        assert failures(await outcomes(calls)) == []


async def test_of_idle_connections_those_that_calls_are_worth_stay() -> None:
    """Eight calls in ten seconds are worth two to four."""
    async with Fleet(6, idle_after=IDLE_AFTER) as fleet:
        fleet.balancer.pickers.current = Insists()
        for _ in range(50):
            await fleet.call()
            await asyncio.sleep(IDLE_AFTER / (2 * SEVERAL))
        assert len(awake(fleet)) == 4


@pytest.mark.parametrize("calls", [1, SEVERAL - 1, SEVERAL, 3 * SEVERAL, 100])
async def test_calls_of_one_turn_wake_one_and_one_more_for_every_four(
    calls: int,
) -> None:
    count = 8
    async with Fleet(count, idle_after=IDLE_AFTER) as fleet:
        await sleeping(fleet, *[0.5] * count)
        begun = [fleet.call() for _ in range(calls)]
        await asyncio.sleep(MOMENT)
        assert len(awake(fleet)) == min(count, 1 + calls // SEVERAL)
        assert failures(await outcomes(begun)) == []


async def test_where_one_is_ready_a_call_wakes_nobody() -> None:
    async with Fleet(3, idle_after=IDLE_AFTER) as fleet:
        await sleeping(fleet, 0.5, 0.5, 0.5)
        await fleet.call()
        assert len(awake(fleet)) == 1
        for _ in range(SEVERAL):
            await fleet.call()
        await asyncio.sleep(MOMENT)
        assert len(awake(fleet)) == 1


async def test_one_that_does_not_answer_keeps_a_call_for_a_quarter_second() -> None:
    """Then the next best is woken, and again, until one is ready."""
    async with Fleet(4, idle_after=IDLE_AFTER) as fleet:
        await sleeping(fleet, 0.1, 0.2, 0.3, 0.4)
        for server in fleet.servers[:2]:
            server.connects_in = None
        began_at = now()
        call = fleet.call(timeout=60.0)
        for woken in ([0], [0, 1]):
            await asyncio.sleep(WAKE_NEXT / 2)
            assert awake(fleet) == woken
            await asyncio.sleep(WAKE_NEXT / 2)
        await call
        assert now() == pytest.approx(began_at + 2 * WAKE_NEXT)
        assert awake(fleet) == [0, 1, 2]
        await asyncio.sleep(4 * WAKE_NEXT)
        assert awake(fleet) == [0, 1, 2], "nobody waits any more"


async def test_one_that_is_gone_keeps_a_call_for_no_time() -> None:
    async with Fleet(3, idle_after=IDLE_AFTER) as fleet:
        await sleeping(fleet, 0.1, 0.2, 0.3)
        for server in fleet.servers[:2]:
            server.is_up = False
        began_at = now()
        await fleet.call(timeout=60.0)
        assert now() == began_at
        assert awake(fleet) == [0, 1, 2]


async def test_calls_are_worth_a_connection_for_every_four() -> None:
    async with Fleet(6, idle_after=IDLE_AFTER) as fleet:
        await sleeping(fleet, *[0.5] * 6)
        await fleet.call()
        await asyncio.sleep(INTERVAL)
        assert len(awake(fleet)) == 1
        for _ in range(3 * SEVERAL):
            await fleet.call()
        await asyncio.sleep(INTERVAL)
        assert len(awake(fleet)) == 3


# --- silence ------------------------------------------------------------------


async def fall_silent(fleet: Fleet) -> float:
    """The first backend, right after a report; returns when that came."""
    backend = next(iter(fleet.balancer.pool.nodes.values()))
    was = backend.load.reported_at
    while backend.load.reported_at == was:  # noqa: ASYNC110
        await asyncio.sleep(10 * MOMENT)
    fleet.servers[0].is_frozen = True
    return backend.load.reported_at


async def test_half_an_interval_of_silence_is_no_silence() -> None:
    """A report is asked for in each half, so that one may be late or lost."""
    async with Fleet(2) as fleet:
        reported_at = await fall_silent(fleet)
        while now() < reported_at + INTERVAL - 2 * MOMENT:
            assert fleet.states() == ["ready", "ready"]
            await asyncio.sleep(MOMENT)
        await asyncio.sleep(4 * MOMENT + INTERVAL * UNREAD)
        assert fleet.states() == ["connecting", "ready"]
        assert fleet.reasons()[0] == f"silent for {INTERVAL * (1 + UNREAD):.1f} s"


async def test_of_two_reports_one_may_be_lost_for_ever() -> None:
    async with Fleet(2) as fleet:
        for _ in range(20):
            reported_at = await fall_silent(fleet)
            await asyncio.sleep(reported_at + 0.75 * INTERVAL - now())
            assert fleet.states() == ["ready", "ready"]
            fleet.servers[0].is_frozen = False
            await fleet.call()  # each of these brings a report's worth of attention


# --- health that is refused ---------------------------------------------------

EXHAUSTED = Code.RESOURCE_EXHAUSTED


async def test_a_stream_refused_for_want_of_room_is_asked_for_again() -> None:
    """It is offered, and has no room now: no other service is asked instead."""
    async with Fleet(1) as fleet:
        server = fleet.servers[0]
        server.refuses = {wire.WATCH_METHOD: EXHAUSTED}
        server.lose_all()
        await asyncio.sleep(0.1)
        assert fleet.states() == ["ready"], "asked once, it says how it is"
        before = server.asked.count(wire.WATCH_METHOD)
        await asyncio.sleep(60.0)
        assert fleet.states() == ["ready"]
        assert 3 <= server.asked.count(wire.WATCH_METHOD) - before <= 7, "ever rarer"
        assert not {wire.SERVING_WATCH_METHOD, wire.ORCA_METHOD} & {*server.asked}
        server.refuses = {}
        await asyncio.sleep(60.0)
        server.enter(load_pb2.LAME_DUCK)
        await asyncio.sleep(MOMENT)
        assert fleet.states() == ["lame duck"]


@pytest.mark.parametrize("code", [EXHAUSTED, Code.UNAVAILABLE, Code.CANCELLED])
async def test_a_strangers_stream_that_ends_is_asked_for_again(code: Code) -> None:
    """It had a health service a moment ago, so it still has one."""
    async with Fleet(1, health="watch") as fleet:
        server = fleet.servers[0]
        server.be_a_stranger()
        await asyncio.sleep(60.0)
        assert fleet.reasons() == ["it says serving"]
        server.enter(load_pb2.LAME_DUCK)
        await asyncio.sleep(MOMENT)
        assert fleet.states() == ["lame duck"]
        for stream in list(server.streams):
            stream.end(code)
        await asyncio.sleep(10.0)
        assert fleet.states() == ["lame duck"], "and not without a health service"
        server.enter(load_pb2.SERVING)
        await asyncio.sleep(MOMENT)
        assert fleet.reasons() == ["it says serving"]


async def test_a_strangers_health_is_asked_for_and_not_watched() -> None:
    """A stream would hold a slot of the connection, or a thread of the server."""
    async with Fleet(1) as fleet:
        server = fleet.servers[0]
        server.be_a_stranger()
        await asyncio.sleep(1.0)
        assert fleet.reasons() == ["it says serving"]
        await fleet.call()  # so it is asked at the fastest pace
        server.enter(load_pb2.LAME_DUCK)
        await asyncio.sleep(INTERVAL)
        assert fleet.states() == ["lame duck"]
        server.enter(load_pb2.SERVING)
        await asyncio.sleep(INTERVAL)
        assert fleet.states() == ["ready"]
        assert wire.SERVING_WATCH_METHOD not in server.asked


async def test_a_stranger_that_limits_health_checks_is_there() -> None:
    """A look at an inactive one is refused: it answers, so it can be called."""
    async with Fleet(1, idle_after=IDLE_AFTER) as fleet:
        server = fleet.servers[0]
        server.be_a_stranger()
        server.refuses |= dict.fromkeys(CHECKS, EXHAUSTED)
        await sleeping(fleet, 0.5)
        assert server.asked[-1] in CHECKS
        assert fleet.reasons() == ["no calls for 10 s"]
        await fleet.call()


# --- GOAWAY -------------------------------------------------------------------


async def test_who_says_goaway_is_expected_back_and_not_replaced() -> None:
    config: dict[str, Any] = {"subset": "rendezvous", "subset_size": 1}
    async with Fleet(2, **config, replace_after=60.0) as fleet:
        first = fleet.servers[0]
        first.connects_in = 1.0
        first.say_goaway()
        await asyncio.sleep(0.5)
        assert fleet.states() == ["lame duck"]
        await asyncio.sleep(1.0)
        assert fleet.states() == ["ready"]


async def test_a_lame_duck_that_says_goaway_is_not_expected_back() -> None:
    """It counted as present: nobody stood in for the one that stood in for it."""
    config: dict[str, Any] = {"subset": "rendezvous", "subset_size": 1}
    async with Fleet(3, **config, replace_after=60.0) as fleet:
        first, second, _ = fleet.servers
        first.enter(load_pb2.LAME_DUCK)
        await asyncio.sleep(1.0)
        assert fleet.states() == ["lame duck", "ready"]
        first.connects_in = 30.0
        first.say_goaway()
        await asyncio.sleep(1.0)
        second.enter(load_pb2.LAME_DUCK)
        await asyncio.sleep(1.0)
        assert fleet.states() == ["lame duck", "lame duck", "ready"]


async def test_calls_in_flight_go_on_after_goaway_and_new_ones_find_the_way() -> None:
    async with Fleet(1) as fleet:
        server = fleet.servers[0]
        server.serve = hold
        running = fleet.call()
        await asyncio.sleep(MOMENT)
        server.say_goaway()
        server.serve = FakeCall.serve
        told_at = now()
        await fleet.call(timeout=5.0)
        assert server.connecting_at[-1] == told_at
        assert now() < told_at + 0.1
        assert not running.done()
        server.calls[0].serve(b"late")
        assert await running == b"late"
