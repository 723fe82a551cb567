"""Open-loop load in bare HTTP/2 frames (RFC 9113), at 30 us of a processor a request.

The load of other benchmarks. A stub takes ten times as much: on two cores nobody
could ask a server for several times what it can do. The requests are what a stock
client sends, and at its deadline each is called off as that does. Of answers only the
status is read.

    python -m benchmarks.frames 50051 /fleet.Fleet/Work 100 5
"""

import asyncio
import contextlib
import struct
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any

from grpc import StatusCode

from benchmarks.harness.figures import quantile
from benchmarks.harness.options import exit_with, parser_of
from benchmarks.harness.processes import result_of
from benchmarks.harness.processes import say as tell
from lbclient import wire

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
CANCEL = struct.pack(">I", 8)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# No table of header fields: each answer says all in full. And as much as it likes.
WANTS = struct.pack(">HIHI", 1, 0, 4, 2**31 - 1)
ROOM = struct.pack(">I", 2**31 - 1 - 65_535)
EMPTY = bytes(5)  # a message without content
TICK = 0.001  # seconds
CONNECTIONS = 4
DEADLINE = 1.0
WARMUP = 1.0  # seconds that do not count
CRITICALITIES = ("CRITICAL", "SHEDDABLE")
STATUS = b"grpc-status"
REFUSAL = wire.REFUSAL_KEY.encode()
NAMES = {code.value[0]: code.name for code in StatusCode}


@dataclass
class Call:
    at: float  # seconds since the beginning
    criticality: str
    code: str
    refusal: str
    latency: float
    lateness: float  # seconds between when it was to be sent and when it was


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(
        f">BBI{len(payload)}s", kind, flags, stream, payload
    )


def literal(name: bytes, value: bytes) -> bytes:
    """A header field that is not indexed (RFC 7541, section 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def request(
    path: str, authority: str, criticality: str, timeout: float, customer: str = ""
) -> bytes:
    """The header fields of a call."""
    fields = {
        b":path": path.encode(),
        b":authority": authority.encode(),
        b"te": b"trailers",
        b"content-type": b"application/grpc",
        b"grpc-timeout": b"%dm" % round(timeout * 1e3),
        wire.CRITICALITY_KEY.encode(): criticality.encode(),
    }
    if customer:
        fields[wire.CUSTOMER_KEY.encode()] = customer.encode()
    post, http = b"\x83", b"\x86"  # the static table's
    return post + http + b"".join(literal(*field) for field in fields.items())


def field(block: bytes, name: bytes) -> str:
    """What a header block says of `name`, if it has no table and no Huffman code."""
    begin = block.find(name) + len(name)
    if begin < len(name):
        return ""
    return block[begin + 1 : begin + 1 + block[begin]].decode()


# Of a call that has ended: when it was to be sent, was sent and ended; its criticality,
# status and refusal.
Take = Callable[[float, float, float, str, str, str], None]
# Requests a second, and for how many seconds.
Phases = Iterable[tuple[float, float]]


class Connection(asyncio.Protocol):
    def __init__(
        self,
        path: str,
        authority: str,
        timeout: float,
        take: Take,
        customer: str = "",
    ) -> None:
        self._blocks: dict[str, bytes] = {}
        self._of = path, authority, timeout, customer
        self._timeout = timeout
        self._open: dict[int, tuple[float, float, str]] = {}  # at, sent at, criticality
        self._due: deque[tuple[float, int]] = deque()
        self._next = 1
        self._unread = b""
        self._take = take
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        room = frame(WINDOW_UPDATE, 0, 0, ROOM)
        transport.write(PREFACE + frame(SETTINGS, 0, 0, WANTS) + room)

    def send(self, calls: Iterable[tuple[float, str]], now: float) -> None:
        """Begins calls that were to be sent at some time, of some criticality."""
        out = []
        for at, criticality in calls:
            block = self._blocks.get(criticality)
            if block is None:
                path, authority, timeout, customer = self._of
                block = request(path, authority, criticality, timeout, customer)
                self._blocks[criticality] = block
            stream, self._next = self._next, self._next + 2
            self._open[stream] = at, now, criticality
            self._due.append((now + self._timeout, stream))
            out.append(frame(HEADERS, END_HEADERS, stream, block))
            out.append(frame(DATA, END_STREAM, stream, EMPTY))
        self._transport.writelines(out)

    def give_up(self, now: float) -> None:
        """Calls off what is at its deadline."""
        while self._due and self._due[0][0] <= now:
            stream = self._due.popleft()[1]
            if stream in self._open:
                self._transport.write(frame(RST_STREAM, 0, stream, CANCEL))
                self._end(stream, now, "DEADLINE_EXCEEDED")

    def _end(self, stream: int, now: float, code: str, refusal: str = "") -> None:
        call = self._open.pop(stream, None)
        if call is not None:
            at, sent_at, criticality = call
            self._take(at, sent_at, now, criticality, code, refusal)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        data = self._unread + data
        begin = 0
        while len(data) - begin >= 9:
            size = int.from_bytes(data[begin : begin + 3])
            end = begin + 9 + size
            if end > len(data):
                break
            kind, flags, stream = struct.unpack_from(">BBI", data, begin + 3)
            self._frame(kind, flags, stream, data[begin + 9 : end], now)
            begin = end
        self._unread = data[begin:]

    def _frame(
        self, kind: int, flags: int, stream: int, payload: bytes, now: float
    ) -> None:
        if kind == HEADERS and flags & END_STREAM:
            code = NAMES[int(field(payload, STATUS))]
            self._end(stream, now, code, field(payload, REFUSAL))
        elif kind == RST_STREAM:
            self._end(stream, now, f"RST_STREAM {int.from_bytes(payload)}")
        elif kind in {SETTINGS, PING} and not flags & ACK:
            answer = payload if kind == PING else b""
            self._transport.write(frame(kind, ACK, 0, answer))
            if kind == SETTINGS and not self.ready.done():
                self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        for stream in list(self._open):
            self._end(stream, time.monotonic(), "UNAVAILABLE")

    def close(self) -> None:
        self._transport.close()

    def __len__(self) -> int:
        return len(self._open)


def arrivals(phases: Phases, rng: Random) -> Iterator[float]:
    """Poisson arrivals, in seconds since the beginning."""
    end = 0.0
    for rate, seconds in phases:
        at, end = end, end + seconds
        while rate and (at := at + rng.expovariate(rate)) < end:
            yield at


def half_critical(rng: Random) -> str:
    return CRITICALITIES[rng.random() >= 0.5]


@contextlib.asynccontextmanager
async def connected(
    port: int, path: str, take: Take, customer: str = ""
) -> AsyncIterator[list[Connection]]:
    loop, connections = asyncio.get_running_loop(), []
    try:
        for _ in range(CONNECTIONS):
            _, one = await loop.create_connection(
                lambda: Connection(path, f"127.0.0.1:{port}", DEADLINE, take, customer),
                *("127.0.0.1", port),
            )
            connections.append(one)
            await one.ready
        yield connections
    finally:
        for one in connections:
            one.close()


async def send(
    port: int,
    path: str,
    phases: Phases,
    seed: int,
    take: Callable[[Call], None],
    choose: Callable[[Random], str] = half_critical,
    began: Callable[[], None] = lambda: None,
    customer: str = "",
) -> None:
    """Poisson arrivals, of criticalities as chosen; returns when all have ended.

    `began` is called at the beginning.
    """
    rng, mix = Random(seed), Random(seed + 1)
    began_at = 0.0

    def ended(
        at: float, sent_at: float, now: float, criticality: str, code: str, refusal: str
    ) -> None:
        late = sent_at - began_at - at
        take(Call(at, criticality, code, refusal, now - sent_at, late))

    async with connected(port, path, ended, customer) as connections:
        dues = arrivals(phases, rng)
        began_at, due = time.monotonic(), next(dues, inf)
        began()
        while due < inf or any(connections):
            now = time.monotonic()
            batch = []
            while due < now - began_at:
                batch.append((due, choose(mix)))
                due = next(dues, inf)
            if batch:
                mix.choice(connections).send(batch, now)
            for one in connections:
                one.give_up(now)
            await asyncio.sleep(TICK)


@contextlib.asynccontextmanager
async def saturated(port: int, path: str, most: int) -> AsyncIterator[Counter[str]]:
    """So many calls at any time while the context lasts; how they ended until now."""
    ends: Counter[str] = Counter()

    def ended(
        at: float, sent_at: float, now: float, criticality: str, code: str, refusal: str
    ) -> None:
        ends[refusal or code] += 1

    async def keep_full(connections: list[Connection]) -> None:
        while True:
            now = time.monotonic()
            for number, one in enumerate(connections):
                room = (most + number) // CONNECTIONS - len(one)
                if room > 0:
                    one.send([(now, CRITICALITIES[0])] * room, now)
                one.give_up(now)
            await asyncio.sleep(TICK)

    async with connected(port, path, ended) as connections:
        keeping = asyncio.create_task(keep_full(connections))
        try:
            yield ends
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


async def flood(port: int, path: str, rate: float, seconds: float) -> dict[str, Any]:
    """What comes of so many requests a second, from a process of its own."""
    calls = await calls_of(port, path, rate, WARMUP + seconds)
    seen = [call for call in calls if call.at >= WARMUP]
    lateness = quantile([call.lateness for call in seen], 0.99)
    served = {}
    for criticality in CRITICALITIES:
        own = [call for call in seen if call.criticality == criticality]
        times = [call.latency for call in own if call.code == "OK"]
        served[criticality] = {
            "offered": len(own) / seconds,
            "goodput": len(times) / seconds,
            "p50": quantile(times, 0.5),
            "p99": quantile(times, 0.99),
            "ends": dict(Counter(call.refusal or call.code for call in own)),
        }
    return {"lateness": lateness, "served": served}


def say(name: str, rate: float, found: dict[str, Any]) -> None:
    """Goodput as a part of `rate`, which is the capacity."""
    print(f"{name}, sent late {1e3 * (found['lateness'] or 0.0):.0f} ms", flush=True)
    for criticality, of in found["served"].items():
        times = [f"{1e3 * of[q]:.0f}" if of[q] else "-" for q in ("p50", "p99")]
        ends = ", ".join(f"{n} {end}" for end, n in sorted(of["ends"].items()))
        print(
            f"  {criticality:10}{of['offered'] / rate:5.2f} offered, "
            f"{of['goodput'] / rate:4.2f} in time; "
            f"p50 {times[0]}, p99 {times[1]} ms; {ends}",
            flush=True,
        )


async def calls_of(port: int, path: str, rate: float, seconds: float) -> list[Call]:
    """The calls of `ask`, in a process of its own."""
    return [Call(**of) for of in await result_of(ask, port, path, rate, seconds)]


async def ask(port: int, path: str, rate: float, seconds: float) -> list[Call]:
    """The calls that have ended, of so many a second."""
    ended: list[Call] = []
    await send(port, path, [(rate, seconds)], 1, ended.append)
    return ended


def main() -> None:
    parser = parser_of("frames", __doc__, json=False)
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("rate", type=float, help="requests a second")
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    tell(asyncio.run(ask(**vars(given))))


if __name__ == "__main__":
    exit_with(main)
