"""What the loop pays when many backends come, go or are lost in one moment.

    python -m benchmarks.crowd               100, 1,000 and 10,000 backends
    python -m benchmarks.crowd --sizes 500   or of any other number

A client with the subset "whole" finds n backends, loses all connections at once, and
is told by its resolver of one of them only, of all again, and of n others. Each time
the benchmark takes the CPU time of the longest turn of the event loop, in a process of
its own. Other callbacks, calls among them, wait for as long as a turn takes.

Connections are fakes that cost next to nothing, and begin as fast as they can: what is
left is lbclient's own work. `benchmarks.faults --only all_lost` has real ones. Garbage
collections are told apart: one of the oldest generation looks at every object of the
process, and falls into any turn. Exit status 1 if a turn was too long.
"""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from random import Random
from typing import Any

import grpc

from benchmarks.harness.load import until
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import result_of
from lbclient.client import connect_pacer
from lbclient.client.balancer import Balancer
from lbclient.client.channel_context import channel_context
from lbclient.config import ChannelConfig
from lbclient.core.model import Endpoint, Endpoints, State, snapshot
from lbclient.pickers import picker_factory
from lbclient.v1 import health_pb2

SIZES = (100, 1_000, 10_000)
MOST = 0.05  # seconds of CPU in a turn, up to MOST_FOR backends
MOST_FOR = 1_000
SETTLE = 0.05  # seconds, for what follows in the next turns

Connectivity = grpc.ChannelConnectivity


# --- the longest turn ---------------------------------------------------------


class Probe:
    """Runs once in each turn of the loop, and notes the longest, by `clock`.

    Garbage collections are timed apart, in `collecting`: one of the oldest generation
    looks at all objects of the process, in whichever turn it falls.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.longest = self.collecting = 0.0
        self._clock = clock
        self._began_at = self._collected_at = self._collected = 0.0
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> "Probe":
        self.longest = self.collecting = 0.0
        gc.callbacks.append(self._collect)
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._handle is not None
        self._handle.cancel()
        gc.callbacks.remove(self._collect)

    def _turn(self) -> None:
        took = self._clock() - self._began_at - self._collected
        self.longest = max(self.longest, took)
        self._begin()

    def _begin(self) -> None:
        self._handle = asyncio.get_running_loop().call_soon(self._turn)
        self._collected = 0.0  # in this turn
        self._began_at = self._clock()

    def _collect(self, phase: str, _: object) -> None:
        if phase == "start":
            self._collected_at = self._clock()
        else:
            took = self._clock() - self._collected_at
            self._collected += took
            self.collecting = max(self.collecting, took)


# --- backends that cost nothing -----------------------------------------------


class Network:
    """Where the fake connections lead. Those of a moment can all be lost."""

    def __init__(self) -> None:
        self.channels: dict[FakeChannel, None] = {}
        self.is_up = True

    def dial(self, endpoint: Endpoint, more: object = ()) -> Any:
        return FakeChannel(self, endpoint)

    def lose_all(self) -> None:
        for channel in list(self.channels):
            channel.enter(Connectivity.IDLE)

    def cut_all(self) -> Callable[[], None]:
        """All are lost, and nobody has been told yet; what is returned tells it."""
        channels = [c for c in self.channels if c.get_state() is Connectivity.READY]
        for channel in channels:
            channel.is_cut = True

        def tell() -> None:
            for channel in channels:
                channel.is_cut = False
                channel.enter(Connectivity.IDLE)

        return tell

    def refuse_all(self) -> None:
        self.is_up = False
        self.lose_all()

    def heal(self) -> None:
        self.is_up = True
        for channel in list(self.channels):
            if channel.get_state() is Connectivity.TRANSIENT_FAILURE:
                channel.enter(Connectivity.READY)


class FakeChannel:
    """As much of a grpc.aio.Channel as a backend uses."""

    def __init__(self, network: Network, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.is_cut = False
        self._network = network
        self._state = Connectivity.IDLE
        self._changes: list[asyncio.Future[None]] = []
        self._streams: list[FakeStream] = []
        network.channels[self] = None

    def get_state(self, try_to_connect: bool = False) -> Connectivity:
        state = Connectivity.IDLE if self.is_cut else self._state
        if try_to_connect and state is Connectivity.IDLE:
            self.enter(Connectivity.CONNECTING)
            asyncio.get_running_loop().call_soon(self._connect)
        return state

    def _connect(self) -> None:
        if self._state is Connectivity.CONNECTING:
            is_up = self._network.is_up
            failure = Connectivity.TRANSIENT_FAILURE
            self.enter(Connectivity.READY if is_up else failure)

    def enter(self, state: Connectivity) -> None:
        if self._state is Connectivity.SHUTDOWN or self._state is state:
            return
        self._state = state
        changes, self._changes = self._changes, []
        for change in changes:
            if not change.done():
                change.set_result(None)
        if state is not Connectivity.READY:
            for stream in self._streams:
                stream.fail()
            self._streams = []

    async def wait_for_state_change(self, last: Connectivity) -> None:
        while self._state is last:
            change = asyncio.get_running_loop().create_future()
            self._changes.append(change)
            await change

    def unary_unary(self, path: str) -> Callable[..., Any]:
        async def ask(_: bytes, timeout: float | None = None) -> bytes:
            raise unavailable()

        return ask

    def unary_stream(self, _: str) -> Callable[[bytes], "FakeStream"]:
        def begin(_: bytes) -> FakeStream:
            stream = FakeStream()
            self._streams.append(stream)
            return stream

        return begin

    async def close(self, grace: float | None = None) -> None:
        self._network.channels.pop(self, None)
        self.enter(Connectivity.SHUTDOWN)


class FakeStream:
    """Of health reports: it serves, and says no more."""

    def __init__(self) -> None:
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_spoken = False

    async def read(self) -> bytes:
        if not self._has_spoken:
            self._has_spoken = True
            return SERVING
        await self._end
        raise unavailable()

    def fail(self) -> None:
        if not self._end.done():
            self._end.set_result(None)

    def cancel(self) -> None:
        self._end.cancel()


SERVING = health_pb2.HealthReport(state="SERVING").SerializeToString()


def unavailable() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    code = grpc.StatusCode.UNAVAILABLE
    return grpc.aio.AioRpcError(code, nothing, nothing, "lost")


class Told:
    """A resolver that says what it is told to."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[Endpoints] = asyncio.Queue()

    def tell(self, endpoints: Endpoints) -> None:
        self._answers.put_nowait(endpoints)

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        while True:
            yield await self._answers.get()


def fleet(count: int, network: int) -> Endpoints:
    found = (Endpoint(f"10.{network}.{n // 250}.{n % 250}:50051") for n in range(count))
    return snapshot(list(found))


WHOLE = ChannelConfig(subset="whole", idle_after=0.0)


def balancer_of(
    network: Network, resolver: Told, config: ChannelConfig = WHOLE
) -> Balancer:
    return Balancer(
        channel_context("crowd", config, time.monotonic, Random(7)),
        resolver,
        lambda endpoints: endpoints,
        picker_factory(config.picker, config.slow_start)(Random(7)),
        network.dial,
    )


Longest = dict[str, tuple[float, float]]
"""Seconds of CPU in the longest turn and in the longest garbage collection, by what
happened."""


class Faked:
    """A balancer of `count` fakes, and what happens to it, one after the other."""

    def __init__(self, count: int) -> None:
        self.some, self.others = fleet(count, 0), fleet(count, 1)
        self.network = Network()
        self.resolver = Told()
        self.balancer = balancer_of(self.network, self.resolver)

    def steps(self) -> Iterator[tuple[str, Callable[[], object], Callable[[], bool]]]:
        """What is to happen, how it is made to, and what is true afterwards."""
        tell, network = self.resolver.tell, self.network
        all_ready = self.are_ready(self.some)
        one = self.some[:1]
        yield "found", lambda: tell(self.some), all_ready
        yield "lost", network.lose_all, all_ready
        yield "found lost by a call", self.find_lost, all_ready
        yield "refused", network.refuse_all, self.do_refuse
        yield "healed", network.heal, all_ready
        yield "all but one dropped", lambda: tell(one), self.are_ready(one)
        yield "listed again", lambda: tell(self.some), all_ready
        yield "replaced", lambda: tell(self.others), self.are_ready(self.others)

    def are_ready(self, endpoints: Endpoints) -> Callable[[], bool]:
        addresses = {endpoint.address for endpoint in endpoints}
        pool = self.balancer.pool

        def are() -> bool:
            states = Counter(node.state for node in pool.nodes.values())
            is_all = states == {State.READY: len(addresses)}
            is_over = not self.balancer.connections.draining
            return is_all and is_over and pool.nodes.keys() == addresses

        return are

    def do_refuse(self) -> bool:
        return not self.balancer.pool.is_promising()

    def find_lost(self) -> None:
        """By one call, before anybody is told."""
        tell = self.network.cut_all()
        assert self.balancer.pick(time.monotonic(), {}) is None
        tell()


async def faked(count: int, clock: Callable[[], float]) -> Longest:
    crowd, probe = Faked(count), Probe(clock)
    found: Longest = {}
    try:
        for what, begin, is_true in crowd.steps():
            with probe:
                begin()
                await asyncio.sleep(SETTLE)
                await until(is_true, what)
                await asyncio.sleep(SETTLE)
            found[what] = probe.longest, probe.collecting
    finally:
        with probe:
            await crowd.balancer.close(None)
            await asyncio.sleep(SETTLE)
        found["closed"] = probe.longest, probe.collecting
    return found


async def measured(count: int) -> Longest:
    connect_pacer.AT_ONCE, connect_pacer.HOLD = 10**9, 0.0  # as fast as they can
    return await faked(count, time.thread_time)


def say(count: int, found: Longest) -> list[str]:
    """Prints the figures of one size; returns what was missed."""
    print(f"{count:,} backends")
    for what, (turn, collecting) in found.items():
        print(f"  {what:22} {turn * 1000:8.1f} ms, garbage {collecting * 1000:6.1f} ms")
    return [
        f"{what} at {count:,}: {turn * 1000:.0f} ms"
        for what, (turn, _) in found.items()
        if count <= MOST_FOR and turn > MOST
    ]


async def run(sizes: list[int]) -> tuple[dict[int, Longest], list[str]]:
    missed, figures = [], {}
    for count in sizes:
        figures[count] = await result_of(measured, count)
        missed += say(count, figures[count])
    return figures, missed


def main() -> int:
    parser = parser_of("crowd", __doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    given = parser.parse_args()
    figures, missed = asyncio.run(run(given.sizes))
    told = [
        Measured(name=f"{count:,} backends, {what}: turn", value=1e3 * turn, unit="ms")
        for count, found in figures.items()
        for what, (turn, _) in found.items()
    ]
    return conclude(given, figures, missed, measured=told)


if __name__ == "__main__":
    exit_with(main)
