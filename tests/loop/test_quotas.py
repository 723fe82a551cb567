"""Tasks tell each other what they gave, over an hour that passes at once."""

import asyncio
import gc
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from lbclient.config import ServerConfig
from lbclient.core.criticality import Criticality
from lbclient.core.protocols import FleetUsage
from lbclient.core.quotas.quota import HOLD, INTERVAL
from lbclient.server.quotas.memory_store import MemoryStore
from lbclient.server.quotas.quota_enforcer import HEARD, QuotaEnforcer, _of_process

LIMIT = 1.0  # CPU seconds a second
COST = 0.01
CRITICAL = Criticality.CRITICAL


def now() -> float:
    return asyncio.get_running_loop().time()


def make(store: Any, **config: Any) -> QuotaEnforcer:
    quotas = QuotaEnforcer(
        ServerConfig(quotas={"a": LIMIT}, quota_store=store, **config),
        now,
    )
    quotas.start()
    return quotas


def request(quotas: QuotaEnforcer) -> bool:
    """One of customer a, which costs `COST` if it is let in."""

    if quotas.refuses("a", CRITICAL):
        return False
    quotas.admit("a", CRITICAL).pay(COST)
    return True


async def offer(
    demand: Mapping[QuotaEnforcer, float], seconds: float
) -> dict[QuotaEnforcer, float]:
    """CPU seconds a second that each task gives in the second half."""
    given = dict.fromkeys(demand, 0)
    owed = dict.fromkeys(demand, 0.0)
    steps = round(seconds / COST)
    for step in range(steps):
        for quotas, wanted in demand.items():
            owed[quotas] += wanted
            while owed[quotas] >= 1.0:
                owed[quotas] -= 1.0
                given[quotas] += request(quotas) and step >= steps // 2
        await asyncio.sleep(COST)
    return {quotas: count * COST / (seconds / 2) for quotas, count in given.items()}


async def stop(*tasks: QuotaEnforcer) -> None:
    for quotas in tasks:
        quotas.stop()
    for _ in range(10):  # its tasks end, one in the other, and leave no trace
        await asyncio.sleep(0)


async def test_four_tasks_give_one_limit_together_however_demand_is_spread() -> None:
    store = MemoryStore(now)
    tasks = [make(store) for _ in range(4)]
    wanted = [8.0, 1.0, 1.0, 0.0]
    given = await offer(dict(zip(tasks, wanted, strict=True)), 60.0)
    await stop(*tasks)
    assert sum(given.values()) == pytest.approx(LIMIT, rel=0.12)


@pytest.mark.parametrize("share", [1.0, 0.25])
async def test_without_a_store_the_tasks_of_a_process_give_one_limit_together(
    share: float,
) -> None:
    """Of which `quota_share` is theirs, as a fleet of which nothing is known has more
    of them. Each gave all of it.
    """
    tasks = [make(None, quota_share=share) for _ in range(4)]
    given = await offer(dict(zip(tasks, [8.0, 1.0, 1.0, 0.0], strict=True)), 60.0)
    seen = [one.statistics() for one in tasks]
    await stop(*tasks)
    assert sum(given.values()) == pytest.approx(share * LIMIT, rel=0.12)
    assert {one.tasks for one in seen} == {4}
    assert sum(one.shares["a"] for one in seen) == pytest.approx(share, rel=0.01)


async def test_who_has_other_limits_shares_none() -> None:
    tasks = [make(None), make(None, default_quota=1.0)]
    given = await offer(dict.fromkeys(tasks, 2.0), 60.0)
    await stop(*tasks)
    for one in given.values():
        assert one == pytest.approx(LIMIT, rel=0.12)


async def test_the_last_of_a_process_has_the_limit_and_asks_nobody() -> None:
    one, other = tasks = [make(None, quota_share=0.5) for _ in range(2)]
    await offer(dict.fromkeys(tasks, 5.0), 20.0)
    other.stop()
    await asyncio.sleep(2 * INTERVAL)
    heard = one.statistics()
    assert (heard.tasks, heard.shares) == (0, {}), "what is no longer so"
    given = await offer({one: 5.0}, 40.0)
    assert given[one] == pytest.approx(0.5 * LIMIT, rel=0.12)
    assert one.statistics() == heard
    await stop(one)


async def test_what_a_process_shares_goes_with_its_servers() -> None:
    gc.collect()
    others = len(_of_process)  # of other tests, whose errors may be kept
    tasks = [make(None) for _ in range(2)]
    await asyncio.sleep(INTERVAL)
    stores = len(_of_process)
    await stop(*tasks)
    tasks.clear()
    gc.collect()
    assert (stores - others, len(_of_process) - others) == (1, 0)


class Broken:
    """A store that fails, or that takes for ever, as from the second exchange on."""

    def __init__(self, inner: MemoryStore, is_slow: bool) -> None:
        self._inner = inner
        self._is_slow = is_slow
        self.is_broken = False

    async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
        if self.is_broken and self._is_slow:
            await asyncio.Event().wait()
        if self.is_broken:
            raise ConnectionError("no route to the store")
        return await self._inner.exchange(task, usage)


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", [False, True])
async def test_without_its_store_the_last_word_holds_for_a_while(
    is_slow: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = Broken(MemoryStore(now), is_slow)
    tasks = [make(store, quota_share=0.1) for _ in range(2)]
    demand = dict.fromkeys(tasks, 5.0)
    await offer(demand, 30.0)
    with caplog.at_level(logging.WARNING, "lbclient"):
        store.is_broken = True
        held = await offer(demand, HOLD - 5.0)
        assert sum(held.values()) == pytest.approx(LIMIT, rel=0.12)
        await asyncio.sleep(10.0)
        fallen = await offer(demand, 60.0)
        assert sum(fallen.values()) == pytest.approx(0.2 * LIMIT, rel=0.12)
        assert len(caplog.records) == len(tasks), "each says it once"
        assert tasks[0].statistics().failures > 10
        store.is_broken = False
        again = await offer(demand, 60.0)
    await stop(*tasks)
    assert sum(again.values()) == pytest.approx(LIMIT, rel=0.12)


async def test_a_task_that_is_gone_leaves_its_part_to_the_others() -> None:
    store = MemoryStore(now)
    one, other = make(store), make(store)
    await offer({one: 5.0, other: 5.0}, 20.0)
    other.stop()
    await asyncio.sleep(2 * MemoryStore.KEPT)
    given = await offer({one: 5.0}, 40.0)
    await stop(one, other)
    assert given[one] == pytest.approx(LIMIT, rel=0.12)


async def test_nobody_waits_for_the_store(caplog: pytest.LogCaptureFixture) -> None:
    asked = asyncio.Event()

    class Silent:
        async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    quotas = make(Silent())
    await asked.wait()
    began_at = now()
    assert request(quotas)
    assert now() == began_at
    await asyncio.sleep(3 * INTERVAL)
    assert quotas.statistics().failures >= 1
    await stop(quotas)
    [said] = caplog.messages
    assert said == (
        "quota store failed: TimeoutError: no answer within 1 s; using the last shares"
    )


NAN = float("nan")


@pytest.mark.parametrize(
    ("said", "share"),
    [
        (FleetUsage(2, {"a": NAN}, {"a": 0.5}), 0.25),
        (FleetUsage(2, {"a": -5.0}, {"a": 0.5}), 0.25),
        (FleetUsage(2, {"a": 0.1}, {"a": NAN}), None),
        (FleetUsage(-1, {"a": 0.1}, {"a": 1.0}), None),
        (FleetUsage(2, {"a": 0.0}, {"a": 0.5}, NAN), 0.25),
    ],
)
async def test_what_a_store_says_that_makes_no_sense_is_left_out_and_counted(
    said: FleetUsage, share: float | None
) -> None:
    asked = []

    class Store:
        async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
            asked.append(now())
            return said

    quotas = make(Store())
    await asyncio.sleep(10.5 * INTERVAL)
    quotas.stop()
    heard = quotas.statistics()
    assert len(asked) == 11
    assert heard.malformed == 11
    assert heard.shares.get("a") == share


async def test_a_store_may_be_a_dataclass() -> None:
    """It has no hash then: `start` raised, once the port was served."""

    @dataclass
    class Store:
        password: str
        asked: int = 0

        async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
            self.asked += 1
            return FleetUsage(2, {}, {})

    store = Store("secret")
    quotas = make(store)
    await asyncio.sleep(2.5 * INTERVAL)
    quotas.stop()
    await asyncio.sleep(2.5 * INTERVAL)
    assert store.asked == 3


async def test_of_a_store_that_tells_of_too_many_those_are_heard_that_matter() -> None:
    many = {f"invented {i}": 100.0 + i for i in range(2 * HEARD)}
    odd: Any = {"x" * 101: 1.0, 7: 1.0, b"a": 1.0}

    class Store:
        async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
            return FleetUsage(2, {"here": 0.1}, {**many, **odd, "a": 0.1, "here": 0.1})

    quotas = make(Store(), default_quota=1.0)
    await asyncio.sleep(0.5 * INTERVAL)
    heard = quotas.statistics()
    quotas.stop()
    assert heard.malformed == len(odd)
    assert len(heard.shares) == HEARD
    assert {"a", "here", f"invented {2 * HEARD - 1}"} <= set(heard.shares)


async def test_quotas_and_their_store_read_as_english() -> None:
    store = MemoryStore(now)
    tasks = [make(store) for _ in range(2)]
    await asyncio.sleep(1.5 * INTERVAL)
    await stop(*tasks)
    assert repr(store) == "<usage of 2 tasks>"
    accounts = "<2 accounts, 0 at their limits>"
    assert repr(tasks[0]) == f"<{accounts} of 2 tasks, 0 failures of the store>"
