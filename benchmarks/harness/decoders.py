"""Every decoder of bytes that a peer, a file or an API controls, and what it may raise.

`tests/laws/test_decoders.py` tries them with hypothesis, `benchmarks.fuzz` for minutes.
What a decoder may raise is what its caller expects; all else is found.
"""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import NamedTuple

import lbclient
from lbclient import wire
from lbclient.admin import siblings
from lbclient.admin.http import HttpError, read
from lbclient.admin.snapshot import snapshot
from lbclient.cli.operate import inspect
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.core.errors import ConfigError, ResolveError
from lbclient.core.model import LoadReport, TaskState
from lbclient.core.text import is_printable, printable
from lbclient.resolvers import json_items, yaml_groups
from lbclient.resolvers.endpoint_slices import Gone, Slices
from lbclient.resolvers.file import endpoints_of
from lbclient.resolvers.listing import Listing
from lbclient.server.overload.metadata import RequestMetadata
from lbclient.v1 import health_pb2, load_pb2
from lbclient.wire import datagram

MOST = 20_000  # bytes: what is longer is not tried


class Decoder(NamedTuple):
    """`examples` are bytes that it takes; a fuzzer changes them."""

    name: str
    decode: Callable[[bytes], object]
    expected: tuple[type[BaseException], ...]
    examples: tuple[bytes, ...]


def _udp(data: bytes) -> None:
    if datagram.nonce_of(data) is not None:
        datagram.session_of(data)
    datagram.is_sealed(data, b"secret")
    datagram.parse_answer(data)


def _pairs(data: bytes) -> Iterator[tuple[str, str | bytes]]:
    """Metadata with our keys: each line is the number of a key, and a value."""
    keys = (
        wire.LOAD_KEY,
        wire.REFUSAL_KEY,
        wire.CRITICALITY_KEY,
        wire.ATTEMPT_KEY,
        wire.CUSTOMER_KEY,
        "grpc-retry-pushback-ms",
        "grpc-previous-rpc-attempts",
        "lbclient-cost-bin",
    )
    for line in data.split(b"\n"):
        key = keys[line[0] % len(keys)] if line else "other"
        value = line[1:]
        # gRPC lets ASCII through, or bytes where the key says so.
        yield key, value if key.endswith("-bin") else value.decode("ascii", "ignore")


def _trailers(data: bytes) -> None:
    code = data[0] % 17 if data else 0  # for others gRPC's core says UNKNOWN
    pairs = tuple(_pairs(data[1:]))
    ending = wire.read_trailers(code, pairs)
    ending.may_be_retried()
    ending.outcome(0.1)
    wire.find_cost(pairs)


def _alone(data: bytes) -> None:
    """Reads a request's metadata, which sets the criticality of the task, in a context
    of its own."""
    copy_context().run(_metadata, data)


def _metadata(data: bytes) -> None:
    reader = RequestMetadata()
    reader.take(tuple(_pairs(data)))
    reader.named(tuple(_pairs(data)))
    wire.find_customer(tuple(_pairs(data)))


def _file(items: Callable[[bytes], Iterator[object]]) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        listing = Listing()
        return listing.take(endpoints_of(items(data), listing.endpoint))

    return decode


def _slice_list(data: bytes) -> None:
    Slices("http").replace(data.decode("utf-8", "replace"))


def _slice_events(data: bytes) -> None:
    Slices("http").apply(data.split(b"\n"), "1")


def _request(data: bytes) -> None:
    """Of the admin page."""

    async def take() -> None:
        reader = asyncio.StreamReader(limit=8192)
        reader.feed_data(data)
        reader.feed_eof()
        await read(reader)

    asyncio.run(take())


def _page(data: bytes) -> None:
    """What `lbclient inspect` reads, and shows."""

    async def take() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await inspect.answer("here", reader)

    said = inspect.understood("here", asyncio.run(take()))
    list(inspect.lines(inspect.Look(said, None)))


def _sibling(data: bytes) -> None:
    siblings._parse(9465, data)


def _toml(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.toml"
        path.write_bytes(data)
        for config in (ChannelConfig, ServerConfig):
            with suppress(ConfigError):
                config.from_toml(str(path))


def _text(data: bytes) -> None:
    shown = printable(data.decode("utf-8", "surrogateescape"))
    assert is_printable(shown), shown


def _report() -> bytes:
    message = load_pb2.LoadReport(
        cpu_utilization=0.5,
        rps_fractional=10.0,
        application_utilization=0.7,
        task_id=7,
        state=load_pb2.SERVING,
        named_metrics={"a": 0.5},
    )
    return message.SerializeToString()


def _health() -> bytes:
    load = load_pb2.LoadReport.FromString(_report())
    message = health_pb2.HealthReport(state=load_pb2.SERVING, load=load)
    return message.SerializeToString()


def _answer() -> bytes:
    probe = datagram.probe(77)
    nonce = datagram.nonce_of(probe)
    assert nonce is not None
    report = LoadReport(state=TaskState.SERVING)
    return datagram.answer(nonce, TaskState.SERVING, report)


async def _shown() -> bytes:
    """The page of a process with a channel and a server."""
    server = lbclient.server(config=ServerConfig(quotas={"mail": 1.0}))
    async with lbclient.insecure_channel("ipv4:127.0.0.1:1,127.0.0.2:1") as channel:
        channel.get_state(try_to_connect=True)
        for _ in range(100):  # turns, until the name is resolved
            await asyncio.sleep(0)
        body = json.dumps(snapshot()).encode()
    await server.stop(None)
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + body


SLICES = (
    b'{"kind": "EndpointSliceList", "metadata": {"resourceVersion": "5"}, "items": ['
    b'{"addressType": "IPv4", "metadata": {"name": "a"}, "ports": [{"name": "http",'
    b' "port": 80}], "endpoints": [{"addresses": ["10.0.0.1"], "hostname": "web-0",'
    b' "conditions": {"ready": true}, "zone": "x"}]}]}'
)
EVENT = (
    b'{"type": "ADDED", "object": {"addressType": "IPv4", "metadata": {"name": "a",'
    b' "resourceVersion": "6"}, "ports": [{"name": "http", "port": 80}],'
    b' "endpoints": [{"addresses": ["10.0.0.1"]}]}}\n'
    b'{"type": "ERROR", "object": {"code": 410, "message": "gone"}}'
)
GROUPS = b'[{"targets": ["a:1", "[::1]:2"], "labels": {"zone": "x", "weight": "2"}}]'
YAML = b"- targets: [a:1, b:2]\n  labels: {zone: x, task: 3, lame_duck: true}\n"
REQUEST = b"GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:80\r\nA: b\r\n\r\n"
SETTINGS = (
    b'[channel]\npicker = "p2c"\nidempotent = ["/a.B/C"]\n[channel."dns:///x:1"]\n'
    b"subset_size = 3\n[server]\nmax_load = 2.0\nquotas = { a = 1.0 }\n"
)
TRAILERS = b"\x0e\x01overloaded\n\x05-1\n\x00" + _report() + b"\n\x07\x01"

DECODERS = [
    Decoder("UDP datagrams", _udp, (), (_answer(), datagram.probe(1, b"secret"))),
    Decoder("load reports", wire.parse_report, (), (_report(),)),
    Decoder("health reports", wire.parse_health, (), (_health(),)),
    Decoder("trailers of responses", _trailers, (), (TRAILERS,)),
    Decoder("metadata of requests", _alone, (), (b"\x02CRITICAL\n\x032\n\x04me",)),
    Decoder(
        "files of endpoints in JSON",
        _file(json_items.items),
        (ValueError, RecursionError),
        (GROUPS,),
    ),
    Decoder(
        "files of endpoints in YAML",
        _file(yaml_groups.items),
        (ValueError, RecursionError),
        (YAML,),
    ),
    Decoder("lists of EndpointSlices", _slice_list, (ResolveError,), (SLICES,)),
    Decoder("events of EndpointSlices", _slice_events, (ResolveError, Gone), (EVENT,)),
    Decoder(
        "requests to the admin page",
        _request,
        (HttpError, asyncio.IncompleteReadError),
        (REQUEST,),
    ),
    Decoder(
        "pages that inspect reads",
        _page,
        (inspect.UnreadableError,),
        (asyncio.run(_shown()),),
    ),
    Decoder(
        "pages of other processes",
        _sibling,
        (ValueError, RecursionError),
        (b'HTTP/1.1 200 OK\r\n\r\n{"program": "shop", "pid": 7}',),
    ),
    Decoder("settings in TOML", _toml, (), (SETTINGS,)),
    Decoder("words of strangers", _text, (), (b"no \x1b[2J\xff answer",)),
]


def tried(decoder: Decoder, data: bytes) -> None:
    """Raises what the decoder may not raise."""
    with suppress(*decoder.expected):
        decoder.decode(data[:MOST])
