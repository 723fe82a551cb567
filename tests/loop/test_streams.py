"""Who holds a stream, and when each is told, in virtual time."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.model import LoadReport
from lbclient.server.meters.cpu import CpuMeter
from lbclient.server.report.health import HealthServices
from lbclient.server.report.streams import (
    OPENINGS,
    OPENINGS_IF_STRAINED,
    PACES,
    REPORTS,
    SLICE,
    TICK,
    Full,
    ReportStreams,
    Stream,
    StreamKind,
    floor_of,
    pace_within,
)
from lbclient.v1 import health_pb2
from tests.held import count_held, held_by
from tests.parts import parts

PEER = "ipv4:10.0.0.3:50051"


class Served:
    """Streams, the timer that serves them, and tasks that write at once."""

    def __init__(self, most: int = 4000, per_connection: int = 8) -> None:
        self.is_strained = False
        self.streams = ReportStreams(
            most, per_connection, self.clock, lambda: self.is_strained
        )
        self.told: dict[Stream, list[float]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    def open(
        self,
        pace: float,
        peer: str = PEER,
        kind: StreamKind = StreamKind.HEALTH,
        writes: Callable[[], float] = lambda: 0.0,
    ) -> Stream:
        stream = self.streams.enter(kind, peer, pace)
        assert isinstance(stream, Stream)
        self.told[stream] = []
        serving = self._serve(stream, writes)
        self._tasks.append(asyncio.create_task(serving))
        return stream

    async def _serve(self, stream: Stream, writes: Callable[[], float]) -> None:
        try:
            while True:
                self.told[stream].append(self.clock())
                if seconds := writes():
                    await asyncio.sleep(seconds)
                await stream.due()
        finally:
            self.streams.leave(stream)

    async def run(self, seconds: float) -> None:
        until = self.clock() + seconds
        while self.clock() < until:
            await asyncio.sleep(TICK)
            self.streams.tick(self.clock())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rate(self, since: float) -> float:
        told = sum(at >= since for times in self.told.values() for at in times)
        return told / (self.clock() - since)


async def test_each_stream_is_told_at_its_pace() -> None:
    served = Served()
    streams = [served.open(pace, f"ipv4:h:{n}") for n, pace in enumerate(PACES[:12])]
    await served.run(100.0)
    for stream in streams:
        gaps = [later - earlier for earlier, later in pairwise(served.told[stream])]
        assert sum(gaps) / len(gaps) == pytest.approx(stream.pace, rel=0.05)
        assert max(gaps) <= stream.pace + 2 * TICK, "so nobody seems silent"
    await served.close()


async def test_a_stream_that_opens_later_than_others_has_the_same_pace() -> None:
    """Its ticks are of the clock, not of when the first one came."""
    served = Served()
    await served.run(1000.03)
    stream = served.open(1.0)
    await served.run(10.0)
    assert len(served.told[stream]) in (10, 11)
    await served.close()


async def test_after_a_standstill_a_stream_is_told_once() -> None:
    served = Served()
    stream = served.open(0.1)
    await served.run(1.0)
    await asyncio.sleep(0.0)
    before = len(served.told[stream])
    await asyncio.sleep(3600.0)  # no ticks
    served.streams.tick(served.clock())
    await asyncio.sleep(0.0)
    await asyncio.sleep(0.0)
    assert len(served.told[stream]) == before + 1
    await served.close()


async def test_all_of_them_together_are_told_at_a_bounded_rate() -> None:
    """Also where each asks for ten reports a second."""
    served = Served()
    for number in range(1000):
        served.open(PACES[0], f"ipv4:h:{number}")
    await served.run(10.0)
    assert served.streams.floor == pytest.approx(1000 / REPORTS)
    assert served.rate(since=5.0) <= REPORTS * 1.1
    await served.close()
    served.streams.tick(served.clock())
    assert served.streams.floor == 0.0


async def test_the_slow_ones_keep_their_pace_when_others_want_too_much() -> None:
    served = Served()
    for number in range(1000):
        served.open(PACES[0], f"ipv4:h:{number}")
    slow = served.open(8.0, "ipv4:h:slow")
    await served.run(100.0)
    assert len(served.told[slow]) in (12, 13)
    await served.close()


def test_the_floor_is_the_shortest_interval_that_keeps_the_rate() -> None:
    for paced in ({0.1: 700, 1.0: 700, 60.0: 2000}, {0.1: 51}, {3600.0: 4000}):
        floor = floor_of(paced)
        sent = sum(count / max(pace, floor) for pace, count in paced.items())
        assert sent <= REPORTS + 1e-6
        assert not floor or sent == pytest.approx(REPORTS)


def test_a_pace_is_never_slower_than_what_was_asked() -> None:
    assert all(pace_within(pace) == pace for pace in PACES)
    assert all(pace_within(n / 10) <= n / 10 for n in range(1, 1000))


async def test_a_connection_holds_so_many_of_each_kind() -> None:
    served = Served(per_connection=2)
    for kind in StreamKind:
        served.open(1.0, kind=kind)
        served.open(1.0, kind=kind)
        assert served.streams.enter(kind, PEER, 1.0) is Full.CONNECTION
    served.open(1.0, "ipv6:%5B::1%5D:7")
    assert served.streams.refused[Full.CONNECTION] == len(StreamKind)
    await served.close()


async def test_clients_of_a_unix_socket_are_not_taken_for_one() -> None:
    """grpcio calls all of them "unix:"."""
    served = Served(per_connection=1)
    for _ in range(5):
        served.open(1.0, "unix:")
    await served.close()


async def test_a_server_holds_so_many() -> None:
    served = Served(most=3)
    for number in range(3):
        assert served.streams.closed_to(StreamKind.LOAD) is None
        served.open(1.0, f"ipv4:h:{number}")
    assert served.streams.closed_to(StreamKind.LOAD) is Full.SERVER
    assert served.streams.enter(StreamKind.LOAD, "ipv4:h:3", 1.0) is Full.SERVER
    await served.close()


async def test_nothing_is_kept_of_streams_that_ended() -> None:
    served = Served()
    for number in range(1000):
        served.open(PACES[number % len(PACES)], f"ipv4:h:{number}")
    await asyncio.sleep(0.0)
    served.streams.push()
    await served.close()
    streams = served.streams
    assert held_by(streams, Stream) == []
    assert count_held(streams) < 100
    assert repr(streams) == "<0 health, 0 load, 0 serving streams>"


async def test_new_streams_are_let_in_at_a_bounded_rate() -> None:
    """Those that were let in and have ended count, too."""
    served = Served(most=100)

    async def admitted(seconds: float, kind: StreamKind = StreamKind.HEALTH) -> int:
        until, count = served.clock() + seconds, 0
        while served.clock() < until:
            while served.streams.closed_to(kind) is None:
                stream = served.streams.enter(kind, PEER, 0.0)
                assert isinstance(stream, Stream)
                served.streams.leave(stream)
                count += 1
            await asyncio.sleep(0.01)
        return count

    await asyncio.sleep(100.0)
    assert await admitted(0.0) == 0
    assert await admitted(0.01) == 100
    assert await admitted(10.0) == pytest.approx(10 * OPENINGS, rel=0.05)
    served.is_strained = True
    assert await admitted(10.0) == pytest.approx(10 * OPENINGS_IF_STRAINED, abs=2)
    # Who is refused one of these checks no health for as long as it is connected.
    rate = await admitted(10.0, StreamKind.SERVING) - 100
    assert rate == pytest.approx(10 * OPENINGS, rel=0.05)
    assert served.streams.refused[Full.OPENINGS] > 0


@pytest.mark.parametrize("kind", StreamKind)
async def test_streams_that_all_ask_before_one_enters_are_let_in_no_faster(
    kind: StreamKind,
) -> None:
    served = Served(most=100)
    served.is_strained = True
    asking = [n for n in range(100) if served.streams.closed_to(kind) is None]
    found = [served.streams.enter(kind, f"ipv4:h:{n}", 0.0) for n in asking]
    expected = 100 if kind is StreamKind.SERVING else OPENINGS_IF_STRAINED
    assert len([one for one in found if isinstance(one, Stream)]) == expected
    assert len(asking) == 100


async def test_news_goes_to_all_in_slices() -> None:
    """A turn of the loop takes no longer for 2,000 streams than for a few."""
    served = Served()
    for number in range(2000):
        served.open(3600.0, f"ipv4:h:{number}")
    await asyncio.sleep(0.0)
    served.streams.push()
    turns = []
    while (told := sum(map(len, served.told.values()))) < 4000:
        turns.append(told)
        await asyncio.sleep(0.0)
    assert max(b - a for a, b in pairwise(turns)) <= 2 * SLICE
    assert {len(times) for times in served.told.values()} == {2}
    await served.close()


async def test_a_slow_reader_holds_nobody_and_gets_the_latest_alone() -> None:
    served = Served()
    slow = served.open(0.1, "ipv4:h:1", writes=lambda: 5.0)
    quick = served.open(0.1, "ipv4:h:2")
    await served.run(20.0)
    assert len(served.told[slow]) in (4, 5)
    assert len(served.told[quick]) > 190
    await served.close()


async def test_news_that_comes_while_a_report_is_written_is_not_lost() -> None:
    served = Served()
    stream = served.open(3600.0, writes=lambda: 1.0)
    await asyncio.sleep(0.5)
    served.streams.push()
    await asyncio.sleep(1.0)
    assert len(served.told[stream]) == 2
    await served.close()


# --- what they cost -----------------------------------------------------------

REPORT_COST = 0.0005  # CPU seconds of one, here


class Watching:
    """The context of a stream, as far as it is asked."""

    def __init__(self, number: int) -> None:
        self._number = number

    def peer(self) -> str:
        return f"ipv4:10.0.0.3:{self._number}"


async def utilization_with(streams: int, **signals: Any) -> tuple[LoadReport, float]:
    """What is reported after a minute with so many streams, and of that the CPU's."""
    spent = [0.0]
    meter = CpuMeter(cpu_time=lambda: spent[0], available=lambda: 1.0)
    loop = asyncio.get_running_loop()
    config = ServerConfig(report_interval=0.1, max_memory=0.0, **signals)
    server = parts(config, loop.time, meter.read)
    health = HealthServices(server.reporter, server.streams, config, {})
    server.start(loop)
    watch: Any = health.methods()[wire.WATCH_METHOD].unary_stream

    async def read(number: int) -> None:
        """In a process whose CPU time is only what it sends."""
        async for _ in watch(health_pb2.HealthRequest(), Watching(number)):
            spent[0] += REPORT_COST

    watching = [loop.create_task(read(number)) for number in range(streams)]
    await asyncio.sleep(60.0)
    found = server.monitor.report(), server.monitor.cpu
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    server.stop()
    return found


async def test_the_cpu_time_of_streams_is_in_the_reported_utilization() -> None:
    """Ten reports a second for each: 0.5 % of the only processor."""
    for streams in (0, 10, 40):
        report, cpu = await utilization_with(streams)
        assert report.utilization == cpu
        assert cpu == pytest.approx(streams * 10 * REPORT_COST, rel=0.05)


async def test_but_not_where_a_signal_of_the_users_takes_the_place_of_the_cpu() -> None:
    report, cpu = await utilization_with(
        40, utilization=lambda: 0.01, utilization_replaces=True
    )
    assert report.utilization == pytest.approx(0.01)
    assert cpu == pytest.approx(40 * 10 * REPORT_COST, rel=0.05)
